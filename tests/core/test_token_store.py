"""The store of tokens' keys and values: what a text reads, however it grew, and what is dropped."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hushbot.targets.row_cache import KeysValues
from hushbot.targets.token_store import BranchCache, StoredTexts, TokenStore

HEADS, WIDTH = 2, 3


def token(name: int) -> Tensor:
    """Return the key of a token; its value is the negative."""
    return name * 100.0 + torch.arange(HEADS * WIDTH).reshape(HEADS, WIDTH)


def memory(names: list[int], n_layers: int = 2) -> KeysValues:
    """Return what a model would remember of a text of these tokens."""
    keys = torch.stack([token(name) for name in names], dim=1)
    return [(keys + layer, -keys - layer) for layer in range(n_layers)]


def passed(rows: list[list[int]]) -> KeysValues:
    """Return what a pass over rows of these tokens would give, shape (rows, heads, tokens, width)."""
    texts = [memory(row) for row in rows]
    return [tuple(torch.stack([text[i][j] for text in texts]) for j in range(2)) for i in range(2)]  # type: ignore[misc]


def flat(names: list[int]) -> KeysValues:
    """Return the same of tokens without rows, shape (tokens, heads, width)."""
    return [(keys.transpose(0, 1), values.transpose(0, 1)) for keys, values in memory(names)]


def read(store: TokenStore, slots: list[int]) -> list[list[int]]:
    """Return the names of a text's tokens by layer, keys and values alike."""
    names = []
    for layer, (keys, values) in enumerate(store.layers):
        assert torch.equal(keys[slots], -values[slots])
        names.append([int((key[0, 0] - layer) / 100) for key in keys[slots]])
        assert torch.equal(keys[slots], torch.stack([token(name) + layer for name in names[-1]]))
    return names


def test_texts_share_the_tokens_they_grew_from() -> None:
    store = TokenStore()
    head = store.add_text(memory([1, 2, 3]), 2)
    tree = store.add(flat([4, 6]))
    one, other = [*head, tree[0]], [*head, *tree]
    assert store.n_tokens == 4
    assert read(store, one) == [[1, 2, 4]] * 2
    assert read(store, other) == [[1, 2, 4, 6]] * 2


def test_a_pass_sees_each_row_padded_with_zeros_and_its_own_tokens_behind() -> None:
    store = TokenStore()
    texts = StoredTexts(store, [store.add_text(memory([1, 2]), 2), store.add_text(memory([3]), 1)])
    assert texts.lengths == [2, 1]
    cache, new = BranchCache(store, texts.slots), passed([[7, 8], [9, 6]])
    assert cache.get_seq_length() == 2
    for layer, (keys, values) in enumerate(new):
        seen, told = cache.update(keys, values, layer)
        assert seen.shape == (2, HEADS, 4, WIDTH)
        assert torch.equal(seen, -told)
        assert torch.equal(seen[0], memory([1, 2, 7, 8])[layer][0])
        assert torch.equal(seen[1, :, [0, 2, 3]], memory([3, 9, 6])[layer][0])
        assert not seen[1, :, 1].any()
    # The last token of the first row, then both of the second.
    for ours, theirs in zip(cache.fresh(torch.tensor([1, 2, 3])), flat([8, 9, 6]), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 7), max_size=5), max_size=6), st.integers(0, 3))
def test_what_is_kept_is_what_texts_need(places: list[list[int]], n_more: int) -> None:
    store = TokenStore()
    slots = store.add_text(memory(list(range(1, 9))), 8)
    texts = [[slots[place] for place in text] for text in places]
    store.keep([*texts, *texts])  # the same list twice is one text
    assert store.n_tokens == len({place for text in places for place in text})
    for text, text_places in zip(texts, places, strict=True):
        assert not text or read(store, text) == [[place + 1 for place in text_places]] * 2
    more = [store.add_text(memory([50 + i]), 1) for i in range(n_more)]
    assert [read(store, one) for one in more] == [[[50 + i]] * 2 for i in range(n_more)]
    assert all(
        read(store, text)[0] == [place + 1 for place in at] for text, at in zip(texts, places, strict=True) if text
    )


@pytest.mark.parametrize("n_kept", [1, 700])
def test_a_store_holds_at_most_about_twice_what_its_texts_do(n_kept: int) -> None:
    store = TokenStore()
    kept = store.add_text(memory([5] * n_kept), n_kept)
    most = 0
    for _ in range(60):
        store.add_text(memory([6] * 100), 100)
        store.tidy([kept])
        most = max(most, store.n_tokens)
    assert most <= max(1024, 2 * n_kept)
    assert read(store, kept) == [[5] * n_kept] * 2
