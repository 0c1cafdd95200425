"""What happens beside the steps: the checkpoint, the best weights, and a line per epoch.

Guarantees: `last.ckpt` is the old one or the new one, whole, whenever the process dies (written beside it,
synced, renamed); it holds the best weights so far too, so a resumed run restores the same ones. Checkpoints
are read with `weights_only`: a file from elsewhere cannot run code. One that lacks a part is refused (see `outline`).
Nobody but the owner reads one (0600).
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Checkpoint
from pytorch_lightning.plugins.io import TorchCheckpointIO

from hushbot.errors import HushbotError
from hushbot.machine_faults import is_out_of_memory
from hushbot.training.module import EpochRecord, TaskBot
from hushbot.training.outline import OUTLINE_KEY, outline_sha256
from hushbot.types import Estimate


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write a checkpoint whole or not at all, on the file system where it lies."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write beside the target, sync, rename."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = target.with_name(f"{target.name}.tmp")
        scratch.unlink(missing_ok=True)  # one that somebody else may read stays so
        try:
            with open(scratch, "wb", opener=_for_the_owner) as file:
                torch.save({**checkpoint, OUTLINE_KEY: outline_sha256(checkpoint)}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, target)
        except BaseException:
            scratch.unlink(missing_ok=True)  # on a full disk, the room is needed for what is whole
            raise

    def load_checkpoint(self, path: Any, map_location: Any = "cpu", weights_only: bool | None = True) -> dict[str, Any]:
        """Read tensors and plain values; anything else in the file is refused.

        Raises:
            HushbotError: The file is damaged, holds something else, or is not as it was written.
        """
        try:
            checkpoint: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged archive makes torch fail in any way there is
            if is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise HushbotError(
                f"{path} is no checkpoint that can be read ({reason}); delete it to train from the start"
            ) from error
        if not isinstance(checkpoint, dict) or checkpoint.get(OUTLINE_KEY) != outline_sha256(checkpoint):
            raise HushbotError(
                f"{path} is not as it was written: a key or a value is missing, added or changed, or another program "
                "or version wrote it; delete it to train from the start"
            )
        del checkpoint[OUTLINE_KEY]
        return checkpoint


def _for_the_owner(path: str, flags: int) -> int:
    """Open a file that nobody else may read: an optimiser's moments tell more of the last dialogues than a bot does."""
    return os.open(path, flags, 0o600)


class LastCheckpoint(Checkpoint):
    """Keep one checkpoint: after each epoch, and every few steps inside.

    Args:
        path: Where it lies.
        every_n_steps: Also after this many optimiser steps; None for epochs only.
    """

    def __init__(self, path: Path, every_n_steps: int | None) -> None:
        self.path = path
        self.every_n_steps = every_n_steps

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save inside an epoch; the save after its last step waits for the calibration loss."""
        if self.every_n_steps and trainer.global_step % self.every_n_steps == 0 and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save after an epoch; Lightning calls this after all other callbacks and the module."""
        trainer.save_checkpoint(self.path)


class BestWeights(pl.Callback):
    """Remember the weights with the lowest calibration loss and stop when they are not beaten any more.

    Args:
        patience: Stop after this many epochs in a row that are no better.
        min_epochs: Neither stop before this epoch nor take the weights of an earlier one.
    """

    def __init__(self, *, patience: int, min_epochs: int) -> None:
        self.patience = patience
        self.min_epochs = min_epochs
        self.best_loss = math.inf
        self.best_epoch = 0
        self.last_epoch = 0
        self.weights: dict[str, torch.Tensor] = {}

    @property
    def is_patience_over(self) -> bool:
        """Return whether the best epoch is `patience` epochs ago."""
        return self.best_epoch > 0 and self.last_epoch - self.best_epoch >= self.patience

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop at once where a resumed run had already decided to."""
        trainer.should_stop = trainer.should_stop or self.is_patience_over

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the epoch's calibration loss with the best."""
        epoch = trainer.current_epoch + 1
        if not isinstance(pl_module, TaskBot) or epoch < self.min_epochs or epoch <= self.last_epoch:
            return
        self.last_epoch = epoch
        loss = pl_module.epoch_record().calibration_loss
        if loss is not None and loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, epoch
            self.weights = pl_module.kept_weights()
        trainer.should_stop = trainer.should_stop or self.is_patience_over

    def restore(self, module: TaskBot) -> None:
        """Put the best weights back."""
        module.put_back(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "best_loss": self.best_loss,
            "best_epoch": self.best_epoch,
            "last_epoch": self.last_epoch,
            "weights": self.weights,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        self.best_loss, self.best_epoch = state_dict["best_loss"], state_dict["best_epoch"]
        self.last_epoch, self.weights = state_dict["last_epoch"], state_dict["weights"]


class EpochLines(pl.Callback):
    """Print one line per epoch to stderr, for terminals that cannot draw a bar."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print what was seen before the first step, if anybody looked."""
        if isinstance(pl_module, TaskBot) and trainer.global_step == 0 and pl_module.history:
            _print(pl_module.history[0], trainer.max_epochs)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the epoch."""
        if isinstance(pl_module, TaskBot):
            _print(pl_module.epoch_record(), trainer.max_epochs)


def _print(record: EpochRecord, max_epochs: int | None) -> None:
    calibration = "" if record.calibration_loss is None else f"  calibration {record.calibration_loss:.4f}"
    loss = "" if record.train_loss is None else f"  loss {record.train_loss:.4f}"
    seen = "".join(f"  {name} {_shown(estimate)}" for name, estimate in record.measured.items())
    line = f"epoch {record.epoch}/{max_epochs}{loss}{calibration}{seen}  {record.seconds:.0f} s"
    print(line, file=sys.stderr, flush=True)


def _shown(estimate: Estimate) -> str:
    if estimate.value is None:
        return "not measured"
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
