"""What trackers with a dashboard share: a project, how many masked records it shows, and the run they follow.

Guarantees: records are shown masked, with `reveal=true` too; the report's files are those of the run directory, which
hold masked values only.

What voids them: a dashboard that others can see publishes what is there; masked is not anonymous. `n_records=0` leaves
records out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import FOLDER, Progress
from hushbot.evaluation.tracker_rows import Curves, shown_records
from hushbot.types import AuditReport

REPORT_FILES = ("report.json", "report.html", "privacy_card.md")
"""What the report's artifact is made of, where it is there."""


@dataclass(kw_only=True)
class DashboardTracker:
    """Holds what a run on a dashboard needs; how it is logged is its subclass's business."""

    project: str = "hushbot"
    """Project on the dashboard."""
    n_records: int = 1000
    """How many masked records of each attack are shown; 0 shows none."""
    curves: Curves = "main"
    """What is drawn: `main`, what a bot is judged by, or `all`, every number; the table holds all of them anyway."""
    # The dashboard's own run; its type cannot be named where settings are checked, without importing the dashboard.
    _run: Any = field(default=None, init=False, repr=False)
    _progress: Progress | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)
    _config: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    _say: Say = field(default=print, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_records < 0:
            raise ValueError(f"n_records={self.n_records} must be at least 0; set tracker.n_records")

    def _begin(self, folder: Path, config: Mapping[str, Any], say: Say, *, kind: str, prefix: str) -> Progress:
        """Take in what is followed; return what was logged of it before."""
        self._folder, self._config, self._say = folder, config, say
        self._progress = Progress(folder / FOLDER / f"{kind}.json", prefix)
        return self._progress

    def _records(self, report: AuditReport, section: str) -> list[dict[str, Any]]:
        """Return the masked records of an attack that are shown; none of what is no attack."""
        result = report.attacks.get(section)
        return [] if result is None else shown_records(self._folder, result, self._config, self.n_records)

    def _report_files(self) -> list[Path]:
        """Write the page anew; return the files of the whole report."""
        from hushbot.evaluation.report import write_page

        write_page([self._folder], self._folder / "report.html")
        return [path for path in (self._folder / name for name in REPORT_FILES) if path.is_file()]


def stack_of(config: Mapping[str, Any]) -> str:
    """Return under what runs stand together unless told otherwise: the recipe stack, so that its seeds do."""
    return "+".join(config.get("recipe") or ["audit"])
