"""Who asks a bot about its service: questions that need to know of the bot only what it has said so far.

Guarantees: the offline questioner knows general service talk (things people ask machines for), no corpus; what it
asks next depends on the schema found so far: near-by questions on what is known, questions that join known domains,
and questions on tasks that are not known yet. The same schema and seed give the same questions.

Voids it: a bot whose service nobody would think of; there a model as questioner (`TargetQuestioner`,
`EndpointQuestioner`) does better.

Source: Task-oriented dialogue state extraction, section IV-B2 and Table I (its four steps, in our own words).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import one_line, render_state
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.targets.target_rewriter import loaded_target
from hushbot.types import Decoding, DialogueState, SlotValue

TASKS = (
    "hotel", "guesthouse", "restaurant", "cafe", "taxi", "train ticket", "bus", "flight", "museum", "attraction",
    "park", "cinema", "concert", "doctor", "dentist", "hospital", "police station", "pharmacy", "bank account",
    "money transfer", "weather", "alarm", "calendar entry", "song", "rental car", "flat", "hairdresser", "gym class",
    "language course", "insurance", "repair", "delivery", "loan", "recipe", "parking space", "boat trip",
)  # fmt: skip
"""What people ask machines for."""
KINDS = ("", "", "cheap ", "expensive ", "good ", "large ", "Italian ", "modern ", "five-star ")
"""What is said before the thing; mostly nothing is."""
DETAILS = (
    "in the centre", "in the north of town", "near the station", "for four people", "for two nights", "on Friday",
    "for Sunday", "tomorrow at 5 pm", "leaving after 9 in the morning", "arriving by noon", "from the airport",
    "to the old town", "from the museum to the station", "with free parking", "with internet", "with a high rating",
    "of the usual type", "called The Old Mill", "under my name", "for a child",
)  # fmt: skip
"""What is said after it; each speaks of something a service may ask for."""
OPENINGS = (
    "I need {wish}.",
    "Can you find me {wish}?",
    "I am looking for {wish}.",
    "Please book {wish}.",
    "Is there {wish}?",
)
ANSWERS = ("four", "Friday", "the north", "the centre", "10:30", "cheap", "yes", "the station", "any")
"""What somebody might answer to whatever a service asks for."""
SPEECH = tuple(
    (re.compile(pattern), template)
    for pattern, template in (
        (r"people|person|guest|passenger|party", "for {value} people"),
        (r"stay|night|duration", "for {value} nights"),
        (r"leav|start", "leaving at {value}"),
        (r"arriv|end", "arriving by {value}"),
        (r"depart|from|origin|pick", "from {value}"),
        (r"dest|\bto\b|drop", "to {value}"),
        (r"day|date", "on {value}"),
        (r"time", "at {value}"),
        (r"area|location|city|where", "in the {value}"),
        (r"name|title", "called {value}"),
        (r"type|kind|price|food|cuisine|category", "that is {value}"),
    )
)
"""How English says a wish, by words that the slot's own name may hold; what the name does not tell is spelled out."""
GUESSED_SLOTS = ("name", "area", "type", "day", "time", "people", "departure", "destination")
"""What one would guess that any service asks for, before asking."""
_TASK = """You test a service bot by writing things that a customer could say to it.
Read first what is known of the bot: its domains and the slots of each. Then mix three kinds of requests:
- on a domain that is known, but a step beside its known slots, so that the bot may show further slots;
- on two known domains at once, where one depends on the other;
- on services that have nothing to do with what is known, as varied as you can.
Never just ask for what is known already."""
_LIST_MARK = re.compile(r"^\s*(?:[-*\u2022]|\d+[.):])\s*")


def guessed_schema() -> Schema:
    """Return what one would guess of a bot without asking it: the blind baseline of every probe."""
    return Schema.of(Slot(task, slot) for task in TASKS for slot in GUESSED_SLOTS)


class Questioner(Protocol):
    """Somebody who thinks of things to say to a bot."""

    def questions(self, known: Schema, *, n: int, seed: int) -> list[str]:
        """Return n utterances, on the strength of the schema found so far."""
        ...

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state, of somebody who wants what the state says."""
        ...


@dataclass(frozen=True, kw_only=True)
class OfflineQuestioner:
    """Asks by rule: no model, no network."""

    def questions(self, known: Schema, *, n: int, seed: int) -> list[str]:
        """Return n utterances: one in three on a known domain, one in six on two of them, the rest on any task."""
        rng = np.random.default_rng(seed)
        said = []
        for _ in range(n):
            draw = rng.random()
            if len(known.domains) > 1 and draw < 1 / 6:
                one, other = (str(name) for name in rng.choice(known.domains, 2, replace=False))
                said.append(f"{_ask(one, rng)} I also want {_wish(other, rng)}.")
            elif known.slots and draw < 1 / 2:
                domain = str(rng.choice(known.domains))
                said.append(_ask(domain, rng) if rng.random() < 1 / 2 else _beside(domain, known, rng))
            else:
                said.append(_ask(str(rng.choice(TASKS)), rng))
        return said

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state, which names its domains, slots and values."""
        rng = np.random.default_rng(seed)
        return [_spoken(state, rng) for state in states]


