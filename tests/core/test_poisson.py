from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hushbot.errors import ConfigError, PrivacyError
from hushbot.training import poisson
from hushbot.training.data import Batches
from hushbot.training.poisson import PoissonBatches, is_secret, secret_generator, seeded_generator

N, RATE, N_DRAWS = 50, 0.1, 20_000


def draws(seed: int, n_steps: int = 20) -> PoissonBatches:
    return PoissonBatches(n_dialogues=N, sample_rate=RATE, n_steps=n_steps, generator=seeded_generator(seed))


@pytest.fixture(scope="module")
def membership() -> np.ndarray[Any, Any]:
    """Return one row per draw and one column per dialogue, 1 where the draw holds the dialogue."""
    table = np.zeros((N_DRAWS, N))
    for row, batch in enumerate(draws(0, N_DRAWS).epoch(0)):
        table[row, batch] = 1
    return table


def test_each_dialogue_is_drawn_at_the_rate(membership: np.ndarray[Any, Any]) -> None:
    error = math.sqrt(RATE * (1 - RATE) / N_DRAWS)
    assert np.abs(membership.mean(axis=0) - RATE).max() < 4.5 * error


def test_batch_sizes_are_binomial(membership: np.ndarray[Any, Any]) -> None:
    sizes = membership.sum(axis=1)
    assert sizes.mean() == pytest.approx(5.0, abs=0.06)
    assert sizes.var() == pytest.approx(4.5, abs=0.18)
    assert (sizes == 0).mean() == pytest.approx(0.9**50, abs=0.002)


def test_dialogues_and_steps_are_independent(membership: np.ndarray[Any, Any]) -> None:
    pairwise = np.corrcoef(membership.T) - np.eye(N)
    assert np.abs(pairwise).max() < 5 / math.sqrt(N_DRAWS)
    sizes = membership.sum(axis=1)
    assert abs(np.corrcoef(sizes[:-1], sizes[1:])[0, 1]) < 4 / math.sqrt(N_DRAWS)


def test_an_epoch_has_its_steps_empty_ones_included() -> None:
    batches: Batches = PoissonBatches(
        n_dialogues=60, sample_rate=0.01, n_steps=40, generator=torch.Generator().manual_seed(1)
    )
    epoch = batches.epoch(0)
    assert len(epoch) == batches.n_steps == 40
    assert 10 < sum(not batch for batch in epoch) < 35
    assert all(list(batch) == sorted(set(batch)) and all(0 <= i < 60 for i in batch) for batch in epoch)


def test_rate_one_is_everything() -> None:
    batches = PoissonBatches(n_dialogues=7, sample_rate=1.0, n_steps=3, generator=seeded_generator(0))
    assert batches.epoch(0) == [list(range(7))] * 3


def test_each_call_draws_anew() -> None:
    batches = draws(3)
    first = batches.epoch(0)
    assert batches.epoch(0) != first
    assert draws(3).epoch(5) == first, "the same generator gives the same draws, whatever the epoch's number"
    assert draws(4).epoch(0) != first


def test_the_global_random_state_is_neither_used_nor_touched() -> None:
    torch.manual_seed(0)
    first = draws(3).epoch(0)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    assert draws(3).epoch(0) == first
    secret_generator()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("n_dialogues", "sample_rate", "n_steps", "key"),
    [(0, 0.1, 1, "split.members"), (5, 0.0, 1, "sample_rate=0.0"), (5, math.nan, 1, "nan"), (5, 0.1, 0, "n_steps=0")],
)
def test_impossible_sampling_is_refused(n_dialogues: int, sample_rate: float, n_steps: int, key: str) -> None:
    generator = seeded_generator(0)
    with pytest.raises(ConfigError, match=key):
        PoissonBatches(n_dialogues=n_dialogues, sample_rate=sample_rate, n_steps=n_steps, generator=generator)


def comes_from_a_seed(generator: torch.Generator) -> bool:
    """Return whether the state's words follow the recurrence by which a Mersenne twister spreads a 32-bit seed."""
    words = generator.get_state().view(torch.int64)[3:627].tolist()
    steps = range(1, len(words))
    return all(words[i] == (1812433253 * (words[i - 1] ^ (words[i - 1] >> 30)) + i) % 2**32 for i in steps)


def test_a_secret_start_has_more_than_the_32_bits_that_a_seed_counts_with() -> None:
    assert torch.equal(*(torch.rand(3, generator=seeded_generator(s)) for s in (5, 5 + 2**32))), "torch's weakness"
    assert comes_from_a_seed(seeded_generator(5))
    assert not comes_from_a_seed(secret_generator())


def test_secret_generators_differ_and_do_not_follow_the_global_seed() -> None:
    torch.manual_seed(0)
    first = secret_generator()
    torch.manual_seed(0)
    a, b = (torch.rand(1000, generator=g, dtype=torch.float64) for g in (first, secret_generator()))
    assert not torch.equal(a, b)
    assert float(a.mean()) == pytest.approx(0.5, abs=0.06)
    assert len(set(a.tolist())) == 1000


def test_an_unknown_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poisson, "_N_WORDS", 10_000)
    with pytest.raises(PrivacyError, match=r"constraints\.txt"):
        secret_generator()


def test_a_secret_generator_is_known_as_one() -> None:
    assert is_secret(secret_generator())
    assert not is_secret(seeded_generator(0))
    assert not is_secret(torch.default_generator)
