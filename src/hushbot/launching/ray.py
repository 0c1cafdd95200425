"""Cells as Ray tasks, on a cluster of their own on this machine or on an existing one; needs the extra `ray`.

Guarantees: a task waits until the cluster has the CPUs, GPUs and memory that it asks for; a killed worker takes its
cell with it, and the task is submitted again; the cluster started here ends with the command, has no dashboard, sends
no usage statistics, and answers only those who hold a token drawn for this command (its ports are open on all
interfaces: Ray knows no other way). What a cell reads and writes never passes through Ray.

On several machines the folder that the command is started from, with `runs_dir` and `comparison` in it, must be shared
by all of them, and the environment of a cell (keys, caches) is that of the machine's `ray start`.

Whoever can reach the ports of a cluster without a token can run code on it: that is Ray's design.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError, HushbotError
from hushbot.launching.grid import Attempt, Cell, Pace, run_grid, say
from hushbot.launching.requests import check_requests
from hushbot.launching.worker import Ending, Job, attend

_BYTES_PER_GB = 10**9
_STORE_BYTES = 80 * 2**20  # close to the least that Ray accepts: nothing of ours passes through it
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
"""No statistics are sent, and a cell that asks for no GPU sees none."""
_TOKEN = "RAY_AUTH_TOKEN"
_STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class RayLauncher:
    """Run cells as Ray tasks."""

    address: str | None = None
    """Null starts a cluster on this machine; `auto` finds the one that runs here; else HOST:PORT or ray://HOST:PORT."""
    threads: int = 1
    """Threads of each cell."""
    cpus: float | None = None
    """CPUs that each asks for; null asks for as many as threads."""
    gpus: float = 0
    """GPUs that each asks for; a fraction shares one."""
    memory_gb: float | None = None
    """Memory that each asks for, in GB of 10^9 bytes; Ray reserves it and does not limit it."""
    workers: int | None = None
    """Cells under way at the same time; null leaves it to what the cluster has room for."""
    retries: int = 2
    """Further attempts at a cell whose worker was killed."""

    def __post_init__(self) -> None:
        check_requests(self, at_least_one=("threads", "workers"), at_least_zero=("gpus", "retries"))
        check_requests(self, positive=("cpus", "memory_gb"))
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(f"launcher.gpus={self.gpus} must be a fraction below 1 or a whole number")
        if self.address == "":
            raise ConfigError("launcher.address is empty; leave it null, or give auto or HOST:PORT")

    @property
    def request(self) -> dict[str, float]:
        """Return what each task asks for, in Ray's words."""
        memory = {} if self.memory_gb is None else {"memory": int(self.memory_gb * _BYTES_PER_GB)}
        return {"num_cpus": self.threads if self.cpus is None else self.cpus, "num_gpus": self.gpus, **memory}

    def launch(self, cells: Sequence[Cell], folder: Path) -> None:
        """Run all cells; `folder` keeps each one's configuration and log.

        Raises:
            HushbotError: Ray is missing or the cluster is out of reach; no machine has what a cell asks for; or a cell
                failed.
        """
        pace = Pace(workers=self.workers, threads=self.threads, retries=self.retries, verb="submitted to Ray")
        with _connected(self.address) as ray:
            _check_room(ray.nodes(), self.request, self.address)
            run_grid(cells, folder, _Tasks(ray, self.request), pace)


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Starts attempts as Ray tasks."""

    ray: Any
    request: Mapping[str, float]

    def start(self, job: Job, name: str) -> Attempt:
        # Ray's own retries say nothing: ours are counted and told.
        task = self.ray.remote(max_retries=0, **self.request)(attend).options(name=name)
        return _Task(self.ray, task.remote(job))


@dataclass(frozen=True, slots=True)
class _Task:
    """An attempt on a cluster."""

    ray: Any
    reference: Any

    def ending(self) -> Ending | None:
        try:
            done, _ = self.ray.wait([self.reference], timeout=0)
        except self.ray.exceptions.RayError as error:
            raise HushbotError(
                f"the Ray cluster was lost: {_first_line(error)}; the same command goes on from what is done"
            ) from error
        return _outcome(self.ray, self.reference) if done else None

    def stop(self) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):  # a cluster that is gone runs nothing
            self.ray.cancel(self.reference, force=True)
            self.ray.wait([self.reference], timeout=_STOP_SECONDS)


def _outcome(ray: Any, reference: Any) -> Ending:
    """Return how a task that is over ended: what the cell says, or what Ray says of a worker that cannot."""
    lost = ray.exceptions
    try:
        ending: Ending = ray.get(reference)
    except (lost.WorkerCrashedError, lost.NodeDiedError, lost.LocalRayletDiedError, lost.OutOfMemoryError) as error:
        return Ending(f"lost its worker ({type(error).__name__})", was_killed=True)
    except lost.RayTaskError as error:
        return Ending(f"could not be started by its worker: {_last_line(error)}")
    except lost.RayError as error:
        return Ending(f"was given up by Ray: {type(error).__name__}: {_first_line(error)}")
    return ending


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster; one that was started here ends with the block."""
    own = {"address": "local", "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    variables = _QUIET | ({_TOKEN: _token()} if address is None else {})
    with _environment(variables):
        try:
            import ray
        except ImportError as error:
            raise HushbotError(f"launcher=ray needs Ray: {error}; `pip install 'hushbot[ray]'`") from error
        try:
            ray.init(
                log_to_driver=False,  # each cell has a log of its own
                logging_level="critical",
                **(own if address is None else {"address": address}),
            )
        except Exception as error:  # Ray raises plain ones, too
            ray.shutdown()
            where = "a Ray cluster could not be started here" if address is None else "no Ray cluster was reached"
            raise HushbotError(
                f"launcher.address={address}: {where}: {_first_line(error)}; start one with `ray start --head`, or "
                "leave launcher.address out to have one started on this machine"
            ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@functools.cache
def _token() -> str:
    """Draw what a cluster of this process asks for; once, since Ray remembers the first."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, for as long as a cluster is being started; Ray sets more of them."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if name not in before})
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]


def _check_room(nodes: Sequence[Mapping[str, Any]], request: Mapping[str, float], address: str | None) -> None:
    """Refuse what no machine could ever give; an existing cluster may grow, so there it is only told."""
    names = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
    wanted = {names[key]: amount for key, amount in request.items() if amount}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in alive):
        return
    offers = "; ".join(", ".join(f"{name} {node.get(name, 0):g}" for name in names.values()) for node in alive)
    asked = ", ".join(f"{name} {amount:g}" for name, amount in wanted.items())
    problem = f"no machine of the cluster has what an arm asks for ({asked}); they have: {offers or 'nothing'}"
    if address is None:
        raise HushbotError(f"{problem}; lower launcher.cpus, launcher.gpus or launcher.memory_gb")
    say(f"note: {problem}; waiting for one that has")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _last_line(error: BaseException) -> str:
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
