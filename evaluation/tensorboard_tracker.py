"""A run's numbers as TensorBoard scalars and tables, under `tensorboard/` in the run directory.

Guarantees: local files only; a resumed run continues, without repeating what it has. `tensorboard --logdir runs` finds
every run that was followed. Records are not shown here: TensorBoard has no tables, only texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import FOLDER, Progress, need
from hushbot.evaluation.tracker_rows import Row, points, rows_of, summary_of
from hushbot.types import AuditReport


@dataclass(kw_only=True)
class TensorboardTracker:
    """Adds the points of every attack at the attack's step."""

    # A `SummaryWriter`; the type cannot be named where settings are checked, without importing TensorBoard.
    _writer: Any = field(default=None, init=False)
    _progress: Progress | None = field(default=None, init=False)

    def check(self) -> None:
        """Refuse to go on without TensorBoard."""
        need("tensorboard", "hushbot[tensorboard]")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the event file of this run."""
        from torch.utils.tensorboard import SummaryWriter

        self._progress = Progress(folder / FOLDER / "tensorboard.json", "tensorboard")
        self._writer = SummaryWriter(folder / "tensorboard")

    def log(self, report: AuditReport) -> None:
        """Add what is new in the report."""
        if self._writer is None or self._progress is None:
            return
        for section, rows in rows_of(report).items():
            if self._progress.is_new(section):
                for key, value in points(rows).items():
                    self._writer.add_scalar(key, value, rows[0].step)
                self._writer.add_text(f"numbers/{section}", _table(rows), rows[0].step)
        lines = [f"- {key}: {value}" for key, value in summary_of(report).items()]
        self._writer.add_text("summary", "\n".join(lines), len(report.attacks))
        self._writer.flush()
        self._progress.keep()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _table(rows: list[Row]) -> str:
    """Write rows as a Markdown table; what was not measured is an empty cell."""
    names = ("key", "value", "low", "high", "n", "method")
    lines = ["|".join(names), "|".join("---" for _ in names)]
    for row in rows:
        cells = [getattr(row, name) for name in names]
        lines.append("|".join("" if cell is None else str(cell).replace("|", "/") for cell in cells))
    return "\n".join(lines)
