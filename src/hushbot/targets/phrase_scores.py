"""How probable phrases are behind texts, read as far as it matters.

Guarantees: a phrase's tokens have the log-probabilities that the model gives them behind the whole text; what phrases
share is read once, and so is every other token, whatever is asked later. Where trees are large they are first read to
where they branch, then on towards the phrases that may still be as probable as a given share of the most probable one.
What a phrase has then is its log-probability, or, if it was left unread, an upper bound of it that is below that share.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hushbot.intervals import FloatArray, IntArray
from hushbot.targets.branch_rows import starts_of
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.phrase_trees import Phrases
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.tree_parts import BoolArray, Part

_CPU_TOKENS = 1024  # a longer batch on a CPU falls out of its cache and is slower, not faster
_CPU_TOKENS_A_PASS = 256
"""So many tokens are read at once: what could be saved would not pay for a pass more. Elsewhere than on a CPU it is
`_TOKENS_A_PASS`, which was not measured."""
_TOKENS_A_PASS = 1024


@dataclass(slots=True, eq=False)
class Reading:
    """How far the phrases behind one text are read."""

    text: list[int]
    """The slots of the text's tokens but the last."""
    last: int
    """That token, which the tree starts with."""
    plan: Phrases
    scores: FloatArray
    """Per edge its log-probability, 0 where it is not known yet."""
    slots: IntArray
    """Per token of the tree where it is stored, 0 where it was not read yet."""

    @property
    def bounds(self) -> FloatArray:
        """Return the log-probability of each phrase, or an upper bound of it where not all of it was read."""
        return self.plan.totals(self.scores)

    @property
    def is_whole(self) -> BoolArray:
        """Return which phrases were read to their end."""
        return np.asarray(self.slots[self.plan.lasts] > 0)

    def left(self, margin: float) -> tuple[Part, ...]:
        """Return what is to be read next: towards phrases that may be at most `margin` below the most probable one."""
        if self.slots.all():
            return ()
        bounds = self.bounds
        is_wanted = ~self.is_whole & (bounds > bounds.max() - margin)
        return self.plan.parts.behind(self.slots > 0, is_wanted) if is_wanted.any() else ()


def begin(texts: StoredTexts, last: Sequence[int], plans: Sequence[Phrases]) -> list[Reading]:
    """Return phrases of which nothing was read.

    Args:
        texts: What the model has read of each text, its last token left out.
        last: That token.
        plans: The phrases behind each text.
    """
    return [
        Reading(slots, token, plan, np.zeros(len(plan.edges.tokens)), np.zeros(len(plan.tree.ids), dtype=np.intp))
        for slots, token, plan in zip(texts.slots, last, plans, strict=True)
    ]


def read_on(
    model: CausalLM, store: TokenStore, readings: Sequence[Reading], *, margin: float = math.inf, batch_tokens: int
) -> None:
    """Read phrases on, and keep all that is read in the store.

    Args:
        model: What to score with.
        store: Holds what the model has read.
        readings: How far it has come; changed in place.
        margin: How far below the most probable phrase of its text, in log-probability, a phrase may be left unread.
        batch_tokens: Most tokens of a pass, what texts have read included.
    """
    is_cpu = model.device.type == "cpu"
    most = _CPU_TOKENS if is_cpu else batch_tokens
    n_tokens = sum(len(reading.plan.tree.ids) for reading in readings)
    is_short = n_tokens <= (_CPU_TOKENS_A_PASS if is_cpu else _TOKENS_A_PASS)
    todo = [
        (reading, part)
        for reading in readings
        for part in (
            reading.left(margin)
            if reading.slots[0]
            else reading.plan.parts.whole
            if is_short or math.isinf(margin)
            else reading.plan.parts.crown
        )
    ]
    while todo:
        for batch in _batches(todo, batch_tokens, most):
            _read(model, store, batch)
        todo = [(reading, part) for reading in readings for part in reading.left(margin)]


def _batches(
    todo: Sequence[tuple[Reading, Part]], batch_tokens: int, most: int
) -> Iterator[list[tuple[Reading, Part]]]:
    """Yield what to read together, the largest trees first: short ones fill up the rows beside long ones."""
    batch: list[tuple[Reading, Part]] = []
    text = n_tokens = 0
    for reading, part in sorted(todo, key=lambda pair: -len(pair[1].tree.ids)):
        n_text, n_new = len(reading.text) + max(1, len(part.above)), len(part.tree.ids)
        text, n_tokens = max(text, n_text), n_tokens + n_new
        if batch and (text * (len(batch) + 1) + n_tokens > batch_tokens or n_tokens > most):
            yield batch
            batch, text, n_tokens = [], n_text, n_new
        batch.append((reading, part))
    yield batch


def _read(model: CausalLM, store: TokenStore, batch: Sequence[tuple[Reading, Part]]) -> None:
    """Read some parts in one pass."""
    texts = [[*reading.text, *reading.slots[part.above].tolist()] for reading, part in batch]
    trees = [
        part.tree if part.above else part.tree._replace(ids=[reading.last, *part.tree.ids[1:]])
        for reading, part in batch
    ]
    features, fresh = model.branch_features(StoredTexts(store, texts), trees)
    slots = np.array(store.add(fresh))
    starts = starts_of(trees)
    places = np.concatenate([part.starts + at for at, (_, part) in zip(starts, batch, strict=True)])
    tokens = np.concatenate([part.tokens for _, part in batch])
    values = log_probabilities(model, features, places, tokens).double().cpu().numpy()
    known = 0
    for at, (reading, part) in zip(starts, batch, strict=True):
        reading.slots[part.places] = slots[at : at + len(part.places)]
        reading.scores[part.edges] = values[known : known + len(part.edges)]
        known += len(part.edges)
