"""What a small number in a text counts.

Guarantees: a number is held to be a value's only where something says so: a span, the noun behind it (`3 people`), the
words before it (`party of 7`), or an action of the same turn that gives this number to the value's slot while the
response holds no other such number. Prices, times, ordinals and parts of numbers are no small numbers.

What nothing speaks for is `UNCLEAR`, and so is what two things speak for: then the value is better left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import Enum
from typing import NamedTuple

from hushbot.types import Span
from hushbot.values.shapes import NUMBER_WORDS, number_of


class Verdict(Enum):
    """Whether a number is a value's."""

    OWN = "the value"
    OTHER = "counts something else"
    UNCLEAR = "cannot be told"


class Number(NamedTuple):
    """A small number in a text."""

    start: int
    end: int
    digits: str


_NUMBER = re.compile(
    rf"(?<![\w.:,/$£€#-])(?:\d{{1,2}}|{'|'.join(NUMBER_WORDS)})(?![\w]|[.:,/]\d|-\d|\s?(?:[ap]\.?m\b|%|percent\b|o'?\"?clock\b))",
    flags=re.IGNORECASE,
)
# fmt: off
_CLASSES = {
    "people": (
        "person", "people", "ticket", "seat", "guest", "adult", "passenger", "rider", "traveller", "traveler", "party",
        "group", "other", "friend", "child", "children", "men", "man", "women", "woman",
    ),
    "nights": ("night", "day", "stay"),
    "rooms": ("room",),
    "beds": ("bed", "bedroom"),
    "baths": ("bath", "bathroom"),
    "stars": ("star",),
    "bags": ("bag",),
}
# fmt: on
_CLASS_OF = {word: name for name, words in _CLASSES.items() for word in words}
_NOUN = re.compile(r"[\s\-]+(?:more\s+|other\s+)?([a-z]+)", flags=re.IGNORECASE)
_PARTY = re.compile(r"\b(?:party|group|table|total)\s+(?:of|for)\s+$", flags=re.IGNORECASE)
_FOR = re.compile(r"\bfor\s+$", flags=re.IGNORECASE)
_ONE_OF = re.compile(r"\s+(?:of|more|that|which|with|the)\b", flags=re.IGNORECASE)


def numbers_in(text: str) -> list[Number]:
    """Return the small numbers of a text, whatever they count."""
    return [Number(m.start(), m.end(), number_of(m[0]) or "") for m in _NUMBER.finditer(text)]


def class_of(word: str) -> str | None:
    """Return what a noun or the last word of a slot's name counts; None for words that are not known."""
    word = word.casefold()
    return _CLASS_OF.get(word) or _CLASS_OF.get(word.removesuffix("s"))


def verdict(text: str, number: Number, names: Collection[str], spans: Iterable[Span]) -> Verdict:
    """Judge a number by what stands around it.

    Args:
        text: The utterance.
        number: A number in it.
        names: The last words of the value's slots' names.
        spans: The utterance's spans.
    """
    marked = [span for span in spans if span.start <= number.start and number.end <= span.end]
    if counted := [span for span in marked if number_of(span.value) == number.digits]:
        return Verdict.OWN if any(last_word(span.slot) in names for span in counted) else Verdict.OTHER
    classes = {class_of(name) for name in names}
    noun = _NOUN.match(text, number.end)
    kind = class_of(noun[1]) if noun else None
    if kind is not None:
        return Verdict.OWN if kind in classes else Verdict.UNCLEAR if None in classes else Verdict.OTHER
    if _PARTY.search(text, max(0, number.start - 12), number.start):
        return Verdict.OWN if "people" in classes else Verdict.UNCLEAR
    is_for = _FOR.search(text, max(0, number.start - 8), number.start) and not _ONE_OF.match(text, number.end)
    return Verdict.OWN if is_for and "people" in classes else Verdict.UNCLEAR


def last_word(slot: str) -> str:
    """Return what a slot's name ends with: states say `book people` where actions say `people`."""
    return re.split(r"[\s_]", slot.strip())[-1].casefold()
