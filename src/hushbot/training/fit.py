"""Train one bot: settings in, trained weights in place, one `FitResult` out.

Guarantees: on a CPU the same inputs give bit-identical weights, also when the run was killed at any moment
and called again with the same arguments; `checkpoints/last.ckpt` is picked up by itself. The caller's random
state, thread count and working directory are left as they were. Only `split.trained` is trained on (the members, and
the canaries that their coins chose) and only `split.calibration` is looked at besides.

Void when the number of threads or processes differs between the attempts (floating-point sums then differ in the
last bits), on GPUs, whose kernels are not all deterministic, and for private recipes, whose noise must never repeat.

Torch and Lightning are imported when training starts: a configuration can be checked without them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hushbot.errors import ConfigError
from hushbot.schema import Schema
from hushbot.training.stack import WHOLE, RecipeStack
from hushbot.types import AuditSplit, PrivacyInfo

if TYPE_CHECKING:
    from torch import nn

    from hushbot.training.callbacks import BestWeights
    from hushbot.training.data import DialogueData
    from hushbot.training.joint import Job
    from hushbot.training.module import EpochRecord, TaskBot
    from hushbot.training.share import Share
    from hushbot.training.watching import Watch, Watcher

CHECKPOINT_NAME = "last.ckpt"
_ZERO_STAGES = {"deepspeed": 2, "deepspeed_stage_1": 1, "deepspeed_stage_2": 2, "deepspeed_stage_3": 3}


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """How long and how fast to train, and on what."""

    no_effect: ClassVar[tuple[str, ...]] = ("checkpoint_every_n_steps", "keep_checkpoints", "progress_bar", "strategy")
    """Settings that change no weight beyond rounding: they are not hashed, and may differ when a run is resumed."""
    resumable: ClassVar[tuple[str, ...]] = ("devices",)
    """Settings that are hashed, since they change the last bits, and may differ all the same when a run is resumed."""

    max_epochs: int = 12
    """Passes over the members, at most; 0 trains nothing."""
    min_epochs: int = 1
    """With early stopping: neither stop before this epoch nor take the weights of an earlier one."""
    batch_size: int = 8
    """Dialogues per optimiser step."""
    learning_rate: float = 1e-3
    """The highest learning rate (AdamW)."""
    weight_decay: float = 0.0
    """Decoupled weight decay (AdamW)."""
    warmup_fraction: float = 0.05
    """Share of all steps during which the learning rate rises."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    max_grad_norm: float | None = 1.0
    """Scale a step's gradient down to this norm; null never does."""
    patience: int | None = None
    """Stop after so many epochs without a lower calibration loss, keep the best weights; null never stops."""
    accelerator: str = "auto"
    """Lightning's accelerator: `auto`, `cpu`, `gpu`, `mps`."""
    devices: int | list[int] = 1
    """How many devices train this one bot, a process each, or their indices in a list, as in [2]; several arms run as
    several processes anyway."""
    strategy: str = "auto"
    """How several processes train together: `ddp`, where each has the whole bot; `fsdp`, where each has a part of every
    weight; `deepspeed_stage_1`, `_2` and `_3`, where each has a part of the optimiser's state, of the gradients too, of
    the weights too (`deepspeed` is stage 2); `auto` is ddp."""
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    """`auto` is bf16-mixed on a CUDA device that supports it, else 32-true."""
    checkpoint_every_n_steps: int | None = None
    """Also write the checkpoint after this many steps; null writes it after each epoch only."""
    keep_checkpoints: bool = False
    """Leave `checkpoints/last.ckpt` behind after success."""
    progress_bar: bool = True
    """Show a bar on a terminal, one line per epoch elsewhere; false shows nothing."""
    num_threads: int | None = None
    """Threads of the computation on a CPU; null leaves torch's choice."""

    def __post_init__(self) -> None:
        rules = (
            ("max_epochs", self.max_epochs >= 0, "at least 0"),
            ("min_epochs", self.min_epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "positive and finite"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0 and finite"),
            ("warmup_fraction", 0 <= self.warmup_fraction <= 1, "in [0, 1]"),
            ("schedule", self.schedule in ("cosine", "linear", "constant"), "cosine, linear or constant"),
            ("max_grad_norm", self.max_grad_norm is None or self.max_grad_norm > 0, "positive or null"),
            ("patience", self.patience is None or self.patience >= 1, "at least 1 or null"),
            ("devices", _are_devices(self.devices), "at least 1 or a list of different device indices"),
            ("precision", self.precision in ("auto", "32-true", "bf16-mixed"), "auto, 32-true or bf16-mixed"),
            ("checkpoint_every_n_steps", _is_count(self.checkpoint_every_n_steps), "at least 1 or null"),
            ("num_threads", _is_count(self.num_threads), "at least 1 or null"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set trainer.{name}" for name, ok, rule in rules if not ok
        ]
        problems += _strategy_problems(self.strategy, self.n_processes)
        if self.patience is not None and 0 < self.max_epochs < self.min_epochs:
            problems.append(
                f"min_epochs={self.min_epochs} must be at most max_epochs={self.max_epochs}; set trainer.min_epochs"
            )
        if problems:
            raise ConfigError(*problems)

    @property
    def n_processes(self) -> int:
        """Return how many processes train together."""
        return self.devices if isinstance(self.devices, int) else len(self.devices)

    @property
    def zero_stage(self) -> int | None:
        """Return which stage of DeepSpeed's ZeRO is asked for; None for none."""
        return _ZERO_STAGES.get(self.strategy)

    @property
    def is_parted(self) -> bool:
        """Return whether no process has all of the bot and of what trains it."""
        return self.strategy not in WHOLE


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What training came to; the weights are in the model that was handed in."""

    epochs: int
    """Epochs trained, all attempts of a resumed run together."""
    steps: int
    """Optimiser steps."""
    tokens_trained: int
    """Tokens the model processed in training, each packed sequence once per epoch."""
    supervised_tokens: int
    """Tokens with a loss in one pass over the members."""
    seconds: float
    """Training time; of an interrupted attempt, up to its last checkpoint."""
    stopped_early: bool
    best_calibration_loss: float | None
    """Per token, lowest over the epochs that count; None when nothing was measured."""
    n_truncated: int
    """Examples of the members that lost their oldest history to fit the length limit, in the first epoch's form."""
    history: tuple[EpochRecord, ...] = ()
    """One record per epoch; with a watch also one of epoch 0, before any step."""
    seconds_watching: float = 0.0
    """Time that a watch took, which is no training time."""
    privacy: PrivacyInfo | None = None
    """The differential privacy that the weights have; None where no recipe gives any."""
    notes: tuple[str, ...] = ()
    """What the recipes and the training have to say, for the report."""


def fit(
    model: nn.Module,
    tokenizer: Any,
    *,
    stack: RecipeStack,
    split: AuditSplit,
    schema: Schema,
    settings: TrainerSettings,
    max_length: int,
    checkpoint_dir: Path,
    seed: int,
    watch: Watch | None = None,
) -> FitResult:
    """Train a model in place on the members of a split, and on the canaries that their coins chose.

    Args:
        model: A causal language model with its adapter; left in evaluation mode.
        tokenizer: Its tokenizer.
        stack: The recipes.
        split: Members and chosen canaries are trained on, the calibration part is for early stopping alone.
        schema: For recipes that rewrite.
        settings: How to train.
        max_length: Longest example in tokens.
        checkpoint_dir: Where `last.ckpt` is kept and looked for; a privacy ledger lies beside this folder.
        seed: Decides order, rewriting and dropout.
        watch: Measures the bot after every few epochs, and may end training; None measures its losses only.

    Raises:
        ConfigError: Early stopping is on and there is no calibration part; or what a watch sees of members would end a
            training that promises privacy.
        DataError: Dialogues cannot be trained on; all of them are named.
        PrivacyError: A guarantee that a recipe promises would be void.
        HushbotError: The loss is not finite, the weights do not move, or the checkpoint is another run's.
    """
    from hushbot.training.joint import Job, together
    from hushbot.training.loop import remove_checkpoint
    from hushbot.training.planning import check_settings, guarantee
    from hushbot.training.watching import OUTSIDE_THE_GUARANTEE

    job = Job(
        model=model,
        tokenizer=tokenizer,
        stack=stack,
        members=split.trained,
        calibration=split.calibration,
        schema=schema,
        settings=settings,
        max_length=max_length,
        checkpoint_dir=checkpoint_dir,
        seed=seed,
        watch=watch,
    )
    data = _data_of(job)
    if settings.max_epochs == 0:
        return _untrained(data)
    check_settings(stack, data, settings, watch)
    with together(job) as share:
        module, result = train_share(job, share, data)
    notes = (*stack.notes(split.members, schema, seed=seed), *module.notes(), *result.notes, *_joint_notes(settings))
    if watch is not None and stack.privacy_unit is not None:
        notes = (*notes, OUTSIDE_THE_GUARANTEE)
    result = replace(result, privacy=guarantee(stack, module), notes=notes)
    if not settings.keep_checkpoints:  # not earlier: without it, what was trained could not be reported any more
        remove_checkpoint(checkpoint_dir / CHECKPOINT_NAME)
    return result


def train_share(job: Job, share: Share, data: DialogueData | None = None) -> tuple[TaskBot, FitResult]:
    """Train this process's share of a bot; with one process, all of it.

    Args:
        job: What all processes train.
        share: Which part is this one's.
        data: The job's, where it is at hand.
    """
    from hushbot.training.joint import to_train
    from hushbot.training.planning import plan_module, plan_training

    data = _data_of(job) if data is None else data
    data.share = share
    plan = plan_training(data, job.settings, job.watch)
    share.check_same("data, settings or versions", plan)
    module = plan_module(to_train(job.model, job.settings), job.stack, data, plan, job.schema)
    module.share = share
    return module, _train(module, data, job)


def _data_of(job: Job) -> DialogueData:
    from hushbot.training.data import DialogueData, Packer

    return DialogueData(
        members=job.members,
        calibration=job.calibration,
        schema=job.schema,
        packer=Packer(job.stack, job.tokenizer, job.max_length),
        batch_size=job.settings.batch_size,
        seed=job.seed,
    )


def _joint_notes(settings: TrainerSettings) -> tuple[str, ...]:
    if settings.n_processes == 1:
        return ()
    how = settings.strategy if settings.is_parted else "ddp"
    return (
        f"trained by {settings.n_processes} processes together ({how}): the logical batches of one, with sums in "
        "another order",
    )


def _untrained(data: DialogueData) -> FitResult:
    return FitResult(
        epochs=0,
        steps=0,
        tokens_trained=0,
        supervised_tokens=data.n_supervised,
        seconds=0.0,
        stopped_early=False,
        best_calibration_loss=None,
        n_truncated=_n_truncated(data),
    )


def _n_truncated(data: DialogueData) -> int:
    return sum(packed.n_truncated for packed in data.packs(0))


def _train(module: TaskBot, data: DialogueData, job: Job) -> FitResult:
    from hushbot.training.callbacks import BestWeights
    from hushbot.training.joint import n_threads_of
    from hushbot.training.loop import make_trainer, quiet_lightning, reproducible, resuming
    from hushbot.training.watching import Watcher

    settings, path = job.settings, job.checkpoint_dir / CHECKPOINT_NAME
    data.batches = module.plan_batches(data, settings, job.checkpoint_dir.parent)
    n_truncated = _n_truncated(data)
    best, watcher = None, None if job.watch is None else Watcher(job.watch)
    if settings.patience is not None:
        best = BestWeights(patience=settings.patience, min_epochs=settings.min_epochs)
    with quiet_lightning():
        trainer = make_trainer(settings, data, path, [one for one in (best, watcher) if one is not None])
        with reproducible(trainer, n_threads_of(settings)), resuming(path, module) as found:
            module.train()
            trainer.fit(module, datamodule=data, ckpt_path=None if found is None else str(found), weights_only=True)
            module.eval()
    kept = _keep_weights(module.on_whole_weights(job.model), best, watcher)
    losses = [r.calibration_loss for r in module.history if r.calibration_loss is not None]
    return FitResult(
        epochs=module.history[-1].epoch if module.history else 0,
        steps=trainer.global_step,
        tokens_trained=module.tokens_trained,
        supervised_tokens=data.n_supervised,
        seconds=module.seconds,
        stopped_early=trainer.global_step < settings.max_epochs * data.batches.n_steps,
        best_calibration_loss=best.best_loss if best is not None and best.weights else min(losses, default=None),
        n_truncated=n_truncated,
        history=tuple(module.history),
        seconds_watching=0.0 if watcher is None else watcher.seconds,
        notes=() if watcher is None else watcher.notes(settings.max_epochs, kept),
    )


def _keep_weights(module: TaskBot, best: BestWeights | None, watcher: Watcher | None) -> int | None:
    """Put the weights into the module that training is to end with; return the epoch they are of, None for the last."""
    is_stopped = watcher is not None and watcher.excess is not None
    # The best epoch may be one that leaks too much; before it did, all that was looked at was within the budget.
    is_too_late = best is None or not best.weights or (watcher is not None and best.best_epoch > watcher.epoch_within)
    if watcher is not None and is_stopped and watcher.weights and is_too_late:
        watcher.restore(module)
        return watcher.epoch_within
    if best is not None and best.weights:  # none where a privacy budget ended before min_epochs
        best.restore(module)
        return best.best_epoch
    return None


def _is_count(value: int | None) -> bool:
    return value is None or value >= 1


def _are_devices(devices: int | list[int]) -> bool:
    if isinstance(devices, int):
        return devices >= 1
    return len(devices) >= 1 and len(set(devices)) == len(devices) and min(devices) >= 0


def _strategy_problems(strategy: str, n_processes: int) -> list[str]:
    known = (*WHOLE, "fsdp", *_ZERO_STAGES)
    if strategy not in known:
        return [f"strategy={strategy!r} must be one of {', '.join(known)}; set trainer.strategy"]
    if strategy not in WHOLE and n_processes == 1:
        return [
            f"strategy={strategy!r} parts the training among processes, devices=1 is one; set trainer.devices=2 or more"
        ]
    return []
