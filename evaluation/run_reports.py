"""The reports of many runs, read one by one: one that cannot be read is told, and stops no other.

Guarantees: nothing but `report.json` is needed of a run; a folder of runs stands for all runs in it, in the order of
their names; what is damaged or missing is named with its reason, never left out in silence; a report with a number that
is not finite is damaged. A partial or failed report is a report, and says of itself what it is.

What voids them: a folder of runs is searched one level deep; runs below that are not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hushbot.errors import DataError, HushbotError
from hushbot.run import read_report
from hushbot.storage import float_leaves
from hushbot.types import AuditReport

REPORT_NAME = "report.json"
_MARKS = (REPORT_NAME, "manifest.json", "config.yaml")
"""A folder with one of these is a run."""


class Damaged(NamedTuple):
    """A run that has no report anybody could read."""

    path: Path
    reason: str


class RunReports(NamedTuple):
    """What was found, each run once."""

    paths: tuple[Path, ...]
    """Run directories whose report could be read."""
    reports: tuple[AuditReport, ...]
    """Their reports."""
    damaged: tuple[Damaged, ...]

    @property
    def told(self) -> list[tuple[str, str]]:
        """Return the damaged ones as a page shows them: without the folders above, which are a machine's."""
        return [(damaged.path.name, damaged.reason) for damaged in self.damaged]

    @property
    def problems(self) -> list[str]:
        """Return a line for each that could not be read, after one that says how many they are."""
        if not self.damaged:
            return []
        n = len(self.damaged) + len(self.paths)
        first = f"{len(self.damaged)} of {n} runs have no readable report; everything else is written:"
        return [first, *(f"  {path}: {reason}" for path, reason in self.damaged)]

    def check(self) -> None:
        """Say what could not be read.

        Raises:
            HushbotError: There is something.
        """
        if self.damaged:
            raise HushbotError("\n".join(self.problems))


def read_reports(given: Sequence[Path]) -> RunReports:
    """Read what is there of the given runs and folders of runs."""
    found: dict[Path, AuditReport] = {}
    damaged: dict[Path, Damaged] = {}
    for path in dict.fromkeys(run for one in given for run in find_runs(one)):
        try:
            found[path] = read_run(path)
        except DataError as error:
            damaged[path] = Damaged(path, str(error).replace(f"{path}/", "").replace(str(path), "it"))
    return RunReports(tuple(found), tuple(found.values()), tuple(damaged.values()))


def find_runs(path: Path) -> Iterator[Path]:
    """Yield a run, or the runs in a folder; a path that is neither is yielded too, for whoever reads it to refuse."""
    if path.name == REPORT_NAME and path.is_file():
        path = path.parent
    inside = sorted(inner for inner in path.iterdir() if _is_run(inner)) if path.is_dir() and not _is_run(path) else []
    yield from inside or [path]


def read_run(path: Path) -> AuditReport:
    """Return the report in a run directory.

    Raises:
        DataError: There is none, or it is damaged.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist; give the path of a run, or of a folder of runs")
    if not _is_run(path):
        raise DataError(f"{path} is no run directory and holds none; give the path of a run, or of a folder of runs")
    report = read_report(path / REPORT_NAME)
    for key, value in float_leaves(report.model_dump()):
        if not math.isfinite(value):
            raise DataError(f"{REPORT_NAME}: {key}={value} is no finite number; run the audit again")
    return report


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in _MARKS)
