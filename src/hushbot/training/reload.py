"""Whether a model on disk is the one in memory.

Guarantees: a saved model whose loss on a given dialogue is not that of the model in memory is an error. Adapters have
been saved that never held what was trained, while losses fell (meta-pytorch/opacus #820).

Void for a difference that shows on no token of that dialogue. It is never a member's: the error names its loss.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from hushbot.errors import HushbotError
from hushbot.training.model_folder import load_model
from hushbot.training.packing import PackedDialogue, loss_sum

TOLERANCE = 1e-4
"""Largest relative difference of the two losses."""


def check_reload(model: Any, folder: Path, packed: PackedDialogue) -> None:
    """Check that the model in a folder computes what the one in memory does.

    Args:
        model: As it is after training.
        folder: Where `save_model` wrote it.
        packed: A dialogue that is not a member.

    Raises:
        HushbotError: The losses differ, or are not finite.
    """
    in_memory, on_disk = _loss(model, packed), _loss(load_model(folder).model, packed)
    if not abs(on_disk - in_memory) <= TOLERANCE * abs(in_memory) or not math.isfinite(in_memory):
        raise HushbotError(
            f"{folder}: read back, the model has loss {on_disk:.6g} on dialogue {packed.dialogue_id!r}, which is no "
            f"member; in memory it has {in_memory:.6g}, must be the same: what was trained is not what was saved; "
            "check backbone.lora and the versions of peft and transformers"
        )


def _loss(model: Any, packed: PackedDialogue) -> float:
    was_training = model.training
    model.eval()
    with torch.no_grad():
        loss = float(loss_sum(model, packed.to(next(model.parameters()).device)))
    model.train(was_training)
    return loss
