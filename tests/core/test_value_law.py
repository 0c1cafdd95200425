"""What may be written, and what may stand in for it."""

from __future__ import annotations

import pytest

from hushbot.schema import Schema, Slot
from hushbot.targets.value_law import History, ValueLaw, normalise, read_history

SCHEMA = Schema.of(
    [
        Slot("restaurant", "name"),
        Slot("restaurant", "area", True, ("north", "city centre")),
        Slot("restaurant", "food", False, ("thai",)),
        Slot("hotel", "area", True, ("riverside",)),
        Slot("hotel", "stars", True, ("seven",), collected=True),
    ]
)
LAW = ValueLaw(schema=SCHEMA, max_candidates=4, max_words=3)
PROMPT = (
    "System: Welcome to O'Brien's guide!\n"
    "User: a Bed-and-Breakfast, from 9:15 until 10:45\n"
    "Belief State: Restaurant(name=asked before)\n"
    "Database: hotel 2 found, hidden inn\n"
    "Actions: hotel-inform(name=secret lodge)\n"
    "Response: How about The Acorn?\n"
)


@pytest.mark.parametrize(
    ("value", "is_said"),
    [
        ("bed and breakfast", True),
        ("bed-and breakfast", True),
        ("BREAKFAST", True),
        ("obriens", True),
        ("o’brien's", True),
        ("09:15", True),
        ("9:15", True),
        ("10:45", True),
        ("the acorn", True),
        ("break", False),  # half a word
        ("0:45", False),
        ("acorn bed", False),  # over two lines
        ("hidden inn", False),
        ("secret lodge", False),
        ("asked before", False),
        ("user", False),  # the marker is nobody's word
        ("-", False),
    ],
)
def test_only_what_was_said_counts_as_said(value: str, is_said: bool) -> None:
    assert read_history(PROMPT).holds(normalise(value)) is is_said
    assert LAW.allows("restaurant", "name", value, read_history(PROMPT)) is is_said


@pytest.mark.parametrize(
    ("domain", "slot", "value", "is_lawful"),
    [
        ("restaurant", "area", "North", True),
        ("Restaurant", "Area", "city-centre", True),
        ("restaurant", "area", "riverside", False),  # another domain's
        ("", "area", "riverside", True),  # the domain is not known: any may be meant
        ("restaurant", "food", "thai", False),  # listed, but anything could be said
        ("hotel", "stars", "seven", False),  # listed because somebody said it
        ("", "stars", "seven", False),
        ("hotel-inform", "area", "riverside", True),  # in an act
        ("hotel-request", "name", "?", True),
        ("restaurant-inform", "area", "riverside", False),
        ("restaurant", "name", "", True),
        *(("restaurant", "name", text, True) for text in ("dontcare", "Don't care", "do n't care", "does not care")),
        ("restaurant", "name", "don", False),
        ("", "", "None", True),
        ("", "", "rest", True),  # a name that was cut
        ("restaurant", "", "na", True),
        ("restaurant", "", "pizza hut", False),
        ("restaurant", "", "dontcare", False),
    ],
)
def test_without_a_history_the_schema_decides(domain: str, slot: str, value: str, is_lawful: bool) -> None:
    assert LAW.allows(domain, slot, value, History("")) is is_lawful


def test_lookups_count_as_said_only_where_they_should() -> None:
    said, found = read_history(PROMPT), read_history(PROMPT, with_lookups=True)
    assert not said.holds("hidden inn")
    assert found.holds("hidden inn")
    assert not found.holds("secret lodge")  # an act, not a lookup
    assert "hidden inn" in found.spans(2)
    assert found.holds("the acorn")
    assert History("Database: x\n").is_empty
    assert not History("Database: x\n", with_lookups=True).is_empty


def test_spans_are_runs_of_words_of_one_line_the_last_line_first() -> None:
    history = read_history("User: go on.\nSystem: a b, c!\n")
    assert list(history.spans(2)) == ["c", "b", "a", "b, c", "a b", "on", "go", "go on"]
    assert list(history.spans(1).values()) == ["c", "b", "a", "on", "go"]
    assert not history.is_empty
    assert History("Belief State: A(b=c)\nUser:  \n").is_empty


def test_candidates_are_similar_then_recent_then_listed() -> None:
    history = read_history("User: pizza hot at 9:15\nUser: yes please\n")
    # Two similar ones (half of four), then the last line's words; the schema lists no names.
    assert LAW.candidates("restaurant", "name", "pizza hut", history) == ["pizza hot", "pizza hot at", "please", "yes"]
    assert LAW.candidates("restaurant", "area", "center", history)[-2:] == ["north", "city centre"]
    # Digits are alike: a remembered time is like a time that was said.
    assert LAW.candidates("restaurant", "time", "23:59", history)[0] == "9:15"


def test_candidates_are_at_most_so_many_and_distinct() -> None:
    history = read_history("User: one two three four one two\n")
    for n in (1, 2, 5):
        law = ValueLaw(schema=SCHEMA, max_candidates=n, max_words=2)
        spans = law.candidates("restaurant", "name", "one two", history)
        assert len(spans) == len(set(spans)) == n
        assert len(law.candidates("restaurant", "area", "x", history)) == n + min(n, 2)
