"""Which values may stand in a slot."""

from __future__ import annotations

from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, SlotValue, Turn
from hushbot.values.value import Entry, Value
from hushbot.values.value_lists import ValueLists

SCHEMA = Schema.of(
    [
        Slot("inn", "stars", categorical=True, possible_values=("1", "2", "3", "dontcare")),
        Slot("inn", "nights", categorical=True, possible_values=("2", "3", "4")),
        Slot("inn", "kind", categorical=True),
        Slot("inn", "name", possible_values=("golden wok", "pizza hut")),
        Slot("inn", "time", possible_values=("09:00", "10:00")),
    ]
)


def value(text: str, *slots: str) -> Value:
    return Value(text, text, slots[0], {text: None}, [Entry(0, ("inn", slot)) for slot in slots])


def test_a_value_of_two_categorical_slots_may_become_what_both_may_hold() -> None:
    lists = ValueLists.of(SCHEMA)
    assert lists.choices(value("2", "stars")) == ("1", "2", "3")
    assert lists.choices(value("2", "stars", "nights", "name")) == ("2", "3")
    assert lists.is_categorical(value("2", "stars"))


def test_a_slot_without_a_list_is_open() -> None:
    lists = ValueLists.of(SCHEMA)
    for open_value in (value("x", "kind"), value("x", "name"), value("x", "nowhere")):
        assert not lists.is_categorical(open_value)
        assert lists.choices(open_value) == ()


def test_open_values_come_from_the_schema_where_invention_is_worse() -> None:
    lists = ValueLists.of(SCHEMA)
    assert lists.candidates(value("curry garden", "name")) == ("golden wok", "pizza hut")
    assert lists.candidates(value("08:00", "time")) == ()
    assert lists.candidates(value("x", "kind")) == ()


def test_given_dialogues_are_the_pool_of_their_slots() -> None:
    held = frozenset({SlotValue("inn", "name", "hakka"), SlotValue("inn", "time", "dontcare")})
    lists = ValueLists.of(SCHEMA, [Dialogue("d", (Turn("", held),))])
    assert lists.candidates(value("curry garden", "name")) == ["hakka"]
    assert lists.candidates(value("08:00", "time")) == []


def test_lists_that_were_collected_from_dialogues_count_as_none() -> None:
    schema = Schema.of(
        [
            Slot("inn", "stars", categorical=True, possible_values=("1", "2"), collected=True),
            Slot("inn", "name", possible_values=("golden wok", "pizza hut"), collected=True),
        ]
    )
    lists = ValueLists.of(schema)
    assert not lists.is_categorical(value("2", "stars"))
    assert lists.candidates(value("curry garden", "name")) == ()
