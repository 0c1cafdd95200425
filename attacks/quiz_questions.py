"""Multiple-choice questions about records: one right option and three wrong ones of the same type.

Guarantees, of every question: four options, of which exactly one is right; no wrong option is true of the record, in
this field or another, at this turn of the dialogue or another, nor another spelling, a part or an extension of what is
(`pizza hut` beside `pizza hut city centre`, `two` beside `2`, `5 pm` beside `17:00`); wrong options are values that
other records have in the same slot, drawn as often as they occur, so that a value's frequency gives nothing away;
where these do not suffice they come from the schema's list of the slot, then from slots of its name in other domains
that take mostly the same values.
Right options stand equally often at each letter: a record's four questions have them at A, B, C and D, in random order.
What is drawn depends on the record's content, the pool and the seed: neither on its side nor on the order of records.

Voids it: two records that mean the same by different words.

Source: Pop Quiz Attack, sections 3.2 and 4.3 to 4.5. How wrong options are drawn is ours; the paper leaves it to GPT-4.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushbot.attacks.quiz_records import VOID, Fact, Record
from hushbot.prompts import one_line
from hushbot.schema import Schema
from hushbot.values.clock import minutes_of
from hushbot.values.shapes import bare, number_of

LETTERS = "ABCD"
N_OPTIONS = len(LETTERS)
COMPLEXITIES = ("simple", "complex")
_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_N_TRIES = 16
"""How often a further question on the same field is tried before the record is given up."""
Key: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Question:
    """One question about one field of one record."""

    record: Record
    fact: Fact
    wrong: tuple[str, ...]
    """The three wrong options."""
    place: int
    """Which letter is right, counted from 0."""
    complexity: str = "simple"
    text: str = ""
    """The wording; empty until a writer has written it."""

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options in the order of their letters."""
        return (*self.wrong[: self.place], self.fact.value, *self.wrong[self.place :])

    @property
    def data_type(self) -> str:
        """Return `text`, `number` or `mixed`: what the right option is made of."""
        return data_type(self.fact.value)

    @property
    def digits(self) -> str | None:
        """Return `1-4` or `5+`, the digits of a number; None for other types."""
        if self.data_type != "number":
            return None
        return "1-4" if sum(c.isdigit() for c in self.fact.value) <= 4 else "5+"


@lru_cache(maxsize=65536)
def data_type(value: str) -> str:
    """Return `text` (letters alone), `number` (digits alone, whatever the signs between them) or `mixed`."""
    has_digit, has_letter = (any(map(test, value)) for test in (str.isdigit, str.isalpha))
    return "mixed" if has_digit and has_letter else "number" if has_digit else "text"


class Asked(NamedTuple):
    """All questions, record by record."""

    questions: list[Question]
    notes: list[str]


@lru_cache(maxsize=65536)
def normal_form(value: str) -> str:
    """Return what a value means, for comparing: one form for all spellings of a time, a number, a name."""
    text = bare(one_line(value).casefold())
    if (minutes := minutes_of(text)) is not None:
        return f"time {minutes}"
    text = number_of(text) or text
    return f"number {float(text):.12g}" if _NUMBER.fullmatch(text) else text


@lru_cache(maxsize=65536)
def _words(value: str) -> str:
    return " ".join(["", *_WORD.findall(normal_form(value)), ""])


def mean_the_same(one: str, other: str) -> bool:
    """Say whether two values may both be called right: equal in meaning, or one a part of the other."""
    first, second = normal_form(one), normal_form(other)
    if first == second:
        return True
    if data_type(first) == "number" or first.startswith(("time ", "number ")):
        return False
    shorter, longer = sorted((_words(one), _words(other)), key=len)
    return bool(shorter.strip()) and shorter in longer


def is_free(option: str, record: Record, others: Iterable[str] = ()) -> bool:
    """Say whether an option is wrong of every field of a record, and differs in meaning from other options."""
    if one_line(option).casefold() in VOID:
        return False
    true = (value for fact in record.facts for value in (fact.value, *fact.others))
    return not any(mean_the_same(option, value) for value in (*true, *others))


