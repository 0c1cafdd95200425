"""Train one bot: settings in, trained weights in place, one `FitResult` out.

Guarantees: on a CPU the same inputs give bit-identical weights, also when the run was killed at any moment
and called again with the same arguments; `checkpoints/last.ckpt` is picked up by itself. The caller's random
state, thread count and working directory are left as they were. Only `split.trained` is trained on (the members, and
the canaries that their coins chose) and only `split.calibration` is looked at besides.

Void when the number of threads differs between the attempts (floating-point sums then differ in the last
bits), on GPUs, whose kernels are not all deterministic, and for private recipes, whose noise must never repeat.

Torch and Lightning are imported when training starts: a configuration can be checked without them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hushbot.errors import ConfigError, PrivacyError
from hushbot.schema import Schema
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, PrivacyInfo

if TYPE_CHECKING:
    import pytorch_lightning as pl
    from torch import nn

    from hushbot.training.callbacks import BestWeights
    from hushbot.training.data import DialogueData
    from hushbot.training.module import EpochRecord, TaskBot, TrainingPlan

CHECKPOINT_NAME = "last.ckpt"


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """How long and how fast to train, and on what."""

    no_effect: ClassVar[tuple[str, ...]] = ("checkpoint_every_n_steps", "keep_checkpoints", "progress_bar")
    """Settings that change no weight: they are not hashed, and may differ when a run is resumed."""

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
    """One device: 1 for any, or its index in a list, as in [2]. Several arms run as several processes."""
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
            ("devices", self.devices == 1 or _is_one_index(self.devices), "1 or a list of one device index"),
            ("precision", self.precision in ("auto", "32-true", "bf16-mixed"), "auto, 32-true or bf16-mixed"),
            ("checkpoint_every_n_steps", _is_count(self.checkpoint_every_n_steps), "at least 1 or null"),
            ("num_threads", _is_count(self.num_threads), "at least 1 or null"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set trainer.{name}" for name, ok, rule in rules if not ok
        ]
        if self.patience is not None and 0 < self.max_epochs < self.min_epochs:
            problems.append(
                f"min_epochs={self.min_epochs} must be at most max_epochs={self.max_epochs}; set trainer.min_epochs"
            )
        if problems:
            raise ConfigError(*problems)


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

    Raises:
        ConfigError: Early stopping is on and there is no calibration part.
        DataError: Dialogues cannot be trained on; all of them are named.
        PrivacyError: A guarantee that a recipe promises would be void.
        HushbotError: The loss is not finite, the weights do not move, or the checkpoint is another run's.
    """
    from hushbot.training.data import DialogueData, Packer

    data = DialogueData(
        members=split.trained,
        calibration=split.calibration,
        schema=schema,
        packer=Packer(stack, tokenizer, max_length),
        batch_size=settings.batch_size,
        seed=seed,
    )
    if settings.max_epochs == 0:
        return _untrained(data)
    module = _plan(model, stack, data, settings, schema)
    result = _train(module, data, settings, checkpoint_dir)
    notes = (*stack.notes(split.members, schema, seed=seed), *module.notes())
    result = replace(result, privacy=_guarantee(stack, module), notes=notes)
    if not settings.keep_checkpoints:  # not earlier: without it, what was trained could not be reported any more
        _remove_checkpoint(checkpoint_dir / CHECKPOINT_NAME)
    return result


def _plan(
    model: nn.Module, stack: RecipeStack, data: DialogueData, settings: TrainerSettings, schema: Schema
) -> TaskBot:
    """Return the module that trains, once it is sure that it can do what settings and stack promise.

    Raises:
        ConfigError: Early stopping is on and there is no calibration part.
        PrivacyError: A guarantee that a recipe promises would be void.
    """
    from hushbot.training.module import TaskBot
    from hushbot.training.private_checks import check_alone

    if settings.patience is not None and not data.has_calibration:
        raise ConfigError(
            f"patience={settings.patience} needs calibration dialogues to stop by, there are none; "
            "set split.calibration or trainer.patience=null"
        )
    module = _trained_by(stack, TaskBot(model, plan_training(data, settings)))
    if stack.privacy_unit is not None:
        check_alone(stack, data.members, schema, seed=data.seed)
    return module


def _trained_by(stack: RecipeStack, module: TaskBot) -> TaskBot:
    """Return the module that trains.

    Raises:
        PrivacyError: The stack promises a guarantee, and what trains is not the module that gives it.
    """
    trains: TaskBot = stack.privatize(module)
    if stack.privacy_unit is None:
        return trains
    from hushbot.training.private_module import PrivateTaskBot

    promising = [recipe for recipe in stack.recipes if recipe.privacy_unit is not None]
    # A subclass may do with the members what no ledger sees.
    settings: object = getattr(trains, "settings", None)
    if type(trains) is not PrivateTaskBot or not any(settings is recipe for recipe in promising):
        raise PrivacyError(
            f"recipe={'+'.join(stack.names)} promises privacy per {stack.privacy_unit}, and what trains is a "
            f"{type(trains).__name__} that the promising recipe did not make; leave out the recipe that replaced it"
        )
    return trains


