"""kill -9 at many moments of one comparison: the same command always ends with what an undisturbed one measured.

Twenty kills in two folders: before a write drawn at random (configuration, checkpoints, model, records, reports, pages,
comparison), and at a random moment inside training, utility, sampling and scoring. Commands are forked from a process
that has imported everything: a command costs what it does, not the imports.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks a process that has imported torch"),
]

TESTS = Path(__file__).resolve().parent
COMMAND = (
    "compare",
    "--trust=killing",
    "data=bookings",
    "backbone=tiny",
    "split.members=8",
    "split.nonmembers=8",
    "split.calibration=2",
    "split.controls=2",
    "trainer.max_epochs=2",
    "trainer.batch_size=4",
    "trainer.checkpoint_every_n_steps=1",
    "attack=[untargeted_extraction,membership]",
    "attack.untargeted_extraction.n_samples=40",
    "attack.untargeted_extraction.k=20",
    "attack.untargeted_extraction.max_new_tokens=30",
    "attack.membership.n_draws=100",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=20",
    "utility.latency_turns=0",
    "utility.responses=false",
    "arms=[turn_level]",
    "~launcher",
    "+launcher._target_=killing.InProcess",
)
PHASES = ("training turn_level", "measuring the utility", "with untargeted_extraction", "with membership")
KILLS_PER_FOLDER = 10
TIMES = {"created", "seconds", "seconds_per_turn", "peak_memory_mb"}


@dataclass
class Nursery:
    """Where commands are forked and killed."""

    process: subprocess.Popen[str]
    log: Path
    kills: list[str] = field(default_factory=list)
    """The last line that each killed command had said."""

    def run(self, folder: Path, **how: Any) -> int:
        """Run the command in a folder; return its exit code, or minus the signal that killed it."""
        asked = {"arguments": COMMAND, "folder": str(folder), "log": str(self.log), **how}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        if code == -9:
            self.kills.append((self.said().splitlines() or ["nothing said yet"])[-1])
        else:
            assert code == 0, self.said()
        return code

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "killing.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
    )
    yield Nursery(process, tmp_path_factory.mktemp("nursery") / "log")
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Mapping[str, Any]]:
    """Return how many writes a command makes that nobody kills, and what it comes to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    nursery.run(folder)
    (n_writes,) = re.findall(r"^writes=(\d+)$", nursery.said(), flags=re.MULTILINE)
    return int(n_writes), result(folder)


def result(folder: Path) -> dict[str, Any]:
    """Return what a comparison measured: reports and tables without times, records and weights to the last bit."""
    (run,) = (folder / "runs").iterdir()
    files = [*run.glob("records/*.parquet"), *run.glob("model/*.safetensors"), run / "manifest.json"]
    found: dict[str, Any] = {path.name: path.read_bytes() for path in files}
    assert sorted(found) == [
        "manifest.json", "membership.parquet", "model.safetensors", "untargeted_extraction.parquet", "utility.parquet",
    ]  # fmt: skip
    found["report"] = untimed(json.loads((run / "report.json").read_text(encoding="utf-8")))
    for path in (run / "report.html", run / "privacy_card.md", folder / "comparison" / "tradeoff.csv"):
        assert path.stat().st_size > 0
    assert not (run / "checkpoints").exists()
    return found


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: untimed(inner) for key, inner in value.items() if key not in TIMES}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", [0, 1])
def test_a_command_that_is_killed_again_and_again_ends_like_one_that_is_not(
    seed: int, nursery: Nursery, undisturbed: tuple[int, Mapping[str, Any]], tmp_path: Path
) -> None:
    n_writes, expected = undisturbed
    rng = random.Random(seed)
    before = len(nursery.kills)
    phases = list(PHASES)
    while len(nursery.kills) < before + KILLS_PER_FOLDER:
        # Few enough writes that the run is not over before all phases were met.
        nursery.run(tmp_path, die_at=rng.randint(1, n_writes // 8))
        if phases:
            nursery.run(tmp_path, phrase=phases.pop(0), seconds=rng.uniform(0, 0.5))
    assert nursery.run(tmp_path) == 0
    print(f"{len(nursery.kills) - before} kills:", *nursery.kills[before:], sep="\n  ")
    assert result(tmp_path) == expected
