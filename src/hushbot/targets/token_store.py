"""Keys and values of tokens that many texts share: each token stands once, a text is the list of its tokens' slots.

Guarantees: a text that goes on by some tokens costs those tokens' keys and values, whatever its length and however many
texts go on from it; a pass behind many texts gathers what each has read with one copy per layer. Tokens that belong to
no text any more are dropped when the store has grown to twice what was last kept (`TokenStore.tidy`), so it holds at
most about twice what its texts do.

Voids it: a model that keeps more than keys and values (`CausalLM.supports_branches` measures this).

Source: Kwon et al. (2023), paged attention, with pages of one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hushbot.targets.row_cache import KeysValues

_LEAST_SLOTS = 1024
"""Below this many tokens, dropping some is not worth the copy."""


class TokenStore:
    """Keys and values by slot; slot 0 holds zeros, for what pads a batch."""

    def __init__(self) -> None:
        self._layers: KeysValues = []
        self._n = 1
        self._full_at = _LEAST_SLOTS

    @property
    def layers(self) -> KeysValues:
        """Return keys and values of every layer, each of shape (slots, heads, width)."""
        return self._layers

    @property
    def n_tokens(self) -> int:
        """Return how many tokens are held, those of no text included."""
        return self._n - 1

    def add_text(self, memory: KeysValues, n: int) -> list[int]:
        """Hold the first n tokens of a text that was read, tensors of shape (heads, tokens, width); return slots."""
        return self.add([(keys[:, :n].transpose(0, 1), values[:, :n].transpose(0, 1)) for keys, values in memory])

    def add(self, fresh: KeysValues) -> list[int]:
        """Hold the tokens of a pass, tensors of shape (tokens, heads, width); return their slots."""
        start = self.reserve(len(fresh[0][0]))
        for number, (keys, values) in enumerate(fresh):
            self.put(number, start, keys, values)
        return list(range(start, self._n))

    def reserve(self, n: int) -> int:
        """Give slots to tokens that are about to be read, layer by layer; return the first, the others follow."""
        start = self._n
        self._n += n
        return start

    def put(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Hold one layer of tokens from a slot on, of shape (tokens, heads, width); return all of that layer."""
        if layer == len(self._layers):
            self._layers.append((_zeros(keys, 1), _zeros(values, 1)))
        held = self._layers[layer]
        if self._n > len(held[0]):
            n_slots = max(self._n, 2 * len(held[0]), _LEAST_SLOTS)
            held = self._layers[layer] = (_longer(held[0], n_slots, start), _longer(held[1], n_slots, start))
        for stored, new in zip(held, (keys, values), strict=True):
            stored[start : start + len(new)] = new
        return held

    def cut(self, n: int) -> None:
        """Drop all tokens but the first n that were added."""
        self._n = min(self._n, n + 1)

    def tidy(self, texts: Iterable[list[int]]) -> None:
        """Drop what belongs to no text, once that is worth it; lists of slots change in place."""
        if self._n > self._full_at:
            self.keep(texts)
            self._full_at = max(_LEAST_SLOTS, 2 * self._n)

    def keep(self, texts: Iterable[list[int]]) -> None:
        """Drop all tokens but those of some texts, whose lists of slots change in place."""
        lists = list({id(slots): slots for slots in texts}.values())
        held = np.fromiter(chain.from_iterable(lists), dtype=np.int64)
        kept = np.unique(np.append(held, 0))
        index = torch.from_numpy(kept)
        self._layers = [
            (keys.index_select(0, index.to(keys.device)), values.index_select(0, index.to(values.device)))
            for keys, values in self._layers
        ]
        self._n = len(kept)
        found = iter(np.searchsorted(kept, held).tolist())
        for slots in lists:
            slots[:] = islice(found, len(slots))


@dataclass(frozen=True, slots=True)
class StoredTexts:
    """What some texts have read, in one store."""

    store: TokenStore
    slots: Sequence[list[int]]
    """Per text the slots of its tokens."""

    @property
    def lengths(self) -> list[int]:
        """Return how many tokens each text has read."""
        return [len(slots) for slots in self.slots]


class BranchCache:
    """What rows have read, each its own number of tokens, behind which some more are read once.

    It stands in for a transformers cache in one forward pass, whose keys and values `fresh` then has.

    Args:
        store: Where they are stored.
        rows: Per row the slots of what it has read.
    """

    is_compileable = False

    def __init__(self, store: TokenStore, rows: Sequence[Sequence[int]]) -> None:
        self._longest = max(map(len, rows))
        self._layers = store.layers
        # Slots of padding are those of zeros: a masked NaN would still poison the weighted sum.
        table = np.zeros((len(rows), self._longest), dtype=np.int64)
        for at, row in enumerate(rows):
            table[at, : len(row)] = row
        self._index = torch.from_numpy(table).to(self._layers[0][0].device)
        self._passed: KeysValues = list(self._layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Return all keys and values, the new ones last; transformers calls it, hence the names."""
        keys, values = self._layers[layer_idx]
        self._passed[layer_idx] = (key_states, value_states)
        return self._behind(keys, key_states), self._behind(values, value_states)

    def fresh(self, places: Tensor) -> KeysValues:
        """Return what was read now at some places of the flattened rows, tensors of shape (tokens, heads, width)."""
        n_new = self._passed[0][0].shape[2]
        rows, columns = places // n_new, places % n_new

        def found(passed: Tensor) -> Tensor:
            return passed[rows.to(passed.device), :, columns.to(passed.device)]

        return [(found(keys), found(values)) for keys, values in self._passed]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens the longest row has read; transformers asks for it."""
        return self._longest

    def _behind(self, stored: Tensor, fresh: Tensor) -> Tensor:
        n_rows, _, n_new, _ = fresh.shape
        # Room for the new ones is gathered, too (the zeros), which spares a copy of all; layers may lie on several
        # devices.
        index = F.pad(self._index, (0, n_new)).to(stored.device)
        found = stored.index_select(0, index.flatten()).view(n_rows, -1, *stored.shape[1:])
        found[:, self._longest :] = fresh.transpose(1, 2)
        return found.transpose(1, 2)


def _zeros(like: Tensor, n_slots: int) -> Tensor:
    return like.new_zeros(n_slots, *like.shape[1:])


def _longer(stored: Tensor, n_slots: int, n: int) -> Tensor:
    """Return more slots, the first n of them as they were; the others are written before they are read."""
    longer = stored.new_empty(n_slots, *stored.shape[1:])
    longer[:n] = stored[:n]
    return longer
