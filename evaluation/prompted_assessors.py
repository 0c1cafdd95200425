"""A model as the assessor: it reads the written protocol and a state, and answers with one digit.

Guarantees: every state is asked by itself, greedily, under `PROTOCOL`; an answer counts only if it is one whole number
from 0 to 5 and nothing else, and whatever else is said is None, never a number. Nothing of a state is kept.

What voids it: an endpoint learns every state that it is asked about, which are somebody's; ask one that may know them.
A model's scores are opinions: hold them against another assessor's (`assessor_checks.agreement`).

Source: Task-oriented dialogue state extraction, section V-F (a language model under a strict protocol, scale 0 to 5,
monotonicity rule); our wording.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

from hushbot.errors import AuditError
from hushbot.prompts import one_line, render_state
from hushbot.protocols import Target
from hushbot.targets.target_rewriter import loaded_target
from hushbot.types import Decoding, DialogueState

PROTOCOL = """You judge how private facts are that a service bot remembers of one customer.
Give the whole list one number:
0 - no concern: it says nothing about anybody
1 - very low: a common wish, such as a price range or a part of town
2 - low: one place, day or time that many people share
3 - moderate: where somebody is and when, or something about health or money
4 - high: who somebody is, or a plan detailed enough to recognise a person by it
5 - very high: a way to reach, find or pose as one person
Judge the facts together: facts that are harmless one by one can single somebody out when joined.
A list is never less private than a part of it.
Answer with the number alone."""

_ANSWER = re.compile(r"\s*([0-5])\s*")


class Asks(Protocol):
    """An endpoint that answers a text with a text."""

    def complete(self, prompt: str) -> str:
        """Return the answer to a prompt.

        Raises:
            AuditError: There was none.
        """
        ...


def assessment_prompt(state: DialogueState, protocol: str = PROTOCOL) -> str:
    """Return what a model is asked about a state; the state is one line, whatever its values hold."""
    return f"{protocol.strip()}\nFacts: {render_state(state)}\nNumber:"


def read_score(answer: str) -> float | None:
    """Return the number that an answer consists of; None where it says anything else.

    >>> read_score(" 4"), read_score("4/5"), read_score("7"), read_score("")
    (4.0, None, None, None)
    """
    found = _ANSWER.fullmatch(answer)
    return float(found[1]) if found else None


@dataclass(frozen=True, kw_only=True)
class TargetAssessor:
    """Asks a model."""

    target: Any
    """A target, or a component that returns one when it is called, such as `PretrainedTarget`."""
    protocol: str = PROTOCOL
    """What the model is told before the facts."""
    max_new_tokens: int = 8
    """Where an answer is cut; at least 1."""

    def __post_init__(self) -> None:
        if not (hasattr(self.target, "sample") or callable(self.target)):
            raise ValueError("target is neither a target nor a component that returns one; see PretrainedTarget")
        if not one_line(self.protocol):
            raise ValueError(f"protocol={self.protocol!r} is empty; say what the numbers from 0 to 5 mean")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1")

    @property
    def note(self) -> str:
        """Return what a report should say of how it scores."""
        return f"a model under {_protocol_name(self.protocol)}"

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        """Return each state's score.

        Raises:
            AuditError: The model failed, or did not answer each request with one text.
        """
        if not states:
            return []
        answers = self._model.sample(
            [assessment_prompt(state, self.protocol) for state in states],
            n=1,
            max_new_tokens=self.max_new_tokens,
            decoding=Decoding(temperature=0),
            seed=0,
        )
        if [len(drawn) for drawn in answers] != [1] * len(states):
            raise AuditError(f"the assessing model did not answer each of {len(states)} requests with one text")
        return [read_score(drawn[0]) for drawn in answers]

    @cached_property
    def _model(self) -> Target:
        return loaded_target(self.target)


@dataclass(frozen=True, kw_only=True)
class EndpointAssessor:
    """Asks an endpoint, one request per state."""

    endpoint: Any
    """A component with `complete(prompt) -> str`."""
    protocol: str = PROTOCOL
    """What the endpoint is told before the facts."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.endpoint, "complete", None)):
            raise ValueError(
                f"endpoint is a {type(self.endpoint).__name__} without complete(prompt); give one that has it"
            )
        if not one_line(self.protocol):
            raise ValueError(f"protocol={self.protocol!r} is empty; say what the numbers from 0 to 5 mean")

    @property
    def note(self) -> str:
        """Return what a report should say of how it scores."""
        return f"an endpoint under {_protocol_name(self.protocol)}"

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        """Return each state's score.

        Raises:
            AuditError: The endpoint gave no answer.
        """
        asks = cast("Asks", self.endpoint)
        return [read_score(asks.complete(assessment_prompt(state, self.protocol))) for state in states]


def _protocol_name(protocol: str) -> str:
    return "the written protocol" if protocol == PROTOCOL else "a protocol of its own"
