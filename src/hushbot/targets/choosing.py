"""From logits to the next token: the law that `Decoding` names, and random numbers that belong to a draw.

Guarantees: the order is repetition penalty, temperature, top-k, top-p; a token outside the law is never
chosen; the choice inverts the cumulative distribution in token order, so equal logits and equal uniforms
give equal tokens. The uniforms of a draw come from a Philox generator whose key is (seed, prompt position,
draw number) and whose counter is the step: they do not depend on what else is in the batch. Logits that tie
with the k-th are kept too.

Voids it: nothing here, but logits themselves differ in the last bits between batch sizes, which moves a
choice whose uniform falls within that rounding of a boundary (about one token in a million in fp32, more in
narrower types).

Source: Salmon et al. (2011) for Philox; Holtzman et al. (2020) for top-p; Keskar et al. (2019) for the
penalty, here over generated tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.types import Decoding

_WORD = 2**64
_NOT_FINITE = "the model's logits are not finite (NaN or infinite); check its weights and number type"


def draw_uniforms(seed: int, position: int, draw: int, n: int) -> list[float]:
    """Return the uniforms in [0, 1) of one draw, one per step; fewer steps give the same first ones."""
    key = np.array([seed % _WORD, (position << 32 | draw) % _WORD], dtype=np.uint64)
    uniforms: list[float] = np.random.Generator(np.random.Philox(key=key)).random(n).tolist()
    return uniforms


def choose_tokens(
    logits: Tensor, uniforms: Sequence[float], decoding: Decoding, generated: Sequence[Sequence[int]]
) -> list[int]:
    """Return one token per row.

    Args:
        logits: Finite logits of shape (rows, vocabulary).
        uniforms: One number in [0, 1) per row; not looked at when decoding is greedy.
        decoding: The law.
        generated: The tokens each row has generated so far.

    Raises:
        AuditError: A row's logits are not finite.
    """
    logits = _penalise(logits, decoding.repetition_penalty, generated)
    best = logits.amax(dim=-1)
    if not bool(torch.isfinite(best).all()):
        raise AuditError("the model's logits are not finite (NaN or infinite); check its weights and number type")
    if decoding.temperature == 0:
        return logits.argmax(dim=-1).tolist()
    # The largest logit is taken off first, so that no temperature overflows.
    logits = (logits - best[:, None]) / decoding.temperature
    logits = _keep_top_p(_keep_top_k(logits, decoding.top_k), decoding.top_p)
    return _invert(torch.softmax(logits, dim=-1), uniforms)


def _invert(probabilities: Tensor, uniforms: Sequence[float]) -> list[int]:
    if probabilities.device.type == "mps":  # has no 64-bit floats
        probabilities = probabilities.cpu()
    cumulative = probabilities.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    if not bool(torch.isfinite(total).all()):
        raise AuditError("the model's logits are not finite (NaN or infinite); check its weights and number type")
    wanted = torch.tensor(uniforms, dtype=torch.float64, device=total.device)[:, None] * total
    # Rounding may lift the product to the total itself, past the last token that has any probability.
    wanted = torch.minimum(wanted, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0].tolist()


def _penalise(logits: Tensor, penalty: float, generated: Sequence[Sequence[int]]) -> Tensor:
    longest = max((len(tokens) for tokens in generated), default=0)
    if penalty == 1 or longest == 0:
        return logits
    # A repeated token as padding changes nothing; a row without tokens is restored at the end.
    rows = [[*tokens, *[tokens[-1] if tokens else 0] * (longest - len(tokens))] for tokens in generated]
    padded = torch.tensor(rows, device=logits.device)
    seen = logits.gather(1, padded)
    penalised = logits.scatter(1, padded, torch.where(seen > 0, seen / penalty, seen * penalty))
    empty = torch.tensor([not tokens for tokens in generated], device=logits.device)
    return torch.where(empty[:, None], logits, penalised)


def _keep_top_k(logits: Tensor, k: int) -> Tensor:
    if k == 0 or k >= logits.shape[-1]:
        return logits
    smallest = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < smallest, -math.inf)


def _keep_top_p(logits: Tensor, p: float) -> Tensor:
    if p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    before[:, 0] = 0.0
    is_out = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= p)
    return logits.masked_fill(is_out, -math.inf)
