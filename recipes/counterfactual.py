"""Counterfactual values: in each epoch the bot sees every dialogue with other values in the same places.

Guarantees: each distinct value of a dialogue is drawn with probability `rate`, anew in each epoch; a drawn value is
replaced, or taken out, everywhere at once: in what the user says, states, database lines, actions, bookings and
responses. What a dialogue becomes depends on (seed, epoch, its id, its own text) and, with `pool=public`, on published
lists of values and invented words only, never on lists that were collected from dialogues: the rewrite is then a
function of one dialogue, as a guarantee per dialogue needs it. A replacement keeps the type: a categorical slot takes
another of its possible values, a time a time; times and days of one dialogue keep their order, options of one list stay
different, and a first name alone follows the full name.

No value is left half exchanged. One that cannot be exchanged safely stays as it was and is counted in the notes:
"yes" and "no", free text, categorical values and small numbers that the user gave in other words, numbers of which it
cannot be told what they count, values without an alternative. A value that stands inside another (a city in a hotel's
name, a name in an e-mail address) takes that one with it. Values that nobody said, or that a tap on a button stands
for, are exchanged: the bot cannot have them from the text, so it would have to learn them by heart. Only what the user
brings up is ever taken out; else the system would offer nothing.

What voids it: `rate` below 1 leaves the true value in some epochs; venues that only the unsupervised database line
names stay; `pool=members` draws from other members' states, which voids a guarantee per dialogue.

Source: counterfactual data augmentation for dialogue states (CoCo, arXiv 2010.12850), used here against memorisation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from hushbot.prompts import render_state
from hushbot.protocols import Recipe
from hushbot.schema import Schema
from hushbot.types import Dialogue
from hushbot.values.exchange_plan import Odds, Outcome, outcome_of
from hushbot.values.reading import read
from hushbot.values.value_lists import ValueLists


class Changed(NamedTuple):
    """What one epoch's rewrite did: counts only."""

    values: int
    """Distinct values, summed over dialogues."""
    replaced: int
    removed: int
    left: Mapping[str, int]
    """Drawn values that stayed, by reason."""
    open_values: int
    """Distinct values that no categorical slot holds, drawn or not."""
    open_left: int
    """Those of them that were drawn and stayed."""
    characters: int
    """Characters of states, actions and responses, the text that a bot is trained to write."""
    changed: int
    """Those of them that stand for a value which was replaced or removed."""


@dataclass(frozen=True, kw_only=True)
class Counterfactual(Recipe):
    """Replace or remove values consistently, anew in each epoch."""

    rate: float = 0.5
    """The probability with which a distinct value of a dialogue is exchanged in an epoch."""
    removal: float = 0.1
    """The share of these that is taken out instead of replaced; never small numbers nor what only the system says."""
    pool: Literal["public", "members"] = "public"
    """Where replacements come from: `public` lists and invented words, or also other `members`' states (refused under
    differential privacy)."""
    categorical: bool = True
    """Whether values of categorical slots are exchanged, too."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} must be in [0, 1]; set recipe.counterfactual.{name}"
            for name, value in (("rate", self.rate), ("removal", self.removal))
            if not (math.isfinite(value) and 0 <= value <= 1)
        ]
        if self.pool not in ("public", "members"):
            problems.append(f"pool={self.pool!r} is neither public nor members; set recipe.counterfactual.pool")
        if problems:
            raise ValueError("; ".join(problems))
        object.__setattr__(self, "reads_other_dialogues", self.pool == "members")

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        """Return each dialogue with this epoch's values; one in which nothing changes is the same object."""
        lists = self._lists(dialogues, schema)
        return tuple(self._outcome(dialogue, lists, f"{seed}/{epoch}").dialogue for dialogue in dialogues)

    def measure(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int = 0, seed: int) -> Changed:
        """Return how much the rewrite of one epoch changes."""
        lists = self._lists(dialogues, schema)
        outcomes = [self._outcome(dialogue, lists, f"{seed}/{epoch}") for dialogue in dialogues]
        left = Counter(reason for outcome in outcomes for reason in outcome.left.values())
        known = [(key, outcome) for outcome in outcomes for key in outcome.reading.values]
        open_ones = [(key, outcome) for key, outcome in known if key not in outcome.reading.closed]
        sizes = [_sizes(outcome) for outcome in outcomes]
        return Changed(
            values=len(known),
            replaced=sum(len(outcome.replaced) for outcome in outcomes),
            removed=sum(len(outcome.removed) for outcome in outcomes),
            left=dict(left.most_common()),
            open_values=len(open_ones),
            open_left=sum(key in outcome.left for key, outcome in open_ones),
            characters=sum(total for total, _ in sizes),
            changed=sum(changed for _, changed in sizes),
        )

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Say what the first epoch's rewrite changes, and what it leaves and why."""
        seen = self.measure(dialogues, schema, epoch=0, seed=seed)
        share = f"{seen.changed / seen.characters:.1%}" if seen.characters else "not measured: none"
        reasons = ", ".join(f"{n} {reason}" for reason, n in seen.left.items()) or "none"
        return (
            f"of {seen.values} distinct values in {len(dialogues)} dialogues, epoch 0 replaces {seen.replaced} and "
            f"removes {seen.removed}; drawn but left: {sum(seen.left.values())} ({reasons})",
            f"share of supervised text (states, actions, responses, as a turn-level bot learns them) that epoch 0 "
            f"changes: {share}",
            f"replacements come from {'public lists and invented words' if self.pool == 'public' else 'members, too'}",
        )

    def _lists(self, dialogues: Sequence[Dialogue], schema: Schema) -> ValueLists:
        return ValueLists.of(schema, dialogues) if self.pool == "members" else _published(schema)

    def _outcome(self, dialogue: Dialogue, lists: ValueLists, stream: str) -> Outcome:
        odds = Odds(rate=self.rate, removal=self.removal, categorical=self.categorical)
        return outcome_of(read(dialogue, lists), lists, odds, stream)


@lru_cache(maxsize=16)
def _published(schema: Schema) -> ValueLists:
    return ValueLists.of(schema)


def _sizes(outcome: Outcome) -> tuple[int, int]:
    """Return the characters of a dialogue's supervised text, and those of them that are exchanged."""
    total = changed = 0
    for index, turn in enumerate(outcome.reading.dialogue.turns):
        total += len(turn.actions) + len(turn.response or "") + len(render_state(turn.state or frozenset()))
        changed += outcome.substitution.n_changed(index, turn)
    return total, changed
