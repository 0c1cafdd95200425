"""The Lightning module that fine-tunes a task bot: one logical batch of dialogues, one optimiser step.

Guarantees:

* Optimisation is manual. Each dialogue has its own backward pass, so memory is that of one dialogue, and a
  private recipe can clip each dialogue's gradient by itself (`fill_gradients` is the method it replaces).
* A step's gradient is the summed loss of its dialogues divided by a constant: batch size times the mean
  number of supervised tokens of a member. Over an epoch this is the mean over all supervised tokens, long and
  short dialogues alike; being constant it depends neither on which dialogues met in a batch nor on where a
  run was resumed.
* A loss or gradient norm that is not finite is an error, never a skipped step; so is such a weight after the
  first step and at the end. After the first step at least one trainable weight must have moved, and the
  optimiser must hold the very tensors that the model computes with (meta-pytorch/opacus #820: losses fell
  while the adapter that was saved never changed).
* Where several processes train together, each computes its part of the batch, and sums are over all of them: gradients,
  losses, counts. Everything after that, each process does alike.
* A checkpoint holds the trainable weights, optimiser, schedule, counters and the torch random state, all
  loadable with `weights_only`; it is refused by a run with other data or settings.

The calibration loss is taken on held-out calibration dialogues, never on non-members.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hushbot.errors import HushbotError
from hushbot.training.data import Batches, DialogueData
from hushbot.training.packing import PackedDialogue, loss_sum, made_up
from hushbot.training.share import ALONE, Share, part_of, parted_like, whole
from hushbot.types import Estimate, PrivacyInfo

if TYPE_CHECKING:
    from hushbot.training.fit import TrainerSettings

STATE_KEY = "hushbot"


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Everything that decides a run's updates, as plain values; stored in each checkpoint."""

    learning_rate: float
    """The highest learning rate, reached at the end of the warm-up."""
    weight_decay: float
    schedule: Literal["cosine", "linear", "constant"]
    """How the learning rate falls after the warm-up."""
    warmup_steps: int
    total_steps: int
    """Planned optimiser steps; the schedule ends there."""
    max_grad_norm: float | None
    """Gradient norm above which a step's gradient is scaled down; None never scales."""
    normaliser: float
    """What a step's summed loss is divided by."""
    batch_size: int
    """Dialogues per logical batch."""
    seed: int
    fingerprint: str
    """Of data and settings: a checkpoint with another one belongs to another run."""

    def learning_rate_factor(self, step: int) -> float:
        """Return what the highest learning rate is multiplied by in a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What one epoch came to; losses are per supervised token."""

    epoch: int
    """Counted from 1."""
    train_loss: float | None
    """Mean over the epoch, each dialogue as the weights were when it was its turn; None when not recorded."""
    calibration_loss: float | None
    """After the epoch; None when there is no calibration part."""
    seconds: float
    """Training time up to here, interrupted attempts included as far as their checkpoints know."""
    measured: Mapping[str, Estimate] = field(default_factory=dict)
    """What a watch saw after the epoch, by metric; empty where nobody looked."""

    def as_plain(self) -> dict[str, Any]:
        """Return the record as a checkpoint keeps it."""
        seen = {name: estimate.model_dump() for name, estimate in self.measured.items()}
        return {**asdict(replace(self, measured={})), "measured": seen}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> EpochRecord:
        """Return the record that a checkpoint kept; those before there were watches have nothing measured."""
        seen = {name: Estimate(**estimate) for name, estimate in plain.get("measured", {}).items()}
        return cls(**{**plain, "measured": seen})


