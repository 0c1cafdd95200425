"""Score token sequences: the chain rule, with what sequences share read once, and logits only where needed.

Guarantees: sequences that begin alike are read as one tree (`token_tree`) where the model reads trees and that costs
less; what trees have in common at their beginning is read before them where they are read in flat passes (`flat_pass`);
all others in batches of like length. Memory is bounded by a token budget, whatever the number of sequences; a
matrix over the vocabulary holds a bounded number of positions; a score that is not finite is an `AuditError`.
Sequences are batched by their tokens alone, so membership cannot show through batching.

Voids it: a model without a plain head (see `CausalLM`) is scored one row at a time, each row with all its
logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.intervals import IntArray
from hushbot.targets.branch_rows import starts_of
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import Group, Packed, group, n_shared, pack

_LOGITS_AT_ONCE = 2**21  # entries of one positions x vocabulary matrix: 8 MiB in fp32
_CPU_LOGITS_AT_ONCE = 2**18  # a larger matrix falls out of a CPU's cache and is slower, not faster
_LEAST_POSITIONS = 64  # below this, reading the output embedding costs more than using it
_FLATTER = 4
"""By how much narrower rows are taken to be in flat passes when sequences are grouped; 2 to 8 were measured alike."""
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
    for run in _runs(model, _groups(model, sequences, budget), sequences, budget):
        beginnings = _Beginnings(model, run, budget)
        for batch in _batches(list(run), budget, are_apart=not model.is_flat):
            _keep(results, _score_batch(model, batch, sequences, beginnings, measure).cpu(), batch, sequences)
    return results


def _keep(results: list[Tensor], values: Tensor, batch: Sequence[Group], sequences: Sequence[Scored]) -> None:
    """Put the scores of a batch where they belong."""
    members = [i for row in batch for i in row.members]
    pieces = torch.split(values, [_n_wanted(sequences[i]) for i in members])
    if not bool(torch.isfinite(values).all()):
        broken = next(i for i, piece in zip(members, pieces, strict=True) if not bool(torch.isfinite(piece).all()))
        raise AuditError(f"pair {sequences[broken].pair}: a log-probability is not finite; check the model's weights")
    for i, piece in zip(members, pieces, strict=True):
        results[i] = piece


def _n_wanted(sequence: Scored) -> int:
    return len(sequence.ids) - sequence.first


def _groups(model: CausalLM, sequences: Sequence[Scored], most: int) -> list[Group]:
    """Return all sequences in groups that are read as one row each."""
    read = [_read(sequence) for sequence in sequences]
    if len(read) > 1 and model.supports_trees(max(map(len, read))):
        # What groups begin with alike costs nothing in flat passes, so they need not be large.
        return group(read, width=model.attention_width // (_FLATTER if model.is_flat else 1), most=most)
    return [Group(len(ids), (i,)) for i, ids in enumerate(read)]


def _read(sequence: Scored) -> list[int]:
    """Return the tokens to read; the last one predicts nothing that is asked for."""
    return sequence.ids[:-1]


def _runs(
    model: CausalLM, groups: Sequence[Group], sequences: Sequence[Scored], most: int
) -> Iterator[dict[Group, tuple[int, ...]]]:
    """Yield groups, neighbours together, and what each has in common with a neighbour at its beginning.

    Nothing where trees are not read in flat passes; of one run, so many tokens at most as a pass may have.
    """
    ends = [(_read(sequences[row.members[0]]), _read(sequences[row.members[-1]])) for row in groups]
    shared = [0, *(n_shared(before[1], after[0]) for before, after in pairwise(ends)), *([0] if ends else [])]
    run: dict[Group, tuple[int, ...]] = {}
    n_tokens = 0
    last: tuple[int, ...] = ()
    for row, (first, final), around in zip(groups, ends, pairwise(shared), strict=True):
        # All of the group must begin like that, and something must be left of each.
        n = min(max(around), n_shared(first, final), len(first) - 1) if model.is_flat else 0
        beginning = tuple(first[:n])
        n_more = n - n_shared(last, beginning)
        if run and n_tokens + n_more > most:
            yield run
            run, n_tokens, n_more = {}, 0, n
        run[row] = beginning
        n_tokens, last = n_tokens + n_more, beginning
    if run:
        yield run


class _Beginnings:
    """What neighbouring groups begin with alike, read before them, where a flat pass reads the rest behind it.

    Args:
        model: Read as it stands.
        of: The beginning of each group.
        most: Most tokens of a pass.
    """

    def __init__(self, model: CausalLM, of: Mapping[Group, tuple[int, ...]], most: int) -> None:
        self._of = of
        self._store = TokenStore()
        self._features: list[Tensor] = []
        self._places: dict[tuple[int, ...], list[int]] = {(): []}
        self._slots: dict[tuple[int, ...], list[int]] = {(): []}
        distinct = sorted(set(of.values()) - {()})
        if distinct:
            self._read(model, [list(beginning) for beginning in distinct], most)

    def _read(self, model: CausalLM, sequences: list[list[int]], most: int) -> None:
        n_read = 0
        for batch in _batches(group(sequences, width=model.attention_width, most=most), most, are_apart=False):
            trees = [pack([sequences[i] for i in row.members]) for row in batch]
            features, slots = model.branch_features(StoredTexts(self._store, [[]] * len(trees)), trees)
            self._features.append(features)
            for start, row, tree in zip(starts_of(trees), batch, trees, strict=True):
                for i, path in zip(row.members, tree.paths, strict=True):
                    key = tuple(sequences[i])
                    self._places[key] = [n_read + start + place for place in path]
                    self._slots[key] = [slots[start + place] for place in path]
            n_read += len(slots)

    def of(self, row: Group) -> list[int]:
        """Return where the features of a group's beginning stand among those that `read_on` returns first."""
        return self._places[self._of[row]]

    def read_on(self, model: CausalLM, batch: Sequence[Group], trees: Sequence[Packed]) -> tuple[Tensor, int]:
        """Return the features of all beginnings and those of trees behind theirs, and how many the former are."""
        if not self._features:
            return model.tree_features(trees), 0
        n_kept = self._store.n_tokens
        texts = [self._slots[self._of[row]] for row in batch]
        features, _ = model.branch_features(StoredTexts(self._store, texts), trees)
        self._store.cut(n_kept)
        return torch.cat([*self._features, features]), n_kept


