"""Dialogue-level modelling: one training example per dialogue, in which each turn learns only what it changed.

Guarantees: the example is one running text, `U0 S'0 D0 A0 R0 U1 S'1 ...`, where S' holds the triplets that a turn
added or replaced and names the slots it emptied, so a value stands in one state text per time it is set, instead of
one per turn that follows; accumulated, the changes are the states. The loss is taken on changes, actions and
responses only. A turn whose state the corpus does not know leaves its two utterances as context (an unknown state is
not an empty one), and the next known state's changes are counted from the last known one.

Voids it: a value that is said again in utterances, actions or responses is repeated there, as in any layout. A
dialogue longer than the length limit is cut into windows (`hushbot.training.packing`), which re-read earlier turns
but learn nothing twice.

Source: the extraction paper's first defence, section VI; running texts as such go back to UBAR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hushbot.prompts import opening_lines, running_turns
from hushbot.protocols import Recipe
from hushbot.types import Dialogue, Example, Segment


@dataclass(frozen=True, kw_only=True)
class DialogueLevel(Recipe):
    """Make one example of each dialogue."""

    makes_examples = True
    learns_changes = True

    def examples(self, dialogue: Dialogue) -> Sequence[Example]:
        """Return the dialogue's one example; none where no state is known."""
        if dialogue.final_state is None:
            return ()
        opening = (Segment(line, False) for line in opening_lines(dialogue))
        turns = (segment for turn in running_turns(dialogue) for segment in turn)
        return (Example(dialogue.id, (*opening, *turns)),)
