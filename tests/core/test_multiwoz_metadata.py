"""MultiWOZ's names and values as hushbot's, by hand."""

from __future__ import annotations

import pytest

from hushbot.corpora.multiwoz_metadata import alternatives, linear_act, ontology_slots, read_acts, span_claims
from hushbot.corpora.spans import Claim


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


@pytest.mark.parametrize(
    ("act", "slot", "expected"),
    [
        ("Train-Inform", "Dest", ("train", "destination")),
        ("Train-Inform", "People", ("train", "book people")),
        ("Train-Inform", "Day", ("train", "day")),
        ("Train-Inform", "Time", ("train", "time")),  # how long it takes
        ("Hotel-Inform", "Day", ("hotel", "book day")),
        ("Restaurant-Inform", "Time", ("restaurant", "book time")),
        ("Booking-Book", "Ref", ("booking", "reference")),
        ("Taxi-Inform", "Car", ("taxi", "type")),
    ],
)
def test_spans_are_named_as_states_name_slots(act: str, slot: str, expected: tuple[str, str]) -> None:
    (claim,) = span_claims("a b", [[act, slot, "B", 1, 1]])
    assert claim == Claim(*expected, ("B",), 2, 3)


@pytest.mark.parametrize(
    "span_info", ["No Annotation", {"a": 1}, [None], [["a", "b", "c", 0]], [[1, 2, 3, 0, 0]], [["A-B", "c", "d", 7, 7]]]
)
def test_unreadable_spans_claim_what_cannot_hold(span_info: object) -> None:
    (claim,) = span_claims("a b", span_info)
    assert claim.start is None or claim.domain is None


def test_linear_acts() -> None:
    assert linear_act("Payment_1-CONFIRM", [("receiver", "None"), ("", "x")]) == "Payment_1-CONFIRM(receiver=None)"
    assert read_acts({}) == ""


def test_ontologies_of_both_spellings() -> None:
    slots = ontology_slots(
        {
            "hotel-semi-type": ["Hotel|guesthouse", "dontcare", "none", 5],
            "hotel-book-people": ["2", "1"],
            "hotel-price range": ["$100"],
            "train-semi-leaveAt": ["09:00"],
            "odd": ["x"],
            "taxi-semi-x": "no list",
        }
    )
    # Categorical slots have what is published; the rest was collected, and says so.
    assert [(s.domain, s.name, s.categorical, s.possible_values, s.collected) for s in slots] == [
        ("hotel", "type", True, ("guesthouse", "hotel"), False),
        ("hotel", "book people", True, tuple("12345678"), False),
        ("hotel", "pricerange", True, ("cheap", "expensive", "moderate"), False),
        ("train", "leaveat", False, ("09:00",), True),
    ]
