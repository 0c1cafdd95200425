"""The numbers of one differentially private training: from settings and the size of the data to what each step does.

Guarantees: sampling rate, number of steps and noise are decided before the first step, from settings and the number of
members alone; nothing of what the members say enters. The number of members is taken as public. Noise is calibrated
with the accountant that also reports, so that the planned steps spend at most the target.

Void if the settings themselves were chosen by looking at results on the members: a search is not accounted for.

Source: Abadi et al. 2016 (DP-SGD, arXiv 1607.00133), with the dialogue as the unit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from hushbot.errors import ConfigError
from hushbot.training.privacy import check_delta, default_delta, noise_multiplier_for

Accountant = Literal["prv", "rdp"]
EngineName = Literal["auto", "loop", "hooks", "opacus"]


class DpSettings(Protocol):
    """The settings of a private training, as the recipe `dp_sgd` documents and checks them."""

    @property
    def target_epsilon(self) -> float | None:
        """Return what the planned steps may spend, or None where the noise is given."""
        ...

    @property
    def noise_multiplier(self) -> float | None:
        """Return the noise in units of the clipping norm, or None where it is calibrated."""
        ...

    @property
    def delta(self) -> float | None:
        """Return delta, or None for the default."""
        ...

    @property
    def max_grad_norm(self) -> float:
        """Return the norm that one dialogue's gradient is clipped to."""
        ...

    @property
    def expected_batch_size(self) -> int:
        """Return how many dialogues a step draws on average."""
        ...

    @property
    def sample_rate(self) -> float | None:
        """Return the probability of each dialogue in each step, or None to derive it."""
        ...

    @property
    def learning_rate(self) -> float | None:
        """Return the highest learning rate, or None for the trainer's."""
        ...

    @property
    def accountant(self) -> Accountant:
        """Return how epsilon is computed."""
        ...

    @property
    def engine(self) -> EngineName:
        """Return how gradients per dialogue are computed."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """Return how many tokens go through the model at once."""
        ...

    @property
    def insecure_seed(self) -> int | None:
        """Return the seed of sampling and noise in tests, or None for secret ones."""
        ...


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One subsampled Gaussian mechanism, run for so many steps."""

    n_units: int
    """Dialogues in the training data, taken as public."""
    sample_rate: float
    """The probability with which each step draws each dialogue, independently of all others."""
    noise_multiplier: float
    """Standard deviation of the noise in units of `max_grad_norm`."""
    max_grad_norm: float
    """Each dialogue's gradient is scaled down to this norm."""
    delta: float
    accountant: Accountant
    target_epsilon: float | None
    """Never exceeded, whatever is resumed; None where the noise was given and nothing limits the steps."""
    steps_per_epoch: int
    """Steps in which each dialogue is drawn about once."""
    total_steps: int

    @property
    def expected_batch_size(self) -> float:
        """Return what every step's sum is divided by: a constant, not how many were drawn."""
        return self.sample_rate * self.n_units


def plan_mechanism(settings: DpSettings, *, n_units: int, max_epochs: int) -> Mechanism:
    """Return the mechanism for so many dialogues and epochs.

    Raises:
        ConfigError: Delta is too large for the data to mean anything, or no noise reaches the target.
    """
    rate = settings.sample_rate or min(1.0, settings.expected_batch_size / n_units)
    delta = settings.delta if settings.delta is not None else default_delta(n_units)
    check_delta(delta, n_units)
    # The margin absorbs the rounding of 1 / (1 / n), which may come out above n and would cost a step.
    steps_per_epoch = math.ceil(1 / rate - 1e-6)
    total_steps = max_epochs * steps_per_epoch
    noise = settings.noise_multiplier
    if noise is None:
        if settings.target_epsilon is None:
            raise ConfigError("neither noise nor target is set; set recipe.dp_sgd.target_epsilon")
        noise = noise_multiplier_for(
            settings.target_epsilon,
            delta=delta,
            sample_rate=rate,
            steps=total_steps,
            accountant=settings.accountant,
        )
    return Mechanism(
        n_units=n_units,
        sample_rate=rate,
        noise_multiplier=noise,
        max_grad_norm=settings.max_grad_norm,
        delta=delta,
        accountant=settings.accountant,
        target_epsilon=settings.target_epsilon,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
    )
