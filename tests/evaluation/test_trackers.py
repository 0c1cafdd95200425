"""Trackers that write files on this machine: each has the report's numbers, none a secret, and a resumed run once."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hushbot.composition import compose, find_problems
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation.csv_tracker import CsvTracker
from hushbot.evaluation.following import Progress, following, need
from hushbot.evaluation.suite import build_trackers
from hushbot.evaluation.tensorboard_tracker import TensorboardTracker
from hushbot.evaluation.tracker_comparison import Board
from hushbot.evaluation.tracker_rows import Curves, points, rows_of
from hushbot.evaluation.trackio_tracker import TrackioTracker
from hushbot.evaluation.wandb_tracker import WandbTracker
from hushbot.types import AuditReport


def expected_points(report: AuditReport, curves: Curves = "main") -> dict[tuple[int, str], float]:
    found = [(rows[0].step, points(rows, curves)) for rows in rows_of(report).values()]
    return {(step, key): value for step, drawn in found for key, value in drawn.items()}


def fail_then_resume(follow: Any, tracker: Any, finding: Any) -> AuditReport:
    attacks = {"first": finding(0.75), "second": finding(0.625, error=AuditError("no answer; start it"))}
    with pytest.raises(AuditError):
        follow(tracker, attacks, reveal=True)
    report: AuditReport = follow(tracker, {"first": finding(0.25), "second": finding(0.625)}, reveal=True)
    return report


def assert_free_of(secrets: tuple[str, ...], folder: Path) -> None:
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert written
    for secret in secrets:
        assert [path.name for path in written if secret.encode() in path.read_bytes()] == [], secret


def test_csv_has_every_row_of_the_report(
    follow: Any, finding: Any, secrets: tuple[str, ...], unit: str, tmp_path: Path
) -> None:
    report = fail_then_resume(follow, CsvTracker(), finding)
    path = tmp_path / "run" / "metrics.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = [row for rows in rows_of(report).values() for row in rows]
    assert [row["key"] for row in rows] == [row.key for row in wanted]
    for row, other in zip(rows, wanted, strict=True):
        assert row["run"] == report.run.id
        assert (float(row["value"]) if row["value"] else None) == other.value
        assert (row["method"], row["verdict"], int(row["step"])) == (other.method, other.verdict, other.step)
    unmeasured = next(row for row in rows if row["key"] == "audit/first/advantage")
    assert (unmeasured["value"], unmeasured["method"]) == ("", "no reference")
    trained = [(row["axis"], row["step"], row["value"]) for row in rows if row["key"] == "train/training_loss"]
    assert trained == [("train/epoch", "1", "1.0"), ("train/epoch", "2", "0.5")]
    assert not any(secret in path.read_text(encoding="utf-8") for secret in (*secrets, unit))


@pytest.mark.integration
def test_tensorboard_has_every_point_once(
    follow: Any, finding: Any, secrets: tuple[str, ...], unit: str, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'hushbot[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = fail_then_resume(follow, TensorboardTracker(curves="all"), finding)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    found = [(event.step, key, event.value) for key in events.Tags()["scalars"] for event in events.Scalars(key)]
    assert len(found) == len({(step, key) for step, key, _ in found}), "nothing twice"
    assert {(step, key): value for step, key, value in found} == pytest.approx(expected_points(report, "all"), rel=1e-6)
    parts = events.SummaryMetadata("_hparams_/experiment").plugin_data.content
    assert all(name in parts for name in (b"recipe", b"audit/first/headline", b"audit/second/headline"))
    assert_free_of((*secrets, unit), tmp_path / "run" / "tensorboard")


@pytest.mark.integration
def test_trackio_has_every_point_once(tmp_path: Path) -> None:
    """In a process of its own: trackio reads its folder from the environment once."""
    pytest.importorskip("trackio", reason="needs trackio: pip install 'hushbot[trackio]'")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TRACKIO_")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}", "-k"]
    command += ["trackio_inner", str(Path(__file__))]
    done = subprocess.run(
        command, env={**environment, "HUSHBOT_INNER": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout


@pytest.mark.skipif("HUSHBOT_INNER" not in os.environ, reason="run by test_trackio_has_every_point_once")
def test_trackio_inner(
    follow: Any, finding: Any, secrets: tuple[str, ...], unit: str, board: Board, tmp_path: Path
) -> None:
    report = fail_then_resume(follow, TrackioTracker(), finding)
    said: list[str] = []
    for _ in range(2):
        TrackioTracker().log_comparison(board, {"seed": 3}, said.append)
    assert len(said) == 1, "what has not changed is not logged again"
    folder = tmp_path / "trackio"
    with sqlite3.connect(folder / "hushbot.db") as database:
        everything = database.execute("select run_name, step, metrics from metrics").fetchall()
    compared = [json.loads(metrics) for name, _, metrics in everything if name.startswith("comparison-")]
    found = [row for row in everything if not row[0].startswith("comparison-")]
    assert len({name for name, _, _ in found}) == 1, "one run"
    numbers = [
        ((step, key), value)
        for _, step, metrics in found
        for key, value in json.loads(metrics).items()
        if isinstance(value, (int, float))
    ]
    assert len(numbers) == len(dict(numbers)), "nothing twice"
    assert dict(numbers) == expected_points(report)
    tables = {key for _, _, metrics in found for key, value in json.loads(metrics).items() if isinstance(value, dict)}
    assert {"records/first", "records/second", "tables/numbers"} <= tables
    assert not any(unit.encode() in metrics for _, _, metrics in everything)
    (shown,) = compared
    assert {"comparison/standings", "comparison/differences", "comparison/arms", "tradeoff/all"} <= set(shown)
    assert [row["utility"] for row in shown["tradeoff/membership/auc"]["_value"]] == [0.5, 0.25]
    assert list(folder.rglob("*.png")), "the picture is kept with it"
    assert_free_of(secrets, folder)


def test_trackio_refuses_an_environment_that_sends_runs_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason="needs trackio: pip install 'hushbot[trackio]'")
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    with pytest.raises(ConfigError, match="TRACKIO_SPACE_ID is set"):
        TrackioTracker().check()


def test_a_missing_package_is_told_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"needs no_such_module; `pip install 'hushbot\[it\]'`"):
        need("no_such_module", "hushbot[it]")


def test_wandb_goes_online_by_an_override_alone() -> None:
    config = compose("train", ["tracker=wandb", "tracker.mode=online"])
    assert find_problems({"tracker": config["tracker"]}) == []
    (tracker,) = build_trackers(config["tracker"]).values()
    assert (tracker, WandbTracker().mode) == (WandbTracker(mode="online"), "offline")
    (problem,) = find_problems({"tracker": {**config["tracker"], "mode": "on"}})
    assert problem.startswith("tracker.mode='on'")


def test_settings_are_checked_without_importing_a_dashboard() -> None:
    code = (
        "import sys; from hushbot.composition import compose, find_problems\n"
        "for name in ('csv', 'tensorboard', 'wandb', 'trackio'):\n"
        "    config = compose('audit', [f'tracker={name}'])\n"
        "    assert find_problems({'tracker': config['tracker']}) == []\n"
        "assert not {'wandb', 'tensorboard', 'trackio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_trackers_of_a_configuration_stand_alone_or_by_name() -> None:
    node = {"_target_": "hushbot.evaluation.csv_tracker.CsvTracker"}
    assert build_trackers({}) == {}
    assert list(build_trackers(node)) == ["tracker"]
    assert list(build_trackers({"one": node, "two": node})) == ["tracker.one", "tracker.two"]


def test_trackers_are_closed_however_it_ends(tmp_path: Path) -> None:
    class Open:
        state = "new"

        def check(self) -> None: ...

        def follow(self, folder: Path, config: Any, say: Any) -> None:
            self.state = "open"

        def log(self, report: AuditReport) -> None: ...

        def close(self) -> None:
            self.state = "closed"

    class Broken(Open):
        def follow(self, folder: Path, config: Any, say: Any) -> None:
            raise AuditError("it is full; make room")

    first, second = Open(), Open()
    with following([first, second], tmp_path, {}, print):
        assert first.state == second.state == "open"
    assert first.state == second.state == "closed"
    with pytest.raises(AuditError), following([first, Broken()], tmp_path, {}, print):
        pass
    assert first.state == "closed"


def test_progress_that_was_not_kept_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "trackers" / "it.json"
    before = Progress(path, "run")
    assert [before.is_new("one"), before.is_new("one")] == [True, False]
    killed = Progress(path, "run")
    assert (killed.id, killed.is_new("one")) == (before.id, True)
    before.keep()
    assert not Progress(path, "run").is_new("one")
