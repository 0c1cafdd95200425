"""Whose states an extraction is counted against: the members, and both sides in equal shares.

Guarantees: the equal sides have as many dialogues each, the larger side cut at random, whatever the order in which
dialogues are given; every dialogue of theirs is in one group; a group holds what the split kept on one side.

What voids it: dialogues that hang together through dialogues on other sides alone are not seen to.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

import numpy as np

from hushbot.attacks.state_metrics import StateIndex
from hushbot.corpora.groups import group_related
from hushbot.types import AuditSplit, Dialogue


class Sides(NamedTuple):
    """The ground truth: all of the members, and both sides in equal shares."""

    members: StateIndex
    equal_members: StateIndex
    equal_nonmembers: StateIndex
    n_equal: int
    """Number of dialogues on each of the equal sides."""
    groups: list[frozenset[str]]
    """Ids of the equal sides' dialogues, together where the split kept them on one side."""
    notes: list[str]
    member_dialogues: list[Dialogue]
    """The members that are compared."""
    nonmember_dialogues: list[Dialogue]
    """The non-members that are compared."""


def take_sides(split: AuditSplit, seed: int) -> Sides:
    """Index both sides, the larger one cut at random to the number of dialogues of the smaller."""
    n_members, n_nonmembers = len(split.members), len(split.nonmembers)
    n_equal = min(n_members, n_nonmembers)
    notes = []
    if n_members != n_nonmembers:
        notes.append(
            f"{n_members} members and {n_nonmembers} non-members: compared on {n_equal} of each, drawn "
            "at random from the larger side"
        )
    members, nonmembers = (_draw(side, n_equal, seed) for side in (split.members, split.nonmembers))
    return Sides(
        members=StateIndex.of(split.members),
        equal_members=StateIndex.of(members),
        equal_nonmembers=StateIndex.of(nonmembers),
        n_equal=n_equal,
        groups=_groups(split, {dialogue.id for dialogue in (*members, *nonmembers)}),
        notes=notes,
        member_dialogues=members,
        nonmember_dialogues=nonmembers,
    )


def _draw(side: Sequence[Dialogue], n: int, seed: int) -> list[Dialogue]:
    ordered = sorted(side, key=lambda dialogue: dialogue.id)
    if n == len(ordered):
        return ordered
    chosen = np.random.default_rng(seed).choice(len(ordered), size=n, replace=False)
    return [ordered[i] for i in sorted(chosen)]


def _groups(split: AuditSplit, chosen: Set[str]) -> list[frozenset[str]]:
    """Return the chosen dialogues' ids, grouped as the split must have kept them together.

    Dialogues are related through any of the two sides' dialogues, not only the chosen. A group that does lie on both
    sides was broken up by the split (too large, or `deduplicate` off), and so it is here, as `group_related` does.
    """
    members = {dialogue.id for dialogue in split.members}
    everyone = sorted((*split.members, *split.nonmembers), key=lambda dialogue: dialogue.id)
    whole, _ = group_related(everyone, len(everyone))
    groups = []
    for group in whole:
        parts = group_related(group, len(group) - 1)[0] if _is_torn(group, members) else [group]
        for part in parts:
            ids = [dialogue.id for dialogue in part if dialogue.id in chosen]
            groups += [frozenset([name]) for name in ids] if _is_torn(part, members) else [frozenset(ids)]
    return [group for group in groups if group]


def _is_torn(group: Sequence[Dialogue], members: Set[str]) -> bool:
    return len({dialogue.id in members for dialogue in group}) > 1
