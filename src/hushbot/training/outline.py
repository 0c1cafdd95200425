"""A checkpoint's outline: every key, plain value, and tensor's type and shape, as one hash.

Lightning takes a checkpoint that lacks a part for one that never had it, and goes on: training then starts anew on
trained weights, or its optimiser forgets, and nobody is told.

Guarantees: two checkpoints have the same outline if and only if they differ at most in the numbers inside tensors,
which the archive's own checksums cover.

What voids it: somebody who changes a checkpoint and its outline together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

OUTLINE_KEY = "hushbot_outline"


def outline_sha256(checkpoint: Mapping[str, Any]) -> str:
    """Return the hash of a checkpoint's outline; an outline that it has is no part of it."""
    total = hashlib.sha256()
    for line in _lines({key: value for key, value in checkpoint.items() if key != OUTLINE_KEY}, ()):
        total.update(line.encode("utf-8", "backslashreplace") + b"\0")
    return total.hexdigest()


def _lines(value: Any, path: tuple[Any, ...]) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield f"{path!r} mapping {len(value)}"
        for key in value:
            yield from _lines(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        yield f"{path!r} list {len(value)}"
        for position, inner in enumerate(value):
            yield from _lines(inner, (*path, position))
    elif isinstance(value, torch.Tensor):
        yield f"{path!r} tensor {value.dtype} {tuple(value.shape)}"
    else:
        yield f"{path!r} {type(value).__name__} {value!r}"
