"""The rows of a report: every number once, nothing unmeasured as zero, nothing of the records in the clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hushbot.evaluation.tracker_rows import points, rows_of, shown_config, shown_records, summary_of
from hushbot.run import RunDirectory
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, RecipeInfo, RunInfo

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
