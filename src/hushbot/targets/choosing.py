"""From logits to the next token: the law that `Decoding` names, and random numbers that belong to a draw.

Guarantees: the order is repetition penalty, temperature, top-k, top-p, typical; a token outside the law is never
chosen; the choice inverts the cumulative distribution in token order, so equal logits and equal uniforms
give equal tokens. The uniforms of a draw come from a Philox generator whose key is (seed, prompt position,
draw number) and whose counter is the step: they do not depend on what else is in the batch. Logits that tie
with the k-th are kept too.

Voids it: nothing here, but logits themselves differ in the last bits between batch sizes, which moves a
choice whose uniform falls within that rounding of a boundary (measured in fp32: of 23,000 tokens one to three,
more in narrower types).

Source: Salmon et al. (2011) for Philox; Holtzman et al. (2020) for top-p; Meister et al. (2023) for typical
sampling; Carlini et al. (2021) for a falling temperature; Keskar et al. (2019) for the penalty, here over generated
tokens only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.types import Decoding

_WORD = 2**64
_BLOCK = 256
_WORTH_BLOCKS = 16
"""Blocks are worth their steps where a vocabulary has so many times more tokens than the blocks of a row's draws."""
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
    scores = law_logits(logits, decoding, generated)
    return pick(scores, uniforms)


def law_logits(logits: Tensor, decoding: Decoding, generated: Sequence[Sequence[int]]) -> Tensor:
    """Return logits whose softmax is the law of the next token; minus infinity where a token is outside it.

    Args:
        logits: Finite logits of shape (rows, vocabulary).
        decoding: The law; at temperature 0 all of it lies on the best token, the first of equals.
        generated: The tokens each row has generated so far; their number is the step of a falling temperature.

    Raises:
        AuditError: A row's logits are not finite.
    """
    logits = _penalise(logits, decoding.repetition_penalty, generated)
    best = logits.amax(dim=-1)
    if not bool(torch.isfinite(best).all()):
        raise AuditError(_NOT_FINITE)
    temperatures = torch.tensor([decoding.temperature_at(len(tokens)) for tokens in generated], device=logits.device)
    is_greedy = temperatures == 0
    scores = logits
    if not bool((is_greedy | (temperatures == 1)).all()):
        # The largest logit is taken off first, so that no temperature overflows.
        scores = (logits - best[:, None]) / torch.where(is_greedy, 1.0, temperatures)[:, None].to(logits.dtype)
    scores = _keep_typical(_keep_top_p(_keep_top_k(scores, decoding.top_k), decoding.top_p), decoding.typical_p)
    if not bool(is_greedy.any()):
        return scores
    only_best = torch.full_like(scores, -math.inf).scatter(1, logits.argmax(dim=-1)[:, None], 0.0)
    return torch.where(is_greedy[:, None], only_best, scores)


def pick(scores: Tensor, uniforms: Sequence[float]) -> list[int]:
    """Return one token per row, drawn from the softmax of its scores by inverting the cumulative distribution.

    Raises:
        AuditError: A row's probabilities are not finite.
    """
    probabilities = _finite(torch.softmax(scores, dim=-1))
    return _search(probabilities, torch.tensor(uniforms, dtype=torch.float64)[:, None])[:, 0].tolist()


def pick_each(scores: Tensor, uniforms: Sequence[FloatArray]) -> list[list[int]]:
    """Return as many tokens per row as there are uniforms for it.

    Raises:
        AuditError: A row's probabilities are not finite.
    """
    probabilities = _finite(torch.softmax(scores, dim=-1))
    drawn: list[list[int]] = [[] for _ in uniforms]
    alike: dict[int, list[int]] = {}
    for i, row in enumerate(uniforms):
        alike.setdefault(len(row), []).append(i)
    for which in alike.values():
        # One search for all rows of as many draws; a copy of their rows only where there are others.
        rows = probabilities if len(which) == len(uniforms) else probabilities[which]
        wanted = torch.from_numpy(np.stack([uniforms[i] for i in which]))
        for i, tokens in zip(which, _search(rows, wanted).tolist(), strict=True):
            drawn[i] = tokens
    return drawn


def _finite(probabilities: Tensor) -> Tensor:
    """Return probabilities where 64-bit numbers can be had, once it is sure that each row has some."""
    if not bool(torch.isfinite(probabilities[:, 0]).all()):  # softmax spreads what is not finite over its row
        raise AuditError(_NOT_FINITE)
    return probabilities.cpu() if probabilities.device.type == "mps" else probabilities


def _search(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Invert the cumulative distribution of rows, summed in fp64, at as many numbers in [0, 1) per row."""
    n_rows, n_tokens = probabilities.shape
    if _WORTH_BLOCKS * _BLOCK * uniforms.shape[1] > n_tokens or n_tokens % _BLOCK:
        cumulative = probabilities.double().cumsum(dim=-1)
        return _first_above(cumulative, uniforms.to(cumulative.device) * cumulative[:, -1:])
    # Of a large vocabulary only the blocks that numbers fall into are summed token by token.
    blocks = probabilities.view(n_rows, -1, _BLOCK)
    ends = blocks.sum(dim=-1, dtype=torch.float64).cumsum(dim=-1)
    wanted = uniforms.to(ends.device) * ends[:, -1:]
    which = _first_above(ends, wanted)
    rest = wanted - F.pad(ends, (1, 0)).gather(1, which)
    chosen = blocks.take_along_dim(which[..., None], dim=1).double().cumsum(dim=-1)
    return which * _BLOCK + _first_above(chosen, rest[..., None])[..., 0]


def _first_above(cumulative: Tensor, wanted: Tensor) -> Tensor:
    """Return where rows first exceed some numbers."""
    total = cumulative[..., -1:]
    # Rounding may lift a number to the total itself, past the last place that adds anything.
    below = torch.nextafter(total, torch.zeros_like(total))
    return torch.searchsorted(cumulative, torch.minimum(wanted, below).contiguous(), right=True)


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


def _keep_typical(logits: Tensor, p: float) -> Tensor:
    if p >= 1:
        return logits
    log_probabilities = torch.log_softmax(logits, dim=-1)
    probabilities = log_probabilities.exp()
    # What an earlier filter left out has probability 0 and surprise infinity: it adds nothing to the expectation.
    expected = -torch.where(probabilities > 0, probabilities * log_probabilities, 0.0).sum(dim=-1, keepdim=True)
    distance = (-log_probabilities - expected).abs()
    order = distance.argsort(dim=-1, stable=True)
    ordered = probabilities.gather(1, order)
    before = ordered.cumsum(dim=-1) - ordered
    before[:, 0] = 0.0
    is_out = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= p)
    return logits.masked_fill(is_out, -math.inf)
