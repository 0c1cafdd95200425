"""The texts that wait for their next piece in guided sampling, and what the model remembers of each.

Guarantees: texts go last in, first out, as many at once as fit a batch; what is remembered of those that wait is
bounded, the oldest are forgotten and read again when their turn comes. Random numbers hang on the way a text was drawn
(`Row.key`), not on the batch it was drawn in.

Voids it: nothing here; that a text's tokens are its own is up to who makes rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.guided_texts import Choice, Free, Node
from hushbot.targets.row_cache import KeysValues

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
    memory: KeysValues | None = None
    """Keys and values of all tokens but the last; None is read when needed."""
    key: bytes = b""
    """Names what was drawn so far; random numbers hang on it."""
    n_free: int = 0
    """How many of the tokens belong to the free piece in the making, which `node.text` does not hold yet."""
    head: str | None = None
    """What the tokens before that piece say, start token aside; None until it is needed."""

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
        held = {id(row.memory): len(row.ids) for row in (*self._choices, *self._free) if row.memory is not None}
        excess = sum(held.values()) - _REMEMBERED * self._batch_tokens
        if excess <= 0:
            return
        for row in (*self._choices, *self._free):
            if excess <= 0:
                return
            if row.memory is not None:
                excess -= held.pop(id(row.memory), 0)
                row.memory = None

    def memories(self) -> list[KeysValues]:
        """Return what is remembered, once where rows share it."""
        held = {id(row.memory): row.memory for row in (*self._choices, *self._free) if row.memory is not None}
        return list(held.values())


def remembered(model: CausalLM, rows: Sequence[Row]) -> list[KeysValues]:
    """Return the memories of rows, those without one read now."""
    unread = [row for row in rows if row.memory is None]
    while unread:
        n = max(1, _PREFILL_TOKENS // max(len(row.ids) for row in unread))
        batch, unread = unread[:n], unread[n:]
        for row, read in zip(batch, model.prefill([row.ids for row in batch]), strict=True):
            # Copies: a slice would keep the whole batch's memory alive.
            row.memory = [(keys[:, :-1].clone(), values[:, :-1].clone()) for keys, values in read.memory]
    return [row.memory for row in rows if row.memory is not None]


def extended(memory: KeysValues | None, fresh: KeysValues, places: Sequence[int]) -> KeysValues:
    """Return a memory with the keys and values of some of the tokens that were read behind it."""
    if memory is None:
        raise TypeError("a row is read before it goes on")
    runs = _runs(places)  # slices are views, and few: a path through a tree turns where it leaves an earlier one
    return [
        (
            torch.cat([keys, *(new_keys[:, run] for run in runs)], dim=1),
            torch.cat([values, *(new_values[:, run] for run in runs)], dim=1),
        )
        for (keys, values), (new_keys, new_values) in zip(memory, fresh, strict=True)
    ]


def _runs(places: Sequence[int]) -> list[slice]:
    """Return places as runs without a gap."""
    starts = [i for i, place in enumerate(places) if not i or place != places[i - 1] + 1]
    return [slice(places[a], places[b - 1] + 1) for a, b in pairwise([*starts, len(places)])]
