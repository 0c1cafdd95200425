"""How probable phrases are behind texts, read as far as it matters.

Guarantees: a phrase's tokens have the log-probabilities that the model gives them behind the whole text; what phrases
share is read once, and so is every other token, whatever is asked later. Where trees are large they are read from one
branching to the next, until the phrases that are left have together less than a given share of the probability of the
best one. What a phrase has then is its log-probability, or, if it was left unread, an upper bound of it.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hushbot.intervals import FloatArray, IntArray
from hushbot.targets.branch_rows import starts_of
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.phrase_trees import Phrases
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import Packed, behind
from hushbot.targets.tree_parts import BoolArray, Part

_CPU_TOKENS = 2048  # much longer batches on a CPU fall out of its cache
_CPU_TOKENS_A_PASS = 256
"""So many tokens are read at once: what could be saved would not pay for a pass more. Elsewhere than on a CPU it is
`_TOKENS_A_PASS`, which was not measured."""
_TOKENS_A_PASS = 1024


class End(NamedTuple):
    """The last token of a text."""

    token: int
    slot: int = 0
    """Where it is stored; 0 if it was not read."""
    feature: Tensor | None = None
    """What the model made of it, if it was read."""
    unread: Sequence[int] = ()
    """The tokens before it that were not read."""


@dataclass(slots=True, eq=False)
class Reading:
    """How far the phrases behind some texts are read that all have the same ones."""

    plan: Phrases
    members: list[int]
    """Which of the caller's texts they are."""
    texts: list[list[int]]
    """Per text the slots of its tokens but the last; those that were not read are added when they are."""
    ends: list[End]
    """That token, which the tree starts with."""
    scores: FloatArray
    """Per text and edge its log-probability, 0 where it is not known yet."""
    slots: IntArray
    """Per text and token of the tree where it is stored, 0 where it was not read yet."""

    @property
    def bounds(self) -> FloatArray:
        """Return per text and phrase its log-probability, or an upper bound of it where not all of it was read."""
        return self.plan.totals(self.scores)

    @property
    def is_whole(self) -> BoolArray:
        """Return per text which phrases were read to their end."""
        return np.asarray(self.slots[:, self.plan.lasts] > 0)

    def alone(self, at: int) -> Reading:
        """Return one of the texts; what is read of it is read of this one, too."""
        own = slice(at, at + 1)
        return Reading(self.plan, self.members[own], self.texts[own], self.ends[own], self.scores[own], self.slots[own])

    def left(self, margin: float, *, at_once: bool) -> list[_Item]:
        """Return what is to be read next, until what is unread is together at least `margin` below the best phrase.

        Texts that are read on by the same part stand side by side.
        """
        if self.slots.all():
            return []
        (first,) = self.plan.parts.whole if at_once else self.plan.parts.crown
        if not self.slots.any():
            return [_Item(self, at, first) for at in range(len(self.members))]
        bounds, is_read, parts = self.bounds, self.slots > 0, self.plan.parts
        least = bounds.max(axis=1, keepdims=True) - margin - math.log(len(self.plan.paths))
        is_wanted = is_read[:, :1] & ~self.is_whole & (bounds > least)
        by_part = {id(first): [_Item(self, at, first) for at in np.flatnonzero(~is_read[:, 0]).tolist()]}
        for at in np.flatnonzero(is_wanted.any(axis=1)).tolist():
            for part in parts.behind(is_read[at], is_wanted[at], at_once=at_once):
                by_part.setdefault(id(part), []).append(_Item(self, at, part))
        return [item for items in by_part.values() for item in items]


class _Item(NamedTuple):
    """A part that one text of a reading is to be read on by."""

    reading: Reading
    at: int
    part: Part

    @property
    def unread(self) -> Sequence[int]:
        """Return the tokens that stand between what was read of the text and the part."""
        return () if self.part.above else self.reading.ends[self.at].unread

    @property
    def tree(self) -> Packed:
        """Return what is read: the part, and what stands before it."""
        if self.part.above:
            return self.part.tree
        end = self.reading.ends[self.at]
        return behind(end.unread, self.part.tree._replace(ids=[end.token, *self.part.tree.ids[1:]]))


def begin(model: CausalLM, texts: StoredTexts, ends: Sequence[End], plans: Sequence[Phrases]) -> list[Reading]:
    """Return phrases of which nothing was read, one reading for all texts that have the same ones.

    Args:
        model: What to score with.
        texts: What it has read of each text, the last token left out; `read_on` adds to it what is unread of `ends`.
        ends: That token; where it was read, too, its phrases' first tokens are scored.
        plans: The phrases behind each text.
    """
    members: dict[int, list[int]] = {}
    for number, plan in enumerate(plans):
        members.setdefault(id(plan), []).append(number)
    readings = []
    for numbers in members.values():
        plan = plans[numbers[0]]
        own, last = [texts.slots[number] for number in numbers], [ends[number] for number in numbers]
        scores = np.zeros((len(numbers), len(plan.edges.tokens)))
        slots = np.zeros((len(numbers), len(plan.tree.ids)), dtype=np.intp)
        slots[:, 0] = [end.slot for end in last]
        readings.append(Reading(plan, numbers, own, last, scores, slots))
    _score_firsts(model, readings)
    return readings


