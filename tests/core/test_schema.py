"""Schemas: order, repetition, and what dialogues tell about them."""

from __future__ import annotations

from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, SlotValue, Turn


def test_schema_is_sorted_and_keeps_the_first_of_a_repeated_slot() -> None:
    schema = Schema.of([Slot("taxi", "to"), Slot("hotel", "stars", True, ("4",)), Slot("hotel", "stars")])
    assert schema.domains == ("hotel", "taxi")
    assert schema.by_domain == {"hotel": ("stars",), "taxi": ("to",)}
    found = schema.find("hotel", "stars")
    assert found is not None
    assert found.possible_values == ("4",)
    assert schema.find("hotel", "name") is None


def test_schema_from_dialogues_reads_known_states_only() -> None:
    dialogue = Dialogue("d", (Turn("a", None), Turn("b", frozenset({SlotValue("taxi", "to", "x")}))))
    assert Schema.from_dialogues([dialogue]).by_domain == {"taxi": ("to",)}
