"""Cells as jobs, through submitit's executor for one machine: requests, losses, requeueing, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import ConfigError, HushbotError
from hushbot.launching import Cell
from hushbot.launching.slurm import SlurmLauncher, _Queue
from hushbot.launching.worker import Job


def test_what_each_job_asks_for() -> None:
    assert SlurmLauncher(threads=4, hours=1.5).request == {
        "timeout_min": 90, "nodes": 1, "tasks_per_node": 1, "cpus_per_task": 4, "slurm_additional_parameters": {},
    }  # fmt: skip
    more = SlurmLauncher(gpus=2, memory_gb=12, partition="gpu", options={"account": "mine"}).request
    assert more["gpus_per_node"] == 2
    assert more["mem_gb"] == 12
    assert more["slurm_partition"] == "gpu"
    assert more["slurm_additional_parameters"] == {"account": "mine"}


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        SlurmLauncher(threads=0, gpus=-1)
    assert caught.value.problems == ("launcher.threads=0 must be at least 1", "launcher.gpus=-1 must be at least 0")
    with pytest.raises(ConfigError, match=r"launcher\.hours=0"):
        SlurmLauncher(hours=0)


def cell(tmp_path: Path) -> Cell:
    return Cell(name="arm", config={"recipe": {}, "fit": True}, path=tmp_path / "run")


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(HushbotError, match=r"pip install 'hushbot\[slurm\]'"):
        SlurmLauncher().launch([cell(tmp_path)], tmp_path / "cells")


# submitit's executor for this machine

needs_submitit = pytest.mark.integration


@pytest.fixture
def queue(tmp_path: Path) -> _Queue:
    pytest.importorskip("submitit", reason="needs submitit: pip install 'hushbot[slurm]'")
    return _Queue(SlurmLauncher(cluster="local"), tmp_path / "slurm")


def sleeping_job(tmp_path: Path) -> Job:
    """Return a cell that waits for its configuration until somebody ends it."""
    os.mkfifo(tmp_path / "request.json")
    (tmp_path / "log").touch()
    return Job(request=str(tmp_path / "request.json"), log=str(tmp_path / "log"), folder=str(tmp_path), threads=1)


def pids_of(tmp_path: Path, n_starts: int = 1) -> tuple[int, int] | None:
    """Return the last worker's process and its cell's, once it has started so many times."""
    found = re.findall(r"process (\d+)", (tmp_path / "log").read_text(encoding="utf-8"))
    if len(found) < n_starts:
        return None
    children = Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text(encoding="utf-8").split()
    return (int(found[-1]), int(children[0])) if children else None


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]


def wait_for(ask: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.05)
    return answer


@needs_submitit
def test_a_failing_cell_says_what_it_said(queue: _Queue, tmp_path: Path) -> None:
    with pytest.raises(HushbotError, match=r"arm ended with code 1: .*logs are in"):
        SlurmLauncher(cluster="local").launch([cell(tmp_path)], tmp_path / "cells")
    assert "running on" in (tmp_path / "cells" / "run.log").read_text(encoding="utf-8")


@needs_submitit
def test_a_job_that_gives_its_place_up_is_run_again_and_stopping_ends_it(queue: _Queue, tmp_path: Path) -> None:
    attempt = queue.start(sleeping_job(tmp_path), "one")
    worker, first = wait_for(lambda: pids_of(tmp_path))
    os.kill(worker, signal.SIGUSR2)  # what Slurm sends before it takes the machine
    _, second = wait_for(lambda: pids_of(tmp_path, n_starts=2))
    assert first != second
    assert not is_alive(first)
    assert attempt.ending() is None
    attempt.stop()
    wait_for(lambda: not is_alive(second), seconds=15)


@needs_submitit
def test_a_lost_job_takes_its_cell_with_it_and_is_told_apart(queue: _Queue, tmp_path: Path) -> None:
    attempt = queue.start(sleeping_job(tmp_path), "one")
    worker, inner = wait_for(lambda: pids_of(tmp_path))
    os.kill(worker, signal.SIGKILL)
    ending = wait_for(attempt.ending)
    assert ending.was_killed
    assert ending.problem.startswith("lost its job")
    assert not is_alive(inner)


@needs_submitit
def test_without_slurm_the_way_to_try_it_out_is_named(
    queue: _Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HushbotError, match=r"job of run was refused.*launcher\.cluster=local"):
        SlurmLauncher().launch([cell(tmp_path)], tmp_path / "cells")
