"""Read the probabilities of chosen tokens, and of the most probable ones, at chosen places of sequences.

Guarantees: fp32 log-probabilities at temperature 1, the same as `targets.scorer`'s to rounding; memory is bounded by a
token budget and by a bounded number of rows over the vocabulary; a number that is not finite is an `AuditError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from hushbot.errors import AuditError
from hushbot.targets.causal_lm import CausalLM

_LOGITS_AT_ONCE = 2**18
_LEAST_ROWS = 64
_CPU_TOKENS = 1024


class Asked(NamedTuple):
    """What is asked of one sequence."""

    ids: list[int]
    """Its tokens, start token first."""
    places: list[int]
    """After which of them, one per token in `tokens`."""
    tokens: list[int]
    """Whose probability is wanted there."""


class Read(NamedTuple):
    """What was read at one place."""

    logprob: float
    top: tuple[tuple[int, float], ...]
    """The most probable tokens, best first."""


def read_tokens(model: CausalLM, asked: Sequence[Asked], n_top: int, *, batch_tokens: int) -> list[list[Read]]:
    """Return what was read at each place of each sequence.

    Raises:
        AuditError: A log-probability is not finite.
    """
    found: list[list[Read]] = [[] for _ in asked]
    budget = min(batch_tokens, _CPU_TOKENS) if model.device.type == "cpu" else batch_tokens
    # A model without a plain head hands out whole rows of logits: one sequence at a time keeps that bounded.
    for batch in _batches(asked, budget if model.has_plain_head else 1):
        features = model.features(*model.pad([asked[i].ids for i in batch]))
        longest = features.shape[1]
        rows = [row * longest + place for row, i in enumerate(batch) for place in asked[i].places]
        tokens = [token for i in batch for token in asked[i].tokens]
        reads = _read_rows(model, features.flatten(0, 1), rows, tokens, n_top)
        for i in batch:
            found[i] = [next(reads) for _ in asked[i].tokens]
    return found


def _batches(asked: Sequence[Asked], budget: int) -> Iterator[list[int]]:
    """Yield the sequences that are asked anything, longest first; each batch, padded, fits the budget."""
    batch: list[int] = []
    for i in sorted(range(len(asked)), key=lambda i: -len(asked[i].ids)):
        if not asked[i].tokens:
            continue
        if batch and len(asked[batch[0]].ids) * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _read_rows(
    model: CausalLM, features: torch.Tensor, rows: Sequence[int], tokens: Sequence[int], n_top: int
) -> Iterator[Read]:
    size = max(_LEAST_ROWS, _LOGITS_AT_ONCE // model.n_tokens)
    for start in range(0, len(rows), size):
        places = torch.tensor(rows[start : start + size], device=features.device)
        wanted = torch.tensor(tokens[start : start + size], device=features.device)
        table = torch.log_softmax(model.logits(features[places]), dim=-1)
        values = table.gather(1, wanted[:, None])[:, 0]
        best = table.topk(min(n_top, table.shape[1]), dim=-1)
        if not bool(torch.isfinite(values).all()):
            raise AuditError("a log-probability is not finite; check the model's weights")
        for value, logprobs, ids in zip(values.tolist(), best.values.tolist(), best.indices.tolist(), strict=True):
            yield Read(value, tuple(zip(ids, logprobs, strict=True)))
