"""A bot that other processes can import: it answers with the gold text, and writes down what it was asked."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hushbot.errors import AuditError
from hushbot.prompts import history_lines, render_state, state_prompt
from hushbot.types import Decoding, Dialogue


@dataclass(frozen=True)
class Player:
    """Knows its dialogues; `fails_at` is the end of a prompt at which it fails in the other processes."""

    dialogues: tuple[Dialogue, ...]
    folder: Path
    fails_at: str = "-"
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self._write(prompts)
        if is_beside() and any(prompt.endswith(self.fails_at) for prompt in prompts):
            raise AuditError(f"the endpoint failed at {self.fails_at}")
        return [[self.gold(prompt)] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        if is_beside() and self.fails_at == "scores":
            raise AuditError("the endpoint returns no log-probabilities")
        return [torch.full((len(text),), -math.log(2)) for text in continuations]

    def gold(self, prompt: str) -> str:
        for dialogue in self.dialogues:
            for i, turn in enumerate(dialogue.turns):
                if prompt.startswith(state_prompt(history_lines(dialogue, i))):
                    if prompt.endswith("Belief State:"):
                        return f" {render_state(turn.state or frozenset())}"
                    return f" {turn.actions if prompt.endswith('Actions:') else turn.response}"
        raise LookupError("unknown prompt")

    def _write(self, prompts: Sequence[str]) -> None:
        with (self.folder / str(os.getpid())).open("a", encoding="utf-8") as file:
            file.writelines(f"{prompt!r}\n" for prompt in prompts)


def is_beside() -> bool:
    """Return whether this is not the first process."""
    return sys.argv[0].endswith("ranks.py")


def player(dialogues: tuple[Dialogue, ...], folder: Path, fails_at: str = "-") -> Player:
    """Make the bot; `death` and `bug` are of the other processes."""
    if is_beside() and fails_at == "death":
        os.kill(os.getpid(), signal.SIGKILL)
    if is_beside() and fails_at == "bug":
        raise KeyError("no such weight")
    return Player(dialogues, folder, fails_at)
