"""The texts that wait for their next piece in guided sampling, and what the model remembers of each.

Guarantees: texts go last in, first out, as many at once as fit a batch; what is remembered of those that wait, in one
`TokenStore`, is bounded, the oldest are forgotten and read again when their turn comes. Random numbers hang on the way
a text was drawn (`Row.key`), not on the batch it was drawn in.

Voids it: nothing here; that a text's tokens are its own is up to who makes rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.guided_texts import Choice, Free, Node
from hushbot.targets.phrase_scores import End
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import n_shared

_PREFILL_TOKENS = 2048
_REMEMBERED = 2
"""How many times `batch_tokens` the waiting texts may remember."""


@dataclass(slots=True, eq=False)
class Row:
    """Some draws that share a text, and what the model remembers of it."""

    node: Node
    rule: Choice | Free
    ids: list[int]
    """All tokens, start token and those of an unfinished free piece included."""
    slots: list[int] | None = None
    """Where the keys and values of its tokens are stored, of the first of them or of all; the others are read together
    with what follows them. None is read when needed. Rows may share it."""
    key: bytes = b""
    """Names what was drawn so far; random numbers hang on it."""
    n_free: int = 0
    """How many of the tokens belong to the free piece in the making, which `node.text` does not hold yet."""
    head: str | None = None
    """What the tokens before that piece say, start token aside; None until it is needed."""
    feature: Tensor | None = None
    """What the model made of the last token, where that was read."""

    @property
    def end(self) -> End:
        """Return the last token, and where it was read what is known of it."""
        n_read = len(self.slots or ())
        if self.feature is None or self.slots is None or n_read < len(self.ids):
            return End(self.ids[-1], unread=self.ids[n_read:-1])
        return End(self.ids[-1], self.slots[-1], self.feature)

    def read_of(self, ids: Sequence[int]) -> list[int] | None:
        """Return the slots of what other tokens begin with like its own: the very same list if they are its own."""
        if self.slots is None or ids is self.ids:
            return self.slots
        # The last token is read with what follows it.
        return self.slots[: min(n_shared(self.ids, ids), len(ids) - 1)]

    def key_of(self, drawn: str) -> bytes:
        """Return the name of what some of its draws became."""
        return hashlib.blake2b(self.key + drawn.encode(errors="surrogatepass"), digest_size=16).digest()


class Waiting:
    """The rows whose turn has not come.

    Args:
        batch_rows: Most rows of a batch.
        batch_tokens: Most tokens of a batch, padding included; a longer row comes alone.
    """

    def __init__(self, batch_rows: int, batch_tokens: int) -> None:
        self._batch_rows = batch_rows
        self._batch_tokens = batch_tokens
        self._choices: list[Row] = []
        self._free: list[Row] = []

    def __bool__(self) -> bool:
        return bool(self._choices or self._free)

    def add(self, row: Row) -> None:
        """Let a row wait for its next piece, or for the next token of its free piece."""
        (self._choices if isinstance(row.rule, Choice) else self._free).append(row)

    def take(self) -> list[Row]:
        """Return the newest rows of the kind that more rows are of: all have a choice to make, or all are free."""
        waiting = self._choices if len(self._choices) >= len(self._free) else self._free
        rows: list[Row] = []
        longest = 0
        while waiting and len(rows) < self._batch_rows:
            longest = max(longest, len(waiting[-1].ids))
            if rows and longest * (len(rows) + 1) > self._batch_tokens:
                break
            rows.append(waiting.pop())
        return rows

    def forget(self) -> None:
        """Drop what is remembered of the oldest rows, if it is too much."""
        rows = [row for row in (*self._choices, *self._free) if row.slots is not None]
        held = {id(row.slots): len(row.ids) for row in rows}
        excess = sum(held.values()) - _REMEMBERED * self._batch_tokens
        if excess <= 0:
            return
        dropped = set()
        for slots, n in held.items():
            if excess <= 0:
                break
            dropped.add(slots)
            excess -= n
        for row in rows:
            if id(row.slots) in dropped:
                row.slots = None

    def remembered(self) -> Iterator[list[int]]:
        """Yield the slots of what is remembered, once where rows share it."""
        yield from {id(row.slots): row.slots for row in (*self._choices, *self._free) if row.slots is not None}.values()


def remembered(model: CausalLM, store: TokenStore, rows: Sequence[Row]) -> StoredTexts:
    """Return what is stored of rows' tokens, the last left out; rows of which nothing is stored are read now."""
    unread = [row for row in rows if row.slots is None]
    while unread:
        n = max(1, _PREFILL_TOKENS // max(len(row.ids) for row in unread))
        batch, unread = unread[:n], unread[n:]
        for row, read in zip(batch, model.prefill([row.ids for row in batch]), strict=True):
            row.slots = store.add_text(read.memory, len(row.ids) - 1)
    return StoredTexts(store, [row.slots[: len(row.ids) - 1] for row in rows if row.slots is not None])
