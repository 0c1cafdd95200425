"""Every number of a run in one CSV file, for spreadsheets and scripts: `metrics.csv` in the run directory.

Guarantees: the file is whole after each attack, also when the run is killed, and is made anew from the whole report,
so a resumed run repeats nothing. What was not measured has an empty value and its reason under `method`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.tracker_rows import Row, rows_of
from hushbot.storage import csv_text, write_atomically
from hushbot.types import AuditReport

METRICS_NAME = "metrics.csv"


@dataclass(kw_only=True)
class CsvTracker:
    """Rewrites `metrics.csv` each time the report grows."""

    _path: Path | None = field(default=None, init=False)

    def check(self) -> None:
        """Need nothing."""

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Write into this run directory from now on."""
        self._path = folder / METRICS_NAME

    def log(self, report: AuditReport) -> None:
        """Write the file anew."""
        if self._path is None:
            return
        rows = ([report.run.id, *row] for section in rows_of(report).values() for row in section)
        write_atomically(self._path, csv_text(["run", *Row._fields], rows).encode("utf-8"))

    def close(self) -> None:
        """Do nothing: the file is whole."""