class _Tier(NamedTuple):
    """Values to draw wrong options from."""

    values: list[str]
    weights: NDArray[np.float64]
    types: NDArray[np.str_]

    @classmethod
    def of(cls, counts: Counter[str]) -> _Tier:
        names = sorted(counts)
        return cls(names, np.array([float(counts[name]) for name in names]), np.array([data_type(n) for n in names]))


class Pool:
    """The values that records have in each slot, with how many have them."""

    def __init__(self, records: Iterable[Record], schema: Schema) -> None:
        self.counts: dict[Key, Counter[str]] = defaultdict(Counter)
        for record in records:
            for fact in record.facts:
                self.counts[fact.key][fact.value] += 1
        listed: dict[Key, Counter[str]] = {
            (slot.domain, slot.name): Counter(slot.possible_values) for slot in schema.slots if slot.possible_values
        }
        self._tiers = {
            key: [_Tier.of(values) for values in (own, listed.get(key, Counter()), self._akin(key)) if values]
            for key, own in self.counts.items()
        }

    def _akin(self, key: Key) -> Counter[str]:
        """Return the values of slots of the same name in other domains that mostly take the same values."""
        own, akin = self.counts[key], Counter[str]()
        for other, values in self.counts.items():
            if other != key and other[1] == key[1] and 2 * len(own.keys() & values.keys()) >= len(own):
                akin.update(values)
        return akin

    def wrong(self, fact: Fact, record: Record, rng: np.random.Generator) -> tuple[str, ...] | None:
        """Draw wrong options for a field; None where there are not three."""
        chosen: list[str] = []
        mine = data_type(fact.value)
        for tier in self._tiers[fact.key]:
            # Exponential clocks: the order in which values would be drawn without replacement, in proportion.
            clocks = rng.exponential(size=len(tier.values)) / tier.weights
            for i in np.lexsort((clocks, tier.types != mine)):
                if is_free(tier.values[i], record, chosen):
                    chosen.append(tier.values[i])
                    if len(chosen) == N_OPTIONS - 1:
                        return tuple(chosen)
        return None

    def frequency(self, option: str, question: Question) -> int:
        """Return how many records have this value in the field that is asked about; each option's own one counts."""
        return self.counts[question.fact.key][option]


def ask(
    records: Sequence[Record], pool: Pool, *, n_questions: int, complexities: Sequence[str], subject: str, seed: int
) -> Asked:
    """Make the questions of all records; a record that does not allow `n_questions` different ones is left out.

    Args:
        records: Whom to ask about.
        pool: Where wrong options come from.
        n_questions: Per record and complexity.
        complexities: Each question is asked at each of these.
        subject: The slot that names a record and is not asked about; empty where there is none.
        seed: Same seed, same questions.
    """
    questions: list[Question] = []
    n_left_out = 0
    for record in records:
        drawn = _draw(record, pool, n_questions, subject, np.random.default_rng(record.seed(seed)))
        n_left_out += not drawn
        questions += [
            Question(q.record, q.fact, q.wrong, q.place, complexity) for complexity in complexities for q in drawn
        ]
    note = (
        f"{n_questions} questions about each of {len(records) - n_left_out} records; {n_left_out} left out, for they "
        "do not allow as many different questions"
    )
    return Asked(questions, [note])


def _draw(record: Record, pool: Pool, n_questions: int, subject: str, rng: np.random.Generator) -> list[Question]:
    """Return the questions of one record, on as many different fields as it has; none where they do not suffice."""
    facts = [fact for fact in record.facts if fact.slot != subject]
    order = [facts[i] for i in rng.permutation(len(facts))]
    places = [int(p) for _ in range(-(-n_questions // N_OPTIONS)) for p in rng.permutation(N_OPTIONS)]
    drawn: list[Question] = []
    seen: set[tuple[Key, frozenset[str]]] = set()
    for _ in range(_N_TRIES):
        for fact in list(order):
            wrong = pool.wrong(fact, record, rng)
            if wrong is None:
                order.remove(fact)
            elif (fact.key, frozenset(wrong)) not in seen:
                seen.add((fact.key, frozenset(wrong)))
                drawn.append(Question(record, fact, wrong, places[len(drawn)]))
                if len(drawn) == n_questions:
                    return drawn
    return []
