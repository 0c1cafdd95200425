"""How much privacy noisy steps spend, how much noise a budget needs, and how many steps it affords.

A history lists what was done to the training data: so many steps, each on a Poisson sample of the dialogues, each
with Gaussian noise. Epsilon compares data sets that differ in one dialogue added or removed.

Guarantees:

* Every epsilon is an upper bound, and names the accountant that gave it. `prv` composes privacy loss distributions
  numerically; where it cannot be trusted (delta below 1e-9, floating-point trouble, no finite positive result, a
  grid that would not fit into memory) or is the looser of the two, the Renyi bound `rdp` stands in for it.
* Calibrating the noise and stopping in time ask the same function, and return only what it has found to be within
  the target: noise calibrated for some steps affords at least these steps.
* Pure functions: asking changes nothing.

What voids it: batches that are not Poisson samples at the stated rate, a dialogue that contributes more than the
clipping norm, noise drawn twice, steps that are missing in the history, choosing settings by looking at the data.

Sources: Gopi, Lee and Wutschitz 2021 (arXiv 2106.02848) for PRV, Mironov, Talwar and Zhang 2019 (arXiv 1908.10530) for
RDP, both as Opacus implements them. Opacus' third accountant, GDP, is a limit theorem that reports less than was spent.

>>> epsilon([], delta=1e-5)
Spent(epsilon=0.0, accountant='prv')
>>> epsilon([Spending(0.0, 0.01, 100)], delta=1e-5).epsilon
inf
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from hushbot.errors import ConfigError, PrivacyError

ACCOUNTANTS = ("prv", "rdp")
LEAST_PRV_DELTA = 1e-9
"""Below this PRV's rounding errors are no longer small against delta (microsoft/prv_accountant #17)."""
LEAST_NOISE = 0.01
"""Less noise counts as none: epsilon is in the thousands and the formulas overflow."""
MOST_NOISE = 1_000.0
"""More noise counts as this much."""

_LEAST_RATE = 1e-8  # below, (exp(t) + q - 1) / q loses its digits
_MOST_GRID_POINTS = 8_000_000  # about 1.5 GB and some seconds
_LARGE_ORDERS = (64, 80, 96, 128, 192, 256, 384, 512)  # what small epsilons need beyond Opacus' own
_TOLERANCE = 5e-4  # of the target, how much of it calibration may leave unused


class Spending(NamedTuple):
    """Steps of one kind, in the order of fields that Opacus uses."""

    noise_multiplier: float
    """Standard deviation of the noise over the clipping norm."""
    sample_rate: float
    """Probability with which each dialogue takes part in a step."""
    steps: int


class Spent(NamedTuple):
    """What a history cost."""

    epsilon: float
    """An upper bound; infinite where there was no noise."""
    accountant: str
    """Which accountant gave the bound, `prv` or `rdp`."""


class _NoBoundError(Exception):
    """PRV has no bound that can be trusted."""


def check_accountant(accountant: str) -> None:
    """Refuse an accountant whose numbers are no upper bounds.

    Raises:
        ConfigError: It is not one of `ACCOUNTANTS`.
    """
    if accountant in ACCOUNTANTS:
        return
    reason = ": gdp is a limit theorem that reports less than was spent" if accountant == "gdp" else ""
    raise ConfigError(f"accountant={accountant!r} must be prv or rdp{reason}; set recipe.dp_sgd.accountant")


def default_delta(n_dialogues: int) -> float:
    """Return n ** -1.1, which is below 1/n.

    Raises:
        ConfigError: There are fewer than two dialogues, so no delta in (0, 1) is below 1/n in this way.
    """
    if n_dialogues < 2:
        raise ConfigError(f"{n_dialogues} member dialogues are too few for differential privacy; set split.members")
    return float(n_dialogues**-1.1)


def check_delta(delta: float, n_dialogues: int) -> None:
    """Refuse a delta that would allow to publish some dialogue whole.

    Raises:
        ConfigError: It is not in (0, 1/n).
    """
    if not 0 < delta < 1 / n_dialogues:
        raise ConfigError(
            f"delta={delta!r} must be in (0, 1/{n_dialogues}), below one over the number of member dialogues; "
            "set recipe.dp_sgd.delta"
        )


