"""The distinct values of one dialogue: what a rewrite may exchange, and where each of them comes from.

Guarantees: every value of a state or a booking belongs to exactly one `Value`, and so does every identifier, name,
time, date and price that a system action gives; alternatives of one triplet, spellings of one time and the word and
the digits of one small number are one value. `dontcare`, `?` and blanks are none. Looks at the one dialogue only.

Void for what is said and never annotated: a name that stands in no state, booking or action is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from hushbot.clock import minutes_of, spellings
from hushbot.mentions import Finder, squash
from hushbot.shapes import NUMBER_WORDS, number_of, shape_of
from hushbot.types import Dialogue, SlotValue, Span

VOID = frozenset({"", "?", "dontcare", "none", "not mentioned"})
"""What a value is not."""
_ISSUED = frozenset({"email", "time", "date", "price", "phone", "postcode", "code", "address", "name"})
"""Shapes that count as values although only the system names them; its other words and small numbers say what it
found."""
ACTION_VALUE = re.compile(
    r"(?P<lead>\(|,\s*)(?P<slot>(?:[^\\(),=]|\\.)*)=(?P<value>(?:[^\\(),]|\\.)*)", flags=re.DOTALL
)
"""One `slot=value` of a linear action, with the bracket or comma before it."""


class Entry(NamedTuple):
    """Where a value enters a state."""

    turn: int
    slot: tuple[str, str]
    """Domain and slot."""


@dataclass(slots=True)
class Value:
    """One value of a dialogue, under all its spellings."""

    key: str
    """Its canonical form; names it within the dialogue."""
    text: str
    """The spelling that came first, of those with digits where there are any."""
    slot: str
    """The name of the slot that it came with."""
    texts: dict[str, None] = field(default_factory=dict)
    """All spellings that the dialogue's annotation has, in order."""
    entries: list[Entry] = field(default_factory=list)
    """When it entered a state; empty for what only the system says."""

    @property
    def slots(self) -> tuple[tuple[str, str], ...]:
        """Return the (domain, slot) pairs of the states that hold it, sorted."""
        return tuple(sorted({entry.slot for entry in self.entries}))

    @property
    def shape(self) -> str:
        """Return its shape, as `shapes` names them."""
        return shape_of(self.text, self.slot)


@lru_cache(maxsize=16384)
def key_of(text: str) -> str:
    """Return what all spellings of one value share."""
    if (number := number_of(text)) is not None:
        return number
    minutes = minutes_of(text)
    return squash(text) if minutes is None else f"{minutes // 60:02}:{minutes % 60:02}"


def is_void(text: str) -> bool:
    """Say whether a text in a value's place is no value."""
    return text.strip().casefold() in VOID


def values_of(dialogue: Dialogue) -> list[Value]:
    """Return the dialogue's values, sorted by key."""
    collector = _Collector()
    fresh = collector.read_states(dialogue)
    for turn in dialogue.turns:
        for issued in turn.booked:
            collector.add([issued.value], issued.slot)
        for slot, text in action_values(turn.actions):
            if not is_void(text) and number_of(text) is None and shape_of(text, slot) in _ISSUED:
                collector.add([text], slot)
    values = collector.values()
    _take_in_spans(dialogue, fresh, values)
    return [values[key] for key in sorted(values)]


def forms_of(value: Value) -> dict[str, None]:
    """Return the squashed forms under which a value surely stands in a text."""
    forms = dict.fromkeys(squash(text) for text in value.texts)
    if value.key.isdigit() and 1 <= int(value.key) <= len(NUMBER_WORDS) and number_of(value.text):
        forms |= dict.fromkeys((value.key, NUMBER_WORDS[int(value.key) - 1]))
    for text in value.texts:
        if (minutes := minutes_of(text)) is not None:
            forms |= dict.fromkeys(map(squash, spellings(minutes)[0]))
    return forms


def finder_of(values: Iterable[Value], *, sure: bool = False) -> Finder:
    """Return a finder of values, under their sure forms and, where these do not clash, under likely ones.

    Args:
        values: What to find.
        sure: Whether to leave out the likely forms.
    """
    values = list(values)
    forms = {form: value.key for value in values for form in forms_of(value)}
    for value in () if sure else values:
        for form in _likely_forms(value):
            forms.setdefault(form, value.key)
    return Finder(forms, [text for value in values for text in value.texts])


