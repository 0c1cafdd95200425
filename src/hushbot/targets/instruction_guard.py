"""A bot that is told, in every prompt, not to give its training data away.

Guarantees: sampling and scoring read the same instructed prompt; the instruction stands on a line of its own and
takes nothing away, so the line that the bot continues (`Belief State:`, a state half written) stays last and whole.
A text in our layout gets a `System:` line; any other text gets the bare instruction as its first or last line, or
right before a last line that ends in a colon and so asks for its answer.

Voids it: a bot that does not follow instructions; nothing here enforces anything. Prompts grow by the instruction's
tokens (`prompt_overhead`), so one that filled the model's context before no longer fits and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from hushbot.prompts import (
    ACTIONS_MARKER,
    DATABASE_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    SYSTEM_MARKER,
    USER_MARKER,
    one_line,
)
from hushbot.protocols import Target
from hushbot.targets.guarded import GuardedTarget
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUT = re.compile(
    "^(?:"
    + "|".join((USER_MARKER, SYSTEM_MARKER, STATE_MARKER, DATABASE_MARKER, ACTIONS_MARKER, RESPONSE_MARKER))
    + ")",
    flags=re.MULTILINE,
)


def instruct(prompt: str, instruction: str, position: Literal["end", "start"]) -> str:
    """Return a prompt with the instruction as its first line, or as its last line but the one that is continued."""
    is_layout = not prompt or _LAYOUT.search(prompt) is not None
    line = f"{SYSTEM_MARKER} {instruction}\n" if is_layout else f"{instruction}\n"
    if position == "start":
        return line + prompt
    before, line_break, last = prompt.rpartition("\n")
    if last and not is_layout and not last.rstrip().endswith(":"):
        return f"{prompt}\n{line}"
    return before + line_break + line + last


class InstructionGuardTarget(GuardedTarget):
    """A target whose every prompt holds an instruction.

    Args:
        inner: The bot.
        instruction: What it is told, on one line.
        position: Where in the prompt.
    """

    def __init__(self, inner: Target, *, instruction: str, position: Literal["end", "start"]) -> None:
        super().__init__(inner)
        self.instruction = one_line(instruction)
        self.position = position
        self.prompt_overhead = f"{SYSTEM_MARKER} {self.instruction}\n"

    def guarded(self, inner: Target) -> InstructionGuardTarget:
        """Return another target with the same instruction."""
        return InstructionGuardTarget(inner, instruction=self.instruction, position=self.position)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return n continuations of each instructed prompt."""
        return super().sample(
            self._instructed(prompts), n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed
        )

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the log-probability of each continuation token after the instructed prompt."""
        return super().logprobs(self._instructed(prompts), continuations)

    def _instructed(self, prompts: Sequence[str]) -> list[str]:
        return [instruct(prompt, self.instruction, self.position) for prompt in prompts]
