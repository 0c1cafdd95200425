"""The rows of a report: every number once, nothing unmeasured as zero, nothing of the records in the clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hushbot.evaluation.tracker_rows import points, rows_of, shown_config, shown_records, summary_of
from hushbot.run import RunDirectory
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

AUC = Estimate(value=0.75, low=0.5, high=1.0, n=8, method="delong")
UNMEASURED = Estimate(value=None, method="no reference model")


def attack(**more: Any) -> AttackResult:
    return AttackResult(verdict="leak", headline=Headline(metric="auc", estimate=AUC), **more)


@pytest.fixture
def report() -> AuditReport:
    data = DataInfo(
        name="d", members=1, nonmembers=1, calibration=0, controls=0, domains=1, slots=1, turns=2, supervised_tokens=3
    )
    return AuditReport(
        status="partial",
        run=RunInfo(id="r", created="2026", seed=0, config_sha256="c", data_sha256="d", seconds={"train": 2.5}),
        recipe=RecipeInfo(stack=["turn_level"]),
        data=data,
        utility={"jga": Estimate(value=0.25, low=0.0, high=0.5, n=4)},
        attacks={
            "one": attack(metrics={"auc": AUC, "ratio": UNMEASURED, "k": 3, "none": None}, queries=7),
            "two": attack(control={"nonmembers": {"auc": AUC}}, blind={"auc": 0.5, "note": "a text", "flag": True}),
        },
    )


def test_sections_come_in_the_order_of_the_report_each_at_its_step(report: AuditReport) -> None:
    rows = rows_of(report)
    assert {name: {row.step for row in found} for name, found in rows.items()} == {"bot": {0}, "one": {1}, "two": {2}}
    assert [row.key for row in rows["bot"]] == ["utility/jga", "cost/train_seconds"]
    assert [row.key.removeprefix("audit/two/") for row in rows["two"]] == [
        "headline",
        "control/nonmembers/auc",
        "blind/auc",
        "queries",
    ]


def test_training_comes_first_by_its_epochs_and_what_it_all_took_last(report: AuditReport) -> None:
    epochs = [
        TrainingEpoch(epoch=2, training_loss=0.5, measured={"membership/auc": AUC}),
        TrainingEpoch(epoch=4, training_loss=0.25, calibration_loss=2.0, measured={"membership/auc": UNMEASURED}),
    ]
    spent = {"seconds": {"audit": 9.0}, "peak_memory_mb": {"utility": 5.0, "audit": 6.0}, "seconds_per_turn": AUC}
    run = report.run.model_copy(update=spent)
    whole = report.model_copy(update={"training": epochs, "run": run, "status": "complete"})
    rows = rows_of(whole)
    assert list(rows) == ["epoch 2", "epoch 4", "bot", "one", "two", "cost"]
    assert {(row.axis, row.step) for row in rows["epoch 4"]} == {("train/epoch", 4)}
    assert {row.axis for name in ("bot", "one", "two", "cost") for row in rows[name]} == {"audit/step"}
    assert points(rows["epoch 2"]) == {
        "train/training_loss": 0.5,
        "train/membership/auc": 0.75,
        "train/membership/auc.low": 0.5,
        "train/membership/auc.high": 1.0,
    }
    assert points(rows["epoch 4"]) == {"train/training_loss": 0.25, "train/calibration_loss": 2.0}
    unmeasured = next(row for row in rows["epoch 4"] if row.key == "train/membership/auc")
    assert (unmeasured.value, unmeasured.method) == (None, "no reference model")
    assert points(rows["bot"])["cost/utility_peak_memory_mb"] == 5.0
    assert points(rows["bot"])["cost/seconds_per_turn"] == 0.75
    assert points(rows["cost"]) == {"cost/audit_seconds": 9.0, "cost/audit_peak_memory_mb": 6.0}
    assert rows["cost"][0].step == 2
    part = rows_of(whole.model_copy(update={"status": "partial"}))
    assert "cost" not in part, "what still grows is not told yet"
    assert all(part[name] == found for name, found in rows.items() if name != "cost")


def test_utility_of_each_domain_stands_beside_the_whole(report: AuditReport) -> None:
    more = report.model_copy(update={"utility_by_domain": {"hotel": {"jga": AUC}, "taxi": {"jga": UNMEASURED}}})
    rows = {row.key: row.value for row in rows_of(more)["bot"]}
    assert rows["utility/domain=hotel/jga"] == 0.75
    assert rows["utility/domain=taxi/jga"] is None


def test_main_is_what_an_attack_is_judged_by_and_all_is_everything(report: AuditReport) -> None:
    """Curves of hundreds of numbers are no dashboard; the tables have every row anyway."""
    found = attack(
        metrics={"ppl/auc": AUC, "ratio/auc": AUC, "ratio/tpr": AUC, "hit@1": AUC, "domain=taxi/ratio/tpr": AUC},
        control={"base": {"ratio/tpr": AUC, "ratio/auc": AUC, "ppl/tpr": AUC}},
        blind={"tpr": 0.25, "permutation_p": 0.5},
    )
    judged = found.model_copy(update={"headline": Headline(metric="tpr", key="ratio/tpr", estimate=AUC)})
    by_domain = {"taxi": {"joint_goal_accuracy": AUC, "bleu": AUC}}
    rows = rows_of(report.model_copy(update={"attacks": {"one": judged}, "utility_by_domain": by_domain}))
    main = [key.removeprefix("audit/one/") for key in points(rows["one"]) if not key.endswith((".low", ".high"))]
    assert main == ["headline", "ratio/auc", "hit@1", "control/base/ratio/tpr", "blind/tpr", "queries"]
    assert {row.key for row in rows["one"]} == {
        key for key in points(rows["one"], "all") if key[-4:] not in (".low", "high")
    }
    drawn = points(rows["bot"])
    assert "utility/domain=taxi/joint_goal_accuracy" in drawn
    assert "utility/domain=taxi/bleu" not in drawn


def test_what_documents_add_is_no_row(report: AuditReport) -> None:
    """Units are in the report for comparisons; on a dashboard they would be a list of people."""
    units = Units(rule="ratio", documents=["d1", "d2"], values=[1.0, 0.0], weights=[1.0, 1.0])
    examples = [{"dialogue_id": "d1", "rank": 3}]
    more = {"attacks": {"one": attack(units=units, examples=examples)}, "utility_units": {"jga": units}}
    bare = {"attacks": {"one": attack()}}
    assert rows_of(report.model_copy(update=more)) == rows_of(report.model_copy(update=bare))


def test_unmeasured_is_a_row_without_a_value_and_no_point(report: AuditReport) -> None:
    rows = {row.key: row for row in rows_of(report)["one"]}
    assert rows["audit/one/ratio"].value is None
    assert rows["audit/one/ratio"].method == "no reference model"
    assert rows["audit/one/none"].value is None
    assert points(list(rows.values())) == {
        "audit/one/headline": 0.75,
        "audit/one/headline.low": 0.5,
        "audit/one/headline.high": 1.0,
        "audit/one/auc": 0.75,
        "audit/one/auc.low": 0.5,
        "audit/one/auc.high": 1.0,
        "audit/one/k": 3.0,
        "audit/one/queries": 7.0,
    }


def test_a_report_read_from_disk_has_the_same_rows(report: AuditReport) -> None:
    """Controls come back as mappings."""
    again = AuditReport.model_validate_json(report.model_dump_json())
    assert isinstance(again.attacks["two"].control["nonmembers"]["auc"], dict)
    assert rows_of(again) == rows_of(report)


def test_not_finite_is_not_measured(report: AuditReport) -> None:
    broken = report.model_copy(update={"utility": {"ppl": Estimate(value=float("nan"), low=float("inf"))}})
    row = rows_of(broken)["bot"][0]
    assert (row.key, row.value, row.low) == ("utility/ppl", None, None)


def test_nothing_to_say_of_the_bot_is_no_section(report: AuditReport) -> None:
    run = report.run.model_copy(update={"seconds": {}})
    assert list(rows_of(report.model_copy(update={"utility": {}, "run": run}))) == ["one", "two"]


def test_summary_leaves_an_unmeasured_headline_out(report: AuditReport) -> None:
    silent = AttackResult(verdict="not_measured", headline=Headline(metric="auc", estimate=UNMEASURED))
    found = summary_of(report.model_copy(update={"attacks": {"one": attack(), "two": silent}}))
    assert found == {
        "status": "partial",
        "verdict/one": "leak",
        "headline/one": 0.75,
        "verdict/two": "not_measured",
    }


def test_settings_are_shown_without_where_anything_lies() -> None:
    config = {"seed": 1, "run": "/home/maria/run", "tracker": {"mode": "online"}, "url": "http://key@host"}
    config |= {"data": {"path": "/home/maria/corpus", "files": ["~/maria/a.json", "b.json"]}}
    assert shown_config(config) == {"seed": 1, "data": {"path": ".../corpus", "files": [".../a.json", "b.json"]}}


@pytest.mark.parametrize("reveal", [False, True])
def test_records_are_masked_however_they_lie_on_disk(tmp_path: Path, reveal: bool) -> None:
    rows = [{"dialogue_id": "d1", "value": "kowloon garden", "hits": [1, 2], "score": 0.5}] * 3
    with RunDirectory(tmp_path).create({}, {}) as directory:
        path = directory.write_records("one", rows, reveal=reveal)
    shown = shown_records(tmp_path, attack(records=path), {"reveal": reveal}, limit=2)
    assert len(shown) == 2
    assert (shown[0]["dialogue_id"], shown[0]["score"], shown[0]["hits"]) == ("d1", 0.5, "[1, 2]")
    assert "kowloon" not in repr(shown)
    assert shown_records(tmp_path, attack(records=path), {"reveal": reveal}, limit=0) == []
    assert shown_records(tmp_path, attack(), {"reveal": reveal}, limit=2) == []


def test_records_of_a_run_that_does_not_say_are_masked(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({}, {}) as directory:
        path = directory.write_records("one", [{"value": "kowloon garden"}], reveal=True)
    assert "kowloon" not in repr(shown_records(tmp_path, attack(records=path), {}, limit=2))
