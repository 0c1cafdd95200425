"""One run in two processes, as a user starts it: the curve, the numbers and the files of one process, and one error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hushbot.cli import main

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent
MICRO = (
    "train",
    "data=bookings",
    "backbone=tiny",
    "seed=0",
    "split.members=7",
    "split.nonmembers=7",
    "split.calibration=3",
    "split.controls=2",
    "trainer.accelerator=cpu",
    "trainer.max_epochs=2",
    "trainer.batch_size=4",
    "trainer.num_threads=1",
    "attack=[membership]",
    "attack.membership.n_draws=200",
    "utility.max_new_tokens=40",
    "utility.latency_turns=0",
)
"""Seven members in batches of four and three; seven dialogues to measure on."""
TWO = ("trainer.devices=2", "inference.processes=2")


def hushbot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS / "core")}
    command = [sys.executable, "-m", "hushbot.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_two_processes_make_the_run_of_one(tmp_path: Path) -> None:
    one = hushbot(tmp_path, *MICRO, "run=one")
    two = hushbot(tmp_path, *MICRO, *TWO, "run=two")
    assert (one.returncode, two.returncode) == (0, 0), two.stderr
    alone, joint = (read(tmp_path / name / "report.json") for name in ("one", "two"))
    assert joint["status"] == "complete"
    for first, second in zip(alone["training"], joint["training"], strict=True):
        for name in ("training_loss", "calibration_loss"):
            assert second[name] == pytest.approx(first[name], rel=1e-5)
    assert joint["run"]["tokens_trained"] == alone["run"]["tokens_trained"]
    assert joint["data"] == alone["data"]
    for name, estimate in alone["utility"].items():
        assert joint["utility"][name]["value"] == pytest.approx(estimate["value"], rel=1e-4), name
    for key in ("dialogues_used", "turns_counted", "turns_unparsed"):
        assert joint["utility_protocol"][key] == alone["utility_protocol"][key]
    assert joint["attacks"].keys() == alone["attacks"].keys() == {"membership"}
    assert any(note.startswith("trained by 2 processes together (ddp)") for note in joint["notes"])
    files = [sorted(p.relative_to(tmp_path / r).as_posix() for p in (tmp_path / r).rglob("*")) for r in ("one", "two")]
    assert files[0] == files[1]
    # Whatever a process prints, the others print nothing: one line per epoch, one of each kind.
    for said in ("epoch 1/2", "epoch 2/2", "training turn_level on 7 dialogues", "measuring the utility of"):
        assert two.stderr.count(said) == one.stderr.count(said) == 1
    assert "Traceback" not in two.stderr
    for run in (one, two):
        assert run.stdout.startswith("utility and leakage"), run.stdout  # no library says anything before it

    # The same run with another number of processes is the same run: nothing is done again, nothing is refused.
    again = hushbot(tmp_path, *MICRO, "run=two")
    assert again.returncode == 0, again.stderr
    assert read(tmp_path / "two" / "report.json") == joint


@pytest.mark.long
def test_an_error_in_one_process_ends_the_run_with_its_message(tmp_path: Path) -> None:
    failing = ("--trust=joining", "recipe.turn_level._target_=joining.FailsBeside")
    done = hushbot(tmp_path, *MICRO, *TWO, *failing, "run=failed")
    assert done.returncode == 1
    assert "is damaged; mend it" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert read(tmp_path / "failed" / "report.json")["status"] == "failed"


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_a_run_that_is_told_to_end_leaves_no_process_and_one_process_finishes_it(tmp_path: Path) -> None:
    command = (*MICRO, "trainer.max_epochs=4", "utility.max_dialogues=1", "run=told")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-m", "hushbot.cli", *command, *TWO]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment) as first:
        assert first.stderr is not None
        assert any(line.startswith("epoch 2/4") for line in first.stderr)  # so the first is saved
        others = children(first.pid)
        first.terminate()
        assert "Traceback" not in first.stderr.read()
    assert (first.returncode, len(others)) == (128 + signal.SIGTERM, 1)
    deadline = time.monotonic() + 30
    while any("ranks" in cmdline(pid) for pid in others):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    done = hushbot(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert "epoch 1/4" not in done.stderr  # from its checkpoint on
    assert [epoch["epoch"] for epoch in read(tmp_path / "told" / "report.json")["training"]] == [1, 2, 3, 4]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started as ranks."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and "hushbot.launching.ranks\x001\x00" in cmdline(int(folder.name)):
            stat = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            found += [int(folder.name)] if int(stat[1]) == pid else []
    return found


def cmdline(pid: int) -> str:
    """Return how a process was started; nothing of one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.strategy=deepspeed_stage_2_offload", "trainer.devices=2"], "must be one of auto, ddp, fsdp, deepsp"),
        (["trainer.strategy=fsdp", "trainer.devices=2", "recipe=dp_sgd"], "set trainer.strategy=ddp"),
        (["trainer.devices=0"], "devices=0 must be at least 1"),
        (["inference.processes=0"], "inference.processes=0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_read(
    overrides: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "train", *overrides]) == 2
    assert said in capsys.readouterr().err
