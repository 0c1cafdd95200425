"""How a text changes when a value in it is exchanged or taken out.

Guarantees: edits are made in one pass, so that what was put in is never searched again; a span that is kept equals its
slice of the new text, one that an edit cuts or empties is dropped.

Void as grammar: what a phrase drags along when it is taken out is a guess from the words before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hushbot.types import Span

_ARTICLE = re.compile(r"\b(a|an)\s+$", flags=re.IGNORECASE)
_PREPOSITION = re.compile(
    r"(?:(?<!\w)(?:in|at|on|from|to|for|under|by|near|with|of|called|named|via)\s+)?(?:(?<!\w)(?:the|an?)\s+)?$",
    flags=re.IGNORECASE,
)
_PHRASE_ENDS = re.compile(
    r"\s*(?:$|[.,;?!)]|(?:and|or|at|on|for|from|to|in|with|that|by|of|please|under|is|if)\b)", flags=re.IGNORECASE
)
_STRAY = re.compile(r"^[\s,]+|\s*,(?=\s*[,.;?!])|\s{2,}")


class Edit(NamedTuple):
    """A piece of a text and what goes in its place."""

    start: int
    end: int
    new: str


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
