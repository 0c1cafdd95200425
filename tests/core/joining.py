"""What the other processes of `test_joint` import: recipes that fail in them alone, and two optimisers side by side."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from hushbot.errors import DataError
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.clipping import ClippedSum, noisy_gradient
from hushbot.training.fit import TrainerSettings
from hushbot.training.joint import joined
from hushbot.training.share import Share
from hushbot.types import Dialogue, Example

TWO = TrainerSettings(devices=2, accelerator="cpu")
MAX_NORM, EXPECTED = 0.5, 4.0


def is_beside() -> bool:
    """Return whether this is not the first process."""
    return sys.argv[0].endswith("ranks.py")


@dataclass(frozen=True, kw_only=True)
class FailsBeside(TurnLevel):
    """Cannot make the examples of a dialogue, in the other processes."""

    def examples(self, dialogue: Dialogue) -> Sequence[Example]:
        if is_beside():
            raise DataError(f"dialogue {dialogue.id} is damaged; mend it")
        return super().examples(dialogue)


@dataclass(frozen=True, kw_only=True)
class DiesBeside(TurnLevel):
    """Has the other processes killed in the second epoch."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        if epoch == 1 and is_beside():
            os.kill(os.getpid(), signal.SIGKILL)
        return dialogues


class Stepped(NamedTuple):
    """The gradients that two optimisers would step along, all numbers in one row."""

    ours: torch.Tensor
    opacus: torch.Tensor


def gradients(rank: int, n_dialogues: int, n_numbers: int) -> list[torch.Tensor]:
    """Return a process's gradients per dialogue: of a matrix and a bias, dialogue by dialogue."""
    generator = torch.Generator().manual_seed(rank)
    shapes = [(n_dialogues, n_numbers // 10, 10), (n_dialogues, n_numbers // 10)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


class Step(NamedTuple):
    """What a step is made of."""

    noise_multiplier: float
    n_numbers: int
    sizes: tuple[int, int]
    """How many dialogues each process has drawn."""


def step_both(request: tuple[Path, Sequence[Step]], rank: int) -> list[Stepped]:
    """Let hushbot and Opacus make distributed steps from the same gradients per dialogue."""
    store, steps = request
    with joined(TWO, rank, store) as share:
        return [
            Stepped(_ours(step, gradients(rank, step.sizes[rank], step.n_numbers), share), _opacus(step, rank))
            for step in steps
        ]


def _weights(per_dialogue: Sequence[torch.Tensor]) -> list[Any]:
    return [nn.Parameter(torch.zeros(grad.shape[1:])) for grad in per_dialogue]


def _row(weights: Sequence[Any]) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in weights])


def _ours(step: Step, per_dialogue: list[torch.Tensor], share: Share) -> torch.Tensor:
    weights = _weights(per_dialogue)
    clipped = ClippedSum(weights, MAX_NORM)
    clipped.add_many(per_dialogue)
    noisy_gradient(
        clipped,
        noise_multiplier=step.noise_multiplier,
        expected_batch_size=EXPECTED,
        generator=torch.Generator().manual_seed(7),
        share=share,
    )
    return _row(weights)


def _opacus(step: Step, rank: int) -> torch.Tensor:
    from opacus.optimizers import DistributedDPOptimizer

    per_dialogue = gradients(rank, step.sizes[rank], step.n_numbers)
    weights = _weights(per_dialogue)
    optimiser = DistributedDPOptimizer(
        torch.optim.SGD(weights, lr=1.0),
        noise_multiplier=step.noise_multiplier,
        max_grad_norm=MAX_NORM,
        expected_batch_size=EXPECTED / 2,  # a process's own; both are then averaged
        generator=torch.Generator().manual_seed(7),
    )
    for weight, grad in zip(weights, per_dialogue, strict=True):
        weight.grad_sample = grad
    optimiser.step()
    return _row(weights)
