"""A run's numbers as TensorBoard scalars and tables, under `tensorboard/` in the run directory.

Guarantees: local files only; a resumed run continues, without repeating what it has. `tensorboard --logdir .` finds
every run that was followed, and every comparison. Records are not shown here: TensorBoard has no tables, only texts.
The HPARAMS tab draws utility against leakage over all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import FOLDER, Progress, need
from hushbot.evaluation.tracker_comparison import Board
from hushbot.evaluation.tracker_rows import UTILITY, Curves, points, rows_of, summary_of
from hushbot.types import AuditReport

_COLUMNS = ("key", "value", "low", "high", "n", "method")
"""What of a row stands in a table beside its curve."""


@dataclass(kw_only=True)
class TensorboardTracker:
    """Adds the points of every epoch at its epoch, of every attack at the attack's step.

    A comparison has its tables and the picture of the trade-off.
    """

    curves: Curves = "main"
    """What is drawn: `main`, what a bot is judged by, or `all`, every number; the texts hold all of them anyway."""
    # A `SummaryWriter`; the type cannot be named where settings are checked, without importing TensorBoard.
    _writer: Any = field(default=None, init=False)
    _progress: Progress | None = field(default=None, init=False)

    def check(self) -> None:
        """Refuse to go on without TensorBoard."""
        need("tensorboard", "hushbot[tensorboard]")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the event file of this run."""
        self._progress, self._writer = _progress_of(folder), _writer_of(folder)

    def log(self, report: AuditReport) -> None:
        """Add what is new in the report."""
        if self._writer is None or self._progress is None:
            return
        for section, rows in rows_of(report).items():
            if self._progress.is_new(section):
                for key, value in points(rows, self.curves).items():
                    self._writer.add_scalar(key, value, rows[0].step)
                table = _table([row._asdict() for row in rows], _COLUMNS)
                self._writer.add_text(f"numbers/{section}", table, rows[0].step)
        lines = [f"- {key}: {value}" for key, value in summary_of(report).items()]
        self._writer.add_text("summary", "\n".join(lines), len(report.attacks))
        if report.status == "complete" and self._progress.is_new("hparams"):
            self._add_trade_off(report)
        self._writer.flush()
        self._progress.keep()

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def log_comparison(self, board: Board, config: Mapping[str, Any], say: Say) -> None:
        """Add a comparison to its own event file; one that has not changed is left as it is."""
        progress = _progress_of(board.folder)
        step = progress.n_logged
        if not progress.is_new(board.sha256):
            return
        shown = {f"comparison/{name}": rows for name, rows in board.tables.items() if rows}
        shown |= {f"tradeoff/{attack}": rows for attack, rows in board.charts.items()}
        with _writer_of(board.folder) as writer:
            for name, rows in shown.items():
                writer.add_text(name, _table(rows, tuple(rows[0])), step)
            if board.picture is not None:
                writer.add_image("tradeoff/all", _pixels(board.picture), step, dataformats="HWC")
        progress.keep()

    def _add_trade_off(self, report: AuditReport) -> None:
        """Say which of the run's numbers are its results, for TensorBoard's own plots over runs."""
        from torch.utils.tensorboard.summary import hparams

        # Few of them: TensorBoard plots the first five, each against each.
        wanted = [f"utility/{UTILITY}", *(f"audit/{name}/headline" for name in report.attacks), "privacy/epsilon"]
        measured = {key: value for rows in rows_of(report).values() for key, value in points(rows).items()}
        settings = {"recipe": "+".join(report.recipe.stack), "data": report.data.name, "seed": report.run.seed}
        # TensorBoard finds the numbers themselves among the scalars, by these names.
        results = {key: measured[key] for key in wanted if key in measured}
        for summary in hparams(settings, results):  # type: ignore[no-untyped-call]
            self._writer.file_writer.add_summary(summary)


def _progress_of(folder: Path) -> Progress:
    return Progress(folder / FOLDER / "tensorboard.json", "tensorboard")


def _writer_of(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard")


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Write rows as a Markdown table; what was not measured is an empty cell."""
    lines = ["|".join(names), "|".join("---" for _ in names)]
    for row in rows:
        lines.append("|".join(_cell(row[name]) for name in names))
    return "\n".join(lines)


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell).replace("|", "/")


def _pixels(path: Path) -> Any:
    """Return a picture as bytes per pixel, rows first."""
    import numpy as np
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))
