"""From settings to sampling rate, noise and number of steps."""

from __future__ import annotations

import pytest

from hushbot.errors import ConfigError
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.training.mechanism import plan_mechanism
from hushbot.training.privacy import Spending, epsilon

GIVEN = DpSgd(target_epsilon=None, noise_multiplier=1.5, accountant="rdp")


@pytest.mark.parametrize("n_units", [1000, 93, 99, 105, 147])
def test_an_epoch_draws_each_dialogue_about_once(n_units: int) -> None:
    # 1 / (1 / 93) and its like are not 93 in floating point, which has cost steps elsewhere.
    settings = DpSgd(target_epsilon=None, noise_multiplier=1.0, expected_batch_size=1)
    planned = plan_mechanism(settings, n_units=n_units, max_epochs=2)
    assert (planned.steps_per_epoch, planned.total_steps) == (n_units, 2 * n_units)
    assert planned.sample_rate == 1 / n_units
    assert planned.expected_batch_size == pytest.approx(1.0)


def test_a_part_of_a_step_is_a_step() -> None:
    planned = plan_mechanism(GIVEN, n_units=200, max_epochs=3)
    assert planned.sample_rate == 64 / 200
    assert planned.total_steps == 3 * 4
    assert planned.noise_multiplier == 1.5


def test_few_dialogues_are_all_drawn_in_each_step() -> None:
    planned = plan_mechanism(GIVEN, n_units=10, max_epochs=3)
    assert (planned.sample_rate, planned.steps_per_epoch, planned.expected_batch_size) == (1.0, 1, 10.0)


def test_a_given_rate_decides() -> None:
    settings = DpSgd(target_epsilon=None, noise_multiplier=1.0, sample_rate=0.25, expected_batch_size=3)
    planned = plan_mechanism(settings, n_units=1000, max_epochs=1)
    assert (planned.sample_rate, planned.steps_per_epoch, planned.expected_batch_size) == (0.25, 4, 250.0)


def test_the_noise_is_calibrated_for_the_planned_steps() -> None:
    settings = DpSgd(target_epsilon=2.0, accountant="rdp", expected_batch_size=32)
    planned = plan_mechanism(settings, n_units=1000, max_epochs=3)
    assert planned.total_steps == 96
    assert planned.delta == pytest.approx(1000**-1.1)
    history = [Spending(planned.noise_multiplier, planned.sample_rate, planned.total_steps)]
    assert 1.98 < epsilon(history, delta=planned.delta, accountant="rdp").epsilon <= 2.0


@pytest.mark.parametrize("delta", [0.01, 0.02])
def test_a_delta_that_could_publish_a_dialogue_is_refused(delta: float) -> None:
    settings = DpSgd(target_epsilon=None, noise_multiplier=1.0, delta=delta)
    with pytest.raises(ConfigError, match=r"delta=0.0\d must be in \(0, 1/100\).*recipe.dp_sgd.delta"):
        plan_mechanism(settings, n_units=100, max_epochs=1)


def test_a_single_dialogue_cannot_be_hidden() -> None:
    with pytest.raises(ConfigError, match="too few for differential privacy"):
        plan_mechanism(GIVEN, n_units=1, max_epochs=1)
