"""The law of the next token, against a plain re-implementation on a grid of uniforms."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from hushbot.errors import AuditError
from hushbot.targets.choosing import choose_tokens, draw_uniforms, law_logits, pick, pick_each
from hushbot.types import Decoding

LOGITS = [2.0, -1.0, 0.5, 0.0, -0.5, 1.5, -3.0]
N = 5000


def law(logits: list[float], decoding: Decoding, generated: list[int]) -> list[float]:
    """Compute the next token's probabilities, one token at a time."""
    logits = list(logits)
    for token in set(generated):
        penalty = decoding.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    weights = [math.exp(x / decoding.temperature) for x in logits]
    ranked = sorted(range(len(weights)), key=lambda i: -weights[i])
    if decoding.top_k:
        ranked = ranked[: decoding.top_k]
    total = sum(weights[i] for i in ranked)
    kept, reached = [], 0.0
    for i in ranked:
        kept.append(i)
        reached += weights[i] / total
        if reached >= decoding.top_p:
            break
    total = sum(weights[i] for i in kept)
    return [weights[i] / total if i in kept else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize(
    "decoding",
    [
        Decoding(),
        Decoding(temperature=0.5),
        Decoding(temperature=3.0, top_k=4),
        Decoding(top_k=1),
        Decoding(top_p=0.75),
        Decoding(top_p=0.05),
        Decoding(repetition_penalty=1.7),
        Decoding(temperature=1.3, top_k=5, top_p=0.8, repetition_penalty=1.4),
    ],
    ids=str,
)
@pytest.mark.parametrize("generated", [[], [0, 4, 0]], ids=["fresh", "repeating"])
def test_grid_of_uniforms_gives_each_token_its_share(decoding: Decoding, generated: list[int]) -> None:
    uniforms = [(i + 0.5) / N for i in range(N)]
    rows = torch.tensor([LOGITS]).expand(N, -1)
    counts = Counter(choose_tokens(rows, uniforms, decoding, [generated] * N))
    for token, share in enumerate(law(LOGITS, decoding, generated)):
        assert counts[token] == pytest.approx(N * share, abs=1.01)
        assert counts[token] == 0 or share > 0


def test_rows_do_not_mix() -> None:
    decoding = Decoding(top_k=2, repetition_penalty=100.0)
    logits = torch.tensor([[5.0, 4.0, 3.0], [5.0, 4.0, 3.0], [5.0, 4.0, 3.0]])
    assert choose_tokens(logits, [0.0, 0.0, 0.0], decoding, [[], [0], [0, 1]]) == [0, 1, 0]
    assert choose_tokens(logits, [0.99, 0.99, 0.99], decoding, [[], [0], [0, 1]]) == [1, 2, 2]


def test_greedy_takes_the_largest_logit_after_the_penalty() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    greedy = Decoding(temperature=0, repetition_penalty=2.0)
    assert choose_tokens(logits, [0.0, 0.0], greedy, [[], [1]]) == [1, 2]


def test_a_uniform_at_the_end_never_reaches_an_impossible_token() -> None:
    logits = torch.tensor([[0.0, 1.0, -math.inf]])
    assert choose_tokens(logits, [math.nextafter(1.0, 0.0)], Decoding(), [[]]) == [1]
    assert choose_tokens(torch.tensor([[-math.inf, 1.0]]), [0.0], Decoding(), [[]]) == [1]


def test_a_tiny_temperature_does_not_overflow() -> None:
    assert choose_tokens(torch.tensor([[1.0, 1.1]]), [0.3], Decoding(temperature=1e-30), [[]]) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float, temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, bad]])
    with pytest.raises(AuditError, match="not finite"):
        choose_tokens(logits, [0.5, 0.5], Decoding(temperature=temperature), [[], []])


def test_uniforms_belong_to_seed_position_draw_and_step() -> None:
    first = draw_uniforms(7, 3, 2, 5)
    assert first == draw_uniforms(7, 3, 2, 9)[:5]
    others = [draw_uniforms(*key, 5) for key in ((8, 3, 2), (7, 2, 3), (7, 2, 2), (7, 3, 1), (-7, 3, 2))]
    values = [u for row in [first, *others] for u in row]
    assert len(set(values)) == len(values)
    assert all(0 <= u < 1 for u in values)


