"""One dialogue with some of its values exchanged or taken out, everywhere at once.

Guarantees: what a value becomes is the same wherever it stands: utterances, states and their alternatives, database
lines, actions, bookings, opening. All of it is done in one pass, so nothing that was put in is exchanged again. Names
of domains, slots and acts are never touched. Spans follow their text or are dropped; a goal is dropped (None), since it
would quote the old values. Turns in which nothing stands to be exchanged are the same objects as before.

Void for mentions that are no verbatim spelling: "the same place", a first name alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hushbot.dialogue_values import ACTION_VALUE, is_void, unescaped
from hushbot.mentions import Edit, Finder, Mention, article_edit, edited, moved, removal, tidying
from hushbot.shapes import follow, number_of
from hushbot.types import Dialogue, DialogueState, SlotValue, Span, Turn

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


@dataclass(frozen=True)
class Substitution:
    """Exchanges the values of one dialogue."""

    finder: Finder
    """Finds all values of the dialogue, also those that stay: they are not cut up."""
    owners: Mapping[str, str]
    """Each spelling in a state or booking -> its value's key."""
    exchanges: Mapping[str, Exchange]
    """By key; a value without one stays."""
    _triplets: dict[tuple[SlotValue, tuple[str, ...]], SlotValue | None] = field(default_factory=dict)

    def dialogue(self, dialogue: Dialogue) -> Dialogue:
        """Return the dialogue with all exchanges made."""
        turns = tuple(self._turn(turn) for turn in dialogue.turns)
        opening = self.text(dialogue.opening, by_system=True).text
        if opening == dialogue.opening and all(new is old for new, old in zip(turns, dialogue.turns, strict=True)):
            return dialogue
        return replace(dialogue, turns=turns, opening=opening, goal=None)

    def text(self, text: str, *, by_system: bool = False) -> Rewritten:
        """Return a text with all exchanges made."""
        edits: list[Edit] = []
        for mention in self.finder.find(text, by_system=by_system):
            exchange = self.exchanges.get(mention.key)
            if exchange is not None:
                edits += _edits(text, mention, exchange, edits[-1].end if edits else 0)
        if not edits:
            return Rewritten(text)
        made = edited(text, edits)
        strays = tidying(made) if any(not edit.new for edit in edits) else []
        tidy = edited(made, strays)
        return Rewritten(tidy, ((made, tuple(edits)), (tidy, tuple(strays))))

    def state(self, state: DialogueState) -> DialogueState:
        """Return a state with all exchanges made."""
        new = [self._triplet(triplet) for triplet in state]
        return frozenset(triplet for triplet in new if triplet is not None)

    def actions(self, actions: str) -> str:
        """Return linear actions with all exchanges made in their values; text that is no action counts as speech."""
        if "(" not in actions:
            return self.text(actions, by_system=True).text
        made = ACTION_VALUE.sub(self._action, actions)
        # Where the first of several slots went, the next one's comma is left behind the bracket.
        return re.sub(r"(?<!\\)\(,\s*", "(", made) if made != actions else actions

    def _turn(self, turn: Turn) -> Turn:
        user, response = self.text(turn.user), self.text(turn.response or "", by_system=True)
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
        spelled = {first.casefold(): first}
        alternatives = [other for other in others if other and spelled.setdefault(other.casefold(), other) is other]
        return SlotValue(triplet.domain, triplet.slot, first, tuple(a for a in alternatives if a != first))

    def _value(self, value: str) -> str | None:
        exchange = None if is_void(value) else self.exchanges.get(self.owners.get(value, ""))
        if exchange is None:
            return value
        if exchange.new is None:
            return None
        new = follow(exchange.new, exchange.original, value)
        return next((choice for choice in exchange.choices if choice.casefold() == new.casefold()), new)

    def _action(self, match: re.Match[str]) -> str:
        old = unescaped(match["value"])
        new = old if self._is_other_number(match["slot"], old) else self.text(old, by_system=True).text
        if new == old:
            return match[0]
        new = "|".join(part for part in new.split("|") if part.strip())
        if not new:
            return match["lead"] if match["lead"] == "(" else ""
        return f"{match['lead']}{match['slot']}={_SPECIAL.sub(_backslashed, new)}"

    def _found(self, part: str) -> str:
        match = _FOUND.fullmatch(part)
        domain, rest = ("", part) if match is None else (match[1], match[2])
        return domain + self.text(rest, by_system=True).text

    def _is_other_number(self, slot: str, value: str) -> bool:
        """Say whether an action's small number is none of those that the state holds, such as a count of results."""
        number = number_of(value)
        exchange = None if number is None else self.exchanges.get(number)
        return exchange is not None and last_word(slot) not in exchange.slots


def last_word(slot: str) -> str:
    """Return what a slot's name ends with: states say `book people` where actions say `people`."""
    return re.split(r"[\s_]", slot.strip())[-1].casefold()


def contents(dialogue: Dialogue) -> Iterator[tuple[str, bool]]:
    """Yield every text that may hold a value, and whether the system says it; no names of domains, slots and acts.

    Small numbers as values of actions are left out: there, only the slot tells what they count.
    """
    yield dialogue.opening, True
    for turn in dialogue.turns:
        yield turn.user, False
        yield turn.response or "", True
        yield from ((value, False) for triplet in (*(turn.state or ()), *turn.booked) for value in triplet.values)
        yield from ((text, True) for text in _action_texts(turn.actions) if number_of(text) is None)
        for part in turn.database.split("; "):
            match = _FOUND.fullmatch(part)
            yield (part if match is None else match[2]), True


def _action_texts(actions: str) -> list[str]:
    if "(" not in actions:
        return [actions]
    return [unescaped(match["value"]) for match in ACTION_VALUE.finditer(actions)]


def _edits(text: str, mention: Mention, exchange: Exchange, free_from: int) -> list[Edit]:
    if exchange.new is None:
        edit = removal(text, mention.start, mention.end)
        return [edit._replace(start=max(edit.start, free_from))]
    new = follow(exchange.new, exchange.original, text[mention.start : mention.end])
    article = article_edit(text, mention.start, new)
    before = [article] if article is not None and article.start >= free_from else []
    return [*before, Edit(mention.start, mention.end, new)]


def _same(new: DialogueState, old: DialogueState | None) -> bool:
    """Say whether two states agree in their alternatives, too, which equality leaves out."""
    return new == old and {t.values for t in new} == {t.values for t in old or ()}


def _backslashed(match: re.Match[str]) -> str:
    return f"\\{match[0]}"
