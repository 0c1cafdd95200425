"""A key-value cache whose rows have their own lengths and come and go one by one.

Guarantees: a row reads its own tokens only, under the mask that `begin_step` gives, and in a `SharedRowCache` its
prompt, which stands once for all rows that continue it; removing a row costs one copy of another row's tokens, whatever
the capacity.

Voids it: a model that ignores a ready-made four-dimensional mask, or that keeps more than keys and values
(`CausalLM.supports_rows` measures this); of shared prompts, attention other than `row_attention` (`supports_sharing`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

KeysValues: TypeAlias = list[tuple[Tensor, Tensor]]
"""One (keys, values) pair per layer."""


class SharedPrompt(NamedTuple):
    """What some rows have in common, in one layer."""

    rows: Tensor | slice
    """Which rows."""
    keys: Tensor
    """Of shape (heads, tokens, width)."""
    values: Tensor
    """Likewise."""


class RowCache:
    """Keys and values of rows that each have their own length and can be replaced one by one.

    It stands in for a transformers cache in single-token steps under a ready-made four-dimensional mask.
    """

    is_compileable = False

    def __init__(self, like: KeysValues, *, n_rows: int, capacity: int) -> None:
        self._layers = [
            (_empty_rows(keys, n_rows, capacity), _empty_rows(values, n_rows, capacity)) for keys, values in like
        ]
        self._lengths: list[int] = []
        self._rows = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)

    @property
    def lengths(self) -> list[int]:
        """Return how many tokens each row holds."""
        return list(self._lengths)

    def append(self, memory: KeysValues) -> None:
        """Add a row that has read one prompt."""
        row = len(self._lengths)
        for (keys, values), (new_keys, new_values) in zip(self._layers, memory, strict=True):
            keys[row, :, : new_keys.shape[1]] = new_keys
            values[row, :, : new_values.shape[1]] = new_values
        self._lengths.append(memory[0][0].shape[1])

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        last = self._lengths.pop()
        if row == len(self._lengths):
            return
        for tensors in self._layers:
            for tensor in tensors:
                tensor[row, :, :last] = tensor[len(self._lengths), :, :last]
        self._lengths[row] = last

    def begin_step(self) -> tuple[Tensor, Tensor]:
        """Make room for one token per row; return its positions (rows, 1) and mask (rows, 1, 1, longest)."""
        device = self._layers[0][0].device
        self._positions = torch.tensor(self._lengths, device=device)
        self._rows = torch.arange(len(self._lengths), device=device)
        self._lengths = [length + 1 for length in self._lengths]
        reach = torch.arange(max(self._lengths), device=device)
        return self._positions[:, None], (reach <= self._positions[:, None])[:, None, None, :]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Store one token per row and return all keys and values; transformers calls it, hence the names."""
        keys, values = self._layers[layer_idx]
        keys[self._rows, :, self._positions] = key_states[:, :, 0]
        values[self._rows, :, self._positions] = value_states[:, :, 0]
        n_rows, reach = len(self._lengths), max(self._lengths)
        return keys[:n_rows, :, :reach], values[:n_rows, :, :reach]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest row before this step; transformers asks for it."""
        return max(self._lengths) - 1

    def shared_prompts(self, layer: int) -> list[SharedPrompt]:
        """Return what rows read beside their own tokens: nothing."""
        return []


class SharedRowCache(RowCache):
    """Keys and values of rows that each hold their own tokens only; a prompt stands once for all rows that continue it.

    Args:
        like: Keys and values of some prompt.
        n_rows: Most rows at once.
        capacity: Most tokens of a row, its prompt not counted.
    """

    def __init__(self, like: KeysValues, *, n_rows: int, capacity: int) -> None:
        super().__init__(like, n_rows=n_rows, capacity=capacity)
        self._prompts: list[KeysValues] = []
        self._groups: list[tuple[KeysValues, Tensor | slice]] = []

    @property
    def lengths(self) -> list[int]:
        """Return how many tokens each row has read, its prompt included."""
        return [own + before for own, before in zip(self._lengths, self._before, strict=True)]

    def append(self, memory: KeysValues) -> None:
        """Add a row that continues a prompt; rows with the very same memory share it."""
        super().append([(keys[:, :0], values[:, :0]) for keys, values in memory])
        self._prompts.append(memory)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        super().remove(row)
        self._prompts[row] = self._prompts[-1]
        self._prompts.pop()

    def begin_step(self) -> tuple[Tensor, Tensor]:
        """Make room for one token per row; return its positions (rows, 1) and a mask over the row's own tokens."""
        positions, mask = super().begin_step()
        groups: dict[int, list[int]] = {}
        for row, prompt in enumerate(self._prompts):
            groups.setdefault(id(prompt), []).append(row)
        self._groups = [(self._prompts[rows[0]], self._index(rows)) for rows in groups.values()]
        return positions + torch.tensor(self._before, device=positions.device)[:, None], mask

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the length of the longest row before this step; transformers asks for it."""
        return max(self.lengths) - 1

    def shared_prompts(self, layer: int) -> list[SharedPrompt]:
        """Return the prompts and which rows continue each, as of `begin_step`."""
        return [SharedPrompt(rows, *memory[layer]) for memory, rows in self._groups]

    @property
    def _before(self) -> list[int]:
        return [prompt[0][0].shape[1] for prompt in self._prompts]

    def _index(self, rows: Sequence[int]) -> Tensor | slice:
        # A slice where it is all rows: nothing is copied then.
        return slice(None) if len(rows) == len(self._prompts) else torch.tensor(rows, device=self._rows.device)


def _empty_rows(like: Tensor, n_rows: int, capacity: int) -> Tensor:
    heads, _, width = like.shape
    # Zeros, not uninitialised memory: a masked NaN would still poison the weighted sum.
    return torch.zeros(n_rows, heads, capacity, width, dtype=like.dtype, device=like.device)