def test_first_uniforms_of_many_draws_are_spread_evenly() -> None:
    counts = Counter(int(10 * draw_uniforms(0, 0, draw, 1)[0]) for draw in range(5000))
    # Chi-square with 9 degrees of freedom: 27.9 is its 0.1% point.
    assert sum((counts[i] - 500) ** 2 / 500 for i in range(10)) < 27.9


@pytest.mark.parametrize(
    "options", [{"typical_p": 0.3}, {"typical_p": 0.8}, {"top_k": 5, "top_p": 0.9, "typical_p": 0.6}]
)
def test_typical_sampling_is_that_of_transformers(options: dict[str, Any]) -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper

    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(40, 30, generator=generator)
    expected = logits.clone()
    ids = torch.zeros(40, 1, dtype=torch.long)
    if "top_k" in options:
        expected = TopKLogitsWarper(options["top_k"])(ids, expected)
        expected = TopPLogitsWarper(options["top_p"])(ids, expected)
    expected = TypicalLogitsWarper(options["typical_p"])(ids, expected)
    ours = torch.softmax(law_logits(logits, Decoding(**options), [[]] * 40), dim=-1)
    assert torch.allclose(ours, torch.softmax(expected, dim=-1), atol=1e-6)


def test_a_falling_temperature_is_that_of_each_row_s_step() -> None:
    """5, 3, 1, 1: the paper's schedule."""
    decoding = Decoding(start_temperature=5, temperature_step=2)
    generated: list[list[int]] = [[], [1], [1, 1], [1, 1, 1]]
    logits = torch.tensor([LOGITS] * 4)
    ours = torch.softmax(law_logits(logits, decoding, generated), dim=-1)
    expected = torch.stack([torch.softmax(torch.tensor(LOGITS) / t, dim=-1) for t in (5.0, 3.0, 1.0, 1.0)])
    assert torch.allclose(ours, expected, atol=1e-6)


def test_a_temperature_may_fall_to_greedy() -> None:
    decoding = Decoding(temperature=0, start_temperature=1, temperature_step=1)
    assert not decoding.is_deterministic
    chosen = choose_tokens(torch.tensor([LOGITS] * 2), [0.999999, 0.999999], decoding, [[], [2]])
    assert chosen == [6, 0]


def test_each_of_many_draws_is_the_one_it_would_be_alone() -> None:
    rng = np.random.default_rng(0)
    scores = torch.tensor(rng.normal(size=(5, 40)) * 3)
    uniforms = [rng.random(n) for n in (1, 7, 1, 3, 7)]
    drawn = pick_each(scores, uniforms)
    for row, numbers, tokens in zip(scores, uniforms, drawn, strict=True):
        assert tokens == [pick(row[None], [number])[0] for number in numbers.tolist()]
    assert len({token for tokens in drawn for token in tokens}) > 5


@pytest.mark.parametrize("n_tokens", [8192, 8192 + 100])
def test_a_large_vocabulary_is_searched_as_a_small_one_is(n_tokens: int) -> None:
    rng = np.random.default_rng(1)
    scores = torch.tensor(rng.normal(size=(40, n_tokens)) * 4).float()
    scores[:, rng.permutation(n_tokens)[: n_tokens // 2]] = -math.inf
    scores[:20, 300:7000] = -math.inf  # whole blocks without any probability
    scores[20:, :7900] -= 60.0  # and some with next to none before those with nearly all
    uniforms = [*rng.random(36), 0.0, 1.0 - 2.0**-53, 1e-30, 0.5]
    for row, number, token in zip(scores, uniforms, pick(scores, uniforms), strict=True):
        cumulative = np.cumsum(torch.softmax(row, dim=0).double().numpy())
        assert row[token] > -math.inf
        assert token == np.searchsorted(cumulative, min(number, 1 - 1e-12) * cumulative[-1], side="right")


def test_a_block_of_little_probability_is_searched_as_exactly_as_any_other() -> None:
    scores = torch.full((1, 8192), -math.inf)
    scores[0, [0, 5000, 5001]] = torch.tensor([1.0, 1e-12, 3e-12]).log()
    assert [pick(scores, [1 - u])[0] for u in (1e-11, 3.5e-12, 1e-12)] == [0, 5000, 5001]
