"""Two bots on the same documents: the difference of a metric with its interval and p-value.

Guarantees: documents are drawn whole, all their values together, and the same ones in both arms; each side (members,
non-members, calibration) is drawn by itself, and a threshold is chosen anew in every draw. p is two-sided and never 0;
no difference in any document gives p = 1. A document whose value could not be had in one arm is left out in both, and
counted.

* One seed: a percentile interval, expanded as Student's t is wider than the normal, since few documents make it too
  narrow; p from exchanging the two arms within documents at random, which is exact where the arms are alike (scores are
  exchanged as ranks within their arm, since two bots' scores have no common scale). Another training would give other
  numbers; that is in neither.
* Several seeds: resampling S seeds gives an interval too narrow by sqrt((S - 1) / S), and by the unknown spread on top;
  so the seeds' own differences have Student's t with S - 1 degrees of freedom, and the documents' half-width (a
  bootstrap within seeds) is added to it in quadrature. Where seeds have documents of their own this counts documents
  twice and is a little too wide; where they share them, as seeds on one corpus do in part, it is not. p is the level at
  which that interval touches 0.

What voids it: documents that are not independent (one user behind several); differences between seeds far from normal.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993); Hesterberg, The American Statistician 69 (2015),
on expanded percentiles; Bandos, Rockette and Gur, Statistics in Medicine 24 (2005), on exchanging ranks; Phipson and
Smyth, Statistical Applications in Genetics and Molecular Biology 9 (2010), on p-values that are not 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import rankdata

from hushbot.evaluation.unit_metrics import Rule, metric_values
from hushbot.intervals import Bootstrap, FloatArray, IntArray, from_draws
from hushbot.types import Estimate, Units

_EQUAL = 1e-12
"""What is equal but for rounding is equal: a tie that is missed would make p too small."""
_ROUNDING = 1e-4
"""Units have six digits, so that a rate of 1 may come out a little above it."""
_CHUNK = 250
"""Draws at a time: their weights are one matrix."""


class _Arm(NamedTuple):
    """One arm's units, each with the number of its document."""

    documents: IntArray
    values: FloatArray
    seconds: FloatArray
    """Weights of a ratio; the number of the side of a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The units of two arms of one seed, over the same documents."""

    rule: Rule
    arms: tuple[_Arm, _Arm]
    sides: IntArray
    """The side of each document; 0 where there are none."""
    n_missing: int
    """Documents left out in both arms."""

    @classmethod
    def of(cls, ours: Units, theirs: Units) -> Pair:
        """Put units together by document.

        Raises:
            ValueError: The two are of different rules, or a document changes sides.
        """
        if ours.rule != theirs.rule:
            raise ValueError(f"units of rule {ours.rule!r} and {theirs.rule!r}: one headline has one rule")
        sides = _sides_of(ours)
        others = _sides_of(theirs)
        if any(sides[name] != others[name] for name in sides.keys() & others.keys()):
            raise ValueError("a document is on another side in the other arm: the splits differ")
        known = sorted((sides.keys() - _unknown(ours)) & (others.keys() - _unknown(theirs)))
        number = {name: i for i, name in enumerate(known)}
        codes = sorted(set(sides.values()))
        return cls(
            rule=ours.rule,
            arms=(_numbered(ours, number), _numbered(theirs, number)),
            sides=np.array([codes.index(sides[name]) for name in known], dtype=np.intp),
            n_missing=len(sides.keys() | others.keys()) - len(known),
        )

    @property
    def n(self) -> int:
        """Return how many documents there are in both arms."""
        return len(self.sides)

    @property
    def smallest_side(self) -> int:
        """Return the number of documents of the smallest side."""
        return int(np.bincount(self.sides).min()) if self.n else 0

    def values(self) -> tuple[float, float]:
        """Return the metric in both arms."""
        first, second = (self._metric(arm, np.ones((1, len(arm.values)))) for arm in self.arms)
        return float(first[0]), float(second[0])

    def drawn(self, n_draws: int, rng: np.random.Generator) -> FloatArray:
        """Return the difference in documents drawn with replacement."""
        sizes = [np.flatnonzero(self.sides == side) for side in range(int(self.sides.max()) + 1)]
        found = []
        for n in _chunks(n_draws):
            counts = np.zeros((n, self.n))
            for members in sizes:
                counts[:, members] = rng.multinomial(len(members), np.full(len(members), 1 / len(members)), size=n)
            first, second = (self._metric(arm, counts[:, arm.documents]) for arm in self.arms)
            found.append(first - second)
        return np.concatenate(found)

    def exchanged(self, n_draws: int, rng: np.random.Generator) -> FloatArray:
        """Return the difference where documents changed arms at random; the true one comes first."""
        ours, theirs = self.arms if self.rule == "ratio" else (_ranked(arm) for arm in self.arms)
        both = _Arm(*(np.concatenate(parts) for parts in zip(ours, theirs, strict=True)))
        is_ours = np.arange(len(both.values)) < len(ours.values)
        found: list[FloatArray] = []
        for n in _chunks(n_draws + 1):
            changes = rng.integers(2, size=(n, self.n)).astype(bool)
            if not found:
                changes[0] = False
            is_first = changes[:, both.documents] != is_ours
            found.append(self._metric(both, is_first * 1.0) - self._metric(both, ~is_first * 1.0))
        return np.concatenate(found)

    def _metric(self, arm: _Arm, counts: FloatArray) -> FloatArray:
        return metric_values(self.rule, arm.values, arm.seconds, counts)


class Found(NamedTuple):
    """A difference between two arms."""

    estimate: Estimate
    p: float


