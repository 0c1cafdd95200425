"""What samples say of one identifier: an exact test, hit@k, (n, p)-extractability and functionals of the samples.

Guarantees: every number is exact (sums of binomial coefficients, no approximation), a text without words is a third
state and never a hit, and what is undefined is None. `fisher` tests one sided: more hits after the true prefix than
after the mismatched ones.

Source: Fisher (1935); the unbiased estimate of "at least one of k" as in Chen et al. (2021); (n, p)-discoverable
extraction as in Hayes et al. (2025); mean overlap, extreme-value overlap and self-concentration as functionals of the
samples' distribution in leakit's paper.

>>> round(fisher(5, 32, 0, 32), 3), round(fisher(1, 16, 0, 16), 3), hit_at_k(1, 4, 2)
(0.026, 0.5, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations


def fisher(hits: int, n: int, control_hits: int, control_n: int) -> float:
    """Return the probability of at least so many of all hits among n of n + control_n samples, if all are alike."""
    for name, k, size in (("hits", hits, n), ("control_hits", control_hits, control_n)):
        if not 0 <= k <= size:
            raise ValueError(f"{name}={k} is outside [0, {size}], the number of samples")
    total = hits + control_hits
    ways = sum(
        math.comb(n, i) * math.comb(control_n, total - i)
        for i in range(max(hits, total - control_n), min(n, total) + 1)
    )
    return ways / math.comb(n + control_n, total)


def attribution_p(hits: int, n: int, control_hits: Sequence[int], n_per_control: int) -> float:
    """Return the p-value of an identifier's being tied to its own prefix.

    Pooling takes the controls for alike. Where a single one of them gives the identifier as often as its own prefix
    does, they are not, and nothing is attributed: p is 1.
    """
    if any(k * n >= hits * n_per_control for k in control_hits):
        return 1.0
    return fisher(hits, n, sum(control_hits), n_per_control * len(control_hits))


def hit_at_k(hits: int, n: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of k samples is a hit, from n samples."""
    if not 1 <= k <= n:
        raise ValueError(f"k={k} is outside [1, {n}], the number of samples")
    return 1 - math.comb(n - hits, k) / math.comb(n, k)


def is_extractable(logprob: float, n: int, p: float) -> bool:
    """Say whether n samples hold a sequence of this log-probability with probability p or more."""
    if logprob >= 0:
        return True
    return n * math.log1p(-math.exp(logprob)) <= math.log1p(-p)


def overlaps(texts: Sequence[str], gold: str) -> tuple[float, float] | None:
    """Return the mean and the largest overlap (Jaccard, of words) of samples with what stood there in training."""
    words = frozenset(gold.split())
    if not words or not texts:
        return None
    found = [jaccard(frozenset(text.split()), words) for text in texts]
    return sum(found) / len(found), max(found)


def self_concentration(texts: Sequence[str]) -> float | None:
    """Return the mean overlap of pairs of samples; pairs without any word count for nothing."""
    bags = [frozenset(text.split()) for text in texts]
    pairs = [jaccard(one, other) for one, other in combinations(bags, 2) if one or other]
    return sum(pairs) / len(pairs) if pairs else None


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return how much of what either holds both hold; 0 where neither holds anything."""
    union = len(one | other)
    return len(one & other) / union if union else 0.0
