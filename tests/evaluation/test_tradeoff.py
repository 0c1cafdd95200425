"""Utility against leakage from reports: rows, aggregates, CSV and figure."""

from __future__ import annotations

import csv
import io

import pytest

from hushbot.evaluation.comparisons import Standing
from hushbot.evaluation.pareto import Front
from hushbot.evaluation.tradeoff import arm_name, control_of, rows_of, tradeoff_csv, tradeoff_figure
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, PrivacyInfo, RecipeInfo, RunInfo

HEADLINE = "state_precision@100"


def make_report(arm: str, seed: int, accuracy: float | None, leak: float | None) -> AuditReport:
    """Build a report with hand-readable numbers; every interval is the value plus or minus 0.1."""

    def near(value: float | None) -> Estimate:
        if value is None:
            return Estimate(value=None, method="not measured: no candidates")
        return Estimate(value=value, low=value - 0.1, high=value + 0.1, n=50, method="test")

    attack = AttackResult(
        verdict="leak" if leak else "inconclusive",
        headline=Headline(metric=HEADLINE, estimate=near(leak)),
        metrics={f"vanilla/dc_ppl/{HEADLINE}": near(leak)},
        control={
            "nonmembers": {f"vanilla/ppl/{HEADLINE}": near(0.9), f"vanilla/dc_ppl/{HEADLINE}": near(0.2)},
            "base": None,
        },
        notes=["<script>alert(1)</script>"],
    )
    return AuditReport(
        status="complete",
        run=RunInfo(id="x", created="now", seed=seed, config_sha256="c", data_sha256="d", seconds={"train": 2.0}),
        recipe=RecipeInfo(stack=arm.split("+")),
        data=DataInfo(
            name="toy", members=1, nonmembers=1, calibration=0, controls=0, domains=1, slots=1, turns=2,
            supervised_tokens=3,
        ),
        utility={"joint_goal_accuracy": near(accuracy)},
        attacks={"untargeted_extraction": attack},
    )  # fmt: skip


def test_control_is_the_headlines_own_under_its_ranking() -> None:
    report = make_report("turn_level", 0, 0.5, 0.6)
    label, control = control_of("untargeted_extraction", report.attacks["untargeted_extraction"])
    assert label == "nonmembers"
    assert control is not None
    assert control.value == 0.2


def test_control_is_of_the_score_that_was_registered() -> None:
    def rate(value: float) -> Estimate:
        return Estimate(value=value, low=0.0, high=1.0, n=9)

    attack = AttackResult(
        verdict="leak",
        headline=Headline(metric="tpr_at_1pct_fpr", estimate=rate(0.4)),
        metrics={"dc_ppl/tpr_at_1pct_fpr": rate(0.3), "c_ppl/tpr_at_1pct_fpr": rate(0.4), "c_ppl/auc": rate(0.4)},
        control={"base": {"dc_ppl/tpr_at_1pct_fpr": rate(0.1), "c_ppl/tpr_at_1pct_fpr": rate(0.2)}},
    )
    assert control_of("membership", attack) == ("base", rate(0.2))
    other = attack.model_copy(update={"headline": Headline(metric="tpr_at_1pct_fpr", estimate=rate(0.3))})
    assert control_of("membership", other) == ("base", rate(0.1))
    unknown = attack.model_copy(update={"headline": Headline(metric="tpr_at_1pct_fpr", estimate=rate(0.9))})
    assert control_of("membership", unknown) == ("", None)


def test_rows_are_runs_then_arms() -> None:
    rows = rows_of([make_report("a+b", 0, 0.5, 0.6), make_report("a+b", 1, 0.7, 0.8), make_report("base", 0, 0.1, 0.2)])
    assert [(row.arm, row.seed) for row in rows] == [
        ("a+b", "0"), ("a+b", "1"), ("base", "0"), ("a+b", "all"), ("base", "all"),
    ]  # fmt: skip
    accuracy = rows[3].numbers["joint_goal_accuracy"]
    assert accuracy == pytest.approx((0.6, 0.4, 0.8, 100))


def test_a_missing_number_makes_the_mean_missing_not_smaller() -> None:
    rows = rows_of([make_report("a", 0, 0.5, 0.6), make_report("a", 1, 0.7, None)])
    aggregate = rows[-1].numbers[f"untargeted_extraction/{HEADLINE}"]
    assert (aggregate.value, aggregate.low, aggregate.high) == (None, None, None)


