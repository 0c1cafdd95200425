"""Exchanging values of one dialogue, held against results written out by hand."""

from __future__ import annotations

import pytest

from hushbot.dialogue_values import finder_of, values_of
from hushbot.substitution import Exchange, Substitution
from hushbot.types import Dialogue, SlotValue, Span, Turn

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
    return Substitution(finder_of(values.values()), owners, exchanges).dialogue(DIALOGUE)


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
