"""Two checkpoints with the same outline differ at most in the numbers inside tensors."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from hushbot.training.outline import OUTLINE_KEY, outline_sha256

CHECKPOINT: dict[str, Any] = {
    "weights": {"a": torch.zeros(2, 3), "b": torch.zeros(2)},
    "loops": {0: [1, 2.5, None], "name": "x"},
    "is_done": False,
    "betas": (0.9, 0.999),
}


def test_saving_and_loading_keeps_it(tmp_path: Path) -> None:
    torch.save(OrderedDict(CHECKPOINT), tmp_path / "c")
    assert outline_sha256(torch.load(tmp_path / "c", weights_only=True)) == outline_sha256(CHECKPOINT)


def test_it_is_no_part_of_itself_and_knows_no_numbers_inside_tensors() -> None:
    changed = copy.deepcopy(CHECKPOINT) | {OUTLINE_KEY: "x"}
    changed["weights"]["a"] += 1
    assert outline_sha256(changed) == outline_sha256(CHECKPOINT)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("weights", "a"), torch.zeros(3, 2)),
        (("weights", "a"), torch.zeros(2, 3).double()),
        (("weights", "c"), torch.zeros(2)),
        (("weights", "b"), None),
        (("loops", 0), [1, 2.5]),
        (("loops", 0), [1, 2.5, 0]),
        (("loops", "0"), [1]),
        (("loops", "name"), "y"),
        (("is_done",), 0),
        (("betas",), (0.9, 0.99)),
        (("more",), {}),
    ],
)
def test_everything_else_changes_it(path: tuple[Any, ...], value: Any) -> None:
    changed = copy.deepcopy(CHECKPOINT)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    assert outline_sha256(changed) != outline_sha256(CHECKPOINT)


@pytest.mark.parametrize("path", [("weights",), ("weights", "b"), ("loops", 0), ("is_done",)])
def test_so_does_what_is_missing(path: tuple[Any, ...]) -> None:
    changed = copy.deepcopy(CHECKPOINT)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    assert outline_sha256(changed) != outline_sha256(CHECKPOINT)
