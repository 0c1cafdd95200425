from __future__ import annotations

import math
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from hushbot.errors import ConfigError, PrivacyError
from hushbot.training import privacy
from hushbot.training.privacy import (
    Spending,
    Spent,
    affordable_steps,
    check_accountant,
    check_delta,
    default_delta,
    epsilon,
    merge,
    noise_multiplier_for,
)

DELTA = 1000**-1.1
RATE, STEPS = 0.032, 94
"""1000 dialogues, 32 a step, three epochs: the setting of the design notes' tables."""


@pytest.fixture
def fresh_cache() -> Iterator[None]:
    privacy._prv_epsilon.cache_clear()
    yield
    privacy._prv_epsilon.cache_clear()


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Return the exact epsilon of one Gaussian mechanism of sensitivity 1 (Balle and Wang 2018)."""

    def excess(eps: float) -> float:
        first = norm.cdf(1 / (2 * noise) - eps * noise)
        return float(first - math.exp(eps) * norm.cdf(-1 / (2 * noise) - eps * noise) - delta)

    return float(brentq(excess, 0, 100))


def one_step_epsilon(noise: float, rate: float, delta: float) -> float:
    """Return the exact epsilon of one subsampled step: integrate the likelihoods where one exceeds the other."""
    x, width = np.linspace(-12 * noise, 1 + 12 * noise, 400_001, retstep=True)
    without = norm.pdf(x, 0, noise)
    with_it = (1 - rate) * without + rate * norm.pdf(x, 1, noise)

    def excess(eps: float) -> float:
        pairs = ((with_it, without), (without, with_it))
        return max(float(np.maximum(p - math.exp(eps) * q, 0).sum() * width) for p, q in pairs) - delta

    return float(brentq(excess, 0, 50))


def assert_spent(found: Spent, accountant: str, value: float, within: float = 0.02) -> None:
    assert found.accountant == accountant
    assert found.epsilon == pytest.approx(value, abs=within)


@pytest.mark.parametrize(
    ("noise", "rdp", "prv"),
    [(0.5, 11.05, 8.89), (0.6, 6.74, 5.35), (0.8, 3.14, 2.46), (1.0, 1.81, 1.44), (1.5, 0.80, 0.68), (2.0, 0.51, 0.44)],
)
def test_known_values(noise: float, rdp: float, prv: float) -> None:
    history = [Spending(noise, RATE, STEPS)]
    assert_spent(epsilon(history, delta=DELTA, accountant="rdp"), "rdp", rdp)
    assert_spent(epsilon(history, delta=DELTA), "prv", prv)


@pytest.mark.parametrize(("delta", "expected"), [(1e-3, 1.30), (1e-4, 1.76), (1e-5, 2.21)])
def test_smaller_delta_costs_more(delta: float, expected: float) -> None:
    assert epsilon([Spending(1.0, RATE, STEPS)], delta=delta).epsilon == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("kinds", [[(5.0, 25)], [(3.0, 9), (4.0, 16)], [(0.7, 1)]])
def test_whole_batches_cost_what_one_gaussian_costs(kinds: list[tuple[float, int]]) -> None:
    """Without sampling, the steps compose to one Gaussian mechanism: 25 steps at noise 5 are one at noise 1."""
    exact = gaussian_epsilon(sum(n / s**2 for s, n in kinds) ** -0.5, 1e-5)
    history = [Spending(s, 1.0, n) for s, n in kinds]
    assert exact <= epsilon(history, delta=1e-5).epsilon <= exact + 0.03
    assert exact <= epsilon(history, delta=1e-5, accountant="rdp").epsilon <= 1.3 * exact + 0.5


@pytest.mark.parametrize(("noise", "rate"), [(0.5, 0.032), (1.0, 0.3)])
def test_one_step_costs_what_its_likelihood_ratio_says(noise: float, rate: float) -> None:
    exact = one_step_epsilon(noise, rate, 1e-4)
    assert exact <= epsilon([Spending(noise, rate, 1)], delta=1e-4).epsilon <= exact + 0.03


def test_no_step_costs_nothing() -> None:
    assert epsilon([], delta=1e-5) == Spent(0.0, "prv")
    assert epsilon([Spending(0.0, 0.1, 0)], delta=1e-5, accountant="rdp") == Spent(0.0, "rdp")


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
@pytest.mark.parametrize("noise", [0.0, 0.001, 1e-200])
def test_a_step_without_noise_costs_everything(noise: float, accountant: str) -> None:
    history = [Spending(5.0, 0.1, 3), Spending(noise, 0.1, 1)]
    assert epsilon(history, delta=1e-5, accountant=accountant).epsilon == math.inf


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_a_split_history_costs_what_the_whole_does(accountant: str) -> None:
    whole = [Spending(1.0, RATE, 94), Spending(2.0, 0.05, 10)]
    parts = [Spending(1.0, RATE, 40), Spending(2.0, 0.05, 10), Spending(1.0, RATE, 54), Spending(3.0, 0.5, 0)]
    assert epsilon(parts, delta=DELTA, accountant=accountant) == epsilon(whole, delta=DELTA, accountant=accountant)
    assert merge(parts) == tuple(whole)


def test_kinds_that_hardly_differ_cost_what_one_kind_does() -> None:
    """Composing different kinds of steps takes another way through PRV than repeating one."""
    mixed = epsilon([Spending(1.0, RATE, 47), Spending(1.0 + 1e-9, RATE, 47)], delta=DELTA)
    assert_spent(mixed, "prv", epsilon([Spending(1.0, RATE, 94)], delta=DELTA).epsilon, within=0.005)


def test_asking_changes_nothing() -> None:
    history = [Spending(1.0, RATE, 40), Spending(1.0, RATE, 54)]
    first = epsilon(history, delta=DELTA)
    assert epsilon(history, delta=DELTA) == first
    assert history == [Spending(1.0, RATE, 40), Spending(1.0, RATE, 54)]


def test_extreme_settings_stay_bounds() -> None:
    """Beyond the formulas' range an entry counts as the nearest one that costs more."""
    assert epsilon([Spending(1e9, RATE, 10)], delta=1e-5) == epsilon([Spending(1e3, RATE, 10)], delta=1e-5)
    assert 0 < epsilon([Spending(1.0, 1e-12, 10)], delta=1e-5).epsilon < 0.02