def test_the_headlines_own_key_decides_where_scores_tie() -> None:
    tie, other = Estimate(value=0.4, n=9), Estimate(value=0.1, n=9)
    attack = AttackResult(
        verdict="leak",
        headline=Headline(metric="tpr_at_1pct_fpr", estimate=tie, key="ppl/tpr_at_1pct_fpr"),
        metrics={"dc_ppl/tpr_at_1pct_fpr": tie, "ppl/tpr_at_1pct_fpr": tie},
        control={"base": {"dc_ppl/tpr_at_1pct_fpr": tie, "ppl/tpr_at_1pct_fpr": other}},
    )
    assert control_of("membership", attack) == ("base", other)


def of_data(report: AuditReport, name: str, members: int, nonmembers: int) -> AuditReport:
    changed = report.data.model_copy(update={"name": name, "members": members, "nonmembers": nonmembers})
    return report.model_copy(update={"data": changed})


def test_runs_on_other_data_or_of_another_size_are_not_averaged() -> None:
    rows = rows_of(
        [
            of_data(make_report("a", 0, 0.2, 0.6), "toy", 100, 100),
            of_data(make_report("a", 0, 0.4, 0.6), "sgd", 100, 100),
            of_data(make_report("a", 1, 0.6, 0.6), "toy", 97, 97),
            of_data(make_report("a", 0, 0.8, 0.6), "toy", 100, 50),
            of_data(make_report("b", 0, 0.8, 0.6), "toy", 100, 50),
        ]
    )
    toy, sgd, small = (
        f"a ({name}, 100 members, {n} non-members)" for name, n in (("toy", 100), ("sgd", 100), ("toy", 50))
    )
    assert [row.arm for row in rows] == [toy, sgd, toy, small, "b", toy, sgd, small, "b"]
    means = [row.numbers["joint_goal_accuracy"].value for row in rows if row.seed == "all"]
    assert means == pytest.approx([0.4, 0.4, 0.8, 0.8])


def test_audits_have_a_row_and_no_part_in_the_aggregate() -> None:
    run = make_report("a", 0, 0.5, 0.6)
    of_run = run.model_copy(update={"notes": ["utility was measured by run x"]})
    marked = run.model_copy(update={"audited": {"id": "x"}})
    of_model = make_report("m", 0, 0.5, 0.6).model_copy(
        update={"utility": {}, "run": run.run.model_copy(update={"seconds": {"audit": 1.0}})}
    )
    rows = rows_of([run, of_run, of_model, marked])
    assert [(row.arm, row.seed) for row in rows] == [
        ("a", "0"), ("a (audit)", "0"), ("m (audit)", "0"), ("a (audit)", "0"), ("a", "all"),
    ]  # fmt: skip
    assert rows[-1].numbers["joint_goal_accuracy"].n == 50


def test_two_runs_under_one_seed_are_two_experiments_and_have_no_mean() -> None:
    rows = rows_of([make_report("a", 0, 0.5, 0.6), make_report("a", 0, 0.7, 0.8)])
    assert (rows[-1].seed, rows[-1].status, rows[-1].numbers) == ("all", "mixed", {})
    *_, mixed = csv.DictReader(io.StringIO(tradeoff_csv(rows)))
    assert mixed["joint_goal_accuracy"] == ""


def test_csv_leaves_unmeasured_cells_empty() -> None:
    text = tradeoff_csv(rows_of([make_report("a", 0, 0.5, None)]))
    first = next(csv.DictReader(io.StringIO(text)))
    assert first["joint_goal_accuracy"] == "0.5"
    assert first[f"untargeted_extraction/{HEADLINE}"] == ""
    assert first[f"untargeted_extraction/{HEADLINE}/nonmembers"] == "0.2"
    assert first["epsilon"] == ""


def test_figure_draws_each_run_and_its_chance_line() -> None:
    figure = tradeoff_figure(rows_of([make_report("a", 0, 0.5, 0.6), make_report("base", 0, 0.1, 0.2)]))
    (axis,) = figure.axes
    labels = set(axis.get_legend_handles_labels()[1])
    assert labels == {"a", "base", "a, chance line", "base, chance line"}


