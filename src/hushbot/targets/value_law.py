"""Which values a bot may write: those that were said, those that the schema publishes, and don't-care.

Guarantees: a value is lawful only if it stands in the `User:`, `System:` and `Response:` lines before it (where the
bot acts on a lookup, in the `Database:` lines, too), between word boundaries, or is one of the published
`possible_values` of a categorical slot, or says that the user does not care, or is the `?` of a question. Upper and
lower case, blanks, hyphens, apostrophes and a missing zero of a time (`9:15`) make no difference. Text in a state
where no value belongs is held to the same law, except that it may be (the start of) a name or the empty state.

Voids it: a schema whose possible values were collected from private dialogues without being marked so.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

from rapidfuzz import fuzz, process

from hushbot.prompts import DATABASE_MARKER, EMPTY_STATE, RESPONSE_MARKER, SYSTEM_MARKER, USER_MARKER, one_line
from hushbot.schema import Schema

_SAID = (USER_MARKER, SYSTEM_MARKER, RESPONSE_MARKER)
_WORD = re.compile(r"\w+(?:[^\w\s]+\w+)*")
_TIME = re.compile(r"(?<![\w:])(\d:\d\d)(?![\w:])")
_HYPHENS, _APOSTROPHES = "-\u2010\u2011\u2012\u2013\u2014", "'`\u2018\u2019\u02bc"
_SIGNS = str.maketrans(dict.fromkeys(_HYPHENS, " ") | dict.fromkeys(_APOSTROPHES, ""))
_LEAST_SIMILAR = 50.0
_ASKED = "?"
"""What an act holds instead of a value: `restaurant-request(area=?)`."""
DONTCARE = frozenset(("dontcare", "dont care", "do nt care", "do not care", "doesnt care", "does not care"))
"""Normalised spellings."""


def normalise(text: str) -> str:
    """Return what two spellings of one value have in common.

    >>> normalise("Rosa\u2019s  Bed-and-Breakfast at 9:15")
    'rosas bed and breakfast at 09:15'
    """
    text = unicodedata.normalize("NFKC", text).casefold().translate(_SIGNS)
    return _TIME.sub(r"0\1", one_line(text))


class History:
    """What was said in a dialogue so far, as a prompt shows it.

    Args:
        text: The prompt.
        with_lookups: Whether what the database said counts as said.
    """

    def __init__(self, text: str, *, with_lookups: bool = False) -> None:
        markers = (*_SAID, DATABASE_MARKER) if with_lookups else _SAID
        lines = (line.partition(":") for line in text.split("\n") if line.startswith(markers))
        self._lines = [said for _, _, said in lines if said.strip()]
        self._normalised = "\n".join(map(normalise, self._lines))

    @property
    def is_empty(self) -> bool:
        """Whether nobody has said anything."""
        return not self._lines

    def holds(self, value: str) -> bool:
        """Return whether a normalised value was said."""
        if not value or value not in self._normalised:
            return False
        return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", self._normalised) is not None

    def spans(self, max_words: int) -> dict[str, str]:
        """Return runs of up to so many words of one line, normalised and as they were said.

        The last line's come first, within a line the short ones, and of those the last.
        """
        found: dict[str, str] = {}
        for line, words in zip(reversed(self._lines), reversed(self._words), strict=True):
            for n in range(1, min(max_words, len(words)) + 1):
                for i in range(len(words) - n, -1, -1):
                    span = one_line(line[words[i][0] : words[i + n - 1][1]])
                    found.setdefault(normalise(span), span)
        return found

    @cached_property
    def _words(self) -> list[list[tuple[int, int]]]:
        return [[match.span() for match in _WORD.finditer(line)] for line in self._lines]


@lru_cache(maxsize=4096)
def read_history(text: str, *, with_lookups: bool = False) -> History:
    """Return what was said in a text, or said and looked up."""
    return History(text, with_lookups=with_lookups)


@dataclass(frozen=True, kw_only=True)
class ValueLaw:
    """The law of one schema, and what may stand in for a value that breaks it."""

    schema: Schema
    max_candidates: int
    """Most spans of the history, and most values of the schema, that are considered for one value."""
    max_words: int
    """Longest span."""

    def allows(self, domain: str, slot: str, value: str, history: History) -> bool:
        """Return whether a value may be written; domain or slot may be unknown (empty)."""
        normalised = normalise(value)
        if not value or history.holds(normalised):
            return True
        if not slot:
            return bool(normalised) and any(name.startswith(normalised) for name in self._names)
        return value == _ASKED or normalised in DONTCARE or normalised in self._listed(domain, slot)

    def candidates(self, domain: str, slot: str, value: str, history: History) -> list[str]:
        """Return what to write instead: the most similar spans, then the most recent ones, then the schema's values.

        Digits count as alike, so that a time is replaced by a time.
        """
        spans = history.spans(self.max_words)
        similar = _most_similar(value, spans, -(-self.max_candidates // 2))
        chosen = list(dict.fromkeys((*similar, *spans)))[: self.max_candidates]
        listed = self._listed(domain, slot)
        if len(listed) > self.max_candidates:
            listed = {key: listed[key] for key in _most_similar(value, listed, self.max_candidates, least=0.0)}
        return list(({key: spans[key] for key in chosen} | listed).values())

    def _listed(self, domain: str, slot: str) -> dict[str, str]:
        domain, slot = domain.casefold(), slot.casefold()
        # An act names its domain first: `restaurant-inform`.
        return self._values.get((domain, slot)) or self._values.get((domain.rpartition("-")[0] or domain, slot), {})

    @cached_property
    def _values(self) -> dict[tuple[str, str], dict[str, str]]:
        """The values of categorical slots, normalised and as listed; under no domain, those of all domains."""
        values: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for slot in self.schema.slots:
            if slot.categorical and not slot.collected:
                for domain in (slot.domain.casefold(), ""):
                    values[domain, slot.name.casefold()] |= {normalise(v): v for v in slot.possible_values}
        return dict(values)

    @cached_property
    def _names(self) -> frozenset[str]:
        names = {name for slot in self.schema.slots for name in (slot.domain, slot.name)}
        return frozenset(map(normalise, (*names, EMPTY_STATE)))


def _most_similar(value: str, choices: dict[str, str], n: int, *, least: float = _LEAST_SIMILAR) -> Iterator[str]:
    keys = list(choices)
    shapes = [_shape(key) for key in keys]
    found = process.extract(_shape(normalise(value)), shapes, scorer=fuzz.ratio, limit=n, score_cutoff=least)
    return (keys[index] for _, _, index in found)


def _shape(text: str) -> str:
    return re.sub(r"\d", "0", text)
