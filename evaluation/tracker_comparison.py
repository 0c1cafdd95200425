"""A comparison as every tracker gets it: tables, points of the trade-off, the picture and the files.

Guarantees: it is made of reports and of what was compared, never of records, so there is no text of a dialogue in it;
a number that was not measured is an empty cell and no point of a chart; the same comparison has the same hash, so that
a command that is repeated logs nothing twice. What documents add to a metric (`units`) is in no table.

What voids it: names of arms are shown as they are; whoever names a bot after a person tells that name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.tracker_rows import UTILITY
from hushbot.evaluation.tradeoff import ALL_SEEDS, ArmRow, rows_of
from hushbot.protocols import Tracker
from hushbot.types import AuditReport, Estimate

if TYPE_CHECKING:
    from hushbot.evaluation.comparisons import Comparison

COMPARISON_FILES = ("tradeoff.csv", "comparisons.csv", "tradeoff.png", "report.html")
"""What a comparison's artifact is made of, where it is there."""

Cells = dict[str, Any]
"""One row of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """What trackers are told of a comparison."""

    folder: Path
    """Where its files lie, and where a tracker keeps its own."""
    runs_dir: Path
    """Where the runs lie that it compares."""
    tables: Mapping[str, Sequence[Cells]]
    """`standings`, `differences`, `notes`, and `arms`: every number of every run and arm."""
    charts: Mapping[str, Sequence[Cells]]
    """By attack and metric, a point per run: its arm, seed, `utility` and `leakage` with their intervals' ends."""

    @property
    def picture(self) -> Path | None:
        """Return the picture of the trade-off, if there is one."""
        path = self.folder / "tradeoff.png"
        return path if path.is_file() else None

    @property
    def files(self) -> list[Path]:
        """Return the files of the comparison."""
        return [path for path in (self.folder / name for name in COMPARISON_FILES) if path.is_file()]

    @property
    def sha256(self) -> str:
        """Return the hash of its numbers and words."""
        content = json.dumps([self.tables, self.charts], sort_keys=True, default=list)
        return hashlib.sha256(content.encode()).hexdigest()


@runtime_checkable
class ComparisonTracker(Tracker, Protocol):
    """A tracker that shows comparisons, too."""

    def log_comparison(self, board: Board, config: Mapping[str, Any], say: Say) -> None:
        """Log a comparison beside the runs that it compares, unless it was logged before."""
        ...


def log_comparison(
    trackers: Iterable[Tracker],
    reports: Sequence[AuditReport],
    comparison: Comparison,
    config: Mapping[str, Any],
    say: Say,
) -> None:
    """Tell every tracker that shows comparisons of this one, once its files are written."""
    board = make_board(reports, comparison, folder=Path(config["comparison"]), runs_dir=Path(config["runs_dir"]))
    for tracker in trackers:
        if isinstance(tracker, ComparisonTracker):
            tracker.log_comparison(board, config, say)


def make_board(reports: Sequence[AuditReport], comparison: Comparison, *, folder: Path, runs_dir: Path) -> Board:
    """Return a comparison as tables and points."""
    rows = rows_of(reports)
    tables = {
        "standings": [_cells(standing) for standing in comparison.standings],
        "differences": [_cells(difference) for difference in comparison.differences],
        "arms": [cells for row in rows for cells in _numbers(row)],
        "notes": [{"note": note} for note in comparison.notes],
    }
    runs = [row for row in rows if row.seed != ALL_SEEDS]
    headlines = dict.fromkeys(column for row in runs for column in row.numbers if column.count("/") == 1)
    charts = {headline: [cells for row in runs for cells in _point(row, headline)] for headline in headlines}
    return Board(
        folder=folder,
        runs_dir=runs_dir,
        tables=tables,
        charts={headline: points for headline, points in charts.items() if points},
    )


def _cells(found: Any) -> Cells:
    """Return a row of the comparison as cells: an estimate becomes several, a list one text."""
    cells: Cells = {}
    for field in dataclasses.fields(found):
        cell = getattr(found, field.name)
        if isinstance(cell, Estimate):
            cells |= {name: getattr(cell, name) for name in ("value", "low", "high", "level", "n", "method")}
        else:
            cells[field.name] = "; ".join(map(str, cell)) if isinstance(cell, tuple | list) else cell
    return cells


def _numbers(row: ArmRow) -> list[Cells]:
    """Return the numbers of one row of the trade-off, one per row."""
    about = {"arm": row.arm, "seed": row.seed, "status": row.status, "privacy_unit": row.privacy_unit}
    return [{**about, "metric": column, **point._asdict()} for column, point in row.numbers.items()]


def _point(row: ArmRow, headline: str) -> list[Cells]:
    """Return a run's point in an attack's chart; none where either number was not measured."""
    cells: Cells = {"arm": row.arm, "seed": row.seed}
    for name, column in (("utility", UTILITY), ("leakage", headline)):
        number = row.numbers.get(column)
        if number is None or number.value is None:
            return []
        cells |= {name: number.value, f"{name}_low": number.low, f"{name}_high": number.high}
    return [cells]
