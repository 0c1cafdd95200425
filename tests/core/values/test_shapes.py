"""Shapes of values, and other values of the same shape."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.values.clock import minutes_of
from hushbot.values.shapes import follow, like, number_of, shape_of
from hushbot.values.words import NewWords

KINDS = [
    ("tariq.lombardi12@pigeon.example", "email", "email"),
    ("0113 496 0947", "phone", "phone"),
    ("01223866800", "", "phone"),
    ("408-738-4862", "phone_number", "phone"),
    ("KB4FW9", "reference", "code"),
    ("TR1567", "trainid", "code"),
    ("BMUKPTGA", "ref", "code"),
    ("cb19ej", "", "postcode"),
    ("qj1 9fx", "postcode", "postcode"),
    ("17:45", "leaveat", "time"),
    ("3:15 in the afternoon", "pickup_time", "time"),
    ("8 pm", "", "time"),
    ("march 11th", "date", "date"),
    ("friday", "day", "date"),
    ("$288", "price", "price"),
    ("10.1 GBP", "ticket", "price"),
    ("4", "people", "number"),
    ("38 minutes", "time", "number"),
    ("92 sorrel terrace qv2 8bs", "from", "address"),
    ("15 - 17 norman way", "addr", "address"),
    ("quiet heron", "name", "name"),
    ("Anaheim, CA", "city_of_event", "name"),
    ("korean", "food", "words"),
    ("throughout the day", "leave", "words"),
]


@pytest.mark.parametrize(("value", "slot", "shape"), KINDS)
def test_a_value_has_a_shape(value: str, slot: str, shape: str) -> None:
    assert shape_of(value, slot) == shape


@pytest.mark.parametrize(("value", "slot", "shape"), KINDS)
def test_another_value_has_the_same_shape_and_is_never_the_same(value: str, slot: str, shape: str) -> None:
    for seed in range(30):
        made = like(value, slot, random.Random(seed))
        assert made.casefold() != value.casefold()
        assert shape_of(made, slot) == shape
        assert like(value, slot, random.Random(seed)) == made


@pytest.mark.parametrize("value", ["KB4FW9", "qj1 9fx", "0113 496 0947", "cb22 ha", "+44 (0) 20 7946"])
def test_codes_keep_their_form_character_by_character(value: str) -> None:
    def form(text: str) -> str:
        return re.sub(r"\d", "0", re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", text)))

    for seed in range(20):
        assert form(like(value, "reference" if value.isalnum() else "", random.Random(seed))) == form(value)


@pytest.mark.parametrize(("value", "step"), [("17:45", 15), ("9:00 am", 15), ("16:20", 5), ("05:59", 1)])
def test_times_stay_on_their_grid_and_in_the_day(value: str, step: int) -> None:
    for seed in range(50):
        minutes = minutes_of(like(value, "time", random.Random(seed)))
        assert minutes is not None
        assert minutes % step == 0
        assert 7 * 60 <= minutes < 22 * 60


def test_an_address_keeps_no_part_of_the_original() -> None:
    for seed in range(50):
        made = like("tariq.lombardi12@pigeon.example", "email", random.Random(seed))
        assert re.fullmatch(r"[a-z]+\.[a-z]+\d\d@[a-z]+\.example", made)
        assert not {"tariq", "lombardi", "pigeon"} & set(re.findall(r"[a-z]+", made))


def test_a_name_keeps_what_says_that_it_is_one() -> None:
    made = like("dr jovanovic of High Street", "doctor", random.Random(3))
    assert re.fullmatch(r"dr [a-z]+ of [A-Z][a-z]+ Street", made)


def test_one_word_becomes_one_word_wherever_it_stands() -> None:
    words = NewWords(random.Random(1))
    name, mail, short = (
        like(value, slot, random.Random(seed), words)
        for seed, (value, slot) in enumerate([("Ann Mörk", "guest"), ("mork.ann@x.org", "mail"), ("Mr Mork", "guest")])
    )
    first, last = name.lower().split()
    assert len({first, last}) == 2
    assert mail.startswith(f"{last}.{first}@")
    assert short == f"Mr {last.capitalize()}"
    assert like("the ann hotel", "name", random.Random(1), words, keeps=frozenset({"the"})).split()[::2] == [
        "the",
        words.word("hotel"),
    ]


@pytest.mark.parametrize(
    ("replacement", "original", "occurrence", "written"),
    [
        ("velmo tarn", "quiet heron", "Quiet Heron", "Velmo Tarn"),
        ("velmo tarn", "quiet heron", "QUIET HERON", "VELMO TARN"),
        ("Velmo Tarn", "Quiet Heron", "quiet heron", "velmo tarn"),
        ("ENT Specialist", "Dermatologist", "Dermatologist", "ENT Specialist"),
        ("ENT Specialist", "Dermatologist", "dermatologist", "ent specialist"),
        ("5", "3", "three", "five"),
        ("five", "three", "3", "5"),
        ("20", "3", "three", "20"),
        ("09:15", "17:45", "5:45 pm", "9:15 am"),
        ("96 bucks", "50 bucks", "$50", "$96"),
        ("the 5th", "the 10th", "10th of this month", "5th of this month"),
        ("GA1UY4", "KB4FW9", "kb4fw9", "ga1uy4"),
        ("the velmo arms", "the university arms", "University Arms", "Velmo Arms"),
        ("velmo arms", "university arms", "the University Arms", "the Velmo Arms"),
        ("velmo 's", "rosa 's", "Rosa", "Velmo"),
        ("17:45", "12:00", "noon", "17:45"),
        ("17:45", "09:00", "09.00", "17.45"),
    ],
)
def test_a_replacement_is_written_as_the_original_was(
    replacement: str, original: str, occurrence: str, written: str
) -> None:
    assert follow(replacement, original, occurrence) == written


def test_small_numbers_are_read_from_digits_and_words() -> None:
    assert [number_of(text) for text in ("3", "Three", "12", "120", "thirty", "3 people", "")] == [
        *("3", "3", "12"),
        *(None, None, None, None),
    ]


@given(st.text(max_size=30), st.text(max_size=12), st.integers(0, 2**31))
def test_any_text_has_a_shape_and_another_value(value: str, slot: str, seed: int) -> None:
    assert shape_of(value, slot)
    assert like(value, slot, random.Random(seed)).casefold() != value.casefold()
