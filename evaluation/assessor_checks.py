"""What keeps an assessor of states honest: monotone scores, and another assessor's opinion.

Guarantees: after `judge`, a state scores at least as much as each of its parts that was asked, and the report can say
how often the assessor had it otherwise; each distinct state is asked once, in an order that depends on the states
alone. `agreement` counts equal answers beyond chance; a missing answer is dropped and counted, never taken for 0.

What voids it: where more parts are asked, more scores may be raised; kappa is low between raters who both give nearly
everything one score, however often they agree.

Source: Task-oriented dialogue state extraction, section V-F; Cohen, Educational and Psychological Measurement 20 (1960)
and Psychological Bulletin 70 (1968) for weights.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hushbot.errors import AuditError
from hushbot.evaluation.assessors import HIGHEST, Assessor
from hushbot.intervals import DEFAULT_BOOTSTRAP, Bootstrap, Clusters, FloatArray, IntArray, cluster_bootstrap
from hushbot.stats import unmeasured
from hushbot.types import DialogueState, Estimate

N_DRAWS = 1000
"""Resamples behind each interval; a comparison of decoders has hundreds of them."""


class Judged(NamedTuple):
    """Monotone scores of the states that were asked."""

    scores: Mapping[DialogueState, float | None]
    violations: Estimate
    """Share of nested pairs in which the assessor scored the larger state lower."""
    n_violations: int
    n_pairs: int


class Agreement(NamedTuple):
    """How far two assessors agree beyond chance."""

    kappa: Estimate
    n_dropped: int
    """States that one of them did not score."""


def judge(states: Iterable[DialogueState], assessor: Assessor, *, seed: int = 0) -> Judged:
    """Ask an assessor about each distinct, non-empty state, and raise its scores to those of their parts.

    Raises:
        AuditError: It failed, or a score of its is no number from 0 to 5.
    """
    asked = sorted({state for state in states if state}, key=lambda state: (len(state), order_of(state)))
    raw = assessor.scores(asked)
    if len(raw) != len(asked):
        raise AuditError(f"the assessor gave {len(raw)} scores for {len(asked)} states; it must give one each")
    for score in raw:
        if score is not None and not 0 <= score <= HIGHEST:  # NaN is in no range
            raise AuditError(f"the assessor gave the score {score}; it must lie in [0, {HIGHEST}], or be None")
    parts = _parts_asked(asked)
    scores: dict[DialogueState, float | None] = {}
    pairs = []
    for state, score, positions in zip(asked, raw, parts, strict=True):
        below = [part for i in positions if (part := raw[i]) is not None]
        scores[state] = None if score is None else max([score, *below])
        if score is not None and below:
            pairs.append((sum(part > score for part in below), len(below)))
    violations = cluster_bootstrap(
        np.array(pairs, dtype=np.float64).reshape(-1, 2),
        None,
        lambda counts: float(counts[:, 0].sum() / counts[:, 1].sum()),
        bounds=(0.0, 1.0),
        bootstrap=Bootstrap(n_draws=N_DRAWS, seed=seed),
    )
    return Judged(scores, violations, sum(bad for bad, _ in pairs), sum(n for _, n in pairs))


def agreement(
    one: Sequence[float | None],
    other: Sequence[float | None],
    *,
    weights: Literal["linear", "quadratic"] | None = None,
    clusters: Clusters | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Agreement:
    """Return Cohen's kappa of two assessors' scores of the same states.

    Args:
        one: Scores in whole numbers, or None.
        other: The other's, in the same order.
        weights: How much a disagreement counts: alike, by its size, or by its square.
        clusters: The dialogue of each state; None makes each its own.
        bootstrap: Of the interval.

    Returns:
        The agreement; not measured where a rater gives one score to everything, since nothing could tell it from
        chance.
    """
    if len(one) != len(other):
        raise ValueError(f"{len(one)} and {len(other)} scores; give both assessors' scores of the same states")
    kept = [i for i, pair in enumerate(zip(one, other, strict=True)) if None not in pair]
    pairs = np.array([(one[i], other[i]) for i in kept], dtype=np.float64).reshape(-1, 2)
    n_dropped = len(one) - len(kept)
    if n_broken := int(np.count_nonzero(pairs != np.round(pairs))):
        raise ValueError(f"{n_broken} scores are no whole numbers; kappa counts equal answers, so round them first")
    if len(pairs) < 2 or any(len(np.unique(rater)) < 2 for rater in pairs.T):
        reason = "fewer than 2 states with both scores" if len(pairs) < 2 else "a rater gives one score to everything"
        return Agreement(unmeasured(reason, level=bootstrap.level, n=len(pairs)), n_dropped)
    groups = None if clusters is None else [clusters[i] for i in kept]
    kappa = cluster_bootstrap(
        pairs, groups, lambda drawn: cohen_kappa(drawn, weights), bounds=(-1.0, 1.0), bootstrap=bootstrap
    )
    return Agreement(kappa, n_dropped)


def cohen_kappa(pairs: FloatArray, weights: Literal["linear", "quadratic"] | None = None) -> float:
    """Return one minus the observed over the expected disagreement of two columns; NaN where none is expected."""
    levels, positions = np.unique(pairs, return_inverse=True)
    first, second = positions.reshape(pairs.shape).T
    gap = np.abs(levels[:, None] - levels[None, :])
    cost = gap**2 if weights == "quadratic" else gap if weights == "linear" else (gap > 0).astype(np.float64)
    shares = [np.bincount(rater, minlength=len(levels)) / len(pairs) for rater in (first, second)]
    expected = float(shares[0] @ cost @ shares[1])
    return 1 - float(cost[first, second].mean()) / expected if expected else math.nan


def order_of(state: DialogueState) -> str:
    """Return a text to sort by, also of a state that holds two values of a slot."""
    return repr(sorted(state))


def _parts_asked(states: Sequence[DialogueState]) -> list[IntArray]:
    """Return, for each of the distinct states, the positions of those that are part of it."""
    found: dict[Any, list[int]] = defaultdict(list)
    for i, state in enumerate(states):
        for triplet in state:
            found[triplet].append(i)
    holders = {triplet: np.array(positions) for triplet, positions in found.items()}
    sizes = np.array([len(state) for state in states])
    parts = []
    for state in states:
        shared = np.bincount(np.concatenate([holders[triplet] for triplet in state]), minlength=len(states))
        parts.append(np.flatnonzero((shared == sizes) & (sizes < len(state))))
    return parts
