"""One pass over the tokens of many trees, each behind a text of its own, none of them padded.

Guarantees: every token gets the hidden state that it would get behind its text and its path in the tree alone, up to
rounding. What is multiplied with weights are tokens that were asked for, none that pad a batch; attention is computed
for trees of like size at once, over their own text and tree only. New keys and values are written to where those of
the texts stand, and all are gathered from there.

The model's own modules are called: norms, projections (with an adapter, a bias or quantised weights, if they have
them), angles of the rotary embedding, fused attention; plain projections by the fastest routine (`products`). Only the
order of the calls and the turning of queries and keys stand here.

Voids it: any other order. `is_readable` asks for Llama's classes themselves, and for no hooks on what is not called
here; `CausalLM` measures the rest on a few tokens, and else reads padded rows through the model's own forward pass.

Source: the order of the calls is that of transformers' Llama; packing without cross-contamination (Krell et al., 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaModel,
)

from hushbot.intervals import IntArray
from hushbot.targets.branch_rows import seen_within
from hushbot.targets.products import is_bare, multiply
from hushbot.targets.token_store import TokenStore
from hushbot.targets.token_tree import Packed

AsTaken = Callable[[Tensor], Tensor]
"""Turns a mask of yes and no into what the fused attention takes."""


class _Alike(NamedTuple):
    """Trees of like size, whose attention is computed at once."""

    tokens: slice
    """Which tokens of the pass are theirs."""
    n_trees: int
    padding: tuple[Tensor, Tensor] | None
    """Which of these tokens stands at each place of the padded trees, and at which places each stands first; None
    where all trees are of the same size."""
    slots: Tensor
    """What each tree reads, of length trees * (longest text + longest tree)."""
    mask: Tensor
    """Which place sees which of these: (trees, 1, longest tree, longest text + longest tree)."""


class FlatPass:
    """Trees laid out for one pass, the largest first.

    Args:
        trees: What is read, at least one.
        texts: Per tree the slots of the tokens before it.
        store: Where the texts' keys and values stand, and those of the trees are put; without one, all texts are empty
            and nothing is kept.
        device: Where the model lies.
        as_taken: Turns masks into what the model's attention takes.
    """

    def __init__(
        self,
        trees: Sequence[Packed],
        texts: Sequence[Sequence[int]],
        store: TokenStore | None,
        *,
        device: torch.device,
        as_taken: AsTaken,
    ) -> None:
        self._store, self._device, self._as_taken = store, device, as_taken
        self._texts, self._lengths = texts, np.array([len(text) for text in texts])
        self._sizes = np.array([len(tree.ids) for tree in trees])
        order = np.argsort(-self._sizes, kind="stable")
        self._starts = np.empty_like(self._sizes)
        self._starts[order] = _starts_of(self._sizes[order])
        # Per token, tree after tree, where it stands in the pass.
        n_tokens = int(self._sizes.sum())
        self._places = np.arange(n_tokens) + np.repeat(self._starts - _starts_of(self._sizes), self._sizes)
        each = chain.from_iterable
        self._ids = self._laid(each(tree.ids for tree in trees))
        self._positions = self._laid(each(tree.depths for tree in trees))
        self._positions[self._places] += np.repeat(self._lengths, self._sizes)
        self._ends = self._laid(each(tree.ends for tree in trees))
        self._first = 0 if store is None else store.reserve(n_tokens)
        self._groups = [self._alike(members) for members in _like_sizes(order, self._sizes)]

    @property
    def slots(self) -> list[int]:
        """Return where each token is kept, tree after tree."""
        return [self._first + place for place in self._places.tolist()]

    def read(self, body: Any) -> Tensor:
        """Return the features of all tokens, tree after tree, of a model that `is_readable`."""
        hidden = body.embed_tokens(self._moved(self._ids))
        cos, sin = body.rotary_emb(hidden[None], position_ids=self._moved(self._positions)[None])
        turn = cos[0][:, None], sin[0][:, None].clone()
        turn[1][..., : turn[1].shape[-1] // 2].neg_()  # there the other half is taken off
        for number, layer in enumerate(body.layers):
            normed = layer.input_layernorm(hidden)
            hidden += self._attend(layer.self_attn, number, normed, turn)
            hidden += _gated(layer.mlp, layer.post_attention_layernorm(hidden))
        features: Tensor = body.norm(hidden)
        return features.index_select(0, self._moved(self._places))

    def _attend(self, attention: Any, number: int, normed: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Return what one layer's attention makes of all tokens."""
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (multiply(one, normed).view(len(normed), -1, attention.head_dim) for one in projections)
        query, key = _turned(query, *turn), _turned(key, *turn)
        held = (key, value) if self._store is None else self._store.put(number, self._first, key, value)
        found = []
        for group in self._groups:
            asking = query[group.tokens]
            if group.padding is not None:
                asking = asking.index_select(0, group.padding[0])
            keys, values = (self._by_head(group, stored.index_select(0, group.slots)) for stored in held)
            asking = self._by_head(group, asking)
            read, _ = sdpa_attention_forward(attention, asking, keys, values, group.mask, scaling=attention.scaling)
            read = read.flatten(0, 1).flatten(1)
            found.append(read if group.padding is None else read.index_select(0, group.padding[1]))
        return multiply(attention.o_proj, torch.cat(found))

    @staticmethod
    def _by_head(group: _Alike, rows: Tensor) -> Tensor:
        """Return (trees and tokens, heads, head size) as (trees, heads, tokens, head size)."""
        return rows.view(group.n_trees, -1, *rows.shape[1:]).transpose(1, 2)

    def _laid(self, values: Iterable[int]) -> IntArray:
        """Put a number per token of the trees where it stands in the pass."""
        numbers = np.empty(len(self._places), dtype=np.int64)
        numbers[self._places] = np.fromiter(values, dtype=np.int64, count=len(numbers))
        return numbers

    def _moved(self, values: IntArray) -> Tensor:
        return torch.from_numpy(values).to(self._device)

    def _alike(self, members: IntArray) -> _Alike:
        """Lay out trees, the largest first, that stand side by side in the pass."""
        sizes, starts, lengths = self._sizes[members], self._starts[members], self._lengths[members]
        first, longest, n_read = int(starts[0]), int(sizes[0]), int(lengths.max())
        columns = np.arange(longest)
        is_token = columns < sizes[:, None]
        # Padding stands for the first token of its tree, and sees itself only (no row may be empty).
        tokens = starts[:, None] + np.where(is_token, columns, 0)
        is_read = np.arange(n_read) < lengths[:, None]
        slots = np.zeros((len(members), n_read + longest), dtype=np.int64)
        texts = chain.from_iterable(self._texts[number] for number in members.tolist())
        slots[:, :n_read][is_read] = np.fromiter(texts, dtype=np.int64)
        slots[:, n_read:] = self._first + tokens
        mask = np.empty((len(members), longest, n_read + longest), dtype=np.bool_)
        mask[:, :, :n_read] = is_read[:, None]
        mask[:, :, n_read:] = seen_within(torch.from_numpy(np.where(is_token, self._ends[tokens], 0))).numpy()
        padding = None
        if sizes[-1] != longest:
            padding = self._moved((tokens - first).ravel()), self._moved(np.flatnonzero(is_token))
        return _Alike(
            slice(first, first + int(sizes.sum())),
            len(members),
            padding,
            self._moved(slots.ravel()),
            self._as_taken(torch.from_numpy(mask).to(self._device)[:, None]),
        )


