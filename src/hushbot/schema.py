"""Domains and their slots: what a bot can be asked for.

A `Schema` is immutable and ordered by name, so that everything derived from it is reproducible.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hushbot.types import Dialogue


@dataclass(frozen=True, slots=True, order=True)
class Slot:
    """One slot of a domain."""

    domain: str
    name: str
    categorical: bool = False
    """Whether the slot takes one of `possible_values`."""
    possible_values: tuple[str, ...] = ()
    description: str = ""
    collected: bool = False
    """Whether `possible_values` were gathered from dialogues, so that they are somebody's, rather than published."""


@dataclass(frozen=True, slots=True)
class Schema:
    """The slots of all domains, sorted by (domain, name)."""

    slots: tuple[Slot, ...]

    @classmethod
    def of(cls, slots: Iterable[Slot]) -> Schema:
        """Build a schema from slots in any order; a repeated (domain, name) keeps its first slot."""
        unique: dict[tuple[str, str], Slot] = {}
        for slot in slots:
            unique.setdefault((slot.domain, slot.name), slot)
        return cls(tuple(unique[key] for key in sorted(unique)))

    @classmethod
    def from_dialogues(cls, dialogues: Iterable[Dialogue]) -> Schema:
        """Collect every (domain, slot) that occurs in a known state."""
        return cls.of(
            Slot(triplet.domain, triplet.slot)
            for dialogue in dialogues
            for turn in dialogue.turns
            for triplet in sorted(turn.state or ())
        )

    @property
    def domains(self) -> tuple[str, ...]:
        """Return the domain names, sorted."""
        return tuple(sorted({slot.domain for slot in self.slots}))

    @property
    def by_domain(self) -> dict[str, tuple[str, ...]]:
        """Return the slot names of each domain."""
        names: dict[str, list[str]] = defaultdict(list)
        for slot in self.slots:
            names[slot.domain].append(slot.name)
        return {domain: tuple(slots) for domain, slots in names.items()}

    def find(self, domain: str, slot: str) -> Slot | None:
        """Return the slot of that name, or None when the schema has no such slot."""
        return next((s for s in self.slots if s.domain == domain and s.name == slot), None)
