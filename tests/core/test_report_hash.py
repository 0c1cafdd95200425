from __future__ import annotations

import json
from typing import Any

import pytest

from hushbot.report_hash import report_sha256
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, RecipeInfo, RunInfo


def report(value: float = 0.5, seconds: float = 1.0, **run: Any) -> AuditReport:
    facts: dict[str, Any] = {"id": "r", "created": "2026-01-01T00:00:00Z", "seed": 0, "config_sha256": "a"}
    attack = AttackResult(
        verdict="leak", headline=Headline(metric="auc", estimate=Estimate(value=value)), seconds=seconds
    )
    return AuditReport(
        status="complete",
        run=RunInfo(**(facts | {"data_sha256": "b"} | run)),
        recipe=RecipeInfo(stack=["turn_level"]),
        data=DataInfo(
            name="toy",
            members=1,
            nonmembers=1,
            calibration=0,
            controls=0,
            domains=1,
            slots=1,
            turns=2,
            supervised_tokens=3,
        ),
        attacks={"membership": attack},
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": 2.0},
        {"created": "2027-02-03T04:05:06Z"},
        {"device": "NVIDIA H200"},
        {"versions": {"torch": "3"}},
        {"peak_memory_mb": {"train": 1.0}},
        {"seconds_per_turn": Estimate(value=0.25)},
    ],
)
def test_clocks_and_machines_change_nothing(changes: dict[str, Any]) -> None:
    assert report_sha256(report(**changes)) == report_sha256(report())


@pytest.mark.parametrize("changes", [{"value": 0.5 + 2**-52}, {"seed": 1}, {"weights_sha256": "c"}, {"id": "s"}])
def test_anything_else_changes_it(changes: dict[str, Any]) -> None:
    assert report_sha256(report(**changes)) != report_sha256(report())


def test_a_file_has_the_hash_of_what_is_in_memory() -> None:
    text = json.dumps(dict(reversed(report().model_dump(mode="json").items())))
    assert report_sha256(json.loads(text)) == report_sha256(report())
