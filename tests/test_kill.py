"""kill -9 at random moments of a comparison: the same command always ends with what an undisturbed one measured.

Each folder is a comparison that is killed again and again: inside training, sampling and scoring after a time drawn at
random, and while configuration, checkpoints, model, records, reports, cards, pages and comparison are written before a
write drawn at random. Commands are forked from a process that has imported everything: a command costs what it does,
not the imports. How a killed process of a real launcher is tried again is in `test_grids`.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hushbot.report_hash import report_sha256

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
    "attack.membership.n_permutations=99",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=20",
    "utility.latency_turns=0",
    "utility.responses=false",
    "arms=[base,turn_level]",
    "~launcher",
    "+launcher._target_=killing.InProcess",
)
EXTRACTION = "untargeted_extraction"
MOMENTS = (
    ("starting", "writes", 1 / 2),
    ("utility, sampling", "seconds", 1 / 2),
    ("report", "writes", 1 / 4),  # until here nothing is trained: this is the arm `base`, which is done after that
    ("training", "writes", 1 / 2),
    ("training", "seconds", 1),
    ("saving", "writes", 1 / 2),
    (f"{EXTRACTION}, sampling", "seconds", 1 / 2),
    (f"{EXTRACTION}, scoring", "seconds", 1 / 2),
    ("records", "writes", 1 / 4),
    ("membership, scoring", "seconds", 1 / 2),
    ("card", "writes", 1 / 2),
    ("page", "writes", 1 / 2),
    ("comparing", "seconds", 1),
    ("comparing", "writes", 1),
)
"""Where each command of a folder is killed, in an order in which all can be met; after so many seconds there, or before
such a write, up to this share of what both arms of an undisturbed command come to."""
PHASES = {
    "training": ("training",),
    "sampling": ("utility, sampling", f"{EXTRACTION}, sampling"),
    "scoring": ("utility, scoring", f"{EXTRACTION}, scoring", "membership, scoring"),
    "report writing": ("records", "report", "card", "page"),
    "compare": ("comparing",),
}
TABLES = ("comparisons.csv", "roc.csv")
"""Without times."""


@dataclass
class Nursery:
    """Where commands are forked and killed."""

    process: subprocess.Popen[str]
    log: Path

    def run(self, folder: Path, kill: Mapping[str, Any] | None = None) -> str | None:
        """Run the command in a folder; return the place where it was killed, None if it came to its end."""
        asked = {"arguments": COMMAND, "folder": str(folder), "log": str(self.log), "kill": kill or {}}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if answer["code"] == -9:
            return str(answer["place"])
        assert answer["code"] == 0, self.said()
        return None

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


@dataclass(frozen=True)
class Undisturbed:
    """A command that nobody killed."""

    found: Mapping[str, Any]
    seconds: Mapping[str, float]
    """That it spent at each place."""
    writes: Mapping[str, int]
    """That it made in each step."""

    def moment(self, place: str, unit: str, share: float, rng: random.Random) -> dict[str, Any]:
        """Draw a moment at a place."""
        step = place.partition(",")[0]
        drawn = (
            rng.uniform(0, share * self.seconds[place])
            if unit == "seconds"
            else rng.randint(1, int(share * self.writes[step]))
        )
        return {"place": place, "step": step, unit: drawn}


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert nursery.run(folder) is None
    (spent,) = re.findall(r"^spent=(.*)$", nursery.said(), flags=re.MULTILINE)
    return Undisturbed(result(folder), **json.loads(spent))


def result(folder: Path) -> dict[str, Any]:
    """Return what a comparison came to: which files there are, and what of them no clock decides."""
    found: dict[str, Any] = {"files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))}
    for path in (*folder.rglob("*.parquet"), *folder.rglob("*.safetensors"), *folder.rglob("manifest.json")):
        found[str(path.relative_to(folder))] = path.read_bytes()
    for name in TABLES:
        found[name] = (folder / "comparison" / name).read_bytes()
    for path in folder.rglob("report.json"):
        found[path.parent.name] = report_sha256(json.loads(path.read_text(encoding="utf-8")))
    return found


def finished(folder: Path) -> dict[str, dict[Path, tuple[int, bytes]]]:
    """Return every finished run with its files: when they were written, and what they hold."""
    runs = {}
    for path in folder.glob("runs/*/report.html"):
        files = [file for file in path.parent.rglob("*") if file.is_file() and file.name != ".lock"]
        runs[path.parent.name] = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}
    return runs


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_command_that_is_killed_again_and_again_ends_like_one_that_is_not(
    seed: int, nursery: Nursery, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    rng, places, kept = random.Random(seed), [], {}
    for place, unit, share in MOMENTS:
        kill = undisturbed.moment(place, unit, share, rng)
        for _ in range(6):
            places.append(nursery.run(tmp_path, kill))
            assert places[-1] is not None, f"the command came to its end before {kill}"
            kept = finished(tmp_path) | kept
            if places[-1] == place or unit == "writes":
                break
            kill[unit] /= 2  # the step was over before, on its last line
    assert nursery.run(tmp_path) is None
    counts = Counter(next((p for p, names in PHASES.items() if place in names), "elsewhere") for place in places)
    print(f"{len(places)} kills ({', '.join(f'{phase} {n}' for phase, n in counts.items())}):", *places, sep="\n  ")
    assert not Counter(place for place, *_ in MOMENTS) - Counter(places), "not every place was met"
    assert set(PHASES) <= set(counts)
    assert len(kept) == 2
    assert finished(tmp_path) == kept, "a file of a finished run has changed"
    assert result(tmp_path) == undisturbed.found