def paired_difference(pairs: Sequence[Pair], bootstrap: Bootstrap, *, shares_documents: bool = False) -> Found:
    """Return the mean over seeds of the first arm minus the second.

    Args:
        pairs: One per seed, at least one.
        bootstrap: Level, draws and seed.
        shares_documents: Whether all seeds are measured on the same documents, which are then drawn together.
    """
    values = [first - second for first, second in (pair.values() for pair in pairs)]
    streams = [[bootstrap.seed, 0 if shares_documents else i] for i in range(len(pairs))]
    draws = np.mean(
        [
            pair.drawn(bootstrap.n_draws, np.random.default_rng(s))
            for pair, s in zip(pairs, streams, strict=True)
        ],
        axis=0,
    )  # fmt: skip
    n_documents = pairs[0].n if shares_documents else sum(pair.n for pair in pairs)
    smallest = min(pair.smallest_side for pair in pairs) * (1 if shares_documents else len(pairs))
    is_rate = all(-_ROUNDING <= value <= 1 + _ROUNDING for pair in pairs for value in pair.values())
    within = from_draws(
        float(np.mean(values)),
        draws,
        n=n_documents,
        n_clusters=smallest,
        level=_expanded(bootstrap.level, smallest),
        bounds=(-1.0, 1.0) if is_rate else None,
    ).model_copy(update={"level": bootstrap.level})
    within = _clipped(within) if is_rate else within
    if len(pairs) == 1:
        p = _exchange_p(pairs[0].exchanged(bootstrap.n_draws, np.random.default_rng([bootstrap.seed, 0, 1])))
        method = f"paired {within.method.replace('cluster_', '')}, p by exchange within documents; one seed"
        return Found(within.model_copy(update={"method": method}), p)
    return _over_seeds(np.array(values), draws, within, is_rate=is_rate)


def _clipped(within: Estimate) -> Estimate:
    """Keep a difference of two rates where one can be: with equal weights a draw of many hits exceeds a rate of 1."""
    if within.low is None or within.high is None:
        return within
    return within.model_copy(update={"low": max(-1.0, within.low), "high": min(1.0, within.high)})


def _over_seeds(values: FloatArray, draws: FloatArray, within: Estimate, *, is_rate: bool) -> Found:
    """Add what differs from seed to seed to the documents' interval."""
    n_seeds, mean = len(values), float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(n_seeds)
    spread = float(draws.std())

    def reach(p: float, of_documents: float) -> float:
        return math.hypot(-float(stdtrit(n_seeds - 1, p / 2)) * error, of_documents)

    low = high = None
    if within.low is not None and within.high is not None:
        low = mean - reach(1 - within.level, mean - within.low)
        high = mean + reach(1 - within.level, within.high - mean)
        low, high = (max(-1.0, low), min(1.0, high)) if is_rate else (low, high)
    p = _touching(abs(mean), lambda p: reach(p, -float(ndtri(p / 2)) * spread), 1 / (1 + len(draws)))
    drawn = within.method.replace("cluster_", "")
    method = f"paired {drawn}, Student's t over {n_seeds} seeds added; p where it touches 0"
    return Found(within.model_copy(update={"low": low, "high": high, "method": method}), p)


def _touching(distance: float, reach: Callable[[float], float], least: float) -> float:
    """Return the p at which a half-width that shrinks as p grows reaches as far as the distance."""
    if distance <= _EQUAL:
        return 1.0
    if reach(least) <= distance:
        return least
    low, high = math.log(least), 0.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if reach(math.exp(middle)) > distance else (low, middle)
    return math.exp(high)


def _exchange_p(differences: FloatArray) -> float:
    """Return how often an exchange is as far from 0 as the truth, which comes first and counts itself."""
    return float(np.mean(~(np.abs(differences) < abs(differences[0]) - _EQUAL)))  # undefined ones count, too


def _expanded(level: float, n: int) -> float:
    """Return the level at which a percentile interval is as wide as Student's t makes it for n documents."""
    if n < 2:
        return level
    quantile = -float(stdtrit(n - 1, (1 - level) / 2)) * math.sqrt(n / (n - 1))
    return float(1 - 2 * ndtr(-quantile))


def _sides_of(units: Units) -> dict[str, str]:
    """Return the side of every document that takes part: where there is a calibration, non-members do not."""
    sides: Sequence[str] = units.sides if units.sides is not None else [""] * len(units.documents)
    known = dict(zip(units.documents, sides, strict=True))
    if any(known[name] != side for name, side in zip(units.documents, sides, strict=True)):
        raise ValueError("a document is on two sides; resample whole documents")
    has_calibration = units.rule == "tpr_at_1pct_fpr" and "calibration" in known.values()
    return {name: side for name, side in known.items() if not (has_calibration and side == "nonmember")}


def _unknown(units: Units) -> set[str]:
    return {
        name
        for name, value in zip(units.documents, units.values, strict=True)
        if value is None or not math.isfinite(value)
    }


def _numbered(units: Units, number: dict[str, int]) -> _Arm:
    beside: Sequence[float]
    if units.weights is not None:
        beside = units.weights
    else:
        beside = [1.0 if side == "member" else 0.0 for side in units.sides or ()]
    rows = sorted(
        (number[name], value, second)
        for name, value, second in zip(units.documents, units.values, beside, strict=True)
        if name in number and value is not None
    )
    documents, values, seconds = zip(*rows, strict=True) if rows else ((), (), ())
    return _Arm(np.array(documents, dtype=np.intp), np.array(values, dtype=np.float64), np.array(seconds))


def _ranked(arm: _Arm) -> _Arm:
    return arm._replace(values=rankdata(arm.values) / (len(arm.values) + 1))


def _chunks(n: int) -> Iterator[int]:
    for start in range(0, n, _CHUNK):
        yield min(_CHUNK, n - start)
