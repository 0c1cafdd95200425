from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.errors import DataError
from hushbot.evaluation.state_scoring import ScoringRules, counts, score_turns
from hushbot.evaluation.utility import dialogue_state_metrics
from hushbot.types import DialogueState, Estimate, SlotValue

MULTIWOZ = ScoringRules(drop_none=True)
IGNORANT = ScoringRules(drop_none=True, dontcare="ignore")


def state(slots: Mapping[str, str]) -> DialogueState:
    return frozenset(
        SlotValue(domain, slot, value) for name, value in slots.items() for domain, _, slot in [name.partition("-")]
    )


def states(turns: Sequence[Mapping[str, str]]) -> list[DialogueState | None]:
    return [state(turn) for turn in turns]


def case(shared_dir: Path, name: str) -> Any:
    return json.loads((shared_dir / "cases" / f"{name}.json").read_text())


def values(metrics: Mapping[str, Estimate]) -> dict[str, float | None]:
    return {name: None if e.value is None else round(e.value, 4) for name, e in metrics.items()}


# Rules, by hand


def test_one_turn_of_each_kind() -> None:
    gold = {"d": states([{"a-x": "1", "a-y": "2"}, {"a-x": "1"}, {"a-x": "1", "a-y": "2"}, {}])}
    predicted = {"d": states([{"a-x": "1", "a-y": "2"}, {"a-x": "9"}, {"a-x": "1", "b-z": "3"}, {}])}
    metrics = dialogue_state_metrics(predicted, gold)
    # Right: turns 0 and 3. Triplets: 2 + 0 + 1 matched, 0 + 1 + 1 spurious, 0 + 1 + 1 missed.
    assert values(metrics) == {
        "joint_goal_accuracy": 0.5,
        "joint_goal_accuracy_nonempty": 0.3333,
        "state_precision": 0.6,
        "state_recall": 0.6,
        "state_f1": 0.6,
        "coverage_dialogues": 1.0,
        "coverage_turns": 1.0,
    }
    assert [metrics[name].n for name in ("joint_goal_accuracy", "joint_goal_accuracy_nonempty")] == [4, 3]


def test_values_are_compared_after_normalising_and_never_by_similarity() -> None:
    gold = {"d": states([{"hotel-name": "Pizza  Hut"}, {"hotel-stars": "1"}, {"hotel-area": "dontcare"}])}
    predicted = {"d": states([{"Hotel-name ": " pizza hut"}, {"hotel-stars": "10"}, {"hotel-area": "do n't care"}])}
    assert [score.is_correct for score in score_turns(predicted, gold)] == [True, False, True]


def test_any_alternative_of_the_gold_is_right_once() -> None:
    gold = {"d": [frozenset({SlotValue("r", "time", "13:00", ("14:00",))})] * 3}
    both = frozenset({SlotValue("r", "time", "13:00"), SlotValue("r", "time", "14:00")})
    predicted = {"d": [state({"r-time": "14:00"}), state({"r-time": "15:00"}), both]}
    scores = score_turns(predicted, gold)
    assert [(s.is_correct, s.matched, s.spurious, s.missed) for s in scores] == [
        (True, 1, 0, 0),
        (False, 0, 1, 1),
        (False, 1, 1, 0),
    ]


def test_unparsed_is_wrong_even_where_nothing_was_asked_for_and_unknown_is_not_scored() -> None:
    gold = {"d": [state({}), state({"a-x": "1"}), None, state({"a-x": "1"})]}
    predicted = {"d": [None, None, state({"a-x": "1"}), state({"a-x": "1"})]}
    scores = score_turns(predicted, gold)
    assert counts(scores) == {
        "turns_counted": 3,
        "turns_unparsed": 2,
        "turns_missing": 0,
        "turns_unknown": 1,
    }
    metrics = dialogue_state_metrics(predicted, gold)
    assert values(metrics)["joint_goal_accuracy"] == 0.3333
    assert (values(metrics)["state_precision"], values(metrics)["state_recall"]) == (1.0, 0.5)


