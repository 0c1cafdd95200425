"""The distinct values of a dialogue, held against dialogues written out by hand."""

from __future__ import annotations

from hushbot.types import Dialogue, SlotValue, Span, Turn
from hushbot.values.value import Entry, action_values, finder_of, key_of, values_of


def state(*triplets: tuple[str, str, str]) -> frozenset[SlotValue]:
    return frozenset(SlotValue(*triplet) for triplet in triplets)


NORTH, TIME = ("inn", "area", "north"), ("inn", "book time", "09:00")


def test_a_value_knows_its_spellings_and_where_it_entered() -> None:
    three = SlotValue("inn", "people", "3", alternatives=("three", "dontcare"))
    dialogue = Dialogue(
        "d",
        (
            Turn("north", state(NORTH)),
            Turn("hm", None),
            Turn("three at 9:00", state(NORTH, TIME) | {three}),
            Turn("both in the north", state(NORTH, TIME, ("taxi", "to", "north")) | {three}),
        ),
    )
    values = {value.key: value for value in values_of(dialogue)}
    assert sorted(values) == ["09:00", "3", "north"]
    assert list(values["3"].texts) == ["3", "three"]
    assert values["3"].entries == [Entry(2, ("inn", "people"))]
    assert values["north"].slots == (("inn", "area"), ("taxi", "to"))
    assert values["north"].entries == [Entry(0, ("inn", "area")), Entry(3, ("taxi", "to"))]


def test_spellings_of_one_thing_have_one_key() -> None:
    assert key_of("9:00") == key_of("09:00") == key_of("9 am") == "09:00"
    assert key_of("Three") == key_of("3") == "3"
    assert key_of("Rosa's B-and-B") == key_of("rosa 's b and b")


def test_identifiers_and_names_of_actions_count_and_other_words_do_not() -> None:
    actions = r"inn-inform(name=Golden Wok\, Ely, choice=11, area=centre of town, phone=?) inn-book(ref=BM4KP|CX9)"
    values = values_of(Dialogue("d", (Turn("", frozenset(), actions=actions, response="done"),)))
    assert [value.text for value in values] == ["BM4KP", "CX9", "Golden Wok, Ely"]
    assert all(not value.entries for value in values)
    assert list(action_values(actions))[:2] == [("name", "Golden Wok, Ely"), ("choice", "11")]


def test_what_is_booked_counts_and_what_means_nothing_does_not() -> None:
    booked = (SlotValue("taxi", "type", "red audi"),)
    held = state(("inn", "area", "dontcare"), ("inn", "name", "none"))
    (value,) = values_of(Dialogue("d", (Turn("", held, booked=booked),)))
    assert (value.text, value.slot) == ("red audi", "type")


def test_a_span_tells_under_which_name_a_value_was_given() -> None:
    cheap = state(("inn", "price", "moderate"))
    turn = Turn("moderately priced please", cheap, user_spans=(Span("inn", "price", "moderately priced", 0, 17),))
    (value,) = values_of(Dialogue("d", (turn,)))
    assert list(value.texts) == ["moderate", "moderately priced"]
    (later,) = values_of(Dialogue("d", (Turn("moderate", cheap), Turn(turn.user, cheap, user_spans=turn.user_spans))))
    assert list(later.texts) == ["moderate"], "the value was there before, so the span may be about another"


def test_likely_spellings_give_way_to_sure_ones() -> None:
    def values(*times: str) -> Dialogue:
        return Dialogue("d", (Turn("", state(*((f"d{i}", "time", time) for i, time in enumerate(times)))),))

    assert finder_of(values_of(values("17:45"))).keys("at 5:45") == {"17:45"}
    assert finder_of(values_of(values("17:45", "05:45"))).keys("at 5:45") == {"05:45"}
    assert finder_of(values_of(values("17:45")), sure=True).keys("at 5:45") == frozenset()


def test_articles_accents_and_possessives_make_no_other_value() -> None:
    keys = {key_of(text) for text in ("The University Arms", "university arms", "University Arms 's")}
    assert keys == {"universityarms"}
    assert key_of("Café Uno") == key_of("Cafe\u0301 uno") == "cafeuno"
    assert key_of("christ's college") == key_of("christ college")
    assert key_of("the station") == "thestation", "without its article it could be any"
    assert key_of("$18") == key_of("18 dollars") == "$18"


def test_near_spellings_in_one_slot_are_one_value_and_in_two_slots_are_not() -> None:
    def keys(*slots: str) -> list[str]:
        names = ("huntingdon marriott hotel", "huntingdon marriot hotel")
        turns = (Turn("", state(("inn", slot, name))) for slot, name in zip(slots, names, strict=True))
        return [value.key for value in values_of(Dialogue("d", tuple(turns)))]

    assert keys("name", "name") == ["huntingdonmarriothotel"]
    assert len(keys("name", "place name")) == 2


def test_numbered_names_are_never_near() -> None:
    turns = (Turn("", state(("inn", "name", f"long street station {n}"))) for n in (1, 2))
    assert len(values_of(Dialogue("d", tuple(turns)))) == 2


def test_alternatives_that_are_named_side_by_side_are_two_values() -> None:
    either = SlotValue("inn", "type", "hotel", alternatives=("guesthouse",))
    one = Dialogue("d", (Turn("somewhere to stay", frozenset({either})),))
    two = Dialogue("d", (Turn("a hotel or a guesthouse", frozenset({either})),))
    assert [list(value.texts) for value in values_of(one)] == [["hotel", "guesthouse"]]
    assert [list(value.texts) for value in values_of(two)] == [["guesthouse"], ["hotel"]]


def test_a_span_joins_what_the_state_holds_as_two() -> None:
    held = state(("inn", "name", "university arms hotel"), ("taxi", "to", "the old arms"))
    turn = Turn("the old arms please", held, user_spans=(Span("inn", "name", "the old arms", 0, 12),))
    (value,) = values_of(Dialogue("d", (turn,)))
    assert sorted(value.texts) == ["the old arms", "university arms hotel"]


def test_a_day_is_one_value_in_all_its_spellings() -> None:
    assert key_of("March 5th") == key_of("5 march") == key_of("the 5th of March") == "03-05"
    (value,) = values_of(Dialogue("d", (Turn("", state(("inn", "date", "March 5th"))),)))
    texts = ("march 5th", "on 5 March", "the 5th of march")
    assert all(finder_of([value]).keys(text) == {"03-05"} for text in texts)
    assert finder_of([value]).keys("15 march") == frozenset()
