from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.masking import mask_row, mask_state, mask_text, mask_value
from hushbot.prompts import parse_state, render_state
from hushbot.types import SlotValue


@pytest.mark.parametrize(
    ("value", "masked"),
    [
        ("pizza hut", "p***t(9)"),
        ("centre", "c***e(6)"),
        ("north", "***(5)"),
        ("yes", "***(3)"),
        ("", "***(0)"),
        ("17:15", "***(5)"),
        ("24:00:00", "***(8)"),
        ("7GAWK763", "***(8)"),
        ("ABCDEFGH", "***(8)"),
        ("01223351880", "***(11)"),
        ("cb21ab", "***(6)"),
        ("jo.bloggs@example.org", "***(21)"),
    ],
)
def test_values_show_their_length_and_at_most_two_letters(value: str, masked: str) -> None:
    assert mask_value(value) == masked


@pytest.mark.parametrize("slot", ["reference", "phone", "book reference", "Account_Number", "post-postcode"])
def test_identifier_slots_never_show_a_character(slot: str) -> None:
    assert mask_value("abcdefgh", slot=slot) == "***(8)"


def test_a_slot_that_only_contains_the_letters_of_an_identifier_is_no_identifier() -> None:
    assert mask_value("guesthouse", slot="ideal") == "g***e(10)"


def test_a_masked_state_keeps_domains_and_slots_and_can_be_read_back() -> None:
    state = frozenset({SlotValue("restaurant", "name", "pizza hut"), SlotValue("train", "reference", "abcdefgh")})
    masked = parse_state(mask_state(state))
    assert {(t.domain, t.slot, t.value) for t in masked} == {
        ("restaurant", "name", "p***t(9)"),
        ("train", "reference", "***(8)"),
    }


def test_state_texts_are_masked_value_by_value_and_other_texts_word_by_word() -> None:
    state = frozenset({SlotValue("restaurant", "name", "pizza hut")})
    assert mask_text(render_state(state)) == mask_state(state)
    assert mask_text("None") == "None"
    assert mask_text("my reference is 7GAWK763") == "***(2) r***e(9) ***(2) ***(8)"


@pytest.mark.parametrize(
    "text",
    [
        "Restaurant(name=secretive) call 01223351880 now",
        "Restaurant(name=secretive, food=tha",
        "X Hotel(name=secretive)",
    ],
)
def test_nothing_around_or_inside_a_damaged_state_stays_readable(text: str) -> None:
    masked = mask_text(text)
    assert "secretive" not in masked
    assert "01223351880" not in masked


def test_a_row_is_masked_but_for_numbers_and_naming_columns() -> None:
    row = {
        "dialogue_id": "PMUL0001",
        "rank": 3,
        "ppl": 1.5,
        "is_true": True,
        "value": "pizza hut",
        "unheard_of_column": "pizza",
        "states": ["Restaurant(name=pizza hut)"],
        "nested": {"turn": "01223351880", "value": "pizza hut", "pizza": 1, "kebab": 2, "01223351880": 3},
        "triplets": frozenset({SlotValue("taxi", "phone", "07000000000")}),
        "raw": b"secret reference",
        "nothing": None,
    }
    before = dict(row)
    masked = mask_row(row)
    assert masked == {
        "dialogue_id": "PMUL0001",
        "rank": 3,
        "ppl": 1.5,
        "is_true": True,
        "value": "p***t(9)",
        "unheard_of_column": "***(5)",
        "states": ["Restaurant(name=p***t\\(9\\))"],
        "nested": {"turn": "***(11)", "value": "p***t(9)", "***(5)": 1, "***(5)#2": 2, "***(11)": 3},
        "triplets": ["Taxi(phone=***\\(11\\))"],
        "raw": "s***e(16)",
        "nothing": None,
    }
    assert row == before


@settings(deadline=None)
@given(st.text(min_size=1, max_size=5))
def test_a_short_value_never_shows(value: str) -> None:
    assert mask_value(value) == f"***({len(value)})"


@settings(deadline=None)
@given(st.text(max_size=20), st.text(max_size=20))
def test_whatever_stands_around_a_value_it_does_not_survive(before: str, after: str) -> None:
    assert "secretive" not in mask_text(f"{before} Hotel(name=secretive) {after}")
    assert "secretive" not in mask_text(f"{before}secretive{after}")


def test_masked_keys_never_merge() -> None:
    cell = {"pizza": 1, "***(5)#2": 2, "kebab": 3, b"0122335": 4, 5: 6}
    masked = mask_row({"counts": cell})["counts"]
    assert list(masked.values()) == [1, 2, 3, 4, 6]
    assert len(set(masked)) == len(cell)
    assert not {"pizza", "kebab", b"0122335"} & set(masked)