def test_none_is_a_value_unless_the_rules_drop_it() -> None:
    gold = {"d": states([{"media-subtitles": "None"}, {}])}
    predicted = {"d": states([{"media-subtitles": "none"}, {"media-subtitles": "None"}])}
    assert [s.is_correct for s in score_turns(predicted, gold)] == [True, False]
    assert [s.is_correct for s in score_turns(predicted, gold, MULTIWOZ)] == [True, True]


def test_an_ignored_value_counts_where_the_gold_lists_it_beside_others() -> None:
    gold = {"d": [frozenset({SlotValue("h", "area", "centre", ("dontcare",))})] * 3}
    predicted = {"d": states([{"h-area": "dontcare"}, {"h-area": "centre"}, {}])}
    assert [s.is_correct for s in score_turns(predicted, gold, IGNORANT)] == [True, True, False]


def test_what_was_not_measured_is_not_zero() -> None:
    silent = dialogue_state_metrics({"d": [state({})]}, {"d": [state({"a-x": "1"})]})
    assert silent["state_precision"].value is None
    assert silent["state_precision"].method == "not measured: no triplet was predicted"
    assert (silent["state_recall"].value, silent["state_f1"].value) == (0.0, 0.0)
    nothing = dialogue_state_metrics({}, {})
    assert {estimate.value for estimate in nothing.values()} == {None}


def test_errors_name_the_dialogue() -> None:
    gold = {"d": [state({})]}
    with pytest.raises(DataError, match="'D'"):
        dialogue_state_metrics({"D": [state({})]}, gold)
    with pytest.raises(DataError, match="dialogue d: 2 predicted turns for 1 gold turns"):
        dialogue_state_metrics({"d": [state({}), state({})]}, gold)
    twice = frozenset({SlotValue("a", "x", "1"), SlotValue("a", "x", "2")})
    with pytest.raises(DataError, match="dialogue d, turn 0: the gold state has two values for a-x"):
        dialogue_state_metrics({"d": [state({})]}, {"d": [twice]})
    with pytest.raises(ValueError, match="dontcare='maybe' must be one of strict, ignore"):
        ScoringRules(dontcare="maybe")  # type: ignore[arg-type]


def test_intervals_resample_dialogues_not_turns() -> None:
    right, wrong = state({"a-x": "1"}), state({"a-x": "2"})
    gold = {f"d{i}": [right] * 50 for i in range(20)}
    clustered = {f"d{i}": [right if i < 10 else wrong] * 50 for i in range(20)}
    mixed = {f"d{i}": [right, wrong] * 25 for i in range(20)}
    wide = dialogue_state_metrics(clustered, gold)["joint_goal_accuracy"]
    narrow = dialogue_state_metrics(mixed, gold)["joint_goal_accuracy"]
    assert wide.value == narrow.value == 0.5
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low == pytest.approx(0.3, abs=0.06)  # 10 of 20 dialogues: 0.5 +- 1.96 * 0.112
    assert wide.high == pytest.approx(0.7, abs=0.06)
    assert wide.n == 1000
    assert narrow.low is None or narrow.low > 0.4
    assert wide == dialogue_state_metrics(clustered, gold)["joint_goal_accuracy"]
    assert wide != dialogue_state_metrics(clustered, gold, seed=1)["joint_goal_accuracy"]


def test_a_perfect_score_keeps_a_lower_bound() -> None:
    gold = {f"d{i}": [state({"a-x": "1"})] for i in range(10)}
    found = dialogue_state_metrics(gold, gold)["joint_goal_accuracy"]
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low is not None
    assert 0.6 < found.low < 0.8  # ten dialogues without a failure leave room for a rate of 0.31


SLOTS = st.dictionaries(st.sampled_from(["a-x", "a-y", "b-z"]), st.sampled_from(["1", "2", "dontcare", "none"]))
TURNS = st.lists(st.tuples(SLOTS, SLOTS | st.none()), max_size=4)


