"""A run on Weights & Biases: offline unless asked, then synced or thrown away by whoever owns it.

Guarantees: `wandb_opening`'s; records reach W&B masked only, with `reveal=true` too. A resumed run continues under its
id. A comparison is a run of its own. A W&B error ends the tracker, never the audit.

What voids them: `wandb sync` and `mode=online` publish what the project's members may see: numbers, settings, masked
records, the report. Masked is not anonymous; `n_records=0` leaves records out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushbot.evaluation.dashboard_tracker import DashboardTracker, stack_of
from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import need
from hushbot.evaluation.tracker_comparison import Board
from hushbot.evaluation.tracker_rows import EPOCH, STEP, UTILITY, Row, points, rows_of, shown_config, summary_of
from hushbot.evaluation.wandb_opening import Mode, Request, exchange, open_run, own_environment, private, say_where
from hushbot.types import AuditReport

if TYPE_CHECKING:
    import wandb

_AXES = {EPOCH: ("train/*",), STEP: ("audit/*", "utility/*", "privacy/*", "cost/*")}
"""What each axis is of."""


@dataclass(kw_only=True)
class WandbTracker(DashboardTracker):
    """Logs training by its epochs, every attack at its own step, tables of masked records, the report as an artifact.

    A comparison has the trade-off as charts and as a picture, its tables, and its files as an artifact.
    """

    mode: Mode = "offline"
    """Where it goes: files in the run directory, to be synced or not, or the server."""
    entity: str | None = None
    """User or team; null is the account's default."""
    group: str | None = None
    """Under what runs stand together; null is the recipe stack, so that its seeds do."""
    _environment: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    _is_complete: bool = field(default=False, init=False, repr=False)

    def check(self) -> None:
        """Refuse to go on without W&B."""
        need("wandb", "wandb")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the run, under the id it had if it is resumed."""
        self._environment = own_environment(folder)
        self._is_complete = False
        self._begin(folder, config, say, kind="wandb", prefix="hushbot")
        job_type = "train" if config.get("recipe") else "audit"
        self._run = open_run(self._request(folder, self.group or stack_of(config), job_type, config), say)
        if self._run is None:
            return
        for axis, patterns in _AXES.items():
            self._run.define_metric(axis, hidden=True)
            for pattern in patterns:
                self._run.define_metric(pattern, step_metric=axis)

    def log(self, report: AuditReport) -> None:
        """Log what is new in the report; the whole of it once it is complete."""
        if self._run is None or self._progress is None:
            return
        import wandb

        try:
            self._run.config.update({"recipe_stack": "+".join(report.recipe.stack), "report_id": report.run.id})
            sections = rows_of(report)
            for position, (section, rows) in enumerate(sections.items()):
                if self._progress.is_new(section):
                    shown: dict[str, Any] = {rows[0].axis: rows[0].step, **points(rows, self.curves)}
                    if records := self._records(report, section):
                        shown[f"records/{section}"] = table_of(records)
                    # W&B's own step must grow; where the server has it from before a kill, it keeps what it has.
                    self._run.log(shown, step=position, commit=True)
            self._run.summary.update(summary_of(report))
            if report.status == "complete":
                self._log_whole(report, [row for rows in sections.values() for row in rows], step=len(sections))
        except (wandb.Error, OSError) as error:
            self._say(f"W&B: {type(error).__name__}; this run is no longer followed, its report is complete without")
            self._run = None

    def close(self) -> None:
        """End the run; one whose audit did not complete counts as failed, and is continued when resumed."""
        run, self._run = self._run, None
        if run is not None and self._progress is not None:
            run.finish(exit_code=0 if self._is_complete else 1)
            self._progress.keep()
            say_where(run, self._folder, self._say)
        exchange(self._environment)
        self._environment = {}

    def log_comparison(self, board: Board, config: Mapping[str, Any], say: Say) -> None:
        """Log a comparison as a run of its own; one that has not changed since it was logged is left as it is."""
        import wandb

        with private(board.folder):
            progress = self._begin(board.folder, config, say, kind="wandb", prefix="hushbot-comparison")
            step = progress.n_logged
            if not progress.is_new(board.sha256):
                return
            run = open_run(self._request(board.folder, self.group or "comparison", "compare", config), say)
            if run is None:
                return
            try:
                run.log(shown_board(board), step=step, commit=True)
                run.log_artifact(_artifact(f"comparison-{progress.id}", "comparison", board.files))
            except (wandb.Error, OSError) as error:
                say(f"W&B: {type(error).__name__}; the comparison was not logged whole, its files are complete without")
            else:
                progress.keep()
            finally:
                run.finish()
                say_where(run, board.folder, say)

    def _request(self, folder: Path, group: str, job_type: str, config: Mapping[str, Any]) -> Request:
        if self._progress is None:
            raise RuntimeError("a tracker is opened before it follows a run")
        return Request(
            folder=folder,
            id=self._progress.id,
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            group=group,
            job_type=job_type,
            config=shown_config(config),
        )

    def _log_whole(self, report: AuditReport, rows: list[Row], *, step: int) -> None:
        """Log every number, unmeasured ones too, as a table, and the report as an artifact."""
        if self._run is None or self._progress is None:
            return
        numbers = table_of([row._asdict() for row in rows], columns=Row._fields)
        self._run.log({STEP: len(report.attacks), "tables/numbers": numbers}, step=step, commit=True)
        self._run.log_artifact(_artifact(f"report-{self._progress.id}", "report", self._report_files()))
        self._is_complete = True


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> wandb.Table:
    """Return rows of one kind as a table; cells of a column may differ in type."""
    import wandb

    names: list[str | int] = list(columns or rows[0])
    data: list[Iterable[Any]] = [[row[str(name)] for name in names] for row in rows]
    return wandb.Table(columns=names, data=data, allow_mixed_types=True)


def shown_board(board: Board) -> dict[str, Any]:
    """Return a comparison as W&B shows it: tables, a scatter chart per attack, and the picture with intervals."""
    import wandb

    shown: dict[str, Any] = {f"comparison/{name}": table_of(rows) for name, rows in board.tables.items() if rows}
    for attack, rows in board.charts.items():
        title = f"{attack} against {UTILITY}"
        shown[f"tradeoff/{attack}"] = wandb.plot.scatter(table_of(rows), "utility", "leakage", title=title)
    if board.picture is not None:
        shown["tradeoff/all"] = wandb.Image(str(board.picture), caption="utility against leakage, with intervals")
    return shown


def _artifact(name: str, kind: str, files: Sequence[Path]) -> wandb.Artifact:
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in files:
        artifact.add_file(str(path), skip_cache=True)
    return artifact
