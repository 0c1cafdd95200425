"""What becomes of a dialogue's values in one epoch."""

from __future__ import annotations

from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, SlotValue, Turn
from hushbot.values.exchange_plan import AS_SET, Odds, Outcome, outcome_of
from hushbot.values.reading import Reading
from hushbot.values.value_lists import ValueLists

AREAS = ("centre", "east", "north", "south", "west")
LISTS = ValueLists.of(Schema.of([Slot("inn", "area", categorical=True, possible_values=AREAS)]))
ALL = Odds(rate=1.0, removal=0.0, categorical=True)


def outcome(text: str, odds: Odds = ALL, stream: str = "0/0", **held: str) -> Outcome:
    state = frozenset(SlotValue("inn", slot, value) for slot, value in held.items())
    return outcome_of(Reading(Dialogue("d", (Turn(text, state, response=text),)), LISTS), LISTS, odds, stream)


def test_a_list_is_permuted_so_that_no_two_options_become_one() -> None:
    for stream in map(str, range(40)):
        made = outcome("north south east west centre", area="north", stream=stream)
        words = made.dialogue.turns[0].user.split()
        assert sorted(words) == sorted(AREAS)
        assert words[0] != "north"
        assert {SlotValue("inn", "area", words[0])} == made.dialogue.turns[0].state
        assert (made.replaced, made.removed, dict(made.left)) == ({"north"}, set(), {})


def test_values_that_stay_keep_their_place_in_a_list() -> None:
    made = outcome("northern south", area="south", other="north", odds=ALL)
    assert made.dialogue.turns[0].user.split()[1] not in ("north", "south")


def test_categorical_values_can_be_kept() -> None:
    made = outcome("north", area="north", odds=Odds(rate=1.0, removal=0.0, categorical=False))
    assert dict(made.left) == {"north": AS_SET}
    assert made.dialogue is made.reading.dialogue


def test_one_stream_gives_one_outcome() -> None:
    first, same, other = (outcome("ann", guest="ann", stream=stream).dialogue for stream in ("0/0", "0/0", "0/1"))
    assert first == same
    assert first != other