@pytest.mark.parametrize(
    "entry",
    [
        Spending(-1.0, 0.1, 1),
        Spending(math.nan, 0.1, 1),
        Spending(math.inf, 0.1, 1),
        Spending(1.0, 0.0, 1),
        Spending(1.0, 1.1, 1),
        Spending(1.0, math.nan, 1),
        Spending(1.0, 0.1, -1),
    ],
)
def test_impossible_entries_are_refused(entry: Spending) -> None:
    with pytest.raises(PrivacyError, match="no kind of noisy step"):
        epsilon([Spending(1.0, 0.1, 5), entry], delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_impossible_deltas_are_refused(delta: float) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.dp_sgd\.delta"):
        epsilon([Spending(1.0, 0.1, 1)], delta=delta)


def test_gdp_is_not_offered() -> None:
    with pytest.raises(ConfigError, match=r"gdp.*less than was spent.*recipe\.dp_sgd\.accountant"):
        epsilon([], delta=1e-5, accountant="gdp")
    with pytest.raises(ConfigError, match="'moments' must be prv or rdp"):
        check_accountant("moments")


# --- where PRV cannot be trusted ---


@pytest.mark.parametrize(
    "error", [ValueError, RuntimeError, IndexError, MemoryError, OverflowError, FloatingPointError, ZeroDivisionError]
)
@pytest.mark.usefixtures("fresh_cache")
def test_rdp_stands_in_when_prv_raises(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> float:
        raise error

    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", fail)
    history = [Spending(1.0, RATE, STEPS)]
    assert epsilon(history, delta=DELTA) == epsilon(history, delta=DELTA, accountant="rdp")


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -0.3])
@pytest.mark.usefixtures("fresh_cache")
def test_rdp_stands_in_when_prv_gives_no_bound(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", lambda *_: value)
    assert_spent(epsilon([Spending(1.0, RATE, STEPS)], delta=DELTA), "rdp", 1.81)


@pytest.mark.usefixtures("fresh_cache")
def test_a_bug_is_not_taken_for_numerical_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> float:
        raise TypeError("a bug")

    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", fail)
    with pytest.raises(TypeError, match="a bug"):
        epsilon([Spending(1.0, RATE, STEPS)], delta=DELTA)


@pytest.mark.parametrize(
    ("entry", "delta"),
    [
        (Spending(1.0, RATE, STEPS), 9e-10),  # rounding errors are no longer small against delta
        (Spending(0.1, 0.1, 20), 1e-4),  # exp overflows
        (Spending(1.0, 0.01, 1_000_000), 1e-5),  # a grid of tens of millions of points
    ],
)
def test_prv_is_left_aside_where_it_is_unsound(entry: Spending, delta: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = epsilon([entry], delta=delta)
    assert found.accountant == "rdp"
    assert found.epsilon > 2


def test_an_overflow_that_opacus_reports_as_a_number_is_caught() -> None:
    """Opacus alone gives 473 here, out of NaNs; the Renyi bound is 1834."""
    assert_spent(epsilon([Spending(0.1, RATE, STEPS)], delta=DELTA), "rdp", 1834.3, within=1)


def test_the_smaller_bound_is_reported_under_its_name() -> None:
    """With much noise PRV's fixed error of 0.01 is more than all that was spent."""
    assert_spent(epsilon([Spending(100.0, 0.01, 20)], delta=1e-4), "rdp", 0.0039, within=2e-4)


# --- delta ---


def test_default_delta_is_below_one_over_n() -> None:
    assert default_delta(1000) == pytest.approx(5.01e-4, rel=1e-3)
    assert all(default_delta(n) < 1 / n for n in (2, 3, 10, 10**6))


@pytest.mark.parametrize("n", [0, 1])
def test_too_few_dialogues_have_no_delta(n: int) -> None:
    with pytest.raises(ConfigError, match=r"split\.members"):
        default_delta(n)


def test_delta_must_be_below_one_over_n() -> None:
    check_delta(0.0009, 1000)
    for delta in (0.001, 0.5, 0.0, math.nan):
        with pytest.raises(ConfigError, match=r"\(0, 1/1000\).*recipe\.dp_sgd\.delta"):
            check_delta(delta, 1000)


# --- calibration ---


@pytest.mark.parametrize(
    ("target", "accountant", "expected"),
    [
        (0.5, "rdp", 2.04),  # 2.051 with Opacus' own orders; more orders are tighter
        (1.0, "rdp", 1.323),
        (2.0, "rdp", 0.960),
        (4.0, "rdp", 0.729),
        (8.0, "rdp", 0.563),
        (1.0, "prv", 1.201),
        (2.0, "prv", 0.869),
    ],
)
def test_noise_for_a_target(target: float, accountant: str, expected: float) -> None:
    before = privacy._prv_epsilon.cache_info().misses
    noise = noise_multiplier_for(target, delta=DELTA, sample_rate=RATE, steps=STEPS, accountant=accountant)
    assert privacy._prv_epsilon.cache_info().misses - before <= 10, "each takes a good part of a second"
    assert noise == pytest.approx(expected, abs=0.01)
    spent = epsilon([Spending(noise, RATE, STEPS)], delta=DELTA, accountant=accountant).epsilon
    assert 0.999 * target <= spent <= target
    less = epsilon([Spending(0.99 * noise, RATE, STEPS)], delta=DELTA, accountant=accountant).epsilon
    assert less > target


@pytest.mark.parametrize(("target", "accountant"), [(0.05, "rdp"), (1.0, "rdp"), (20.0, "rdp"), (20.0, "prv")])
def test_a_handful_of_dialogues_can_be_calibrated_for(target: float, accountant: str) -> None:
    """Delta is large then, and the Renyi bound 0 for much noise."""
    delta = default_delta(6)
    noise = noise_multiplier_for(target, delta=delta, sample_rate=0.5, steps=4, accountant=accountant)
    assert 0 < epsilon([Spending(noise, 0.5, 4)], delta=delta, accountant=accountant).epsilon <= target


def test_an_absurdly_high_target_still_gets_noise() -> None:
    noise = noise_multiplier_for(1e9, delta=DELTA, sample_rate=RATE, steps=STEPS)
    assert noise == privacy.LEAST_NOISE


def test_an_unreachable_target_is_refused_with_the_settings_to_change() -> None:
    with pytest.raises(ConfigError, match=r"0\.001 is out of reach: 94 steps.*recipe\.dp_sgd\.target_epsilon"):
        noise_multiplier_for(0.001, delta=1e-5, sample_rate=RATE, steps=STEPS)


def test_impossible_plans_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        noise_multiplier_for(-1.0, delta=1e-5, sample_rate=0.0, steps=0)
    keys = ("recipe.dp_sgd.target_epsilon", "recipe.dp_sgd.sample_rate", "trainer.max_epochs")
    assert [key in problem for key, problem in zip(keys, caught.value.problems, strict=True)] == [True] * 3


# --- stopping ---


@pytest.mark.parametrize(("target", "accountant"), [(0.5, "rdp"), (2.0, "rdp"), (8.0, "rdp"), (2.0, "prv")])
def test_calibrated_noise_affords_the_steps_it_was_calibrated_for(target: float, accountant: str) -> None:
    noise = noise_multiplier_for(target, delta=DELTA, sample_rate=RATE, steps=STEPS, accountant=accountant)

    def afford(planned: int) -> int:
        step = Spending(noise, RATE, planned)
        return affordable_steps([], next_step=step, delta=DELTA, target_epsilon=target, accountant=accountant)

    assert afford(STEPS) == STEPS
    assert STEPS <= afford(10 * STEPS) < 1.2 * STEPS


@pytest.mark.parametrize("history", [[], [Spending(1.0, RATE, 30)], [Spending(0.8, 0.05, 7), Spending(1.5, RATE, 20)]])
def test_one_step_more_than_affordable_exceeds_the_target(history: list[Spending]) -> None:
    def cost(n: int) -> float:
        return epsilon([*history, Spending(1.0, RATE, n)], delta=DELTA, accountant="rdp").epsilon

    step = Spending(1.0, RATE, 500)
    n = affordable_steps(history, next_step=step, delta=DELTA, target_epsilon=2.5, accountant="rdp")
    assert n > 0
    assert cost(n) <= 2.5 < cost(n + 1)


def test_prv_stops_right_before_the_target_is_exceeded() -> None:
    history = [Spending(1.0, RATE, 30)]
    before = privacy._prv_epsilon.cache_info().misses
    n = affordable_steps(history, next_step=Spending(1.0, RATE, 400), delta=DELTA, target_epsilon=1.5)
    assert privacy._prv_epsilon.cache_info().misses - before <= 15
    costs = [epsilon([Spending(1.0, RATE, 30 + k)], delta=DELTA).epsilon for k in (n, n + 1)]
    assert costs[0] <= 1.5 < costs[1]


def test_nothing_is_affordable_once_the_target_is_spent() -> None:
    step = Spending(1.0, RATE, 10)
    spent = [Spending(1.0, RATE, 200)]
    assert affordable_steps(spent, next_step=step, delta=DELTA, target_epsilon=1.0, accountant="rdp") == 0
    assert affordable_steps([Spending(0.0, RATE, 1)], next_step=step, delta=DELTA, target_epsilon=8.0) == 0
    bare = Spending(0.0, RATE, 10)
    assert affordable_steps([], next_step=bare, delta=DELTA, target_epsilon=8.0) == 0


def test_no_target_affords_everything() -> None:
    assert affordable_steps([], next_step=Spending(0.0, RATE, 7), delta=DELTA, target_epsilon=math.inf) == 7
    assert affordable_steps([], next_step=Spending(1.0, RATE, 0), delta=DELTA, target_epsilon=1.0) == 0


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
def test_affordable_steps_need_a_positive_target(target: float) -> None:
    with pytest.raises(ConfigError, match=r"recipe\.dp_sgd\.target_epsilon"):
        affordable_steps([], next_step=Spending(1.0, RATE, 1), delta=DELTA, target_epsilon=target)


def test_torch_waits_until_a_number_is_asked_for() -> None:
    code = "import sys, hushbot.training.privacy; sys.exit('torch' in sys.modules or 'opacus' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
