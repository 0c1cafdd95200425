from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from hushbot.attacks.membership import score
from hushbot.errors import AuditError
from hushbot.types import Decoding

Pair = tuple[str, str]


@dataclass
class Scripted:
    """A target whose token probabilities are written down, one list per (prompt, continuation)."""

    probabilities: dict[Pair, list[float]]
    asked: list[Pair] = field(default_factory=list)
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise AssertionError("membership scores need no samples")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        pairs = list(zip(prompts, continuations, strict=True))
        self.asked.extend(pairs)
        return [torch.tensor(self.probabilities[pair], dtype=torch.float64).log() for pair in pairs]


HOTEL = {
    ("", "Belief State: Hotel(area=north)"): [1 / 2, 1 / 4, 1 / 8, 1 / 8],
    ("Belief State:", " Hotel(area=north)"): [1 / 8, 1 / 8],
    ("", " Hotel(area=north)"): [1 / 16, 1 / 64],
}
TAXI = {
    ("", "Belief State: Taxi(leave=9)"): [1 / 4, 1 / 4, 1 / 4],
    ("Belief State:", " Taxi(leave=9)"): [1 / 4],
    ("", " Taxi(leave=9)"): [1 / 2],
}
PREFIX = "Belief State:"


def test_scores_are_the_papers_equations_done_by_hand() -> None:
    # In bits: the whole text has 1 + 2 + 3 + 3 = 9 over 4 tokens, the suffix 3 + 3 = 6 over 2 tokens
    # given the prefix and 4 + 6 = 10 bits on its own.
    scores = score(Scripted(HOTEL), [PREFIX], [" Hotel(area=north)"])
    n_bytes = len(zlib.compress(b"Belief State: Hotel(area=north)"))
    assert scores["ppl"] == pytest.approx([2 ** (9 / 4)])
    assert scores["loss"] == pytest.approx([9 / 4 * math.log(2)])
    assert scores["ppl_zlib"] == pytest.approx([9 / 4 * math.log(2) / n_bytes])
    assert scores["c_ppl"] == pytest.approx([2**3])
    assert scores["dc_ppl"] == pytest.approx([6 / 10])
    assert scores["min_k"] == pytest.approx([-3 * math.log(2)])  # 20% of 4 tokens: the worst one


def test_dc_ppl_is_log_c_ppl_over_log_ppl_of_the_suffix() -> None:
    scores = score(Scripted(HOTEL), [PREFIX], [" Hotel(area=north)"])
    ppl_of_suffix = 2 ** (10 / 2)
    assert scores["dc_ppl"] == pytest.approx(np.log(scores["c_ppl"]) / math.log(ppl_of_suffix))


def test_min_k_averages_a_fifth_of_the_tokens() -> None:
    whole = [1 / 2] * 8 + [1 / 16, 1 / 64]
    table = {("", "ab"): whole, ("a", "b"): [0.5], ("", "b"): [0.5]}
    assert score(Scripted(table), ["a"], ["b"])["min_k"] == pytest.approx([-5 * math.log(2)])


def test_texts_keep_their_order_and_each_pair_is_asked_for_once() -> None:
    target = Scripted(HOTEL | TAXI)
    hotel, taxi = " Hotel(area=north)", " Taxi(leave=9)"
    scores = score(target, [PREFIX] * 3, [taxi, hotel, taxi])
    assert scores["dc_ppl"] == pytest.approx([2.0, 0.6, 2.0])
    assert sorted(target.asked) == sorted([*HOTEL, *TAXI])


def test_nothing_to_score_asks_nothing() -> None:
    target = Scripted({})
    assert {name: len(values) for name, values in score(target, [], []).items()} == dict.fromkeys(
        ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k"), 0
    )
    assert target.asked == []


def test_what_has_no_score_is_an_error_and_never_a_number() -> None:
    suffix = " Hotel(area=north)"
    certain = Scripted(HOTEL | {("", suffix): [1.0, 1.0]})
    impossible = Scripted(HOTEL | {("", suffix): [0.5, 0.0]})
    silent = Scripted(HOTEL | {("", suffix): []})
    for target, message in (
        (certain, "certain on its own"),
        (impossible, "not finite"),
        (silent, "no token"),
    ):
        with pytest.raises(AuditError, match=message):
            score(target, [PREFIX], [suffix])
    with pytest.raises(AuditError, match="text 0 has an empty suffix"):
        score(Scripted(HOTEL), [PREFIX], [""])


def test_a_target_that_drops_answers_is_an_error() -> None:
    class Dropping(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            return super().logprobs(prompts, continuations)[:-1]

    with pytest.raises(AuditError, match="answered 2 of 3"):
        score(Dropping(HOTEL), [PREFIX], [" Hotel(area=north)"])


def test_a_perplexity_beyond_the_range_of_numbers_is_an_error() -> None:
    class Appalled(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            return [torch.tensor([-self.cost], dtype=torch.float64) for _ in prompts]

        cost = 709.0

    target = Appalled({})
    assert np.isfinite(score(target, [PREFIX], [" x"])["c_ppl"]).all()
    target.cost = 710.0
    with pytest.raises(AuditError, match="a loss of 710 per token has no finite perplexity"):
        score(target, [PREFIX], [" x"])


@dataclass
class Lettered:
    """A target in which a token is a character, and its probability hangs on the character and its place alone."""

    sizes: list[int] = field(default_factory=list)
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise AssertionError("membership scores need no samples")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        self.sizes.append(len(prompts))
        return [
            torch.tensor([-float(ord(c) % 7 + 1) / (len(prompt) + i + 1) for i, c in enumerate(text)]).double()
            for prompt, text in zip(prompts, continuations, strict=True)
        ]


def test_many_texts_are_asked_about_a_part_at_a_time_with_the_scores_of_one_alone() -> None:
    suffixes = [f" Taxi(leave={i % 1500})" for i in range(2500)]
    target = Lettered()
    scores = score(target, [PREFIX] * len(suffixes), suffixes)
    assert sum(target.sizes) == 3 * 1500
    assert max(target.sizes) <= 3 * 1024
    for i in (0, 7, 1499, 1500, 2499):
        alone = score(Lettered(), [PREFIX], [suffixes[i]])
        assert {name: values[i] for name, values in scores.items()} == {name: v[0] for name, v in alone.items()}
