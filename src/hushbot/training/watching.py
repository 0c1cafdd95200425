"""Looking at a bot while it trains: what a cheap audit finds after every few epochs, and whether training goes on.

Guarantees: looking changes neither weights, gradients nor modes of the model, nor the state of any random generator, so
that the same seed gives the same weights with and without it. Its time is not counted as training time. The curve and
the weights to go back to are in the checkpoint: a run that was killed continues with both and stops after the same
epoch. A budget that could not be measured counts as passed. Whoever is trained with a privacy guarantee may be looked
at, but nothing that is seen decides when training ends.

Of several processes the first looks, and tells the others what it saw.

What voids them: a watch that changes the model it is shown; on a GPU, kernels that are not deterministic.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pytorch_lightning as pl
import torch
from torch import nn

from hushbot.training.module import EpochRecord, TaskBot
from hushbot.types import Estimate

OUTSIDE_THE_GUARANTEE = (
    "watch: what was measured on members while the bot trained is outside the guarantee; epsilon does not bound what a "
    "reader of the curve learns of them"
)


class Watch(Protocol):
    """Something that measures a bot in training; `hushbot.evaluation.watch` has one."""

    @property
    def every(self) -> int:
        """Epochs from one look to the next."""
        ...

    @property
    def stops(self) -> bool:
        """Whether training ends when too much leaks; otherwise nothing that is seen has an effect."""
        ...

    @property
    def fingerprint(self) -> str:
        """Everything that decides whether and when training ends, as one text."""
        ...

    @property
    def description(self) -> str:
        """What is measured, on whom and how, for the report."""
        ...

    def look(self, model: nn.Module) -> dict[str, Estimate]:
        """Return what the model leaks and is worth now, by metric; what could not be measured says why."""
        ...

    def excess(self, measured: Mapping[str, Estimate]) -> str | None:
        """Return what of that is over the budget, in words; None where nothing is."""
        ...


class Watcher(pl.Callback):
    """Look before the first epoch, after every few, and after the last; stop when too much leaks.

    The look before the first epoch is the curve's own control and decides nothing. Where training is stopped, the
    weights of the last look within the budget are kept; where there was none, those of the epoch that was over it.

    Args:
        watch: What looks.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.seconds = 0.0
        """Time spent looking."""
        self.excess: str | None = None
        """Why training ended; None where it did not for what was seen."""
        self.stopped_after = 0
        """The epoch after which it did."""
        self.epoch_within = 0
        """The last epoch that was looked at and within the budget; 0 where there was none."""
        self.weights: dict[str, torch.Tensor] = {}
        """The trainable weights of that epoch, where they may be needed."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop at once where a resumed run had already decided to."""
        trainer.should_stop = trainer.should_stop or self.excess is not None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the bot before its first step."""
        if isinstance(pl_module, TaskBot) and trainer.global_step == 0 and not pl_module.history:
            measured = self._look(pl_module)
            pl_module.history.append(
                EpochRecord(epoch=0, train_loss=None, calibration_loss=None, seconds=0.0, measured=measured)
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Look at the bot where it is time to; a resumed run may come by here again, and looks once."""
        epoch = trainer.current_epoch + 1
        if not isinstance(pl_module, TaskBot) or pl_module.has_recorded(epoch):
            return
        # The last epoch too, whoever ends training: the bot that is kept was looked at.
        if epoch % self.watch.every and epoch != trainer.max_epochs and not trainer.should_stop:
            return
        pl_module.measured = self._look(pl_module)
        for name, estimate in pl_module.measured.items():
            if estimate.value is not None:
                pl_module.log(f"watch/{name}", estimate.value, prog_bar=True)
        if self.watch.stops:
            self._decide(trainer, pl_module, epoch)

    def restore(self, module: TaskBot) -> None:
        """Put the weights of the last look within the budget back."""
        module.put_back(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "seconds": self.seconds,
            "excess": self.excess,
            "stopped_after": self.stopped_after,
            "epoch_within": self.epoch_within,
            "weights": self.weights,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what a checkpoint kept."""
        self.seconds, self.excess = state_dict["seconds"], state_dict["excess"]
        self.stopped_after, self.epoch_within = state_dict["stopped_after"], state_dict["epoch_within"]
        self.weights = state_dict["weights"]

    def notes(self, max_epochs: int, weights_of: int | None) -> tuple[str, ...]:
        """Return what the report should say of it.

        Args:
            max_epochs: How many epochs were planned.
            weights_of: The epoch that the bot's weights are of; None for the last one.
        """
        seen = f"watch: {self.watch.description}"
        if self.excess is None:
            return (seen,)
        return (
            seen,
            f"watch: training stopped after epoch {self.stopped_after} of {max_epochs}: {self.excess}; "
            f"the bot has the weights of epoch {weights_of or self.stopped_after}, {self._standing(weights_of)}",
            "watch: what was seen of members, calibration and control dialogues decided when training stopped, which "
            "the intervals of the audit do not take into account; of non-members nothing was seen",
        )

    def _standing(self, weights_of: int | None) -> str:
        """Return how those weights stand to the budget."""
        if weights_of is not None and weights_of == self.epoch_within:
            return "the last look that was within the budget"
        if weights_of is not None and weights_of < self.epoch_within:
            return f"of the lowest calibration loss; epoch {self.epoch_within} was still within the budget"
        return "and no look was ever within the budget: lower trainer.learning_rate or watch.every, or raise the budget"

    def _look(self, module: TaskBot) -> dict[str, Estimate]:
        """Return what is measured, the module as it was before."""
        started = time.perf_counter()
        with _untouched(module.model):
            measured: dict[str, Estimate] = module.share.tell(self.watch.look(module.model))
        spent = time.perf_counter() - started
        self.seconds += spent
        module.leave_out(spent)
        return measured

    def _decide(self, trainer: pl.Trainer, module: TaskBot, epoch: int) -> None:
        """Keep the weights, or stop."""
        self.excess = module.share.tell(self.watch.excess(module.measured))
        if self.excess is None:
            self.epoch_within = epoch
            self.weights = module.kept_weights()
            return
        self.stopped_after = epoch
        trainer.should_stop = True


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Put back afterwards which parts of a model are in training, and the state of all random generators."""
    modes = [(module, module.training) for module in model.modules()]
    plain, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            random.setstate(plain)
            np.random.set_state(arrays)
