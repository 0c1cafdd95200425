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
from typing import NamedTuple, TypeAlias

import numpy as np

from hushbot.attacks.state_metrics import normalise_state
from hushbot.prompts import STATE_MARKER, read_state, render_state_prefix
from hushbot.types import Dialogue, DialogueState

_Holders: TypeAlias = dict[tuple[int, str], dict[str, set[str]]]
"""Ids of dialogues by length and folded text of a prefix, and by its spelling."""


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
    mine, theirs = _holders(members, wanted), _holders(nonmembers, wanted)
    keys: list[tuple[int, str]] = []
    for length in wanted:
        found = sorted(key for key in mine.keys() | theirs.keys() if key[0] == length)
        keys += [found[i] for i in np.random.default_rng([seed, length]).permutation(len(found))]
    return _drawn(mine, theirs, keys, max_prefixes), _drawn(theirs, mine, keys, max_prefixes)


def _drawn(mine: _Holders, theirs: _Holders, keys: Sequence[tuple[int, str]], max_prefixes: int) -> list[Prefix]:
    """Return the first prefixes of one side, by length, among the keys in the order in which they were drawn."""
    prefixes = []
    for length in sorted({length for length, _ in keys}):
        for key in sorted([key for key in keys if key[0] == length and key in mine][:max_prefixes]):
            elsewhere = theirs.get(key, {})
            text = min({**mine[key], **elsewhere})
            state = normalise_state(read_state(text).state or frozenset())
            prefixes.append(Prefix(text, state, _ids(mine[key]), _ids(elsewhere)))
    return prefixes


def _holders(dialogues: Iterable[Dialogue], lengths: Sequence[int]) -> _Holders:
    """Return, by length and folded text, who holds each spelling of a prefix."""
    holders: _Holders = defaultdict(lambda: defaultdict(set))
    for dialogue in dialogues:
        for state in {turn.state for turn in dialogue.turns if turn.state}:
            for length in lengths:
                if length < len(state):
                    text = render_state_prefix(state, length)
                    holders[length, text.casefold()][text].add(dialogue.id)
    return holders


def _ids(spellings: dict[str, set[str]]) -> frozenset[str]:
    return frozenset[str]().union(*spellings.values())
