"""Which values may stand in a slot: the schema's possible values and, where asked for, those of given states.

Guarantees: a value of a categorical slot is only ever offered possible values of all the categorical slots that hold
it. Without dialogues, nothing but the schema is looked at, and of the schema only what is published: lists that were
collected from dialogues count as none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue
from hushbot.values.value import Value, is_void

SlotName = tuple[str, str]

_FROM_LISTS = frozenset({"name", "words", "address"})
"""Shapes that an open slot's published values replace better than an invented value; a time is as good invented."""


@dataclass(frozen=True)
class ValueLists:
    """Possible values by slot."""

    slots: Mapping[SlotName, Slot]
    states: Mapping[SlotName, Sequence[str]]
    """What the given dialogues' states hold, sorted; empty when none were given."""

    @classmethod
    def of(cls, schema: Schema, dialogues: Iterable[Dialogue] = ()) -> ValueLists:
        """Collect the lists of a schema and of dialogues."""
        found: dict[SlotName, set[str]] = defaultdict(set)
        for dialogue in dialogues:
            for triplet in {triplet for turn in dialogue.turns for triplet in turn.state or ()}:
                if not is_void(triplet.value):
                    found[triplet.domain, triplet.slot].add(triplet.value)
        slots = {(slot.domain, slot.name): slot for slot in schema.slots if not slot.collected}
        return cls(slots, {slot: sorted(values) for slot, values in found.items()})

    def is_categorical(self, value: Value) -> bool:
        """Say whether a categorical slot with known values holds a value."""
        return any(self._closed(slot) for slot in value.slots)

    def choices(self, value: Value) -> tuple[str, ...]:
        """Return what all categorical slots of a value may hold; empty when it has none, or they share nothing."""
        closed = [self.slots[slot].possible_values for slot in value.slots if self._closed(slot)]
        first, *others = closed or [()]
        return tuple(v for v in first if all(v in other for other in others) and not is_void(v))

    def candidates(self, value: Value) -> Sequence[str]:
        """Return what may replace a value of open slots; empty where one has to be invented."""
        if self.states:
            return sorted({v for slot in value.slots for v in self.states.get(slot, ())})
        if value.shape not in _FROM_LISTS:
            return ()
        lists = [known.possible_values for slot in value.slots if (known := self.slots.get(slot)) is not None]
        return next((possible for possible in lists if len(possible) > 1), ())

    def _closed(self, slot: SlotName) -> bool:
        known = self.slots.get(slot)
        return known is not None and known.categorical and bool(known.possible_values)
