"""Times of day: what is one, and how another is written in its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.values.clock import minutes_of, respell, spellings


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("17:45", 1065), ("9:00", 540), ("5:45 pm", 1065), ("12 am", 0), ("12:30pm", 750), ("5 p.m.", 1020)],
)
def test_a_time_is_minutes_since_midnight(text: str, minutes: int) -> None:
    assert minutes_of(text) == minutes


@pytest.mark.parametrize("text", ["5", "17", "10.15", "25:00", "9:75", "13 pm", "0 am", "after 15:45", "", "5:45:10"])
def test_anything_else_is_no_time(text: str) -> None:
    assert minutes_of(text) is None


@pytest.mark.parametrize(
    ("like", "written"),
    [
        ("17:45", "09:15"),
        ("5:45 pm", "9:15 am"),
        ("5:45PM", "9:15AM"),
        ("5:45 p.m", "9:15 a.m"),
        ("5:45", "9:15"),
        ("soon", "09:15"),
    ],
)
def test_another_time_takes_the_style_of_the_first(like: str, written: str) -> None:
    assert respell(9 * 60 + 15, like, 17 * 60 + 45) == written


@given(st.integers(0, 24 * 60 - 1), st.integers(0, 24 * 60 - 1))
def test_every_sure_spelling_means_its_time_and_is_written_back(one: int, other: int) -> None:
    sure, likely = spellings(one)
    assert {minutes_of(text) for text in sure} == {one}
    assert {minutes_of(respell(other, text, one)) for text in sure} == {other}
    assert all((minutes_of(text.replace(".", ":")) or 0) % 720 == one % 720 for text in likely)
