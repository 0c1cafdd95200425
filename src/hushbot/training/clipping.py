"""What one dialogue may add to a step, and the noise on top: clipping, summing, noising.

Guarantees:

* Adding or removing one dialogue, with all its turns, moves `ClippedSum.sums` by at most `max_grad_norm`, up to float32
  rounding. A dialogue whose gradient is not finite contributes nothing, so the bound holds for it too.
* The arithmetic is float32 whatever the precision of the model, under autocast too.
* Noise comes from the generator that is handed in, never from torch's global one, which a seed repeats.

Void if the gradients are not one dialogue's alone (`gradients` sees to that). Gaussian noise in floating point is
not hardened against attacks on its low bits (Mironov 2012).

Norms, the number of dialogues and everything else about a batch are private: norms are kept nowhere, nothing is logged.

Source: Abadi et al. 2016 (arXiv 1607.00133).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hushbot.errors import ConfigError
from hushbot.training.share import ALONE, Share


class ClippedSum:
    """The sum of dialogue gradients, each scaled down to a largest norm first, in float32.

    Args:
        parameters: What the gradients belong to, in their order.
        max_grad_norm: The norm that one dialogue contributes at most.

    Raises:
        ConfigError: The norm is not positive and finite.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], max_grad_norm: float) -> None:
        if not 0 < max_grad_norm < math.inf:
            raise ConfigError(f"max_grad_norm={max_grad_norm} must be above 0 and finite; set recipe.dp_sgd")
        self.parameters = list(parameters)
        self.max_grad_norm = max_grad_norm
        self.reset()

    def reset(self) -> None:
        """Start again from nothing."""
        self.sums = [torch.zeros_like(weight, dtype=torch.float32) for weight in self.parameters]
        self.n_dialogues = 0

    @torch.no_grad()
    def add(self, grads: Sequence[Tensor | None]) -> None:
        """Add one dialogue's gradient; None where a parameter has none."""
        self.n_dialogues += 1
        pairs = [(total, grad.float()) for total, grad in zip(self.sums, grads, strict=True) if grad is not None]
        if not pairs:
            return
        norm = _norm([grad for _, grad in pairs])
        if not torch.isfinite(norm):
            largest = torch.stack([grad.abs().max() for _, grad in pairs if grad.numel()]).max()
            if not torch.isfinite(largest):
                return
            # Finite, only its square is not: taken to a size at which the norm can be computed.
            pairs = [(total, grad / largest) for total, grad in pairs]
            factor = (self.max_grad_norm / _norm([grad for _, grad in pairs])).clamp(max=largest)
        else:
            factor = (self.max_grad_norm / norm).clamp(max=1.0)
        for total, grad in pairs:
            total.addcmul_(grad, factor)

    @torch.no_grad()
    def add_many(self, per_dialogue: Sequence[Tensor]) -> None:
        """Add the gradients of several dialogues: one tensor (n_dialogues, *shape) for each parameter."""
        rows = [grad.flatten(1).float() for grad in per_dialogue]
        if len(rows) != len(self.sums):
            raise ValueError(f"gradients of {len(rows)} parameters for {len(self.sums)}")
        norms = torch.stack([grad.square().sum(1) for grad in rows]).sum(0).sqrt()
        if not torch.isfinite(norms).all():
            for i in range(len(norms)):
                self.add([grad[i] for grad in per_dialogue])
            return
        self.n_dialogues += len(norms)
        factors = (self.max_grad_norm / norms).clamp(max=1.0)
        # Autocast would round the factors of a product, and with them the bound.
        with torch.autocast(norms.device.type, enabled=False):
            for total, grad in zip(self.sums, rows, strict=True):
                total.add_((factors @ grad).view_as(total))


def _norm(parts: Sequence[Tensor]) -> Tensor:
    # Not torch's norm: on a CPU it adds float32 squares one by one, and over 50 million it is 0.4% too small.
    return torch.stack([part.square().sum() for part in parts]).sum().sqrt()


@torch.no_grad()
def noisy_gradient(
    clipped: ClippedSum,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    generator: torch.Generator,
    share: Share = ALONE,
) -> None:
    """Put the private gradient into the parameters: the clipped sum and noise, over a constant.

    The noise has `noise_multiplier` times the sum's own clipping norm as its standard deviation. The denominator is
    the expected number of dialogues, never the realised one, which is private; without any dialogue the gradient is
    noise alone.

    Args:
        clipped: The clipped sum of one logical batch.
        noise_multiplier: What the accountant was told.
        expected_batch_size: Sampling rate times number of dialogues.
        generator: Where the noise comes from; secret in a private run.
        share: Where several processes have a part of the batch each: sums are added up, noise is the first one's alone.

    Raises:
        ConfigError: A number is out of range.
    """
    problems = []
    if not 0 <= noise_multiplier < math.inf:
        problems.append(f"noise_multiplier={noise_multiplier} must be at least 0 and finite; set recipe.dp_sgd")
    if not 0 < expected_batch_size < math.inf:
        problems.append(f"expected_batch_size={expected_batch_size} must be above 0 and finite; set recipe.dp_sgd")
    if problems:
        raise ConfigError(*problems)
    scale = noise_multiplier * clipped.max_grad_norm
    # Made from 24 random bits, a float32 normal never exceeds 5.8 standard deviations: its tails are missing.
    kind = torch.float32 if generator.device.type == "mps" else torch.float64
    noisy = clipped.sums
    if share.is_first:
        drawn = (torch.randn(t.shape, generator=generator, device=generator.device, dtype=kind) for t in clipped.sums)
        noisy = [total + scale * noise.to(total) for total, noise in zip(clipped.sums, drawn, strict=True)]
    share.add_up(noisy)
    for weight, total in zip(clipped.parameters, noisy, strict=True):
        weight.grad = (total / expected_batch_size).to(weight.dtype)
