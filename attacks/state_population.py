"""Whom membership inference judges: the distinct states of members and of held-out dialogues.

Guarantees: each state is judged once; a state that the other side holds in any turn is dropped, for it
decides nothing; the order depends on the states' texts only, and a state that several dialogues of a side hold is that
of the first by id; empty states name nobody and are left out.

Voids the guarantee: near-copies of members among the held-out dialogues, which are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.blind_baseline import related
from hushbot.intervals import FloatArray
from hushbot.prompts import render_state
from hushbot.types import AuditSplit, Dialogue, DialogueState, Metric

MIN_POOL = 100
"""Independent held-out dialogues from which on they choose the threshold."""


class Unit(NamedTuple):
    """One distinct state and the first dialogue that holds it."""

    text: str
    dialogue_id: str
    n_triplets: int
    domains: tuple[str, ...]


class Population(NamedTuple):
    """The states to judge, in an order that depends on their text only."""

    members: list[Unit]
    nonmembers: list[Unit]
    pool: list[Unit]
    """Held-out states that choose the threshold."""
    notes: list[str]
    related: Mapping[str, str]
    """By the id of a member or non-member: what the split dealt out together with it."""

    @classmethod
    def of(cls, split: AuditSplit, *, states: str, max_states: int | None, seed: int) -> Population:
        """Collect the distinct final states, or the states of all turns, at most `max_states` per side."""
        trained = {state for dialogue in split.members for state in _states(dialogue, "all")}
        unseen = {state for dialogue in split.nonmembers for state in _states(dialogue, "all")}
        rng = np.random.default_rng(seed)
        sides: list[list[Unit]] = []
        notes = []
        for name, dialogues, excluded in (
            ("members", split.members, unseen),
            ("non-members", split.nonmembers, trained),
            ("threshold pool", (*split.calibration, *split.controls), trained),
        ):
            units = _distinct(dialogues, states)
            kept = [unit for state, unit in sorted(units.items(), key=_by_text) if state not in excluded]
            notes.append(f"{name}: {len(kept)} states judged, {len(units) - len(kept)} shared ones dropped")
            if max_states is not None and len(kept) > max_states:
                chosen = np.sort(rng.permutation(len(kept))[:max_states])
                kept = [kept[i] for i in chosen]
                notes.append(f"{name}: {max_states} of them drawn at random")
            sides.append(kept)
        population = cls(sides[0], sides[1], sides[2], notes, related(split))
        where = (
            "chosen on calibration and control dialogues"
            if population.has_pool
            else f"chosen on the non-members themselves (fewer than {MIN_POOL} other held-out dialogues)"
        )
        notes.append(f"threshold {where}; the interval carries its uncertainty")
        return population

    @property
    def sides(self) -> tuple[list[Unit], list[Unit], list[Unit]]:
        """Return members, non-members and pool."""
        return self.members, self.nonmembers, self.pool

    @property
    def units(self) -> list[Unit]:
        """Return all sides, one after the other."""
        return [*self.members, *self.nonmembers, *self.pool]

    @property
    def has_pool(self) -> bool:
        """Return whether the pool is large enough to choose a threshold on."""
        return len({unit.dialogue_id for unit in self.pool}) >= MIN_POOL

    @property
    def counts(self) -> dict[str, Metric]:
        """Return how many states each side has."""
        return {"members": len(self.members), "nonmembers": len(self.nonmembers), "pool": len(self.pool)}

    def rows(self, raw: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
        """Return one record per state, without its text."""
        roles = ["member"] * len(self.members) + ["nonmember"] * len(self.nonmembers) + ["pool"] * len(self.pool)
        return [
            {
                "dialogue_id": unit.dialogue_id,
                "role": role,
                "is_member": role == "member",
                "n_triplets": unit.n_triplets,
                **{name: float(values[i]) for name, values in raw.items()},
            }
            for i, (unit, role) in enumerate(zip(self.units, roles, strict=True))
        ]


def _by_text(item: tuple[DialogueState, Unit]) -> str:
    return item[1].text


def _states(dialogue: Dialogue, which: str) -> list[DialogueState]:
    """Return the known states that say something; an empty state names nobody."""
    if which == "final":
        return [dialogue.final_state] if dialogue.final_state else []
    return [turn.state for turn in dialogue.turns if turn.state]


def _distinct(dialogues: Iterable[Dialogue], which: str) -> dict[DialogueState, Unit]:
    units: dict[DialogueState, Unit] = {}
    for dialogue in sorted(dialogues, key=lambda dialogue: dialogue.id):
        for state in _states(dialogue, which):
            if state not in units:
                domains = tuple(sorted({triplet.domain for triplet in state}))
                units[state] = Unit(render_state(state), dialogue.id, len(state), domains)
    return units
