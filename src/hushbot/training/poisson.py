"""Poisson batches: every step draws every dialogue with the same probability, independently of all others.

Guarantees: exactly the sampling that epsilon is computed for. Batches differ in size, empty ones are batches too, a
dialogue may stand in many batches of an epoch or in none, and nothing is dropped, padded or topped up. Draws come from
the given generator alone: they neither depend on torch's global random state nor touch it. A step knows nothing of
the steps before, so a resumed run may draw anew, and must: batches that can be foretold amplify no privacy.

What voids it: a generator whose seed is known; dropping, splitting or merging batches afterwards. Torch's generators
are not cryptographic ones: `secret_generator` gives them a start that cannot be guessed, no more.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from weakref import WeakSet

import torch

from hushbot.errors import ConfigError, PrivacyError

_N_WORDS = 624  # of the Mersenne twister, which are the words 3 to 626 of the state that torch hands out
_FIRST_WORD = 3
_SECRET: WeakSet[torch.Generator] = WeakSet()


@dataclass(frozen=True, kw_only=True)
class PoissonBatches:
    """So many independent draws an epoch."""

    n_dialogues: int
    sample_rate: float
    """Probability with which a step draws each dialogue."""
    n_steps: int
    """Logical batches an epoch."""
    generator: torch.Generator
    """Advanced by every epoch that is drawn; on the CPU."""

    def __post_init__(self) -> None:
        rules = (
            ("n_dialogues", self.n_dialogues >= 1, "at least 1; set split.members"),
            ("sample_rate", 0 < self.sample_rate <= 1, "in (0, 1]; set recipe.dp_sgd.sample_rate"),
            ("n_steps", self.n_steps >= 1, "at least 1; set recipe.dp_sgd.sample_rate"),
        )
        if problems := [f"{name}={getattr(self, name)!r} must be {rule}" for name, ok, rule in rules if not ok]:
            raise ConfigError(*problems)

    def epoch(self, epoch: int) -> list[list[int]]:
        """Return fresh draws, ascending positions in each; the number of the epoch does not matter."""
        return [self._draw() for _ in range(self.n_steps)]

    def _draw(self) -> list[int]:
        # Doubles, because floats come in steps of 2 ** -24, which is coarse for a small rate.
        numbers = torch.rand(self.n_dialogues, generator=self.generator, dtype=torch.float64)
        positions: list[int] = (numbers < self.sample_rate).nonzero().flatten().tolist()
        return positions


def secret_generator(device: str = "cpu") -> torch.Generator:
    """Return a generator that starts where nobody can know, from the operating system's entropy.

    Raises:
        PrivacyError: This version of torch stores its generator in an unknown way.
    """
    generator = torch.Generator(device=device)
    generator.manual_seed(secrets.randbits(64))
    if generator.device.type == "cpu":
        # On the CPU a seed counts with its lower 32 bits only, few enough to try them all.
        _fill_with_entropy(generator)
    _SECRET.add(generator)
    return generator


def is_secret(generator: torch.Generator) -> bool:
    """Return whether `secret_generator` made a generator, in this process."""
    return generator in _SECRET


def seeded_generator(seed: int, device: str = "cpu") -> torch.Generator:
    """Return a generator for tests: whoever knows the seed can take the noise off again."""
    return torch.Generator(device=device).manual_seed(seed)


def _fill_with_entropy(generator: torch.Generator) -> None:
    state = generator.manual_seed(1).get_state()
    words = state.view(torch.int64)
    # Right after seeding, the first word of a Mersenne twister is the seed; the other two say that none is used up.
    if len(words) < _FIRST_WORD + _N_WORDS or words[: _FIRST_WORD + 1].tolist() != [1, (1 << 32) | 1, 0, 1]:
        raise PrivacyError(
            f"torch {torch.__version__} stores its CPU generator in an unknown way, so its seed would have 32 bits "
            "only; install the torch version of constraints.txt"
        )
    words[_FIRST_WORD : _FIRST_WORD + _N_WORDS] = torch.tensor([secrets.randbits(32) for _ in range(_N_WORDS)])
    generator.set_state(state)
