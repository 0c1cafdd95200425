"""Cells on this machine, a few at a time.

A process per cell, with one thread each, isolates memory and random state and is faster on a small machine than several
threads in one process. What is guaranteed stands in `hushbot.launching.grid`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hushbot.launching.grid import Attempt, Cell, Pace, run_grid
from hushbot.launching.requests import check_requests
from hushbot.launching.worker import Ending, Job, ending_of, start_process, stop_process


@dataclass(frozen=True, kw_only=True)
class LocalLauncher:
    """Run cells as processes of this machine."""

    workers: int = 2
    """Cells at the same time."""
    threads: int = 1
    """Threads of each."""
    retries: int = 2
    """Further attempts at a cell whose process was killed, as by the system where memory ran out."""

    def __post_init__(self) -> None:
        check_requests(self, at_least_one=("workers", "threads"), at_least_zero=("retries",))

    def launch(self, cells: Sequence[Cell], folder: Path) -> None:
        """Run all cells; `folder` keeps each one's configuration and log."""
        run_grid(cells, folder, self, Pace(workers=self.workers, threads=self.threads, retries=self.retries))

    def start(self, job: Job, name: str) -> Attempt:
        """Start one attempt."""
        return _Process(start_process(job), job.log)


@dataclass(frozen=True, slots=True)
class _Process:
    """An attempt on this machine."""

    process: subprocess.Popen[bytes]
    log: str

    def ending(self) -> Ending | None:
        return None if self.process.poll() is None else ending_of(self.process, self.log)

    def stop(self) -> None:
        stop_process(self.process)
