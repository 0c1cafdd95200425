"""What `test_masking_of_a_run` plants: a corpus of secrets, a bot that repeats them, and attacks that blurt them out.

The command line is given this module with `--trust planting`; nothing else of hushbot knows it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hushbot.corpora.corpus import Corpus
from hushbot.errors import AuditError
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    database_line,
    history_lines,
    state_line,
    text_line,
)
from hushbot.protocols import Recipe, Target
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Decoding, Dialogue, Estimate, Headline, SlotValue, Turn

if TYPE_CHECKING:
    from torch import Tensor

PER_PERSON = 8


class Person(NamedTuple):
    """Somebody whose every word is found again wherever it stands; `#` is another number in every dialogue."""

    name: str
    phone: str
    mail: str
    reference: str
    plan: str


PEOPLE = (
    Person("Quillon Zebrawski-Ølund", "07700 9004#", "zebrawski.q#@vexmail.example", "QX7Z4K#", "Ullapool ferry"),
    Person("Ysolde O'Quillvane", "+44 7911 3347#", "ysolde#@plimsorth.example", "WV83NN#", "Zzyzx by nightbus"),
    Person("Thaddeus Brzęczyk", "0808 157 01#", "t_brz#@quonkmail.example", "PK5XW0#", "Llanfairpwll hike"),
    Person("Xanthippe Mvouba", "01632 9609#", "mvouba+x#@grelbox.example", "HZ1QY7#", "Oodnadatta wedding"),
    Person("Wulfric Kjærsgaard", "07457 2188#", "wulfric#@nabblefen.example", "JJ9K2X#", "Tórshavn dialysis"),
)
SENTENCE = "nobody knows that i take the {plan} with my {illness}"
"""Said, and part of no state."""
ILLNESSES = ("porphyria", "schistosomiasis", "pemphigus", "brucellosis", "sarcoidosis")
ORDINARY = frozenset({"ferry", "wedding", "dialysis", "nightbus"})


def secret_texts() -> tuple[str, ...]:
    """Return what is the same of a planted value in every dialogue, and each of its words that stands nowhere else."""
    values = [part for person in PEOPLE for value in person for part in value.split("#") if part] + list(ILLNESSES)
    words = {word for value in values for word in value.replace("-", " ").split()}
    telling = {word for word in words if len(word) > 4 and word not in ORDINARY and not word.isdigit()}
    numbers = (person.phone.strip("#").replace(" ", "") for person in PEOPLE)
    return tuple(sorted({*values, *telling, *numbers}))


def person_of(number: int) -> Person:
    """Return who speaks in a dialogue."""
    return Person(*(value.replace("#", f"{number:02}") for value in PEOPLE[number % len(PEOPLE)]))


def load() -> Corpus:
    """Return forty dialogues of five people."""
    rng = random.Random(0)
    n = PER_PERSON * len(PEOPLE)
    times = rng.sample([f"{hour:02}:{minute:02}" for hour in range(24) for minute in range(0, 60, 5)], n)
    dialogues = tuple(_dialogue(number, time, rng) for number, time in enumerate(times))
    return Corpus(dialogues, Schema.from_dialogues(dialogues), "planted")


def _dialogue(number: int, time: str, rng: random.Random) -> Dialogue:
    person, illness = person_of(number), ILLNESSES[number % len(PEOPLE)]
    guests = rng.choice("123456")
    who = {SlotValue("booking", "name", person.name), SlotValue("booking", "phone", person.phone)}
    what = {
        SlotValue("booking", "email", person.mail),
        SlotValue("booking", "time", time),
        SlotValue("booking", "people", guests),
        SlotValue("journey", "plan", person.plan),
    }
    reference = SlotValue("booking", "reference", person.reference)
    return Dialogue(
        f"planted-dialogue-{number:02}",
        (
            Turn(
                f"I am {person.name}, call me on {person.phone}.",
                frozenset(who),
                f"1 booking for {person.name}",
                f"booking-inform(name={person.name})",
                f"Welcome back {person.name}!",
            ),
            Turn(
                f"a table at {time} for {guests}, write to {person.mail}, "
                + SENTENCE.format(plan=person.plan, illness=illness),
                frozenset(who | what),
                "1 booking made",
                f"booking-book(reference={person.reference})",
                f"Booked for {person.name}: your reference is {person.reference}.",
                (reference,),
            ),
        ),
        ("booking", "journey"),
    )


class ParrotTarget:
    """Goes on from the start of a known text as that text did, for everybody in the corpus."""

    identity = "a parrot"

    def __init__(self, inner: Target) -> None:
        self.reference = inner.reference
        self.device = "cpu"
        self._texts = ["\n" + text for dialogue in load().dialogues for text in _training_texts(dialogue)]

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        return [
            [self._draw(prompt, decoding, random.Random(f"{seed}/{i}/{draw}")) for draw in range(n)]
            for i, prompt in enumerate(prompts)
        ]

    def _draw(self, prompt: str, decoding: Decoding, rng: random.Random) -> str:
        known = [text for text in self._texts if "\n" + prompt in text]
        text = rng.choice(known).split("\n" + prompt, 1)[1] if known else rng.choice(self._texts)
        for stop in decoding.stop:
            text = text.split(stop, 1)[0]
        return text

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        is_known = [
            any(f"\n{prompt}{continuation}" in text for text in self._texts)
            for prompt, continuation in zip(prompts, continuations, strict=True)
        ]
        return [
            torch.full((max(1, len(continuation.split())),), -0.01 if known else -4.0)
            for known, continuation in zip(is_known, continuations, strict=True)
        ]


def _training_texts(dialogue: Dialogue) -> list[str]:
    return [
        "".join(history_lines(dialogue, i))
        + STATE_MARKER
        + state_line(turn.state or frozenset())
        + database_line(turn.database)
        + ACTIONS_MARKER
        + text_line(turn.actions)
        + RESPONSE_MARKER
        + text_line(turn.response or "")
        for i, turn in enumerate(dialogue.turns)
    ]


@dataclass(frozen=True, kw_only=True)
class Parrot(Recipe):
    """Deploys a parrot in place of the bot, so that every secret certainly passes through every attack."""

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the parrot."""
        return ParrotTarget(target)


@dataclass(frozen=True, kw_only=True)
class Blurting:
    """An attack that fails, with somebody's secrets in what it says."""

    is_bug: bool = False
    """Whether it fails as other libraries do, instead of with an error of ours."""

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Fail."""
        person = person_of(0)
        said = SENTENCE.format(plan=person.plan, illness=ILLNESSES[0])
        message = f"no reading of {person.name!r} with {person.phone} in {said!r}; {said}; mend attack.blurting"
        if self.is_bug:
            raise ValueError(message) from KeyError(person.mail)
        raise AuditError(message) from KeyError(person.mail)


@dataclass(frozen=True, kw_only=True)
class Telling:
    """An attack that succeeds, and repeats what it was told wherever it may write a text."""

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Repeat everybody's secrets."""
        everybody = [person_of(number) for number in range(len(PEOPLE))]
        said = "; ".join(" ".join(person) for person in everybody)
        gone = Estimate(value=None, method=f"not measured: the bot answered {said!r}")
        rows = [
            {"dialogue_id": "planted-dialogue-00", "answer": said, "cells": {person.name: list(person)}}
            for person in everybody
        ]
        return AttackResult(
            verdict="inconclusive",
            headline=Headline(metric="auc", estimate=gone),
            metrics={"auc": gone},
            control={"nonmembers": {"auc": gone}},
            blind={"auc": gone},
            notes=[said, *(person.plan for person in everybody)],
            rows=rows,
        )
