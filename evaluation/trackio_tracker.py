"""A run on trackio: a dashboard on this machine, without an account. `trackio show --project hushbot` opens it.

Guarantees: everything stays in one folder, `trackio/` beside the run directories, so that the runs of a comparison
stand together; where the environment would send runs elsewhere (`TRACKIO_SPACE_ID`, `TRACKIO_SERVER_URL`,
`TRACKIO_WEBHOOK_URL`), it is refused before anything is trained. Records are shown masked, with `reveal=true` too. A
resumed run continues under its name, without repeating what it has.

What voids them: `trackio sync` and a dashboard that is shared publish what is there; masked is not anonymous.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError
from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import FOLDER, Progress, need
from hushbot.evaluation.tracker_rows import Row, points, rows_of, shown_config, shown_records, summary_of
from hushbot.types import AuditReport

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL", "TRACKIO_BUCKET_ID")
"""Environment variables that would send a run away from this machine."""


@dataclass(kw_only=True)
class TrackioTracker:
    """Logs every attack at its own step, and tables of masked records."""

    project: str = "hushbot"
    """Project on the dashboard."""
    n_records: int = 1000
    """How many masked records of each attack are shown; 0 shows none."""
    # A trackio `Run`; the type cannot be named where settings are checked, without importing trackio.
    _run: Any = field(default=None, init=False, repr=False)
    _progress: Progress | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)
    _config: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    _say: Say = field(default=print, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_records < 0:
            raise ValueError(f"n_records={self.n_records} must be at least 0; set tracker.n_records")

    def check(self) -> None:
        """Refuse to go on without trackio, or where it would send runs elsewhere."""
        need("trackio", "hushbot[trackio]")
        if found := [name for name in _ELSEWHERE if os.environ.get(name)]:
            raise ConfigError(f"{found[0]} is set, which sends runs elsewhere; unset it, or set tracker=none")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the run, under the name it had if it is resumed."""
        self._folder, self._config, self._say = folder, config, say
        self._progress = Progress(folder / FOLDER / "trackio.json", folder.name)
        # Read when trackio is imported; whoever has set it wants the dashboard there.
        os.environ.setdefault("TRACKIO_DIR", str(folder.resolve().parent / "trackio"))
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # what it prints shows the machine's folders as a table would
            self._run = trackio.init(
                project=self.project,
                name=self._progress.id,
                group="+".join(config.get("recipe") or ["audit"]),
                config=shown_config(config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, report: AuditReport) -> None:
        """Log what is new in the report; the whole of it as a table once it is complete."""
        if self._run is None or self._progress is None:
            return
        sections = rows_of(report)
        for section, rows in sections.items():
            if self._progress.is_new(section):
                self._run.log({**points(rows), **self._records(report, section)}, step=rows[0].step)
        if report.status == "complete" and self._progress.is_new("numbers"):
            numbers = [row._asdict() for rows in sections.values() for row in rows]
            words = [{"what": key, "is": str(value)} for key, value in summary_of(report).items()]
            tables = {"tables/numbers": _table(numbers, Row._fields), "tables/summary": _table(words, ("what", "is"))}
            self._run.log(tables, step=len(report.attacks) + 1)

    def close(self) -> None:
        """End the run."""
        run, self._run = self._run, None
        if run is None or self._progress is None:
            return
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            run.finish()
        self._progress.keep()
        self._say(f"trackio: kept in {trackio.utils.TRACKIO_DIR}; `trackio show --project {self.project}` shows it")

    def _records(self, report: AuditReport, section: str) -> dict[str, Any]:
        """Return the table of an attack's masked records, if it has any."""
        result = report.attacks.get(section)
        rows = [] if result is None else shown_records(self._folder, result, self._config, self.n_records)
        return {f"records/{section}": _table(rows, tuple(rows[0]))} if rows else {}


def _table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> Any:
    import pandas as pd
    import trackio

    return trackio.Table(dataframe=pd.DataFrame(rows, columns=list(columns)).astype(object))
