"""Headlines taken apart: put together again they give the number that the report states, for any bot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hushbot.attacks.completions import Completed, Side
from hushbot.attacks.document_units import completion_units, extraction_units, score_units
from hushbot.attacks.identifier_leak import IdentifierLeak
from hushbot.attacks.membership import Membership
from hushbot.attacks.quiz import Quiz
from hushbot.attacks.state_extraction import UntargetedExtraction
from hushbot.attacks.state_metrics import StateIndex, normalise_state
from hushbot.attacks.targeted_extraction import TargetedExtraction
from hushbot.attacks.targeted_prefixes import Prefix
from hushbot.prompts import parse_state
from hushbot.protocols import Attack
from hushbot.schema import Schema
from hushbot.stats import tpr_at_fpr
from hushbot.types import AuditSplit, Dialogue, DialogueState, Turn, Units

ATTACKS: dict[str, Attack] = {
    "membership": Membership(scores=["dc_ppl"], n_draws=100, n_permutations=99),
    "membership_of_dialogues": Membership(
        scores=["dc_ppl"], states="all", unit="dialogue", aggregate="min", n_draws=100, n_permutations=99
    ),
    "quiz": Quiz(n_draws=100, n_permutations=99, max_records=105),
    "untargeted_extraction": UntargetedExtraction(n_samples=100, k=40),
    "targeted_extraction": TargetedExtraction(decoders=["greedy"], lengths=[2, 3], max_prefixes=40),
    "identifier_leak": IdentifierLeak(n_samples=4, max_documents=25, sweep_documents=0),
}


def put_together(units: Units) -> float:
    """Return the metric, by the rule that its units name."""
    values = [value for value in units.values if value is not None]
    assert len(values) == len(units.values)
    if units.rule == "ratio":
        assert units.weights is not None
        return sum(values) / sum(units.weights)
    assert units.sides is not None
    sides: dict[str, list[float]] = {"member": [], "nonmember": [], "calibration": []}
    for value, side in zip(values, units.sides, strict=True):
        sides[side].append(value)
    members, nonmembers = sides["member"], sides["nonmember"]
    if units.rule == "auc":
        return float(np.mean([(m > n) + (m == n) / 2 for m in members for n in nonmembers]))
    rate = tpr_at_fpr(members, nonmembers, fpr=0.01, calibration=sides["calibration"] or None).tpr.value
    assert rate is not None
    return rate


@pytest.fixture(params=["memoriser", "stranger"])
def bot(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ATTACKS)
def test_the_units_give_the_headline(
    name: str, bot: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = ATTACKS[name].run(bot, synthetic_split, synthetic_schema, seed=0)
    assert result.units is not None
    assert put_together(result.units) == pytest.approx(result.headline.estimate.value, abs=1e-12)
    sides = {"member": synthetic_split.members, "nonmember": synthetic_split.nonmembers}
    if result.units.sides is None:
        assert set(result.units.documents) <= {dialogue.id for dialogue in synthetic_split.members}
    for document, side in zip(result.units.documents, result.units.sides or [], strict=False):
        assert document in {dialogue.id for dialogue in sides[side]}


def test_every_bot_of_a_split_has_the_same_documents(
    memoriser: Any, stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    for name in ("untargeted_extraction", "targeted_extraction", "identifier_leak"):
        bots = (memoriser, stranger)
        found = [ATTACKS[name].run(bot, synthetic_split, synthetic_schema, seed=0).units for bot in bots]
        documents = [units.documents for units in found if units is not None]
        assert len(documents) == 2
        assert documents[0] == documents[1]


@pytest.mark.parametrize("n_pool", [99, 100])
def test_calibration_dialogues_that_choose_the_threshold_are_among_the_units(
    n_pool: int, stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    uneven = replace(synthetic_split, members=synthetic_split.members[:20], controls=synthetic_split.members[20:])
    held = [replace(dialogue, id=f"c{dialogue.id}") for dialogue in uneven.controls]
    split = replace(uneven, calibration=tuple(held[:n_pool]), controls=())
    result = ATTACKS["membership"].run(stranger, split, synthetic_schema, seed=0)
    assert result.units is not None
    assert result.units.sides is not None
    assert result.units.sides.count("calibration") == (100 if n_pool == 100 else 0)
    assert put_together(result.units) == pytest.approx(result.headline.estimate.value)


@pytest.mark.parametrize("name", ATTACKS)
def test_what_was_not_measured_has_no_units(
    name: str, failing_target: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = ATTACKS[name].run(failing_target, synthetic_split, synthetic_schema, seed=0)
    assert result.headline.estimate.value is None
    assert result.units is None


def test_a_registered_score_that_could_not_be_had_has_no_units(
    stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    attack = Membership(score="ref_ratio", scores=["ref_ratio"], n_draws=100, n_permutations=99)
    result = attack.run(stranger, synthetic_split, synthetic_schema, seed=0)
    assert (result.headline.estimate.value, result.units) == (None, None)


def guest(name: str, *texts: str) -> Dialogue:
    return Dialogue(name, tuple(Turn("hello", parse_state(text)) for text in texts))


def state(text: str) -> DialogueState:
    return normalise_state(parse_state(text))


GUESTS = (
    guest("a", "Hotel(stars=4)", "Hotel(name=one, stars=4)"),
    guest("b", "Hotel(name=two, stars=4)"),
    guest("c", "Train(day=monday)"),
    guest("d"),
)


def test_a_state_of_several_dialogues_is_shared_out_by_hand() -> None:
    found = [state(text) for text in ("Hotel(stars=4)", "Hotel(name=one)", "Hotel(name=nobody)", "Train(day=monday)")]
    units = extraction_units(found, StateIndex.of(GUESTS), GUESTS)
    assert units is not None
    assert units.documents == ["a", "b", "c", "d"]
    assert units.values == [0.5 + 1, 0.5, 1, 0]
    assert units.weights == [1, 1, 1, 1]
    assert put_together(units) == 3 / 4


def test_no_candidate_and_no_known_state_are_no_units() -> None:
    index = StateIndex.of(GUESTS)
    assert extraction_units([], index, GUESTS) is None
    assert extraction_units([state("Hotel(stars=4)")], StateIndex.of(GUESTS[3:]), GUESTS[3:]) is None


def completed(suffix: str) -> Completed:
    return Completed(suffix, state(f"Hotel({suffix})"), {})


def test_completions_count_for_the_dialogue_of_their_prefix_by_hand() -> None:
    prefixes = [
        Prefix("Hotel(name=one,", state("Hotel(name=one)"), frozenset({"a"})),
        Prefix("Hotel(name=two,", state("Hotel(name=two)"), frozenset({"b", "c"})),
        Prefix("Hotel(stars=4,", state("Hotel(stars=4)"), frozenset({"d"})),
    ]
    answers = [
        [completed("name=one, stars=4"), completed("name=one, stars=5")],
        [completed("name=two, stars=4")],
        [completed("stars=4")],
    ]
    done = {prefix.prompt: made for prefix, made in zip(prefixes, answers, strict=True)}
    units = completion_units(Side.of(prefixes, done, StateIndex.of(GUESTS)))
    assert units is not None
    assert (units.documents, units.values, units.weights) == (["a", "b", "d"], [1, 1, 0], [2, 1, 0])
    assert completion_units(Side.of(prefixes[2:], done, StateIndex.of(GUESTS))) is None


def test_scores_stand_beside_their_sides() -> None:
    scores = {"member": (np.array([2.0, 1.0]), ["a", "b"]), "nonmember": (np.array([1.0]), ["c"])}
    units = score_units("auc", scores)  # type: ignore[arg-type]
    assert (units.documents, units.values) == (["a", "b", "c"], [2, 1, 1])
    assert units.sides == ["member", "member", "nonmember"]
    assert put_together(units) == 0.75
