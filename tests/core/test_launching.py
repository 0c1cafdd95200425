"""Cells in processes of their own: all are tried, failures are told with their log, workers are bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hushbot.errors import HushbotError
from hushbot.launching import Cell, launch


def test_every_cell_is_tried_and_each_failure_told(tmp_path: Path) -> None:
    # A configuration without components is refused by the cell itself: the cheapest way for one to fail.
    cells = [Cell(name=f"arm {i}", config={"recipe": {}, "fit": True}, path=tmp_path / f"run{i}") for i in range(2)]
    with pytest.raises(HushbotError) as caught:
        launch(cells, tmp_path / "cells", workers=2, threads=1)
    message = str(caught.value)
    assert "arm 0 ended with code" in message
    assert "arm 1 ended with code" in message
    for i in range(2):
        assert (tmp_path / "cells" / f"run{i}.log").stat().st_size > 0
        assert json.loads((tmp_path / "cells" / f"run{i}.json").read_text())["path"].endswith(f"run{i}")


def test_no_cells_is_nothing_to_do(tmp_path: Path) -> None:
    launch([], tmp_path / "cells", workers=1, threads=1)
    assert list((tmp_path / "cells").iterdir()) == []


def test_workers_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(HushbotError, match=r"launcher\.workers=0"):
        launch([], tmp_path, workers=0, threads=1)