def epsilon(history: Sequence[Spending], *, delta: float, accountant: str = "prv") -> Spent:
    """Return what a history cost at a delta; no step costs nothing.

    Args:
        history: Any number of entries in any order; equal ones are added up.
        delta: The probability with which the bound may fail.
        accountant: `prv` takes the smaller of both bounds where it is sound, `rdp` never looks at PRV.

    Raises:
        ConfigError: The delta or the accountant is none.
        PrivacyError: An entry of the history is impossible.
    """
    check_accountant(accountant)
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta!r} must be in (0, 1); set recipe.dp_sgd.delta")
    merged = merge(history)
    if not merged:
        return Spent(0.0, accountant)
    if min(entry.noise_multiplier for entry in merged) < LEAST_NOISE:
        return Spent(math.inf, accountant)
    bounded = merge([_clipped(entry) for entry in merged])
    renyi = Spent(_rdp_epsilon(bounded, delta), "rdp")
    if accountant == "rdp" or delta < LEAST_PRV_DELTA:
        return renyi
    try:
        numerical = Spent(_prv_epsilon(bounded, delta), "prv")
    except _NoBoundError:
        return renyi
    # Both are upper bounds, so the smaller is one; PRV always adds its grid's error of 0.01.
    return min(numerical, renyi)


def merge(history: Sequence[Spending]) -> tuple[Spending, ...]:
    """Return a history with equal kinds of steps added up and without empty entries, by their first appearance.

    Raises:
        PrivacyError: An entry is impossible.
    """
    steps: dict[tuple[float, float], int] = {}
    for entry in history:
        noise_multiplier, sample_rate, n_steps = entry
        if not (0 <= noise_multiplier < math.inf and 0 < sample_rate <= 1 and n_steps >= 0):
            raise PrivacyError(
                f"{Spending(*entry)} is no kind of noisy step: needs finite noise of at least 0, a rate in (0, 1] and "
                "at least 0 steps; restore the privacy ledger or start a new run in another directory"
            )
        key = (float(noise_multiplier), float(sample_rate))
        steps[key] = steps.get(key, 0) + n_steps
    return tuple(Spending(*key, n) for key, n in steps.items() if n)


def noise_multiplier_for(
    target_epsilon: float, *, delta: float, sample_rate: float, steps: int, accountant: str = "prv"
) -> float:
    """Return the least noise whose steps stay within the target, a little more rather than less.

    Raises:
        ConfigError: No noise up to `MOST_NOISE` is enough, or an argument is out of range.
    """
    _check_plan(target_epsilon, sample_rate, steps)

    def cost(noise: float, by: str) -> float:
        return epsilon([Spending(noise, sample_rate, steps)], delta=delta, accountant=by).epsilon

    # RDP is cheap and its answer is close above PRV's, which then takes few evaluations.
    noise = _least_noise(lambda noise: cost(noise, "rdp"), target_epsilon, start=1.0, factor=2.0)
    if accountant != "rdp":
        start = MOST_NOISE if noise is None else noise
        noise = _least_noise(lambda noise: cost(noise, accountant), target_epsilon, start=start, factor=1.25)
    if noise is None:
        least = cost(MOST_NOISE, accountant)
        raise ConfigError(
            f"target_epsilon={target_epsilon!r} is out of reach: {steps} steps at sample_rate={sample_rate:.4g} and "
            f"delta={delta:.3g} are only known to cost at most {least:.3g}, whatever the noise; raise "
            "recipe.dp_sgd.target_epsilon or recipe.dp_sgd.delta, or lower recipe.dp_sgd.expected_batch_size or "
            "trainer.max_epochs"
        )
    return noise


def affordable_steps(
    history: Sequence[Spending],
    *,
    next_step: Spending,
    delta: float,
    target_epsilon: float,
    accountant: str = "prv",
) -> int:
    """Return how many of the steps that are planned next, at most all of them, stay within the target.

    Args:
        history: What was spent already.
        next_step: Noise and rate of the steps to come, and how many are planned.
        delta: The probability with which the bound may fail.
        target_epsilon: Never exceeded by history and returned steps together; infinite allows everything.
        accountant: The one the noise was calibrated with.

    Raises:
        ConfigError: The target is not positive.
    """
    if not target_epsilon > 0:
        raise ConfigError(f"target_epsilon={target_epsilon!r} must be positive; set recipe.dp_sgd.target_epsilon")

    def cost(n_steps: int) -> float:
        return epsilon([*history, next_step._replace(steps=n_steps)], delta=delta, accountant=accountant).epsilon

    planned = next_step.steps
    low, high = 0, planned
    cost_high = cost(high)
    if cost_high <= target_epsilon:
        return planned
    cost_low = cost(low)
    if cost_low > target_epsilon:
        return 0
    # Epsilon grows smoothly with the steps, so interpolating finds the place in a few evaluations of PRV; every
    # other guess is the middle, which bounds their number where it does not.
    is_middle = False
    while high - low > 1:
        share = (target_epsilon - cost_low) / (cost_high - cost_low)
        guess = (low + high) // 2 if is_middle else low + math.floor((high - low) * share)
        guess = min(max(guess, low + 1), high - 1)
        is_middle = not is_middle
        if (at_guess := cost(guess)) <= target_epsilon:
            low, cost_low = guess, at_guess
        else:
            high, cost_high = guess, at_guess
    return low


