"""Turn-level modelling: one training example per turn, the way most task bots are trained.

Guarantees: a turn whose state and response are known gives one example, its history followed by state,
database line, actions and response; the loss is taken on state, actions and response only. A turn whose state
the corpus does not know gives none (an unknown state is not an empty one); a turn without a response ends
after its state.

This is the baseline that hardened recipes are compared with: a dialogue of T turns repeats its first state
inside up to T accumulated ones, which is what makes it easy to memorise.

Source: the layout of end-to-end task bots in the SimpleTOD and SOLOIST line, as the extraction paper trains
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hushbot.prompts import answer_segments, history_lines, state_line
from hushbot.protocols import Recipe
from hushbot.types import Dialogue, DialogueState, Example, Segment


@dataclass(frozen=True, kw_only=True)
class TurnLevel(Recipe):
    """Make one example of each turn."""

    makes_examples = True

    def examples(self, dialogue: Dialogue) -> Sequence[Example]:
        """Return one example per turn with a known state, in turn order."""
        return tuple(
            _example(dialogue, index, turn.state) for index, turn in enumerate(dialogue.turns) if turn.state is not None
        )


def _example(dialogue: Dialogue, turn_index: int, state: DialogueState) -> Example:
    history = (Segment(line, False) for line in history_lines(dialogue, turn_index))
    return Example(dialogue.id, (*history, *answer_segments(dialogue.turns[turn_index], state_line(state))))
