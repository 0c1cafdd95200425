"""Where values stand in a text, and how a text changes when they are exchanged.

Guarantees: a value is found by its words, whatever the case, and whatever blanks, hyphens and apostrophes stand
between them (`alpha-milton`, `rosa 's`, `guest house` for `guesthouse`), never inside a word or a number (`hall` in
`hallway`, `5` in `15:45`). Where values overlap, the longest is found; a small number is found only where it counts
something (`3 people`, not `3 pm` or `$3`; `one night`, not `the first one`). Edits are made in one pass: what was put
in is never searched again. A span that is kept equals its slice of the new text.

Void for values that hold no letter or digit: they are never found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from hushbot.shapes import NUMBER_WORDS
from hushbot.types import Span

# Points and commas belong to a number; between words, separators say nothing.
_TOKEN = re.compile(r"\d+(?:[.:,/]\d+)+|[^\W_]+|[^\w\s'’`.\-_]")
_GAP = re.compile(r"[\s\-'’`_]{0,4}|\.")
_AFTER_ABBREVIATION = re.compile(r"\.\s?")
_ABBREVIATIONS = frozenset({"dr", "mr", "mrs", "ms", "st", "prof", "ave", "rd", "blvd"})
_MONEY_BEFORE = re.compile(r"(?:[$£€#]\s?|\d-)$")
_NO_COUNT_AFTER = re.compile(r"-\d|\s?(?:[ap]\.?m\b|%|percent\b|o'?\"?clock\b)", flags=re.IGNORECASE)
_COUNTED = re.compile(
    r"[\s\-]+(?:person|people|nights?|tickets?|days?|seats?|rooms?|guests?|adults?|passengers?|stars?|beds?|bedrooms?|"
    r"baths?|tables?|bags?|riders?|travell?ers?)\b",
    flags=re.IGNORECASE,
)
_FOR = re.compile(r"\bfor\s+$", flags=re.IGNORECASE)
_ONE_OF = re.compile(r"\s+(?:of|more|that|which|with|the)\b", flags=re.IGNORECASE)
_ARTICLE = re.compile(r"\b(a|an)\s+$", flags=re.IGNORECASE)
_PREPOSITION = re.compile(
    r"(?:(?<!\w)(?:in|at|on|from|to|for|under|by|near|with|of|called|named|via)\s+)?(?:(?<!\w)(?:the|an?)\s+)?$",
    flags=re.IGNORECASE,
)
_PHRASE_ENDS = re.compile(
    r"\s*(?:$|[.,;?!)]|(?:and|or|at|on|for|from|to|in|with|that|by|of|please|under|is|if)\b)", flags=re.IGNORECASE
)
_STRAY = re.compile(r"^[\s,]+|\s*,(?=\s*[,.;?!])|\s{2,}")


class Mention(NamedTuple):
    """A value in a text."""

    start: int
    end: int
    key: str
    """Which value."""


class Edit(NamedTuple):
    """A piece of a text and what goes in its place."""

    start: int
    end: int
    new: str


@lru_cache(maxsize=16384)
def _tokens(text: str) -> tuple[tuple[str, int, int], ...]:
    return tuple((match[0].lower(), match.start(), match.end()) for match in _TOKEN.finditer(text))


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
        self._known: dict[tuple[str, bool], tuple[Mention, ...]] = {}

    def find(self, text: str, *, by_system: bool = False) -> tuple[Mention, ...]:
        """Return the mentions that do not overlap, the longest first to be chosen, in the text's order.

        Args:
            text: Any text.
            by_system: Whether the system says it, which names small numbers of its own.
        """
        found = self._known.get((text, by_system))
        if found is None:
            chosen: list[Mention] = []
            for mention in sorted(self.find_all(text, by_system=by_system), key=lambda m: (m.start - m.end, m.start)):
                if all(mention.end <= other.start or other.end <= mention.start for other in chosen):
                    chosen.append(mention)
            found = self._known[text, by_system] = tuple(sorted(chosen))
        return found

    def find_all(self, text: str, *, by_system: bool = False) -> list[Mention]:
        """Return every mention, also those inside others."""
        tokens = _tokens(text)
        found = []
        for i, (joined, start, end) in enumerate(tokens):
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
                if key is not None and _counts(text, joined, start, end, by_system=by_system):
                    found.append(Mention(start, end, key))
        return found

    def keys(self, text: str, *, by_system: bool = False) -> frozenset[str]:
        """Return which values a text mentions."""
        return frozenset(mention.key for mention in self.find(text, by_system=by_system))


def removal(text: str, start: int, end: int) -> Edit:
    """Return the edit that takes a phrase out with what would be left dangling: blanks, commas, `in the`."""
    if _PHRASE_ENDS.match(text, end):
        lead = _PREPOSITION.search(text, max(0, start - 24), start)
        start = lead.start() if lead else start
    before = text[:start].rstrip()
    after = text[end:].lstrip()
    if before.endswith(",") and (not after or after[0] in ",.;?!"):
        before = before[:-1].rstrip()
    if before:
        return Edit(len(before), end, "")
    # At the beginning of a text the comma that follows goes, too.
    return Edit(0, len(text) - len(after.lstrip(",").lstrip()), "")


def tidying(text: str) -> list[Edit]:
    """Return the edits that a text needs after phrases were taken out side by side: stray commas and blanks."""
    return [Edit(m.start(), m.end(), " " if m.start() and m[0].isspace() else "") for m in _STRAY.finditer(text)]


def article_edit(text: str, start: int, new: str) -> Edit | None:
    """Return the edit that makes the article before a place agree with what is put there; None if it does."""
    match = _ARTICLE.search(text, max(0, start - 8), start)
    if match is None or not new:
        return None
    article = match[1][0] + ("n" if new[0].lower() in "aeiou" or re.match(r"(8|11|18)(?!\d)", new) else "")
    return None if article.lower() == match[1].lower() else Edit(match.start(1), match.end(1), article)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Make edits that are in the text's order and do not overlap."""
    parts, position = [], 0
    for edit in edits:
        parts += [text[position : edit.start], edit.new]
        position = edit.end
    return "".join([*parts, text[position:]])


