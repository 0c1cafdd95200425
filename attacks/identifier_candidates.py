"""Where identifiers stand in a text that a bot learnt to write, of which kind they are, and of which domain.

Guarantees: candidates do not overlap. What a slot that names an identifier holds comes before what the system is known
to have issued, and that before what looks like an identifier by its form; an issued one keeps the domain it was issued
for, wherever it is said again.

What voids it: the domain of a response's identifier is the dialogue's only one, or unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from hushbot.attacks.identifier_patterns import (
    find_identifiers,
    is_plausible,
    key_of,
    kind_of_slot,
    matcher,
    words_of,
)

SEVERAL = "several"
"""The domain of an identifier whose text names none, in a dialogue of several domains."""
Issued: TypeAlias = Mapping[str, tuple[str, str]]
"""Key of an identifier that the system issued -> its kind and domain."""
_ENTRY = re.compile(r"(?P<slot>[^(),=\\\n]+)=(?P<value>(?:\\.|[^,)\\\n])*)")
_HEAD = re.compile(r"([^\W\d][\w ]*?)(?:-\w+)?\(")
_SLOT_BEFORE = re.compile(r"([^(),=\\\n]+)=\s*$")


class Candidate(NamedTuple):
    """An identifier in a supervised text."""

    start: int
    end: int
    kind: str
    domain: str


def find_candidates(text: str, line: str, issued: Issued, domains: Sequence[str]) -> Iterator[Candidate]:
    """Yield the identifiers of a supervised text: by slot first, then the issued ones, then by form."""
    taken: list[Candidate] = []
    for candidate in _proposals(text, line, issued, domains):
        if all(candidate.end <= other.start or other.end <= candidate.start for other in taken):
            taken.append(candidate)
    yield from sorted(taken)


def _proposals(text: str, line: str, issued: Issued, domains: Sequence[str]) -> Iterator[Candidate]:
    entries = _ENTRY.finditer(text) if line in ("state", "actions") else ()
    for entry in entries:
        if (kind := kind_of_slot(entry["slot"])) is not None:
            yield from _of_entry(text, entry, kind, issued, domains)
    for key, (kind, domain) in issued.items():
        for match in matcher(key).finditer(text):
            yield Candidate(match.start(), match.end(), kind, domain)
    for found in find_identifiers(text):
        kind, domain = issued.get(key_of(text[found.start : found.end]), (found.kind, ""))
        yield Candidate(found.start, found.end, kind, domain or _domain_at(text, found.start, line, domains))


def _of_entry(
    text: str, entry: re.Match[str], kind: str, issued: Issued, domains: Sequence[str]
) -> Iterator[Candidate]:
    """Yield what a slot that names an identifier holds: what looks like one in its value, or all of it."""
    value = entry["value"]
    start = entry.start("value") + len(value) - len(value.lstrip())
    spans = [(start, start + len(value.strip()), kind)]
    if kind != "name" and (inside := list(find_identifiers(value))):
        at = entry.start("value")
        vague = ("reference", "id", "number")
        spans = [(at + f.start, at + f.end, kind if f.kind in vague or len(inside) == 1 else f.kind) for f in inside]
    for low, high, named in spans:
        written = text[low:high]
        if is_plausible(written, named):
            _, domain = issued.get(key_of(written), ("", ""))
            yield Candidate(low, high, named, domain or _domain_at(text, low, "state", domains))


def _domain_at(text: str, at: int, line: str, domains: Sequence[str]) -> str:
    """Return the dialogue's domain that a state or an act is about at some place."""
    known = {domain.casefold(): domain for domain in domains}
    heads = [match[1].strip().casefold() for match in _HEAD.finditer(text, 0, at)] if line != "response" else []
    if heads and heads[-1] in known:
        return known[heads[-1]]
    return domains[0] if len(domains) == 1 else SEVERAL


def cue_of(before: str) -> str:
    """Return what stands right before an identifier: the name of its slot, or the last word."""
    slot = _SLOT_BEFORE.search(before)
    if slot:
        return slot[1].strip().casefold()
    words = words_of(before)
    return words[-1] if words else ""
