"""Caches of rows that come and go: each row finds its own tokens, and its prompt in its own place or in one for all."""

from __future__ import annotations

import pytest
import torch

from hushbot.targets.row_cache import KeysValues, RowCache, SharedRowCache


def memory(first: int, n: int) -> KeysValues:
    """Return a prompt whose keys are numbered on from `first`, and whose values are minus the keys."""
    keys = torch.arange(first, first + n, dtype=torch.float32)[None, :, None]
    return [(keys, -keys)]


def step(cache: RowCache, numbers: list[int]) -> list[list[float]]:
    """Give each row one more token; return the keys that each row then sees."""
    _, mask = cache.begin_step()
    fresh = torch.tensor(numbers, dtype=torch.float32)[:, None, None, None]
    keys, values = cache.update(fresh, -fresh, 0)
    assert torch.equal(keys, -values)
    own = [keys[row, 0, mask[row, 0, 0], 0].tolist() for row in range(len(numbers))]
    for prompt in cache.shared_prompts(0):
        assert torch.equal(prompt.keys, -prompt.values)
        for row in torch.arange(len(numbers))[prompt.rows].tolist():
            own[row] = prompt.keys[0, :, 0].tolist() + own[row]
    return own


@pytest.mark.parametrize("kind", [RowCache, SharedRowCache])
def test_a_row_sees_its_prompt_and_its_own_tokens(kind: type[RowCache]) -> None:
    long, short = memory(1, 4), memory(11, 2)
    cache = kind(long, n_rows=3, capacity=7)
    for prompt in (long, short, long):
        cache.append(prompt)
    assert cache.lengths == [4, 2, 4]
    assert step(cache, [21, 22, 23]) == [[1, 2, 3, 4, 21], [11, 12, 22], [1, 2, 3, 4, 23]]
    assert cache.lengths == [5, 3, 5]
    assert cache.get_seq_length() == 4
    positions, _ = cache.begin_step()
    assert positions.tolist() == [[5], [3], [5]]


@pytest.mark.parametrize("kind", [RowCache, SharedRowCache])
def test_the_last_row_takes_the_place_of_a_removed_one_and_new_rows_follow(kind: type[RowCache]) -> None:
    long, short = memory(1, 4), memory(11, 2)
    cache = kind(long, n_rows=3, capacity=7)
    for prompt in (long, long, short):
        cache.append(prompt)
    step(cache, [21, 22, 23])
    cache.remove(0)
    assert cache.lengths == [3, 5]
    cache.append(short)
    assert step(cache, [31, 32, 33]) == [[11, 12, 23, 31], [1, 2, 3, 4, 22, 32], [11, 12, 33]]
    cache.remove(2)
    cache.remove(1)
    assert step(cache, [41]) == [[11, 12, 23, 31, 41]]


def test_rows_of_one_prompt_are_one_group_and_of_equal_prompts_two() -> None:
    one, equal = memory(1, 4), memory(1, 4)
    cache = SharedRowCache(one, n_rows=3, capacity=2)
    cache.append(one)
    cache.append(one)
    cache.begin_step()
    (prompt,) = cache.shared_prompts(0)
    assert prompt.rows == slice(None)
    assert prompt.keys is one[0][0]
    cache.append(equal)
    cache.begin_step()
    assert [torch.arange(3)[prompt.rows].tolist() for prompt in cache.shared_prompts(0)] == [[0, 1], [2]]
