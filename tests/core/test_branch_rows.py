"""Trees in rows: what a token may see, which trees share a row, and that a model reads the same in any row."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.targets.branch_rows import lay_out, starts_of
from hushbot.targets.token_tree import Packed, pack


def chain(*ids: int) -> Packed:
    """Return tokens that follow each other."""
    return pack([ids])


def test_short_trees_fill_up_rows_and_see_their_own_text_only() -> None:
    # Texts of 2, 1 and 3 tokens; the second and third tree fit into one row beside the first.
    trees = [chain(5, 6, 7), chain(8), chain(9, 1)]
    laid = lay_out(trees, [2, 1, 3], most_read=4)
    assert laid.rows == [[0], [2, 1]]
    assert laid.ids.tolist() == [[5, 6, 7], [9, 1, 8]]
    assert laid.positions.tolist() == [[2, 3, 4], [3, 4, 1]]
    assert laid.places.tolist() == [0, 1, 2, 5, 3, 4]
    first, second = laid.mask.int().tolist()
    assert first == [[1, 1, 0, 0, 1, 0, 0], [1, 1, 0, 0, 1, 1, 0], [1, 1, 0, 0, 1, 1, 1]]
    # Texts stand in the row as its trees do: three tokens of the third tree's, then one of the second's.
    assert second == [[1, 1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0, 1]]


def test_texts_that_are_too_long_together_stay_in_rows_of_their_own() -> None:
    trees = [chain(5, 6, 7), chain(8), chain(9)]
    assert lay_out(trees, [4, 2, 2], most_read=0).rows == [[0], [1, 2]]
    assert lay_out(trees, [4, 3, 2], most_read=0).rows == [[0], [1], [2]]
    assert lay_out(trees, [4, 3, 2], most_read=9).rows == [[0], [1, 2]]


def test_padding_sees_itself_and_nothing_else() -> None:
    laid = lay_out([chain(5, 6, 7), chain(8, 9)], [1, 1], most_read=1)
    assert laid.ids.tolist() == [[5, 6, 7], [8, 9, 0]]
    assert laid.mask[1, 2].int().tolist() == [0, 0, 0, 1]


def test_where_trees_start() -> None:
    assert starts_of([chain(1, 2), chain(3), chain(4, 5)]) == [0, 2, 3]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1), st.integers(1, 6)),
             min_size=1, max_size=6),
    st.integers(0, 12),
)  # fmt: skip
def test_every_token_sees_its_text_and_what_it_follows(given_: list[tuple[list[list[int]], int]], most: int) -> None:
    trees, lengths = [pack(sorted(paths)) for paths, _ in given_], [length for _, length in given_]
    laid = lay_out(trees, lengths, most)
    assert sorted(number for row in laid.rows for number in row) == list(range(len(trees)))
    assert len(set(laid.places.tolist())) == sum(len(tree.ids) for tree in trees)
    n_read, longest = laid.mask.shape[2] - laid.mask.shape[1], laid.ids.shape[1]
    assert longest == max(len(tree.ids) for tree in trees)
    assert n_read <= max(most, *lengths)
    of = {number: at for at, row in enumerate(laid.rows) for number in row}
    for number, (tree, start) in enumerate(zip(trees, starts_of(trees), strict=True)):
        row = laid.rows[of[number]]
        before = sum(lengths[other] for other in row[: row.index(number)])
        at = laid.places[start].item() % longest
        for path in tree.paths:
            for depth, place in enumerate(path):
                where = int(laid.places[start + place])
                assert divmod(where, longest) == (of[number], at + place)
                assert int(laid.ids.flatten()[where]) == tree.ids[place]
                assert int(laid.positions.flatten()[where]) == lengths[number] + depth
                seen = torch.zeros(n_read + longest, dtype=torch.bool)
                seen[before : before + lengths[number]] = True
                seen[[n_read + at + passed for passed in path[: depth + 1]]] = True
                assert torch.equal(laid.mask.flatten(0, 1)[where], seen)
