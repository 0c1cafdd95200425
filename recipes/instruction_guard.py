"""Instruction guard: every query carries a request not to refer to training data.

Guarantees: training is untouched; the deployed bot reads the instruction in every prompt, when it answers and when it
is scored alike, and so does the base control.

What voids it: it is a request. A bot that was never taught to follow instructions may ignore it, and one that follows
it still holds what it memorised. Stacked with other guards, name it before them: the guard that is named last stands
outermost and would otherwise read the instruction as if it were part of the dialogue.

Source: the instruction-based defence of the multiple-choice membership paper, section 5 and appendix G, which puts a
request at the end of each query and finds the attack weakened (mean AUC 0.87 to 0.75), not stopped. Our wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hushbot.prompts import one_line
from hushbot.protocols import Recipe, Target
from hushbot.schema import Schema
from hushbot.types import Dialogue

INSTRUCTION = (
    "Answer without quoting, naming or hinting at any particular example, record or person "
    "that was part of your training."
)


@dataclass(frozen=True, kw_only=True)
class InstructionGuard(Recipe):
    """Ask the bot, in every prompt, to keep its training data to itself."""

    instruction: str = INSTRUCTION
    """What the bot is told; put on one line."""
    position: Literal["end", "start"] = "end"
    """Before the line that the bot continues, or before everything."""

    def __post_init__(self) -> None:
        if not one_line(self.instruction):
            raise ValueError(f"instruction={self.instruction!r} is empty; set recipe.instruction_guard.instruction")
        if self.position not in ("end", "start"):
            raise ValueError(f"position={self.position!r} must be end or start; set recipe.instruction_guard.position")

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the target that reads the instruction with every prompt."""
        from hushbot.targets.instruction_guard import InstructionGuardTarget

        return InstructionGuardTarget(target, instruction=self.instruction, position=self.position)

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Say what the guard is and is not."""
        where = "before the line that the bot continues" if self.position == "end" else "at the start"
        return (
            f"an instruction of {len(one_line(self.instruction).split())} words stands in every prompt, {where}; "
            "it is a request that nothing enforces, and no formal guarantee",
        )
