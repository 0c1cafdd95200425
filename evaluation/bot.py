"""A bot with everything it is run with, whichever text layout it was trained on.

Guarantees: as `hushbot.evaluation.tracking`, or `hushbot.evaluation.running` for a bot that learns changes; a failing
target gives a reason, never an empty answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hushbot.errors import AuditError
from hushbot.evaluation import running, tracking
from hushbot.evaluation.tracking import Asker, TrackedTurn
from hushbot.protocols import Database
from hushbot.targets.guarded import unguarded
from hushbot.types import Dialogue, DialogueState


class Played(NamedTuple):
    """What a bot did, as far as it went."""

    turns: tuple[TrackedTurn, ...]
    failures: Mapping[str, str]
    """Why a stage gave nothing: `states`, `responses`."""

    @property
    def states(self) -> dict[str, list[DialogueState | None]]:
        """Return the predicted state of each turn, by dialogue id."""
        found: dict[str, list[DialogueState | None]] = {}
        for turn in self.turns:
            found.setdefault(turn.dialogue.id, []).append(turn.state)
        return found


@dataclass(frozen=True, slots=True)
class Bot:
    """A bot with everything it is run with."""

    asker: Asker
    database: Database | None
    learns_changes: bool
    """Whether it writes what each turn changed, in one running text per dialogue."""

    def play(self, dialogues: Sequence[Dialogue], *, is_answering: bool) -> Played:
        """Run the bot over dialogues as far as it goes."""
        try:
            tracked = self._track(dialogues, is_answering=is_answering)
        except AuditError as error:
            return Played((), {"states": str(error), "responses": str(error)})
        if not is_answering:
            return Played(tracked, {"responses": "responses are off (utility.responses=false)"})
        try:
            return Played(self._answer(tracked), {})
        except AuditError as error:
            return Played(tracked, {"responses": str(error)})

    def repeat(self, turn: TrackedTurn, *, is_answering: bool) -> None:
        """Let the bot do one turn once more, alone, after the text that it read then.

        Raises:
            AuditError: The target failed.
        """
        if self.learns_changes:
            running.repeat_turn(self.asker, turn, self.database, is_answering=is_answering)
        else:
            tracking.repeat_turn(self.asker, turn, self.database, is_answering=is_answering)

    def score_gold(self, dialogues: Sequence[Dialogue]) -> list[tuple[float, int]]:
        """Return how probable it finds what it should have written.

        Raises:
            AuditError: The target cannot score.
        """
        score = running.gold_log_likelihood if self.learns_changes else tracking.gold_log_likelihood
        # A guard that hides values hides their probabilities, too; perplexity is a property of the bot behind it.
        return score(unguarded(self.asker.target), dialogues, self.asker.limit)

    def _track(self, dialogues: Sequence[Dialogue], *, is_answering: bool) -> tuple[TrackedTurn, ...]:
        if self.learns_changes:
            return running.run_states(self.asker, dialogues, self.database, is_answering=is_answering)
        return tracking.track_states(self.asker, dialogues)

    def _answer(self, turns: Sequence[TrackedTurn]) -> tuple[TrackedTurn, ...]:
        if self.learns_changes:
            return running.run_responses(self.asker, turns)
        return tracking.track_responses(self.asker, turns, self.database)
