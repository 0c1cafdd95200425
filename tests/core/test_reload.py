"""A saved model that is not the trained one is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hushbot.errors import HushbotError
from hushbot.training.data import Packer
from hushbot.training.model_folder import save_model
from hushbot.training.packing import PackedDialogue
from hushbot.training.reload import check_reload
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit


@pytest.fixture
def packed(few_dialogues: AuditSplit, turn_stack: RecipeStack, small_tokenizer: Any) -> PackedDialogue:
    return Packer(turn_stack, small_tokenizer, 1024).pack(few_dialogues.calibration)[0]


def test_what_was_saved_is_compared_with_what_is_in_memory(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any, packed: PackedDialogue, tmp_path: Path
) -> None:
    model = make_small_model()
    save_model(model, small_tokenizer, tmp_path / "model")
    model.train()
    check_reload(model, tmp_path / "model", packed)
    assert model.training
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    with pytest.raises(HushbotError, match=f"on dialogue '{packed.dialogue_id}', which is no member; in memory"):
        check_reload(model, tmp_path / "model", packed)


def test_a_loss_that_is_not_finite_is_no_match(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any, packed: PackedDialogue, tmp_path: Path
) -> None:
    model = make_small_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    save_model(model, small_tokenizer, tmp_path / "model")
    with pytest.raises(HushbotError, match="loss nan"):
        check_reload(model, tmp_path / "model", packed)
