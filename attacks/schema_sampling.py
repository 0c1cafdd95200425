"""Schema-guided sampling: domains and slots are chosen among those a schema knows, values are free.

Guarantees: what is written between two values is one of the phrases that the text layout allows there (a domain's
opening, `slot=`, the end of a domain, the end of the state), drawn in proportion to the probability of the whole
phrase under the bot (`hushbot.targets.guided`); a value is whatever the bot writes before the next `,` or `)` that no
backslash escapes. Every text that comes to its end is a state that `prompts.read_state` reads whole, with no domain
and no slot twice; slots may come in any order. An empty value, a line break inside a value and a value longer than
`max_value_tokens` cut the text there: what was closed before is still a candidate, the rest is counted as cut. A value
of nothing but blanks is read as none, and counted as a format error.

An empty state is not written unless `may_be_empty` asks for it: whoever wants to extract something has no use for
` None`, and a bot of which little is known takes it most of the time. What is drawn is then the bot's phrase law given
that the state is not empty. Each later choice is the same either way. The mass of the first choice no longer holds that
of ` None`, so a low one may mean that the bot would have written nothing, not that it knows other domains.

Voids it: a schema that lacks a domain or a slot, which is then never written (prefer recall when probing one).

Source: Task-oriented dialogue state extraction, section IV-B2.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import EMPTY_STATE, STATE_MARKER, domain_opening, slot_opening
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.targets.guided import Choice, Free, Law, sample_guided
from hushbot.types import Decoding

VALUE_ENDS = ",)"
"""What ends a value, where no backslash stands before it."""
_MEANS_SOMETHING = re.compile(r"\\.|[(=,)]", re.DOTALL)
"""What a state text may be cut at; a backslash takes with it what it escapes."""
MAX_TRIPLETS = 24
"""Longest state: twice what people ask for."""
MAX_VALUE_TOKENS = 32
"""Longest value: several times that of a long name."""


class _Place(NamedTuple):
    """Where a text stands in a state."""

    domain: str | None
    """The opening of the domain that is open; None between domains."""
    slot: str | None
    """The opening of the slot whose value is being written."""
    value: str
    """What there is of that value."""
    used: dict[str, list[str]]
    """The openings of the slots of each domain so far, by the domain's opening."""
    needs_slot: bool
    """Whether a comma asks for another slot."""


@dataclass(frozen=True, kw_only=True)
class StateGrammar:
    """What may follow in a state text, after `Belief State:` or after any beginning of a state."""

    schema: Schema
    max_triplets: int = MAX_TRIPLETS
    """A state of so many triplets is closed; at least 1."""
    max_value_tokens: int = MAX_VALUE_TOKENS
    """Where a value is cut; at least 1."""
    may_be_empty: bool = False
    """Whether a state of no domain at all (`None`) is one of the phrases that it may begin with."""
    _slots: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    """The openings of slots by that of their domain."""

    def __post_init__(self) -> None:
        for name, size in (("max_triplets", self.max_triplets), ("max_value_tokens", self.max_value_tokens)):
            if size < 1:
                raise ConfigError(f"{name}={size} must be at least 1")
        if not self.schema.slots:
            raise ConfigError("the schema has no slot, so there is nothing to guide; probe again, or use schema=gold")
        openings = {
            domain_opening(domain): tuple(slot_opening(slot) for slot in slots)
            for domain, slots in self.schema.by_domain.items()
        }
        object.__setattr__(self, "_slots", openings)

    def next(self, text: str) -> Choice | Free | None:
        """Return what follows: phrases to choose among, a free value, or None at the end of the line."""
        # A marker inside a value or an utterance is theirs; the layout's own stands at the beginning of a line.
        body = f"\n{text}".rpartition(f"\n{STATE_MARKER}")[2]
        if body.endswith("\n"):
            return None
        place = _read(body)
        n_triplets = sum(map(len, place.used.values()))
        if place.domain is None:
            return Choice(self._between_domains(place, n_triplets))
        if place.slot is None:
            return Choice(self._slots_of(place, " " if place.needs_slot and not body.endswith(" ") else "") or (")",))
        if not place.value:
            return Free(VALUE_ENDS, self.max_value_tokens)
        more = self._slots_of(place, ", ") if n_triplets < self.max_triplets else ()
        return Choice((*more, ")"))

    def _between_domains(self, place: _Place, n_triplets: int) -> tuple[str, ...]:
        openings = tuple(f" {opening}" for opening in self._slots if opening not in place.used)
        if not place.used:
            return (*openings, f" {EMPTY_STATE}\n") if self.may_be_empty else openings
        return (*(openings if n_triplets < self.max_triplets else ()), "\n")

    def _slots_of(self, place: _Place, before: str) -> tuple[str, ...]:
        """Return the openings of slots that the open domain has left."""
        domain = place.domain or ""
        return tuple(f"{before}{slot}" for slot in self._slots.get(domain, ()) if slot not in place.used[domain])


def _read(body: str) -> _Place:
    """Follow a state text to its end; names are kept as they are spelled."""
    used: dict[str, list[str]] = {}
    domain: str | None = None
    slot: str | None = None
    start, needs_slot = 0, False
    for found in _MEANS_SOMETHING.finditer(body):
        character = found[0]
        if domain is None and character == "(":
            domain = body[start : found.end()].strip()
            used.setdefault(domain, [])
        elif domain is not None and slot is None and character == "=":
            slot, needs_slot = body[start : found.end()].strip(), False
            used[domain].append(slot)
        elif domain is not None and character == ")":
            domain, slot = None, None
        elif slot is not None and character == ",":
            slot, needs_slot = None, True
        else:
            continue
        start = found.end()
    return _Place(domain, slot, body[start:] if slot is not None else "", used, needs_slot)


class Continuations(NamedTuple):
    """Guided texts, draw by draw."""

    texts: list[list[str]]
    """As many per prompt as were asked for, each without its line break."""
    mass: float | None
    """The bot's own probability of all phrases that a choice offered, averaged over choices and draws: near 1 the
    schema forces nothing, near 0 it writes what the bot would not. None where there was nothing to choose."""
    n_queries: int
    """Phrases that were scored, each once per distinct text before it, and free values that were drawn."""


def guided_continuations(
    target: Target, prompts: Sequence[str], grammar: StateGrammar, *, n: int, decoding: Decoding, law: Law, seed: int
) -> Continuations:
    """Return n guided continuations per prompt.

    Raises:
        AuditError: A query failed, or the target did not return as many texts as it was asked for.
        ConfigError: The target cannot be sampled under this law.
    """
    found = sample_guided(target, prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)
    if [sum(text.count for text in texts) for texts in found.texts] != [n] * len(prompts):
        raise AuditError(f"the target did not return {n} guided texts for each of {len(prompts)} prompts")
    continuations = []
    weights, masses = 0, 0.0
    for position, texts in enumerate(found.texts):
        drawn = [text.text.rstrip("\n") for text in texts for _ in range(text.count)]
        order = np.random.default_rng([seed, position]).permutation(len(drawn))
        continuations.append([drawn[i] for i in order])
        weights += sum(text.count * len(text.mass) for text in texts)
        masses += sum(text.count * sum(text.mass) for text in texts)
    return Continuations(continuations, masses / weights if weights else None, found.n_queries)
