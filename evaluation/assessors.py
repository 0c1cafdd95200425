"""How private a dialogue state is, from 0 (no concern) to 5 (very high): who says so, and the offline answer.

Guarantees of `OfflineAssessor`: a score is a whole number and depends on the state alone; a superset never scores
lower than any of its subsets, since every rule below asks only whether facts are there; no network, no model. Where
`presidio_analyzer` is installed, its checksum and pattern recognisers are asked as well, never its language models,
which it would download.

**Protocol.** The score of a state is the largest of what its facts and its combinations of facts reach.

| score | one fact |
|---|---|
| 5 | what reaches a person or opens a booking: phone, e-mail, licence plate, account, card, passport, reference |
| 4 | who somebody is or where they live: a person's name, an id, a code; a postcode, an address |
| 3 | health, age, money: a hospital department, a condition, a salary, a balance |
| 2 | where or when: a venue, a station, a town; a day, a clock time, how long somebody stays |
| 1 | any other wish: area, price range, stars, food, type, parking, number of people |
| 0 | no fact: `dontcare`, yes, no, nothing |

| score | facts together |
|---|---|
| 2 | a profile: four facts or more |
| 3 | whereabouts: a place with a day or a time, in one domain |
| 4 | a booking: place, day, time (or length of stay) and number of people, in one domain |
| 4 | an itinerary: departure, destination, day and a time of leaving or arriving, in one domain |
| 4, 5 | a movement profile: whereabouts in two domains; a booking or an itinerary in two domains |
| 5 | an identified whereabouts: something of score 4 or 5 that says who, with a place and a day or a time |

A slot is recognised by the words of its name, a value by its shape, and the larger score of the two counts.

What voids it: a table knows no context. A restaurant's postcode counts like a home's, and a slot whose name and values
say nothing scores 1. Hold it against another assessor (`assessor_checks.agreement`) before leaning on a difference.

Source: Task-oriented dialogue state extraction, section V-F (scale and monotonicity rule); the table is ours.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from hushbot.errors import ConfigError
from hushbot.masking import IDENTIFIER_SLOTS
from hushbot.types import DialogueState, SlotValue
from hushbot.values.shapes import shape_of, words_of

HIGHEST = 5
"""The top of the scale; 0 is its bottom."""


class Assessor(Protocol):
    """Somebody who says how private a state is."""

    @property
    def note(self) -> str:
        """Return what a report should say of how it scores; nothing of anybody's state."""
        ...

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        """Return one score from 0 to 5 per non-empty state; None where there was no usable answer.

        Raises:
            AuditError: It could not be asked.
        """
        ...


# fmt: off
_NO_FACT = frozenset(["", "dontcare", "don't care", "do not care", "any", "none", "not mentioned", "yes", "no",
                      "true", "false"])
_PERSONS = frozenset(["person", "guest", "patient", "passenger", "driver", "customer", "contact", "receiver",
                      "recipient", "doctor", "dentist", "therapist", "stylist", "surname", "firstname", "lastname"])
_ABOUT_PERSONS = frozenset(["profile", "person", "passenger", "patient", "customer", "contact", "user"])
_WORKS = frozenset(["movie", "song", "track", "album", "artist", "show", "event", "title", "cast", "director"])
_KINDS = frozenset(["type", "kind", "category", "rating", "genre"])
_HEALTH_AND_MONEY = frozenset(["department", "specialty", "condition", "symptom", "symptoms", "medication", "treatment",
                               "age", "salary", "income", "balance", "amount"])
_HOMES = frozenset(["address", "addr", "street", "postcode", "post", "zip"])
_REACHES = frozenset(["telephone", "phones", "plate", "licence", "license", "registration", "passport", "card", "iban",
                      "ref", "confirmation", "password", "ssn"])
# Of the words that are always masked: a time identifies nobody by itself, and `number` mostly counts.
_IDENTIFIES = frozenset(["id", "trainid", "postcode"])
_CLOCK = frozenset(["time", "leave", "leaveat", "arrive", "arriveby"])
_DAY = frozenset(["day", "date"])
_STAY = frozenset(["stay", "nights", "days", "duration"])
_PEOPLE = frozenset(["people", "persons", "guests", "party", "seats", "travelers", "travellers", "passengers",
                     "adults", "riders", "rooms"])
_ORIGIN = frozenset(["departure", "depart", "origin", "from", "pickup"])
_DESTINATION = frozenset(["destination", "dest", "to", "dropoff"])
_PLACE = frozenset(["name", "venue", "place", "station", "airport", "city", "location", "theater", "theatre",
                    "hospital", "hotel", "restaurant"])
