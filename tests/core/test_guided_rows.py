"""The rows that wait in guided sampling: which go together, what is forgotten, how a memory grows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hushbot.targets.guided_rows import Row, Waiting, extended
from hushbot.targets.guided_texts import Choice, Free, Node
from hushbot.targets.row_cache import KeysValues

CHOICE, FREE = Choice(("a", "b")), Free(",", 3)


def row(name: str, n_tokens: int = 2, rule: Choice | Free = CHOICE, memory: KeysValues | None = None) -> Row:
    return Row(Node(0, name, 1), rule, [0] * n_tokens, memory)


def memory(n_tokens: int) -> KeysValues:
    return [(torch.zeros(1, n_tokens, 2), torch.zeros(1, n_tokens, 2))]


def names(rows: list[Row]) -> list[str]:
    return [each.node.text for each in rows]


def test_the_newest_go_first_and_both_kinds_apart() -> None:
    waiting = Waiting(batch_rows=2, batch_tokens=100)
    for name, rule in (("x", CHOICE), ("y", FREE), ("z", CHOICE), ("w", CHOICE)):
        waiting.add(row(name, rule=rule))
    assert names(waiting.take()) == ["w", "z"]
    assert names(waiting.take()) == ["x"]  # as many of one kind as of the other: choices first
    assert names(waiting.take()) == ["y"]
    assert not waiting


def test_a_batch_is_as_long_as_its_longest_row_times_its_rows() -> None:
    waiting = Waiting(batch_rows=9, batch_tokens=10)
    for name, n in (("a", 11), ("b", 2), ("c", 4), ("d", 3)):
        waiting.add(row(name, n))
    assert names(waiting.take()) == ["d", "c"]  # three rows of four tokens would be twelve
    assert names(waiting.take()) == ["b"]
    assert names(waiting.take()) == ["a"]  # longer than a batch, so alone


def test_the_oldest_are_forgotten_and_shared_memories_count_once() -> None:
    waiting, shared = Waiting(batch_rows=9, batch_tokens=5), memory(4)
    rows = [row("old", 4, memory=memory(3)), row("one", 5, FREE, shared), row("other", 5, FREE, shared)]
    for each in rows:
        waiting.add(each)
    waiting.forget()  # 4 + 5 tokens of at most 2 * 5
    assert [each.memory is None for each in rows] == [False, False, False]
    assert len(waiting.memories()) == 2
    waiting.add(row("new", 4, memory=memory(3)))
    waiting.forget()  # 13 tokens: without the oldest choice 9
    assert [each.memory is None for each in rows] == [True, False, False]


def test_what_was_drawn_names_a_row() -> None:
    parent = row("x")
    assert parent.key_of("token 1") == parent.key_of("token 1") != parent.key_of("token 11")
    child = Row(Node(0, "xy", 1), CHOICE, [], key=parent.key_of("token 1"))
    assert child.key_of("token 1") != parent.key_of("token 1")
    assert parent.key_of("\ud800")  # half a character is a name, too


@given(st.lists(st.integers(0, 9), unique=True, max_size=6).map(sorted))
def test_a_memory_grows_by_the_tokens_of_a_path(places: list[int]) -> None:
    old, new = torch.arange(12.0).reshape(2, 3, 2), torch.arange(100.0, 140.0).reshape(2, 10, 2)
    ((keys, values),) = extended([(old, -old)], [(new, -new)], places)
    assert keys.tolist() == torch.cat([old, new[:, places]], dim=1).tolist()
    assert values.tolist() == (-keys).tolist()


def test_a_row_that_was_never_read_cannot_go_on() -> None:
    with pytest.raises(TypeError, match="read before"):
        extended(None, memory(1), [0])
