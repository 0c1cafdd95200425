"""Lightning's trainer as hushbot sets it up: no logger, a checkpoint, and what else looks on.

Guarantees: on a CPU what it computes is deterministic; torch's random state, number of threads and choice of
algorithms are afterwards what they were; Lightning says nothing but its errors.

What voids them: callbacks that compute with torch's generators and do not put them back.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytorch_lightning as pl
import torch

from hushbot.errors import HushbotError
from hushbot.launching.ranks import is_broken_off
from hushbot.machine_faults import told
from hushbot.training.callbacks import AtomicCheckpointIO, EpochLines, LastCheckpoint
from hushbot.training.joint import TermSignal, strategy_of

if TYPE_CHECKING:
    from hushbot.training.data import DialogueData
    from hushbot.training.fit import TrainerSettings
    from hushbot.training.module import TaskBot


def make_trainer(
    settings: TrainerSettings, data: DialogueData, path: Path, onlookers: Sequence[pl.Callback]
) -> pl.Trainer:
    """Return the trainer.

    Args:
        settings: How long, and on what.
        data: What is trained on.
        path: Where the checkpoint lies.
        onlookers: Callbacks beside the checkpoint and the lines of progress, in the order in which they are called.
    """
    is_terminal = sys.stdout.isatty()  # where rich draws
    callbacks: list[pl.Callback] = [LastCheckpoint(path, settings.checkpoint_every_n_steps), *onlookers]
    if data.share.size > 1:
        callbacks.append(TermSignal())
    if settings.progress_bar:
        callbacks.append(pl.callbacks.RichProgressBar(leave=True) if is_terminal else EpochLines())
    return pl.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=strategy_of(settings, data.share),
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
    if settings.precision != "auto":
        return settings.precision
    is_cuda = settings.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return "bf16-mixed" if is_cuda and torch.cuda.is_bf16_supported() else "32-true"


@contextmanager
def reproducible(trainer: pl.Trainer, num_threads: int | None) -> Iterator[None]:
    """Compute deterministically on a CPU, and leave torch's global state as it was."""
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
def resuming(path: Path, module: TaskBot) -> Iterator[Path | None]:
    """Yield the checkpoint to go on from, None where there is none, and say its name where it does not fit.

    Raises:
        HushbotError: Something failed after the checkpoint was asked for and before training went on.
    """
    found = path if module.share.tell(path.exists()) else None
    try:
        yield found
    except HushbotError:
        raise
    except Exception as error:  # of a checkpoint that does not fit, Lightning makes any error there is
        if found is None or module.has_begun or told(error) is not None or is_broken_off(error):
            raise
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise HushbotError(
            f"{path} cannot be gone on from ({reason}); delete it to train from the start, or restore the versions of "
            "torch and pytorch-lightning that wrote it"
        ) from error


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Silence Lightning's hints about loggers, workers and products; its errors still come through."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(pytorch_lightning|lightning_fabric)")
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")  # meant for DeepSpeed
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, what a dying process left of one, and its folder where that is empty then."""
    path.unlink(missing_ok=True)
    path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
    if path.parent.is_dir() and not any(path.parent.iterdir()):
        path.parent.rmdir()
