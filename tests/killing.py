"""A nursery of commands that are killed as told: it imports everything once and forks for each command.

A request is a line of JSON on stdin, its answer a line of JSON on stdout. `hushbot` runs in the child exactly as from
the command line; the cells of a comparison run in the same process (`InProcess`), so that one signal meets all there
is. Where in its work a child is stands in memory that it shares with the nursery: what a signal met is known.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.001
WRITES = ("open", "os.chmod", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
"""Events by which Python tells that it is about to change a file or folder."""
STEPS = (
    "between steps", "starting", "training", "saving", "utility", "untargeted_extraction", "membership", "records",
    "report", "card", "page", "comparing",
)  # fmt: skip
ASKING = ("", ", sampling", ", scoring")
"""What a step asks of the bot just now."""


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """A launcher that runs cells one after the other where it is."""

    def launch(self, cells: Sequence[Any], folder: Path) -> None:
        from hushbot.commands import train

        for cell in cells:
            train.run(cell.config, cell.path, cell.trust)


class Watched:
    """A child's account of where it is; it dies before the write, or at the end of the step, that it was told.

    Args:
        shared: Two bytes: a step and what it asks.
        folder: Whose changes are counted as writes.
        kill: When to die: in which `step`, and before which of its `writes` or after how many `seconds`.
    """

    def __init__(self, shared: mmap.mmap, folder: str, kill: dict[str, Any]) -> None:
        self.shared, self.folder, self.kill = shared, folder, kill
        self.writes: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.since = time.monotonic()
        sys.addaudithook(self.look)

    def look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in WRITES or not isinstance(arguments[0], (str, os.PathLike)):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if not os.path.abspath(arguments[0]).startswith(self.folder):
            return
        step = STEPS[self.shared[0]]
        self.writes[step] += 1
        if step == self.kill.get("step") and self.writes[step] == self.kill.get("writes"):
            os.kill(os.getpid(), signal.SIGKILL)

    def go(self, step: int, asking: int) -> None:
        now = time.monotonic()
        self.seconds[place(self.shared)] += now - self.since
        self.since = now
        self.shared[:2] = bytes((step, asking))

    def marks(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does the same and says where it is meanwhile."""

        @functools.wraps(call)
        def marked(*given: Any, **named: Any) -> Any:
            before = self.shared[0], self.shared[1]
            if f", {name}" in ASKING:
                self.go(before[0], ASKING.index(f", {name}"))
            elif STEPS[before[0]] != "comparing":  # which writes a page, too
                self.go(STEPS.index(name), 0)
            try:
                return call(*given, **named)
            finally:
                if "seconds" in self.kill and self.kill["step"] == name:  # the moment has not come: now, or never
                    os.kill(os.getpid(), signal.SIGKILL)
                self.go(*before)

        return marked


def place(shared: mmap.mmap) -> str:
    return STEPS[shared[0]] + ASKING[shared[1]]


def mark_steps(watched: Watched) -> None:
    """Have every step of a command say where it is."""
    import hushbot.training.backbone
    import hushbot.training.fit
    from hushbot.evaluation import report, suite
    from hushbot.run import RunDirectory
    from hushbot.targets.local import LocalTarget

    for owner, function, name in (
        (suite, "open_run", "starting"),
        (hushbot.training.fit, "fit", "training"),
        (hushbot.training.backbone, "save_model", "saving"),
        (suite, "measure_utility", "utility"),
        (RunDirectory, "write_records", "records"),
        (RunDirectory, "write_report", "report"),
        (suite, "write_card", "card"),
        (report, "write_page", "page"),
        (report, "write_comparison", "comparing"),
        (LocalTarget, "sample", "sampling"),
        (LocalTarget, "logprobs", "scoring"),
        (LocalTarget, "token_statistics", "scoring"),
    ):
        setattr(owner, function, watched.marks(name, getattr(owner, function)))
    attacked = suite.attacked
    names = {"UntargetedExtraction": "untargeted_extraction", "Membership": "membership"}
    suite.attacked = lambda attack, *given: watched.marks(names[type(attack).__name__], attacked)(attack, *given)


def child(asked: dict[str, Any], shared: mmap.mmap) -> None:
    from hushbot.cli import main

    os.chdir(asked["folder"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    watched = Watched(shared, asked["folder"], asked["kill"])
    mark_steps(watched)
    code = main(asked["arguments"])
    watched.go(0, 0)
    print("spent=" + json.dumps({"seconds": watched.seconds, "writes": watched.writes}), flush=True)
    os._exit(code)


def attend(pid: int, asked: dict[str, Any], shared: mmap.mmap) -> dict[str, Any]:
    """Wait for a child; kill it once it has been so many seconds where it is to be killed."""
    left, where, before = asked["kill"].get("seconds"), asked["kill"].get("place"), time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return {"code": os.waitstatus_to_exitcode(status), "place": place(shared)}
        now = time.monotonic()
        if left is not None and place(shared) == where:
            left -= now - before
            if left <= 0:
                os.kill(pid, signal.SIGKILL)
                left = None
        before = now
        time.sleep(POLL_SECONDS)


def main() -> None:
    import hushbot.evaluation.making
    import hushbot.evaluation.report
    import hushbot.evaluation.suite
    import hushbot.targets.local
    import hushbot.training.loop  # noqa: F401
    from hushbot.corpora import bookings

    # Read once for all commands, and not touched by any: a corpus is frozen.
    bookings.read_bookings = functools.cache(bookings.read_bookings)
    bookings.load_bookings()
    for line in sys.stdin:
        asked = json.loads(line)
        Path(asked["log"]).write_text("")
        shared = mmap.mmap(-1, 2)
        pid = os.fork()
        if pid == 0:
            try:
                child(asked, shared)
            finally:
                os._exit(1)
        print(json.dumps(attend(pid, asked, shared)), flush=True)


if __name__ == "__main__":
    main()
