"""Sequences packed by their common beginnings: hand-drawn trees, then the naive definition of who has read whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hushbot.targets.token_tree import group, n_shared, pack

SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=12)


def test_a_tree_holds_each_beginning_once() -> None:
    packed = pack([[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6]])
    assert packed.ids == [1, 2, 3, 4, 5, 6]
    assert packed.depths == [0, 1, 2, 2, 3, 3]
    assert packed.ends == [6, 6, 3, 6, 5, 6]
    assert packed.paths == [[0, 1, 2], [0, 1, 3, 4], [0, 1, 3, 5]]


def test_a_sequence_that_is_another_ones_beginning_adds_nothing() -> None:
    assert pack([[1, 2], [1, 2], [1, 2, 3]]) == ([1, 2, 3], [0, 1, 2], [3, 3, 3], [[0, 1], [0, 1], [0, 1, 2]])
    assert pack([[7, 8]]) == ([7, 8], [0, 1], [2, 2], [[0, 1]])


@given(SEQUENCES)
def test_a_token_has_read_its_own_sequence_and_nothing_else(sequences: list[list[int]]) -> None:
    sequences.sort()
    packed = pack(sequences)
    beginnings = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    assert len(packed.ids) == len(packed.depths) == len(packed.ends) == len(beginnings)
    for sequence, path in zip(sequences, packed.paths, strict=True):
        assert [packed.ids[place] for place in path] == sequence
        assert [packed.depths[place] for place in path] == list(range(len(sequence)))
        for at, place in enumerate(path):
            assert [k for k in range(place + 1) if place < packed.ends[k]] == path[: at + 1]


@given(SEQUENCES, st.integers(1, 40), st.sampled_from([1, 50, 10**6]))
def test_every_sequence_is_in_one_group_that_is_as_long_as_it_says(
    sequences: list[list[int]], most: int, width: int
) -> None:
    groups = group(sequences, width=width, most=most)
    assert sorted(i for g in groups for i in g.members) == list(range(len(sequences)))
    for n_tokens, members in groups:
        assert len(pack([sequences[i] for i in members]).ids) == n_tokens
        assert n_tokens <= most or len(members) == 1
    assert sum(g.n_tokens for g in groups) <= sum(map(len, sequences))


def test_continuations_of_one_prompt_are_read_together() -> None:
    prompt = list(range(100, 400))
    sequences = [[*prompt, i, i + 1] for i in range(20)]
    assert group(sequences, width=768, most=2048) == [(340, tuple(range(20)))]
    # A row so short that attention costs next to nothing is never split; one that must be short is.
    assert {g.n_tokens for g in group(sequences, width=768, most=310)} == {310}
    assert [g.n_tokens for g in group(sequences, width=768, most=301)] == [302] * 20


def test_a_tree_stays_short_or_is_mostly_beginning() -> None:
    short = [[1, 2, 3, *[100 * i + k for k in range(8)]] for i in range(1, 200)]
    groups = group(short, width=10**6, most=10**6)
    assert len(groups) > 1
    assert max(g.n_tokens for g in groups) <= 512
    long = [[*range(600), 1000 + i] for i in range(900)]
    assert max(g.n_tokens for g in group(long, width=10**6, most=10**6)) == 1200


def test_what_shares_little_is_read_apart() -> None:
    sequences = [[1, *[100 * i + k for k in range(60)]] for i in range(1, 9)]
    assert [g.n_tokens for g in group(sequences, width=768, most=2048)] == [61] * 8


@given(st.lists(st.integers(0, 1), max_size=9), st.lists(st.integers(0, 1), max_size=9))
def test_the_common_beginning_is_counted(one: list[int], other: list[int]) -> None:
    naive = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert n_shared(one, other) == naive
