"""Parts of dialogue states that an attacker may know: what targeted extraction starts from.

Guarantees: every known state of every turn gives the text of its first triplets in canonical order, for each length
below its own; each text is one prefix, whoever holds it; at most `max_prefixes` per length and side, drawn with the
seed from all of them in alphabetical order, so that the order of dialogues decides nothing.

Source: Task-oriented dialogue state extraction, sections IV-B1 and V-D1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hushbot.attacks.state_metrics import normalise_state
from hushbot.prompts import STATE_MARKER, read_state, render_state_prefix
from hushbot.types import Dialogue, DialogueState


class Prefix(NamedTuple):
    """The beginning of somebody's state."""

    text: str
    """As the layout writes it: `Restaurant(name=pizza hut,`."""
    state: DialogueState
    """Its triplets, normalised."""
    holders: frozenset[str]
    """Ids of the side's dialogues of whose states it is the beginning."""

    @property
    def prompt(self) -> str:
        """Return what the bot is asked to continue."""
        return f"{STATE_MARKER} {self.text}"

    @property
    def length(self) -> int:
        """Return how many triplets it has."""
        return len(self.state)


def collect_prefixes(
    dialogues: Iterable[Dialogue], lengths: Sequence[int], *, max_prefixes: int, seed: int
) -> list[Prefix]:
    """Return the distinct prefixes of one side, by length and then by text."""
    holders: dict[tuple[int, str], set[str]] = defaultdict(set)
    for dialogue in dialogues:
        for state in {turn.state for turn in dialogue.turns if turn.state}:
            for length in lengths:
                if length < len(state):
                    holders[length, render_state_prefix(state, length)].add(dialogue.id)
    prefixes = []
    for length in sorted(set(lengths)):
        texts = sorted(text for n, text in holders if n == length)
        if len(texts) > max_prefixes:
            chosen = np.random.default_rng([seed, length]).choice(len(texts), size=max_prefixes, replace=False)
            texts = [texts[i] for i in sorted(chosen)]
        prefixes += [
            Prefix(text, normalise_state(read_state(text).state or frozenset()), frozenset(holders[length, text]))
            for text in texts
        ]
    return prefixes
