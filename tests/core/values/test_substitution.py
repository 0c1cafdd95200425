"""Exchanging values of one dialogue, held against results written out by hand."""

from __future__ import annotations

import pytest

from hushbot.types import Dialogue, SlotValue, Span, Turn
from hushbot.values.finder import Finder, Mention
from hushbot.values.substitution import Exchange, Substitution
from hushbot.values.value import finder_of, values_of

WOK = SlotValue("inn", "name", "golden wok", alternatives=("Golden Wok", "the wok"))
PEOPLE = SlotValue("inn", "book people", "3")
KIND = SlotValue("inn", "type", "inn")
REFERENCE = SlotValue("inn", "reference", "KB4FW9")
DIALOGUE = Dialogue(
    "d",
    (
        Turn(
            "Golden Wok, an inn", frozenset({WOK, KIND}), "inn 3 found, golden wok", "inn-offer(name=golden wok)", "ok"
        ),
        Turn(
            "for 3 people",
            frozenset({WOK, KIND, PEOPLE}),
            "inn 3 found, golden wok; taxi 0 found",
            r"inn-book(count=3, people=3, ref=KB4FW9, note=golden wok \(3\)) inn-bye()",
            "i found 3. KB4FW9 for 3 at golden wok.",
            (REFERENCE,),
            response_spans=(Span("inn", "reference", "KB4FW9", 11, 17), Span("inn", "name", "golden wok", 27, 37)),
        ),
        Turn("thanks", None, response=None),
    ),
    goal={"inn": {"name": "golden wok"}},
    opening="Welcome to Golden Wok",
)


def exchanged(**new: str | None) -> Dialogue:
    values = {value.key: value for value in values_of(DIALOGUE)}
    names = {"wok": "goldenwok", "people": "3", "kind": "inn", "code": "kb4fw9"}
    exchanges = {
        names[name]: Exchange(values[names[name]].text, text, (), frozenset({"people"} if name == "people" else ()))
        for name, text in new.items()
    }
    owners = {text: value.key for value in values.values() for text in value.texts}
    numbers = {(1, False): (Mention(4, 5, "3"),), (1, True): (Mention(22, 23, "3"),)}
    return Substitution(finder_of(values.values()), owners, exchanges, numbers).dialogue(DIALOGUE)


def test_a_value_becomes_the_same_everywhere() -> None:
    new = exchanged(wok="velmo", people="5", code="GA1UY4")
    first, second, third = new.turns
    assert (first.user, first.database, first.actions) == (
        "Velmo, an inn",
        "inn 3 found, velmo",
        "inn-offer(name=velmo)",
    )
    assert second.user == "for 5 people"
    assert second.database == "inn 3 found, velmo; taxi 0 found"
    assert second.actions == r"inn-book(count=3, people=5, ref=GA1UY4, note=velmo \(3\)) inn-bye()"
    assert second.response == "i found 3. GA1UY4 for 5 at velmo."
    assert [triplet.values for triplet in sorted(second.state or ())] == [("5",), ("velmo",), ("inn",)]
    assert second.booked == (SlotValue("inn", "reference", "GA1UY4"),)
    assert third is DIALOGUE.turns[2]
    assert (new.opening, new.goal, new.id) == ("Welcome to Velmo", None, "d")


def test_spans_follow_their_text() -> None:
    spans = exchanged(wok="velmo tarn", people="12", code="GA1UY4").turns[1].response_spans
    assert spans == (Span("inn", "reference", "GA1UY4", 11, 17), Span("inn", "name", "velmo tarn", 28, 38))
    assert exchanged(wok=None).turns[1].response_spans == (Span("inn", "reference", "KB4FW9", 11, 17),)


def test_names_of_domains_and_acts_are_no_values() -> None:
    new = exchanged(kind="lodge").turns[0]
    assert (new.user, new.database, new.actions) == (
        "Golden Wok, a lodge",
        "inn 3 found, golden wok",
        "inn-offer(name=golden wok)",
    )


def test_what_is_taken_out_leaves_nothing() -> None:
    first, second, _ = exchanged(wok=None).turns
    assert (first.user, first.database, first.actions) == ("an inn", "inn 3 found", "inn-offer()")
    assert second.actions == r"inn-book(count=3, people=3, ref=KB4FW9, note=\(3\)) inn-bye()"
    assert second.response == "i found 3. KB4FW9 for 3."
    assert second.state == frozenset({KIND, PEOPLE})


def test_without_exchanges_everything_is_the_same_object() -> None:
    assert exchanged() is DIALOGUE


@pytest.mark.parametrize(
    "actions", ["inn-offer(name=golden wok, area=north)", "inn-offer(area=north, name=golden wok)"]
)
def test_a_slot_goes_with_its_comma(actions: str) -> None:
    turn = Turn("", frozenset({WOK}), actions=actions)
    values = values_of(Dialogue("d", (turn,)))
    owners = {text: value.key for value in values for text in value.texts}
    gone = Substitution(finder_of(values), owners, {"goldenwok": Exchange("golden wok", None)})
    assert gone.actions(actions) == "inn-offer(area=north)"


def test_an_amount_in_a_database_line_follows_its_price() -> None:
    turn = Turn("pay $20", frozenset({SlotValue("bank", "amount", "$20")}), "bank 1 found, 20, 200", response="20 left")
    dialogue = Dialogue("d", (turn,))
    new = Substitution(finder_of(values_of(dialogue)), {"$20": "$20"}, {"$20": Exchange("$20", "$35")}).dialogue(
        dialogue
    )
    assert new.turns[0].user == "pay $35"
    assert new.turns[0].database == "bank 1 found, 35, 200"


def test_inflected_options_are_inflected_again() -> None:
    kinds = {"museum": Exchange("museum", "college", ("college", "museum"))}
    made = Substitution(Finder({"museum": "museum", "museums": "museum"}), {}, kinds)
    rewritten = made.text("23 Museums, a museum")
    assert rewritten.text == "23 Colleges, a college"
    assert rewritten.n_changed == len("Museums") + len("museum")


def test_what_changes_in_a_turn_is_counted_where_it_stands() -> None:
    values = {value.key: value for value in values_of(DIALOGUE)}
    owners = {text: value.key for value in values.values() for text in value.texts}
    exchanges = {"3": Exchange("3", "5", (), frozenset({"people"}))}
    numbers = {(1, True): (Mention(22, 23, "3"),)}
    made = Substitution(finder_of(values.values()), owners, exchanges, numbers)
    # `people=3` in the state and in the actions, `for 3` in the response; `count=3` and `i found 3` are others.
    assert made.n_changed(1, DIALOGUE.turns[1]) == 3
