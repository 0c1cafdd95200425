"""Where values stand in a text.

Guarantees: a value is found by its words, whatever the case and the accents, and whatever blanks, hyphens, apostrophes
and possessives stand between them (`alpha-milton`, `rosa 's`, `christ's college` for `christ college`, `guest house`
for `guesthouse`), never inside a word or a number (`hall` in `hallway`, `5` in `15:45`). Where values overlap, the
longest is found.

Void for values that hold no letter or digit: they are never found. Small numbers are for `counts` to find.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from hushbot.values.words import fold

# Points and commas belong to a number; between words, separators say nothing.
_TOKEN = re.compile(r"\d+(?:[.:,/]\d+)+|(?:[^\W_][\u0300-\u036f]*)+|[^\w\s'’`.\-_]")
_BRITISH = {"center": "centre", "theater": "theatre", "theaters": "theatres"}
"""Words that one corpus spells in two ways."""
_POSSESSIVE = re.compile(r"(?<=\w)\s?['’`]\s?s(?!\w)", flags=re.IGNORECASE)
_GAP = re.compile(r"[\s\-'’`_]{0,5}|\.")
_AFTER_ABBREVIATION = re.compile(r"\.\s?")
_ABBREVIATIONS = frozenset({"dr", "mr", "mrs", "ms", "st", "prof", "ave", "rd", "blvd"})


class Mention(NamedTuple):
    """A value in a text."""

    start: int
    end: int
    key: str
    """Which value."""


@lru_cache(maxsize=16384)
def _tokens(text: str) -> tuple[tuple[str, int, int], ...]:
    return tuple((_word(match[0]), match.start(), match.end()) for match in _TOKEN.finditer(text))


@lru_cache(maxsize=65536)
def _word(token: str) -> str:
    folded = fold(token)
    return _BRITISH.get(folded, folded)


def unpossessed(text: str) -> str:
    """Return a text without possessives, with blanks in their place."""
    return _POSSESSIVE.sub(lambda match: " " * len(match[0]), text)


@lru_cache(maxsize=16384)
def squash(text: str) -> str:
    """Return the words of a text without what stands between them, in small letters."""
    return "".join(token for token, _, _ in _tokens(text))


class Finder:
    """Finds the mentions of a set of values; remembers the texts it has read."""

    def __init__(self, forms: Mapping[str, str], texts: Iterable[str] = ()) -> None:
        """Take the squashed forms and the value that each stands for.

        Args:
            forms: Squashed form -> key.
            texts: The values as they are written; unusual separators inside them (`17:17 . 19:17`) are allowed.
        """
        self.forms = {form: key for form, key in forms.items() if form}
        self._gaps = {gap for text in texts for gap in _unusual_gaps(text)}
        self._starts = {form[:i] for form in self.forms for i in range(1, len(form) + 1)}
        self._known: dict[str, tuple[Mention, ...]] = {}

    def find(self, text: str) -> tuple[Mention, ...]:
        """Return the mentions that do not overlap, the longest first to be chosen, in the text's order."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = apart(self.find_all(text))
        return found

    def find_all(self, text: str) -> list[Mention]:
        """Return every mention, also those inside others."""
        found = self._read(text)
        if (plain := unpossessed(text)) != text:
            found += [mention for mention in self._read(plain) if mention not in found]
        return found

    def _read(self, text: str) -> list[Mention]:
        tokens = _tokens(text)
        found = []
        for i, (joined, start, end) in enumerate(tokens):
            if joined not in self._starts:
                continue
            for j in range(i, len(tokens)):
                if j > i:
                    word, next_start, next_end = tokens[j]
                    before = tokens[j - 1]
                    if not _is_gap(text, before, next_start) and text[before[2] : next_start] not in self._gaps:
                        break
                    joined, end = joined + word, next_end
                if joined not in self._starts:
                    break
                key = self.forms.get(joined)
                if key is not None:
                    found.append(Mention(start, end, key))
        return found

    def keys(self, text: str) -> frozenset[str]:
        """Return which values a text mentions."""
        return frozenset(mention.key for mention in self.find(text))


def apart(mentions: Iterable[Mention]) -> tuple[Mention, ...]:
    """Return the mentions that do not overlap, the longest first to be chosen, in the text's order."""
    chosen: list[Mention] = []
    for mention in sorted(mentions, key=lambda m: (m.start - m.end, m.start)):
        if all(mention.end <= other.start or other.end <= mention.start for other in chosen):
            chosen.append(mention)
    return tuple(sorted(chosen))


def _is_gap(text: str, before: tuple[str, int, int], start: int) -> bool:
    """Say whether two tokens may belong to one value, judged by what stands between them."""
    gap = text[before[2] : start]
    # `dr. lombardi` is one name, `in the old. town hall` is none.
    is_short = before[0] in _ABBREVIATIONS or (len(before[0]) == 1 and before[0].isalpha())
    return bool(_GAP.fullmatch(gap)) or (is_short and bool(_AFTER_ABBREVIATION.fullmatch(gap)))


def _unusual_gaps(text: str) -> list[str]:
    tokens = _tokens(text)
    return [text[one[2] : two[1]] for one, two in pairwise(tokens) if not _is_gap(text, one, two[1])]
