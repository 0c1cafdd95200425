"""How many extracted dialogue states and values are really somebody's: the counting half of an extraction.

Pure functions from candidates and ground truth to Estimates; they know no model and no ranking. The metrics
are those of the paper's section V-A3:

* a candidate is correct if it equals, or is a subset of, one state of one turn of one dialogue, triplet by
  triplet; what one turn changed is such a subset, so a bot that learns changes is judged by the same rule;
* `states` counts the correct distinct candidates and `state_precision` divides them by `extracted_states`,
  all the distinct candidates;
* `triplets` is the mean number of triplets of a correct candidate;
* `values` counts the correct distinct values. The paper's prose says that #Values counts the extracted ones,
  but its Table III only adds up if it counts the correct ones: Group Beam Search has 16 values at 64.00% (16
  of 25; 64% of 16 is no whole number), and Vanilla Sampling 231 at 15.00% (231 of 1540). The extracted ones
  are `extracted_values`.

**Normalisation.** Domain, slot and value are compared after stripping outer blanks and case folding, nothing
else: no fuzzy matching, no alternatives of an annotation (a bot is trained on the canonical value alone). Two
candidates that are equal after that are one candidate.

**What voids it.** Short states are shared by many people: on MultiWOZ 92% of the one-triplet states of people
who were never trained on are "correct", 5% of those of five triplets. No number here means anything without
the same number measured against non-members (`paired_differences`), and intervals that resample candidates
take the dialogues as given, as their `method` says; `randomisation_p` does not, and is what a verdict should
rest on.

Source: Dialogue-state extraction paper, sections V-A3 and V-B (Tables II and III).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushbot.intervals import FloatArray
from hushbot.stats import Bootstrap, clopper_pearson, cluster_bootstrap, paired_bootstrap, unmeasured
from hushbot.types import Dialogue, DialogueState, Estimate, Metric, SlotValue

N_DRAWS = 1000
"""Resamples behind each interval; an audit has dozens of them."""


def normalise_state(state: DialogueState) -> DialogueState:
    """Strip and case-fold every domain, slot and value; drop annotation alternatives."""
    return frozenset(SlotValue(fold(t.domain), fold(t.slot), fold(t.value)) for t in state)


def fold(text: str) -> str:
    """Strip and case-fold a domain, slot or value: all that is done before any two are compared."""
    return text.strip().casefold()


def distinct_values(states: Iterable[DialogueState]) -> set[str]:
    """Return the values of normalised states, each once whatever slot it fills."""
    return {triplet.value for state in states for triplet in state}


@dataclass(frozen=True, slots=True)
class StateIndex:
    """The ground truth of one side: which dialogues hold a state, in any turn, exactly or as a subset."""

    owners: tuple[frozenset[str], ...]
    """Ids of the dialogues that hold each distinct state."""
    postings: dict[SlotValue, frozenset[int]]
    """Positions in `owners` of the states that hold a triplet."""
    values: frozenset[str]
    """Every value that occurs."""

    @classmethod
    def of(cls, dialogues: Iterable[Dialogue]) -> StateIndex:
        """Index the known, non-empty states of all turns."""
        owners: dict[DialogueState, set[str]] = defaultdict(set)
        for dialogue in dialogues:
            for turn in dialogue.turns:
                if turn.state:
                    owners[normalise_state(turn.state)].add(dialogue.id)
        postings: dict[SlotValue, set[int]] = defaultdict(set)
        for position, state in enumerate(owners):
            for triplet in state:
                postings[triplet].add(position)
        return cls(
            tuple(frozenset(ids) for ids in owners.values()),
            {triplet: frozenset(positions) for triplet, positions in postings.items()},
            frozenset(distinct_values(owners)),
        )

    def holders(self, state: DialogueState) -> frozenset[str]:
        """Return the ids of the dialogues with a state that contains this normalised, non-empty one."""
        lists = sorted((self.postings.get(triplet, frozenset()) for triplet in state), key=len)
        # Starting from the rarest triplet keeps every intermediate set as small as it can be.
        positions = frozenset.intersection(*lists) if lists else frozenset()
        return frozenset[str]().union(*(self.owners[position] for position in positions))

    def holds(self, state: DialogueState) -> bool:
        """Return whether a normalised state is correct: part of some state of some dialogue."""
        return bool(self.holders(state))


def extraction_metrics(
    states: Sequence[DialogueState], truth: StateIndex, *, suffix: str = "", level: float = 0.95
) -> dict[str, Metric]:
    """Measure distinct, normalised candidates against one side's ground truth.

    Args:
        states: The candidates, each once.
        truth: The side to compare with.
        suffix: Appended to each metric's name, such as `@100`.
        level: Coverage of the intervals.

    Returns:
        `states`, `extracted_states`, `state_precision`, `triplets`, `values`, `extracted_values`,
        `value_precision`, and `state_precision/n=K` for each number of triplets that occurs. Without
        candidates the extracted counts are 0 and everything else is not measured.
    """
    hits = [truth.holds(state) for state in states]
    values = distinct_values(states)
    n_values = len(values & truth.values)
    metrics: dict[str, Metric] = {
        f"states{suffix}": sum(hits) if states else None,
        f"extracted_states{suffix}": len(states),
        f"state_precision{suffix}": _rate(sum(hits), len(states), level),
        f"triplets{suffix}": _mean_triplets(
            [len(state) for state, hit in zip(states, hits, strict=True) if hit], level
        ),
        f"values{suffix}": n_values if values else None,
        f"extracted_values{suffix}": len(values),
        f"value_precision{suffix}": _rate(n_values, len(values), level),
    }
    sizes = Counter(len(state) for state in states)
    hits_by_size = Counter(len(state) for state, hit in zip(states, hits, strict=True) if hit)
    for size in sorted(sizes):
        metrics[f"state_precision{suffix}/n={size}"] = _rate(hits_by_size[size], sizes[size], level)
    return metrics


def precision_curve(states: Sequence[DialogueState], truth: StateIndex, ks: Sequence[int]) -> dict[str, Metric]:
    """Return `state_precision@k` and `value_precision@k` of ranked candidates, for each k that there are states for."""
    hits = np.cumsum([truth.holds(state) for state in states])
    metrics: dict[str, Metric] = {}
    for k in sorted(set(ks)):
        if k > len(states):
            break
        values = distinct_values(states[:k])
        metrics[f"state_precision@{k}"] = _rate(int(hits[k - 1]), k, 0.95)
        metrics[f"value_precision@{k}"] = _rate(len(values & truth.values), len(values), 0.95)
    return metrics


def paired_differences(
    sizes: Sequence[int],
    member_hits: Sequence[bool],
    nonmember_hits: Sequence[bool],
    *,
    suffix: str = "",
    seed: int = 0,
) -> dict[str, Estimate]:
    """Measure how much more often the same candidates are members' states than non-members'.

    Args:
        sizes: Number of triplets of each candidate.
        member_hits: Whether each candidate is correct against the members.
        nonmember_hits: The same against as many non-members.
        suffix: Appended to each metric's name, such as `@100`.
        seed: Of the bootstrap.

    Returns:
        `state_precision` and `state_precision/n=K`, each a mean difference paired over candidates.
    """
    size, members = np.asarray(sizes, dtype=int), np.asarray(member_hits, dtype=float)
    nonmembers = np.asarray(nonmember_hits, dtype=float)
    name = f"state_precision{suffix}"
    differences = {name: _difference(members, nonmembers, seed)}
    for n in sorted(set(sizes)):
        chosen = size == n
        differences[f"{name}/n={n}"] = _difference(members[chosen], nonmembers[chosen], seed)
    return differences


def randomisation_p(
    member_holders: Sequence[frozenset[str]],
    nonmember_holders: Sequence[frozenset[str]],
    groups: Sequence[Collection[str]],
    *,
    n_members: int,
    seed: int,
    n_draws: int = 2000,
) -> float:
    """Return how often a random split of the dialogues would favour "members" as much as the real one does.

    The dialogues of both sides are dealt out again, those of a group to one side as the real split did, and each
    candidate is looked up on the new sides. A bot that knows nothing of the split is as likely to have met any
    of these deals, however many candidates are subsets of one dialogue, or of dialogues that hang together.

    Args:
        member_holders: Per candidate, the members that hold it.
        nonmember_holders: Per candidate, the non-members that hold it.
        groups: Ids of all dialogues of both sides, those together that the split kept together.
        n_members: Number of dialogues on the members' side; a deal keeps it as nearly as its groups allow.
        seed: Of the deals.
        n_draws: Number of deals.

    Returns:
        The one-sided p-value of (candidates that members hold) - (candidates that non-members hold).

    Raises:
        ValueError: A holder is in no group.
    """
    holders = [members | nonmembers for members, nonmembers in zip(member_holders, nonmember_holders, strict=True)]
    column = {dialogue_id: i for i, group in enumerate(groups) for dialogue_id in group}
    if strangers := frozenset[str]().union(*holders) - column.keys():
        raise ValueError(f"{len(strangers)} holders, such as {min(strangers)}, are in no group; group both sides")
    holds = np.zeros((len(holders), len(groups)), dtype=np.float32)
    for row, ids in enumerate(holders):
        holds[row, [column[dialogue_id] for dialogue_id in ids]] = 1
    observed = sum(map(bool, member_holders)) - sum(map(bool, nonmember_holders))
    deals = deal([len(group) for group in groups], n_members, np.random.default_rng(seed), n_draws)
    # Groups that hold no candidate took part in the deals but need no column.
    is_needed = holds.any(axis=0)
    holds, deals = holds[:, is_needed], deals[is_needed]
    n_as_good = 0
    for is_member in deals.T.astype(np.float32):
        dealt = np.count_nonzero(holds @ is_member) - np.count_nonzero(holds @ (1 - is_member))
        n_as_good += bool(dealt >= observed)
    return (1 + n_as_good) / (1 + n_draws)


def deal(sizes: Sequence[int], n_members: int, rng: np.random.Generator, n_draws: int) -> NDArray[np.bool_]:
    """Return which groups (rows) go to the members in each of many random deals (columns).

    As in the split itself, large groups come first and each goes to a side with room for it, drawn in proportion
    to the room; for groups of one that is a draw of `n_members` dialogues without replacement.
    """
    member_room = np.full(n_draws, n_members)
    nonmember_room = np.full(n_draws, sum(sizes) - n_members)
    deals = np.zeros((len(sizes), n_draws), dtype=np.bool_)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        fits, fits_other = member_room >= sizes[i], nonmember_room >= sizes[i]
        share = member_room / np.maximum(member_room + nonmember_room, 1)
        # A group that fits on neither side goes where it overshoots least, on a tie to either.
        forced = np.where(fits == fits_other, 0.5 + 0.5 * np.sign(member_room - nonmember_room), fits)
        deals[i] = rng.random(n_draws) < np.where(fits & fits_other, share, forced)
        member_room -= sizes[i] * deals[i]
        nonmember_room -= sizes[i] * ~deals[i]
    for size in set(sizes):
        # The last of equal groups meets what room is left; which of them is last must be chance, too.
        alike = np.flatnonzero(np.asarray(sizes) == size)
        deals[alike] = rng.permuted(deals[alike], axis=0)
    return deals


def _rate(k: int, n: int, level: float) -> Estimate:
    """Return k of n with an interval that says what it resamples: candidates, though dialogues hold many of them."""
    rate = clopper_pearson(k, n, level)
    if rate.value is None:
        return rate
    return rate.model_copy(update={"method": f"{rate.method} over candidates, dialogues taken as given"})


def _mean_triplets(sizes: Sequence[int], level: float) -> Estimate:
    if not sizes:
        return unmeasured("no extracted state is correct", level=level)
    return cluster_bootstrap(sizes, None, bootstrap=Bootstrap(level=level, n_draws=N_DRAWS))


def _difference(members: FloatArray, nonmembers: FloatArray, seed: int) -> Estimate:
    return paired_bootstrap(members, nonmembers, bootstrap=Bootstrap(n_draws=N_DRAWS, seed=seed))