def placed(arm: str, front: Front, by: tuple[str, ...] = (), *, is_collapsed: bool | None = False) -> Standing:
    return Standing(
        arm=arm,
        is_collapsed=is_collapsed,
        front=front,
        dominated_by=by,
        flags=(),
        words="",
        seconds=None,
        tokens=None,
        memory_mb=None,
    )


def test_csv_says_where_each_arm_stands_and_nothing_where_nobody_compared() -> None:
    rows = rows_of([make_report(arm, 0, 0.5, 0.6) for arm in ("a", "b", "c")])
    standings = [
        placed("a", "front"),
        placed("b", "dominated", ("a", "c")),
        placed("c", "not judged", is_collapsed=None),
    ]
    found = list(csv.DictReader(io.StringIO(tradeoff_csv(rows, standings))))
    cells = [(row["front"], row["dominated_by"], row["collapsed"]) for row in found[:3]]
    assert cells == [("front", "", "no"), ("dominated", "a;c", "no"), ("not judged", "", "")]
    assert found[3]["front"] == "front"  # the arm over its seeds
    assert next(csv.DictReader(io.StringIO(tradeoff_csv(rows))))["front"] == ""


def test_memory_is_the_most_of_any_phase_and_run_and_empty_where_nobody_looked() -> None:
    def held(seed: int, **megabytes: float) -> AuditReport:
        report = make_report("a", seed, 0.5, 0.6)
        return report.model_copy(update={"run": report.run.model_copy(update={"peak_memory_mb": megabytes})})

    rows = rows_of([held(0, train=5.0, audit=7.0), held(1, train=9.0)])
    assert [row.numbers["memory_mb"].value for row in rows] == [7.0, 9.0, 9.0]
    assert [row.numbers["memory_mb"].value for row in rows_of([held(0, train=5.0), held(1)])] == [5.0, None, None]


def test_figure_marks_the_front_and_what_is_behind_it() -> None:
    rows = rows_of([make_report(arm, 0, 0.5, 0.6) for arm in ("a", "b", "c")])
    standings = [
        placed("a", "front"),
        placed("b", "perhaps dominated", ("a",)),
        placed("c", "not judged", is_collapsed=True),
    ]
    (axis,) = tradeoff_figure(rows, standings=standings).axes
    labels = set(axis.get_legend_handles_labels()[1])
    assert {"a (front)", "b (perhaps dominated)", "c (collapsed)"} <= labels


def test_arm_is_spelled_as_it_is_asked_for() -> None:
    assert arm_name(make_report("dialogue_level+dp_sgd", 0, 0.5, 0.5)) == "dialogue_level+dp_sgd"


def private(report: AuditReport, epsilon: float, unit: str = "dialogue") -> AuditReport:
    privacy = PrivacyInfo(
        unit=unit,
        epsilon=epsilon,
        delta=epsilon / 1000,
        accountant="prv",
        noise_multiplier=1.0,
        sample_rate=0.1,
        steps=10,
        max_grad_norm=1.0,
        secure_rng=False,
    )
    return report.model_copy(update={"recipe": report.recipe.model_copy(update={"privacy": privacy})})


def test_epsilon_stands_with_its_delta_and_unit_and_an_arm_without_one_has_none() -> None:
    reports = [private(make_report("a", 0, 0.5, 0.6), 8.0), make_report("b", 0, 0.5, 0.6)]
    dp, plain, *_ = csv.DictReader(io.StringIO(tradeoff_csv(rows_of(reports))))
    assert (dp["epsilon"], dp["delta"], dp["privacy_unit"]) == ("8.0", "0.008", "dialogue")
    assert (plain["epsilon"], plain["delta"], plain["privacy_unit"]) == ("", "", "none")


def test_the_bound_of_an_arm_is_its_worst_runs_and_missing_where_one_run_has_none() -> None:
    bounded = [private(make_report("a", seed, 0.5, 0.6), epsilon) for seed, epsilon in ((0, 2.0), (1, 8.0))]
    arm = rows_of(bounded)[-1]
    assert (arm.numbers["epsilon"].value, arm.numbers["delta"].value, arm.privacy_unit) == (8.0, 0.008, "dialogue")
    for other in (make_report("a", 2, 0.5, 0.6), private(make_report("a", 2, 0.5, 0.6), 2.0, unit="user")):
        arm = rows_of([*bounded, other])[-1]
        assert (arm.numbers["epsilon"].value, arm.numbers["delta"].value, arm.privacy_unit) == (None, None, "mixed")
