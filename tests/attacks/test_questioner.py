"""Who asks: questions follow what is known, and a model that says nothing is an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hushbot.attacks.questioner import TASKS, EndpointQuestioner, OfflineQuestioner, TargetQuestioner, guessed_schema
from hushbot.errors import AuditError, ConfigError
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
    state = frozenset({SlotValue("opera", "seat", "12b"), SlotValue("zoo_tour", "book people", "3")})
    (said, greeting) = OfflineQuestioner().questions_on([state, frozenset()], seed=0)
    assert "a opera with seat 12b" in said
    assert "a zoo tour for 3 people" in said
    assert greeting == "hello"


def test_known_slots_are_tried_on_other_domains() -> None:
    """A service's domains often share slots: a seat is asked of the zoo, an animal of the opera."""
    said = OfflineQuestioner().questions(KNOWN, n=400, seed=0)
    assert any("zoo tour" in text and "with seat" in text for text in said)
    assert any("opera" in text and "with animal" in text for text in said)


def test_a_blind_guess_knows_no_bot() -> None:
    guess = guessed_schema()
    assert set(guess.domains) == set(TASKS)
    assert guess.find("hotel", "name") is not None
    assert not any("book" in slot.name for slot in guess.slots)


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


class Chat:
    """Answers with one text after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    def complete(self, prompt: str, *, seed: int = 0) -> str:
        self.asked.append((prompt, seed))
        return self.answers.pop(0) if self.answers else ""


def test_an_endpoint_writes_one_question_a_line_and_is_asked_for_what_is_missing() -> None:
    chat = Chat("1. a seat please\n\n2) is there an owl?\n", "- a tram\n* one too many")
    assert EndpointQuestioner(endpoint=chat).questions(KNOWN, n=3, seed=5) == [
        "a seat please",
        "is there an owl?",
        "a tram",
    ]
    assert [seed for _, seed in chat.asked] == [5, 6]
    assert "opera: seat; zoo_tour: animal" in chat.asked[0][0]
    assert "Write 3 requests" in chat.asked[0][0]
    assert "Write 1 requests" in chat.asked[1][0]


def test_an_endpoint_is_asked_about_each_state_that_says_something() -> None:
    chat = Chat("row 12b at the opera, please\nand more")
    state = frozenset({SlotValue("opera", "seat", "12b")})
    said = EndpointQuestioner(endpoint=chat).questions_on([state, frozenset()], seed=0)
    assert said == ["row 12b at the opera, please", "hello"]
    assert "Opera(seat=12b)" in chat.asked[0][0]


def test_an_endpoint_that_writes_too_little_is_an_error() -> None:
    with pytest.raises(AuditError, match="wrote 1 of 2 questions in 3 tries"):
        EndpointQuestioner(endpoint=Chat("one")).questions(NOTHING, n=2, seed=0)
    with pytest.raises(AuditError, match="answered nothing"):
        EndpointQuestioner(endpoint=Chat()).questions_on([frozenset({SlotValue("a", "b", "c")})], seed=0)


def test_something_that_completes_nothing_is_no_endpoint() -> None:
    with pytest.raises(ConfigError, match="without complete"):
        EndpointQuestioner(endpoint="http://somewhere")
