from __future__ import annotations

import pytest

from hushbot.corpora.multiwoz_database import MultiwozDatabase, Table
from hushbot.evaluation.venue_search import VenueSearch, canonical, canonical_slot, likeness

RESTAURANTS = [
    {"id": "1", "name": "blue lantern", "area": "north", "food": "italian", "pricerange": "cheap"},
    {"id": "2", "name": "red kettle", "area": "north", "food": "north african", "pricerange": "?"},
    {"id": "3", "name": "red kettle garden", "area": "south", "food": "african", "pricerange": "dear"},
]
TRAINS = [
    {"trainID": "TR1", "departure": "ely", "destination": "cambridge", "leaveAt": "09:15", "arriveBy": "09:32"},
    {"trainID": "TR2", "departure": "ely", "destination": "cambridge", "leaveAt": "17:45", "arriveBy": "18:02"},
]
DATABASE = MultiwozDatabase({"restaurant": Table.of(RESTAURANTS), "train": Table.of(TRAINS)})


def found(domain: str, **wishes: str) -> set[int]:
    return set(VenueSearch(DATABASE).find(domain, wishes))


def test_names_and_foods_match_by_likeness_all_else_exactly() -> None:
    assert found("restaurant", name="red kettle") == {1, 2}
    assert found("restaurant", food="african") == {1, 2}
    assert found("restaurant", area="nort") == set()
    assert found("restaurant", area="north", name="kettle") == {1}


def test_a_question_mark_in_the_table_matches_everything() -> None:
    assert found("restaurant", pricerange="cheap") == {0, 1}


def test_no_wish_and_dont_care_match_every_row_and_unknown_slots_are_ignored() -> None:
    assert found("restaurant") == {0, 1, 2}
    assert found("restaurant", area="do n't care", bookday="monday") == {0, 1, 2}


def test_domains_without_venues_have_none() -> None:
    assert found("taxi", departure="ely") == found("hotel", area="north") == set()


def test_times_are_bounds_and_one_that_cannot_be_read_is_midnight() -> None:
    assert found("train", leave="09:15") == {0, 1}
    assert found("train", leave="after 5:45 pm") == {1}
    assert found("train", arrive="17:00") == {0}
    assert found("train", leave="later") == {0, 1}
    assert found("train", arrive="later") == set()


def test_the_order_of_wishes_and_questions_changes_nothing() -> None:
    search = VenueSearch(DATABASE)
    first = search.find("restaurant", {"area": "north", "food": "african"})
    assert search.find("restaurant", {"food": "african", "area": "north"}) == first == frozenset({1})
    assert search.find("restaurant", {"area": "north"}) == frozenset({0, 1})


@pytest.mark.parametrize(
    ("slot", "raw", "expected"),
    [
        ("type", "guest house", "guesthouse"),
        ("parking", "free", "yes"),
        ("internet", "no", "no"),
        ("food", " Portugese ", "portuguese"),
        ("name", "Christ College", "christ's college"),
        ("destination", "Meze & Bar", "meze and bar"),
        ("leave", "17 : 15", "17:15"),
        ("leave", "1715", "17:15"),
        ("leave", "9:15", "09:15"),
        ("leave", "3pm", "15:00"),
        ("leave", "12:30 pm", "12:30"),
        ("arrive", "12:15 am", "00:15"),
        ("arrive", "by 10", "10:00"),
        ("arrive", "after lunch", "12:00"),
        ("arrive", "friday", "friday"),
        ("area", "Centre", "Centre"),
    ],
)
def test_values_get_the_spelling_of_the_tables(slot: str, raw: str, expected: str) -> None:
    assert canonical(slot, raw) == expected


def test_slot_names_get_one_spelling() -> None:
    assert [canonical_slot(name) for name in ("arriveBy", "leave at", "Book People")] == [
        "arrive",
        "leave",
        "bookpeople",
    ]


def test_likeness_is_of_the_best_stretch_and_symmetric() -> None:
    assert likeness("red kettle", "the red kettle garden") == 100
    # "abcd" against "abcx": 3 of 4 letters, 2 * 3 / 8.
    assert likeness("abcd", "abcx") == likeness("abcx", "abcd") == 75
    assert likeness("", "abc") == 0
