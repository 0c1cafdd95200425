"""The process of one cell, wherever it is started: its command, its threads, its log, and how it ended.

Guarantees: the process dies with the one that started it (on Linux), so that no cell goes on writing after its worker
was killed; every attempt adds to the cell's log. Nothing here needs Ray or submitit: what crosses to another machine
is a `Job`, and what comes back is an `Ending`, plain values both.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import hushbot

_DEATH_SIGNAL_OPTION = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_STOP_SECONDS = 10.0
WANTED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""What a person sends who wants a cell of this machine to end; all others are accidents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How to start one cell."""

    request: str
    """Absolute path of the file that holds its configuration."""
    log: str
    """Absolute path of the file that its output is added to."""
    folder: str
    """Working directory: relative paths of the configuration mean the same everywhere."""
    threads: int
    version: str = hushbot.__version__
    """Of the hushbot that asks."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended."""

    problem: str = ""
    """Empty after success."""
    was_killed: bool = False
    """The process or its machine went away: another attempt may well end otherwise."""


def held_to(n_threads: int | None) -> dict[str, str]:
    """Return the environment variables by which a process that is started computes with so many threads."""
    return {"OMP_NUM_THREADS": str(n_threads), "TOKENIZERS_PARALLELISM": "false"}


def start_process(job: Job) -> subprocess.Popen[bytes]:
    """Start a cell with its own threads; its output goes to the log."""
    environment = os.environ | held_to(job.threads)
    command = [sys.executable, "-m", "hushbot.cli", "cell", job.request, "--parent", str(os.getpid())]
    with Path(job.log).open("ab") as sink:
        return subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT, env=environment, cwd=job.folder)


def attend(job: Job) -> Ending:
    """Run a cell on whatever machine this is, and wait for it."""
    host = socket.gethostname()
    if missing := [path for path in (job.request, job.folder) if not Path(path).exists()]:
        return Ending(
            f"{host} does not see {missing[0]}; start from a folder that all machines share, with runs_dir and "
            "comparison in it"
        )
    if hushbot.__version__ != job.version:
        return Ending(f"{host} has hushbot {hushbot.__version__}, not {job.version}; install the same on all machines")
    with Path(job.log).open("a", encoding="utf-8") as sink:
        sink.write(f"running on {host}, process {os.getpid()}\n")
    process = start_process(job)
    try:
        process.wait()
    finally:
        stop_process(process)
    # A cluster takes its machines back with SIGTERM: nobody's wish that this cell should end.
    return ending_of(process, job.log, wanted=(signal.SIGINT,))


def ending_of(process: subprocess.Popen[bytes], log: str, wanted: Collection[int] = WANTED_SIGNALS) -> Ending:
    """Say how a process that has ended did so."""
    code = process.returncode
    if code == 0:
        return Ending()
    if code < 0 and -code not in wanted:
        return Ending(f"killed by {signal_name(-code)}: {tail(log)}", was_killed=True)
    return Ending(f"ended with code {code}: {tail(log)}")


def signal_name(number: int) -> str:
    """Return what a signal is called; its number, if it has no name."""
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs, and wait for it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_with(parent: int) -> None:
    """Have this process killed as soon as its parent ends, however that happens; only Linux can."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_DEATH_SIGNAL_OPTION, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before this was arranged
        os.kill(os.getpid(), signal.SIGKILL)


def tail(log: str, n_lines: int = 5) -> str:
    """Return the last lines of a log in one."""
    lines = Path(log).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-n_lines:]) or "no output"
