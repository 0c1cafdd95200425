"""Arms against each other: reference, differences, Holm, standings and notes, from reports alone."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from hushbot.evaluation.comparisons import Comparison, ComparisonSettings, Standing, compare_arms, comparisons_csv
from hushbot.multiplicity import holm
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, RecipeInfo, RunInfo, Units, Verdict

FAST = ComparisonSettings(n_draws=400)
JGA, LEAK = "joint_goal_accuracy", "untargeted_extraction/state_precision@100"
N = 40


def near(value: float | None, reach: float = 0.05) -> Estimate:
    if value is None:
        return Estimate(value=None, method="not measured: no candidates")
    return Estimate(value=value, low=max(0.0, value - reach), high=min(1.0, value + reach), n=N, method="test")


def units(values: Sequence[float], seed: int = 0) -> Units:
    return Units(
        rule="ratio",
        documents=[f"s{seed}d{i}" for i in range(len(values))],
        values=list(values),
        weights=[1.0] * len(values),
    )


def first(n_right: int) -> list[float]:
    """The first n of all documents are right, so that arms agree where they can."""
    return [1.0] * n_right + [0.0] * (N - n_right)


def run(
    arm: str,
    right: Sequence[float] | None,
    leaked: Sequence[float] | None = (),
    *,
    seed: int = 0,
    verdict: Verdict = "leak",
) -> AuditReport:
    """Build a report; an accuracy or a leak of None was not measured, an empty leak leaves the attack out."""
    accuracy = None if right is None else float(np.mean(right))
    attacks = {}
    if leaked is None or len(leaked):
        attacks["untargeted_extraction"] = AttackResult(
            verdict=verdict if leaked is not None else "not_measured",
            headline=Headline(
                metric="state_precision@100", estimate=near(None if leaked is None else float(np.mean(leaked)))
            ),
            units=None if leaked is None else units(leaked, seed),
        )
    return AuditReport(
        status="complete",
        run=RunInfo(
            id=arm, created="now", seed=seed, config_sha256="c", data_sha256="d", split_sha256=f"split{seed}",
            seconds={"train": 10.0, "audit": 2.0}, tokens_trained=100, peak_memory_mb={"train": 50.0, "audit": 20.0},
        ),
        recipe=RecipeInfo(stack=arm.split("+")),
        data=DataInfo(
            name="toy", members=N, nonmembers=N, calibration=0, controls=0, domains=1, slots=1, turns=2,
            supervised_tokens=3,
        ),
        utility={JGA: near(accuracy)},
        utility_units={} if right is None else {JGA: units(right, seed)},
        attacks=attacks,
    )  # fmt: skip


def standing(comparison: Comparison, arm: str) -> Standing:
    return next(found for found in comparison.standings if found.arm == arm)


def test_nothing_is_compared_without_reports() -> None:
    assert compare_arms([]) == Comparison(
        reference=None,
        differences=(),
        standings=(),
        notes=("no report was given; there is nothing to compare",),
    )


def test_the_reference_is_turn_level_else_the_first_trained_arm_else_what_was_asked_for() -> None:
    base, other, usual = run("base", first(5)), run("dp_sgd", first(20)), run("turn_level", first(20))
    assert compare_arms([base, other, usual], FAST).reference == "turn_level"
    assert compare_arms([base, other], FAST).reference == "dp_sgd"
    assert compare_arms([base, other, usual], ComparisonSettings(reference="dp_sgd", n_draws=400)).reference == "dp_sgd"


def test_a_reference_that_is_not_there_makes_no_difference_and_is_said() -> None:
    found = compare_arms([run("turn_level", first(20))], ComparisonSettings(reference="absent"))
    assert (found.reference, found.differences) == (None, ())
    assert "reference arm absent is not among the reports" in found.notes[0]
    assert standing(found, "turn_level").is_collapsed is None


def test_a_difference_is_arm_minus_reference_on_the_same_documents() -> None:
    found = compare_arms([run("turn_level", first(30)), run("dialogue_level", first(10))], FAST)
    (made,) = found.differences
    assert (made.arm, made.reference, made.metric, made.n_seeds) == ("dialogue_level", "turn_level", JGA, 1)
    assert made.estimate.value == pytest.approx(-0.5)
    assert made.estimate.n == N
    assert made.conclusion == "lower"
    assert any("one seed" in note for note in found.notes)


def test_p_values_are_adjusted_across_arms_within_a_metric() -> None:
    arms = [run("turn_level", first(20)), run("a", first(26)), run("b", first(24)), run("c", first(38))]
    found = compare_arms(arms, FAST).differences
    assert [made.arm for made in found] == ["a", "b", "c"]
    assert [made.p_holm for made in found] == pytest.approx(list(holm([made.p for made in found])))  # type: ignore[misc]
    one, _, _ = found
    assert one.p is not None
    assert one.p < 0.05 < (one.p_holm or 0)  # alone it would be shown
    assert one.conclusion == "no difference shown"
    assert one.estimate.low is not None
    assert one.estimate.low > 0


def test_what_was_not_measured_is_no_difference_and_no_part_of_the_family() -> None:
    arms = [run("turn_level", first(20), first(20)), run("a", first(26), None), run("b", first(20), first(2))]
    found = {(made.arm, made.metric): made for made in compare_arms(arms, FAST).differences}
    missing = found["a", LEAK]
    assert (missing.conclusion, missing.estimate.value, missing.p) == ("not measured", None, None)
    assert "no candidates" in missing.estimate.method
    assert found["b", LEAK].p_holm == found["b", LEAK].p


def test_only_seeds_of_both_arms_are_compared() -> None:
    arms = [run("turn_level", first(20), seed=seed) for seed in (0, 1, 2)]
    arms += [run("a", first(10), seed=seed) for seed in (1, 2, 5)]
    found = compare_arms(arms, FAST)
    (made,) = found.differences
    assert (made.n_seeds, made.estimate.n) == (2, 2 * N)
    assert any("seeds 0, 5 are not in both" in note for note in found.notes)
    assert not any("one seed" in note for note in found.notes)


def test_an_arm_of_two_experiments_is_compared_with_nothing() -> None:
    arms = [run("turn_level", first(20)), run("a", first(20)), run("a", first(30))]
    found = compare_arms(arms, FAST)
    (made,) = found.differences
    assert "two runs under one seed" in made.estimate.method
    assert standing(found, "a").front == "not judged"
    assert "not one experiment" in standing(found, "a").words


def test_cost_is_the_mean_of_the_runs_and_the_most_memory_of_any() -> None:
    one = run("turn_level", first(20))
    more = run("turn_level", first(20), seed=1)
    more = more.model_copy(
        update={"run": more.run.model_copy(update={"seconds": {"train": 20.0}, "peak_memory_mb": {"train": 70.0}})}
    )
    found = standing(compare_arms([one, more], FAST), "turn_level")
    assert (found.seconds, found.tokens, found.memory_mb) == (16.0, 100, 70.0)


def test_old_reports_are_shown_side_by_side_and_say_what_they_lack() -> None:
    def old(report: AuditReport) -> AuditReport:
        content = report.model_dump()
        for field in ("utility_units", "utility_by_domain", "training"):
            del content[field]
        for field in ("split_sha256", "peak_memory_mb", "seconds_per_turn"):
            del content["run"][field]
        for attack in content["attacks"].values():
            del attack["units"], attack["examples"]
        return AuditReport.model_validate(content)

    arms = [old(run("turn_level", first(20), first(30))), old(run("a", first(20), first(4)))]
    found = compare_arms(arms, FAST)
    assert {made.estimate.method for made in found.differences} == {
        "not measured: the report holds no units; run the audit again"
    }
    assert standing(found, "a").memory_mb is None
    assert standing(found, "turn_level").front == "dominated"  # even without pairs: the intervals do not touch
    assert "run the audit again" in standing(found, "a").words


def test_an_auc_far_below_one_half_is_flagged() -> None:
    def quiz(area: Estimate) -> AuditReport:
        report = run("turn_level", first(20))
        attack = AttackResult(verdict="no_leak_detected", headline=Headline(metric="auc", estimate=area))
        return report.model_copy(update={"attacks": {"quiz": attack}})

    low = Estimate(value=0.2, low=0.1, high=0.3, n=N)
    flags = standing(compare_arms([quiz(low)], FAST), "turn_level").flags
    assert any("AUC far below 0.5 (0.200 [0.100, 0.300], seed 0)" in flag for flag in flags)
    wide = Estimate(value=0.4, low=0.2, high=0.46, n=N)
    assert not any("AUC" in flag for flag in standing(compare_arms([quiz(wide)], FAST), "turn_level").flags)


def test_an_auc_is_found_beside_the_headline_of_its_score() -> None:
    report = run("turn_level", first(20))
    rate = Estimate(value=0.0, low=0.0, high=0.1, n=N)
    attack = AttackResult(
        verdict="no_leak_detected",
        headline=Headline(metric="tpr_at_1pct_fpr", estimate=rate, key="dialogue/ppl/tpr_at_1pct_fpr"),
        metrics={
            "dialogue/ppl/auc": Estimate(value=0.3, low=0.25, high=0.35, n=N),
            "ppl/auc": Estimate(value=0.1, low=0.0, high=0.2, n=N),
        },
    )
    flags = standing(compare_arms([report.model_copy(update={"attacks": {"m": attack}})], FAST), "turn_level").flags
    assert [flag.partition(" (")[0] for flag in flags if "AUC" in flag] == ["m AUC far below 0.5"]
    assert any("(0.300 [0.250, 0.350], seed 0)" in flag for flag in flags)


def test_csv_has_a_row_per_difference_and_leaves_out_what_was_not_measured() -> None:
    arms = [run("turn_level", first(30), first(9)), run("a", first(10), None)]
    utility, leak = csv.DictReader(io.StringIO(comparisons_csv(compare_arms(arms, FAST))))
    assert list(utility) == [
        "arm", "reference", "metric", "n_seeds", "n_documents", "difference", "low", "high", "level", "p", "p_holm",
        "conclusion", "method",
    ]  # fmt: skip
    assert (utility["metric"], utility["difference"], utility["conclusion"]) == (JGA, "-0.5", "lower")
    assert float(utility["low"]) < -0.5 < float(utility["high"])
    assert (leak["difference"], leak["p"], leak["conclusion"]) == ("", "", "not measured")


def test_the_same_reports_give_the_same_comparison() -> None:
    arms = [run("turn_level", first(30), first(9)), run("a", first(10), first(3))]
    assert compare_arms(arms, FAST) == compare_arms(arms, FAST)
    turned = compare_arms(arms[::-1], FAST)
    assert turned.differences == compare_arms(arms, FAST).differences


@pytest.mark.parametrize(
    ("setting", "value"), [("floor", 0.0), ("floor", 1.5), ("low_auc", 0.6), ("max_missing", 1.0), ("n_draws", 5)]
)
def test_a_setting_outside_its_range_names_itself(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"set compare.{setting}"):
        ComparisonSettings(**{setting: value})  # type: ignore[arg-type]


def test_no_model_library_is_loaded() -> None:
    code = (
        "import sys, hushbot.evaluation.comparisons; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
