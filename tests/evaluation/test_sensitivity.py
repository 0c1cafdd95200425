"""PII and marginal privacy scores by hand, whose extractions they are about, and what stands when an assessor fails."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hushbot.attacks.targeted_extraction import TargetedExtraction
from hushbot.composition import compose, find_problems
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation.sensitivity import Sensitivity, assess, read_findings
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, DialogueState, Estimate, Headline, Metric

SCORES = {"a": 1, "b": 2, "c": 3, "d": 0, "ab": 3, "abc": 5, "bd": 2}
SECRET = "golden wok"


@dataclass(frozen=True)
class Told:
    """Scores states by the letters of their slots; what is not in the table is not answered."""

    table: Mapping[str, float]
    note: str = "a table"

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        return [self.table.get("".join(sorted(t.slot for t in state))) for state in states]


def text(letters: str) -> str:
    return ", ".join(f"{letter}={SECRET}" for letter in letters)


def completion(prefix: str, suffix: str, *, is_hit: bool = True, **more: Any) -> dict[str, Any]:
    row = {"decoder": "greedy", "role": "member", "dialogue_id": "d1", "is_hit": is_hit, "ppl": 1.0, "ppl_zlib": 1.0}
    row |= {"c_ppl": 1.0, "dc_ppl": 1.0, "prefix": f"D({text(prefix)},", "suffix": f" {text(suffix)})"}
    return {**row, **more}


def candidate(letters: str, *, member: bool = True, nonmember: bool = False, **more: Any) -> dict[str, Any]:
    row = {"decoder": "vanilla", "state": f"D({text(letters)})", "is_member_hit": member, "is_nonmember_hit": nonmember}
    return {**row, "ppl": 1.0, "ppl_zlib": 1.0, "c_ppl": 1.0, "dc_ppl": 1.0, **more}


def value(metric: Metric) -> float | None:
    return metric.value if isinstance(metric, Estimate) else metric


def measured(rows: Sequence[Mapping[str, Any]], table: Mapping[str, float] = SCORES, k: int = 100) -> dict[str, Any]:
    found = assess(rows, Told(table), k=k, seed=0)
    return {key.removeprefix("sensitivity/"): value(metric) for key, metric in found.metrics.items()}


def test_scores_by_hand() -> None:
    # a -> abc: PII (2 + 3) / 2; marginal (5 - 1) / 1. a -> ab: PII 2; marginal (3 - 1) / 1.
    found = measured([completion("a", "bc"), completion("a", "b")])
    assert found["greedy/all/pii_score"] == pytest.approx((2.5 + 2) / 2)
    assert found["greedy/all/marginal_privacy_score"] == pytest.approx((4 + 2) / 2)
    assert found["greedy/correct"] == 2
    assert found["greedy/unanswered"] == found["greedy/zero_prefixes"] == 0


def test_scores_are_monotone_before_ratios_are_taken() -> None:
    # The whole scores 1, less than its part b with 2: raised to 2, so the ratio is (2 - 1) / 1 and not 0.
    found = measured([completion("a", "b")], {"a": 1, "b": 2, "ab": 1})
    assert found["greedy/all/marginal_privacy_score"] == 1
    assert found["violations"] == pytest.approx(1 / 2)


def test_a_prefix_of_score_zero_gives_no_ratio_and_is_counted() -> None:
    found = measured([completion("d", "b"), completion("a", "b")])
    assert found["greedy/zero_prefixes"] == 1
    assert found["greedy/all/marginal_privacy_score"] == 2
    assert found["greedy/all/pii_score"] == 2
    assert measured([completion("d", "b")])["greedy/all/marginal_privacy_score"] is None


def test_what_is_left_out_is_said() -> None:
    estimate = assess([completion("d", "b"), completion("a", "b")], Told(SCORES), seed=0).metrics[
        "sensitivity/greedy/all/marginal_privacy_score"
    ]
    assert isinstance(estimate, Estimate)
    assert estimate.n == 1
    assert estimate.method.endswith("1 left out")


def test_missing_answers_are_not_zero() -> None:
    table = {"a": 1, "b": 2, "ab": 3, "abc": 5}  # c alone has no answer
    found = measured([completion("a", "bc"), completion("a", "b")], table)
    assert found["greedy/unanswered"] == 1
    assert found["greedy/all/pii_score"] == 2
    assert found["greedy/all/marginal_privacy_score"] == pytest.approx((4 + 2) / 2)
    nothing = measured([completion("a", "b")], {})
    assert nothing["greedy/all/pii_score"] is nothing["greedy/all/marginal_privacy_score"] is None
    assert nothing["violations"] is None


def test_only_correct_extractions_count() -> None:
    found = measured([completion("a", "b"), completion("a", "c", is_hit=False)])
    assert found["greedy/all/pii_score"] == 2
    assert found["greedy/correct"] == 1
    missed = measured([completion("a", "c", is_hit=False)])
    assert missed["greedy/all/pii_score"] is None
    assert missed["greedy/correct"] == 0


def test_rankings_take_the_correct_ones_of_their_best_k() -> None:
    rows = [
        completion("a", "b", ppl=3.0, dc_ppl=0.1),
        completion("a", "bc", ppl=1.0, dc_ppl=0.2),
        completion("b", "d", is_hit=False, ppl=2.0, dc_ppl=0.3),
    ]
    best_two = measured(rows, k=2)
    assert best_two["greedy/ppl/pii_score"] == 2.5  # abc, and a miss
    assert best_two["greedy/dc_ppl/pii_score"] == pytest.approx((2 + 2.5) / 2)
    assert measured(rows, k=1)["greedy/dc_ppl/marginal_privacy_score"] == 2
    assert best_two["greedy/all/pii_score"] == pytest.approx((2 + 2.5) / 2)


def test_a_ranking_without_a_score_for_each_is_not_measured() -> None:
    found = measured([completion("a", "b", c_ppl=None), completion("a", "bc")])
    assert found["greedy/c_ppl/pii_score"] is None
    assert found["greedy/ppl/pii_score"] == pytest.approx(2.25)


def test_a_state_counts_once_from_its_shortest_prefix() -> None:
    rows = [completion("ab", "c"), completion("a", "bc"), completion("a", "bc", dialogue_id="d2")]
    (found,) = read_findings(rows)
    assert {t.slot for t in found.prefix} == {"a"}
    assert found.dialogue_id == "d1"
    assert {t.slot for t in found.suffix} == {"b", "c"}
    assert measured(rows)["greedy/all/marginal_privacy_score"] == 4


def test_a_suffix_that_says_nothing_new_is_no_extraction() -> None:
    assert read_findings([{**completion("a", "b", is_hit=False), "suffix": ")"}]) == []


def test_sides_and_decoders_are_apart() -> None:
    rows = [
        completion("a", "b"),
        completion("a", "bc", role="nonmember"),
        completion("a", "bc", decoder="vanilla"),
    ]
    found = assess(rows, Told(SCORES), seed=0)
    assert value(found.metrics["sensitivity/greedy/all/pii_score"]) == 2
    assert value(found.metrics["sensitivity/vanilla/all/pii_score"]) == 2.5
    assert value(found.control["sensitivity/greedy/all/pii_score"]) == 2.5
    assert "sensitivity/vanilla/all/pii_score" not in found.control


def test_candidates_are_compared_with_both_sides_and_have_no_marginal_score() -> None:
    found = assess([candidate("ab"), candidate("c", member=False, nonmember=True)], Told(SCORES), seed=0)
    assert value(found.metrics["sensitivity/vanilla/all/pii_score"]) == pytest.approx(1.5)
    assert value(found.control["sensitivity/vanilla/all/pii_score"]) == 3
    marginal = found.metrics["sensitivity/vanilla/all/marginal_privacy_score"]
    assert isinstance(marginal, Estimate)
    assert marginal.value is None


def test_intervals_resample_dialogues() -> None:
    rows = [completion("a", "b", dialogue_id="d1"), completion("a", "bc", dialogue_id="d1")]
    rows += [completion("b", "ac", dialogue_id="d2"), completion("b", "a", dialogue_id="d3")]
    estimate = assess(rows[:2], Told(SCORES), seed=0).metrics["sensitivity/greedy/all/pii_score"]
    assert isinstance(estimate, Estimate)
    assert estimate.n == 2
    assert estimate.low is None
    assert "fewer than 2 clusters" in estimate.method
    more = [completion("a", "b"), completion("a", "c", dialogue_id="d2"), completion("c", "b", dialogue_id="d3")]
    wide = assess(more, Told({**SCORES, "ac": 4, "bc": 4}), seed=0).metrics["sensitivity/greedy/all/pii_score"]
    assert isinstance(wide, Estimate)
    assert wide.low is not None
    assert wide.high is not None
    assert wide.value is not None
    assert wide.low < wide.value < wide.high


def test_same_seed_same_result_whatever_the_order_of_rows() -> None:
    rows = [completion("a", suffix, dialogue_id=f"d{i}") for i, suffix in enumerate(("b", "bc", "c"))]
    rows += [completion("b", "d", role="nonmember"), completion("b", "a", is_hit=False)]
    first = assess(rows, Told(SCORES), k=2, seed=3)
    random.Random(0).shuffle(rows)
    assert assess(rows, Told(SCORES), k=2, seed=3) == first


def test_notes_hold_counts_and_no_values() -> None:
    found = assess([completion("a", "bc"), completion("a", "b")], Told(SCORES), seed=0)
    # a, b, c, ab, abc
    assert found.notes == [
        "sensitivity by a table: 5 distinct states asked, 0 without an answer; the assessor broke monotonicity in 0 of "
        "6 nested pairs, which is mended"
    ]
    assert SECRET not in json.dumps({key: str(metric) for key, metric in found.metrics.items()})


def result(rows: list[dict[str, Any]]) -> AttackResult:
    headline = Headline(metric="rate", estimate=Estimate(value=0.5, low=0.1, high=0.9, n=4))
    control = {"nonmembers": {"rate": 0.1}, "base": None}
    return AttackResult(verdict="leak", headline=headline, metrics={"rate": 0.5}, control=control, rows=rows)


def test_metrics_are_added_and_nothing_else_changes() -> None:
    rows = [completion("a", "b"), completion("a", "b", role="nonmember")]
    before = result(rows)
    after = Sensitivity(enabled=True, assessor=Told(SCORES)).add_to(before, seed=0)
    assert (after.verdict, after.headline, after.rows) == (before.verdict, before.headline, rows)
    assert after.metrics["rate"] == 0.5
    assert value(after.metrics["sensitivity/greedy/none/pii_score"]) == 2
    assert after.control["nonmembers"]["rate"] == 0.1
    assert value(after.control["nonmembers"]["sensitivity/greedy/none/pii_score"]) == 2
    assert before.control == {"nonmembers": {"rate": 0.1}, "base": None}
    again = AttackResult.model_validate_json(after.model_dump_json())
    assert value(again.metrics["sensitivity/greedy/none/pii_score"]) == 2


@pytest.mark.parametrize(
    "rows",
    [[], [{"dialogue_id": "d1", "value": SECRET}], [{**candidate("a"), "is_member_hit": None}]],
    ids=["nothing", "another attack's", "not compared"],
)
def test_other_results_stay_as_they_are(rows: list[dict[str, Any]]) -> None:
    before = result(rows)
    assert Sensitivity(enabled=True, assessor=Told({})).add_to(before, seed=0) is before


def test_off_by_default() -> None:
    before = result([completion("a", "b")])
    assert Sensitivity().add_to(before, seed=0) is before


@pytest.mark.parametrize("error", [AuditError(f"asked {SECRET}: no answer"), ConfigError(f"no model for {SECRET}")])
def test_an_assessor_that_fails_leaves_the_rest_standing(error: Exception) -> None:
    class Failing(Told):
        def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
            raise error

    after = Sensitivity(enabled=True, assessor=Failing({})).add_to(result([completion("a", "b")]), seed=0)
    assert after.metrics["rate"] == 0.5
    assert value(after.metrics["sensitivity/violations"]) is None
    assert not [key for key in after.metrics if "pii_score" in key]
    assert type(error).__name__ in after.notes[-1]
    assert SECRET not in after.model_dump_json()


def test_offline_assessment_of_a_bot_that_knows_its_members(
    memoriser: Target, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    attack = TargetedExtraction(lengths=(1, 3), max_prefixes=20, decoders=("vanilla",), decoder="vanilla")
    found = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    after = Sensitivity(enabled=True).add_to(found, seed=0)
    pii = after.metrics["sensitivity/vanilla/all/pii_score"]
    marginal = after.metrics["sensitivity/vanilla/dc_ppl/marginal_privacy_score"]
    assert isinstance(pii, Estimate)
    assert isinstance(marginal, Estimate)
    assert pii.value is not None
    assert 1 <= pii.value <= 2  # an area, a place, a day or a time each
    assert marginal.value is not None
    assert marginal.value > 0
    assert value(after.metrics["sensitivity/violations"]) == 0
    assert after.metrics["sensitivity/vanilla/correct"] == after.metrics["vanilla/none/states"]


@pytest.mark.parametrize("verb", ["train", "audit", "compare"])
def test_configuration_composes_and_other_assessors_can_be_chosen(verb: str) -> None:
    base = compose(verb, [])
    assert base["sensitivity"]["enabled"] is False
    assert find_problems(base) == []
    chosen = compose(
        verb,
        [
            "sensitivity.enabled=true",
            "sensitivity.assessor._target_=hushbot.evaluation.prompted_assessors.TargetAssessor",
            "+sensitivity.assessor.target._target_=hushbot.targets.target_rewriter.PretrainedTarget",
            "+sensitivity.assessor.target.path=somewhere",
        ],
    )
    assert find_problems(chosen) == []


def test_settings_are_checked() -> None:
    assert "k=0" in find_problems(compose("train", ["sensitivity.k=0"]))[0]
    with pytest.raises(ValueError, match="no scores"):
        Sensitivity(assessor=3)
