"""A tree of phrases read part by part: first where it branches, then only what may still matter.

Guarantees: the parts of a tree hold each of its tokens at most once, and a token only together with, or behind, all
that come before it. Which part is next depends on which tokens were read and which phrases are wanted, nothing else.

Voids it: nothing here; which phrases are wanted is up to who reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushbot.intervals import IntArray
from hushbot.targets.token_tree import Packed

BoolArray = NDArray[np.bool_]

_MOST_KNOWN = 256
"""Ways to go on in one tree that are kept."""


class Part(NamedTuple):
    """Some tokens of a tree that hang from one and the same token, or from the text."""

    above: list[int]
    """Where in the whole tree the tokens stand that come before it, the root first; empty for the root's own part."""
    places: IntArray
    """Where in the whole tree its tokens stand, in ascending order."""
    tree: Packed
    """Those tokens, without paths."""
    edges: IntArray
    """The numbers of the edges that are scored in it: those that leave its tokens."""
    starts: IntArray
    """Where in the part each of these edges starts."""
    tokens: IntArray
    """The token of each."""


class TreeParts:
    """Cuts one tree into parts.

    Args:
        tree: The tree, with a root.
        paths: Per phrase the places of its tokens in the tree, the root's first, its last token's left out.
        starts: Where in the tree each edge starts, in ascending order.
        tokens: Where it leads to.
    """

    def __init__(self, tree: Packed, paths: Sequence[Sequence[int]], starts: IntArray, tokens: IntArray) -> None:
        self._tree, self._paths, self._starts, self._tokens = tree, paths, starts, tokens
        self._parents = _parents(paths)
        self._n_edges = Counter(self._starts.tolist())
        self._branching = self._find_branching()
        self._known: dict[tuple[bytes, bytes, bool], tuple[Part, ...]] = {}
        self.whole = self._cut(range(len(tree.ids)))
        self.crown = self._cut(sorted(self._branching))

    def behind(self, is_read: BoolArray, is_wanted: BoolArray, *, at_once: bool = True) -> tuple[Part, ...]:
        """Return what is left to read of some phrases.

        Args:
            is_read: Per token of the tree, whether it was read; the root was.
            is_wanted: Per phrase, whether all of it is wanted.
            at_once: Go on to the end of each, not only to where the tree branches next.
        """
        key = (is_read.tobytes(), is_wanted.tobytes(), at_once)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            wanted = set[int]()
            for phrase in np.flatnonzero(is_wanted).tolist():
                unread = [place for place in self._paths[phrase] if not is_read[place]]
                ends = () if at_once else (at for at, place in enumerate(unread, 1) if self._n_edges[place] > 1)
                wanted.update(unread[: next(iter(ends), len(unread))])
            self._known[key] = self._cut(sorted(wanted))
        return self._known[key]

    def _find_branching(self) -> set[int]:
        """Return the tokens at the beginning up to which phrases go different ways."""
        n_edges = self._n_edges
        crown = {0}
        for place in range(1, len(self._tree.ids)):
            parent = self._parents[place]
            if parent in crown and (n_edges[place] > 1 or n_edges[parent] == 1):
                crown.add(place)
        return crown

    def _cut(self, places: Iterable[int]) -> tuple[Part, ...]:
        """Return some tokens, in ascending order, by what they hang from."""
        hung: dict[int, list[int]] = {}
        tops: dict[int, int] = {}
        for place in places:
            parent = self._parents[place]
            tops[place] = tops.get(parent, parent)
            hung.setdefault(tops[place], []).append(place)
        return tuple(self._part(top, own) for top, own in hung.items())

    def _part(self, top: int, places: list[int]) -> Part:
        above: list[int] = []
        while top >= 0:
            above.insert(0, top)
            top = self._parents[top]
        ids, depths, ends, _ = self._tree
        tree = Packed(
            [ids[place] for place in places],
            [depths[place] - len(above) for place in places],
            [bisect_left(places, ends[place]) for place in places],
            [],
        )
        edges = np.flatnonzero(np.isin(self._starts, places))
        starts = np.searchsorted(places, self._starts[edges])
        return Part(above, np.array(places), tree, edges, starts, self._tokens[edges])


def _parents(paths: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the place before each in a tree; -1 before the root."""
    return {place: before for path in paths for before, place in zip((-1, *path[:-1]), path, strict=True)}
