"""Intervals for measured numbers: exact for counts, cluster bootstrap for everything else.

Guarantees: every interval is reproducible from its seed; resampling draws whole clusters (dialogues), never
single units of one; a count of nothing still has an upper bound (0 of n is not "no risk"); NaN is an
`AuditError`.

Voids the guarantee: clusters that are not independent (one user behind several dialogues), and a handful of
clusters, where a percentile bootstrap covers less than its level. `n` of an estimate counts units; `method`
says how many clusters.

Source: Clopper and Pearson, Biometrika 26 (1934); Efron and Tibshirani, An Introduction to the Bootstrap
(1993).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from hushbot.errors import AuditError
from hushbot.types import Estimate, Metric

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]
Clusters: TypeAlias = Sequence[Hashable]
Range: TypeAlias = tuple[float | None, float | None]


def check_level(level: float) -> None:
    """Refuse a coverage outside (0, 1)."""
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is outside (0, 1); 0.95 is usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """How an interval is resampled."""

    level: float = 0.95
    """Coverage of the interval, in (0, 1)."""
    n_draws: int = 2000
    """Number of resamples, at least 100."""
    seed: int = 0
    """Same seed, same interval."""

    def __post_init__(self) -> None:
        check_level(self.level)
        if self.n_draws < 100:
            raise ValueError(f"n_draws={self.n_draws} is below 100, too few for an interval; raise it")


DEFAULT_BOOTSTRAP = Bootstrap()


def finite_array(name: str, values: ArrayLike) -> FloatArray:
    """Return the values as floats.

    Raises:
        AuditError: One of them is NaN or infinite.
    """
    array = np.asarray(values, dtype=np.float64)
    broken = int(np.count_nonzero(~np.isfinite(array)))
    if broken:
        raise AuditError(f"{name}: {broken} of {array.size} values are NaN or infinite; find the failed queries")
    return array


def unmeasured(reason: str, *, level: float = 0.95, n: int = 0) -> Estimate:
    """Return the estimate of something that was not measured; never zero."""
    return Estimate(value=None, level=level, n=n, method=f"not measured: {reason}")


def as_estimate(metric: Metric) -> Estimate:
    """Return a metric that is known to be an estimate.

    Raises:
        TypeError: It is a count or a bare number.
    """
    if not isinstance(metric, Estimate):
        raise TypeError(f"{metric!r} is no Estimate; a headline needs one")
    return metric


def clopper_pearson(k: int, n: int, level: float = 0.95) -> Estimate:
    """Return the rate k / n with its exact two-sided interval.

    0 of n gives an upper bound; 0 of 0 is not measured.
    """
    check_level(level)
    if not 0 <= k <= n:
        raise ValueError(f"k={k} of n={n}: the count must lie in [0, n]")
    if n == 0:
        return unmeasured("no trials", level=level)
    low, high = beta_interval(k, n, level)
    return Estimate(value=k / n, low=low, high=high, level=level, n=n, method="clopper_pearson")


def beta_interval(k: float, n: float, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval; k and n may be effective (fractional) counts."""
    tail = (1 - level) / 2
    low = 0.0 if k <= 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k >= n else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def cluster_bootstrap(
    values: ArrayLike,
    clusters: Clusters | None,
    statistic: Callable[[FloatArray], float] = lambda values: float(values.mean()),
    *,
    bounds: tuple[float, float] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Estimate:
    """Return a statistic of the values with a percentile interval over resampled clusters.

    Args:
        values: One entry (a number or a row of numbers) per unit.
        clusters: The cluster of each unit; None makes each unit its own.
        statistic: Maps the (resampled) values to one number, such as a ratio of two column sums.
        bounds: Smallest and largest possible value of the statistic, so that a sample without any spread
            (0 of n) still gets a bound; taken as (0, 1) where all values are 0 or 1.
        bootstrap: Level, draws and seed.

    Returns:
        The estimate; its ends are None where an interval cannot be had, and `method` says why.
    """
    array = finite_array("cluster_bootstrap", values)
    n = len(array)
    groups = group(clusters, n)
    with np.errstate(divide="ignore", invalid="ignore"):
        if n == 0 or not np.isfinite(value := float(statistic(array))):
            reason = "no values" if n == 0 else "the statistic is undefined on these values"
            return unmeasured(reason, level=bootstrap.level, n=n)
        rng = np.random.default_rng(bootstrap.seed)
        units = np.arange(n)
        draws = np.array(
            [statistic(array[np.repeat(units, draw_weights(groups, rng))]) for _ in range(bootstrap.n_draws)],
            dtype=np.float64,
        )
    if bounds is None and array.ndim == 1 and is_binary(array):
        bounds = (0.0, 1.0)
    return from_draws(value, draws, n=n, n_clusters=n_groups(groups), bounds=bounds, level=bootstrap.level)


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    clusters: Clusters | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> Estimate:
    """Return the mean of a minus the mean of b, both measured on the same units, with its interval.

    Args:
        a: One number per unit.
        b: One number per unit, in the same order.
        clusters: The cluster of each unit; None makes each unit its own.
        bounds: Smallest and largest possible difference; taken as (-1, 1) where all values are 0 or 1.
        bootstrap: Level, draws and seed.
    """
    first, second = finite_array("paired_bootstrap: a", a), finite_array("paired_bootstrap: b", b)
    if first.shape != second.shape:
        raise ValueError(f"paired values differ in shape: {first.shape} and {second.shape}; pair them by unit first")
    if bounds is None and is_binary(first) and is_binary(second):
        bounds = (-1.0, 1.0)
    estimate = cluster_bootstrap(first - second, clusters, bounds=bounds or (-np.inf, np.inf), bootstrap=bootstrap)
    return estimate.model_copy(update={"method": estimate.method.replace("cluster_bootstrap", "paired_bootstrap")})


def group(clusters: Clusters | None, n: int) -> IntArray:
    """Number the clusters in order of appearance and return each unit's number."""
    if clusters is None:
        return np.arange(n)
    if len(clusters) != n:
        raise ValueError(f"{len(clusters)} cluster names for {n} values; give one per value")
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in clusters], dtype=np.intp)


