"""Dates: what is one, and how another is written in its place."""

from __future__ import annotations

import random

import pytest

from hushbot.values.dates import dated, day_of, is_date, other_date, redated

DATES = ["march 11th", "11th of March", "the 10th", "next wednesday", "today", "day after tomorrow", "2019-03-08"]


@pytest.mark.parametrize("text", [*DATES, "3/8/2019"])
def test_words_of_a_date_make_a_date(text: str) -> None:
    assert is_date(text)


@pytest.mark.parametrize("text", ["28th street station", "10", "the week", ""])
def test_other_words_make_none(text: str) -> None:
    assert not is_date(text)


@pytest.mark.parametrize("text", DATES)
def test_another_date_differs_and_keeps_the_wording(text: str) -> None:
    for seed in range(20):
        made = other_date(text, random.Random(seed))
        assert made != text
        assert is_date(made)
        assert len(made.split()) == len(text.split())


@pytest.mark.parametrize(
    ("date", "like", "written"),
    [
        ("5th of may", "March 11th", "May 5th"),
        ("May 22nd", "11th of march", "22nd of may"),
        ("the 3rd", "11th of this month", "3rd of this month"),
        ("Sunday", "March 11th", None),
    ],
)
def test_a_date_is_written_in_the_words_of_another(date: str, like: str, written: str | None) -> None:
    assert redated(date, like) == written


def test_a_month_that_is_not_given_is_another_and_always_the_same() -> None:
    assert redated("the 5th", "March 11th") == redated("the 5th", "March 11th") == "September 5th"


def test_a_day_is_read_and_written_in_the_words_of_a_date() -> None:
    dates = ("March 5th", "Monday, 5 march", "the 5th", "friday", "march", "2019-03-05", "5th and 6th of march")
    assert [day_of(text) for text in dates] == [(3, 5), (3, 5), None, None, None, None, None]
    written = dated("Monday, 5th of March", 11, 22, random.Random(1))
    assert day_of(written) == (11, 22)
    assert written.endswith("day, 22nd of November")
    assert not written.startswith("Monday")
