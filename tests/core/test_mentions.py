"""Finding values in texts, and editing texts with their spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.mentions import Edit, Finder, article_edit, edited, moved, removal, squash, tidying
from hushbot.types import Span


def found(text: str, *values: str, by_system: bool = False) -> list[str]:
    finder = Finder({squash(value): value for value in values}, values)
    return [f"{text[m.start : m.end]}={m.key}" for m in finder.find(text, by_system=by_system)]


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
    ],
)
def test_a_value_is_found_by_its_words(text: str, value: str, there: list[str]) -> None:
    assert found(text, value) == there


@pytest.mark.parametrize(
    ("text", "in_users", "in_systems"),
    [
        ("a 3 star room", True, True),
        ("for 3, please", True, True),
        ("i found 3.", True, False),
        ("there are 3 that fit", True, False),
        ("at 3 pm", False, False),
        ("it is $3", False, False),
        ("at 10:3", False, False),
        ("3% of it", False, False),
        ("the 13 of us", False, False),
    ],
)
def test_a_small_number_is_found_where_it_counts(text: str, in_users: bool, in_systems: bool) -> None:
    assert bool(found(text, "3")) == in_users
    assert bool(found(text, "3", by_system=True)) == in_systems


@pytest.mark.parametrize(
    ("text", "counts"),
    [("one night", True), ("a table for one", True), ("for one of us", False), ("the first one", False), ("one", True)],
)
def test_the_word_one_seldom_counts(text: str, counts: bool) -> None:
    assert bool(found(text, "one")) == counts


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


@pytest.mark.parametrize(
    ("text", "phrase", "left"),
    [
        ("a room in the old town please", "old town", "a room please"),
        ("i want a korean place to eat", "korean", "i want a place to eat"),
        ("korean please", "korean", "please"),
        ("booked for ann, ann@post.example", "ann@post.example", "booked for ann"),
        ("restaurant 1 found, quiet heron, 0113", "quiet heron", "restaurant 1 found, 0113"),
        ("how about quiet heron?", "quiet heron", "how about?"),
        ("at 19:00", "19:00", ""),
        ("quiet heron, then home", "quiet heron", "then home"),
    ],
)
def test_what_is_removed_leaves_nothing_dangling(text: str, phrase: str, left: str) -> None:
    start = text.index(phrase)
    assert edited(text, [removal(text, start, start + len(phrase))]) == left


@pytest.mark.parametrize(
    ("text", "tidy"),
    [("ok,, call", "ok, call"), (" , please", "please"), ("on , .", "on ."), ("a   b", "a b"), ("a , b", "a , b")],
)
def test_strays_of_removals_are_tidied(text: str, tidy: str) -> None:
    assert edited(text, tidying(text)) == tidy


@pytest.mark.parametrize(
    ("text", "new", "written"),
    [
        ("see an osteopath", "dentist", "see a dentist"),
        ("see a dentist", "osteopath", "see an osteopath"),
        ("An opera", "play", "A play"),
        ("a 4 star place", "8", "an 8 star place"),
        ("a play", "film", "a film"),
    ],
)
def test_the_article_follows_the_new_word(text: str, new: str, written: str) -> None:
    old = next(word for word in text.split()[::-1] if word in ("osteopath", "dentist", "opera", "4", "play"))
    start = text.index(old)
    article = article_edit(text, start, new)
    edits = [*([] if article is None else [article]), Edit(start, start + len(old), new)]
    assert edited(text, edits) == written


@given(st.data())
def test_a_kept_span_is_the_slice_that_it_marks(data: st.DataObject) -> None:
    text = data.draw(st.text("ab ", min_size=1, max_size=20))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    edits = [Edit(start, end, data.draw(st.text("xyz", max_size=4))) for start, end in pairs]
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    new = edited(text, edits)
    for span in moved([Span("d", "s", text[start:end], start, end)], edits, new):
        assert new[span.start : span.end] == span.value == span.value.strip() != ""
    if not edits and text[start:end] == text[start:end].strip():
        assert moved([Span("d", "s", text[start:end], start, end)], edits, new)