def n_groups(groups: IntArray) -> int:
    """Return how many clusters there are."""
    return int(groups.max()) + 1 if len(groups) else 0


def draw_weights(groups: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw as many clusters as there are, with replacement; return how often each unit was drawn."""
    n = n_groups(groups)
    counts: IntArray = np.bincount(rng.integers(n, size=n), minlength=n)
    return counts[groups]


def from_draws(
    value: float,
    draws: FloatArray,
    *,
    n: int,
    n_clusters: int,
    level: float,
    bounds: tuple[float, float] | None,
) -> Estimate:
    """Turn bootstrap draws into an estimate with a percentile interval.

    Where all draws agree the resample knows nothing: the interval is then what is left open by having seen
    `n_clusters` clusters without any other outcome, within `bounds`.
    """
    method = f"cluster_bootstrap ({n_clusters} clusters)"
    low: float | None = None
    high: float | None = None
    if n_clusters < 2:
        method += ": no interval from fewer than 2 clusters"
    elif undefined := int(np.count_nonzero(~np.isfinite(draws))):
        method += f": no interval, undefined in {undefined} of {len(draws)} draws"
    elif np.ptp(draws) > 1e-12:
        tail = (1 - level) / 2
        low, high = (float(end) for end in np.quantile(draws, (tail, 1 - tail)))
    elif bounds is None or not np.all(np.isfinite(bounds)):
        method += ": no interval, no spread among draws"
    else:
        _, unseen = beta_interval(0, n_clusters, level)
        low = (1 - unseen) * value + unseen * bounds[0]
        high = (1 - unseen) * value + unseen * bounds[1]
        method += ", no spread: clopper_pearson bound"
    return Estimate(value=value, low=low, high=high, level=level, n=n, method=method)


def is_binary(values: FloatArray) -> bool:
    """Return whether every value is 0 or 1."""
    return bool(np.all((values == 0) | (values == 1)))
