"""Scores in, Estimates out: how well scores tell members from non-members. Knows no model.

HIGHER SCORE = MORE LIKE A MEMBER, everywhere in this module; `orient` turns a named raw score that way.

Guarantees: values depend on the scores and their ties only, never on input order; a threshold never lets
more than the nominal share of its reference scores through, whatever the ties; the interval of a
true-positive rate resamples both sides, so it carries the threshold's uncertainty; below 1 / fpr
independent non-members an operating point is refused; NaN is an `AuditError`, and what could not be
measured has value None, never 0.

Voids the guarantee: members and non-members that differ in more than membership (see an attack's blind
baseline), and a threshold or score picked after looking at the result.

Source: AUC as Mann and Whitney (1947); low false-positive rates as Carlini et al., IEEE S&P 2022. Intervals
are in `hushbot.intervals`, epsilon is in `hushbot.one_run`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv

from hushbot.intervals import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Clusters,
    FloatArray,
    IntArray,
    as_estimate,
    beta_interval,
    check_level,
    clopper_pearson,
    cluster_bootstrap,
    draw_weights,
    finite_array,
    from_draws,
    group,
    n_groups,
    paired_bootstrap,
    unmeasured,
)
from hushbot.multiplicity import benjamini_hochberg, holm
from hushbot.one_run import OneRunBound, one_run_epsilon
from hushbot.types import Estimate

__all__ = [
    "ORIENTATION",
    "Bootstrap",
    "OneRunBound",
    "OperatingPoint",
    "as_estimate",
    "auc",
    "auc_difference",
    "benjamini_hochberg",
    "clopper_pearson",
    "cluster_bootstrap",
    "detectable_rate",
    "holm",
    "mean_difference",
    "one_run_epsilon",
    "orient",
    "paired_bootstrap",
    "tpr_at_fpr",
    "unmeasured",
]

ORIENTATION: dict[str, int] = {
    "ppl": -1,
    "ppl_zlib": -1,
    "c_ppl": -1,
    "dc_ppl": -1,
    "loss": -1,
    "min_k": 1,
    "min_k_pp": 1,
    "ref_ratio": 1,
}
"""+1 where a higher raw score speaks for membership, -1 where a lower one does."""

SideClusters: TypeAlias = tuple[Clusters | None, Clusters | None]


def orient(name: str, scores: ArrayLike) -> FloatArray:
    """Return a named raw score with the sign that makes higher = more like a member."""
    if name not in ORIENTATION:
        raise ValueError(f"score {name!r} has no known orientation; known: {', '.join(ORIENTATION)}")
    return ORIENTATION[name] * np.asarray(scores, dtype=np.float64)


def auc(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    *,
    clusters: SideClusters | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Estimate:
    """Return the probability that a member outscores a non-member, ties counting half.

    Args:
        member_scores: One score per member, higher = more like a member.
        nonmember_scores: One score per non-member.
        clusters: The cluster of each member and of each non-member; None makes each its own.
        bootstrap: Members and non-members are resampled separately, by cluster.
    """
    sides = _Sides.of(member_scores, nonmember_scores, clusters)
    if sides.is_empty:
        return unmeasured("no members or no non-members", level=bootstrap.level, n=sides.n)
    return sides.estimate(_weighted_auc(sides.members, sides.nonmembers), (0.0, 1.0), bootstrap)


def auc_difference(
    scores: tuple[ArrayLike, ArrayLike],
    baseline: tuple[ArrayLike, ArrayLike],
    *,
    clusters: SideClusters | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Estimate:
    """Return the AUC of scores minus that of a baseline on the same units, resampled together.

    Args:
        scores: (members, non-members).
        baseline: (members, non-members), each in the same order as `scores`.
        clusters: As for `auc`.
        bootstrap: As for `auc`.
    """
    sides = _Sides.of(scores[0], scores[1], clusters)
    other = _Sides.of(baseline[0], baseline[1], clusters)
    if (len(sides.members), len(sides.nonmembers)) != (len(other.members), len(other.nonmembers)):
        raise ValueError("scores and baseline differ in length; give one of each per unit")
    if sides.is_empty:
        return unmeasured("no members or no non-members", level=bootstrap.level, n=sides.n)
    ours, theirs = (
        _weighted_auc(sides.members, sides.nonmembers),
        _weighted_auc(other.members, other.nonmembers),
    )
    return sides.estimate(lambda m, n: ours(m, n) - theirs(m, n), (-1.0, 1.0), bootstrap)


def mean_difference(
    members: ArrayLike,
    nonmembers: ArrayLike,
    *,
    clusters: SideClusters | None = None,
    bounds: tuple[float, float] = (-1.0, 1.0),
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Estimate:
    """Return the mean of one group minus that of another, of different units.

    Args:
        members: One value per unit of the first group.
        nonmembers: The same of the second.
        clusters: As for `auc`.
        bounds: Least and greatest difference that is possible.
        bootstrap: Both groups are resampled separately, by cluster.
    """
    sides = _Sides.of(members, nonmembers, clusters)
    if sides.is_empty:
        return unmeasured("one of the groups is empty", level=bootstrap.level, n=sides.n)

    def value(first: IntArray, second: IntArray) -> float:
        return float(first @ sides.members / first.sum() - second @ sides.nonmembers / second.sum())

    estimate = sides.estimate(value, bounds, bootstrap)
    return estimate.model_copy(update={"method": estimate.method.replace("cluster_bootstrap", "two-sample bootstrap")})


class OperatingPoint(NamedTuple):
    """A threshold, what it catches and what it lets through by mistake."""

    tpr: Estimate
    """Share of members above the threshold; value None when the operating point was refused."""
    threshold: float | None
    """A unit is called a member when its (oriented) score is strictly above this."""
    realised_fpr: Estimate
    """Share of the non-members above the threshold."""
    nominal_fpr: float
    """The share that was asked for."""
    n_members: int
    n_nonmembers: int
    n_reference: int
    """Scores the threshold was chosen on: the calibration's, or the non-members' own."""


def tpr_at_fpr(
    member_scores: ArrayLike,
    nonmember_scores: ArrayLike,
    *,
    fpr: float = 0.01,
    calibration: ArrayLike | None = None,
    clusters: tuple[Clusters | None, Clusters | None, Clusters | None] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> OperatingPoint:
    """Return the share of members caught by a threshold that lets at most `fpr` of the reference through.

    Args:
        member_scores: One score per member, higher = more like a member.
        nonmember_scores: One score per non-member.
        fpr: Nominal false-positive rate, in (0, 1).
        calibration: Further non-members that choose the threshold; None chooses it on `nonmember_scores`.
        clusters: The cluster of each member, non-member and calibration score; None makes each its own.
        bootstrap: Members and reference are both resampled and the threshold chosen anew in each draw; the
            interval is widened to Clopper-Pearson's on the member clusters, which matters near 0 and 1.

    Returns:
        The operating point; not measured where fewer than 1 / fpr clusters of non-members (or of
        the reference) leave it unidentified.
    """
    if not 0 < fpr < 1:
        raise ValueError(f"fpr={fpr!r} is outside (0, 1); 0.01 is usual")
    members = finite_array("member scores", member_scores)
    nonmembers = finite_array("non-member scores", nonmember_scores)
    names = clusters or (None, None, None)
    groups = (group(names[0], len(members)), group(names[1], len(nonmembers)))
    reference, reference_groups = nonmembers, groups[1]
    if calibration is not None:
        reference = finite_array("calibration scores", calibration)
        reference_groups = group(names[2], len(reference))
    counts = (len(members), len(nonmembers), len(reference))
    refusal = _refusal(len(members), min(n_groups(groups[1]), n_groups(reference_groups)), fpr)
    if refusal:
        missing = unmeasured(refusal, level=bootstrap.level)
        return OperatingPoint(missing, None, missing, fpr, *counts)
    sides = _Sides(members, reference, (groups[0], reference_groups))
    drawn = sides.estimate(_weighted_tpr(members, reference, fpr), (0.0, 1.0), bootstrap)
    threshold = float(np.sort(reference)[::-1][_n_allowed(fpr, len(reference))])
    realised = _share_above(nonmembers, threshold, groups[1], bootstrap.level)
    exact = _share_above(members, threshold, groups[0], bootstrap.level)
    return OperatingPoint(_hull(drawn, exact), threshold, realised, fpr, *counts)


def detectable_rate(n: int, bar: float, *, level: float = 0.95, power: float = 0.8) -> float | None:
    """Return the smallest true rate whose Clopper-Pearson interval from n trials clears a bar this often.

    None where not even n of n would clear it.
    """
    check_level(level)
    k = next((k for k in range(n + 1) if beta_interval(k, n, level)[0] > bar), None)
    return None if k is None else float(betaincinv(k, n - k + 1, power))


class _Sides(NamedTuple):
    """Scores of two groups with the cluster numbers of each."""

    members: FloatArray
    nonmembers: FloatArray
    groups: tuple[IntArray, IntArray]

    @classmethod
    def of(cls, members: ArrayLike, nonmembers: ArrayLike, clusters: SideClusters | None) -> _Sides:
        first, second = finite_array("member scores", members), finite_array("non-member scores", nonmembers)
        names = clusters or (None, None)
        return cls(first, second, (group(names[0], len(first)), group(names[1], len(second))))

    @property
    def n(self) -> int:
        return len(self.members) + len(self.nonmembers)

    @property
    def is_empty(self) -> bool:
        return not (len(self.members) and len(self.nonmembers))

    def estimate(
        self,
        statistic: Callable[[IntArray, IntArray], float],
        bounds: tuple[float, float],
        bootstrap: Bootstrap,
    ) -> Estimate:
        """Resample both sides; the statistic reads how often each unit was drawn."""
        rng = np.random.default_rng(bootstrap.seed)
        first, second = self.groups
        value = statistic(np.ones_like(first), np.ones_like(second))
        draws = np.array(
            [statistic(draw_weights(first, rng), draw_weights(second, rng)) for _ in range(bootstrap.n_draws)]
        )
        n_clusters = min(n_groups(first), n_groups(second))
        return from_draws(value, draws, n=self.n, n_clusters=n_clusters, bounds=bounds, level=bootstrap.level)


def _weighted_auc(members: FloatArray, nonmembers: FloatArray) -> Callable[[IntArray, IntArray], float]:
    """Return the AUC as a function of how often each unit counts."""
    levels, position = np.unique(np.concatenate([members, nonmembers]), return_inverse=True)
    first, second = position[: len(members)], position[len(members) :]

    def value(member_weights: IntArray, nonmember_weights: IntArray) -> float:
        m = np.bincount(first, weights=member_weights, minlength=len(levels))
        n = np.bincount(second, weights=nonmember_weights, minlength=len(levels))
        below = np.cumsum(n) - n
        return float(m @ (below + n / 2) / (m.sum() * n.sum()))

    return value


def _weighted_tpr(members: FloatArray, reference: FloatArray, fpr: float) -> Callable[[IntArray, IntArray], float]:
    """Return the rate of caught members, threshold chosen anew, given how often each unit counts."""
    levels, position = np.unique(-reference, return_inverse=True)  # best score first
    # A member beats level j, and all worse ones, from the first level that lies strictly below its score.
    beats_from = np.searchsorted(levels, -members, side="right")

    def value(member_weights: IntArray, reference_weights: IntArray) -> float:
        counts = np.bincount(position, weights=reference_weights, minlength=len(levels))
        above = np.cumsum(counts) - counts
        chosen = np.searchsorted(above, _n_allowed(fpr, int(counts.sum())), side="right") - 1
        return float(member_weights[beats_from <= chosen].sum() / member_weights.sum())

    return value


def _refusal(n_members: int, n_independent: int, fpr: float) -> str:
    """Return why an operating point cannot be measured; empty when it can."""
    needed = math.ceil(1 / fpr - 1e-9)
    if n_members and n_independent >= needed:
        return ""
    found = f"{n_independent} independent non-members, {needed} needed for a false-positive rate of {fpr:g}"
    return found if n_members else "no members"


def _n_allowed(fpr: float, n: int) -> int:
    """Return how many of n reference scores may lie above the threshold; 0.29 of 100 is 29."""
    return math.floor(fpr * n + 1e-9)


def _share_above(scores: FloatArray, threshold: float, groups: IntArray, level: float) -> Estimate:
    """Return the share of scores above a threshold, as certain as its clusters (not its units) make it."""
    share = float(np.mean(scores > threshold))
    n = n_groups(groups)
    low, high = beta_interval(share * n, n, level)
    return Estimate(
        value=share, low=low, high=high, level=level, n=len(scores), method=f"clopper_pearson ({n} clusters)"
    )


def _hull(drawn: Estimate, exact: Estimate) -> Estimate:
    """Return the wider of two intervals around the same value."""
    ends = [end for estimate in (drawn, exact) for end in (estimate.low, estimate.high) if end is not None]
    return exact.model_copy(
        update={"low": min(ends), "high": max(ends), "method": f"{drawn.method}, widened to {exact.method}"}
    )