def action_values(actions: str) -> Iterator[tuple[str, str]]:
    """Yield the (slot, value) pairs of linear actions; several values of one slot, joined by `|`, one by one."""
    for match in ACTION_VALUE.finditer(actions):
        for part in unescaped(match["value"]).split("|"):
            yield unescaped(match["slot"]), part.strip()


def unescaped(text: str) -> str:
    """Take the backslashes out of a linear action's name or value."""
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _likely_forms(value: Value) -> Iterator[str]:
    """Yield what people say for a value, but may also say for another."""
    for text in value.texts:
        if text[:4].casefold() == "the " and len(text) > 8:
            yield squash(text[4:])
        if (minutes := minutes_of(text)) is not None:
            yield from map(squash, spellings(minutes)[1])


class _Collector:
    """Gathers spellings under keys, and joins the keys that alternatives tie together."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._texts: dict[str, tuple[str, str]] = {}
        self._entries: list[tuple[str, Entry]] = []

    def add(self, texts: list[str], slot: str, entry: Entry | None = None) -> None:
        kept = [text for text in texts if not is_void(text) and squash(text)]
        for text in kept:
            self._texts.setdefault(text, (key_of(text), slot))
            self._parents.setdefault(key_of(text), key_of(text))
        for text in kept[1:]:
            first, other = sorted((self._root(key_of(kept[0])), self._root(key_of(text))))
            self._parents[other] = first
        if kept and entry is not None:
            self._entries.append((key_of(kept[0]), entry))

    def read_states(self, dialogue: Dialogue) -> list[list[SlotValue]]:
        """Add the values of all states; return what is new in each turn."""
        before: frozenset[SlotValue] = frozenset()
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        fresh: list[list[SlotValue]] = []
        for index, turn in enumerate(dialogue.turns):
            new = sorted(turn.state - before) if turn.state is not None else []
            before = before if turn.state is None else turn.state
            fresh.append(new)
            for triplet in new:
                self.add(list(triplet.values), triplet.slot, Entry(index, (triplet.domain, triplet.slot)))
            # A triplet that only gained alternatives is not new, but they are.
            for triplet in sorted(t for t in turn.state or () if t.alternatives):
                if (shape := (triplet.domain, triplet.slot, triplet.values)) not in seen:
                    seen.add(shape)
                    self.add(list(triplet.values), triplet.slot)
        return fresh

    def values(self) -> dict[str, Value]:
        """Return the values by key."""
        found: dict[str, Value] = {}
        for text, (key, slot) in self._texts.items():
            root = self._root(key)
            value = found.setdefault(root, Value(root, text, slot))
            value.texts[text] = None
            # Digits say most exactly what is meant: `$18` rather than "eighteen bucks".
            if _has_digit(text) and not _has_digit(value.text):
                value.text, value.slot = text, slot
        for key, entry in self._entries:
            found[self._root(key)].entries.append(entry)
        return found

    def _root(self, key: str) -> str:
        while self._parents[key] != key:
            key = self._parents[key]
        return key


def _take_in_spans(dialogue: Dialogue, fresh: list[list[SlotValue]], values: dict[str, Value]) -> None:
    """Add what the corpus marks in an utterance as the value that enters the state there under another name."""
    owners = {text: value for value in values.values() for text in value.texts}
    known = {key_of(text) for text in owners}
    for turn, new in zip(dialogue.turns, fresh, strict=True):
        entered = {(triplet.domain, triplet.slot): owners.get(triplet.value) for triplet in new}
        for span in turn.user_spans:
            value = entered.get((span.domain, span.slot))
            if value is not None and key_of(span.value) not in known and not _is_said(value, turn.user, span):
                value.texts[span.value] = None
                known.add(key_of(span.value))


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _is_said(value: Value, text: str, span: Span) -> bool:
    return is_void(span.value) or not squash(span.value) or bool(finder_of([value], sure=True).find(text))