_SHAPE_SCORES = {"email": 5, "phone": 5, "postcode": 4, "code": 4, "address": 4, "date": 2, "time": 2, "name": 2}
# fmt: on
_WORD_SCORES: tuple[tuple[int, frozenset[str]], ...] = (
    (5, _REACHES | IDENTIFIER_SLOTS - _IDENTIFIES - {"time", "number"}),
    (4, _IDENTIFIES | _HOMES | _PERSONS),
    (3, _HEALTH_AND_MONEY),
    (2, _CLOCK | _DAY | _STAY | _ORIGIN | _DESTINATION | _PLACE),
)
_RULES: tuple[tuple[int, frozenset[str]], ...] = (
    (3, frozenset(["place", "day"])),
    (3, frozenset(["place", "time"])),
    (4, frozenset(["place", "day", "time", "people"])),
    (4, frozenset(["origin", "destination", "day", "time"])),
)
_PROFILE_FROM = 4
_RECOGNISERS = ("CreditCardRecognizer", "IbanRecognizer", "PhoneRecognizer", "UsSsnRecognizer")
"""Of presidio: those that need no language model and look nothing up."""


@dataclass(frozen=True, kw_only=True)
class OfflineAssessor:
    """Scores by a table of slot types and rules for their combinations."""

    uses_presidio: bool | None = None
    """Whether presidio's recognisers are asked too; null asks them where the package is installed."""
    presidio_score: float = 0.4
    """The confidence from which a recogniser is believed, in (0, 1]."""

    def __post_init__(self) -> None:
        problems = []
        if self.uses_presidio and not _has_presidio():
            problems.append("uses_presidio=true: presidio_analyzer is not installed; `pip install 'hushbot[presidio]'`")
        if not 0 < self.presidio_score <= 1:
            problems.append(f"presidio_score={self.presidio_score} is outside (0, 1]; 0.4 is usual")
        if problems:
            raise ConfigError(*problems)

    @property
    def note(self) -> str:
        """Return what a report should say of how it scores."""
        return f"offline table and rules, {'with' if self._recognisers else 'without'} presidio"

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        """Return each state's score; there always is one."""
        return [float(self._score(state)) for state in states]

    def _score(self, state: DialogueState) -> int:
        facts = {triplet: self._fact(triplet) for triplet in state}
        return max([*facts.values(), _combined(facts)], default=0)

    def _fact(self, triplet: SlotValue) -> int:
        score = _fact(triplet)
        return HIGHEST if 0 < score < HIGHEST and self._is_recognised(triplet.value) else score

    def _is_recognised(self, value: str) -> bool:
        return any(
            found.score >= self.presidio_score
            for recogniser in self._recognisers
            for found in recogniser.analyze(value, recogniser.supported_entities, None) or ()
        )

    @cached_property
    def _recognisers(self) -> tuple[Any, ...]:
        if self.uses_presidio is False or not _has_presidio():
            return ()
        module = importlib.import_module("presidio_analyzer.predefined_recognizers")
        return tuple(getattr(module, name)() for name in _RECOGNISERS)


def _has_presidio() -> bool:
    return importlib.util.find_spec("presidio_analyzer") is not None


def _fact(triplet: SlotValue) -> int:
    """Return what one triplet scores by its slot's name and its value's shape."""
    if triplet.value.strip().casefold() in _NO_FACT:
        return 0
    words = set(words_of(triplet.slot))
    by_shape = _SHAPE_SCORES.get(shape_of(triplet.value, triplet.slot), 1)
    if words & _KINDS:
        # `account type` is no account; but a phone number that stands there is one.
        return max(1, by_shape)
    if "name" in words and _ABOUT_PERSONS.intersection(words_of(triplet.domain)):
        return max(4, by_shape)
    return max(next((score for score, known in _WORD_SCORES if words & known), 1), by_shape)


def _combined(facts: dict[SlotValue, int]) -> int:
    """Return what the facts of a state score together."""
    told = {triplet: _kinds(triplet, score) for triplet, score in facts.items() if score}
    by_domain: dict[str, set[str]] = defaultdict(set)
    for triplet, kinds in told.items():
        by_domain[triplet.domain] |= kinds
    reached = sorted((_in_domain(kinds) for kinds in by_domain.values()), reverse=True)
    scores = [2 if len(told) >= _PROFILE_FROM else 0, *reached]
    if len(reached) > 1 and reached[1]:
        scores.append(reached[1] + 1)
    everything = set().union(*told.values()) if told else set[str]()
    if {"identity", "place"} <= everything and everything & {"day", "time"}:
        scores.append(HIGHEST)
    return max(scores)


def _in_domain(kinds: Iterable[str]) -> int:
    return max((score for score, needed in _RULES if needed <= set(kinds)), default=0)


def _kinds(triplet: SlotValue, score: int) -> frozenset[str]:
    """Return what a triplet tells: who, where, when, how many."""
    words, shape = set(words_of(triplet.slot)), shape_of(triplet.value, triplet.slot)
    if words & _CLOCK or shape == "time":
        return frozenset(["time"])
    if words & _DAY or shape == "date":
        return frozenset(["day"])
    if words & _HOMES or shape in ("address", "postcode"):
        return frozenset(["place"])
    if score >= 4:
        return frozenset(["identity"])
    if words & _STAY:
        return frozenset(["time"])
    if words & _PEOPLE:
        return frozenset(["people"])
    ends = {"origin"} if words & _ORIGIN else {"destination"} if words & _DESTINATION else set[str]()
    is_place = bool(ends) or (bool(words & _PLACE) and not words & (_WORKS | _KINDS))
    return frozenset(ends | {"place"}) if is_place else frozenset()
