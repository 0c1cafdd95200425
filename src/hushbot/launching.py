"""Run the cells of a comparison on this machine, a few at a time, each in its own process.

Guarantees: a cell that is done is not run again (its run directory says so), a killed cell continues from its last
checkpoint when the same command is given again, and one failed cell stops no other: all of them are tried, what they
wrote stays, and the error at the end names each failure with the end of its log.

A process per cell, with one thread each, isolates memory and random state and is faster on a small machine than
several threads in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushbot.errors import HushbotError

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm of a comparison under one seed."""

    name: str
    config: Mapping[str, Any]
    path: Path
    """Its run directory."""
    trust: tuple[str, ...] = ()


@dataclass(slots=True)
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    seen: int = 0


def launch(cells: Sequence[Cell], folder: Path, *, workers: int, threads: int) -> None:
    """Run all cells; `folder` keeps each one's configuration and log.

    Raises:
        HushbotError: A cell failed; the message holds the end of its log.
    """
    if workers < 1 or threads < 1:
        raise HushbotError(f"launcher.workers={workers} and launcher.threads={threads} must be at least 1")
    folder.mkdir(parents=True, exist_ok=True)
    waiting, running, failures = list(cells), list[_Running](), list[str]()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_start(waiting.pop(0), folder, threads))
            for job in list(running):
                _follow(job)
                if job.process.poll() is None:
                    continue
                running.remove(job)
                _follow(job)
                if job.process.returncode != 0:
                    failures.append(f"{job.cell.name} ended with code {job.process.returncode}: {_tail(job.log)}")
                else:
                    _say(f"{job.cell.name}: done after {time.monotonic() - job.started:.0f} s")
            time.sleep(POLL_SECONDS)
    finally:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    if failures:
        raise HushbotError("; ".join(failures) + f"; logs are in {folder}; the same command runs only what is missing")


def _start(cell: Cell, folder: Path, threads: int) -> _Running:
    stem = cell.path.name
    request, log = folder / f"{stem}.json", folder / f"{stem}.log"
    content = {"config": cell.config, "path": str(cell.path), "trust": cell.trust}
    request.write_text(json.dumps(content, indent=1), encoding="utf-8")
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
    _say(f"{cell.name}: started, {cell.path}")
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "hushbot.cli", "cell", str(request)],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    return _Running(cell, process, log, time.monotonic())


def _follow(job: _Running) -> None:
    """Pass on what a cell has logged since the last look."""
    with job.log.open("rb") as source:
        source.seek(job.seen)
        new = source.read()
    whole = new[: new.rfind(b"\n") + 1]
    job.seen += len(whole)
    for line in whole.decode(errors="replace").splitlines():
        if line.strip():
            _say(f"{job.cell.name}: {line.rstrip()}")


def _tail(log: Path, n_lines: int = 5) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-n_lines:]) or "no output"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
