"""From scores and coins to a bound: cases done by hand, then what never changes it, then how often it is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from hushbot.attacks.canary_guesses import Audit, audit

COINS = [True, True, True, False, False, False, True, False]
SCORES = np.array([9.0, 8.0, 3.0, 2.0, 1.0, 7.0, 6.0, 4.0])
"""From the top: in, in, out, in, out, in, out, out."""


def judge(scores: np.ndarray, coins: list[bool], *shares: float, delta: float = 0.0, seed: int = 0) -> Audit:
    return audit(scores, coins, shares, delta=delta, level=0.95, seed=seed)


def test_the_highest_are_guessed_in_and_the_lowest_out() -> None:
    half = judge(SCORES, COINS, 0.5)
    assert (half.correct, half.guesses) == (4, 4)
    assert half.guessed.tolist() == [1, 1, 0, -1, -1, 0, 0, 0]
    whole = judge(SCORES, COINS, 1.0)
    assert (whole.correct, whole.guesses) == (6, 8)
    assert whole.guessed.tolist() == [1, 1, -1, -1, -1, 1, 1, -1]
    assert judge(SCORES[:7], COINS[:7], 1.0).guesses == 6  # as many in as out: the middle one is left
    assert judge(SCORES, COINS, 0.2).guesses == 0


def test_the_bound_and_the_ceiling_are_those_of_the_counts() -> None:
    """All r right at level 1 - a: e^eps / (1 + e^eps) = a^(1/r)."""
    coins = [True] * 50 + [False] * 50
    found = judge(np.arange(100.0)[::-1], coins, 1.0)
    q = 0.05 ** (1 / 100)
    assert found.epsilon.value == pytest.approx(math.log(q / (1 - q)), abs=1e-6)  # 3.4930
    assert found.ceiling == pytest.approx(3.4930, abs=1e-4)
    assert (found.epsilon.low, found.epsilon.high, found.epsilon.level) == (found.epsilon.value, None, 0.95)
    assert judge(np.arange(100.0)[::-1], coins, 1.0, delta=5.01e-4).epsilon.value == pytest.approx(3.3521, abs=1e-4)
    # The first 40 and the last 40 of 100 right, the others wrong: 80 of 100, which is less than chance of q = 0.86.
    swapped = [True] * 40 + [False] * 10 + [True] * 10 + [False] * 40
    assert judge(np.arange(100.0)[::-1], swapped, 1.0).correct == 80


def test_trying_several_numbers_of_guesses_is_paid_for() -> None:
    coins = [True] * 50 + [False] * 50
    scores = np.arange(100.0)[::-1]
    q = (0.05 / 2) ** (1 / 100)
    both = judge(scores, coins, 0.5, 1.0)
    assert both.epsilon.value == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert both.guesses == 100
    assert both.epsilon.value < (judge(scores, coins, 1.0).epsilon.value or 0)
    assert "2 numbers" in both.epsilon.method
    # Where only the extremes tell, fewer guesses show more.
    weak = [True] * 20 + [False, True] * 30 + [False] * 20
    assert judge(scores, weak, 0.4, 1.0).guesses == 40


def test_the_opposite_scores_give_the_opposite_bound() -> None:
    coins = [True] * 50 + [False] * 50
    scores = np.arange(100.0)[::-1]
    right, wrong = judge(scores, coins, 1.0), judge(-scores, coins, 1.0)
    assert (wrong.epsilon.value, wrong.mirrored) == (0.0, right.epsilon.value)
    assert (right.mirrored, wrong.correct) == (0.0, 0)


def test_ties_are_broken_whatever_the_coins_are_and_the_order_shows_nothing() -> None:
    """All scores alike, the coins in order: a sort that kept the order would be right every time."""
    coins = [True] * 50 + [False] * 50
    counts = [judge(np.zeros(100), coins, 1.0, seed=seed).correct for seed in range(400)]
    assert abs(np.mean(counts) - 50) < 4 * 5 / math.sqrt(400)
    assert judge(np.zeros(100), coins, 1.0, seed=5).correct == judge(np.zeros(100), coins, 1.0, seed=5).correct
    assert sum(judge(np.zeros(100), coins, 0.25, 1.0, seed=s).epsilon.value > 0 for s in range(400)) <= 20 + 4 * 4.4  # type: ignore[operator]


def test_without_a_guess_there_is_no_bound() -> None:
    found = judge(np.array([1.0]), [True], 1.0)
    assert found.epsilon.value is None
    assert "too few canaries" in found.epsilon.method
    assert judge(np.arange(4.0), [True, False, True, False], 1.0).ceiling == 0  # even four right ones show nothing


@pytest.mark.parametrize("shares", [(1.0,), (0.25, 1.0), (0.1, 0.2, 0.3, 0.5, 1.0)], ids=len)
def test_a_bot_that_knows_nothing_is_called_a_leak_at_most_as_often_as_promised(shares: tuple[float, ...]) -> None:
    n = 1000
    rng = np.random.default_rng(7)
    alarms = sum(
        (judge(rng.normal(size=60), (rng.random(60) < 0.5).tolist(), *shares, seed=i).epsilon.value or 0) > 0
        for i in range(n)
    )
    assert alarms <= binom.ppf(0.999, n, 0.05)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_exceeds_its_epsilon_at_most_as_often_as_promised(epsilon: float) -> None:
    """Each score tells its coin with probability e^eps / (1 + e^eps): exactly epsilon-private, and the hardest case."""
    n, m = 1000, 80
    rng = np.random.default_rng(8)
    q = 1 / (1 + math.exp(-epsilon))
    bounds = []
    for i in range(n):
        coins = rng.random(m) < 0.5
        told = np.where(rng.random(m) < q, coins, ~coins)
        bounds.append(judge(told.astype(float), coins.tolist(), 0.5, 1.0, seed=i).epsilon.value or 0.0)
    assert sum(bound > epsilon for bound in bounds) <= binom.ppf(0.999, n, 0.05)
    assert np.mean(bounds) > 0.2 * epsilon  # and it is not idle
