"""Who asks a bot about its service: questions that need to know of the bot only what it has said so far.

Guarantees: the offline questioner knows general service talk (things people ask machines for), no corpus; what it
asks next depends on the schema found so far: near-by questions on what is known, questions that join known domains,
and questions on tasks that are not known yet. The same schema, round and seed give the same questions.

Voids it: a bot whose service nobody would think of; there a model as questioner (`TargetQuestioner`) does better.

Source: Task-oriented dialogue state extraction, section IV-B2 and Table I (its four steps, in our own words).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from hushbot.errors import AuditError
from hushbot.prompts import one_line, render_state
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.types import Decoding, DialogueState

TASKS = (
    "hotel", "guesthouse", "restaurant", "cafe", "taxi", "train ticket", "bus", "flight", "museum", "attraction",
    "park", "cinema", "concert", "doctor", "dentist", "hospital", "police station", "pharmacy", "bank account",
    "money transfer", "weather", "alarm", "calendar entry", "song", "rental car", "flat", "hairdresser", "gym class",
    "language course", "insurance", "repair", "delivery", "loan", "recipe", "parking space", "boat trip",
)  # fmt: skip
"""What people ask machines for."""
WISHES = (
    "a cheap {task}", "an expensive {task}", "a {task} in the centre", "a {task} in the north of town",
    "a {task} near the station", "a {task} for four people", "a {task} on Friday", "a {task} tomorrow at 5 pm",
    "a {task} leaving after 9 in the morning", "a {task} arriving by noon", "a {task} from the airport to the old town",
    "a {task} with free parking and internet", "a {task} with a high rating", "an Italian {task}",
    "a {task} for two nights",
    "the phone number and address of a {task}", "the reference of my {task}", "a {task} of the usual type",
    "a particular {task} by its name", "a {task} under my name",
)  # fmt: skip
"""Ways to want it; each speaks of something a service may ask for."""
OPENINGS = (
    "I need {wish}.",
    "Can you find me {wish}?",
    "I am looking for {wish}.",
    "Please book {wish}.",
    "Is there {wish}?",
)
_REQUEST = (
    "A service bot is known to handle the domains and slots below. Write short things a customer could say to it: some on "
    "the known domains that go a little beyond the known slots, some that join two of them, and some on tasks that are "
    "not listed at all. One per line."
)


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
        domains = [domain.replace("_", " ") for domain in known.domains]
        said = []
        for _ in range(n):
            draw = rng.random()
            if len(domains) > 1 and draw < 1 / 6:
                one, other = (domains[i] for i in rng.choice(len(domains), 2, replace=False))
                said.append(f"{_ask(one, rng)} I also want {_wish(other, rng)}.")
            elif domains and draw < 1 / 2:
                said.append(_ask(str(rng.choice(domains)), rng))
            else:
                said.append(_ask(str(rng.choice(TASKS)), rng))
        return said

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state, which names its domains, slots and values."""
        return [_spoken(state) for state in states]


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
        slots = "; ".join(f"{domain}: {', '.join(names)}" for domain, names in known.by_domain.items()) or "none yet"
        return self._say([f"{_REQUEST}\nKnown: {slots}\nCustomer:"], n, seed)

    def questions_on(self, states: Sequence[DialogueState], *, seed: int) -> list[str]:
        """Return one utterance per state.

        Raises:
            AuditError: The model failed, or said nothing.
        """
        prompts = [f"Say, as a customer, that you want this: {render_state(state)}\nCustomer:" for state in states]
        return self._say(prompts, 1, seed)

    @cached_property
    def _model(self) -> Target:
        return cast("Target", self.target if hasattr(self.target, "sample") else self.target())

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


def _wish(task: str, rng: np.random.Generator) -> str:
    return str(rng.choice(WISHES)).format(task=task)


def _ask(task: str, rng: np.random.Generator) -> str:
    return str(rng.choice(OPENINGS)).format(wish=_wish(task, rng))


def _spoken(state: Iterable[Any]) -> str:
    """Say what a state says, domain by domain."""
    parts: dict[str, list[str]] = {}
    for triplet in sorted(state):
        parts.setdefault(triplet.domain, []).append(f"{triplet.slot} {triplet.value}")
    said = [f"I need a {domain.replace('_', ' ')} with {', '.join(wishes)}." for domain, wishes in parts.items()]
    return one_line(" ".join(said)) or "hello"
