"""A comparison on Ray, through submitit and on this machine: the same to the last bit, killed workers included.

Ray is met twice: a cluster that is there already (`launcher.address=auto`), and one that the command starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hushbot.report_hash import report_sha256

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
RAY = ("launcher=ray",)
EXISTING_RAY = ("launcher=ray", "launcher.address=auto")
SLURM = ("launcher=slurm", "launcher.cluster=local")
PATIENCE = 900.0
"""Seconds that a busy machine may take for any step."""
NEEDS = {EXISTING_RAY: "ray", SLURM: "submitit"}


@dataclass
class Comparison:
    """One `hushbot compare` in a folder of its own, as it goes on."""

    folder: Path
    launcher: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

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
            env=os.environ | {"OMP_NUM_THREADS": "1"} | self.environment,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def find(self, pattern: str) -> Path | None:
        return next(iter(self.folder.glob(pattern)), None)

    def result(self) -> tuple[str, dict[str, bytes]]:
        """Return the report's hash, and every record and weight."""
        (run,) = (self.folder / "runs").glob("turn_level-*")
        files = [*run.glob("records/*.parquet"), *run.glob("model/*.safetensors"), run / "manifest.json"]
        assert len(files) == 4
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
        return report_sha256(report), {path.name: path.read_bytes() for path in files}


def wait_for(ask: Callable[[], Any], process: subprocess.Popen[str], seconds: float = PATIENCE) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.01)
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
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, bytes]]:
    return finished(Comparison(tmp_path_factory.mktemp("undisturbed"), ()))


def finished(comparison: Comparison) -> tuple[str, dict[str, bytes]]:
    """Run a command to its end and return what it came to."""
    with comparison.started() as process:
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0, said
    return comparison.result()


@pytest.fixture(scope="module")
def existing_cluster() -> Iterator[Mapping[str, str]]:
    """Start a cluster as its owner does; yield the variables by which commands find it and are let in."""
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # Ray's sockets allow no long path
        ours = {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        options = ("--port=0", "--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats", "--block")
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | ours,
        )
        assert process.stdout is not None
        assert any("Ray runtime started" in line for line in process.stdout)
        yield ours
        process.terminate()
        process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param((), id="local", marks=pytest.mark.long),
        pytest.param(EXISTING_RAY, id="ray"),
        pytest.param(SLURM, id="slurm", marks=pytest.mark.long),
    ],
)
def test_a_worker_killed_in_training_goes_on_elsewhere_with_the_same_result(
    launcher: tuple[str, ...],
    undisturbed: tuple[str, dict[str, bytes]],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if launcher in NEEDS:
        pytest.importorskip(NEEDS[launcher], reason=f"needs {NEEDS[launcher]}, an extra")
    comparison = Comparison(tmp_path, launcher)
    if launcher == EXISTING_RAY:
        comparison.environment = request.getfixturevalue("existing_cluster")
    with comparison.started() as process:
        worker = wait_for(lambda: process_of(comparison), process)
        wait_for(lambda: comparison.find("runs/*/checkpoints/last.ckpt"), process)
        os.kill(worker, signal.SIGKILL)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 0, said
    assert "that was 1 of 3 tries, it goes on from its last checkpoint" in said
    # Not in the words of the first attempt's end, which are repeated: in lines.
    assert said.splitlines().count("turn_level seed 0: training turn_level on 8 dialogues") == 2, said
    assert comparison.result() == undisturbed


@pytest.mark.long
def test_ctrl_c_and_kill_leave_no_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'hushbot[ray]'")
    comparison = Comparison(tmp_path, RAY)
    for sent, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        with comparison.started() as process:
            wait_for(lambda: process_of(comparison), process)
            process.send_signal(sent)
            said = process.communicate(timeout=PATIENCE)[1]
            assert process.returncode == code, said
        deadline = time.monotonic() + PATIENCE
        while process_of(comparison) is not None:
            assert time.monotonic() < deadline, f"the cell outlives {sent.name}"
            time.sleep(0.1)
