"""Who asks: questions follow what is known, and a model that says nothing is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hushbot.attacks.questioner import TASKS, OfflineQuestioner, TargetQuestioner
from hushbot.errors import AuditError
from hushbot.schema import Schema, Slot
from hushbot.types import Decoding, SlotValue

NOTHING = Schema(())
KNOWN = Schema.of([Slot("zoo_tour", "animal"), Slot("opera", "seat")])


def test_the_same_seed_asks_the_same() -> None:
    asker = OfflineQuestioner()
    assert asker.questions(KNOWN, n=20, seed=1) == asker.questions(KNOWN, n=20, seed=1)
    assert asker.questions(KNOWN, n=20, seed=1) != asker.questions(KNOWN, n=20, seed=2)
    assert len(set(asker.questions(NOTHING, n=200, seed=0))) > 150


def test_it_asks_on_what_is_known_on_two_of_them_and_on_what_is_not() -> None:
    said = OfflineQuestioner().questions(KNOWN, n=300, seed=0)
    on_both = [text for text in said if "zoo tour" in text and "opera" in text]
    on_one = [text for text in said if ("zoo tour" in text) != ("opera" in text)]
    elsewhere = [text for text in said if "zoo tour" not in text and "opera" not in text]
    assert min(map(len, (on_both, on_one, elsewhere))) > 25
    assert not any("zoo" in text for text in OfflineQuestioner().questions(NOTHING, n=300, seed=0))
    assert all(any(task in text for task in TASKS) for text in elsewhere)


def test_a_state_is_asked_for_by_its_domains_and_values() -> None:
    state = frozenset({SlotValue("opera", "seat", "12b"), SlotValue("zoo_tour", "animal", "owl")})
    assert OfflineQuestioner().questions_on([state, frozenset()], seed=0) == [
        "I need a opera with seat 12b. I need a zoo tour with animal owl.",
        "hello",
    ]


class Talker:
    reference = None

    def __init__(self, text: str) -> None:
        self.text = text
        self.prompts: list[str] = []

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.prompts += prompts
        return [[self.text] * n for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Any]:
        raise NotImplementedError


def test_a_model_is_told_what_is_known_and_asked_for_customers() -> None:
    talker = Talker(" a seat  please")
    asker = TargetQuestioner(target=talker)
    assert asker.questions(KNOWN, n=2, seed=0) == ["a seat please"] * 2
    assert "opera: seat; zoo_tour: animal" in talker.prompts[0]
    assert asker.questions_on([], seed=0) == []
    assert TargetQuestioner(target=lambda: talker).questions(NOTHING, n=1, seed=0) == ["a seat please"]


def test_a_model_that_says_nothing_is_an_error() -> None:
    with pytest.raises(AuditError, match="answered 0 of 3 requests"):
        TargetQuestioner(target=Talker(" ")).questions(NOTHING, n=3, seed=0)