@settings(deadline=None)
@given(st.lists(TURNS, max_size=3), st.sampled_from(["strict", "ignore"]), st.booleans())
def test_agrees_with_a_naive_scorer_and_changes_nothing(dialogues: Any, dontcare: Any, drop_none: bool) -> None:
    gold = {str(i): states([g for g, _ in turns]) for i, turns in enumerate(dialogues)}
    predicted = {str(i): [None if p is None else state(p) for _, p in turns] for i, turns in enumerate(dialogues)}
    before = copy.deepcopy((gold, predicted))
    scores = score_turns(predicted, gold, ScoringRules(dontcare=dontcare, drop_none=drop_none))
    assert (gold, predicted) == before
    hidden = {"dontcare": dontcare == "ignore", "none": drop_none}
    for score, (g, p) in zip(scores, [pair for turns in dialogues for pair in turns], strict=True):
        wanted = {item for item in g.items() if not hidden.get(item[1])}
        found = None if p is None else {item for item in p.items() if not hidden.get(item[1])}
        assert score.is_correct == (found == wanted)
        assert score.matched == len(wanted & (found or set()))
        assert score.spurious == len((found or set()) - wanted)
        assert score.missed == len(wanted - (found or set()))


# Cases


def test_case_16_dontcare_is_a_value_unless_the_rules_ignore_it(shared_dir: Path) -> None:
    data = case(shared_dir, "16_eval_dontcare_none")
    gold, predicted = {"d": states(data["gold"])}, {"d": states(data["pred"])}
    strict = values(dialogue_state_metrics(predicted, gold, rules=MULTIWOZ))
    ignorant = values(dialogue_state_metrics(predicted, gold, rules=IGNORANT))
    expected = data["expected"]
    assert strict["joint_goal_accuracy"] == expected["jga_strict"]
    assert ignorant["joint_goal_accuracy"] == expected["jga_if_dontcare_ignored"]
    scores = score_turns(predicted, gold, MULTIWOZ)
    assert {
        "tp": sum(s.matched for s in scores),
        "fp": sum(s.spurious for s in scores),
        "fn": sum(s.missed for s in scores),
        "precision": strict["state_precision"],
        "recall": strict["state_recall"],
        "f1": strict["state_f1"],
    } == expected["slot"]


def test_case_18_missing_predictions_are_counted_not_zipped_away(shared_dir: Path) -> None:
    data = case(shared_dir, "18_eval_missing_dialogues")
    gold = {name: states(turns) for name, turns in data["gold"].items()}
    predicted = {name: states(turns) for name, turns in data["pred"].items()}
    wrong = dialogue_state_metrics(predicted, gold)
    skipped = dialogue_state_metrics(predicted, gold, rules=ScoringRules(missing="skip"))
    expected = data["expected"]
    assert wrong["joint_goal_accuracy"].value == expected["jga_missing_as_wrong"]
    assert skipped["joint_goal_accuracy"].value == expected["jga_on_covered_only"]
    for metrics in (wrong, skipped):
        for name, (part, whole) in expected["coverage"].items():
            assert (metrics[f"coverage_{name}"].value, metrics[f"coverage_{name}"].n) == (part / whole, whole)
    assert counts(score_turns(predicted, gold))["turns_missing"] == 3


def test_case_20_every_absent_slot_is_absent(shared_dir: Path) -> None:
    data = case(shared_dir, "20_eval_list_mutation")
    predicted = [frozenset(SlotValue(*text.split(" ", 2)) for text in turn if text) for turn in data["pred"]]
    metrics = dialogue_state_metrics(
        {"d": predicted}, {"d": [frozenset(turn) for turn in data["gold"]]}, rules=MULTIWOZ
    )
    assert metrics["joint_goal_accuracy"].value == data["expected"]["jga"]


def test_case_21_both_rates_and_the_turns_behind_them(shared_dir: Path) -> None:
    data = case(shared_dir, "21_eval_empty_and_repeat_turns")
    metrics = dialogue_state_metrics({"d": states(data["pred"])}, {"d": states(data["gold"])})
    expected = data["expected"]
    assert metrics["joint_goal_accuracy"].value == expected["jga"]
    assert values(metrics)["joint_goal_accuracy_nonempty"] == expected["jga_excluding_empty_gold"]
    assert metrics["joint_goal_accuracy"].n == expected["turns"]


# Published systems on MultiWOZ 2.1

DOMAINS = {"restaurant", "hotel", "attraction", "train", "taxi"}


