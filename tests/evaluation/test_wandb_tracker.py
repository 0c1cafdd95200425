"""Weights & Biases, offline: what was logged is read back; without a way to the server a run goes on offline."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import AuditError
from hushbot.evaluation import wandb_opening
from hushbot.evaluation.following import Progress
from hushbot.evaluation.tracker_comparison import Board
from hushbot.evaluation.tracker_rows import points, rows_of
from hushbot.evaluation.wandb_opening import possible_mode
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
    """Return what `wandb leet inspect` prints, asked without the seconds that the command line takes to start."""
    from wandb.util import get_core_path

    (log,) = run.glob("*.wandb")
    command = [get_core_path(), "leet", "inspect", "--no-observability", *options, "--json"]
    command += ["--run-file", str(log), str(run.parent)]
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


def files_of(folder: Path) -> dict[Path, str]:
    return {path: text_of(path) for path in (folder / "wandb").rglob("*") if path.is_file()}


def tables_of(files: dict[Path, str]) -> dict[str, dict[str, Any]]:
    """Return W&B's tables by name."""
    return {path.name.split("_")[0]: json.loads(text) for path, text in files.items() if path.name.endswith(".json")}


def hold_the_same(history: list[dict[str, Any]], report: AuditReport) -> None:
    """Check that every point of the report is in the history, at its step on its axis."""
    for rows in rows_of(report).values():
        at = rows[0]
        (entry,) = (h["item"] for h in history if h["item"].get(at.axis) == at.step and rows_are_in(rows, h["item"]))
        assert points(rows).items() <= entry.items()


def rows_are_in(rows: list[Any], item: dict[str, Any]) -> bool:
    return any(key in item for key in points(rows))


def test_offline_run_holds_the_report_and_no_secret(
    follow: Any, secrets: tuple[str, ...], unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert "WANDB_DATA_DIR" not in os.environ, "other runs of this process are left alone"
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
    curve = [(h["item"]["train/epoch"], h["item"]["train/training_loss"]) for h in history[:2]]
    assert curve == [(1, 1.0), (2, 0.5)]
    assert not any("advantage" in key for entry in history for key in entry["item"]), "unmeasured is no point"
    axes = {metric.get("glob_name"): metric.get("step_metric") for metric in records["metric"]}
    assert axes["audit/*"] == axes["utility/*"] == axes["cost/*"] == "audit/step"
    assert axes["train/*"] == "train/epoch"
    artifacts = {artifact["type"]: artifact for artifact in records["artifact"]}
    assert [entry["path"] for entry in artifacts["report"]["manifest"]["contents"]] == [
        "privacy_card.md",
        "report.html",
        "report.json",
    ]

    written = files_of(tmp_path / "run")
    tables = tables_of({path: text for path, text in written.items() if "media" in path.parts})
    assert len(tables["numbers"]["data"]) == sum(map(len, rows_of(report).values()))
    numbers = {row[3]: row for row in tables["numbers"]["data"]}
    assert numbers["audit/first/advantage"][4] is None
    assert "no reference" in numbers["audit/first/advantage"]
    assert tables["first"]["columns"] == ["dialogue_id", "value", "text"]
    assert [row[0] for row in tables["first"]["data"]] == ["d0", "d1", "d2"]
    assert tables["first"]["data"][0][1].startswith(("k***n", "***"))
    assert any("audit/first/auc" in text for path, text in written.items() if path.suffix == ".wandb")
    for secret in (*secrets, "laptop-of-maria"):
        assert [path.name for path, text in written.items() if secret in text] == [], secret
    assert not any(unit in text for path, text in written.items() if path.suffix == ".wandb" or "media" in path.parts)


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
    steps = [[entry["item"].get("audit/step") for entry in history] for history in histories]
    assert steps == [[None, None, 0, 1], [2, 2, 2]], "two epochs, the bot, an attack; an attack, its cost, the whole"
    own = [entry["item"]["_step"] for history in histories for entry in history]
    assert own == sorted(set(own)), "one row of steps over both parts"
    hold_the_same([entry for history in histories for entry in history], report)


def test_a_comparison_is_a_run_with_the_trade_off_as_charts(
    board: Board, secrets: tuple[str, ...], tmp_path: Path
) -> None:
    said: list[str] = []
    for _ in range(2):
        WandbTracker().log_comparison(board, {"seed": 1, "url": secrets[4]}, said.append)
    (run,) = offline_runs(board.folder)
    assert len(said) == 1, "what has not changed is not logged again"
    found = json.loads(inspect(run, "--summary"))
    assert found["state"] == "finished"
    # The summary's own view of the configuration now and then lacks what another record, the chart's, came in beside.
    (started,) = logged(run)["run"]
    assert started["config"]["update"]["seed"] == 1
    records = logged(run)
    (entry,) = records["history"]
    assert entry["item"]["tradeoff/all._type"] == "image-file"
    (artifact,) = (a for a in records["artifact"] if a["type"] == "comparison")
    assert [e["path"] for e in artifact["manifest"]["contents"]] == ["report.html", "tradeoff.csv", "tradeoff.png"]
    written = files_of(board.folder)
    charts = [text for path, text in written.items() if path.suffix == ".wandb"]
    assert all("wandb/scatter/v0" in text and "audit/one" not in text for text in charts)
    tables = tables_of({path: text for path, text in written.items() if "media" in path.parts})
    assert tables["standings"]["data"][0][:2] == ["turn_level", False]
    assert [name for name in ("arms", "differences", "notes") if name not in tables] == []


def test_another_run_directory_is_another_run(tmp_path: Path) -> None:
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


def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wandb_opening, "has_credentials", lambda: True)
    said: list[str] = []
    assert possible_mode("online", said.append) == "offline"
    assert [CLOSED_PORT in line and "does not answer" in line for line in said] == [True]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert possible_mode("online", said.append) == "online"


def test_a_run_that_cannot_be_opened_is_not_followed_and_the_audit_goes_on(
    follow: Any, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    def refuse(*arguments: Any, **named: Any) -> None:
        raise wandb.errors.UsageError("no")

    monkeypatch.setattr(wandb, "init", refuse)
    said: list[str] = []
    assert follow(WandbTracker(), said=said).status == "complete"
    assert any("not followed" in line for line in said)
    WandbTracker().log_comparison(board, {}, said.append)
    assert "not followed" in said[-1]
    monkeypatch.undo()
    assert Progress(board.folder / "trackers" / "wandb.json", "").n_logged == 0, "it is logged when it can be"


def test_less_than_no_records_is_refused() -> None:
    with pytest.raises(ValueError, match=r"n_records=-1 .* tracker\.n_records"):
        WandbTracker(n_records=-1)
