"""Scores of canaries: a bot whose log-probabilities are written down, and ranks counted by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hushbot.attacks.canary_scores import question, raw_scores, score_canaries
from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.errors import AuditError
from hushbot.schema import Schema, Slot

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = Schema.of([Slot("hotel", "area", True, ("north", "south")), Slot("train", "day", True, ("monday",))])
CANARIES = draw_canaries(SCHEMA, CanarySettings(m=6, kinds=["reference", "phone"]), 0)


@dataclass
class Written:
    """Gives each line of actions, after its prompt, what a function says, spread over two tokens."""

    value: Callable[[str, str], float]
    asked: list[tuple[str, str]] = field(default_factory=list)
    reference: Any = None

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        pairs = list(zip(prompts, continuations, strict=True))
        self.asked += pairs
        return [torch.tensor([value / 4, 3 * value / 4]) for value in (self.value(*pair) for pair in pairs)]


def true_identifier(prompt: str) -> str:
    return next(canary.identifier for canary in CANARIES if question(canary)[0] == prompt)


def test_each_identifier_is_asked_about_beside_others_of_its_shape() -> None:
    bot = Written(lambda prompt, line: -1.0)
    score_canaries(bot, CANARIES, n_alternatives=7, seed=0)
    assert len(bot.asked) == 6 * 8
    for i, canary in enumerate(CANARIES):
        prompt, line = question(canary)
        asked = bot.asked[8 * i : 8 * (i + 1)]
        assert {where for where, _ in asked} == {prompt}
        assert asked[0][1] == line
        names = {
            text[len(line) - len(line.partition(canary.identifier)[2]) - len(canary.identifier) :] for _, text in asked
        }
        assert len(names) == 8
        assert {len(text) for _, text in asked} == {len(line)}


def test_exposure_contrast_and_ratio_by_hand() -> None:
    """The first is better than all 7 others, the second better than none, the third ties with all of them."""
    values = {CANARIES[0].identifier: -2.0, CANARIES[1].identifier: -9.0, CANARIES[2].identifier: -5.0}

    def value(prompt: str, line: str) -> float:
        own = true_identifier(prompt)
        return values.get(own, -4.0) if own in line else -5.0

    found = score_canaries(Written(value), CANARIES, n_alternatives=7, seed=0)
    assert found.exposure[:3].tolist() == pytest.approx([3.0, 0.0, math.log2(8 / 4.5)])
    assert found.contrast[:4].tolist() == [3.0, -4.0, 0.0, 1.0]
    assert found.logprobs[:2].tolist() == [-2.0, -9.0]
    base = score_canaries(Written(lambda prompt, line: -6.0), CANARIES, n_alternatives=7, seed=0)
    raw = raw_scores(found, base)
    assert raw["loss"][:2].tolist() == [2.0, 9.0]
    assert raw["ratio"][:2].tolist() == [-4.0, 3.0]
    assert "ratio" not in raw_scores(found, None)


def test_random_identifiers_have_an_exposure_of_one_over_log_two_on_average() -> None:
    many = draw_canaries(SCHEMA, CanarySettings(m=400), 1)
    rng = np.random.default_rng(0)
    found = score_canaries(Written(lambda prompt, line: float(-rng.random())), many, n_alternatives=15, seed=0)
    expected = 4 - np.mean(np.log2(np.arange(1, 17)))
    assert abs(found.exposure.mean() - expected) < 4 * found.exposure.std() / 20
    assert abs(found.contrast.mean()) < 0.1


def test_order_and_seed_decide_what_they_should() -> None:
    def value(prompt: str, line: str) -> float:
        return -1 - (hash((prompt, line)) % 1000) / 1000

    forward = score_canaries(Written(value), CANARIES, n_alternatives=5, seed=0)
    backward = score_canaries(Written(value), CANARIES[::-1], n_alternatives=5, seed=0)
    assert forward.contrast.tolist() == backward.contrast[::-1].tolist()
    assert forward.exposure.tolist() == backward.exposure[::-1].tolist()
    flipped = [replace(canary, is_inserted=not canary.is_inserted) for canary in CANARIES]
    assert (
        score_canaries(Written(value), flipped, n_alternatives=5, seed=0).contrast.tolist() == forward.contrast.tolist()
    )
    assert (
        score_canaries(Written(value), CANARIES, n_alternatives=5, seed=1).contrast.tolist()
        != forward.contrast.tolist()
    )


def test_what_is_no_number_is_an_error() -> None:
    with pytest.raises(AuditError, match="not finite"):
        score_canaries(Written(lambda prompt, line: math.nan), CANARIES, n_alternatives=2, seed=0)
    short = Written(lambda prompt, line: -1.0)
    short.logprobs = lambda prompts, continuations: []  # type: ignore[method-assign]
    with pytest.raises(AuditError, match="answered 0 of 18"):
        score_canaries(short, CANARIES, n_alternatives=2, seed=0)


def test_an_identifier_that_its_prompt_gives_away_is_refused() -> None:
    canary = CANARIES[0]
    (turn,) = canary.dialogue.turns
    for told in (replace(turn, user=f"it is {canary.identifier}"), replace(turn, actions="hotel-bye()")):
        with pytest.raises(AuditError, match=canary.dialogue.id) as caught:
            question(replace(canary, dialogue=replace(canary.dialogue, turns=(told,))))
        assert canary.identifier not in str(caught.value)
