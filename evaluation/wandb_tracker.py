"""A run on Weights & Biases: offline unless asked, then synced or thrown away by whoever owns it.

Guarantees: nothing leaves this machine with `mode=offline`, whatever the environment says; with `mode=online` and no
credentials, or a server that does not answer, the run says what to do and goes on offline. Records reach W&B masked
only, with `reveal=true` too. Host name, program, git remote, console output and installed packages are not sent.
A resumed run continues under its id. A W&B error ends the tracker, never the audit.

What voids them: `wandb sync` and `mode=online` publish what the project's members may see: numbers, settings, masked
records, the report. Masked is not anonymous; `n_records=0` leaves records out.
"""

from __future__ import annotations

import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hushbot.evaluation.experiment import Say
from hushbot.evaluation.following import FOLDER, Progress, need
from hushbot.evaluation.tracker_rows import STEP, Row, points, rows_of, shown_config, shown_records, summary_of
from hushbot.types import AuditReport

if TYPE_CHECKING:
    import wandb

_PATIENCE = 15.0
"""Seconds to wait for the server."""
_FILES = ("report.json", "report.html", "privacy_card.md")
"""What the report's artifact is made of, where it is there."""


@dataclass(kw_only=True)
class WandbTracker:
    """Logs every attack at its own step, tables of masked records, and the report as an artifact."""

    mode: Literal["offline", "online"] = "offline"
    """Where it goes: files in the run directory, to be synced or not, or the server."""
    project: str = "hushbot"
    """Project on the dashboard."""
    entity: str | None = None
    """User or team; null is the account's default."""
    group: str | None = None
    """Under what runs stand together; null is the recipe stack, so that its seeds do."""
    n_records: int = 1000
    """How many masked records of each attack are shown; 0 shows none."""
    # A `wandb.Run`; the type cannot be named where settings are checked, without importing W&B.
    _run: Any = field(default=None, init=False, repr=False)
    _progress: Progress | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)
    _config: Mapping[str, Any] = field(default_factory=dict, init=False, repr=False)
    _say: Say = field(default=print, init=False, repr=False)
    _environment: dict[str, str | None] = field(default_factory=dict, init=False, repr=False)
    _is_complete: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n_records < 0:
            raise ValueError(f"n_records={self.n_records} must be at least 0; set tracker.n_records")

    def check(self) -> None:
        """Refuse to go on without W&B."""
        need("wandb", "wandb")

    def follow(self, folder: Path, config: Mapping[str, Any], say: Say) -> None:
        """Open the run, under the id it had if it is resumed."""
        own = folder / "wandb"
        # W&B would report its own errors to a third party, offline too, and stage artifacts in the home folder.
        self._environment = _exchange(
            {
                "WANDB_ERROR_REPORTING": "false",
                "WANDB_DATA_DIR": str(own / "data"),
                "WANDB_CACHE_DIR": str(own / "cache"),
            }
        )
        self._folder, self._config, self._say = folder, config, say
        self._progress = Progress(folder / FOLDER / "wandb.json", "hushbot")
        self._is_complete = False
        self._run = self._open(self._chosen_mode())
        if self._run is not None:
            self._run.define_metric(STEP, hidden=True)
            for pattern in ("audit/*", "utility/*", "privacy/*", "cost/*"):
                self._run.define_metric(pattern, step_metric=STEP)

    def log(self, report: AuditReport) -> None:
        """Log what is new in the report; the whole of it once it is complete."""
        if self._run is None or self._progress is None:
            return
        import wandb

        try:
            self._run.config.update({"recipe_stack": "+".join(report.recipe.stack), "report_id": report.run.id})
            sections = rows_of(report)
            for section, rows in sections.items():
                if self._progress.is_new(section):
                    step = rows[0].step
                    shown = {STEP: step, **points(rows), **self._records(report, section)}
                    # Where the server has this step already, from before a kill, it keeps what it has.
                    self._run.log(shown, step=step, commit=True)
            self._run.summary.update(summary_of(report))
            if report.status == "complete":
                self._log_whole(report, [row for rows in sections.values() for row in rows])
        except (wandb.Error, OSError) as error:
            self._say(f"W&B: {type(error).__name__}; this run is no longer followed, its report is complete without")
            self._run = None

    def close(self) -> None:
        """End the run; one whose audit did not complete counts as failed, and is continued when resumed."""
        run, self._run = self._run, None
        if run is not None and self._progress is not None:
            where = self._folder / "wandb"
            run.finish(exit_code=0 if self._is_complete else 1)
            self._progress.keep()
            if run.offline:
                self._say(f"W&B: kept in {where}; `wandb sync {where}/offline-*` publishes it")
        _exchange(self._environment)
        self._environment = {}

    def _chosen_mode(self) -> Literal["offline", "online"]:
        """Return the mode that is possible, and say why where it is not the one asked for."""
        if self.mode == "offline":
            return "offline"
        import wandb

        address = os.environ.get("WANDB_BASE_URL") or str(wandb.setup().settings.base_url)
        if not _has_credentials():
            self._say(f"W&B: no credentials for {address}; run `wandb login` or set WANDB_API_KEY. Going on offline")
            return "offline"
        if not _answers(address):
            self._say(f"W&B: {address} does not answer; going on offline, `wandb sync` sends it later")
            return "offline"
        return "online"

    def _open(self, mode: Literal["offline", "online"]) -> wandb.Run | None:
        import wandb

        try:
            return self._start(mode)
        except (wandb.Error, OSError) as error:
            if mode == "offline":
                self._say(f"W&B: {type(error).__name__}; this run is not followed")
                return None
            self._say(f"W&B: {type(error).__name__} on starting a run online; check `wandb login`. Going on offline")
            return self._open("offline")

    def _start(self, mode: Literal["offline", "online"]) -> wandb.Run:
        import wandb

        if self._progress is None:
            raise RuntimeError("a tracker is opened before it follows a run")
        return wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group or "+".join(self._config.get("recipe") or ["audit"]),
            job_type="train" if self._config.get("recipe") else "audit",
            name=self._folder.name,
            id=self._progress.id,
            resume="allow" if mode == "online" else None,
            dir=str(self._folder),
            config=shown_config(self._config),
            mode=mode,
            settings=_settings(),
        )

    def _records(self, report: AuditReport, section: str) -> dict[str, Any]:
        """Return the table of an attack's masked records, if it has any."""
        import wandb

        result = report.attacks.get(section)
        rows = [] if result is None else shown_records(self._folder, result, self._config, self.n_records)
        if not rows:
            return {}
        columns: list[str | int] = [*rows[0]]
        data: list[Iterable[Any]] = [list(row.values()) for row in rows]
        return {f"records/{section}": wandb.Table(columns=columns, data=data, allow_mixed_types=True)}

    def _log_whole(self, report: AuditReport, rows: list[Row]) -> None:
        """Log every number, unmeasured ones too, as a table, and the report as an artifact."""
        import wandb

        from hushbot.evaluation.report import write_page

        if self._run is None or self._progress is None:
            return
        data: list[Iterable[Any]] = [list(row) for row in rows]
        table = wandb.Table(columns=[*Row._fields], data=data, allow_mixed_types=True)
        n = len(report.attacks)
        self._run.log({STEP: n, "tables/numbers": table}, step=n + 1, commit=True)
        write_page([self._folder], self._folder / "report.html")
        artifact = wandb.Artifact(f"report-{self._progress.id}", type="report")
        for path in (self._folder / name for name in _FILES):
            if path.is_file():
                artifact.add_file(str(path), skip_cache=True)
        self._run.log_artifact(artifact)
        self._is_complete = True


def _settings() -> wandb.Settings:
    """Return what W&B may do: no prompts, and nothing about this machine."""
    import wandb

    return wandb.Settings(
        init_timeout=_PATIENCE,
        login_timeout=_PATIENCE,
        silent=True,
        console="off",
        reinit="create_new",
        disable_git=True,
        disable_code=True,
        save_code=False,
        host="",
        program="",
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def _has_credentials() -> bool:
    """Return whether somebody is logged in here; nobody is asked, and no server."""
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.Error:  # a key that is none
        return False


def _exchange(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, or remove those that are None; return what they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def _answers(address: str) -> bool:
    """Return whether a server can be connected to: W&B itself tries for minutes. Behind a proxy it is to find out."""
    parts = urllib.parse.urlsplit(address)
    if urllib.request.getproxies():
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE):
            return True
    except OSError:
        return False
