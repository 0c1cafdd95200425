"""Several processes that train one bot: started here, joined, and how Lightning runs in each.

Guarantees:

* An optimiser step sees the same logical batch as with one process. Each process takes its part of the dialogues; the
  gradients are summed, not averaged, and divided by the constant that one process divides by; then each takes the same
  step. No module is wrapped: DistributedDataParallel would average, and adds up in every backward pass, of which
  processes make unlike numbers; of a private module it would share gradients that were not clipped.
* With `fsdp` each process holds a part of every weight, gradient and optimiser state (torch's `fully_shard`); a passing
  copy of one layer at a time is whole. Passes are joint, so a process that has no dialogue left makes one on made-up
  tokens, times 0. Checkpoints hold whole tensors: they fit any number of processes, and no shards are left on disk.
  DeepSpeed's stages are in `zero`.
* The others get the members and the calibration part, no non-member; they write nothing.
* They meet through a folder that only this user may enter, and talk over the loopback interface (GPUs: NCCL's own way).

Void for draws inside the model: dropout takes other masks than in one process, from generators of each process's own.

Sources: Lightning's `DDPStrategy`; PyTorch FSDP2 (Zhao et al. 2023, arXiv 2304.11277, is the first version).
"""

from __future__ import annotations

import copy
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment
from pytorch_lightning.strategies import DDPStrategy, Strategy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from hushbot.errors import ConfigError
from hushbot.launching.ranks import Ranks, threads_each
from hushbot.launching.worker import held_to
from hushbot.schema import Schema
from hushbot.training.share import ALONE, Share, parted_like, whole
from hushbot.training.stack import RecipeStack
from hushbot.types import Dialogue

if TYPE_CHECKING:
    from hushbot.training.fit import TrainerSettings
    from hushbot.training.watching import Watch

_PATIENCE = timedelta(hours=12)
"""How long a process waits for another one that lives and does not come: as while the first looks at the bot."""
_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"
_INTERFACE = "GLOO_SOCKET_IFNAME"
"""The variable by which gloo is told where to listen."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a process needs to take part in a training."""

    model: nn.Module
    tokenizer: Any
    stack: RecipeStack
    members: tuple[Dialogue, ...]
    """All that is trained on, canaries too."""
    calibration: tuple[Dialogue, ...]
    schema: Schema
    settings: TrainerSettings
    max_length: int
    checkpoint_dir: Path
    seed: int
    watch: Watch | None = None
    """What looks at the bot; of the other processes, one that sees nothing."""
    store: Path | None = None
    """Where the processes meet."""


@contextmanager
def together(job: Job) -> Iterator[Share]:
    """Start the other processes on a job, and yield this one's share of it.

    Raises:
        HushbotError: Another process failed.
    """
    n_ranks = job.settings.n_processes
    if n_ranks == 1:
        yield ALONE
        return
    with tempfile.TemporaryDirectory(prefix="hushbot-") as folder:
        store = Path(folder) / "store"
        settings = replace(job.settings, progress_bar=False, num_threads=n_threads_of(job.settings))
        theirs = replace(job, settings=settings, watch=unseeing(job.watch), store=store)
        around = [held_to(settings.num_threads)] * (n_ranks - 1)
        with Ranks(_train_beside, theirs, n_ranks, around) as others:
            with joined(job.settings, 0, store) as share:
                yield share
            others.results()


@contextmanager
def joined(settings: TrainerSettings, rank: int, store: Path) -> Iterator[Share]:
    """Join the processes of a training, and leave them afterwards."""
    n_ranks, told = settings.n_processes, {_INTERFACE: _LOOPBACK}  # gloo looks there whenever it makes a group
    if settings.zero_stage is not None:  # likewise DeepSpeed, whenever it computes
        index = settings.devices[rank] if isinstance(settings.devices, list) else rank
        told |= {"LOCAL_RANK": str(index), "DS_ACCELERATOR": "cuda" if _is_on_gpus(settings) else "cpu"}
    with _environment(told):
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if _is_on_gpus(settings) else "gloo",
                init_method=store.absolute().as_uri(),
                rank=rank,
                world_size=n_ranks,
                timeout=_PATIENCE,
            )
            yield Share(rank, n_ranks, is_lockstep=settings.is_parted)
        finally:
            if dist.is_initialized():
                _leave_group(settings)


