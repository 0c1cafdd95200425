from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from hushbot.one_run import one_run_epsilon


def test_all_right_gives_the_bound_done_by_hand() -> None:
    # p = q^r = 5%, so q = 0.05^(1/r) and epsilon = log(q / (1 - q)).
    q = 0.05 ** (1 / 100)
    bound = one_run_epsilon(100, 100)
    assert bound.epsilon.value == pytest.approx(math.log(q / (1 - q)))
    assert bound.ceiling == bound.epsilon.value


@pytest.mark.parametrize(("correct", "guesses"), [(60, 80), (9, 10), (300, 400)])
def test_bound_is_where_the_binomial_tail_reaches_alpha(correct: int, guesses: int) -> None:
    bound = one_run_epsilon(correct, guesses, level=0.9)
    assert bound.epsilon.value is not None
    assert bound.ceiling is not None
    q = 1 / (1 + math.exp(-bound.epsilon.value))
    assert binom.sf(correct - 1, guesses, q) == pytest.approx(0.1, abs=1e-6)
    assert bound.epsilon.value < bound.ceiling
    assert (bound.epsilon.low, bound.epsilon.high) == (bound.epsilon.value, None)


def test_delta_only_weakens_the_bound_and_matches_a_slow_sum() -> None:
    pure = one_run_epsilon(80, 100).epsilon.value
    bound = one_run_epsilon(80, 100, delta=1e-5, canaries=1000).epsilon.value
    assert pure is not None
    assert bound is not None
    assert bound < pure
    q = 1 / (1 + math.exp(-bound))
    worst = max(sum(binom.pmf(80 - j, 100, q) for j in range(1, i + 1)) / i for i in range(1, 81))
    assert binom.sf(79, 100, q) + 2 * 1000 * 1e-5 * worst == pytest.approx(0.05, abs=1e-6)


def test_a_large_delta_shows_nothing() -> None:
    assert one_run_epsilon(100, 100, delta=0.9, canaries=10**6).epsilon.value == 0.0


def test_coin_tosses_rarely_show_any_epsilon() -> None:
    # Null calibration: guesses without information may exceed 0 with probability at most 5%.
    for guesses in (20, 100):
        shown = [c for c in range(guesses + 1) if one_run_epsilon(c, guesses).epsilon.value]
        assert shown
        assert 0.01 < binom.pmf(shown, guesses, 0.5).sum() <= 0.05


def test_bound_exceeds_a_true_epsilon_with_probability_at_most_alpha() -> None:
    q = 1 / (1 + math.exp(-1.0))
    over = [c for c in range(81) if (one_run_epsilon(c, 80).epsilon.value or 0.0) > 1.0]
    assert 0.01 < binom.pmf(over, 80, q).sum() <= 0.05


def test_bound_grows_with_right_guesses() -> None:
    values = [one_run_epsilon(c, 30).epsilon.value for c in range(31)]
    assert np.all(np.diff(np.array(values, dtype=float)) >= 0)


def test_no_guesses_are_not_measured() -> None:
    bound = one_run_epsilon(0, 0)
    assert (bound.epsilon.value, bound.ceiling) == (None, None)


@pytest.mark.parametrize(
    ("correct", "guesses", "delta", "canaries"),
    [(3, 2, 0.0, None), (-1, 2, 0.0, None), (1, 2, 1.0, 9), (1, 2, 1e-5, None), (1, 2, 1e-5, 1)],
)
def test_impossible_arguments_are_refused(correct: int, guesses: int, delta: float, canaries: int | None) -> None:
    with pytest.raises(ValueError, match=r"correct=|delta="):
        one_run_epsilon(correct, guesses, delta=delta, canaries=canaries)
