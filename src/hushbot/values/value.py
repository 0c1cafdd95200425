"""The distinct values of one dialogue: what a rewrite may exchange, and where each of them comes from.

Guarantees: every value of a state or a booking belongs to exactly one `Value`, and so does every identifier, name,
time, date and price that a system action gives. One value are: spellings that differ by case, accents, blanks, a
leading "the" or a possessive; near spellings of a name in one slot; what a corpus marks in an utterance as the value
that enters the state there; spellings of one time, one price, one small number; alternatives of one triplet, unless an
utterance names two of them side by side. `dontcare`, `?` and blanks are none. Looks at the one dialogue only.

Void for what is said and never annotated: a name that stands in no state, booking or action is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

from rapidfuzz import fuzz

from hushbot.types import Dialogue, SlotValue, Turn
from hushbot.values.clock import minutes_of, spellings
from hushbot.values.dates import day_of, day_spellings
from hushbot.values.finder import Finder, squash, unpossessed
from hushbot.values.shapes import amount_of, bare, number_of, shape_of
from hushbot.values.words import COMMON, STOP

VOID = frozenset({"", "?", "dontcare", "none", "not mentioned"})
"""What a value is not."""
_ISSUED = frozenset({"email", "time", "date", "price", "phone", "postcode", "code", "address", "name"})
"""Shapes that count as values although only the system names them; its other words and small numbers say what it
found."""
_NAMED = {"name", "words", "address"}
"""Shapes of what may be spelled in many ways."""
_NEAR = 90.0
"""Similarity in per cent."""
_PRICES = ("${}", "£{}", "€{}", "{}$", "{} dollars", "{} pounds", "{} euros", "{} gbp", "{} usd", "{} bucks")
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
    if (minutes := minutes_of(text)) is not None:
        return f"{minutes // 60:02}:{minutes % 60:02}"
    if (amount := amount_of(text)) is not None:
        return f"${amount}"
    if (day := day_of(text)) is not None:
        return f"{day[0]:02}-{day[1]:02}"
    return core_of(text)


@lru_cache(maxsize=16384)
def core_of(text: str) -> str:
    """Return the squashed text without its article and possessives, if that still says which one it is."""
    stripped = squash(unpossessed(bare(text)))
    return squash(text) if len(stripped) < 3 or stripped in COMMON or stripped in STOP else stripped


def is_void(text: str) -> bool:
    """Say whether a text in a value's place is no value."""
    return text.strip().casefold() in VOID


def values_of(dialogue: Dialogue) -> list[Value]:
    """Return the dialogue's values, sorted by key."""
    collector = _Collector(dialogue)
    for turn in dialogue.turns:
        for issued in turn.booked:
            collector.add([issued.value], issued.slot)
        for slot, text in action_values(turn.actions):
            if not is_void(text) and number_of(text) is None and shape_of(text, slot) in _ISSUED:
                collector.add([text], slot)
    collector.join_near_spellings()
    values = collector.values()
    return [values[key] for key in sorted(values)]


def forms_of(value: Value) -> dict[str, None]:
    """Return the squashed forms under which a value surely stands in a text; small numbers have none."""
    forms: dict[str, None] = {}
    for text in value.texts:
        if number_of(text) is not None:
            continue
        forms |= dict.fromkeys((squash(text), squash(unpossessed(text)), core_of(text)))
        if (minutes := minutes_of(text)) is not None:
            forms |= dict.fromkeys(map(squash, spellings(minutes)[0]))
        if (day := day_of(text)) is not None:
            forms |= dict.fromkeys(map(squash, day_spellings(*day)))
        if (amount := amount_of(text)) is not None:
            forms |= dict.fromkeys(squash(pattern.format(amount)) for pattern in _PRICES)
    return forms


def finder_of(values: Iterable[Value], *, sure: bool = False, more: Mapping[str, str] = MappingProxyType({})) -> Finder:
    """Return a finder of values, under their sure forms and, where these do not clash, under likely ones.

    Args:
        values: What to find.
        sure: Whether to leave out the likely forms.
        more: Further squashed forms and their keys, which give way to all others.
    """
    values = list(values)
    forms = {form: value.key for value in values for form in forms_of(value)}
    for value in () if sure else values:
        for form in _likely_forms(value):
            forms.setdefault(form, value.key)
    return Finder(dict(more) | forms, [text for value in values for text in value.texts])


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
        if (minutes := minutes_of(text)) is not None:
            yield from map(squash, spellings(minutes)[1])