def moved(spans: Iterable[Span], edits: Sequence[Edit], new_text: str) -> tuple[Span, ...]:
    """Return the spans of the edited text; one that an edit cuts or empties is dropped."""
    kept = []
    for span in spans:
        inside = [edit for edit in edits if span.start <= edit.start and edit.end <= span.end]
        if any(edit not in inside and edit.start < span.end and span.start < edit.end for edit in edits):
            continue
        start = span.start + sum(_growth(edit) for edit in edits if edit.end <= span.start and edit not in inside)
        end = start + span.end - span.start + sum(_growth(edit) for edit in inside)
        value = new_text[start:end]
        if value and value == value.strip():
            kept.append(Span(span.domain, span.slot, value if inside else span.value, start, end))
    return tuple(sorted(kept, key=lambda span: (span.start, span.end, span.domain, span.slot, span.value)))


def _growth(edit: Edit) -> int:
    return len(edit.new) - (edit.end - edit.start)


def _is_gap(text: str, before: tuple[str, int, int], start: int) -> bool:
    """Say whether two tokens may belong to one value, judged by what stands between them."""
    gap = text[before[2] : start]
    # `dr. lombardi` is one name, `in the old. town hall` is none.
    is_short = before[0] in _ABBREVIATIONS or (len(before[0]) == 1 and before[0].isalpha())
    return bool(_GAP.fullmatch(gap)) or (is_short and bool(_AFTER_ABBREVIATION.fullmatch(gap)))


def _unusual_gaps(text: str) -> list[str]:
    tokens = _tokens(text)
    return [text[one[2] : two[1]] for one, two in pairwise(tokens) if not _is_gap(text, one, two[1])]


def _counts(text: str, form: str, start: int, end: int, *, by_system: bool) -> bool:
    """Say whether a small number counts something here; every other form does."""
    is_digits = form.isdigit() and len(form) <= 2
    if not is_digits and form not in NUMBER_WORDS:
        return True
    if _MONEY_BEFORE.search(text, max(0, start - 4), start) or _NO_COUNT_AFTER.match(text, end):
        return False
    if not by_system and form != "one":
        return True
    is_whole = start == 0 and end == len(text)
    is_alone = _FOR.search(text, max(0, start - 8), start) and not _ONE_OF.match(text, end)
    return is_whole or bool(is_alone or _COUNTED.match(text, end))
