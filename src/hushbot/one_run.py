"""A lower bound on epsilon from one training run: what an audit with canaries rules out.

Guarantees: if training was (epsilon, delta) differentially private with the canary as its unit, the bound
exceeds epsilon with probability at most 1 - level. The ceiling says what this audit could have shown at
best, so that a small bound from few guesses is not read as privacy.

Voids the guarantee: canaries whose inclusion was not an independent fair coin, guesses made after seeing
the coins, and a number of guesses chosen by looking at the bound. Never a certificate of privacy.

Source: Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run, NeurIPS 2023 (section 4).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrc

from hushbot.intervals import check_level, unmeasured
from hushbot.types import Estimate


class OneRunBound(NamedTuple):
    """An audit's lower bound on epsilon, beside the most that this audit could have shown."""

    epsilon: Estimate
    """The one-sided lower bound as value and as low; high is None, an audit bounds nothing from above."""
    ceiling: float | None
    """The bound if every guess had been right; None without guesses."""
    correct: int
    guesses: int


def one_run_epsilon(
    correct: int, guesses: int, *, delta: float = 0.0, canaries: int | None = None, level: float = 0.95
) -> OneRunBound:
    """Return the largest epsilon that so many right guesses rule out.

    Under (epsilon, delta) differential privacy the number of right guesses is at most binomial with success
    probability e^epsilon / (1 + e^epsilon), plus a term of order canaries * delta.

    Args:
        correct: Right guesses.
        guesses: Guesses made; abstentions are not guesses.
        delta: The delta of the claim that is tested.
        canaries: Units whose inclusion was a fair coin, abstentions included; required when delta > 0.
        level: Confidence of the one-sided bound.
    """
    check_level(level)
    if not 0 <= correct <= guesses:
        raise ValueError(f"correct={correct} of guesses={guesses}: it must lie in [0, guesses]")
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta!r} is outside [0, 1)")
    if delta > 0 and (canaries is None or canaries < guesses):
        raise ValueError(f"canaries={canaries} with delta={delta:g}: give the number of canaries, at least {guesses}")
    if guesses == 0:
        return OneRunBound(unmeasured("no guesses", level=level), None, 0, 0)
    slack = 2.0 * delta * (canaries or 0)
    bound = _largest_rejected(correct, guesses, slack, 1 - level)
    ceiling = _largest_rejected(guesses, guesses, slack, 1 - level)
    epsilon = Estimate(value=bound, low=bound, level=level, n=guesses, method="one_run_binomial (one-sided)")
    return OneRunBound(epsilon, ceiling, correct, guesses)


def _largest_rejected(correct: int, guesses: int, slack: float, alpha: float) -> float:
    """Return an epsilon whose p-value is at most alpha, the largest that bisection finds; 0 when none is.

    Ruling out one epsilon rules out all smaller ones, so the result is a bound even if p were not monotone.
    """
    if _one_run_p_value(0.0, correct, guesses, slack) > alpha:
        return 0.0
    low, high = 0.0, 1.0
    while _one_run_p_value(high, correct, guesses, slack) <= alpha:
        low, high = high, 2 * high
    while high - low > 1e-10:
        middle = (low + high) / 2
        is_rejected = _one_run_p_value(middle, correct, guesses, slack) <= alpha
        low, high = (middle, high) if is_rejected else (low, middle)
    return low


def _one_run_p_value(epsilon: float, correct: int, guesses: int, slack: float) -> float:
    """Bound the probability of so many right guesses under DP; slack is 2 * canaries * delta."""
    q = 1 / (1 + math.exp(-epsilon))
    tail = 1.0 if correct == 0 else float(bdtrc(correct - 1, guesses, q))
    if slack == 0 or correct == 0:
        return tail
    at_most = np.concatenate([[0.0], bdtr(np.arange(correct, dtype=np.float64), guesses, q)])
    shares = (at_most[-1] - at_most[:-1][::-1]) / np.arange(1, correct + 1)
    return min(1.0, tail + slack * float(shares.max()))