class _Collector:
    """Gathers spellings under keys, and joins the keys that belong together."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._said = [text for turn in dialogue.turns for text in (turn.user, turn.response or "")]
        self._parents: dict[str, str] = {}
        self._texts: dict[str, tuple[str, str]] = {}
        self._entries: list[tuple[str, Entry]] = []
        self._read_states(dialogue)

    def add(self, texts: list[str], slot: str, entry: Entry | None = None) -> None:
        kept = [text for text in texts if not is_void(text) and squash(text)]
        for text in kept:
            self._texts.setdefault(text, (key_of(text), slot))
            self._parents.setdefault(key_of(text), key_of(text))
        for text in kept[1:]:
            if not self._are_two_things(kept[0], text):
                self._join(key_of(kept[0]), key_of(text))
        if kept and entry is not None:
            self._entries.append((key_of(kept[0]), entry))

    def join_near_spellings(self) -> None:
        """Join the names of one slot that differ by little more than a typing error."""
        held: dict[tuple[str, str], dict[str, None]] = {}
        for key, entry in self._entries:
            held.setdefault(entry.slot, {})[key] = None
        for (_, slot), keys in held.items():
            for one, other in combinations([key for key in keys if len(key) > 5], 2):
                is_near = fuzz.ratio(one, other) >= _NEAR and _digits_of(one) == _digits_of(other)
                if is_near and {shape_of(one, slot), shape_of(other, slot)} <= _NAMED:
                    self._join(one, other)

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

    def _read_states(self, dialogue: Dialogue) -> None:
        before: frozenset[SlotValue] = frozenset()
        seen: set[tuple[str, str, tuple[str, ...]]] = set()
        for index, turn in enumerate(dialogue.turns):
            new = sorted(turn.state - before) if turn.state is not None else []
            before = before if turn.state is None else turn.state
            for triplet in new:
                self.add(list(triplet.values), triplet.slot, Entry(index, (triplet.domain, triplet.slot)))
            # A triplet that only gained alternatives is not new, but they are.
            for triplet in sorted(t for t in turn.state or () if t.alternatives):
                if (shape := (triplet.domain, triplet.slot, triplet.values)) not in seen:
                    seen.add(shape)
                    self.add(list(triplet.values), triplet.slot)
            self._take_in_spans(turn, {(t.domain, t.slot): t for t in new if not is_void(t.value)})

    def _take_in_spans(self, turn: Turn, entered: dict[tuple[str, str], SlotValue]) -> None:
        """Add what is marked in an utterance as the value that enters the state there under another name."""
        for span in turn.user_spans:
            triplet = entered.get((span.domain, span.slot))
            if triplet is None or is_void(span.value) or not squash(span.value) or _is_said(triplet, turn.user):
                continue
            exact = {number_of(span.value), minutes_of(span.value), number_of(triplet.value), minutes_of(triplet.value)}
            # A number that is marked as another one is a mistake or a sum.
            if exact == {None} or key_of(span.value) not in self._parents:
                self.add([triplet.value, span.value], span.slot)

    def _are_two_things(self, one: str, other: str) -> bool:
        """Say whether an utterance names both, side by side, so that they are no spellings of one thing."""
        is_mixed = (number_of(one) is None) != (number_of(other) is None)
        if key_of(one) == key_of(other) or minutes_of(one) is not None or is_mixed:
            return False
        finder = Finder({core_of(one): "one", core_of(other): "other"})
        return any(len(finder.keys(text)) == 2 for text in self._said)

    def _join(self, one: str, other: str) -> None:
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first

    def _root(self, key: str) -> str:
        while self._parents[key] != key:
            key = self._parents[key]
        return key


def _has_digit(text: str) -> bool:
    return any(character.isdigit() for character in text)


def _digits_of(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _is_said(triplet: SlotValue, text: str) -> bool:
    """Say whether a text holds a value under a spelling that the state has."""
    if number_of(triplet.value) is not None:
        return False
    value = Value(triplet.value, triplet.value, triplet.slot, dict.fromkeys(triplet.values))
    return bool(finder_of([value], sure=True).find(text))
