"""The rows that wait in guided sampling: which go together, and what is forgotten."""

from __future__ import annotations

from hushbot.targets.guided_rows import Row, Waiting
from hushbot.targets.guided_texts import Choice, Free, Node

CHOICE, FREE = Choice(("a", "b")), Free(",", 3)


def row(name: str, n_tokens: int = 2, rule: Choice | Free = CHOICE, slots: list[int] | None = None) -> Row:
    return Row(Node(0, name, 1), rule, [0] * n_tokens, slots)


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
    waiting, shared = Waiting(batch_rows=9, batch_tokens=5), [1, 2, 3, 4]
    rows = [row("old", 4, slots=[5, 6, 7]), row("one", 5, FREE, shared), row("other", 5, FREE, shared)]
    for each in rows:
        waiting.add(each)
    waiting.forget()  # 4 + 5 tokens of at most 2 * 5
    assert [each.slots is None for each in rows] == [False, False, False]
    assert list(waiting.remembered()) == [[5, 6, 7], shared]
    waiting.add(row("new", 4, slots=[5, 6, 7]))
    waiting.forget()  # 13 tokens: without the oldest choice 9
    assert [each.slots is None for each in rows] == [True, False, False]


def test_what_was_drawn_names_a_row() -> None:
    parent = row("x")
    assert parent.key_of("token 1") == parent.key_of("token 1") != parent.key_of("token 11")
    child = Row(Node(0, "xy", 1), CHOICE, [], key=parent.key_of("token 1"))
    assert child.key_of("token 1") != parent.key_of("token 1")
    assert parent.key_of("\ud800")  # half a character is a name, too
