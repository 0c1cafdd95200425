"""Spans: kept only where the value stands, on sentences that a reader can count through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.corpora.files import Notes
from hushbot.corpora.spans import Claim, check_spans, shifted, token_range
from hushbot.types import Span

TEXT = "Thai  food in Ely."


def check(*claims: Claim) -> tuple[tuple[Span, ...], tuple[str, ...]]:
    notes = Notes()
    return check_spans(TEXT, claims, "A turn 0", notes), notes.finish()


def test_a_span_that_holds_is_kept_with_its_annotated_value() -> None:
    town, food = Claim("bus", "to", ("ely",), 14, 17), Claim("cafe", "food", ("thai",), 0, 4)
    kept = (Span("cafe", "food", "thai", 0, 4), Span("bus", "to", "ely", 14, 17))
    assert check(town, food, town) == (kept, ())


def test_blanks_at_the_borders_are_cut_off() -> None:
    assert check(Claim("cafe", "food", (" thai ",), 0, 6))[0] == (Span("cafe", "food", "thai", 0, 4),)


def test_any_of_the_values_will_do() -> None:
    assert check(Claim("bus", "to", ("the city", "Ely"), 14, 17))[0] == (Span("bus", "to", "Ely", 14, 17),)


@pytest.mark.parametrize(
    ("values", "start", "end"),
    [
        (("ely",), 13, 16),  # off by one: not shifted
        (("ely",), 17, 14),
        (("ely",), -4, -1),
        (("Ely.",), 14, 19),  # behind the end
        (("ely",), "14", 17),
        (("ely",), 14, None),
        ((True,), 14, 17),
        ((), 14, 17),
        ((" ",), 4, 5),  # a blank is no value
        (("T",), False, True),
    ],
)
def test_what_does_not_hold_is_dropped_and_counted(values: Any, start: object, end: object) -> None:
    claim = Claim("bus", "to", values, start, end)
    note = "span of a value dropped, the text there is not the value (2): A turn 0, A turn 0"
    assert check(claim, claim) == ((), (note,))


@pytest.mark.parametrize(("domain", "slot"), [("", "to"), ("bus", ""), (None, "to"), ("bus", 1), ("\ud800", "to")])
def test_a_span_without_a_slot_is_dropped(domain: object, slot: object) -> None:
    kept, notes = check(Claim(domain, slot, ("ely",), 14, 17))
    assert (kept, len(notes)) == ((), 1)


def test_tokens_stand_between_white_space_and_the_last_belongs_to_the_range() -> None:
    assert token_range(TEXT, 0, 0) == (0, 4)
    assert token_range(TEXT, 1, 3) == (6, 18)
    assert token_range(" a\n\tb ", 1, 1) == (4, 5)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (2, 1), (0, 4), (4, 4), ("0", 0), (None, None), (False, True)])
def test_tokens_that_are_not_there_have_no_range(first: object, last: object) -> None:
    assert token_range(TEXT, first, last) is None


@given(st.text(alphabet="ab \n\u3000", max_size=12), st.integers(-1, 6), st.integers(-1, 6))
def test_token_ranges_match_a_naive_reading(text: str, first: int, last: int) -> None:
    words = text.split()
    found = token_range(text, first, last)
    if 0 <= first <= last < len(words):
        assert found is not None
        assert text[found[0] : found[1]].split() == words[first : last + 1]
    else:
        assert found is None


def test_a_prefix_moves_spans() -> None:
    assert shifted([Span("bus", "to", "ely", 14, 17)], 3) == (Span("bus", "to", "ely", 17, 20),)