def _batches(groups: Sequence[Group], budget: int, *, are_apart: bool) -> Iterator[list[Group]]:
    """Yield groups, longest first; each batch padded to its longest fits the budget.

    Trees and single sequences come apart where one of them is read differently.
    """
    batch: list[Group] = []
    for row in sorted(groups, key=lambda row: (are_apart and _is_single(row), -row.n_tokens)):
        is_other = are_apart and bool(batch) and _is_single(row) != _is_single(batch[0])
        if batch and (batch[0].n_tokens * (len(batch) + 1) > budget or is_other):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _is_single(row: Group) -> bool:
    return len(row.members) == 1


def _score_batch(
    model: CausalLM, batch: Sequence[Group], sequences: Sequence[Scored], beginnings: _Beginnings, measure: Measure
) -> Tensor:
    """Return the wanted log-probabilities, or moments too, of all members of a batch, one after the other."""
    before = [beginnings.of(row) for row in batch]
    trees = [
        pack([_read(sequences[i])[len(begun) :] for i in row.members]) for row, begun in zip(batch, before, strict=True)
    ]
    features, n_before = beginnings.read_on(model, batch, trees)
    places: list[int] = []
    tokens: list[int] = []
    for start, row, begun, tree in zip(starts_of(trees), batch, before, trees, strict=True):
        for i, path in zip(row.members, tree.paths, strict=True):
            first = sequences[i].first
            places += [*begun, *(n_before + start + place for place in path)][first - 1 :]
            tokens += sequences[i].ids[first:]
    as_array = partial(np.fromiter, dtype=np.int64)
    return measure(model, features, as_array(places, count=len(places)), as_array(tokens, count=len(tokens)))


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
