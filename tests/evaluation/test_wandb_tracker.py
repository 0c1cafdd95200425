"""Weights & Biases, offline: what was logged is read back; without a way to the server a run goes on offline."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import AuditError
from hushbot.evaluation import wandb_tracker
from hushbot.evaluation.tracker_rows import points, rows_of
from hushbot.evaluation.wandb_tracker import WandbTracker
from hushbot.types import AuditReport

CLOSED_PORT = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def fresh_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Start W&B anew, with nobody logged in, no server, and no files of its own outside the test."""
    import wandb

    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "wandb-settings"))
    monkeypatch.setenv("WANDB_BASE_URL", CLOSED_PORT)
    wandb.teardown()
    yield
    wandb.teardown()


def offline_runs(folder: Path) -> list[Path]:
    return sorted((folder / "wandb").glob("offline-run-*"))


def inspect(run: Path, *options: str) -> str:
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", *options, "--json", str(run)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def logged(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the run's own log holds, by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in map(json.loads, inspect(run).splitlines()):
        found.setdefault(record["type"], []).append(record[record["type"]])
    return found


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8", errors="replace")


def hold_the_same(history: list[dict[str, Any]], report: AuditReport) -> None:
    """Check that every point of the report is in the history, at its step."""
    for rows in rows_of(report).values():
        entry = next(h["item"] for h in history if h["item"]["audit/step"] == rows[0].step)
        assert points(rows).items() <= entry.items()


def test_offline_run_holds_the_report_and_no_secret(
    follow: Any, secrets: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where records are in the clear, the environment asks for the server and holds a key, and there is a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    monkeypatch.setattr(socket, "gethostname", lambda: "laptop-of-maria")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
    said: list[str] = []
    with listener:
        report = follow(WandbTracker(), reveal=True, said=said)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert "wandb sync" in said[-1]
    (run,) = offline_runs(tmp_path / "run")

    found = json.loads(inspect(run, "--summary"))
    assert (found["state"], found["exit_code"], found["project"]) == ("finished", 0, "hushbot")
    assert found["config"]["data"] == {"name": "synthetic", "path": ".../corpus"}
    assert found["config"]["recipe_stack"] == "turn_level"
    assert found["summary"]["verdict/first"] == "leak"
    assert found["summary"]["headline/second"] == 0.625
    assert found["summary"]["status"] == "complete"
    records = logged(run)
    history = records["history"]
    hold_the_same(history, report)
    assert not any("advantage" in key for entry in history for key in entry["item"]), "unmeasured is no point"
    axes = {metric.get("glob_name"): metric.get("step_metric") for metric in records["metric"]}
    assert axes["audit/*"] == axes["utility/*"] == "audit/step"
    artifacts = {artifact["type"]: artifact for artifact in records["artifact"]}
    assert [entry["path"] for entry in artifacts["report"]["manifest"]["contents"]] == [
        "privacy_card.md",
        "report.html",
        "report.json",
    ]

    written = {path: text_of(path) for path in (tmp_path / "run" / "wandb").rglob("*") if path.is_file()}
    tables = {path.name.split("_")[0]: json.loads(text) for path, text in written.items() if "media" in path.parts}
    numbers = {row[2]: row for row in tables["numbers"]["data"]}
    assert numbers["audit/first/advantage"][3] is None
    assert "no reference" in numbers["audit/first/advantage"]
    assert tables["first"]["columns"] == ["dialogue_id", "value", "text"]
    assert [row[0] for row in tables["first"]["data"]] == ["d0", "d1", "d2"]
    assert tables["first"]["data"][0][1].startswith(("k***n", "***"))
    assert any("audit/first/auc" in text for path, text in written.items() if path.suffix == ".wandb")
    for secret in (*secrets, "laptop-of-maria"):
        assert [path.name for path, text in written.items() if secret in text] == [], secret


def test_resuming_continues_the_same_run_and_repeats_nothing(follow: Any, finding: Any, tmp_path: Path) -> None:
    attacks = {"first": finding(0.75), "second": finding(0.625, error=AuditError("no answer; start it"))}
    with pytest.raises(AuditError):
        follow(WandbTracker(), attacks)
    report = follow(WandbTracker(), {"first": finding(0.25), "second": finding(0.625)})
    first, second = offline_runs(tmp_path / "run")
    before, after = json.loads(inspect(first, "--summary")), json.loads(inspect(second, "--summary"))
    assert before["run_id"] == after["run_id"]
    assert (before["exit_code"], after["exit_code"]) == (1, 0)
    assert before["summary"]["status"] == "partial"
    histories = [logged(run)["history"] for run in (first, second)]
    assert [[entry["item"]["audit/step"] for entry in history] for history in histories] == [[0, 1], [2, 2]]
    steps = [entry["item"]["_step"] for history in histories for entry in history]
    assert steps == sorted(set(steps)), "one row of steps over both parts"
    hold_the_same([entry for history in histories for entry in history], report)


def test_another_run_directory_is_another_run(tmp_path: Path) -> None:
    from hushbot.evaluation.following import Progress

    names = {Progress(tmp_path / name / "wandb.json", "hushbot").id for name in ("a", "b", "a")}
    assert len(names) == 2


def test_online_without_credentials_says_what_to_do_and_goes_on_offline(follow: Any, tmp_path: Path) -> None:
    said: list[str] = []
    report = follow(WandbTracker(mode="online", n_records=0), said=said)
    assert report.status == "complete"
    assert any("wandb login" in line and "offline" in line for line in said)
    (run,) = offline_runs(tmp_path / "run")
    hold_the_same(logged(run)["history"], report)
    assert not list((tmp_path / "run" / "wandb").rglob("records")), "n_records=0 shows none"
    assert "WANDB_DATA_DIR" not in os.environ, "other runs of this process are left alone"


def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wandb_tracker, "_has_credentials", lambda: True)
    said: list[str] = []
    tracker = WandbTracker(mode="online")
    tracker._say = said.append
    assert tracker._chosen_mode() == "offline"
    assert [CLOSED_PORT in line and "does not answer" in line for line in said] == [True]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert tracker._chosen_mode() == "online"


def test_a_run_that_cannot_be_opened_is_not_followed_and_the_audit_goes_on(
    follow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def refuse(*arguments: Any, **named: Any) -> None:
        raise wandb.errors.UsageError("no")

    monkeypatch.setattr(wandb, "init", refuse)
    said: list[str] = []
    assert follow(WandbTracker(), said=said).status == "complete"
    assert any("not followed" in line for line in said)


def test_less_than_no_records_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_records=-1 .* tracker\.n_records"):
        WandbTracker(n_records=-1)
