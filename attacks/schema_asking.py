"""Asking a bot for its domains and slots, by the methods of `hushbot.attacks.schema_probe`.

Guarantees: the same bot, settings and seed give the same questions and finds; nothing but what the bot wrote is in the
schema that comes out, spelled as the bot spells it. A failed query, and a bot of which no slot is learnt, are errors.

What voids it: see `hushbot.attacks.schema_probe`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.questioner import OfflineQuestioner
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER, one_line, read_state, user_lines
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.types import Decoding, DialogueState

METHODS = ("temperature", "model_against_model", "inter_temperature")
Pair = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How a schema is probed before guided sampling."""

    method: str = "inter_temperature"
    """One of temperature, model_against_model, inter_temperature."""
    temperature: float = 1.0
    """Of the exploring answers."""
    n_questions: int = 400
    """Questions, or samples for the method that asks none."""
    n_per_round: int = 20
    """Questions between two looks at the schema."""
    max_new_tokens: int = 64
    """Where an answer is cut."""
    min_count: int = 1
    """How often a slot must have been seen to be kept; 1 keeps all."""
    questioner: Any = field(default_factory=OfflineQuestioner)
    """Who asks."""
    repeats_questions: bool = True
    """Whether inter_temperature also puts each question itself again greedily, which confirms what a state turned into
    a question does not; the paper's does not."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r} must be one of {', '.join(METHODS)}")
        for name in ("n_questions", "n_per_round", "max_new_tokens", "min_count"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


class Probed(NamedTuple):
    """A schema as a bot gave it away."""

    schema: Schema
    n_queries: int
    notes: list[str]


class Trace(NamedTuple):
    """One probe of one bot."""

    seen: list[frozenset[Pair]]
    """The (domain, slot) pairs of each answer that counted, in the order of the questions."""
    n_queries: int

    def pairs(self, n: int | None = None, min_count: int = 1) -> set[Pair]:
        """Return what the first n questions found."""
        counts = Counter(pair for pairs in self.seen[:n] for pair in pairs)
        return {pair for pair, count in counts.items() if count >= min_count}


def probe(target: Target, *, seed: int, settings: ProbeSettings) -> Probed:
    """Return the schema that asking a bot reveals, as it spells names.

    Raises:
        AuditError: A query failed, or nothing was found.
    """
    trace = trace_probe(target, settings, seed)
    pairs = trace.pairs(min_count=settings.min_count)
    if not pairs:
        often = "" if settings.min_count == 1 else f" {settings.min_count} times"
        raise AuditError(
            f"probing found no slot{often} in {settings.n_questions} questions; ask more, or use schema=gold"
        )
    note = f"schema probed by {settings.method}, {settings.n_questions} questions, temperature {settings.temperature:g}"
    return Probed(Schema.of(Slot(domain, slot) for domain, slot in pairs), trace.n_queries, [note])


def trace_probe(target: Target, settings: ProbeSettings, seed: int) -> Trace:
    """Probe a bot once.

    Raises:
        AuditError: A query failed.
    """
    if settings.method == "temperature":
        texts = _sample(target, [STATE_MARKER], settings.n_questions, settings, settings.temperature, seed)[0]
        return Trace([_pairs(_state(text)) for text in texts], len(texts))
    seen: list[frozenset[Pair]] = []
    explored, confirmed = frozenset[Pair](), frozenset[Pair]()
    n_queries = 0
    while len(seen) < settings.n_questions:
        n = min(settings.n_per_round, settings.n_questions - len(seen))
        known = Schema.of(Slot(domain, slot) for pairs in seen for domain, slot in pairs)
        round_seed = int(np.random.default_rng([seed, len(seen)]).integers(2**31))
        said = settings.questioner.questions(known, n=n, seed=round_seed)
        states = _answers(target, said, settings, settings.temperature, round_seed)
        found = [_pairs(state) for state in states]
        n_queries += n
        if settings.method == "inter_temperature":
            again = [
                *settings.questioner.questions_on(states, seed=round_seed),
                *(said if settings.repeats_questions else ()),
            ]
            sure = _answers(target, again, settings, 0.0, round_seed)
            n_queries += len(again)
            explored |= frozenset[Pair]().union(*found)
            confirmed |= frozenset[Pair]().union(*map(_pairs, sure))
            found = [pairs & confirmed for pairs in found]
            found[-1] |= explored & confirmed  # what an earlier round found and this one confirms
        seen += found
    return Trace(seen, n_queries)


def _answers(
    target: Target, said: Sequence[str], settings: ProbeSettings, temperature: float, seed: int
) -> list[DialogueState]:
    """Return the state that the bot writes in answer to each utterance of a new dialogue."""
    prompts = ["".join(user_lines(one_line(text))) + STATE_MARKER for text in said]
    return [_state(texts[0]) for texts in _sample(target, prompts, 1, settings, temperature, seed)]


def _sample(
    target: Target, prompts: Sequence[str], n: int, settings: ProbeSettings, temperature: float, seed: int
) -> list[list[str]]:
    drawn = target.sample(
        prompts,
        n=n,
        max_new_tokens=settings.max_new_tokens,
        decoding=Decoding(temperature=temperature),
        seed=seed,
    )
    if [len(texts) for texts in drawn] != [n] * len(prompts):
        raise AuditError(f"the target did not return {n} samples for each of {len(prompts)} questions")
    return drawn


def _state(text: str) -> DialogueState:
    return read_state(STATE_MARKER + text).state or frozenset()


def _pairs(state: DialogueState) -> frozenset[Pair]:
    return frozenset((triplet.domain, triplet.slot) for triplet in state)
