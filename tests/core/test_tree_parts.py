"""Trees of phrases read part by part: what they begin with, then what is wanted, each token once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hushbot.targets.token_tree import pack
from hushbot.targets.tree_parts import Part, TreeParts


def parts_of(paths: list[list[int]]) -> tuple[TreeParts, list[list[int]]]:
    """Return the parts of the tree of some paths, and per path the places of its tokens; a root comes before all."""
    tree = pack([[0, *path[:-1]] for path in paths])
    edges = sorted({edge for path, at in zip(paths, tree.paths, strict=True) for edge in zip(at, path, strict=True)})
    starts, tokens = (np.array(column) for column in zip(*edges, strict=True))
    return TreeParts(tree, tree.paths, starts, tokens), tree.paths


def places(part: Part) -> list[int]:
    return part.places.tolist()


def test_a_tree_is_read_to_where_it_branches_and_on_to_what_is_wanted() -> None:
    # At 0 the root, at 1 the 7 of the first three, at 2 the 8 of the first two, at 3 and 4 the 1 and its 2, at 5 the 3,
    # at 6 and 7 the 9 and its 4.
    parts, _ = parts_of([[7, 8, 1, 2, 5], [7, 8, 3, 5], [7, 9, 4, 5], [6]])
    (crown,) = parts.crown
    assert (crown.above, places(crown), crown.tree.ids, crown.tree.ends) == ([], [0, 1, 2], [0, 7, 8], [3, 3, 3])
    # Edges in the order of their starts: 0 to 6 and 7, 7 to 8 and 9, 8 to 1 and 3.
    assert (crown.starts.tolist(), crown.tokens.tolist()) == ([0, 0, 1, 1, 2, 2], [6, 7, 8, 9, 1, 3])
    is_read = np.arange(8) <= 2
    below_8, below_7 = parts.behind(is_read, np.array([True, True, True, False]))
    assert (below_8.above, places(below_8), below_8.tree.ids) == ([0, 1, 2], [3, 4, 5], [1, 2, 3])
    assert (below_8.tree.depths, below_8.tree.ends) == ([0, 1, 0], [2, 2, 3])
    assert (below_8.starts.tolist(), below_8.tokens.tolist()) == ([0, 1, 2], [2, 5, 5])
    assert (below_7.above, places(below_7), below_7.tree.depths) == ([0, 1], [6, 7], [0, 1])
    (alone,) = parts.behind(is_read, np.array([True, False, False, False]))
    assert places(alone) == [3, 4]


def test_below_one_branching_the_next_one_is_read_first() -> None:
    # At 0 the root, at 1 and 2 the 7 and its 8, at 3 the 1, at 4 the 2 and at 5 its 3; at 6 the 9.
    parts, _ = parts_of([[7, 8, 1, 4], [7, 8, 2, 3, 4], [9, 5]])
    (crown,) = parts.crown
    assert places(crown) == [0]
    is_read, both = np.arange(7) < 1, np.array([True, True, False])
    (next_one,) = parts.behind(is_read, both, at_once=False)
    assert places(next_one) == [1, 2]  # up to the 8, behind which it is known whether the 1 or the 2 matters
    assert [places(part) for part in parts.behind(is_read, both)] == [[1, 2, 3, 4, 5]]
    is_read[[1, 2]] = True
    assert [places(part) for part in parts.behind(is_read, np.array([False, True, False]), at_once=False)] == [[4, 5]]


def test_what_all_phrases_begin_with_is_no_reason_to_stop() -> None:
    parts, _ = parts_of([[7, 8, 1, 5], [7, 8, 2, 5]])
    assert [places(part) for part in parts.crown] == [[0, 1, 2]]
    assert [places(part) for part in parts_of([[7, 8]])[0].crown] == [[0, 1]]


PATHS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5).map(tuple), min_size=1, max_size=8, unique=True)


@given(PATHS, st.data())
def test_each_token_is_read_once_behind_those_before_it(phrases: list[tuple[int, ...]], data: st.DataObject) -> None:
    ordered = [list(path) for path in sorted(phrases)]
    prefix_free = [path for path in ordered if not any(o != path and o[: len(path)] == path for o in ordered)]
    parts, paths = parts_of(prefix_free)
    sequences = {place: path[: i + 1] for path in paths for i, place in enumerate(path)}
    n_left, found = len(prefix_free), list(parts.crown)
    edges: list[int] = []
    is_read = np.zeros(len(sequences), dtype=bool)
    while found:
        for part in found:
            assert part.above == [] or is_read[part.above].all()
            for at, place in enumerate(places(part)):
                assert not is_read[place]
                seen = [other for k, other in enumerate(places(part)) if k <= at < part.tree.ends[k]]
                assert [*part.above, *seen] == sequences[place]
                assert part.tree.depths[at] == len(sequences[place]) - 1 - len(part.above)
            edges += part.edges.tolist()
        for part in found:
            is_read[part.places] = True
        n_left -= 1
        wanted = data.draw(st.lists(st.booleans(), min_size=len(paths), max_size=len(paths)))
        is_wanted = np.array(wanted) if n_left > 0 else np.ones(len(paths), dtype=bool)
        found = list(parts.behind(is_read, is_wanted))
        assert {place for part in found for place in places(part)} == {
            place for path, wants in zip(paths, is_wanted, strict=True) if wants for place in path if not is_read[place]
        }
        if not found and n_left > 0:
            found = list(parts.behind(is_read, np.ones(len(paths), dtype=bool)))
    assert is_read.all()
    assert sorted(edges) == list(range(len(edges)))