@contextmanager
def _environment(told: Mapping[str, str]) -> Iterator[None]:
    """Set variables for libraries that know no other way to be told."""
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _leave_group(settings: TrainerSettings) -> None:
    if settings.zero_stage is None:
        dist.destroy_process_group()
        return
    from hushbot.training.zero import leave_group

    leave_group()


def _train_beside(job: Job, rank: int) -> None:
    """Train this process's share; the first process has the results."""
    from hushbot.training.fit import train_share  # fit imports this module

    if job.store is None:
        raise ConfigError("the processes of a training have no place to meet; start them with `together`")
    with joined(job.settings, rank, job.store) as share:
        train_share(job, share)


def n_threads_of(settings: TrainerSettings) -> int | None:
    """Return how many threads each process computes with, together no more than torch has here; None for all."""
    if settings.num_threads is not None or settings.n_processes == 1:
        return settings.num_threads
    return threads_each(torch.get_num_threads(), settings.n_processes)


def check_machine(settings: TrainerSettings) -> None:
    """Refuse what this machine cannot do, before any process is started.

    Raises:
        ConfigError: There are too few GPUs, or another launcher has started several of this command.
    """
    n_ranks = settings.n_processes
    if n_ranks == 1:
        return
    problems = []
    if settings.zero_stage is not None and find_spec("deepspeed") is None:
        problems.append(
            f"strategy={settings.strategy} needs DeepSpeed: `pip install 'hushbot[deepspeed]'`, or set "
            "trainer.strategy=fsdp"
        )
    if _is_on_gpus(settings):
        wanted = settings.devices if isinstance(settings.devices, list) else list(range(settings.devices))
        n_gpus = torch.cuda.device_count()
        if max(wanted) >= n_gpus:
            problems.append(
                f"devices={settings.devices} names GPU {max(wanted)} (counted from 0), this machine has {n_gpus}; "
                "lower trainer.devices or set trainer.accelerator=cpu"
            )
    elif settings.accelerator not in ("auto", "cpu"):
        problems.append(
            f"devices={settings.devices}: several processes need GPUs of NVIDIA or accelerator=cpu, not "
            f"{settings.accelerator!r}; set trainer.devices=1"
        )
    elif isinstance(settings.devices, list):
        problems.append(f"devices={settings.devices} names GPUs, there are none; set trainer.devices={n_ranks}")
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        problems.append(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: another launcher, such as torchrun, has started this command "
            f"several times; start it once, trainer.devices={settings.devices} starts the processes"
        )
    if problems:
        raise ConfigError(*problems)


def _is_on_gpus(settings: TrainerSettings) -> bool:
    return settings.accelerator in ("gpu", "cuda") or (settings.accelerator == "auto" and torch.cuda.is_available())


class _Unseeing:
    """Stands for a watch in the processes that do not look."""

    description = ""

    def __init__(self, watch: Watch) -> None:
        self.every, self.stops, self.fingerprint = watch.every, watch.stops, watch.fingerprint

    def look(self, model: nn.Module) -> dict[str, Any]:
        """See nothing."""
        return {}

    def excess(self, measured: Mapping[str, Any]) -> None:
        """Find nothing."""


def unseeing(watch: Watch | None) -> Watch | None:
    """Return what stands for a watch in a process that only hears what the first one sees."""
    return None if watch is None else _Unseeing(watch)


def to_train(model: nn.Module, settings: TrainerSettings) -> nn.Module:
    """Return the model to train: itself, or where weights are parted a copy, since no model becomes whole again."""
    return copy.deepcopy(model) if settings.n_processes > 1 and settings.is_parted else model