def _guarantee(stack: RecipeStack, module: TaskBot) -> PrivacyInfo | None:
    """Return what training guarantees.

    Raises:
        PrivacyError: The stack promises a guarantee, and there is none though the noise was secret.
    """
    from hushbot.training.private_module import PrivateTaskBot

    privacy = module.privacy()
    is_insecure = isinstance(module, PrivateTaskBot) and module.is_insecure
    if stack.privacy_unit is not None and privacy is None and not is_insecure:
        raise PrivacyError(
            f"recipe={'+'.join(stack.names)} promises privacy per {stack.privacy_unit}, and training gave no "
            "guarantee; start a new run in another directory"
        )
    return privacy


def plan_training(data: DialogueData, settings: TrainerSettings) -> TrainingPlan:
    """Return what decides the updates, as far as data and settings say."""
    from hushbot.training.module import TrainingPlan

    n_members = len(data.members)
    batch_size = min(settings.batch_size, n_members)
    total_steps = settings.max_epochs * data.batches.n_steps
    ignored = (*settings.no_effect, "accelerator", "devices", "num_threads")
    decisive = {key: value for key, value in asdict(settings).items() if key not in ignored}
    text = json.dumps([decisive, data.seed, data.fingerprint], sort_keys=True)
    return TrainingPlan(
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        warmup_steps=math.ceil(settings.warmup_fraction * total_steps),
        total_steps=total_steps,
        max_grad_norm=settings.max_grad_norm,
        normaliser=batch_size * data.n_supervised / n_members,
        batch_size=batch_size,
        seed=data.seed,
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
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


def _train(module: TaskBot, data: DialogueData, settings: TrainerSettings, checkpoint_dir: Path) -> FitResult:
    from hushbot.training.callbacks import BestWeights

    path = checkpoint_dir / CHECKPOINT_NAME
    data.batches = module.plan_batches(data, settings, checkpoint_dir.parent)
    n_truncated = _n_truncated(data)
    best = None
    if settings.patience is not None:
        best = BestWeights(patience=settings.patience, min_epochs=settings.min_epochs)
    with _quiet_lightning():
        trainer = _trainer(settings, data, path, best)
        with _reproducible(trainer, settings.num_threads):
            module.train()
            trainer.fit(module, datamodule=data, ckpt_path=str(path) if path.exists() else None, weights_only=True)
            module.eval()
    if best is not None and best.weights:  # none where a privacy budget ended before min_epochs
        best.restore(module)
    losses = [r.calibration_loss for r in module.history if r.calibration_loss is not None]
    return FitResult(
        epochs=len(module.history),
        steps=trainer.global_step,
        tokens_trained=module.tokens_trained,
        supervised_tokens=data.n_supervised,
        seconds=module.seconds,
        stopped_early=trainer.global_step < settings.max_epochs * data.batches.n_steps,
        best_calibration_loss=best.best_loss if best is not None and best.weights else min(losses, default=None),
        n_truncated=n_truncated,
        history=tuple(module.history),
    )


def _trainer(settings: TrainerSettings, data: DialogueData, path: Path, best: BestWeights | None) -> pl.Trainer:
    import pytorch_lightning as pl

    from hushbot.training.callbacks import AtomicCheckpointIO, EpochLines, LastCheckpoint

    is_terminal = sys.stdout.isatty()  # where rich draws
    callbacks: list[pl.Callback] = [LastCheckpoint(path, settings.checkpoint_every_n_steps)]
    if best is not None:
        callbacks.append(best)
    if settings.progress_bar:
        callbacks.append(pl.callbacks.RichProgressBar(leave=True) if is_terminal else EpochLines())
    return pl.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        precision=_precision(settings),
        max_epochs=settings.max_epochs,
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=str(path.parent),
        limit_val_batches=1.0 if data.has_calibration else 0,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        use_distributed_sampler=False,
        enable_progress_bar=settings.progress_bar and is_terminal,
        enable_model_summary=False,
    )


def _precision(settings: TrainerSettings) -> Literal["32-true", "bf16-mixed"]:
    import torch

    if settings.precision != "auto":
        return settings.precision
    is_cuda = settings.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return "bf16-mixed" if is_cuda and torch.cuda.is_bf16_supported() else "32-true"


@contextmanager
def _reproducible(trainer: pl.Trainer, num_threads: int | None) -> Iterator[None]:
    """Compute deterministically on a CPU, and leave torch's global state as it was."""
    import torch

    n_threads, was_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng():
        try:
            torch.set_num_threads(num_threads or n_threads)
            if trainer.strategy.root_device.type == "cpu":
                torch.use_deterministic_algorithms(True)
            yield
        finally:
            torch.use_deterministic_algorithms(was_deterministic)
            torch.set_num_threads(n_threads)


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Silence Lightning's hints about loggers, workers and products; its errors still come through."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric)")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _remove_checkpoint(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()


def _is_count(value: int | None) -> bool:
    return value is None or value >= 1


def _is_one_index(devices: int | list[int]) -> bool:
    return not isinstance(devices, int) and len(devices) == 1
