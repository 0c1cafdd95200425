from __future__ import annotations

import pytest

from hushbot.corpora.multiwoz_database import MultiwozDatabase, Table
from hushbot.evaluation.placeholders import Delexicaliser, Mention, from_spans, unify
from hushbot.types import Span

DATABASE = MultiwozDatabase(
    {
        "hotel": Table.of(
            [
                {
                    "name": "mill pond lodge",
                    "address": "3 mill lane, north end",
                    "phone": "01223000111",
                    "postcode": "cb11aa",
                },
                {"name": "mill pond", "address": "9 pond road", "phone": "01223000222", "postcode": "cb22bb"},
            ]
        ),
        "restaurant": Table.of([{"name": "rosa's", "address": "1 high street", "phone": "01223000333"}]),
        "train": Table.of([{"trainID": "TR0007", "leaveAt": "09:15"}]),
    }
)


@pytest.mark.parametrize(
    ("written", "kind", "domain"),
    [
        ("hotel_name", "NAME", "hotel"),
        ("value_name", "NAME", None),
        ("name", "NAME", None),
        ("restaurant_postcode", "POST", "restaurant"),
        ("entrance fee", "PRICE", None),
        ("train_id", "TRAINID", "train"),
        ("value_id", "TRAINID", None),
        ("hospital_id", "ID", "hospital"),
        ("taxi_car", "TYPE", "taxi"),
        ("value_nonsense", "", None),
    ],
)
def test_placeholders_of_all_systems_get_one_spelling(written: str, kind: str, domain: str | None) -> None:
    assert unify(f"It is [{written}] .").mentions == {Mention(kind, domain)}


def test_the_text_is_small_joined_and_without_plural_marks() -> None:
    answer = unify("I do n't know [value_count] [value_type] -s , Sir ! Call [HOTEL_PHONE]s")
    assert answer.text == "i don't know COUNT TYPE -s, sir! call PHONE"
    assert answer.kinds == {"COUNT", "TYPE", "PHONE"}
    assert answer.domains == {"hotel"}


def test_marked_values_become_placeholders_and_overlaps_are_taken_once() -> None:
    text = "Mill Pond is in the north ."
    spans = (
        Span("hotel", "area", "north", 20, 25),
        Span("hotel", "name", "Mill Pond", 0, 9),
        Span("hotel", "name", "Pond", 5, 9),
    )
    answer = from_spans(text, spans)
    assert answer.text == "NAME is in the AREA."
    assert answer.mentions == {Mention("NAME", "hotel"), Mention("AREA", "hotel")}


def test_plain_answers_tell_what_the_tables_hold() -> None:
    reader = Delexicaliser.of(DATABASE)
    answer = reader.read("The Mill Pond Lodge , 3 mill lane , north end , CB11AA . Phone 01223000111 .")
    assert answer.text == "the NAME, ADDRESS, POST. phone PHONE."
    assert answer.mentions == {Mention(kind, "hotel") for kind in ("NAME", "ADDRESS", "POST", "PHONE")}
    assert reader.read("Rosa 's is nice").mentions == {Mention("NAME", "restaurant")}
    assert reader.read("a windmill pondering").mentions == frozenset()


def test_codes_and_numbers_are_known_by_their_shape() -> None:
    reader = Delexicaliser.of(DATABASE)
    assert reader.read("TR4711 leaves at 09:15").mentions == {Mention("TRAINID", "train")}
    assert reader.read("Reference number is : NAYA7XUX .").mentions == {Mention("REFERENCE", None)}
    assert reader.read("a red Tesla , 07123456789").mentions == {Mention("PHONE", None)}
    assert reader.read("we have 12 places for 8 people").mentions == frozenset()


def test_no_value_stays_in_the_text() -> None:
    text = Delexicaliser.of(DATABASE).read("mill pond lodge NAYA7XUX 01223000111 cb1 1aa").text
    assert text == "NAME REFERENCE PHONE POST"
