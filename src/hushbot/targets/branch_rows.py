"""Which trees of tokens are read in one row, each behind a text of its own.

Guarantees: a row holds the texts of its trees one after another, then its trees; a token sees the text of its tree, the
tokens it follows there, and nothing of its neighbours. Short trees fill up the rows beside long ones, for what pads a
batch costs as much as what is read; rows of several texts stay so short that attention over all of them is a small
part of the work.

Voids it: a model that does not take such masks (`CausalLM.supports_branches` measures this).

Source: packing without cross-contamination (Krell et al., 2021), with what was read before in the row as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from hushbot.intervals import IntArray
from hushbot.targets.token_tree import Packed


@dataclass(frozen=True, slots=True)
class BranchRows:
    """Trees in rows of equal length."""

    rows: list[list[int]]
    """Per row the numbers of its trees."""
    ids: Tensor
    """Of shape (rows, longest), padded with zeros, on the CPU like all that follow."""
    positions: Tensor
    """How many tokens come before each in its own text and tree; the same shape."""
    mask: Tensor
    """Which token sees what: (rows, longest, texts of a row and longest)."""
    places: Tensor
    """Where in the flattened rows the tokens of all trees stand, tree after tree."""


def lay_out(trees: Sequence[Packed], lengths: Sequence[int], most_read: int) -> BranchRows:
    """Put trees into rows.

    Args:
        trees: What is read, at least one.
        lengths: How many tokens the text before each has.
        most_read: Most tokens of texts in a row; a row may always hold as many as the longest text.
    """
    sizes = [len(tree.ids) for tree in trees]
    longest = max(sizes)
    rows = _filled(sizes, lengths, longest, max(most_read, *lengths))
    # Per tree: where its tokens start in its row and in all rows, and where its text does.
    starts, firsts, since = np.zeros((3, len(trees)), dtype=np.int64)
    n_read = 0
    for at, row in enumerate(rows):
        start = read = 0
        for number in row:
            starts[number], firsts[number], since[number] = start, at * longest + start, read
            start, read = start + sizes[number], read + lengths[number]
        n_read = max(n_read, read)
    # From here on per token, tree after tree.
    places = np.arange(sum(sizes)) + np.repeat(firsts - starts_of(trees), sizes)

    def laid(values: Iterable[int], per_tree: Sequence[int] | IntArray = ()) -> IntArray:
        """Put a number per token of the trees, and one more for all of a tree, where the tokens stand."""
        grid = np.zeros(len(rows) * longest, dtype=np.int64)
        grid[places] = np.fromiter(values, dtype=np.int64, count=len(places))
        if len(per_tree):
            grid[places] += np.repeat(per_tree, sizes)
        return grid.reshape(len(rows), longest)

    each = chain.from_iterable
    ids = laid(each(tree.ids for tree in trees))
    positions = laid(each(tree.depths for tree in trees), lengths)
    ends = laid(each(tree.ends for tree in trees), starts)
    none = [0] * len(places)
    texts, columns = (laid(none, since), laid(none, since + lengths)), np.arange(n_read)
    behind = (columns >= texts[0][..., None]) & (columns < texts[1][..., None])
    mask = torch.cat([torch.from_numpy(behind), seen_within(torch.from_numpy(ends))], dim=2)
    ids_, positions_, places_ = map(torch.from_numpy, (ids, positions, places))
    return BranchRows(rows, ids_, positions_, mask, places_)


def seen_within(ends: Tensor) -> Tensor:
    """Return who sees whom in rows of packed tokens, (rows, longest, longest), from where each token's subtree ends."""
    places = torch.arange(ends.shape[1], device=ends.device)
    # A token sees those before it whose subtree it stands in, and itself (padding, too: no row may be empty).
    mask = (places[:, None] < ends[:, None, :]) & (places <= places[:, None])
    return mask | (places == places[:, None])


def starts_of(trees: Sequence[Packed]) -> list[int]:
    """Return where the tokens of each tree start when they stand tree after tree."""
    return list(accumulate((len(tree.ids) for tree in trees), initial=0))[:-1]


def _filled(sizes: Sequence[int], lengths: Sequence[int], longest: int, most_read: int) -> list[list[int]]:
    """Return trees by row: the largest first, each into the first row with room for it and for its text."""
    if min(sizes) * 2 > longest:  # no two fit
        return [[number] for number in range(len(sizes))]
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []
    first = 0  # rows before it are full
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        size, length = sizes[number], lengths[number]
        at = next((at for at in range(first, len(rows)) if room[at][0] >= size and room[at][1] >= length), len(rows))
        if at == len(rows):
            rows.append([])
            room.append((longest, most_read))
        rows[at].append(number)
        room[at] = (room[at][0] - size, room[at][1] - length)
        while first < len(rows) and not room[first][0]:
            first += 1
    return rows
