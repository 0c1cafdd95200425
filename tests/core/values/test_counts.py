"""What small numbers count."""

from __future__ import annotations

import pytest

from hushbot.types import Span
from hushbot.values.counts import Verdict, class_of, last_word, numbers_in, verdict

OWN, OTHER, UNCLEAR = Verdict.OWN, Verdict.OTHER, Verdict.UNCLEAR


@pytest.mark.parametrize(
    "text", ["at 3 pm", "it is $3", "at 10:3", "3% of it", "the 3rd", "3.50", "2-3", "ab3", "3 o'clock", "123", "KB-3"]
)
def test_prices_times_and_parts_are_no_small_numbers(text: str) -> None:
    assert numbers_in(text) == []


def test_small_numbers_are_found_in_digits_and_words() -> None:
    found = [(number.digits, number.start) for number in numbers_in("Two of us, 3 nights, room 12.")]
    assert found == [
        ("2", 0),
        ("3", 11),
        ("12", 26),
    ]


@pytest.mark.parametrize(
    ("text", "slots", "expected"),
    [
        ("3 people", {"people"}, OWN),
        ("3 more tickets", {"adults"}, OWN),
        ("a 3-star inn", {"people"}, OTHER),
        ("a 3 star inn", {"stars"}, OWN),
        ("3 nights", {"stay"}, OWN),
        ("3 seats", {"weight"}, UNCLEAR),
        ("a party of 3", {"people"}, OWN),
        ("a party of 3", {"stay"}, UNCLEAR),
        ("for 3, please", {"people"}, OWN),
        ("for 3 of us", {"people"}, UNCLEAR),
        ("i found 3", {"people"}, UNCLEAR),
    ],
)
def test_a_number_is_judged_by_its_neighbours(text: str, slots: set[str], expected: Verdict) -> None:
    (number,) = numbers_in(text)
    assert verdict(text, number, slots, ()) is expected


def test_a_span_decides() -> None:
    text = "i found 3"
    (number,) = numbers_in(text)
    assert verdict(text, number, {"people"}, (Span("inn", "book people", "3", 8, 9),)) is OWN
    assert verdict("3 people", numbers_in("3 people")[0], {"people"}, (Span("inn", "choice", "3", 0, 1),)) is OTHER


def test_slots_are_told_by_their_last_word() -> None:
    assert [last_word(slot) for slot in ("book people", "number_of_adults", "Stars")] == ["people", "adults", "stars"]
    assert [class_of(word) for word in ("adults", "persons", "stay", "weight")] == ["people", "people", "nights", None]
