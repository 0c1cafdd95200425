"""Editing texts, and their spans with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.types import Span
from hushbot.values.edits import Edit, article_edit, edited, moved, removal, tidying


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
