"""Score token sequences: the chain rule, in length-sorted batches, with logits only where they are needed.

Guarantees: memory is bounded by a token budget, whatever the number of sequences; a matrix over the
vocabulary holds a bounded number of positions; a score that is not finite is an `AuditError`. Sequences are
batched by length alone, so membership cannot show through batching.

Voids it: a model without a plain head (see `CausalLM`) is scored one row at a time, each row with all its
logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.targets.causal_lm import CausalLM

_LOGITS_AT_ONCE = 2**21  # entries of one positions x vocabulary matrix: 8 MiB in fp32, near a CPU's cache
_LEAST_POSITIONS = 64  # below this, reading the output embedding costs more than using it
_CPU_TOKENS = 2048  # a longer batch on a CPU falls out of its cache and is slower, not faster


class Scored(NamedTuple):
    """A sequence to score."""

    pair: int
    """Which pair of the caller it is; errors name it."""
    ids: list[int]
    """All its tokens, the start token included."""
    first: int
    """The first token whose score is wanted, at least 1; all later ones are wanted too."""


def score(model: CausalLM, sequences: Sequence[Scored], *, batch_tokens: int) -> list[Tensor]:
    """Return the log-probabilities of the wanted tokens of each sequence, as fp32 on the CPU.

    Raises:
        AuditError: A score is not finite.
    """
    results: list[Tensor] = [torch.empty(0)] * len(sequences)
    # A model without a plain head hands out whole rows of logits: one row at a time keeps that bounded.
    budget = min(batch_tokens, _CPU_TOKENS) if model.device.type == "cpu" else batch_tokens
    budget = budget if model.has_plain_head else 1
    for batch in _batches([len(sequence.ids) - 1 for sequence in sequences], budget):
        values = _score_batch(model, [sequences[i] for i in batch]).cpu()
        for i, piece in zip(batch, torch.split(values, [_n_wanted(sequences[i]) for i in batch]), strict=True):
            if not bool(torch.isfinite(piece).all()):
                raise AuditError(
                    f"pair {sequences[i].pair}: a log-probability is not finite; check the model's weights"
                )
            results[i] = piece
    return results


def _n_wanted(sequence: Scored) -> int:
    return len(sequence.ids) - sequence.first


def _batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield indices, longest first, so that each batch padded to its longest fits the budget."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and lengths[batch[0]] * (len(batch) + 1) > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _score_batch(model: CausalLM, batch: Sequence[Scored]) -> Tensor:
    """Return the wanted log-probabilities of all sequences, one after the other."""
    # The last token predicts nothing that is asked for, so it is not read.
    ids, mask = model.pad([sequence.ids[:-1] for sequence in batch])
    features = model.features(ids, mask)
    rows = [row for row, sequence in enumerate(batch) for _ in range(_n_wanted(sequence))]
    places = [place for sequence in batch for place in range(sequence.first - 1, len(sequence.ids) - 1)]
    tokens = [token for sequence in batch for token in sequence.ids[sequence.first :]]
    targets = torch.tensor(tokens, device=ids.device)
    wanted = features[torch.tensor(rows, device=ids.device), torch.tensor(places, device=ids.device)]
    n_positions = max(_LEAST_POSITIONS, _LOGITS_AT_ONCE // model.n_tokens)
    values = []
    for start in range(0, len(tokens), n_positions):
        chunk = slice(start, start + n_positions)
        logits = model.logits(wanted[chunk])
        chosen = logits.gather(1, targets[chunk, None])[:, 0]
        values.append(chosen - torch.logsumexp(logits, dim=-1))
    return torch.cat(values)
