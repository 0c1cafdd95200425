"""A nursery of processes that are killed as told: it imports everything once and forks for each command.

A request is a line of JSON on stdin, its answer a line on stdout. `hushbot` runs in the child exactly as from the
command line; the cells of a comparison run in the same process (`InProcess`), so that one signal meets all there is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.002
WRITES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
"""Events by which Python tells that it is about to change a file or folder."""


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """A launcher that runs cells one after the other where it is."""

    def launch(self, cells: Sequence[Any], folder: Path) -> None:
        from hushbot.commands import train

        for cell in cells:
            train.run(cell.config, cell.path, cell.trust)


def count_writes(folder: str, die_at: int | None) -> list[int]:
    """Count what this process is about to write below a folder, and kill it before the write of a number."""
    count = [0]

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in WRITES or not str(arguments[0]).startswith(folder):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        count[0] += 1
        if count[0] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return count


def child(asked: dict[str, Any]) -> int:
    from hushbot.cli import main

    os.chdir(asked["folder"])
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    count = count_writes(asked["folder"], asked.get("die_at"))
    code = main(asked["arguments"])
    print(f"writes={count[0]}", file=sys.stderr, flush=True)
    return code


def attend(pid: int, asked: dict[str, Any]) -> int:
    """Wait for a child; kill it so many seconds after its log says something."""
    phrase, due = asked.get("phrase"), None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if phrase and due is None and phrase in Path(asked["log"]).read_text(errors="replace"):
            due = time.monotonic() + asked["seconds"]
        if due is not None and time.monotonic() >= due:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def main() -> None:
    import hushbot.evaluation.making
    import hushbot.evaluation.report
    import hushbot.evaluation.suite
    import hushbot.targets.local
    import hushbot.training.loop  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        Path(asked["log"]).write_text("")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = child(asked)
            finally:
                os._exit(code)
        print(attend(pid, asked), flush=True)


if __name__ == "__main__":
    main()
