"""Cells brought to their end by attempts that follow a script: tries are counted, failures told, nothing is left."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hushbot.errors import HushbotError
from hushbot.launching.grid import Cell, Pace, run_grid
from hushbot.launching.worker import Ending, Job

DONE, KILLED, FAILED = (
    Ending(),
    Ending("killed by SIGKILL: no output", was_killed=True),
    Ending("ended with code 1: oh"),
)


@dataclass
class Scripted:
    """Attempts whose endings are given in advance, per cell; an attempt of a cell without any runs for ever."""

    endings: dict[str, list[Ending]]
    started: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    looks: int = 0
    patience: int = 1000

    def start(self, job: Job, name: str) -> ScriptedAttempt:
        self.started.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        with Path(job.log).open("a", encoding="utf-8") as log:
            log.write(f"try {self.started.count(name)}\nhalf a line")
        return ScriptedAttempt(self, name)


@dataclass
class ScriptedAttempt:
    starter: Scripted
    name: str

    def ending(self) -> Ending | None:
        self.starter.looks += 1
        if self.starter.looks > self.starter.patience:
            raise KeyboardInterrupt
        left = self.starter.endings.get(self.name)
        if not left:
            return None
        self.starter.under_way -= 1
        return left.pop(0)

    def stop(self) -> None:
        self.starter.stopped.append(self.name)


def pace(workers: int | None = None, retries: int = 2) -> Pace:
    return Pace(workers=workers, threads=3, retries=retries, poll_seconds=0)


def cells(tmp_path: Path, names: Sequence[str]) -> list[Cell]:
    return [Cell(name=f"arm {name}", config={"seed": 0}, path=tmp_path / name, trust=("mine",)) for name in names]


def test_each_cell_runs_once_and_never_more_than_allowed_at_the_same_time(tmp_path: Path) -> None:
    starter = Scripted({name: [DONE] for name in "abcde"})
    run_grid(cells(tmp_path, "abcde"), tmp_path / "cells", starter, pace(workers=2))
    assert starter.started == list("abcde")
    assert starter.most == 2
    assert starter.stopped == []
    request = json.loads((tmp_path / "cells" / "a.json").read_text(encoding="utf-8"))
    assert request == {"config": {"seed": 0}, "path": str(tmp_path / "a"), "trust": ["mine"]}


def test_without_a_limit_all_are_submitted_at_once(tmp_path: Path) -> None:
    starter = Scripted({name: [DONE] for name in "abcde"})
    run_grid(cells(tmp_path, "abcde"), tmp_path / "cells", starter, pace())
    assert starter.most == 5


def test_a_killed_cell_is_tried_again_and_its_log_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    starter = Scripted({"a": [KILLED, KILLED, DONE]})
    run_grid(cells(tmp_path, "a"), tmp_path / "cells", starter, pace(retries=2))
    assert starter.started == ["a", "a", "a"]
    said = capsys.readouterr().err
    assert "arm a: killed by SIGKILL: no output; that was 1 of 3 tries, it goes on from its last checkpoint" in said
    assert "that was 2 of 3 tries" in said
    assert said.index("arm a: try 1") < said.index("arm a: half a linetry 2") < said.index("arm a: done")


def test_tries_are_limited_and_the_last_failure_says_how_many_there_were(tmp_path: Path) -> None:
    starter = Scripted({"a": [KILLED] * 9})
    with pytest.raises(HushbotError, match=r"arm a killed by SIGKILL: no output \(2 of 2 tries\)"):
        run_grid(cells(tmp_path, "a"), tmp_path / "cells", starter, pace(retries=1))
    assert starter.started == ["a", "a"]


def test_a_failed_cell_is_not_tried_again_and_stops_no_other(tmp_path: Path) -> None:
    starter = Scripted({"a": [FAILED], "b": [DONE], "c": [FAILED]})
    with pytest.raises(HushbotError, match="arm a ended with code 1: oh; arm c ended with code 1: oh; logs are in"):
        run_grid(cells(tmp_path, "abc"), tmp_path / "cells", starter, pace(workers=1))
    assert starter.started == ["a", "b", "c"]


def test_ctrl_c_stops_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    starter = Scripted({"a": [DONE]}, patience=7)
    with pytest.raises(KeyboardInterrupt):
        run_grid(cells(tmp_path, "abcd"), tmp_path / "cells", starter, pace(workers=2))
    assert starter.started == ["a", "b", "c"]
    assert sorted(starter.stopped) == ["b", "c"]


def test_an_attempt_that_cannot_be_stopped_keeps_no_other_from_it(tmp_path: Path) -> None:
    @dataclass
    class Stubborn(Scripted):
        def start(self, job: Job, name: str) -> ScriptedAttempt:
            attempt = super().start(job, name)
            return StubbornAttempt(self, name) if name == "b" else attempt

    class StubbornAttempt(ScriptedAttempt):
        def stop(self) -> None:
            raise HushbotError("the cluster is gone")

    starter = Stubborn({}, patience=5)
    with pytest.raises(HushbotError, match="the cluster is gone"):
        run_grid(cells(tmp_path, "abc"), tmp_path / "cells", starter, pace())
    assert sorted(starter.stopped) == ["a", "c"]


def test_two_commands_never_run_the_same_comparison(tmp_path: Path) -> None:
    folder = tmp_path / "cells"
    folder.mkdir()
    with (folder / ".lock").open("w", encoding="utf-8") as held:
        held.write("4711")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        starter = Scripted({"a": [DONE]})
        with pytest.raises(HushbotError, match="in use by process 4711"):
            run_grid(cells(tmp_path, "a"), folder, starter, pace())
        assert starter.started == []
    run_grid(cells(tmp_path, "a"), folder, starter, pace())
    assert starter.started == ["a"]


def test_no_cells_is_nothing_to_do(tmp_path: Path) -> None:
    run_grid([], tmp_path / "cells", Scripted({}), pace())
    assert [path.name for path in (tmp_path / "cells").iterdir()] == [".lock"]
