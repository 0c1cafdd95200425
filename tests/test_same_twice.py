"""The same command with the same seed on the same machine: the same report, and the hash that says so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hushbot.cli import main
from hushbot.report_hash import report_sha256

COMMAND = (
    "train",
    "data=bookings",
    "backbone=tiny",
    "recipe=turn_level",
    "split.members=4",
    "split.nonmembers=4",
    "split.calibration=1",
    "split.controls=1",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=4",
    "utility.responses=false",
    "trainer.max_epochs=1",
    "trainer.num_threads=1",
    "attack=[blind]",
    "attack.blind.n_draws=200",
    "attack.blind.n_permutations=99",
)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        # Beside each other, the second would take the first one's model over.
        assert main([*COMMAND, f"seed={seed}", f"run={tmp_path / name / 'run'}"]) == 0
        found = re.search(r"report sha256: ([0-9a-f]{64})", capsys.readouterr().out)
        assert found is not None
        printed[name] = found[1]
        content = json.loads((tmp_path / name / "run" / "report.json").read_text(encoding="utf-8"))
        assert report_sha256(content) == printed[name]  # of the file, not of what is in memory
    assert printed["first"] == printed["second"] != printed["other"]
