"""Dialogues that belong together: same goal or same final state, directly or through others.

Guarantees: every dialogue is in exactly one group; two dialogues with the same non-empty goal or the same
non-empty final state are in one group unless the group would be larger than the limit. Then it is broken up,
first into equal final states, then into dialogues, and a note says so.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence

from hushbot.errors import DataError
from hushbot.types import Dialogue

Group = tuple[Dialogue, ...]
Key = Callable[[Dialogue], Hashable | None]


def group_related(dialogues: Sequence[Dialogue], limit: int) -> tuple[list[Group], list[str]]:
    """Return the groups, and notes on those that had to be broken up.

    Args:
        dialogues: In the order that groups keep.
        limit: The largest group that may stay together.
    """
    notes = []
    groups: list[Group] = []
    for group in _connected(dialogues, (_goal, _final_state)):
        if len(group) <= limit:
            groups.append(group)
            continue
        parts = _connected(group, (_final_state,))
        n_kept = sum(1 < len(part) <= limit for part in parts)
        groups += [part for part in parts if len(part) <= limit]
        groups += [(dialogue,) for part in parts if len(part) > limit for dialogue in part]
        notes.append(
            f"{len(group)} dialogues (such as {group[0].id}) hang together by goal or final state, more than "
            f"the {limit} that may stay on one side: broken up, {n_kept} sets of equal states kept together"
        )
    return groups, notes


def canonical_json(content: object, name: str) -> str:
    """Return the one way to write a dialogue's content, or a part of it, as JSON.

    Raises:
        DataError: It holds what JSON cannot.
    """
    try:
        return json.dumps(content, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"dialogue {name}: its content is not JSON: {error}; correct its goal") from error


def _connected(dialogues: Sequence[Dialogue], keys: Sequence[Key]) -> list[Group]:
    """Return the connected components of dialogues that share a key, each in the given order."""
    parents = list(range(len(dialogues)))

    def root(i: int) -> int:
        while parents[i] != i:
            parents[i] = parents[parents[i]]
            i = parents[i]
        return i

    for key in keys:
        first: dict[Hashable, int] = {}
        for i, dialogue in enumerate(dialogues):
            value = key(dialogue)
            if value is not None:
                parents[root(i)] = root(first.setdefault(value, i))
    components: dict[int, list[Dialogue]] = defaultdict(list)
    for i, dialogue in enumerate(dialogues):
        components[root(i)].append(dialogue)
    return [tuple(component) for component in components.values()]


def _goal(dialogue: Dialogue) -> Hashable | None:
    return canonical_json(dialogue.goal, dialogue.id) if _says_something(dialogue.goal) else None


def _final_state(dialogue: Dialogue) -> Hashable | None:
    return dialogue.final_state or None


def _says_something(goal: object) -> bool:
    """Say whether any leaf of a goal is filled; unified data give empty goals as nested empty texts."""
    if isinstance(goal, Mapping):
        return any(map(_says_something, goal.values()))
    if isinstance(goal, (list, tuple)):
        return any(map(_says_something, goal))
    return bool(goal)
