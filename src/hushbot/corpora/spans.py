"""Annotated places of values in an utterance, checked: a span is kept only where its value really stands.

Guarantees: the slice of the utterance that a kept span marks equals its value up to upper and lower case, and
begins and ends with no blank. Offsets are never shifted to make them fit: published annotations point at the
wrong word often enough that a repair would be a guess. What is dropped is counted in one note per corpus.

Void as a list of all that was said: corpora leave values unannotated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeGuard

from hushbot.corpora.files import Notes, require
from hushbot.errors import DataError
from hushbot.types import Span

_NOTE = "span of a value dropped, the text there is not the value"


class Claim(NamedTuple):
    """A span as a corpus states it, unchecked: every field may hold anything."""

    domain: object
    slot: object
    values: tuple[object, ...]
    """What may stand there; any one of them will do."""
    start: object
    end: object
    """Exclusive."""


def check_spans(text: str, claims: Iterable[Claim], place: str, notes: Notes) -> tuple[Span, ...]:
    """Return the claims that hold, in the text's order and each once; note the others under the place."""
    kept = set()
    for claim in claims:
        span = _check(text, claim)
        if span is None:
            notes.add(_NOTE, place)
        else:
            kept.add(span)
    return tuple(sorted(kept, key=lambda span: (span.start, span.end, span.domain, span.slot, span.value)))


def token_range(text: str, first: object, last: object) -> tuple[int, int] | None:
    """Return the characters from the first to the last of two white-space tokens; None if there are no such tokens.

    >>> token_range("from  ely .", 1, 1)
    (6, 9)
    """
    if not (_is_index(first) and _is_index(last)):
        return None
    tokens = list(re.finditer(r"\S+", text))
    if not 0 <= first <= last < len(tokens):
        return None
    return tokens[first].start(), tokens[last].end()


def shifted(spans: Iterable[Span], by: int) -> tuple[Span, ...]:
    """Return spans moved to the right, for a text that got a prefix."""
    return tuple(Span(span.domain, span.slot, span.value, span.start + by, span.end + by) for span in spans)


def _check(text: str, claim: Claim) -> Span | None:
    _, _, values, start, end = claim
    try:
        domain, slot = require(claim.domain, str, "domain"), require(claim.slot, str, "slot")
    except DataError:
        return None
    if not (domain and slot):
        return None
    if not (_is_index(start) and _is_index(end) and 0 <= start < end <= len(text)):
        return None
    said = text[start:end]
    for value in values:
        if isinstance(value, str) and said.strip() and value.strip().casefold() == said.strip().casefold():
            start += len(said) - len(said.lstrip())
            return Span(domain, slot, value.strip(), start, start + len(said.strip()))
    return None


def _is_index(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
