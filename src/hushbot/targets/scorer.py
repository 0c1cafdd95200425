"""Score token sequences: the chain rule, with what sequences share read once, and logits only where needed.

Guarantees: sequences that begin alike are read as one tree (`token_tree`) where the model reads trees and that costs
less; all others in batches of like length. Memory is bounded by a token budget, whatever the number of sequences; a
matrix over the vocabulary holds a bounded number of positions; a score that is not finite is an `AuditError`.
Sequences are batched by their tokens alone, so membership cannot show through batching.

Voids it: a model without a plain head (see `CausalLM`) is scored one row at a time, each row with all its
logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.intervals import IntArray
from hushbot.targets.branch_rows import starts_of
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.token_tree import Group, group, pack

_LOGITS_AT_ONCE = 2**21  # entries of one positions x vocabulary matrix: 8 MiB in fp32
_CPU_LOGITS_AT_ONCE = 2**18  # a larger matrix falls out of a CPU's cache and is slower, not faster
_LEAST_POSITIONS = 64  # below this, reading the output embedding costs more than using it
_CPU_TOKENS = 1024  # a longer batch on a CPU falls out of its cache and is slower, not faster


Whole: TypeAlias = Sequence[int] | IntArray
"""Whole numbers; where there are many, an array saves time."""
Measure: TypeAlias = Callable[[CausalLM, Tensor, Whole, Whole], Tensor]
"""What is read of the tokens at some places: a number, or a row, for each."""


class Scored(NamedTuple):
    """A sequence to score."""

    pair: int
    """Which pair of the caller it is; errors name it."""
    ids: list[int]
    """All its tokens, the start token included."""
    first: int
    """The first token whose score is wanted, at least 1; all later ones are wanted too."""


def score(
    model: CausalLM, sequences: Sequence[Scored], *, batch_tokens: int, with_moments: bool = False
) -> list[Tensor]:
    """Return the log-probabilities of the wanted tokens of each sequence, as fp32 on the CPU.

    Args:
        model: Read as it stands; the caller enters `model.reading()`.
        sequences: What to score.
        batch_tokens: Most tokens of one pass, padding included.
        with_moments: Return a row per token instead: its log-probability, and mean and standard deviation of the
            log-probability over the vocabulary, each entry weighted by its probability.

    Raises:
        AuditError: A score is not finite.
    """
    measure = token_moments if with_moments else log_probabilities
    results: list[Tensor] = [torch.empty(0)] * len(sequences)
    # A model without a plain head hands out whole rows of logits: one row at a time keeps that bounded.
    budget = min(batch_tokens, _CPU_TOKENS) if model.device.type == "cpu" else batch_tokens
    budget = budget if model.has_plain_head else 1
    for batch in _batches(_groups(model, sequences, budget), budget):
        members = [i for row in batch for i in row.members]
        values = _score_batch(model, batch, sequences, measure).cpu()
        pieces = torch.split(values, [_n_wanted(sequences[i]) for i in members])
        if not bool(torch.isfinite(values).all()):
            broken = next(i for i, piece in zip(members, pieces, strict=True) if not bool(torch.isfinite(piece).all()))
            raise AuditError(
                f"pair {sequences[broken].pair}: a log-probability is not finite; check the model's weights"
            )
        for i, piece in zip(members, pieces, strict=True):
            results[i] = piece
    return results


def _n_wanted(sequence: Scored) -> int:
    return len(sequence.ids) - sequence.first


def _groups(model: CausalLM, sequences: Sequence[Scored], most: int) -> list[Group]:
    """Return all sequences in groups that are read as one row each."""
    read = [_read(sequence) for sequence in sequences]
    if len(read) > 1 and model.supports_trees(max(map(len, read))):
        return group(read, width=model.attention_width, most=most)
    return [Group(len(ids), [i]) for i, ids in enumerate(read)]


def _read(sequence: Scored) -> list[int]:
    """Return the tokens to read; the last one predicts nothing that is asked for."""
    return sequence.ids[:-1]


def _batches(groups: Sequence[Group], budget: int) -> Iterator[list[Group]]:
    """Yield trees and single sequences apart, longest first; each batch padded to its longest fits the budget."""
    batch: list[Group] = []
    for row in sorted(groups, key=lambda row: (_is_single(row), -row.n_tokens)):
        if batch and (batch[0].n_tokens * (len(batch) + 1) > budget or _is_single(row) != _is_single(batch[0])):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _is_single(row: Group) -> bool:
    return len(row.members) == 1


def _score_batch(model: CausalLM, batch: Sequence[Group], sequences: Sequence[Scored], measure: Measure) -> Tensor:
    """Return the wanted log-probabilities, or moments too, of all members of a batch, one after the other."""
    rows = [pack([_read(sequences[i]) for i in row.members]) for row in batch]
    places: list[int] = []
    tokens: list[int] = []
    for start, row, packed in zip(starts_of(rows), batch, rows, strict=True):
        for i, path in zip(row.members, packed.paths, strict=True):
            first = sequences[i].first
            places += [start + place for place in path[first - 1 :]]
            tokens += sequences[i].ids[first:]
    return measure(model, model.tree_features(rows), places, tokens)


def log_probabilities(model: CausalLM, features: Tensor, places: Whole, tokens: Whole) -> Tensor:
    """Return the log-probability of each token after what was read up to its place; places may repeat."""
    values = torch.empty(len(tokens), device=features.device)
    for order, rows, targets, table in _tables(model, features, places, tokens):
        values[order] = table[rows, targets]
    return values


def token_moments(model: CausalLM, features: Tensor, places: Whole, tokens: Whole) -> Tensor:
    """Return the same beside mean and standard deviation of the log-probability of what may follow; a row per token."""
    values = torch.empty(len(tokens), 3, device=features.device)
    for order, rows, targets, table in _tables(model, features, places, tokens):
        weights = table.exp()
        mean = -torch.special.entr(weights).sum(dim=-1)
        # What is impossible weighs nothing, however far it lies from the mean.
        squares = (table - mean[:, None]).masked_fill_(weights == 0, 0.0).square_()
        spread = (weights * squares).sum(dim=-1).sqrt()
        values[order] = torch.stack([table[rows, targets], mean[rows], spread[rows]], dim=-1)
    return values


def _tables(
    model: CausalLM, features: Tensor, places: Whole, tokens: Whole
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Yield log-probabilities over the vocabulary, a bounded number of positions at once, and which of them are asked:
    the place of each in the answer, its row and its token."""
    distinct, which = torch.unique(torch.as_tensor(places), return_inverse=True)
    order = torch.argsort(which, stable=True)
    most = _CPU_LOGITS_AT_ONCE if model.device.type == "cpu" else _LOGITS_AT_ONCE
    n_positions = max(_LEAST_POSITIONS, most // model.n_tokens)
    starts = range(0, len(distinct), n_positions)
    cuts = [*torch.searchsorted(which[order], torch.tensor(starts)).tolist(), len(order)]
    distinct, which, targets, order = (
        t.to(features.device) for t in (distinct, which[order], torch.as_tensor(tokens)[order], order)
    )
    for start, (low, high) in zip(starts, pairwise(cuts), strict=True):
        # log_softmax is one kernel, and half the time of logsumexp.
        table = torch.log_softmax(model.logits(features[distinct[start : start + n_positions]]), dim=-1)
        yield order[low:high], which[low:high] - start, targets[low:high], table
