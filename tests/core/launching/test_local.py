"""Cells in processes of this machine: all are tried, and each failure is told with the end of its log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hushbot.errors import ConfigError, HushbotError
from hushbot.launching import Cell, LocalLauncher, local
from hushbot.launching.worker import Job


def test_every_cell_is_tried_once_and_each_failure_told(tmp_path: Path) -> None:
    # A refused and a senseless configuration: the cheapest ways for a cell to fail, on purpose and by a bug.
    refused = {"recipe": {"mine": {"_target_": "os.mkdir"}}, "fit": True}
    configs = [refused, {"recipe": {}, "fit": True}]
    cells = [Cell(name=f"arm {i}", config=config, path=tmp_path / f"run{i}") for i, config in enumerate(configs)]
    with pytest.raises(HushbotError) as caught:
        LocalLauncher().launch(cells, tmp_path / "cells")
    message = str(caught.value)
    assert "arm 0 ended with code 2: error: recipe.mine: _target_='os.mkdir' lies outside hushbot" in message
    assert "arm 1 ended with code 1" in message
    assert "tries" not in message  # errors of their own are not tried again
    logs = [(tmp_path / "cells" / f"run{i}.log").read_text(encoding="utf-8") for i in range(2)]
    assert [log.count("Traceback") for log in logs] == [0, 1]
    assert logs[0].count("os.mkdir") == 1
    for i in range(2):
        assert json.loads((tmp_path / "cells" / f"run{i}.json").read_text())["path"].endswith(f"run{i}")


def test_an_arm_that_the_system_kills_each_time_is_given_up_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start(job: Job) -> subprocess.Popen[bytes]:
        end = "kill -9 $$" if job.request.endswith("hungry.json") else "exit 0"
        return subprocess.Popen(["sh", "-c", f"echo trained >> {job.log}; {end}"])

    monkeypatch.setattr(local, "start_process", start)
    cells = [Cell(name=name, config={}, path=tmp_path / name) for name in ("hungry", "modest")]
    with pytest.raises(HushbotError, match=r"hungry killed by SIGKILL: .* \(3 of 3 tries\)") as caught:
        LocalLauncher().launch(cells, tmp_path / "cells")
    assert "ran out of memory" in str(caught.value)
    assert "modest" not in str(caught.value)
    said = capsys.readouterr().err
    assert said.count("hungry: trained") == 3
    assert said.count("modest: trained") == 1
    assert "modest: done" in said


def test_counts_must_be_positive() -> None:
    with pytest.raises(ConfigError) as caught:
        LocalLauncher(workers=0, threads=0, retries=-1)
    assert caught.value.problems == (
        "launcher.workers=0 must be at least 1",
        "launcher.threads=0 must be at least 1",
        "launcher.retries=-1 must be at least 0",
    )
