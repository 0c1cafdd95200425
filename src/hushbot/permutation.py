"""Sides dealt anew: how far apart scores lie when members are drawn again, by cluster, from all that took part.

Guarantees: as many clusters are members in each deal as in truth, and a cluster stays whole; ties count half. A p-value
counts the true split among the deals, so that it is never zero and never below its nominal size if the split was random
by cluster, and it does not depend on the order of the clusters' scores.

Voids it: a split that was not drawn by cluster, or that was balanced for what the scores see (p is then too large).

Source: Phipson and Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010), on p-values from
permutations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike

from hushbot.intervals import Clusters, FloatArray, finite_array, group, n_groups

BoolArray: TypeAlias = npt.NDArray[np.bool_]
_EQUAL = 1e-12  # what is equal but for rounding is equal: a tie that is missed would make p too small


def deal_sides(is_member: BoolArray, n_deals: int, rng: np.random.Generator) -> BoolArray:
    """Return who is a member, a row per cluster: in truth in the first column, dealt anew in the others."""
    return np.column_stack(list(_deals(is_member, n_deals, rng)))


def _deals(is_member: BoolArray, n_deals: int, rng: np.random.Generator) -> Iterator[BoolArray]:
    """Yield who is a member in truth, and then in each deal."""
    yield is_member
    for _ in range(n_deals):
        yield rng.permutation(is_member)


def areas(scores: FloatArray, is_member: BoolArray) -> FloatArray:
    """Return the AUC of each column of scores for the members in that column."""
    from scipy.stats import rankdata

    n_members = is_member.sum(axis=0)
    above = np.where(is_member, rankdata(scores, axis=0), 0.0).sum(axis=0) - n_members * (n_members + 1) / 2
    result: FloatArray = above / (n_members * (len(scores) - n_members))
    return result


def one_sided_p(value: float, null: ArrayLike) -> float:
    """Return how often draws of the null are as high as a value."""
    draws = np.asarray(null, dtype=np.float64)
    return (1 + int(np.count_nonzero(draws >= value - _EQUAL))) / (1 + len(draws))


def two_sided_p(value: float, null: ArrayLike) -> float:
    """Return how often a value lies as far out, on its side, as it does among draws of the null, doubled."""
    draws = np.asarray(null, dtype=np.float64)
    n_beyond = min(np.count_nonzero(draws >= value - _EQUAL), np.count_nonzero(draws <= value + _EQUAL))
    return min(1.0, 2 * (1 + int(n_beyond)) / (1 + len(draws)))


def auc_p(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    *,
    clusters: tuple[Clusters | None, Clusters | None] | None = None,
    n_deals: int = 2000,
    seed: int = 0,
) -> float | None:
    """Return the two-sided p-value of an AUC: does it lie as far from what deals of the clusters give?

    Args:
        member_scores: One score per member.
        nonmember_scores: One score per non-member.
        clusters: The cluster of each member and of each non-member; None makes each its own.
        n_deals: How often the sides are dealt anew.
        seed: Same seed, same p-value.

    Returns:
        The p-value; None where a side is empty.
    """
    from scipy.stats import rankdata

    members, others = finite_array("member scores", member_scores), finite_array("non-member scores", nonmember_scores)
    if not (len(members) and len(others)):
        return None
    names = clusters or (None, None)
    first, second = group(names[0], len(members)), group(names[1], len(others))
    numbers = np.concatenate([first, second + n_groups(first)])
    ranks = rankdata(np.concatenate([members, others]))
    n_first, n_all = len(members), len(ranks)
    if (
        ranks[:n_first].sum() / n_first < (n_all + 1) / 2
    ):  # turned the one way, so that the scores' sign decides nothing
        ranks = n_all + 1 - ranks
    # What a cluster brings along; sorted, so that the names and the order of clusters decide nothing.
    brought = np.column_stack([np.bincount(numbers), np.bincount(numbers, weights=ranks)])
    is_member = np.arange(len(brought)) < n_groups(first)
    order = np.lexsort((brought[:, 1], brought[:, 0]))
    # Deal by deal: all of them at once would be thousands of numbers for each cluster.
    totals = brought[order].T
    deals = _deals(is_member[order], n_deals, np.random.default_rng(seed))
    n_members, rank_sums = np.array([totals @ dealt for dealt in deals]).T
    found = (rank_sums - n_members * (n_members + 1) / 2) / (n_members * (n_all - n_members))
    return two_sided_p(float(found[0]), found[1:])
