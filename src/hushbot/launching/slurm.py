"""Cells as Slurm jobs, submitted with submitit; needs the extra `slurm`.

Guarantees: a job asks for the CPUs, GPUs, memory and hours that it is given; one that reaches its time limit or is
preempted is put back into the queue by submitit and goes on from its last checkpoint; one that is lost without a
result is submitted again. Ctrl-C cancels what is queued and running.

The folder that the command is started from, with `runs_dir` and `comparison` in it, must be shared by all machines.
submitit keeps what it is to call, and what comes back, as pickles in `comparison/cells/slurm`: plain values of ours,
but whoever may write there can run code as you. A loss without a result is noticed only when Slurm is asked for the
job's state, at intervals that grow to ten minutes.

Void: a command that is killed itself (`kill -9`) leaves its jobs in the queue; cancel them with `scancel` first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hushbot.errors import HushbotError
from hushbot.launching.grid import Attempt, Cell, Pace, run_grid
from hushbot.launching.requests import check_requests
from hushbot.launching.worker import Ending, Job, attend

_STOP_SECONDS = 30.0
_POLL_SECONDS = 1.0
_TIME_LIMITS = 100
"""How often submitit puts a job that reached its time limit back; retries count losses only."""


@dataclass(frozen=True, kw_only=True)
class SlurmLauncher:
    """Run cells as Slurm jobs."""

    threads: int = 1
    """CPUs that each cell asks for, and its threads."""
    gpus: int = 0
    """GPUs that each asks for."""
    memory_gb: float | None = None
    """Memory that each asks for; null leaves it to the cluster's default."""
    hours: float = 24
    """Time limit of a job; one that needs longer is put back into the queue and goes on from its last checkpoint."""
    partition: str | None = None
    """Slurm's partition; null is the default one."""
    options: Mapping[str, Any] | None = None
    """Further options of sbatch by name, as {account: mine, qos: long}."""
    workers: int | None = None
    """Jobs submitted at the same time; null submits all."""
    retries: int = 2
    """Further attempts at a cell whose job was lost."""
    cluster: Literal["slurm", "local"] = "slurm"
    """`local` runs jobs on this machine through the same code, to try it out; requests are ignored there."""

    def __post_init__(self) -> None:
        check_requests(self, at_least_one=("threads", "workers"), at_least_zero=("gpus", "retries"))
        check_requests(self, positive=("memory_gb", "hours"))

    def launch(self, cells: Sequence[Cell], folder: Path) -> None:
        """Run all cells; `folder` keeps each one's configuration and log.

        Raises:
            HushbotError: submitit or Slurm is missing, a job was refused, or a cell failed.
        """
        pace = Pace(
            workers=self.workers,
            threads=self.threads,
            retries=self.retries,
            verb="submitted to Slurm" if self.cluster == "slurm" else "submitted",
            poll_seconds=_POLL_SECONDS,
        )
        run_grid(cells, folder, _Queue(self, folder.resolve() / "slurm"), pace)

    @property
    def request(self) -> dict[str, Any]:
        """Return what each job asks for, in submitit's words."""
        wanted: dict[str, Any] = {
            "timeout_min": math.ceil(self.hours * 60),
            "nodes": 1,
            "tasks_per_node": 1,
            "cpus_per_task": self.threads,
            "gpus_per_node": self.gpus,
        }
        if self.memory_gb is not None:
            wanted["mem_gb"] = self.memory_gb
        if self.cluster == "slurm":
            if not self.gpus:
                del wanted["gpus_per_node"]  # a cluster without GPUs refuses even a request for none
            if self.partition is not None:
                wanted["slurm_partition"] = self.partition
            wanted["slurm_additional_parameters"] = dict(self.options or {})
        return wanted


class CellJob:
    """What a job calls; one that has to give its place up is called again when it gets another.

    Args:
        job: The cell.
    """

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self) -> Ending:
        """Run the cell to its end."""
        return attend(self.job)

    def checkpoint(self) -> Any:
        """Return what goes back into the queue: the same, since the run directory knows how far it came."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(CellJob(self.job))


@dataclass(frozen=True, slots=True)
class _Queue:
    """Starts attempts as jobs."""

    launcher: SlurmLauncher
    folder: Path

    def start(self, job: Job, name: str) -> Attempt:
        try:
            import submitit
        except ImportError as error:
            raise HushbotError(f"launcher=slurm needs submitit: {error}; `pip install 'hushbot[slurm]'`") from error
        try:
            executor = submitit.AutoExecutor(
                self.folder, cluster=self.launcher.cluster, slurm_max_num_timeout=_TIME_LIMITS
            )
            executor.update_parameters(name=name, **self.launcher.request)
            return _Job(executor.submit(CellJob(job)))
        except (RuntimeError, OSError, ValueError) as error:
            raise HushbotError(
                f"launcher=slurm: the job of {name} was refused: {error}; check launcher.partition and "
                "launcher.options, or try it out with launcher.cluster=local"
            ) from error


@dataclass(frozen=True, slots=True)
class _Job:
    """An attempt in the queue."""

    job: Any

    def ending(self) -> Ending | None:
        if not self.job.done():
            return None
        import submitit

        try:
            ending: Ending = self.job.result()
        except submitit.core.utils.FailedJobError as error:
            return Ending(f"could not be run by job {self.job.job_id}: {str(error).splitlines()[0]}")
        except submitit.core.utils.UncompletedJobError as error:
            return Ending(f"lost its job ({' '.join(str(error).splitlines()[:2])})", was_killed=True)
        return ending

    def stop(self) -> None:
        self.job.cancel(check=False)
        deadline = time.monotonic() + _STOP_SECONDS
        with contextlib.suppress(OSError):
            while not self.job.done(force_check=True) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS / 10)
