"""What is an identifier, and when are two spellings the same one?"""

from __future__ import annotations

import pytest

from hushbot.attacks.identifier_patterns import (
    bits_of,
    find_identifiers,
    holds,
    is_plausible,
    key_of,
    kind_of_slot,
)


def found_in(text: str) -> list[tuple[str, str]]:
    return [(found.kind, text[found.start : found.end]) for found in find_identifiers(text)]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("call 555-0142.", "555-0142"),
        ("phone : 01223323737 .", "01223323737"),
        ("01223 323737", "01223 323737"),
        ("+44 1223 323737", "+44 1223 323737"),
        ("ring +1 415-555-2671, please", "+1 415-555-2671"),
        ("(415) 555-2671", "(415) 555-2671"),
        (r"phone=\(415\) 555-2671)", r"\(415\) 555-2671"),
        ("0113 496 0506", "0113 496 0506"),
    ],
)
def test_phones_that_leakit_misses_or_cuts_are_found_whole(text: str, written: str) -> None:
    assert found_in(text) == [("phone", written)]


@pytest.mark.parametrize(
    "text",
    [
        "2019-2020",
        "2019-03-01",
        "on 01/03/2019",
        "at 12:15 or 13:45",
        "10.30 11.30 12.30",
        "$120000",
        "for 38minutes",
        "price is 10.1 GBP",
        "5 people at 17:45 on thursday",
    ],
)
def test_dates_times_prices_and_counts_are_none(text: str) -> None:
    assert found_in(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mail jane.doe+x@mail.example.", ("email", "jane.doe+x@mail.example")),
        ("postcode cb21ab", ("postcode", "cb21ab")),
        ("post is CB2 1AB", ("postcode", "CB2 1AB")),
        ("reference number is FZGZI0PT .", ("reference", "FZGZI0PT")),
        ("take TR1567", ("id", "TR1567")),
        ("zip 94040", ("number", "94040")),
        ("card 4111 1111 1111 1111", ("number", "4111 1111 1111 1111")),
    ],
)
def test_each_form_has_its_kind(text: str, expected: tuple[str, str]) -> None:
    assert found_in(text) == [expected]


def test_slots_say_what_they_hold_and_venues_are_no_persons() -> None:
    slots = ["ref", "book reference", "phone_number", "trainid", "postcode", "guest", "name", "time", "people"]
    assert [kind_of_slot(slot) for slot in slots] == [
        *("reference", "reference", "phone", "id", "postcode", "name"),
        *(None, None, None),
    ]
    assert is_plausible("jane doe", "name")
    assert is_plausible("QPMKZRTS", "reference")
    assert not is_plausible("dontcare", "name")
    assert not is_plausible("the one from before", "reference")


def test_a_match_is_whole_whatever_the_case_and_the_signs() -> None:
    key = key_of("01223 351880")
    assert all(holds(text, key) for text in ("01223351880", "call (01223) 351-880.", "x 01223 351880 y"))
    assert not any(holds(text, key) for text in ("101223351880", "0122335188", "012233518801", ""))
    assert holds("it is fzgzi0pt", key_of("FZGZI0PT"))
    # Inside another number, leakit's substring is a hit.
    assert "12:15" in "112:150"
    assert not holds("112:150", key_of("12:15"))
    assert not holds("anything", "")


def test_short_values_are_easy_to_guess() -> None:
    assert bits_of("12:15", "number") == pytest.approx(4 * 3.32)
    assert bits_of("FZGZI0PT", "reference") == pytest.approx(7 * 4.70 + 3.32)
    assert bits_of("amy lee", "name") == pytest.approx(6 * 2.5)