def is_readable(body: Any) -> bool:
    """Return whether a model without its head is of classes that are known here, and nothing hangs on their calls."""
    return (
        type(body) is LlamaModel
        and is_bare(body)
        and all(
            type(layer) is LlamaDecoderLayer
            and type(layer.self_attn) is LlamaAttention
            and is_bare(layer)
            and is_bare(layer.self_attn)
            for layer in body.layers
        )
    )


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return queries or keys, (tokens, heads, head size), with the rotary embedding of their positions."""
    return (rows * cos).addcmul_(rows.roll(rows.shape[-1] // 2, dims=-1), sin)


def _gated(mlp: Any, rows: Tensor) -> Tensor:
    """Return what a gated layer makes of rows."""
    if type(mlp) is not LlamaMLP or not is_bare(mlp):
        return mlp(rows)  # type: ignore[no-any-return]
    gated = mlp.act_fn(multiply(mlp.gate_proj, rows))
    gated *= multiply(mlp.up_proj, rows)
    return multiply(mlp.down_proj, gated)


def _like_sizes(order: IntArray, sizes: IntArray) -> list[IntArray]:
    """Cut trees, the largest first, where more than half of the largest one's place would be padding."""
    groups, start, ordered = [], 0, sizes[order].tolist()
    for at, size in enumerate(ordered):
        if 2 * size <= ordered[start]:
            groups.append(order[start:at])
            start = at
    return [*groups, order[start:]]


def _starts_of(sizes: IntArray) -> IntArray:
    """Return where each of some things starts that stand one after another."""
    return np.asarray(np.cumsum(sizes) - sizes)