def strategy_of(settings: TrainerSettings, share: Share) -> Strategy | str:
    """Return how Lightning trains."""
    if share.size == 1:
        return "auto"
    environment = _Environment(share)
    if settings.zero_stage is not None:
        from hushbot.training.zero import ZeroStrategy  # it imports this module

        stage, limit = settings.zero_stage, settings.max_grad_norm
        return ZeroStrategy(stage=stage, max_grad_norm=limit, cluster_environment=environment)
    kind = ShardedStrategy if settings.is_parted else JointStrategy
    return kind(cluster_environment=environment)


class TermSignal(pl.Callback):
    """Let SIGTERM end the processes.

    Lightning's own handler talks to the other processes wherever it interrupts this one, amidst what they were
    talking about: they then wait for each other.
    """

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the place of Lightning's handler, which puts back the one before it when training ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _leave if trainer.is_global_zero else signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class _Environment(ClusterEnvironment):
    """Tells Lightning which process this is; the processes run and know each other already."""

    creates_processes_externally = True
    main_address = "127.0.0.1"
    main_port = 0

    def __init__(self, share: Share) -> None:
        self._share = share

    @staticmethod
    def detect() -> bool:
        """Never be chosen by itself."""
        return False

    def world_size(self) -> int:
        """Return how many processes there are."""
        return self._share.size

    def set_world_size(self, size: int) -> None:
        """Know better."""

    def global_rank(self) -> int:
        """Return which one this is."""
        return self._share.rank

    def set_global_rank(self, rank: int) -> None:
        """Know better."""

    def local_rank(self) -> int:
        """Return which one this is on this machine: there is only one."""
        return self._share.rank

    def node_rank(self) -> int:
        """Return which machine this is: the only one."""
        return 0


class JointStrategy(DDPStrategy):
    """Each process has the whole module, as it is; `TaskBot` adds up what must be the same."""

    def _configure_launcher(self) -> None:
        """Start nothing: the processes run."""

    def _setup_model(self, model: Any) -> Any:
        """Give each process the first one's weights and leave the module unwrapped."""
        for tensor in (*model.parameters(), *model.buffers()):
            dist.broadcast(tensor.data, 0)
        return model

    def _register_ddp_hooks(self) -> None:
        """Have none: nothing is wrapped."""


class ShardedStrategy(JointStrategy):
    """Each process holds a part of every weight."""

    def model_to_device(self) -> None:
        """Leave the model where it is: it is too large for one device, perhaps."""

    def _setup_model(self, model: Any) -> Any:
        """Part the weights, layer by layer."""
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        inner = model.model
        base = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        layers = set(getattr(base, "_no_split_modules", None) or ())
        for module in [m for m in base.modules() if type(m).__name__ in layers]:
            fully_shard(module, mesh=mesh)
        fully_shard(inner, mesh=mesh)
        for module in inner.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)  # a sum, not a mean
                module.set_force_sum_reduction_for_comms(True)
        model.to(self.root_device)  # buffers
        return model

    def validation_step(self, *args: Any) -> Any:
        """Give up again what a pass without a backward pass leaves whole: the first and the last layer."""
        found = super().validation_step(*args)
        module: Any = self.lightning_module
        module.model.reshard()
        return found

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the trained weights, whole, in the first process's memory; all take part."""
        module: Any = self.lightning_module
        return {name: whole(weight.detach()).cpu() for name, weight in module.trainable().items()}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the optimiser's state, whole, as one process's optimiser would have it."""
        state: dict[str, Any] = dict(super().optimizer_state(optimizer))
        moments = {
            key: {name: whole(value) if torch.is_tensor(value) else value for name, value in of_weight.items()}
            for key, of_weight in state["state"].items()
        }
        return {**state, "state": moments}

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Take over whole states, each process its part."""
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            moments = {
                key: {
                    name: parted_like(value, weights[key]) if torch.is_tensor(value) and value.dim() else value
                    for name, value in of_weight.items()
                }
                for key, of_weight in state["state"].items()
            }
            optimizer.load_state_dict({**state, "state": moments})
