"""A comparison on Ray, through submitit and on this machine: the same to the last bit, killed workers included."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc for what to kill"),
]

MICRO = (
    "data=bookings",
    "backbone=tiny",
    "split.members=8",
    "split.nonmembers=8",
    "split.calibration=2",
    "split.controls=2",
    "trainer.max_epochs=2",
    "trainer.batch_size=4",
    "trainer.checkpoint_every_n_steps=1",
    "attack=[membership]",
    "attack.membership.n_draws=100",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=20",
    "utility.responses=false",
    "arms=[turn_level]",
)
TIMES = {"created", "seconds", "seconds_per_turn", "peak_memory_mb"}
RAY = ("launcher=ray",)
SLURM = ("launcher=slurm", "launcher.cluster=local")
PATIENCE = 900.0
"""Seconds that a busy machine may take for any step."""
NEEDS = {RAY: "ray", SLURM: "submitit"}


@dataclass
class Comparison:
    """One `hushbot compare` in a folder of its own, as it goes on."""

    folder: Path
    launcher: tuple[str, ...]

    @contextlib.contextmanager
    def started(self) -> Iterator[subprocess.Popen[str]]:
        """Start the command; whatever a failed test leaves of it ends with the block."""
        command = [sys.executable, "-m", "hushbot.cli", "compare", *MICRO, *self.launcher]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def find(self, pattern: str) -> Path | None:
        return next(iter(self.folder.glob(pattern)), None)

    def result(self) -> tuple[Any, dict[str, bytes]]:
        """Return the report, times apart, and every record and weight."""
        (run,) = (self.folder / "runs").glob("turn_level-*")
        files = [*run.glob("records/*.parquet"), *run.glob("model/*.safetensors"), *run.glob("manifest.json")]
        assert len(files) == 4
        return untimed(json.loads((run / "report.json").read_text())), {path.name: path.read_bytes() for path in files}


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: untimed(inner) for key, inner in value.items() if key not in TIMES}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def wait_for(ask: Callable[[], Any], process: subprocess.Popen[str], seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.02)
    return answer


def process_of(comparison: Comparison) -> int | None:
    """Return the process that runs the cell, or on a cluster the worker that waits for it."""
    pattern = re.compile(rf"hushbot\.cli cell .*{re.escape(str(comparison.folder))}")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if pattern.search(line):
            return parent if comparison.launcher else int(entry.name)
    return None


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, bytes]]:
    return finished(Comparison(tmp_path_factory.mktemp("undisturbed"), ()))


def finished(comparison: Comparison) -> tuple[Any, dict[str, bytes]]:
    """Run a command to its end and return what it came to."""
    with comparison.started() as process:
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said
    return comparison.result()


@pytest.mark.parametrize("launcher", [(), RAY, SLURM], ids=["local", "ray", "slurm"])
def test_a_worker_killed_in_training_goes_on_elsewhere_with_the_same_result(
    launcher: tuple[str, ...], undisturbed: tuple[Any, dict[str, bytes]], tmp_path: Path
) -> None:
    if launcher in NEEDS:
        pytest.importorskip(NEEDS[launcher], reason=f"needs {NEEDS[launcher]}, an extra")
    comparison = Comparison(tmp_path, launcher)
    with comparison.started() as process:
        wait_for(lambda: comparison.find("runs/*/checkpoints/last.ckpt"), process)
        os.kill(wait_for(lambda: process_of(comparison), process), signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert "that was 1 of 3 tries, it goes on from its last checkpoint" in said
    assert said.count("training turn_level on 8 dialogues") == 2
    assert comparison.result() == undisturbed


def test_ctrl_c_and_kill_leave_no_process_and_the_same_command_goes_on(
    undisturbed: tuple[Any, dict[str, bytes]], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'hushbot[ray]'")
    comparison = Comparison(tmp_path, RAY)
    for sent, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with comparison.started() as process:
            wait_for(lambda: comparison.find("runs/*/config.yaml"), process)
            wait_for(lambda: process_of(comparison), process)
            process.send_signal(sent)
            said = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == code, said
        deadline = time.monotonic() + PATIENCE
        while process_of(comparison) is not None:
            assert time.monotonic() < deadline, f"the cell outlives {sent.name}"
            time.sleep(0.1)
    # Where it goes on is free, too.
    assert finished(Comparison(tmp_path, ())) == undisturbed
