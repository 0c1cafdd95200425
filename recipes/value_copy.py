"""The value-copy mechanism: state values are copied from the dialogue, so without a dialogue there are none.

Guarantees: nothing about training, which stays as it is; the bot as deployed writes a slot value into a state only if
it was said, is published by the schema for a categorical slot, or is don't-care, and into an act only then or if it was
looked up. `hushbot.targets.value_copy` says how, and what voids it: an attacker who states a guess in the history is
not hindered. The weights still hold what they memorised, so the folder must be kept as private as the data.

Source: Task-oriented dialogue state extraction, section VI, second defence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hushbot.errors import ConfigError
from hushbot.prompts import history_lines
from hushbot.protocols import Recipe, Target
from hushbot.schema import Schema
from hushbot.types import Dialogue

_NOT_STOPPED = (
    "an attacker who states a guess in the history is not hindered: the bot may then write it, and its probability is "
    "the unguarded bot's; no attack here measures that, and what the bot says in prose is not held to anything"
)


@dataclass(frozen=True, kw_only=True)
class ValueCopy(Recipe):
    """Guard the trained bot so that its states hold only what was said."""

    max_candidates: int = 24
    """Most spans of the dialogue that are weighed for one value; more are slower and rarely better."""
    max_words: int = 6
    """Longest span, in words."""
    min_probability: float = 0.01
    """A replacement that the bot finds less probable than this gives way to a blank; 0 always copies."""
    max_copies: int = 16
    """Most values replaced one by one in a text; any further one is blanked."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set recipe.value_copy.{name}"
            for name, is_right, rule in (
                ("max_candidates", self.max_candidates >= 1, "at least 1"),
                ("max_words", self.max_words >= 1, "at least 1"),
                (
                    "min_probability",
                    math.isfinite(self.min_probability) and 0 <= self.min_probability < 1,
                    "in [0, 1)",
                ),
                ("max_copies", self.max_copies >= 0, "at least 0"),
            )
            if not is_right
        ]
        if problems:
            raise ConfigError(*problems)

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the target behind the law."""
        # Imported here: choosing tokens needs torch, checking a configuration does not.
        from hushbot.targets.value_copy import ValueCopyTarget
        from hushbot.targets.value_law import ValueLaw

        law = ValueLaw(schema=schema, max_candidates=self.max_candidates, max_words=self.max_words)
        return ValueCopyTarget(target, law, min_probability=self.min_probability, max_copies=self.max_copies)

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Return how many of the members' values the guarded bot could write at all, and what it does not stop."""
        from hushbot.targets.value_law import ValueLaw, read_history

        law = ValueLaw(schema=schema, max_candidates=self.max_candidates, max_words=self.max_words)
        lawful = [
            any(law.allows(said.domain, said.slot, value, history) for value in said.values)
            for dialogue in dialogues
            if dialogue.final_state is not None
            for history in [read_history("".join(history_lines(dialogue, len(dialogue.turns) - 1)))]
            for said in dialogue.final_state
        ]
        if not lawful:
            return (_NOT_STOPPED,)
        share = sum(lawful) / len(lawful)
        return (
            f"{sum(lawful)} of the {len(lawful)} values in the members' final states ({share:.1%}) were said or are "
            "the schema's; the guarded bot can write no others in its dialogue states",
            _NOT_STOPPED,
        )
