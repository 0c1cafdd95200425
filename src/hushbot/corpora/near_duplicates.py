"""Non-members that are nearly members: what a membership audit may not count as a clean negative.

Guarantees: exact, not sampled. A non-member is reported if its final state equals a member's, or differs from
it by one triplet (added, dropped or changed) at five triplets or more, or if its user text shares at least a
given part of its word triples with a member's. One member is named per non-member and reason, so that the
list cannot outgrow the data; run time grows with the number of dialogues, not of pairs.

Why five: smaller states coincide by chance all the time (in MultiWOZ 2.1, half of the test states of up to
three triplets are contained in some state of the other half; from six triplets on, under 1 %).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from hushbot.types import Dialogue, DialogueState

MIN_TRIPLETS = 5
_SHINGLE = 3

Shingles = frozenset[tuple[str, ...]]


class NearDuplicate(NamedTuple):
    """A non-member and the member it resembles."""

    nonmember: str
    member: str
    reason: str
    """`same final state`, `final state differs by one triplet` or `user text`."""
    similarity: float
    """Jaccard similarity of the final states or of the user texts' word triples; 1 is equal."""


def find_near_duplicates(
    members: Sequence[Dialogue], nonmembers: Sequence[Dialogue], threshold: float = 0.8
) -> tuple[NearDuplicate, ...]:
    """Return the non-members that resemble a member, sorted by id.

    Args:
        members: Dialogues that were trained on.
        nonmembers: Dialogues that were not.
        threshold: Smallest Jaccard similarity of user texts that counts, in (0, 1].
    """
    found = [*_similar_states(members, nonmembers), *_similar_texts(members, nonmembers, threshold)]
    return tuple(sorted(found))


def shingles(dialogue: Dialogue) -> Shingles:
    """Return the word triples of everything the user says; a shorter text is one shingle, no text is none."""
    words = " ".join(turn.user for turn in dialogue.turns).casefold().split()
    if len(words) < _SHINGLE:
        return frozenset([tuple(words)] if words else [])
    return frozenset(tuple(words[i : i + _SHINGLE]) for i in range(len(words) - _SHINGLE + 1))


def _similar_states(members: Sequence[Dialogue], nonmembers: Sequence[Dialogue]) -> Iterator[NearDuplicate]:
    exact: dict[DialogueState, str] = {}
    lacking_one: dict[DialogueState, str] = {}
    for member in sorted(members, key=lambda dialogue: dialogue.id):
        state = member.final_state
        if state:
            exact.setdefault(state, member.id)
            for smaller in _without_one(state):
                lacking_one.setdefault(smaller, member.id)
    for nonmember in nonmembers:
        state = nonmember.final_state
        if not state:
            continue
        n = len(state)
        if state in exact:
            yield NearDuplicate(nonmember.id, exact[state], "same final state", 1.0)
            continue
        candidates = [
            (n / (n + 1), lacking_one.get(state)),
            *(((n - 1) / n, exact.get(smaller)) for smaller in _without_one(state)),
            *(((n - 1) / (n + 1), lacking_one.get(smaller)) for smaller in _without_one(state)),
        ]
        best = max(((s, member) for s, member in candidates if member is not None), default=None)
        if best:
            yield NearDuplicate(nonmember.id, best[1], "final state differs by one triplet", best[0])


def _without_one(state: DialogueState) -> Iterator[DialogueState]:
    if len(state) >= MIN_TRIPLETS:
        for triplet in sorted(state):
            yield state - {triplet}


def _similar_texts(
    members: Sequence[Dialogue], nonmembers: Sequence[Dialogue], threshold: float
) -> Iterator[NearDuplicate]:
    """Join by prefix filtering: sets of similarity t share a shingle among the rarest few of each."""
    texts: dict[Shingles, str] = {}
    for member in sorted(members, key=lambda dialogue: dialogue.id):
        texts.setdefault(shingles(member), member.id)
    queries = {nonmember.id: shingles(nonmember) for nonmember in nonmembers}
    counts = Counter(shingle for text in [*texts, *set(queries.values())] for shingle in text)
    index: dict[tuple[str, ...], list[Shingles]] = defaultdict(list)
    for text in texts:
        for shingle in _rarest(text, counts, threshold):
            index[shingle].append(text)
    for name, query in queries.items():
        candidates = {text for shingle in _rarest(query, counts, threshold) for text in index[shingle]}
        best = max(((_jaccard(query, text), texts[text]) for text in candidates), default=(0.0, ""))
        if best[0] >= threshold:
            yield NearDuplicate(name, best[1], "user text", best[0])


def _rarest(text: Shingles, counts: Counter[tuple[str, ...]], threshold: float) -> Iterable[tuple[str, ...]]:
    """Return the shingles of which a similar text must share one."""
    n_kept = len(text) - math.ceil(threshold * len(text) - 1e-9) + 1
    return sorted(text, key=lambda shingle: (counts[shingle], shingle))[:n_kept]


def _jaccard(left: Shingles, right: Shingles) -> float:
    return len(left & right) / len(left | right)
