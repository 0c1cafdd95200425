"""One dialogue with some of its values exchanged or taken out, everywhere at once.

Guarantees: what a value becomes is the same wherever it stands: utterances, states and their alternatives, database
lines (where a price may stand as a bare amount), actions, bookings, opening. All of it is done in one pass, so nothing
that was put in is exchanged again. Names of domains, slots and acts are never touched. Small numbers are exchanged only
where the caller says that they stand, and in actions where the slot is theirs. Spans follow their text or are dropped;
a goal is dropped (None), since it would quote the old values. Turns in which nothing stands to be exchanged are the
same objects as before.

Void for mentions that are no spelling that the finder knows: "the same place".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from hushbot.types import Dialogue, DialogueState, SlotValue, Span, Turn
from hushbot.values.counts import Verdict, last_word, numbers_in, verdict
from hushbot.values.edits import Edit, article_edit, edited, moved, removal, tidying
from hushbot.values.finder import Finder, Mention, apart
from hushbot.values.inflection import forms, inflected
from hushbot.values.shapes import amount_of, follow, number_of
from hushbot.values.value import ACTION_VALUE, core_of, is_void, unescaped
from hushbot.values.words import fold

_FOUND = re.compile(r"(\S+ )(\d+ found.*)", flags=re.DOTALL)
_SPECIAL = re.compile(r"[\\(),=]")


class Exchange(NamedTuple):
    """What a value becomes."""

    original: str
    """Its first spelling."""
    new: str | None
    """What is put in its place; None takes it out."""
    choices: tuple[str, ...] = ()
    """The closed list that the new value is from; states hold it exactly as spelled there."""
    slots: frozenset[str] = frozenset()
    """Last words of its slots' names: an action that gives a small number gives this one if its slot is called so."""


class Rewritten(NamedTuple):
    """A text after its edits."""

    text: str
    passes: tuple[tuple[str, tuple[Edit, ...]], ...] = ()
    """What each pass made, and its edits: the exchanges, then the tidying where something was taken out."""

    def moved(self, spans: tuple[Span, ...]) -> tuple[Span, ...]:
        """Return the spans of the text before as spans of the text after."""
        for text, edits in self.passes:
            spans = moved(spans, edits, text)
        return spans

    @property
    def n_changed(self) -> int:
        """Return how many characters of the text before stood for what was exchanged."""
        return sum(edit.end - edit.start for edit in self.passes[0][1]) if self.passes else 0