def bar_name(slot: str) -> str:
    """Bring the slot names of the corpus and of the prediction files to one spelling."""
    short = slot.casefold().strip().removeprefix("book ").replace(" ", "")
    return {"arriveby": "arrive", "leaveat": "leave"}.get(short, short)


def bar_state(triplets: Any) -> DialogueState:
    return frozenset(
        SlotValue(t.domain, bar_name(t.slot), t.value, t.alternatives) for t in triplets if t.domain in DOMAINS
    )


@pytest.fixture(scope="module")
def gold_2_1(shared_dir: Path) -> dict[str, list[DialogueState | None]]:
    multiwoz = pytest.importorskip("hushbot.corpora.multiwoz")
    corpus = multiwoz.load_multiwoz(shared_dir / "data" / "multiwoz21" / "test.json.zip")
    return {
        d.id.casefold(): [None if turn.state is None else bar_state(turn.state) for turn in d.turns]
        for d in corpus.dialogues
    }


@pytest.fixture(scope="module")
def expected_scores(shared_dir: Path) -> Any:
    return json.loads((shared_dir / "data" / "mwz_eval_bar" / "expected_scores.json").read_text())


@pytest.mark.shared
@pytest.mark.parametrize(
    "system",
    ["damd", "pptod", *(pytest.param(name, marks=pytest.mark.long) for name in ("augpt", "soloist", "dots", "ubar"))],
)
def test_published_predictions_get_their_published_scores(
    shared_dir: Path, gold_2_1: dict[str, list[DialogueState | None]], expected_scores: Any, system: str
) -> None:
    with gzip.open(shared_dir / "data" / "mwz_eval_bar" / f"{system}.json.gz") as file:
        turns_of = json.load(file)
    predicted = {
        name: [
            bar_state(
                SlotValue(domain, slot, value)
                for domain, slots in turn["state"].items()
                for slot, value in slots.items()
            )
            for turn in turns
        ]
        for name, turns in turns_of.items()
    }
    for rule, key in (("strict", "dontcare_kept"), ("ignore", "dontcare_dropped")):
        expected = expected_scores[system]["dst_vs_2.1_gold"][key]
        rules = ScoringRules(dontcare=rule, missing="skip", drop_none=True)  # type: ignore[arg-type]
        metrics = dialogue_state_metrics(predicted, gold_2_1, rules=rules)
        found = {
            short: 100 * (metrics[name].value or 0)
            for short, name in (
                ("jga", "joint_goal_accuracy"),
                ("precision", "state_precision"),
                ("recall", "state_recall"),
                ("f1", "state_f1"),
            )
        }
        assert found == pytest.approx({name: expected[name] for name in found}, abs=0.05)
        assert metrics["joint_goal_accuracy"].n == expected["turns_scored"]
        assert metrics["coverage_turns"].n == expected["turns_scored"] + expected["turns_missing"]


@pytest.mark.shared
def test_trivial_trackers_get_their_known_scores(
    gold_2_1: dict[str, list[DialogueState | None]], expected_scores: Any
) -> None:
    trivial = expected_scores["_trivial"]
    empty = {name: [frozenset[SlotValue]()] * len(turns) for name, turns in gold_2_1.items()}
    previous = {name: [frozenset[SlotValue](), *turns[:-1]] for name, turns in gold_2_1.items()}
    for predicted, key in ((empty, "always_empty_jga"), (previous, "previous_gold_state_jga")):
        found = dialogue_state_metrics(predicted, gold_2_1)["joint_goal_accuracy"]
        assert 100 * (found.value or 0) == pytest.approx(trivial[key], abs=0.005)
        assert found.n == trivial["turns"]


@pytest.mark.shared
@pytest.mark.parametrize("rules", [ScoringRules(), MULTIWOZ, IGNORANT])
def gold_2_1_in_gives_exactly_one(gold_2_1: dict[str, list[DialogueState | None]], rules: ScoringRules) -> None:
    metrics = dialogue_state_metrics(gold_2_1, gold_2_1, rules=rules)
    assert {estimate.value for estimate in metrics.values()} == {1.0}