def _score_firsts(model: CausalLM, readings: Sequence[Reading]) -> None:
    """Score what follows last tokens that were read."""
    asked = [(reading, at, end.feature) for reading in readings for at, end in enumerate(reading.ends)]
    known = [(reading, at, feature) for reading, at, feature in asked if feature is not None]
    if not known:
        return
    tokens = [reading.plan.edges.tokens[: reading.plan.edges.n_firsts] for reading, _, _ in known]
    counts = [len(own) for own in tokens]
    places = np.repeat(np.arange(len(known)), counts)
    features = torch.stack([feature for _, _, feature in known])
    values = log_probabilities(model, features, places, np.concatenate(tokens)).double().cpu().numpy()
    for (reading, at, _), own in zip(known, np.split(values, np.cumsum(counts)[:-1]), strict=True):
        reading.scores[at, : len(own)] = own


def read_on(
    model: CausalLM, store: TokenStore, readings: Sequence[Reading], *, margin: float = math.inf, batch_tokens: int
) -> None:
    """Read phrases on, and keep all that is read in the store.

    Args:
        model: What to score with.
        store: Holds what the model has read.
        readings: How far it has come; changed in place.
        margin: How far below the most probable phrase of a text, in log-probability, all phrases together must lie that
            are left unread.
        batch_tokens: Most tokens of a pass, what texts have read included.
    """
    is_cpu = model.device.type == "cpu"
    most = _CPU_TOKENS if is_cpu else batch_tokens
    n_tokens = sum(reading.slots.size for reading in readings)
    at_once = math.isinf(margin) or n_tokens <= (_CPU_TOKENS_A_PASS if is_cpu else _TOKENS_A_PASS)
    while todo := [item for reading in readings for item in reading.left(margin, at_once=at_once)]:
        for batch in _batches(todo, batch_tokens, most):
            _read(model, store, batch)


def _batches(todo: Sequence[_Item], batch_tokens: int, most: int) -> Iterator[list[_Item]]:
    """Yield what to read together, the largest trees first: short ones fill up the rows beside long ones."""
    batch: list[_Item] = []
    text = tree = n_tokens = 0
    for item in sorted(todo, key=lambda item: -len(item.part.tree.ids)):
        n_text = len(item.reading.texts[item.at]) + max(1, len(item.part.above))
        n_new = len(item.unread) + len(item.part.tree.ids)
        text, tree, n_tokens = max(text, n_text), max(tree, n_new), n_tokens + n_new
        if batch and ((text + tree) * (len(batch) + 1) > batch_tokens or n_tokens > most):
            yield batch
            batch, text, tree, n_tokens = [], n_text, n_new, n_new
        batch.append(item)
    yield batch


def _read(model: CausalLM, store: TokenStore, batch: Sequence[_Item]) -> None:
    """Read some parts in one pass."""
    texts = [[*reading.texts[at], *reading.slots[at, part.above].tolist()] for reading, at, part in batch]
    trees = [item.tree for item in batch]
    features, read = model.branch_features(StoredTexts(store, texts), trees)
    slots, starts = np.array(read), np.array(starts_of(trees))
    for number, item in enumerate(batch):
        if n := len(item.unread):
            item.reading.texts[item.at] += slots[starts[number] : starts[number] + n].tolist()
            starts[number] += n
    # Texts that are read on by the same part stand side by side: what they hold is a table.
    runs = [list(run) for _, run in groupby(batch, key=lambda item: (id(item.reading), id(item.part)))]
    tokens, places, n_done = [], [], 0
    for run in runs:
        reading, _, part = run[0]
        rows, heads = [[at] for _, at, _ in run], starts[n_done : n_done + len(run), None]
        reading.slots[rows, part.places] = slots[heads + np.arange(len(part.places))]
        places.append((heads + part.starts).ravel())
        tokens.append(np.tile(part.tokens, len(run)))
        n_done += len(run)
    values = log_probabilities(model, features, np.concatenate(places), np.concatenate(tokens)).double().cpu().numpy()
    for run, table in zip(runs, np.split(values, np.cumsum([len(part) for part in places])[:-1]), strict=True):
        reading, _, part = run[0]
        reading.scores[[[at] for _, at, _ in run], part.edges] = table.reshape(len(run), -1)
