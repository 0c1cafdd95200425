"""A run on trackio: a dashboard on this machine, without an account. `trackio show --project hushbot` opens it.

Guarantees: everything stays in one folder, `trackio/` beside the run directories, so that the runs of a comparison
stand together, and the comparison beside them; where the environment would send runs elsewhere (`TRACKIO_SPACE_ID`,
`TRACKIO_SERVER_URL`, `TRACKIO_WEBHOOK_URL`), it is refused before anything is trained. Records are shown masked, with
`reveal=true` too. A resumed run continues under its name, without repeating what it has.

What voids them: `trackio sync` and a dashboard that is shared publish what is there; masked is not anonymous.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError
from hushbot.evaluation.dashboard_tracker import DashboardTracker, stack_of
from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import need
from hushbot.evaluation.tracker_comparison import Board
from hushbot.evaluation.tracker_rows import Row, points, rows_of, shown_config, summary_of
from hushbot.types import AuditReport

_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_WEBHOOK_URL", "TRACKIO_BUCKET_ID")
"""Environment variables that would send a run away from this machine."""


@dataclass(kw_only=True)
class TrackioTracker(DashboardTracker):
    """Logs every epoch and every attack at its own step, tables of masked records, and the report as an artifact.

    A comparison has its tables, the picture of the trade-off, and its files as an artifact.
    """

    def check(self) -> None:
        """Refuse to go on without trackio, or where it would send runs elsewhere."""
        need("trackio", "hushbot[trackio]")
        if found := [name for name in _ELSEWHERE if os.environ.get(name)]:
            raise ConfigError(f"{found[0]} is set, which sends runs elsewhere; unset it, or set tracker=none")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the run, under the name it had if it is resumed."""
        self._begin(folder, config, say, kind="trackio", prefix=folder.name)
        self._open(folder.resolve().parent, stack_of(config))

    def log(self, report: AuditReport) -> None:
        """Log what is new in the report; the whole of it, as tables and files, once it is complete."""
        if self._run is None or self._progress is None:
            return
        sections = rows_of(report)
        for section, rows in sections.items():
            if self._progress.is_new(section):
                shown: dict[str, Any] = dict(points(rows, self.curves))
                if records := self._records(report, section):
                    shown[f"records/{section}"] = _table(records)
                self._run.log(shown, step=rows[0].step)
        if report.status == "complete" and self._progress.is_new("numbers"):
            numbers = [row._asdict() for rows in sections.values() for row in rows]
            words = [{"what": key, "is": str(value)} for key, value in summary_of(report).items()]
            tables = {"tables/numbers": _table(numbers, Row._fields), "tables/summary": _table(words)}
            self._run.log(tables, step=len(report.attacks) + 1)
            self._log_files("report", self._report_files())

    def close(self) -> None:
        """End the run."""
        run, self._run = self._run, None
        if run is None or self._progress is None:
            return
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()  # the run, and what would end it once more when Python does
        self._progress.keep()
        self._say(f"trackio: kept in {trackio.utils.TRACKIO_DIR}; `trackio show --project {self.project}` shows it")

    def log_comparison(self, board: Board, config: Mapping[str, Any], say: Say) -> None:
        """Log a comparison beside its runs; one that has not changed since it was logged is left as it is."""
        progress = self._begin(board.folder, config, say, kind="trackio", prefix=board.folder.name)
        step = progress.n_logged
        if not progress.is_new(board.sha256):
            return
        self._open(board.runs_dir.resolve(), "comparison")
        import trackio

        shown = {f"comparison/{name}": _table(rows) for name, rows in board.tables.items() if rows}
        shown |= {f"tradeoff/{attack}": _table(rows) for attack, rows in board.charts.items()}
        if board.picture is not None:
            shown["tradeoff/all"] = trackio.Image(str(board.picture), caption="utility against leakage")
        try:
            self._run.log(shown, step=step)
            self._log_files("comparison", board.files)
        finally:
            self.close()

    def _open(self, runs_dir: Path, group: str) -> None:
        """Open the run in the folder that all runs of a folder share."""
        if self._progress is None:
            raise RuntimeError("a tracker is opened before it follows a run")
        # Read when trackio is imported; whoever has set it wants the dashboard there.
        os.environ.setdefault("TRACKIO_DIR", str(runs_dir / "trackio"))
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # what it prints shows the machine's folders as a table would
            self._run = trackio.init(
                project=self.project,
                name=self._progress.id,
                group=group,
                config=shown_config(self._config),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def _log_files(self, kind: str, files: Sequence[Path]) -> None:
        import trackio

        if self._progress is None:
            return
        artifact = trackio.Artifact(re.sub(r"[^A-Za-z0-9._-]", "-", f"{kind}-{self._progress.id}"), type=kind)
        for path in files:
            artifact.add_file(path)
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.log_artifact(artifact)


def _table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> Any:
    import pandas as pd
    import trackio

    return trackio.Table(dataframe=pd.DataFrame(rows, columns=list(columns or rows[0])).astype(object))
