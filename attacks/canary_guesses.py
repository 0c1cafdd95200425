"""From scores and coins to a lower bound on epsilon: guess the coins, count the right guesses.

The k canaries with the highest scores are guessed in, the k with the lowest out, the others not at all. How many
guesses are made is fixed before the coins are looked at; where several numbers are tried, each bound holds at level
1 - (1 - level) / tries, so that the best of them holds at `level`.

Guarantees: guesses depend on no coin and on no order in which canaries are given; ties are broken by the seed. As many
guesses say in as out, so that how many canaries were inserted, which a bot may give away, helps none of them.

Source: Steinke, Nasr and Jagielski, NeurIPS 2023; Bonferroni for the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushbot.intervals import FloatArray, IntArray, unmeasured
from hushbot.one_run import OneRunBound, one_run_epsilon
from hushbot.types import Estimate


class Audit(NamedTuple):
    """The best of the bounds of one score."""

    epsilon: Estimate
    """The one-sided lower bound."""
    correct: int
    guesses: int
    ceiling: float
    """The bound if all guesses had been right, for the most favourable of the numbers tried."""
    guessed: IntArray
    """1 where a canary was guessed in, -1 out, 0 not at all; with the number of guesses behind the bound."""
    mirrored: float
    """The bound of the opposite guesses."""


def audit(
    scores: FloatArray,
    is_inserted: Sequence[bool],
    shares: Sequence[float],
    *,
    delta: float,
    level: float,
    seed: int,
) -> Audit:
    """Guess the coins from scores and bound epsilon by the right guesses.

    Args:
        scores: One per canary, high where it looks trained on.
        is_inserted: Their coins.
        shares: Which parts of all canaries to guess; each is one try.
        delta: Of the claim that is tested; 0 tests pure differential privacy.
        level: Confidence of the bound, all tries together.
        seed: Of the order of equal scores.
    """
    coins = np.asarray(is_inserted, dtype=np.bool_)
    n = len(coins)
    # By an order of its own among equals: the caller's may tell the coins.
    order = np.lexsort((np.random.default_rng(seed).permutation(n), -scores))
    confidence = 1 - (1 - level) / len(shares)
    tries: list[tuple[OneRunBound, OneRunBound, IntArray]] = []
    for share in shares:
        k = int(share * n + 1e-9) // 2
        guessed = np.zeros(n, dtype=np.int64)
        guessed[order[:k]], guessed[order[n - k :]] = 1, -1
        correct = int(np.count_nonzero(guessed[coins] == 1) + np.count_nonzero(guessed[~coins] == -1))
        right, wrong = (
            one_run_epsilon(count, 2 * k, delta=delta, canaries=n, level=confidence)
            for count in (correct, 2 * k - correct)
        )
        tries.append((right, wrong, guessed))
    best, _, guessed = max(tries, key=lambda found: (found[0].epsilon.value or 0.0, found[0].guesses))
    method = f"one_run_binomial at delta {delta:g} (one-sided, Bonferroni over {len(shares)} numbers of guesses)"
    return Audit(
        best.epsilon.model_copy(update={"level": level, "method": method})
        if best.guesses
        else unmeasured("too few canaries for a guess", level=level),
        best.correct,
        best.guesses,
        max(found.ceiling or 0.0 for found, _, _ in tries),
        guessed,
        max(found.epsilon.value or 0.0 for _, found, _ in tries),
    )