def _check_plan(target_epsilon: float, sample_rate: float, steps: int) -> None:
    rules = (
        ("target_epsilon", target_epsilon, 0 < target_epsilon < math.inf, "positive and finite"),
        ("sample_rate", sample_rate, 0 < sample_rate <= 1, "in (0, 1]"),
    )
    problems = [
        f"{name}={value!r} must be {rule}; set recipe.dp_sgd.{name}" for name, value, ok, rule in rules if not ok
    ]
    if steps < 1:
        problems.append(f"steps={steps!r} must be at least 1; set trainer.max_epochs")
    if problems:
        raise ConfigError(*problems)


def _least_noise(cost: Callable[[float], float], target: float, *, start: float, factor: float) -> float | None:
    """Return nearly the least noise whose cost was found to be within the target, or None if there is none."""
    high, cost_high = start, cost(start)
    while cost_high > target:
        if high >= MOST_NOISE:
            return None
        high = min(high * factor, MOST_NOISE)
        cost_high = cost(high)
    low, cost_low = high, cost_high
    while cost_low <= target:
        high, cost_high = low, cost_low
        if low <= LEAST_NOISE:
            return low
        low = max(low / factor, LEAST_NOISE)
        cost_low = cost(low)
    is_middle = False
    while target - cost_high > _TOLERANCE * target and high / low > 1 + 1e-5:
        share = math.log(cost_low / target) / math.log(cost_low / max(cost_high, 1e-12))  # with a large delta 0
        # Aim a little above the target's place: what is within the target ends the search, what exceeds it does not.
        share = 0.5 if is_middle or math.isnan(share) else min(max(share + 0.01, 0.02), 0.98)
        guess = low * (high / low) ** share
        is_middle = not is_middle
        if (at_guess := cost(guess)) <= target:
            high, cost_high = guess, at_guess
        else:
            low, cost_low = guess, at_guess
    return high


def _clipped(entry: Spending) -> Spending:
    """Return an entry within the range of the formulas that costs as much or more."""
    return entry._replace(
        noise_multiplier=min(entry.noise_multiplier, MOST_NOISE), sample_rate=max(entry.sample_rate, _LEAST_RATE)
    )


@lru_cache(maxsize=1024)
def _rdp_epsilon(history: tuple[Spending, ...], delta: float) -> float:
    from opacus.accountants import RDPAccountant  # imports torch

    accountant = RDPAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings():
        # An extreme order is the best of those that were tried: the bound holds, and more orders were tried here.
        warnings.filterwarnings("ignore", message="Optimal order", category=UserWarning)
        found = float(accountant.get_epsilon(delta, alphas=[*RDPAccountant.DEFAULT_ALPHAS, *_LARGE_ORDERS]))
    if math.isnan(found):
        raise PrivacyError(f"no epsilon could be had for {history!r} at delta={delta!r}; raise the noise multiplier")
    return max(found, 0.0)


@lru_cache(maxsize=1024)
def _prv_epsilon(history: tuple[Spending, ...], delta: float) -> float:
    import numpy as np
    from opacus.accountants import PRVAccountant
    from scipy.integrate import IntegrationWarning

    if _n_grid_points(history, delta) > _MOST_GRID_POINTS:
        raise _NoBoundError
    accountant = PRVAccountant()
    accountant.history = list(history)
    with warnings.catch_warnings(), np.errstate(over="raise", invalid="raise", divide="ignore", under="ignore"):
        # An overflow goes on as NaN inside the accountant and comes out as a plausible, far too small number.
        warnings.filterwarnings("ignore", message="Optimal order", category=UserWarning)
        warnings.filterwarnings("error", category=IntegrationWarning)
        try:
            found = float(accountant.get_epsilon(delta))
        except (ArithmeticError, IndexError, IntegrationWarning, MemoryError, RuntimeError, ValueError) as error:
            raise _NoBoundError from error
    if not 0 < found < math.inf:
        raise _NoBoundError
    return found


def _n_grid_points(history: tuple[Spending, ...], delta: float) -> float:
    """Return how many points PRV's grid would have, by its own rules for width and mesh (errors 0.01, delta/1000)."""
    width = 2 * (_rdp_epsilon(history, delta / 4000) + 3)
    n_steps = sum(entry.steps for entry in history)
    return width / 0.01 * math.sqrt(n_steps * math.log(12_000 / delta) / 2)
