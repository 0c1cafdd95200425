"""What an answer offers and tells, by kind: a name, a phone number, a reference; as placeholders of one spelling.

Guarantees: pure functions. `unify` reads placeholders however a system spells them (`[hotel_name]`, `[value_name]`,
`[name]`) and rewrites them as `NAME`, `PHONE` and so on. `Delexicaliser` finds the same kinds in plain text: venues,
addresses, phones and postcodes of the tables, train ids, codes and numbers by their shape. `from_spans` puts
placeholders where the corpus marks a value.

What voids comparability: published systems write placeholders themselves; finding values in plain answers misses
names that a bot misspells. Text outside placeholders is put in small letters and loses its tokeniser's blanks.
Source: as for `venue_search`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hushbot.corpora.multiwoz_database import MultiwozDatabase
from hushbot.types import Span

DOMAINS = frozenset({"attraction", "hospital", "hotel", "police", "restaurant", "taxi", "train"})

_KINDS = {
    "ADDRESS": ("address",),
    "AREA": ("area",),
    "COUNT": ("bookpeople", "bookstay", "choice", "count", "people", "stars", "stay"),
    "DAY": ("bookday", "day"),
    "DEPARTMENT": ("department",),
    "FOOD": ("food",),
    "INTERNET": ("internet",),
    "NAME": ("name",),
    "OPEN": ("open", "openhours"),
    "PARKING": ("parking",),
    "PHONE": ("phone",),
    "PLACE": ("departure", "destination", "place"),
    "POST": ("postcode",),
    "PRICE": ("entrancefee", "fee", "price", "pricerange", "ticket"),
    "REFERENCE": ("ref", "reference"),
    "TIME": ("arrive", "arriveby", "booktime", "duration", "leave", "leaveat", "time"),
    "TRAINID": ("id", "train", "trainid"),
    "TYPE": ("car", "type"),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_PLACEHOLDER = re.compile(r"\[([\w\s]+)\](?:es|s|-s|-es|)")
_SHAPES = (
    ("TRAINID", "train", re.compile(r"\bTR ?\d{4}\b", re.IGNORECASE)),
    ("POST", None, re.compile(r"\bcb ?\d{1,2} ?,? ?\d ?[a-z]{2}\b", re.IGNORECASE)),
    ("PHONE", None, re.compile(r"(?<![\w-])\d[\d ]{8,11}\d(?![\w-])")),
    ("REFERENCE", None, re.compile(r"\b[A-Z0-9]{8}\b")),
)


class Mention(NamedTuple):
    """One thing that an answer tells."""

    kind: str
    """`NAME`, `PHONE`, ...; empty for a placeholder of no known kind."""
    domain: str | None
    """What it is about, where the answer shows it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A system's utterance without its values."""

    text: str
    """With placeholders of one spelling."""
    mentions: frozenset[Mention] = frozenset()

    @property
    def kinds(self) -> frozenset[str]:
        """Return the kinds of what it tells."""
        return frozenset(mention.kind for mention in self.mentions)

    @property
    def domains(self) -> frozenset[str]:
        """Return the domains that its placeholders name."""
        return frozenset(mention.domain for mention in self.mentions if mention.domain)


def unify(text: str) -> Answer:
    """Read an answer that has placeholders.

    >>> unify("Call the [hotel_name] at [value_phone] .").text
    'call the NAME at PHONE.'
    """
    mentions: set[Mention] = set()

    def spelled(found: re.Match[str]) -> str:
        mention = _mention(found[1])
        mentions.add(mention)
        return mention.kind

    return Answer(_joined(_PLACEHOLDER.sub(spelled, text.lower())), frozenset(mentions))


def from_spans(text: str, spans: Sequence[Span]) -> Answer:
    """Read an answer whose values the corpus marks; of overlapping spans the first counts."""
    pieces, end = [], 0
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        if span.start >= end and span.value != "dontcare":
            pieces += [text[end : span.start], _written(span.domain, span.slot)]
            end = span.end
    return unify("".join([*pieces, text[end:]]))


@dataclass(frozen=True, slots=True)
class Delexicaliser:
    """Puts placeholders into plain answers."""

    patterns: tuple[tuple[str, str | None, re.Pattern[str]], ...]
    """Kind, domain and what to look for, longest values first."""

    @classmethod
    def of(cls, database: MultiwozDatabase) -> Delexicaliser:
        """Collect what the tables can tell."""
        patterns = []
        for kind, column in (("NAME", "name"), ("ADDRESS", "address"), ("PHONE", "phone"), ("POST", "postcode")):
            for domain, table in sorted(database.tables.items()):
                cells = [cell for cell in table.rows_with.get(column, {}) if len(cell) > 1]
                if domain in DOMAINS and cells:
                    patterns.append((kind, domain, _any_of(cells)))
        return cls((*patterns, *_SHAPES))

    def read(self, text: str) -> Answer:
        """Return the answer with placeholders for what it tells."""
        for kind, domain, pattern in self.patterns:
            text = pattern.sub(_written(domain, kind), text)
        return unify(text)


def _any_of(cells: Sequence[str]) -> re.Pattern[str]:
    """Match any of the cells as whole words, blanks and the tokeniser's blanks before marks apart."""
    options = ("".join(_loose(part) for part in re.split(r"(\W+)", cell)) for cell in sorted(cells, key=_longest_first))
    return re.compile(rf"(?<!\w)(?:{'|'.join(options)})(?!\w)", re.IGNORECASE)


def _longest_first(cell: str) -> tuple[int, str]:
    return -len(cell), cell


def _loose(part: str) -> str:
    if re.fullmatch(r"\w*", part):
        return re.escape(part)
    marks = part.split()
    return r"\s*" + r"\s*".join(map(re.escape, marks)) + r"\s*" if marks else r"\s+"


def _written(domain: str | None, slot: str) -> str:
    slot = {"POST": "postcode"}.get(slot, slot)
    return f"[{domain}_{slot}]".lower() if domain in DOMAINS else f"[value_{slot}]".lower()


def _mention(written: str) -> Mention:
    first, _, rest = written.partition("_")
    domain = first if first in DOMAINS and rest else None
    name = rest if domain or (first == "value" and rest) else written
    kind = _KIND_OF.get(name.replace(" ", "").replace("_", ""), "")
    if kind == "TRAINID" and domain not in (None, "train"):
        kind = "ID"
    return Mention(kind, domain)


def _joined(text: str) -> str:
    """Return the text without the blanks that a tokeniser put before marks."""
    text = " ".join(text.split())
    text = re.sub(r" (n't|'(?:s|m|re|ve|ll|d)\b)", r"\1", text)
    return re.sub(r" ([.,!?;:)])", r"\1", text).replace("( ", "(")
