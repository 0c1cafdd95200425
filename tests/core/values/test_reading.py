"""What is known of a dialogue before anything is drawn."""

from __future__ import annotations

from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, SlotValue, Turn
from hushbot.values.reading import OTHER_COUNT, Reading, read
from hushbot.values.value_lists import ValueLists

SCHEMA = Schema.of(
    [
        Slot("inn", "area", categorical=True, possible_values=("north", "south", "east")),
        Slot("inn", "people", categorical=True, possible_values=("2", "3", "4")),
    ]
)
LISTS = ValueLists.of(SCHEMA)


def dialogue(*turns: tuple[str, str, str], **held: str) -> Dialogue:
    state = frozenset(SlotValue("inn", slot, value) for slot, value in held.items())
    return Dialogue("d", tuple(Turn(user, state, actions=acts, response=said) for user, acts, said in turns))


def test_options_stand_where_they_are_named_and_are_no_values() -> None:
    reading = Reading(dialogue(("north", "", "north or south?"), area="north"), LISTS)
    assert (list(reading.values), list(reading.options)) == (["north"], ["south"])


def test_a_word_alone_stands_for_the_name_that_has_it() -> None:
    reading = Reading(dialogue(("ann archer", "", "hi ann"), guest="ann archer", place="the archer"), LISTS)
    assert reading.aliases == {"ann": {"annarcher"}}
    assert reading.holders == {"annarcher": {"archer"}, "archer": {"annarcher"}}
    assert reading.is_tied("archer")


def test_times_of_one_dialogue_are_one_clan() -> None:
    reading = Reading(dialogue(("", "", ""), leave="9:00", arrive="10:00", guest="ann"), LISTS)
    assert reading.clans == {"09:00": "09:00", "10:00": "09:00", "ann": "ann"}


def test_a_number_is_its_slots_where_the_action_says_so() -> None:
    given = Reading(dialogue(("for 3", "inn-book(people=3)", "booked, that makes 3"), people="3"), LISTS)
    assert [mention.start for mention in given.numbers[0, True]] == [19]
    unclear = Reading(dialogue(("for 3", "inn-book(people=3)", "3, that makes 3"), people="3"), LISTS)
    assert unclear.obstacles == {"3": OTHER_COUNT}
    other = Reading(dialogue(("for 3", "inn-count(choice=3)", "there are 3"), people="3"), LISTS)
    assert (other.numbers[0, True], other.obstacles) == ((), {})


def test_a_reading_is_kept_for_its_dialogue_and_its_lists() -> None:
    one, same = dialogue(("north", "", ""), area="north"), dialogue(("north", "", ""), area="north")
    assert read(one, LISTS) is read(one, LISTS)
    assert read(same, LISTS) is not read(one, LISTS)
    assert read(one, ValueLists.of(SCHEMA)) is not read(same, LISTS)
