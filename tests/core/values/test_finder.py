"""Finding values in texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.values.finder import Finder, squash


def found(text: str, *values: str) -> list[str]:
    finder = Finder({squash(value): value for value in values}, values)
    return [f"{text[m.start : m.end]}={m.key}" for m in finder.find(text)]


@pytest.mark.parametrize(
    ("text", "value", "there"),
    [
        ("Take the Golden  Wok.", "golden wok", ["Golden  Wok=golden wok"]),
        ("the alpha milton", "alpha-milton", ["alpha milton=alpha-milton"]),
        ("at Rosa 's", "rosa's", ["Rosa 's=rosa's"]),
        ("a guest house", "guesthouse", ["guest house=guesthouse"]),
        ("call 01223-351880", "01223 351880", ["01223-351880=01223 351880"]),
        ("with dr. lombardi", "dr lombardi", ["dr. lombardi=dr lombardi"]),
        ("leave at 17:17 . 19:17", "17:17 . 19:17", ["17:17 . 19:17=17:17 . 19:17"]),
        ("in the old. town hall", "old town", []),
        ("down the hallway", "hall", []),
        ("a golden, wok", "golden wok", []),
        ("at 9:30am", "9:30", ["9:30=9:30"]),
        ("Christ 's College", "christ college", ["Christ 's College=christ college"]),
        ("at Café Uno", "cafe uno", ["Café Uno=cafe uno"]),
        ("at Cafe\u0301 Uno", "café uno", ["Cafe\u0301 Uno=café uno"]),
        ("in the center", "centre", ["center=centre"]),
    ],
)
def test_a_value_is_found_by_its_words(text: str, value: str, there: list[str]) -> None:
    assert found(text, value) == there


def test_of_overlapping_values_the_longest_is_found() -> None:
    assert found("golden wok garden house", "golden wok", "wok garden house", "house") == [
        "wok garden house=wok garden house"
    ]


WORDS = st.lists(st.sampled_from(["a", "b", "ab", "c", "."]), max_size=8).map(" ".join)


@given(WORDS, st.lists(st.sampled_from(["a", "ab", "a b", "b c", "c", "a-c"]), unique_by=squash))
def test_finding_agrees_with_trying_every_stretch_of_words(text: str, values: list[str]) -> None:
    finder = Finder({squash(value): value for value in values})
    tokens = text.split(" ")
    stretches = [tokens[i:j] for i in range(len(tokens)) for j in range(i + 1, len(tokens) + 1)]
    said = ["".join(stretch) for stretch in stretches if "." not in stretch]
    expected = [value for form in said for value in values if squash(value) == form]
    assert sorted(mention.key for mention in finder.find_all(text)) == sorted(expected)
