"""MultiWOZ's names and values as hushbot's, by hand."""

from __future__ import annotations

import pytest

from hushbot.corpora.multiwoz_metadata import alternatives, linear_act, ontology_slots, read_acts


@pytest.mark.parametrize(
    ("raw", "values"),
    [
        ("", ()),
        ("  ", ()),
        ("not mentioned", ()),
        ("Not Mentioned", ()),
        ("not men", ()),
        ("none", ()),
        ("dontcare", ("dontcare",)),
        ("dont care", ("dontcare",)),
        ("don't care", ("dontcare",)),
        ("don’t care", ("dontcare",)),
        ("do n't care", ("dontcare",)),
        ("does not care", ("dontcare",)),
        ("Do Not Care", ("dontcare",)),
        ("healthcare", ("healthcare",)),
        (" Thai ", ("thai",)),
        ("hotel|guesthouse", ("hotel", "guesthouse")),
        ("b > a<c", ("b", "a", "c")),
        ("none|hotel|", ("hotel",)),
        ("hotel|Hotel", ("hotel",)),
        ("none|", ()),
        ("NOT(hamilton lodge)", ("not(hamilton lodge)",)),
    ],
)
def test_values(raw: str, values: tuple[str, ...]) -> None:
    assert alternatives(raw) == values


def test_linear_acts() -> None:
    assert linear_act("Payment_1-CONFIRM", [("receiver", "None"), ("", "x")]) == "Payment_1-CONFIRM(receiver=None)"
    assert read_acts({}) == ""


def test_ontologies_of_both_spellings() -> None:
    slots = ontology_slots(
        {
            "hotel-semi-type": ["Hotel|guesthouse", "dontcare", "none", 5],
            "hotel-book-people": ["2", "1"],
            "hotel-price range": ["cheap"],
            "train-semi-leaveAt": ["09:00"],
            "odd": ["x"],
            "taxi-semi-x": "no list",
        }
    )
    assert [(s.domain, s.name, s.categorical, s.possible_values) for s in slots] == [
        ("hotel", "type", True, ("guesthouse", "hotel")),
        ("hotel", "book people", True, ("1", "2")),
        ("hotel", "pricerange", True, ("cheap",)),
        ("train", "leaveat", False, ("09:00",)),
    ]
