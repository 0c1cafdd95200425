"""Token sequences that begin alike, packed one after another so that what they share stands there once.

Guarantees: a packed row holds each distinct beginning of its sequences once, in the order of a depth-first walk; the
tokens before a token in its own sequence are those whose subtree it stands in (`Packed.ends`), so a mask that shows
it those, and its depth as its position, give it the context it would have had alone. Sequences are grouped only where
reading fewer tokens saves more than attending over a longer row costs.

Voids it: nothing here; that a model takes such a mask is measured by `CausalLM`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_TREE_TOKENS = 512
"""A tree may always be as long as this; a longer one must be mostly beginning, for attention grows with its square."""
_LEAST_SAVING = 0.2
"""Of the smaller part: what joining two parts must save, because a tree's mask costs something, too."""


class Packed(NamedTuple):
    """Some sequences in one row."""

    ids: list[int]
    """The tokens of the tree, depth first."""
    depths: list[int]
    """How many tokens come before each in its sequence."""
    ends: list[int]
    """Where the subtree of each ends: the tokens from it up to there have read it, no others."""
    paths: list[list[int]]
    """Per sequence, where in the row its tokens stand."""


class Group(NamedTuple):
    """Sequences to be packed together."""

    n_tokens: int
    """How long the row will be."""
    members: tuple[int, ...]
    """Their indices, sorted as `pack` wants them."""


def pack(sequences: Sequence[Sequence[int]]) -> Packed:
    """Return sequences as one row; neighbours share their common beginning, so they should be sorted."""
    ids: list[int] = []
    depths: list[int] = []
    ends: list[int] = []
    paths: list[list[int]] = []
    path: list[int] = []
    before: Sequence[int] = ()
    for sequence in sequences:
        shared = n_shared(before, sequence)
        for place in path[shared:]:
            ends[place] = len(ids)
        path = [*path[:shared], *range(len(ids), len(ids) + len(sequence) - shared)]
        ids += sequence[shared:]
        depths += range(shared, len(sequence))
        ends += [0] * (len(sequence) - shared)
        paths.append(path)
        before = sequence
    for place in path:
        ends[place] = len(ids)
    return Packed(ids, depths, ends, paths)


def leaf(token: int) -> Packed:
    """Return a single token as a row."""
    return Packed([token], [0], [1], [[0]])


def behind(tokens: Sequence[int], tree: Packed) -> Packed:
    """Return some tokens, one after another, and a tree behind the last, without paths; the tree itself without any."""
    if not tokens:
        return tree
    n, n_all = len(tokens), len(tokens) + len(tree.ids)
    return Packed(
        [*tokens, *tree.ids],
        [*range(n), *(n + depth for depth in tree.depths)],
        [*[n_all] * n, *(n + end for end in tree.ends)],
        [],
    )


def group(sequences: Sequence[list[int]], *, width: int, most: int) -> list[Group]:
    """Return all sequences in groups, those of one included.

    Args:
        sequences: Token ids, none of them empty.
        width: How long a row is when attention costs as much as all else: more makes joining cheaper.
        most: Most tokens of a row that holds more than one sequence.
    """
    order = sorted(range(len(sequences)), key=lambda i: sequences[i])
    shared = [n_shared(sequences[a], sequences[b]) for a, b in pairwise(order)]
    # Parts are runs of `order`: the last of the run that starts somewhere, the first of the one that ends somewhere.
    last, first = list(range(len(order))), list(range(len(order)))
    size = [len(sequences[i]) for i in order]

    def cost(n: int) -> float:
        return n + n * n / width

    # What shares most is joined first, so that a run's common beginning is what its parts have in common.
    for cut in sorted(range(len(shared)), key=lambda k: -shared[k]):
        left, right = first[cut], cut + 1
        joined = size[left] + size[right] - shared[cut]
        if joined > min(most, max(_TREE_TOKENS, 2 * shared[cut])):
            continue
        parts = cost(size[left]), cost(size[right])
        if sum(parts) - cost(joined) >= _LEAST_SAVING * min(parts):
            size[left] = joined
            last[left], first[last[right]] = last[right], left
    starts = [at for at in range(len(order)) if first[last[at]] == at]
    return [Group(size[at], tuple(order[at : last[at] + 1])) for at in starts]


def n_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two sequences have in common before they part."""
    low, high = 0, min(len(one), len(other))
    # Slices are compared in C, many times faster than token by token.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
