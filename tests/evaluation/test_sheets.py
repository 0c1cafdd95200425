"""The CSV files of a comparison: every number once, and curves that can be followed by hand."""

from __future__ import annotations

import csv
import io

from hushbot.evaluation.sheets import metrics_csv, roc_csv
from hushbot.types import (
    AttackResult,
    AuditReport,
    DataInfo,
    Estimate,
    Headline,
    RecipeInfo,
    RunInfo,
    TrainingEpoch,
    Units,
)

AUC = Estimate(value=0.75, low=0.5, high=1.0, n=4, method="by_hand")
UNITS = Units.model_validate(
    {
        "rule": "auc",
        "documents": ["a", "b", "c", "d", "e"],
        "values": [0.9, 0.4, 0.6, 0.1, 0.99],
        "sides": ["member", "member", "nonmember", "nonmember", "calibration"],
    }
)


def report_of(seed: int = 0, units: Units | None = UNITS) -> AuditReport:
    attack = AttackResult(
        verdict="leak",
        headline=Headline(metric="auc", estimate=AUC, key="auc"),
        metrics={"auc": AUC, "advantage": Estimate(value=None, method="not measured: no reference")},
        units=units,
    )
    return AuditReport(
        status="complete",
        run=RunInfo(id=f"run{seed}", created="now", seed=seed, config_sha256="c", data_sha256="d"),
        recipe=RecipeInfo(stack=["turn_level", "value_copy"]),
        data=DataInfo(
            name="toy", members=2, nonmembers=2, calibration=1, controls=0, domains=1, slots=1, turns=5,
            supervised_tokens=9,
        ),
        utility={"bleu": Estimate(value=12.5, low=10.0, high=15.0, n=5, method="by_hand")},
        attacks={"membership": attack},
        training=[TrainingEpoch(epoch=1, training_loss=2.5)],
    )  # fmt: skip


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_number_of_every_run_is_a_row() -> None:
    rows = read(metrics_csv([report_of(0), report_of(1)]))
    assert {(row["arm"], row["seed"], row["run"]) for row in rows} == {
        ("turn_level+value_copy", "0", "run0"),
        ("turn_level+value_copy", "1", "run1"),
    }
    first = {row["key"]: row for row in rows if row["seed"] == "0"}
    found = first["audit/membership/auc"]
    assert (found["value"], found["low"], found["high"], found["n"]) == ("0.75", "0.5", "1.0", "4")
    assert (found["method"], found["verdict"]) == ("by_hand", "leak")
    assert first["utility/bleu"]["value"] == "12.5"
    assert any(row["value"] == "2.5" and row["axis"] == "train/epoch" for row in rows)


def test_what_was_not_measured_is_empty_and_says_why() -> None:
    (row,) = (row for row in read(metrics_csv([report_of()])) if row["key"] == "audit/membership/advantage")
    assert (row["value"], row["low"], row["method"]) == ("", "", "not measured: no reference")


def test_curves_go_through_the_points_that_thresholds_reach() -> None:
    # From the top: 0.9 is a member's, 0.6 a non-member's, 0.4 a member's, 0.1 a non-member's; calibration is neither.
    rows = read(roc_csv([report_of()]))
    points = [(float(row["false_positive_rate"]), float(row["true_positive_rate"])) for row in rows]
    assert points == [(0, 0), (0, 0.5), (0.5, 0.5), (0.5, 1), (1, 1)]
    assert {(row["attack"], row["n_members"], row["n_nonmembers"]) for row in rows} == {("membership", "2", "2")}


def test_no_document_is_named_and_no_scores_make_no_curve() -> None:
    assert read(roc_csv([report_of(units=None)])) == []
    assert "documents" not in metrics_csv([report_of()])
    assert roc_csv([]).splitlines() == [
        "arm,seed,run,attack,false_positive_rate,true_positive_rate,n_members,n_nonmembers"
    ]
