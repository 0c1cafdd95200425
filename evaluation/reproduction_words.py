"""How reproductions put numbers and outcomes into words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hushbot.evaluation.report import NOT_MEASURED
from hushbot.evaluation.reproduction_orderings import Ordering
from hushbot.types import Estimate, Metric


def shown_metric(metric: Metric, scale: float = 1.0) -> str:
    """Write a number with its interval, times `scale`; or that there is none."""
    if not isinstance(metric, Estimate):
        return NOT_MEASURED if metric is None else f"{scale * metric:.4g}"
    if metric.value is None:
        return NOT_MEASURED
    value = f"{scale * metric.value:.3g}"
    if metric.low is None or metric.high is None:
        return value
    return f"{value} [{scale * metric.low:.3g}, {scale * metric.high:.3g}]"


def is_measured(metric: Metric) -> bool:
    """Say whether there is a number."""
    return metric is not None and not (isinstance(metric, Estimate) and metric.value is None)


def shown_difference(difference: Estimate) -> str:
    """Write a difference with its interval and level, or why there is none."""
    if difference.value is None:
        return difference.method
    if difference.low is None or difference.high is None:
        return f"{difference.value:+.3f} ({difference.method})"
    level = f"{100 * difference.level:.4g}%"
    return f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] at {level}, n={difference.n}"


def by_claim(found: Sequence[Ordering]) -> dict[str, list[Ordering]]:
    """Return the cases of each claim, in order."""
    return {claim: [each for each in found if each.claim == claim] for claim in dict.fromkeys(e.claim for e in found)}


def tally(cases: Sequence[Ordering]) -> str:
    """Say in how many cases a claim holds, does not hold, and cannot be told."""
    counts = Counter(each.outcome for each in cases)
    return ", ".join(f"{outcome} in {n} of {len(cases)}" for outcome, n in sorted(counts.items(), reverse=True))