@dataclass(frozen=True, kw_only=True)
class TargetQuestioner:
    """Lets a model ask."""

    target: Any
    """A target, or a component that returns one when it is called, such as `PretrainedTarget`."""
    max_new_tokens: int = 40
    """Longest question in tokens."""

    def questions(self, known: Schema, *, n: int, seed: int) -> list[str]:
        """Return n utterances that the model thinks of.

        Raises:
            AuditError: The model failed, or said nothing.
        """
        return self._say([f"{_TASK}\nKnown: {_listed(known)}\nCustomer:"], n, seed)

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state.

        Raises:
            AuditError: The model failed, or said nothing.
        """
        prompts = [f"Say, as a customer, that you want this: {render_state(state)}\nCustomer:" for state in states]
        return self._say(prompts, 1, seed)

    @cached_property
    def _model(self) -> Target:
        return loaded_target(self.target)

    def _say(self, prompts: Sequence[str], n: int, seed: int) -> list[str]:
        if not prompts:
            return []
        answers = self._model.sample(
            prompts, n=n, max_new_tokens=self.max_new_tokens, decoding=Decoding(top_p=0.95), seed=seed
        )
        said = [one_line(text) for texts in answers for text in texts]
        if len(said) != n * len(prompts) or not any(said):
            raise AuditError(f"the questioner answered {sum(map(bool, said))} of {n * len(prompts)} requests")
        return [text or "hello" for text in said]


@dataclass(frozen=True, kw_only=True)
class EndpointQuestioner:
    """Lets a model behind an endpoint ask."""

    endpoint: Any
    """A component with `complete(prompt, *, seed) -> str`, such as `ChatEndpoint`; give it a temperature."""
    n_tries: int = 3
    """How often it may be asked again for questions that it did not write; at least 1."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.endpoint, "complete", None)):
            raise ConfigError(f"questioner.endpoint is a {type(self.endpoint).__name__} without complete(prompt)")
        if self.n_tries < 1:
            raise ConfigError(f"n_tries={self.n_tries} must be at least 1; set questioner.n_tries")

    def questions(self, known: Schema, *, n: int, seed: int) -> list[str]:
        """Return n utterances that the endpoint thinks of.

        Raises:
            AuditError: The endpoint failed, or wrote fewer.
        """
        said: list[str] = []
        for number in range(self.n_tries):
            missing = n - len(said)
            prompt = f"{_TASK}\nKnown: {_listed(known)}\nWrite {missing} requests, one a line, and nothing else."
            said += _lines(self.endpoint.complete(prompt, seed=seed + number))[:missing]
            if len(said) == n:
                return said
        raise AuditError(f"the questioner wrote {len(said)} of {n} questions in {self.n_tries} tries; see the endpoint")

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state.

        Raises:
            AuditError: The endpoint failed, or wrote nothing.
        """
        return [self._question_on(state, seed + i) for i, state in enumerate(states)]

    def _question_on(self, state: DialogueState, seed: int) -> str:
        prompt = f"Say in one line, as a customer of a service bot, that you want this: {render_state(state)}"
        lines = _lines(self.endpoint.complete(prompt, seed=seed)) if state else ["hello"]
        if not lines:
            raise AuditError("the questioner answered nothing when it was asked for a question; see the endpoint")
        return lines[0]


def _lines(answer: str) -> list[str]:
    """Return the lines of an answer without numbers and bullets; blank ones are left out."""
    lines = (one_line(_LIST_MARK.sub("", line)) for line in answer.splitlines())
    return [line for line in lines if line]


def _listed(known: Schema) -> str:
    return "; ".join(f"{domain}: {', '.join(names)}" for domain, names in known.by_domain.items()) or "none yet"


def _wish(task: str, rng: np.random.Generator) -> str:
    """Say that one wants a thing, with up to three details."""
    details = rng.choice(DETAILS, rng.integers(1, 4), replace=False)
    return f"a {rng.choice(KINDS)}{_in_words(task)} {' '.join(details)}"


def _ask(task: str, rng: np.random.Generator) -> str:
    return str(rng.choice(OPENINGS)).format(wish=_wish(task, rng))


def _beside(domain: str, known: Schema, rng: np.random.Generator) -> str:
    """Ask a known domain for one or two slots that it or another domain has: services often share them."""
    names = sorted({slot.name for slot in known.slots})
    chosen = rng.choice(names, min(len(names), int(rng.integers(1, 3))), replace=False)
    return _spoken(frozenset(SlotValue(domain, str(name), str(rng.choice(ANSWERS))) for name in chosen), rng)


def _spoken(state: Iterable[SlotValue], rng: np.random.Generator) -> str:
    """Say what a state says, domain by domain."""
    parts: dict[str, list[str]] = {}
    for triplet in sorted(state):
        parts.setdefault(triplet.domain, []).append(_say_slot(triplet.slot, triplet.value))
    said = [
        str(rng.choice(OPENINGS)).format(wish=f"a {_in_words(domain)} {' '.join(wishes)}")
        for domain, wishes in parts.items()
    ]
    return one_line(" ".join(said)) or "hello"


def _say_slot(slot: str, value: str) -> str:
    template = next((text for pattern, text in SPEECH if pattern.search(slot.casefold())), "with {slot} {value}")
    return template.format(slot=_in_words(slot), value=value)


def _in_words(name: str) -> str:
    return name.replace("_", " ")