class TaskBot(pl.LightningModule):
    """Fine-tune a causal language model on packed dialogues.

    Args:
        model: A transformers model, with or without a peft adapter; its trainable parameters are trained.
        plan: What decides the updates.
    """

    def __init__(self, model: nn.Module, plan: TrainingPlan) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.strict_loading = False  # checkpoints hold trainable weights only; on_load_checkpoint checks them
        self.save_hyperparameters(asdict(plan))
        self.model = model
        self.plan = plan
        self.history: list[EpochRecord] = []
        self.measured: Mapping[str, Estimate] = {}
        """What a watch saw after the epoch that is ending."""
        self.share: Share = ALONE
        """This process's part in the training."""
        self._wrapper: tuple[nn.Module, ...] = ()  # a tuple, since a module would become a part of this one
        self.final_weights: dict[str, Tensor] = {}
        """The whole trained weights, where each process has a part of them only."""
        self.tokens_trained = 0
        self.has_begun = False
        """Whether training has started, or gone on from its checkpoint."""
        self._epoch_loss = 0.0
        self._epoch_tokens = 0
        self._calibration_loss = 0.0
        self._calibration_tokens = 0
        self._seconds_before = 0.0
        self._started: float | None = None
        self._random_state: Mapping[str, Any] | None = None

    def plan_batches(self, data: DialogueData, settings: TrainerSettings, run_dir: Path) -> Batches:
        """Return how members are grouped into logical batches; a private recipe samples them instead.

        Args:
            data: The members.
            settings: How long and how fast to train.
            run_dir: Where a private recipe keeps its ledger.
        """
        return data.batches

    def privacy(self) -> PrivacyInfo | None:
        """Return the guarantee that training gave; None without one."""
        return None

    def notes(self) -> tuple[str, ...]:
        """Return what the report should say of this training."""
        return ()

    @property
    def passes(self) -> nn.Module:
        """Return what computes logits: the model, or the engine around it that also clips and steps."""
        return self._wrapper[0] if self._wrapper else self.model

    def pass_through(self, engine: nn.Module) -> None:
        """Compute by an engine around the model from now on."""
        self._wrapper = (engine,)

    @property
    def seconds(self) -> float:
        """Return the training time so far."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._seconds_before + running

    def leave_out(self, seconds: float) -> None:
        """Take time that passed just now for something other than training."""
        if self._started is not None:
            self._started += seconds

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name; tied weights stand once."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def kept_weights(self) -> dict[str, Tensor]:
        """Return a copy of the trainable weights, whole and off the accelerator, to `put_back` later."""
        return {name: whole(weight).detach().cpu().clone() for name, weight in self.trainable().items()}

    def put_back(self, weights: Mapping[str, Tensor]) -> None:
        """Make the trainable weights what they were when they were kept."""
        with torch.no_grad():
            for name, weight in self.trainable().items():
                weight.copy_(parted_like(weights[name], weight))

    def on_whole_weights(self, model: nn.Module) -> TaskBot:
        """Return the module of a model with all of the trained weights: this one, unless it has a part of them only."""
        if not self.share.is_lockstep:
            return self
        module = TaskBot(model, self.plan)
        module.put_back(self.final_weights)
        model.eval()
        return module

    # --- the step ---

    def training_step(self, batch: list[PackedDialogue], batch_idx: int) -> None:
        """Take one optimiser step on one logical batch."""
        optimizer: Any = self.optimizers()
        scheduler: Any = self.lr_schedulers()
        is_first = self.global_step == 0
        before = {name: part_of(weight).clone() for name, weight in self.trainable().items()} if is_first else {}
        optimizer.zero_grad()
        losses = self.fill_gradients(batch)
        if not self._wrapper:
            self.clip_gradient()
        optimizer.step()
        scheduler.step()
        if is_first:
            self._check_first_step(before)
        self.record(batch, losses)

    def fill_gradients(self, batch: list[PackedDialogue]) -> list[float]:
        """Put the step's gradient into the weights and return each dialogue's summed loss.

        Raises:
            HushbotError: A loss is not finite.
        """
        losses, n_idle = [], self.share.n_idle(len(batch))
        for packed in batch:
            loss = loss_sum(self.passes, packed)
            self.manual_backward(loss / self.plan.normaliser)
            losses.append(loss.detach())
        for _ in range(n_idle):
            self.manual_backward(0.0 * self.idle_loss())
        # One transfer from the device per step instead of one per dialogue; nothing was updated yet.
        values: list[float] = torch.stack(losses).tolist() if losses else []
        for packed, value in zip(batch, values, strict=True):
            self._check_loss(value, packed, "training")
        self.share.add_up_gradients(self.trainable().values())
        return values

    def idle_loss(self) -> Tensor:
        """Return the loss of nobody's tokens, for a pass that others must not make alone."""
        return loss_sum(self.passes, made_up(self.model).to(self.device))

    def clip_gradient(self) -> None:
        """Scale the step's gradient down to the largest allowed norm.

        Raises:
            HushbotError: The norm is not finite.
        """
        limit = math.inf if self.plan.max_grad_norm is None else self.plan.max_grad_norm
        grads = [weight.grad for weight in self.trainable().values() if weight.grad is not None]
        norm = float(whole(nn.utils.get_total_norm(grads)))
        self.check_norm(norm)
        if norm > limit:
            for weight in self.trainable().values():
                if weight.grad is not None:
                    weight.grad.mul_(limit / norm)

    def check_norm(self, norm: float) -> None:
        """Check the norm of a step's gradient.

        Raises:
            HushbotError: It is not finite.
        """
        if not math.isfinite(norm):
            raise HushbotError(
                f"step {self.global_step + 1}: the gradient norm is {norm}, must be finite; "
                "lower trainer.learning_rate or set trainer.precision=32-true"
            )

    def record(self, batch: list[PackedDialogue], losses: list[float]) -> None:
        """Count what was trained and log the batch's loss per supervised token."""
        counts = [sum(packed.n_supervised for packed in batch), sum(packed.n_tokens for packed in batch), len(batch)]
        total, *found = self.share.numbers([sum(losses), *counts])
        n_supervised, n_tokens, n_dialogues = map(round, found)
        if n_supervised == 0:  # a sampled batch may be empty
            return
        self._epoch_loss += total
        self._epoch_tokens += n_supervised
        self.tokens_trained += n_tokens
        self.log("train/loss", total / n_supervised, prog_bar=True, batch_size=n_dialogues)

    # --- calibration ---

    def on_validation_epoch_start(self) -> None:
        """Start a new calibration loss."""
        self._calibration_loss, self._calibration_tokens = 0.0, 0

    def validation_step(self, batch: list[PackedDialogue], batch_idx: int) -> None:
        """Add the loss of some calibration dialogues."""
        n_idle = self.share.n_idle(len(batch))
        for packed in batch:
            loss = float(loss_sum(self.passes, packed))
            self._check_loss(loss, packed, "calibration")
            self._calibration_loss += loss
            self._calibration_tokens += packed.n_supervised
        for _ in range(n_idle):
            self.idle_loss()

    def on_validation_epoch_end(self) -> None:
        """Log the calibration loss per supervised token."""
        found = self.share.numbers([self._calibration_loss, self._calibration_tokens])
        self._calibration_loss, self._calibration_tokens = found[0], round(found[1])
        self.log("calibration/loss", self._calibration_loss / self._calibration_tokens, prog_bar=True)

    def on_train_epoch_end(self) -> None:
        """Add the epoch to the history, once even where a resumed run comes by here again."""
        record = self.epoch_record()
        if not self.has_recorded(record.epoch):
            self.history.append(record)
        self.measured = {}
        self._epoch_loss, self._epoch_tokens = 0.0, 0

    def epoch_record(self) -> EpochRecord:
        """Return what the epoch that is ending came to."""
        return EpochRecord(
            epoch=self.current_epoch + 1,
            train_loss=_mean(self._epoch_loss, self._epoch_tokens),
            calibration_loss=_mean(self._calibration_loss, self._calibration_tokens),
            seconds=self.seconds,
            measured=self.measured,
        )

    def has_recorded(self, epoch: int) -> bool:
        """Return whether an epoch is in the history."""
        return bool(self.history) and self.history[-1].epoch >= epoch

    # --- Lightning wiring ---

    def configure_optimizers(self) -> Any:
        """Return AdamW over the trainable weights and the learning-rate schedule."""
        plan = self.plan
        optimizer = AdamW(self.trainable().values(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
        scheduler = LambdaLR(optimizer, plan.learning_rate_factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a logical batch."""
        return [packed.to(device) for packed in batch]

    def on_train_start(self) -> None:
        """Check what the optimiser holds and set the random state: the checkpoint's, or the seed's.

        Raises:
            HushbotError: The optimiser holds other tensors than the model's trainable ones.
        """
        if not self._wrapper:  # an engine was given an optimiser that had been checked, and parts what it holds
            self.check_optimizer(self.trainer.optimizers[0])
        if not self.share.is_first:  # what the model draws, each process draws for itself
            torch.manual_seed(_seed_of(self.plan.seed, self.share.rank, self.global_step))
        elif self._random_state is None:
            torch.manual_seed(self.plan.seed)
        else:
            _set_random_state(self._random_state)
        self.has_begun = True
        self._started = time.perf_counter()

    def on_train_end(self) -> None:
        """Stop the clock and look at the weights once more.

        Raises:
            HushbotError: A trainable weight is not finite.
        """
        self._seconds_before, self._started = self.seconds, None
        self._check_finite()
        if self.share.is_lockstep:  # while all are still there
            self.final_weights = self.kept_weights()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep trainable weights only and add counters, history and random state."""
        names = self.trainable()
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if k in names}
        checkpoint[STATE_KEY] = {
            "fingerprint": self.plan.fingerprint,
            "random_state": _random_state(),
            "history": [record.as_plain() for record in self.history],
            "tokens_trained": self.tokens_trained,
            "epoch_loss": self._epoch_loss,
            "epoch_tokens": self._epoch_tokens,
            "calibration_loss": self._calibration_loss,
            "calibration_tokens": self._calibration_tokens,
            "seconds": self.seconds,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take over counters, history and random state.

        Raises:
            HushbotError: The checkpoint belongs to a run with other data, settings or trainable weights.
        """
        state = checkpoint.get(STATE_KEY, {"fingerprint": None})
        same_weights = checkpoint["state_dict"].keys() == self.trainable().keys()
        if state["fingerprint"] != self.plan.fingerprint or not same_weights:
            raise HushbotError(
                "the checkpoint in this run's folder was written with other data, settings or weights "
                f"(fingerprint {str(state['fingerprint'])[:12]}, this run's {self.plan.fingerprint[:12]}); "
                "delete checkpoints/last.ckpt or choose another run directory"
            )
        self.history = [EpochRecord.of_plain(record) for record in state["history"]]
        self.tokens_trained = state["tokens_trained"]
        self._epoch_loss, self._epoch_tokens = state["epoch_loss"], state["epoch_tokens"]
        self._calibration_loss = state["calibration_loss"]
        self._calibration_tokens = state["calibration_tokens"]
        self._seconds_before = state["seconds"]
        self._random_state = state["random_state"]

    # --- checks ---

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Check that an optimiser holds the very tensors that are to be trained.

        Raises:
            HushbotError: It holds others.
        """
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if held != {id(weight) for weight in self.trainable().values()} or not held:
            raise HushbotError(
                f"the optimiser holds {len(held)} tensors which are not the model's {len(self.trainable())} "
                "trainable ones, so training would change nothing that is saved; put the adapter on before "
                "the optimiser is made"
            )

    def _check_loss(self, value: float, packed: PackedDialogue, part: str) -> None:
        if not math.isfinite(value):
            raise HushbotError(
                f"step {self.global_step + 1}: the {part} loss of dialogue {packed.dialogue_id!r} is "
                f"{value}, must be finite; lower trainer.learning_rate or set trainer.precision=32-true"
            )

    def _check_finite(self) -> None:
        weights = self.trainable()
        is_broken = self.share.anywhere(not torch.isfinite(part_of(weight)).all() for weight in weights.values())
        broken = [name for name, found in zip(weights, is_broken, strict=True) if found]
        if broken:
            raise HushbotError(
                f"step {self.global_step} left {len(broken)} of {len(weights)} trainable tensors not finite, "
                f"the first is {broken[0]}; lower trainer.learning_rate"
            )

    def _check_first_step(self, before: Mapping[str, Tensor]) -> None:
        self._check_finite()
        after = self.trainable()
        if not any(self.share.anywhere(not torch.equal(before[name], part_of(after[name])) for name in after)):
            raise HushbotError(
                f"step 1 changed none of {len(after)} trainable tensors, so nothing would be learnt; raise "
                f"trainer.learning_rate (now {self.plan.learning_rate}) or check backbone.lora"
            )


def _mean(total: float, n: int) -> float | None:
    return total / n if n else None


def _seed_of(seed: int, rank: int, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{rank}/{step}".encode()).digest()[:8], "big")


def _random_state() -> dict[str, Any]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"cpu": torch.get_rng_state(), "cuda": devices}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["cpu"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])
