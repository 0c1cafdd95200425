"""Cells in processes of this machine: all are tried, and each failure is told with the end of its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hushbot.errors import ConfigError, HushbotError
from hushbot.launching import Cell, LocalLauncher


def test_every_cell_is_tried_and_each_failure_told(tmp_path: Path) -> None:
    # A configuration without components is refused by the cell itself: the cheapest way for one to fail.
    cells = [Cell(name=f"arm {i}", config={"recipe": {}, "fit": True}, path=tmp_path / f"run{i}") for i in range(2)]
    with pytest.raises(HushbotError) as caught:
        LocalLauncher().launch(cells, tmp_path / "cells")
    message = str(caught.value)
    assert "arm 0 ended with code" in message
    assert "arm 1 ended with code" in message
    for i in range(2):
        assert (tmp_path / "cells" / f"run{i}.log").stat().st_size > 0
        assert json.loads((tmp_path / "cells" / f"run{i}.json").read_text())["path"].endswith(f"run{i}")


def test_counts_must_be_positive() -> None:
    with pytest.raises(ConfigError) as caught:
        LocalLauncher(workers=0, threads=0, retries=-1)
    assert caught.value.problems == (
        "launcher.workers=0 must be at least 1",
        "launcher.threads=0 must be at least 1",
        "launcher.retries=-1 must be at least 0",
    )
