"""Bring the cells of a comparison to their end, a few at a time, wherever they run.

Guarantees: a cell that is done is not run again (its run directory says so); a cell whose process or machine was killed
is tried again from its last checkpoint, at most `retries` times; one that fails stops no other, and the error at the
end names each failure with the end of its log; Ctrl-C stops all of them and keeps what they wrote. Two commands never
run the same comparison at the same time, nor two processes the same run directory: each is locked.

What voids them: file systems without POSIX locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hushbot.errors import HushbotError
from hushbot.launching.worker import Ending, Job

_IF_MEMORY = (
    "if it ran out of memory, set launcher.workers=1 or ask for less at a time (inference.batch_tokens, "
    "trainer.batch_size)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One arm of a comparison under one seed."""

    name: str
    config: Mapping[str, Any]
    path: Path
    """Its run directory."""
    trust: tuple[str, ...] = ()


class Attempt(Protocol):
    """One try at a cell, somewhere."""

    def ending(self) -> Ending | None:
        """Return how it ended; None while it runs."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class Starter(Protocol):
    """Starts attempts in one kind of place."""

    def start(self, job: Job, name: str) -> Attempt:
        """Start one, without waiting for it."""
        ...


class Launcher(Protocol):
    """What `launcher=` chooses: brings cells to their end."""

    def launch(self, cells: Sequence[Cell], folder: Path) -> None:
        """Run all cells; `folder` keeps each one's configuration and log.

        Raises:
            HushbotError: A cell failed; the message holds the end of its log.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many attempts there are, and how often they are looked at."""

    workers: int | None
    """Cells under way at the same time; None submits all of them and leaves the rest to the cluster."""
    threads: int
    retries: int
    """Further attempts at a cell that was killed."""
    verb: str = "started"
    poll_seconds: float = 0.2


@dataclass(slots=True)
class _Task:
    """A cell under way."""

    cell: Cell
    job: Job
    attempt: Attempt
    began: float
    n_tries: int = 1
    seen: int = 0
    """Bytes of the log that were passed on."""


def run_grid(cells: Sequence[Cell], folder: Path, starter: Starter, pace: Pace) -> None:
    """Run all cells; `folder` keeps each one's configuration and log.

    Raises:
        HushbotError: A cell failed; the message holds the end of its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    waiting, tasks, failures = list(cells), list[_Task](), list[str]()
    with _locked(folder):
        try:
            while waiting or tasks:
                while waiting and (pace.workers is None or len(tasks) < pace.workers):
                    tasks.append(_begin(waiting.pop(0), folder, starter, pace))
                for task in list(tasks):
                    _follow(task)
                    ending = task.attempt.ending()
                    if ending is None:
                        continue
                    _follow(task)
                    if not _goes_on(task, ending, starter, pace, failures):
                        tasks.remove(task)
                time.sleep(pace.poll_seconds)
        finally:
            _stop(tasks)
    if failures:
        raise HushbotError("; ".join(failures) + f"; logs are in {folder}; the same command runs only what is missing")


def _begin(cell: Cell, folder: Path, starter: Starter, pace: Pace) -> _Task:
    stem = cell.path.name
    request, log = folder / f"{stem}.json", folder / f"{stem}.log"
    content = {"config": cell.config, "path": str(cell.path), "trust": cell.trust}
    request.write_text(json.dumps(content, indent=1), encoding="utf-8")
    log.write_bytes(b"")
    job = Job(request=str(request.resolve()), log=str(log.resolve()), folder=str(Path.cwd()), threads=pace.threads)
    say(f"{cell.name}: {pace.verb}, {cell.path}")
    return _Task(cell, job, starter.start(job, stem), time.monotonic())


def _goes_on(task: _Task, ending: Ending, starter: Starter, pace: Pace, failures: list[str]) -> bool:
    """Tell how an attempt ended; start the next one if that may help, and say whether it did."""
    name, tries = task.cell.name, f"{task.n_tries} of {pace.retries + 1} tries"
    if not ending.problem:
        say(f"{name}: done after {time.monotonic() - task.began:.0f} s")
        return False
    if ending.was_killed and task.n_tries <= pace.retries:
        say(f"{name}: {ending.problem}; that was {tries}, it goes on from its last checkpoint")
        task.attempt = starter.start(task.job, task.cell.path.name)
        task.n_tries += 1
        return True
    told = f"{name} {ending.problem}" + (f" ({tries})" if task.n_tries > 1 else "")
    failures.append(f"{told}, {_IF_MEMORY}" if ending.was_killed else told)
    say(f"{name}: failed after {time.monotonic() - task.began:.0f} s")
    return False


def _stop(tasks: Sequence[_Task]) -> None:
    """End what still runs; an attempt that cannot be ended keeps no other from it."""
    with contextlib.ExitStack() as stack:
        for task in tasks:
            stack.callback(task.attempt.stop)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder against another command for as long as cells run."""
    with (folder / ".lock").open("a+", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            raise HushbotError(
                f"{folder} is in use by process {owner}; wait for that command to end, or set another comparison="
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


def _follow(task: _Task) -> None:
    """Pass on what a cell has logged since the last look."""
    with Path(task.job.log).open("rb") as source:
        source.seek(task.seen)
        new = source.read()
    whole = new[: new.rfind(b"\n") + 1]
    task.seen += len(whole)
    for line in whole.decode(errors="replace").splitlines():
        if line.strip():
            say(f"{task.cell.name}: {line.rstrip()}")


def say(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)
