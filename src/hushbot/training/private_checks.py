"""What must hold before and after private training: the trainer's settings, and which weights moved.

Guarantees: every known setting of Lightning's `Trainer` under which the clipping, the noise or the accounting would be
void is refused before the first step, all at once. Afterwards every trainable tensor differs from what it was, and
every other tensor that is saved, buffers included, is bit for bit the same: running statistics of a batch
normalisation, say, would carry members into the model past the noise.

Void for what other callbacks do to gradients or weights: fit adds none that does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from hushbot.errors import HushbotError, PrivacyError
from hushbot.training.data import Batches
from hushbot.training.module import TaskBot

OPTIMISERS = (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD)
"""They compute from the noisy gradient alone; others may look at the loss or at the batch."""


def refusals(trainer: Any, module: TaskBot, batches: Batches) -> list[str]:
    """Return everything about a trainer that would void the guarantee, one message each.

    Args:
        trainer: Lightning's, set up: it has its optimisers.
        module: What it trains.
        batches: The Poisson batches that it must train on.
    """
    data: Any = getattr(trainer, "datamodule", None)
    optimisers = trainer.optimizers
    kinds = [type(optimiser).__name__ for optimiser in optimisers]
    held = [weight for one in optimisers for group in one.param_groups for weight in group["params"]]
    trainable = module.trainable()
    allowed = ", ".join(kind.__name__ for kind in OPTIMISERS)
    rules = (
        (
            f"the optimiser is {', '.join(kinds) or 'missing'}, must be one of {allowed}; use one of them",
            len(optimisers) == 1 and type(optimisers[0]) in OPTIMISERS,
        ),
        (
            f"the optimiser holds {len(held)} tensors that are not the model's {len(trainable)} trainable ones; "
            "give it module.trainable()",
            len(held) == len(trainable) and {id(w) for w in held} == {id(w) for w in trainable.values()},
        ),
        (
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} must be 1, since each batch is a whole step; "
            "set recipe.dp_sgd.chunk_tokens to save memory",
            trainer.accumulate_grad_batches == 1,
        ),
        (
            f"gradient_clip_val={trainer.gradient_clip_val} must be unset, since it would clip the noise; set "
            "recipe.dp_sgd.max_grad_norm",
            trainer.gradient_clip_val is None,
        ),
        (
            f"overfit_batches={trainer.overfit_batches} must be 0, since it replaces the sampling; leave it unset",
            trainer.overfit_batches == 0,
        ),
        (
            f"limit_train_batches={trainer.limit_train_batches} must be 1.0, since steps are planned; set "
            "trainer.max_epochs",
            type(trainer.limit_train_batches) is float and trainer.limit_train_batches == 1.0,
        ),
        (
            f"precision={trainer.precision} must be 32-true or bf16-mixed, since a loss scale would scale the clipping "
            "norm; set trainer.precision",
            trainer.precision in ("32-true", "bf16-mixed"),
        ),
        (
            f"{trainer.world_size} processes train together, must be 1; set trainer.devices=1",
            trainer.world_size == 1,
        ),
        (
            "batches come from elsewhere than the Poisson sampling; hand the DialogueData to fit with the batches that "
            "plan_batches returned",
            getattr(data, "batches", None) is batches,
        ),
    )
    return [message for message, ok in rules if not ok]


def weight_digests(model: nn.Module) -> dict[str, bytes]:
    """Return a hash of each weight, and of each buffer that is saved."""
    return {name: _digest(value) for name, value in model.state_dict().items()}


def check_weights(model: nn.Module, before: Mapping[str, bytes]) -> None:
    """Check which weights training changed.

    Args:
        model: The model after training.
        before: Its `weight_digests` before.

    Raises:
        HushbotError: A trainable tensor did not change.
        PrivacyError: Another one did.
    """
    # By address, since a tied weight stands in the state under several names.
    addresses = {weight.data_ptr() for weight in model.parameters() if weight.requires_grad}
    learns = {name: value.data_ptr() in addresses for name, value in model.state_dict().items()}
    after = weight_digests(model)
    still = [name for name in after if learns[name] and after[name] == before[name]]
    moved = [name for name in after if not learns[name] and after[name] != before[name]]
    if still:
        raise HushbotError(
            f"training left {len(still)} of {sum(learns.values())} trainable tensors as they were, the first is "
            f"{still[0]}; raise recipe.dp_sgd.learning_rate or check backbone.lora"
        )
    if moved:
        raise PrivacyError(
            f"training changed {len(moved)} frozen tensors, the first is {moved[0]}: they got neither clipping nor "
            "noise; use a backbone without layers that keep statistics of what they see"
        )


def _digest(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).digest()