@dataclass(frozen=True)
class Substitution:
    """Exchanges the values of one dialogue."""

    finder: Finder
    """Finds all values of the dialogue, also those that stay: they are not cut up."""
    owners: Mapping[str, str]
    """Each spelling in a state or booking -> its value's key."""
    exchanges: Mapping[str, Exchange]
    """By key; a value without one stays."""
    numbers: Mapping[tuple[int, bool], tuple[Mention, ...]] = field(default_factory=dict)
    """The small numbers that are values: by turn and whether the system says them."""
    _triplets: dict[tuple[SlotValue, tuple[str, ...]], SlotValue | None] = field(default_factory=dict)

    def dialogue(self, dialogue: Dialogue) -> Dialogue:
        """Return the dialogue with all exchanges made."""
        turns = tuple(self._turn(i, turn) for i, turn in enumerate(dialogue.turns))
        opening = self.text(dialogue.opening).text
        if opening == dialogue.opening and all(new is old for new, old in zip(turns, dialogue.turns, strict=True)):
            return dialogue
        return replace(dialogue, turns=turns, opening=opening, goal=None)

    def text(self, text: str, numbers: tuple[Mention, ...] = ()) -> Rewritten:
        """Return a text with all exchanges made.

        Args:
            text: Any text.
            numbers: The small numbers in it that are values.
        """
        edits: list[Edit] = []
        found = self.finder.find(text)
        for mention in apart([*found, *numbers]) if numbers else found:
            exchange = self.exchanges.get(mention.key)
            if exchange is not None:
                edits += _edits(text, mention, exchange, edits[-1].end if edits else 0)
        if not edits:
            return Rewritten(text)
        made = edited(text, edits)
        strays = tidying(made) if any(not edit.new for edit in edits) else []
        tidy = edited(made, strays)
        return Rewritten(tidy, ((made, tuple(edits)), (tidy, tuple(strays))))

    def n_changed(self, index: int, turn: Turn) -> int:
        """Return how many characters of a turn's state, actions and response stand for what is exchanged."""
        changed = self.text(turn.response or "", self.numbers.get((index, True), ())).n_changed
        for triplet in turn.state or ():
            changed += len(triplet.value) if self._value(triplet.value) != triplet.value else 0
        if "(" not in turn.actions:
            return changed + self.text(turn.actions).n_changed
        return changed + sum(self._given(match)[1] for match in ACTION_VALUE.finditer(turn.actions))

    def state(self, state: DialogueState) -> DialogueState:
        """Return a state with all exchanges made."""
        new = [self._triplet(triplet) for triplet in state]
        return frozenset(triplet for triplet in new if triplet is not None)

    def actions(self, actions: str) -> str:
        """Return linear actions with all exchanges made in their values; text that is no action counts as speech."""
        if "(" not in actions:
            return self.text(actions).text
        made = ACTION_VALUE.sub(self._action, actions)
        # Where the first of several slots went, the next one's comma is left behind the bracket.
        return re.sub(r"(?<!\\)\(,\s*", "(", made) if made != actions else actions

    def _turn(self, index: int, turn: Turn) -> Turn:
        user = self.text(turn.user, self.numbers.get((index, False), ()))
        response = self.text(turn.response or "", self.numbers.get((index, True), ()))
        state = None if turn.state is None else self.state(turn.state)
        booked = tuple(issued for issued in map(self._triplet, turn.booked) if issued is not None)
        new = Turn(
            user=user.text,
            state=turn.state if state is not None and _same(state, turn.state) else state,
            database="; ".join(self._found(part) for part in turn.database.split("; ")),
            actions=self.actions(turn.actions),
            response=None if turn.response is None else response.text,
            booked=booked,
            user_spans=user.moved(turn.user_spans),
            response_spans=response.moved(turn.response_spans),
        )
        is_same = new == turn and (state is None or _same(state, turn.state))
        return turn if is_same else new

    def _triplet(self, triplet: SlotValue) -> SlotValue | None:
        known = (triplet, triplet.alternatives)
        if known not in self._triplets:
            self._triplets[known] = self._exchanged(triplet)
        return self._triplets[known]

    def _exchanged(self, triplet: SlotValue) -> SlotValue | None:
        values = tuple(self._value(value) for value in triplet.values)
        if values == triplet.values:
            return triplet
        first, *others = values
        if first is None:
            return None
        # Spellings of one value become one value, so few alternatives are left.
        spelled = {core_of(first): first}
        alternatives = [other for other in others if other and spelled.setdefault(core_of(other), other) is other]
        return SlotValue(triplet.domain, triplet.slot, first, tuple(a for a in alternatives if a != first))

    def _value(self, value: str) -> str | None:
        exchange = None if is_void(value) else self.exchanges.get(self.owners.get(value, ""))
        if exchange is None:
            return value
        if exchange.new is None:
            return None
        new = written(exchange, value)
        return next((choice for choice in exchange.choices if choice.casefold() == new.casefold()), new)

    def _action(self, match: re.Match[str]) -> str:
        new, n_changed = self._given(match)
        if not n_changed:
            return match[0]
        new = "|".join(part for part in new.split("|") if part.strip())
        if not new:
            return match["lead"] if match["lead"] == "(" else ""
        return f"{match['lead']}{match['slot']}={_SPECIAL.sub(_backslashed, new)}"

    def _given(self, match: re.Match[str]) -> tuple[str, int]:
        """Return the new value of an action's slot, and how many characters of the old one are exchanged."""
        old = unescaped(match["value"])
        if (number := number_of(old)) is None:
            made = self.text(old)
            return made.text, made.n_changed
        # Another slot's number is none of those that the state holds, such as a count of results.
        exchange = self.exchanges.get(number)
        if exchange is None or exchange.new is None or last_word(unescaped(match["slot"])) not in exchange.slots:
            return old, 0
        return written(exchange, old), len(old)

    def _found(self, part: str) -> str:
        match = _FOUND.fullmatch(part)
        domain, rest = ("", part) if match is None else (match[1], match[2])
        items = rest.split(", ")
        for i, item in enumerate(items[1:] if match else items, start=1 if match else 0):
            items[i] = self._amounts.get(item.strip(), item)
        rest = ", ".join(items)
        return domain + self.text(rest, self._counted(rest)).text

    @cached_property
    def _amounts(self) -> dict[str, str]:
        """The amounts of exchanged prices, as database lines have them without a currency."""
        pairs = [(amount_of(x.original), amount_of(x.new or "")) for x in self.exchanges.values()]
        return {old: new for old, new in pairs if old is not None and new is not None}

    def _counted(self, text: str) -> tuple[Mention, ...]:
        found = []
        for number in numbers_in(text) if self.numbers else ():
            exchange = self.exchanges.get(number.digits)
            if exchange is not None and verdict(text, number, exchange.slots, ()) is Verdict.OWN:
                found.append(Mention(number.start, number.end, number.digits))
        return tuple(found)


def written(exchange: Exchange, occurrence: str) -> str:
    """Return what takes the place of an occurrence of a value: in its case, its spelling and its number."""
    new = exchange.new or ""
    kind = forms(fold(exchange.original)).get(fold(occurrence)) if exchange.choices else None
    if kind is not None and (changed := inflected(new, kind)) is not None:
        return follow(changed, exchange.original, occurrence)
    return follow(new, exchange.original, occurrence)


def contents(dialogue: Dialogue) -> Iterator[str]:
    """Yield every text that may hold a value; no names of domains, slots and acts. Texts may come twice."""
    yield dialogue.opening
    for turn in dialogue.turns:
        yield turn.user
        yield turn.response or ""
        yield from (value for triplet in (*(turn.state or ()), *turn.booked) for value in triplet.values)
        yield from _action_texts(turn.actions)
        for part in turn.database.split("; "):
            match = _FOUND.fullmatch(part)
            yield part if match is None else match[2]


def _action_texts(actions: str) -> list[str]:
    if "(" not in actions:
        return [actions]
    return [unescaped(match["value"]) for match in ACTION_VALUE.finditer(actions)]


def _edits(text: str, mention: Mention, exchange: Exchange, free_from: int) -> list[Edit]:
    if exchange.new is None:
        edit = removal(text, mention.start, mention.end)
        return [edit._replace(start=max(edit.start, free_from))]
    new = written(exchange, text[mention.start : mention.end])
    article = article_edit(text, mention.start, new)
    before = [article] if article is not None and article.start >= free_from else []
    return [*before, Edit(mention.start, mention.end, new)]


def _same(new: DialogueState, old: DialogueState | None) -> bool:
    """Say whether two states agree in their alternatives, too, which equality leaves out."""
    return new == old and {t.values for t in new} == {t.values for t in old or ()}


def _backslashed(match: re.Match[str]) -> str:
    return f"\\{match[0]}"
