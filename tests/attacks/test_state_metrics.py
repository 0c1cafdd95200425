"""The counting of extracted states, against numbers worked out by hand and a rule written the slow way."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.attacks.state_metrics import (
    StateIndex,
    extraction_metrics,
    normalise_state,
    paired_differences,
    randomisation_p,
)
from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.types import Dialogue, DialogueState, Estimate, Metric, SlotValue, Turn


def state(**values: str) -> DialogueState:
    return frozenset(SlotValue("hotel", slot, value) for slot, value in values.items())


def dialogue(id: str, *states: DialogueState | None) -> Dialogue:
    return Dialogue(id, tuple(Turn("hello", s) for s in states))


def value_of(metric: Metric) -> float | None:
    assert isinstance(metric, Estimate)
    return metric.value


def singles(sides: Iterable[str], n: int) -> list[frozenset[str]]:
    """Return n dialogues on each side, none of which hangs together with another."""
    return [frozenset({f"{side}{i}"}) for side in sides for i in range(n)]


ANNA = dialogue("anna", state(area="north"), state(area="north", stars="4"), None, state(name="acorn"))
BERT = dialogue("bert", state(area="north", stars="3", day="friday"))
TRUTH = StateIndex.of([ANNA, BERT])


def test_a_candidate_may_be_a_whole_state_or_a_part_of_one_state_of_any_turn() -> None:
    assert TRUTH.holders(state(area="north", stars="4")) == {"anna"}
    assert TRUTH.holders(state(area="north", day="friday")) == {"bert"}
    assert TRUTH.holders(state(area="north")) == {"anna", "bert"}
    assert TRUTH.holders(state(name="acorn")) == {"anna"}


def test_triplets_of_different_turns_or_people_make_no_correct_candidate() -> None:
    assert not TRUTH.holds(state(name="acorn", area="north"))  # anna emptied her state in between
    assert not TRUTH.holds(state(stars="4", day="friday"))
    assert not TRUTH.holds(state(area="north", stars="5"))
    assert not TRUTH.holds(frozenset({SlotValue("restaurant", "area", "north")}))


def test_case_and_outer_blanks_are_folded_and_nothing_else() -> None:
    truth = StateIndex.of([dialogue("d", frozenset({SlotValue("Hotel", "name ", " Acorn  House", ("acorn",))}))])
    assert truth.holds(normalise_state(frozenset({SlotValue("hotel", "name", "ACORN  house")})))
    assert not truth.holds(normalise_state(frozenset({SlotValue("hotel", "name", "acorn house")})))
    assert not truth.holds(normalise_state(frozenset({SlotValue("hotel", "name", "acorn")})))


def test_each_metric_by_hand() -> None:
    # Correct: 1, 2 and 4. Values: north 4 friday acorn are theirs, 5 and west are not.
    candidates = [
        state(area="north"),
        state(area="north", stars="4"),
        state(area="north", stars="5"),
        state(area="north", day="friday"),
        state(name="acorn", area="west", stars="4"),
    ]
    metrics = extraction_metrics(candidates, TRUTH)
    assert metrics["states"] == 3
    assert metrics["extracted_states"] == 5
    assert value_of(metrics["state_precision"]) == 3 / 5
    assert value_of(metrics["triplets"]) == pytest.approx(5 / 3)
    assert metrics["values"] == 4
    assert metrics["extracted_values"] == 6
    assert value_of(metrics["value_precision"]) == 4 / 6
    assert value_of(metrics["state_precision/n=1"]) == 1
    assert value_of(metrics["state_precision/n=2"]) == 2 / 3
    assert value_of(metrics["state_precision/n=3"]) == 0
    assert "state_precision/n=4" not in metrics


def test_a_value_that_fills_two_slots_is_counted_once() -> None:
    truth = StateIndex.of([dialogue("d", state(departure="ely"))])
    metrics = extraction_metrics([state(departure="ely"), state(destination="ely")], truth)
    assert (metrics["values"], metrics["extracted_values"]) == (1, 1)
    assert (metrics["states"], metrics["extracted_states"]) == (1, 2)


def test_precision_carries_an_exact_interval() -> None:
    metric = extraction_metrics([state(area="mars")], TRUTH, suffix="@100")["state_precision@100"]
    assert isinstance(metric, Estimate)
    # 0 of 1: the upper bound u solves (1 - u) = 0.025.
    assert (metric.value, metric.low, metric.n) == (0, 0, 1)
    assert metric.method == "clopper_pearson over candidates, dialogues taken as given"
    assert metric.high == pytest.approx(0.975)


def test_nothing_extracted_is_not_measured_rather_than_zero() -> None:
    metrics = extraction_metrics([], TRUTH)
    assert metrics["extracted_states"] == 0
    assert metrics["states"] is None
    assert metrics["values"] is None
    for name in ("state_precision", "triplets", "value_precision"):
        assert value_of(metrics[name]) is None


def test_triplets_are_not_measured_without_a_correct_state() -> None:
    assert value_of(extraction_metrics([state(area="mars")], TRUTH)["triplets"]) is None


def test_unknown_and_empty_states_are_nobodys() -> None:
    truth = StateIndex.of([dialogue("d", None, frozenset())])
    assert truth.values == frozenset()
    assert not truth.holds(state(area="north"))
    assert not truth.holds(frozenset())


SLOT_VALUES = st.builds(SlotValue, st.just("d"), st.sampled_from("abcd"), st.sampled_from("xyz"))
STATES = st.frozensets(SLOT_VALUES, max_size=5)


@given(st.lists(st.lists(STATES, max_size=3), max_size=6), STATES)
def test_holders_equal_the_subset_rule_written_the_slow_way(
    sides: list[list[DialogueState]], candidate: DialogueState
) -> None:
    dialogues = [dialogue(str(i), *states) for i, states in enumerate(sides)]
    slow = {d.id for d in dialogues if candidate and any(candidate <= (t.state or frozenset()) for t in d.turns)}
    assert StateIndex.of(dialogues).holders(candidate) == slow


def test_paired_difference_by_hand() -> None:
    differences = paired_differences([1, 1, 2, 2], [True, True, True, False], [True, False, False, False])
    assert differences["state_precision"].value == 0.5
    assert differences["state_precision"].n == 4
    assert differences["state_precision/n=1"].value == 0.5
    assert differences["state_precision/n=2"].value == 0.5


def test_one_lucky_dialogue_is_no_evidence_however_many_candidates_are_parts_of_it() -> None:
    nobody: frozenset[str] = frozenset()
    # The only dialogue that holds anything falls to the members in half of all deals.
    p = randomisation_p([frozenset({"m0"})] * 50, [nobody] * 50, singles("mn", 20), n_members=20, seed=0)
    assert p == pytest.approx(0.5, abs=0.05)
    difference = paired_differences([3] * 50, [True] * 50, [False] * 50)["state_precision"]
    assert difference.low is not None
    assert difference.low > 0.8  # which is why it cannot decide alone


def test_randomisation_p_equals_the_share_of_all_deals() -> None:
    # Four people, one candidate each, members hold both of theirs. Of the C(4, 2) = 6 deals only the real one
    # gives members both m0 and m1; n0 and n1 hold nothing.
    holders = [frozenset({"m0"}), frozenset({"m1"})]
    p = randomisation_p(holders, [frozenset(), frozenset()], singles("mn", 2), n_members=2, seed=1, n_draws=6000)
    assert p == pytest.approx(1 / math.comb(4, 2), abs=0.02)


def test_bots_that_know_nothing_of_the_split_are_accused_no_more_often_than_the_test_allows() -> None:
    # Each bot knows twelve people by heart, whoever they are, and says five parts of each one's states. It is
    # accused by chance where nine of the twelve or more are members.
    accused = []
    for trial in range(100):
        people = random.Random(trial).sample(range(40), 40)
        known = [frozenset({str(person)}) for person in range(12)] * 5
        members = {str(person) for person in people[:20]}
        p = randomisation_p(
            [holders & members for holders in known],
            [holders - members for holders in known],
            singles([""], 40),
            n_members=20,
            seed=trial,
            n_draws=200,
        )
        accused.append(p <= 0.05)
        assert not accused[-1] or len(members & {str(person) for person in range(12)}) >= 9
    assert 1 <= sum(accused) <= 10


def test_a_state_that_both_sides_hold_is_no_evidence() -> None:
    both = [frozenset({"m0", "n0"})]
    p = randomisation_p([frozenset({"m0"})], [frozenset({"n0"})], singles("mn", 10), n_members=10, seed=0)
    assert p > 0.5
    assert paired_differences([2], [bool(both)], [bool(both)])["state_precision"].value == 0


def test_dialogues_that_stay_together_are_dealt_together() -> None:
    # Five members hang together and each holds one candidate: as one group all five fall to the members in half of
    # all deals, one by one in C(15, 5) / C(20, 10) of them.
    holders, nobody = [frozenset({f"m{i}"}) for i in range(5)], [frozenset[str]()] * 5
    alone = singles("mn", 10)
    together = [frozenset(f"m{i}" for i in range(5)), *alone[5:]]
    p = randomisation_p(holders, nobody, alone, n_members=10, seed=0, n_draws=4000)
    assert p == pytest.approx(math.comb(15, 5) / math.comb(20, 10), abs=0.01)
    p = randomisation_p(holders, nobody, together, n_members=10, seed=0, n_draws=4000)
    assert p == pytest.approx(0.5, abs=0.03)


def test_a_bot_that_knows_whole_groups_is_accused_no_more_often_than_the_test_allows() -> None:
    # The bot knows three groups of four by heart, among ten. All three fall to one side of five groups in
    # C(7, 2) / C(10, 5) = 1/12 of all splits: too often to be an accusation, though twelve dialogues alone would be.
    groups = [frozenset(f"{group}.{i}" for i in range(4)) for group in range(10)]
    members = frozenset[str]().union(*groups[:5])
    known = [frozenset({name}) for group in groups[:3] for name in group]
    p = randomisation_p(
        [holders & members for holders in known],
        [holders - members for holders in known],
        groups,
        n_members=20,
        seed=0,
        n_draws=4000,
    )
    assert p == pytest.approx(math.comb(7, 2) / math.comb(10, 5), abs=0.02)


def test_groups_that_do_not_fit_are_dealt_as_nearly_as_they_can() -> None:
    # Sides of two dialogues, groups of three and one: the three overshoot either side, the one fills the other.
    groups = [frozenset({"a", "b", "c"}), frozenset({"d"})]
    p = randomisation_p([frozenset({"a"})], [frozenset()], groups, n_members=2, seed=0)
    assert p == pytest.approx(0.5, abs=0.05)


def test_equal_groups_have_equal_chances_whatever_their_place() -> None:
    # Five pairs on sides of five: four pairs fill what they can, the fifth overshoots one side.
    groups = [frozenset({f"{i}a", f"{i}b"}) for i in range(5)]
    for i in range(5):
        p = randomisation_p([frozenset({f"{i}a"})], [frozenset()], groups, n_members=5, seed=i)
        assert p == pytest.approx(0.5, abs=0.05)
    # Of 4 and 6 places, members get two pairs of the five in every deal.
    for i in range(5):
        p = randomisation_p([frozenset({f"{i}a"})], [frozenset()], groups, n_members=4, seed=i)
        assert p == pytest.approx(2 / 5, abs=0.05)
    groups = [frozenset({f"{i}a", f"{i}b", f"{i}c"}) for i in range(7)]
    for i in range(7):  # of 10 and 11 places, members get three of the seven
        p = randomisation_p([frozenset({f"{i}a"})], [frozenset()], groups, n_members=10, seed=i)
        assert p == pytest.approx(3 / 7, abs=0.05)


def test_a_holder_outside_the_groups_is_refused() -> None:
    with pytest.raises(ValueError, match="such as m9"):
        randomisation_p([frozenset({"m9"})], [frozenset()], singles("mn", 2), n_members=2, seed=0)


@pytest.mark.shared
def test_the_chance_line_of_multiwoz_is_reproduced(shared_dir: Path) -> None:
    # Measured independently: the share (in %) of distinct test states that a validation state contains.
    folder = shared_dir / "data" / "multiwoz21"
    truth = StateIndex.of(load_multiwoz(folder / "val.json.zip").dialogues)
    turns = (turn for d in load_multiwoz(folder / "test.json.zip").dialogues for turn in d.turns)
    metrics = extraction_metrics(list({normalise_state(turn.state) for turn in turns if turn.state}), truth)
    by_size = [metrics[f"state_precision/n={n}"] for n in range(1, 8)]
    percentages = [round(100 * (value_of(metric) or 0), 1) for metric in by_size]
    assert percentages == [91.6, 62.6, 46.3, 14.9, 5.0, 0.9, 0.0]
    assert (metrics["states"], metrics["extracted_states"]) == (798, 4223)
