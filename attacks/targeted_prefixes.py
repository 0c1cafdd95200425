"""Parts of dialogue states that an attacker may know: what targeted extraction starts from.

Guarantees: every known state of every turn gives the text of its first triplets in canonical order, for each length
below its own; texts that differ in upper and lower case alone are one prefix, spelled as the first of them in the
alphabet; a prefix knows all its holders, those on the other side as well. Each side has at most `max_prefixes` of a
length. Both are taken from the front of one random order of all prefixes, so which ones are asked depends on the seed
and never on the order of dialogues, and a prefix that both sides hold has the same chance on either.

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
    others: frozenset[str] = frozenset()
    """The same of the other side; with any, the prefix tells nothing of membership."""

    @property
    def prompt(self) -> str:
        """Return what the bot is asked to continue."""
        return f"{STATE_MARKER} {self.text}"

    @property
    def length(self) -> int:
        """Return how many triplets it has."""
        return len(self.state)

    @property
    def dialogue_id(self) -> str:
        """Return the first dialogue of its side that holds it: the cluster it is resampled in."""
        return min(self.holders)


def collect_prefixes(
    members: Iterable[Dialogue],
    nonmembers: Iterable[Dialogue],
    lengths: Iterable[int],
    *,
    max_prefixes: int,
    seed: int,
) -> tuple[list[Prefix], list[Prefix]]:
    """Return the distinct prefixes of both sides, each by length and then by text."""
    wanted = sorted(set(lengths))
    sides = (_holders(members, wanted), _holders(nonmembers, wanted))
    found: tuple[list[Prefix], list[Prefix]] = ([], [])
    for length in wanted:
        keys = sorted({key for side in sides for key in side if key[0] == length})
        order = [keys[i] for i in np.random.default_rng([seed, length]).permutation(len(keys))]
        for kept, mine, theirs in ((found[0], *sides), (found[1], *reversed(sides))):
            for key in sorted([key for key in order if key in mine][:max_prefixes]):
                spellings = {**mine[key], **theirs.get(key, {})}
                text = min(spellings)
                state = normalise_state(read_state(text).state or frozenset())
                kept.append(Prefix(text, state, _ids(mine[key]), _ids(theirs.get(key, {}))))
    return found


def _holders(dialogues: Iterable[Dialogue], lengths: Sequence[int]) -> dict[tuple[int, str], dict[str, set[str]]]:
    """Return, by length and folded text, who holds each spelling of a prefix."""
    holders: dict[tuple[int, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for dialogue in dialogues:
        for state in {turn.state for turn in dialogue.turns if turn.state}:
            for length in lengths:
                if length < len(state):
                    text = render_state_prefix(state, length)
                    holders[length, text.casefold()][text].add(dialogue.id)
    return holders


def _ids(spellings: dict[str, set[str]]) -> frozenset[str]:
    return frozenset[str]().union(*spellings.values())
