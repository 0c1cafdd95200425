"""Differentially private training: one dialogue more or less changes the distribution of weights by at most epsilon.

Guarantees: every step draws each member independently, clips each dialogue's gradient (all its turns together) to one
norm, adds Gaussian noise and divides by a constant; epsilon is computed from a ledger that is written before each
update and never rolled back. Training stops before the target is exceeded, also over kills and resumes.

What voids the guarantee: choosing these settings by looking at results on the members; several dialogues of one person
(the unit is the dialogue); `insecure_seed`. The report's `does_not_cover` lists the rest. The noise comes from torch's
generator, seeded from the operating system: not hardened against attacks on floating-point noise.

Source: Abadi et al. 2016 (arXiv 1607.00133); per-dialogue unit and ledger are hushbot's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hushbot.errors import ConfigError
from hushbot.protocols import Recipe
from hushbot.schema import Schema
from hushbot.training.privacy import LEAST_NOISE
from hushbot.types import Dialogue


@dataclass(frozen=True, kw_only=True)
class DpSgd(Recipe):
    """Train with differential privacy per dialogue."""

    privacy_unit = "dialogue"
    no_effect = ("engine", "chunk_tokens")

    target_epsilon: float | None = 8.0
    """The noise is calibrated so that the planned steps spend at most this; null where `noise_multiplier` is given."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise in units of `max_grad_norm`, at least 0.01; needs `target_epsilon=null`."""
    delta: float | None = None
    """The probability with which epsilon may fail, below 1/members; null is members to the power of -1.1."""
    max_grad_norm: float = 1.0
    """Each dialogue's gradient is scaled down to this norm; the trainer's own setting is not used."""
    expected_batch_size: int = 64
    """Dialogues that a step draws on average; the trainer's `batch_size` is then for calibration only."""
    sample_rate: float | None = None
    """The probability of each dialogue in each step; null is expected_batch_size / members, at most 1."""
    learning_rate: float | None = None
    """The highest learning rate; null is the trainer's."""
    accountant: Literal["prv", "rdp"] = "prv"
    """How epsilon is computed: `prv` is tighter, `rdp` faster."""
    engine: Literal["auto", "loop", "hooks", "opacus"] = "auto"
    """How gradients per dialogue are computed; all give the same, up to rounding. `auto` is hooks where it can."""
    chunk_tokens: int = 2048
    """Tokens that go through the model at once: memory against speed, no effect on the result."""
    insecure_seed: int | None = None
    """For tests: repeatable sampling and noise. Anyone who knows it can remove the noise, so no epsilon is reported."""

    def __post_init__(self) -> None:
        rules = (
            ("target_epsilon", _is_positive(self.target_epsilon), "positive and finite, or null"),
            ("noise_multiplier", _is_positive(self.noise_multiplier), "positive and finite, or null"),
            ("delta", self.delta is None or 0 < self.delta < 1, "in (0, 1), or null"),
            ("max_grad_norm", 0 < self.max_grad_norm < math.inf, "positive and finite"),
            ("expected_batch_size", self.expected_batch_size >= 1, "at least 1"),
            ("sample_rate", self.sample_rate is None or 0 < self.sample_rate <= 1, "in (0, 1], or null"),
            ("learning_rate", _is_positive(self.learning_rate), "positive and finite, or null"),
            ("accountant", self.accountant in ("prv", "rdp"), "prv or rdp (gdp would report too little)"),
            ("engine", self.engine in ("auto", "loop", "hooks", "opacus"), "auto, loop, hooks or opacus"),
            ("chunk_tokens", self.chunk_tokens >= 1, "at least 1"),
            ("insecure_seed", self.insecure_seed is None or self.insecure_seed >= 0, "at least 0, or null"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set recipe.dp_sgd.{name}"
            for name, ok, rule in rules
            if not ok
        ]
        if (self.target_epsilon is None) == (self.noise_multiplier is None):
            problems.append(
                f"target_epsilon={self.target_epsilon} and noise_multiplier={self.noise_multiplier}: exactly one must "
                "be set, the other null; set recipe.dp_sgd.target_epsilon=null to give the noise yourself"
            )
        noise = self.noise_multiplier
        if self.insecure_seed is None and noise is not None and 0 < noise < LEAST_NOISE:
            problems.append(
                f"noise_multiplier={noise} must be at least {LEAST_NOISE}, below which epsilon is infinite; set "
                "recipe.dp_sgd.noise_multiplier"
            )
        if problems:
            raise ConfigError(*problems)

    def privatize(self, module: Any) -> Any:
        """Return the module whose gradient step is private.

        Raises:
            ConfigError: The module's step is not the one that this recipe makes private.
        """
        from hushbot.training.module import TaskBot
        from hushbot.training.private_module import PrivateTaskBot

        if type(module) is not TaskBot:  # a subclass may do with the members what no ledger sees
            raise ConfigError(
                f"recipe.dp_sgd makes a TaskBot private, got a {type(module).__name__}; leave out the recipe that "
                "replaced it, or name dp_sgd once"
            )
        return PrivateTaskBot(module.model, module.plan, self)

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Return a warning where the run is not private."""
        if self.insecure_seed is None:
            return ()
        return (
            f"insecure_seed={self.insecure_seed} makes the noise known, so this run is NOT private and no epsilon is "
            "reported; set recipe.dp_sgd.insecure_seed=null",
        )


def _is_positive(value: float | None) -> bool:
    return value is None or 0 < value < math.inf
