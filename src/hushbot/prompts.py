r"""Dialogue to text and back: the one layout that recipes train on, bots run on and attacks prompt with.

A turn reads, line by line::

    User: somewhere cheap in the north
    Belief State: Restaurant(area=north, pricerange=cheap)
    Database: restaurant 2 found, golden wok
    Actions: restaurant-inform(name=golden wok)
    Response: Golden Wok is a cheap place in the north.

and its history holds the earlier `User:` and `System:` lines only, never earlier states: the bot reads its own state
from the utterances each turn.

A bot that learns changes reads one running text instead: turn after turn as above, each state line with what the turn
changed only. A slot that holds nothing any more is written without a value: `Restaurant(area=, food=thai)`. Both
training and use take each turn of it from `running_turn`.

Guarantees (property-tested):

* `parse_state(render_state(state)) == state` for any triplets with non-empty names and values, whatever characters
  they hold: ``\ ( ) , =`` and leading or trailing blanks are escaped with a backslash, line breaks as ``\n``.
* Triplets stand in (domain, slot) order, so the text of a state's first k triplets is a prefix of the whole text.
* `apply_changes(before, read_changes(render_changes(changes_between(before, after))).changes) == after`.
* Text that is no state is a `StateParseError`, never an empty state; an empty state is written `None`.
* `"".join(pieces(text)) == text`; tokenising piece by piece is what makes shared histories share their tokens.

A domain written in small letters without digits gets a capital (`restaurant` -> `Restaurant`, as the paper prints it);
other names stand as they are (`Payment_1`), and a name that would be read back wrongly is marked (`\Travel`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from hushbot.errors import DataError, StateParseError
from hushbot.types import Dialogue, DialogueState, Segment, SlotValue, Turn

STATE_MARKER = "Belief State:"
DATABASE_MARKER = "Database:"
ACTIONS_MARKER = "Actions:"
RESPONSE_MARKER = "Response:"
USER_MARKER = "User:"
SYSTEM_MARKER = "System:"
EMPTY_STATE = "None"

_PIECE = re.compile(rf"^(?:{STATE_MARKER}|{ACTIONS_MARKER}|{RESPONSE_MARKER})|[^\n]*\n|[^\n]+", flags=re.MULTILINE)
_NAMED = {"\n": "\\n", "\r": "\\r"}
_NAMED_BACK = {"n": "\n", "r": "\r"}


class ParsedState(NamedTuple):
    """What could be read of a state text."""

    state: DialogueState | None
    """The closed triplets; None when the text holds no state."""
    is_complete: bool
    """False when the text was cut, ends in something that is no state, or holds no state."""
    format_errors: int
    """Repeated slots, empty values and broken triplets that were skipped."""


class Changes(NamedTuple):
    """What one turn did to a state."""

    said: DialogueState
    """Triplets that were added, or that replaced another value of their slot."""
    dropped: frozenset[tuple[str, str]] = frozenset()
    """(domain, slot) pairs that hold nothing any more."""


class ParsedChanges(NamedTuple):
    """What could be read of a text of changes."""

    changes: Changes | None
    """The closed entries; None when the text holds neither changes nor `None`."""
    is_complete: bool
    """False when the text was cut, ends in something that is no state, or holds no changes."""
    format_errors: int
    """Repeated slots and broken entries that were skipped."""


def one_line(text: str) -> str:
    """Collapse white space, line breaks included, so that a text fits on its line of the layout."""
    return " ".join(text.split())


def pieces(text: str) -> list[str]:
    """Cut a text where its tokens must not straddle: after each line and after each marker the bot continues."""
    return _PIECE.findall(text)


def render_state(state: DialogueState) -> str:
    """Write a state as `Restaurant(name=pizza hut, area=centre) Train(...)`, in canonical order.

    Raises:
        DataError: A slot has two values, or a name or value is empty.
    """
    return "".join(_state_parts(state)) or EMPTY_STATE


def render_state_prefix(state: DialogueState, n_triplets: int) -> str:
    """Write the first triplets of a state, up to and including the delimiter that follows the last of them.

    The result is a textual prefix of `render_state(state)`, as the paper's targeted attack uses it
    (`Restaurant(name=pizza hut,`; section IV-B1).
    """
    if not 0 <= n_triplets <= len(state):
        raise DataError(f"n_triplets={n_triplets} is outside [0, {len(state)}], the size of the state")
    return "".join(_state_parts(state)[:n_triplets]).rstrip(" ")


def domain_opening(domain: str) -> str:
    """Return what a state text writes before the slots of a domain: `Restaurant(`."""
    return f"{_render_domain(domain)}("


def slot_opening(slot: str) -> str:
    """Return what a state text writes before the value of a slot: `area=`."""
    return f"{_escape(slot)}="


def read_state(text: str) -> ParsedState:
    """Read as much of a state as a text holds; never raises. The marker may be absent."""
    return _read(text)[1]


def parse_state(text: str) -> DialogueState:
    """Read a state back; of a text that was cut, the triplets that are closed.

    Raises:
        StateParseError: The text holds no state, or was cut before its first triplet ended.
    """
    parsed = read_state(text)
    if parsed.state is None or (not parsed.is_complete and not parsed.state):
        raise StateParseError(
            f"no dialogue state in a text of {len(text)} characters; expected `{STATE_MARKER} Domain(slot=value)`"
        )
    return parsed.state


def changes_between(before: DialogueState, after: DialogueState) -> Changes:
    """Return what turns one state into another; a value that only gained or lost alternatives is unchanged."""
    kept = {(triplet.domain, triplet.slot) for triplet in after}
    gone = {(triplet.domain, triplet.slot) for triplet in before} - kept
    return Changes(after - before, frozenset(gone))


def apply_changes(before: DialogueState, changes: Changes) -> DialogueState:
    """Return the state after a turn; dropping a slot that holds nothing changes nothing."""
    touched = {(triplet.domain, triplet.slot) for triplet in changes.said} | changes.dropped
    return frozenset(t for t in before if (t.domain, t.slot) not in touched) | changes.said


def render_changes(changes: Changes) -> str:
    """Write changes as a state whose dropped slots have no value: `Restaurant(area=, food=thai)`.

    Raises:
        DataError: A slot stands twice, or a name or a value is empty.
    """
    empty = [SlotValue(domain, slot, "") for domain, slot in changes.dropped]
    if any(not triplet.value for triplet in changes.said):
        raise DataError("a changed slot has an empty value; name it in `dropped` instead")
    return "".join(_parts([*changes.said, *empty], may_be_empty=True)) or EMPTY_STATE


def read_changes(text: str) -> ParsedChanges:
    """Read as much of a text of changes as it holds; never raises. The marker may be absent."""
    reader, parsed = _read(text)
    if parsed.state is None:
        return ParsedChanges(None, parsed.is_complete, parsed.format_errors)
    dropped = frozenset() if reader is None else frozenset(reader.emptied - reader.triplets.keys())
    n_empty = 0 if reader is None else reader.n_emptied
    return ParsedChanges(Changes(parsed.state, dropped), parsed.is_complete, parsed.format_errors - n_empty)


def changes_line(before: DialogueState, after: DialogueState) -> str:
    """Return what follows the state marker where changes are written: a blank, the changes, the end of the line."""
    return _changes_line(changes_between(before, after))


def running_turn(turn: Turn, changes: Changes | None) -> tuple[Segment, ...]:
    """Return one finished turn of a running text, cut where the bot begins and ends to write.

    Args:
        turn: Its utterances, database result and actions; its state is not looked at. Without a response it ends
            after the changes.
        changes: What the turn did to the state; None, where that is unknown, leaves the two utterances, from
            which nothing is learnt.
    """
    segments = [Segment(line, False) for line in user_lines(turn.user)]
    if changes is None:
        answer = () if turn.response is None else (f"{SYSTEM_MARKER} {one_line(turn.response)}\n",)
        return (*segments, *(Segment(line, False) for line in answer))
    return (*segments, *answer_segments(turn, _changes_line(changes)))


def answer_segments(turn: Turn, line: str) -> tuple[Segment, ...]:
    """Return what a bot learns to write in a turn, with its markers and the database line that it reads.

    Args:
        turn: Its database result, actions and response; without a response the answer ends after the state.
        line: What follows the state marker: the whole state, or what the turn changed.
    """
    state = (Segment(STATE_MARKER, False), Segment(line, True))
    if turn.response is None:
        return state
    return (
        *state,
        Segment(database_line(turn.database), False),
        Segment(ACTIONS_MARKER, False),
        Segment(text_line(turn.actions), True),
        Segment(RESPONSE_MARKER, False),
        Segment(text_line(turn.response), True),
    )


def running_turns(dialogue: Dialogue) -> tuple[tuple[Segment, ...], ...]:
    """Return each turn of a dialogue's running text, without its opening.

    Changes are counted from the last known state, so those of a turn after an unknown one span both.
    """
    turns, before = [], frozenset[SlotValue]()
    for turn in dialogue.turns:
        turns.append(running_turn(turn, None if turn.state is None else changes_between(before, turn.state)))
        before = before if turn.state is None else turn.state
    return tuple(turns)


def opening_lines(dialogue: Dialogue) -> tuple[str, ...]:
    """Return the line of a system that speaks first; none where the user does."""
    return (f"{SYSTEM_MARKER} {one_line(dialogue.opening)}\n",) if dialogue.opening else ()


def user_lines(user: str) -> tuple[str, ...]:
    """Return the line of an utterance; none for a user who says nothing, but taps a button."""
    said = one_line(user)
    return (f"{USER_MARKER} {said}\n",) if said else ()


def history_lines(dialogue: Dialogue, turn_index: int) -> tuple[str, ...]:
    """Return the lines a bot has read when it answers a turn: one string per utterance, each ending its line."""
    lines = list(opening_lines(dialogue))
    for i, turn in enumerate(dialogue.turns[: turn_index + 1]):
        lines += user_lines(turn.user)
        if i < turn_index and turn.response is not None:
            lines.append(f"{SYSTEM_MARKER} {one_line(turn.response)}\n")
    return tuple(lines)


def state_line(state: DialogueState) -> str:
    """Return what follows the state marker: a blank, the state, the end of the line."""
    return f" {render_state(state)}\n"


def database_line(result: str) -> str:
    """Return the whole database line; the bot reads it, it is never predicted."""
    return f"{DATABASE_MARKER} {one_line(result)}\n"


def text_line(text: str) -> str:
    """Return what follows the actions or response marker."""
    return f" {one_line(text)}\n"


def _changes_line(changes: Changes) -> str:
    return f" {render_changes(changes)}\n"


def _read(text: str) -> tuple[_StateReader | None, ParsedState]:
    """Read a state text; without a reader where it says that there is nothing."""
    has_marker = STATE_MARKER in text
    body = text.split(STATE_MARKER, 1)[1] if has_marker else text
    body = body.lstrip()
    if re.match(rf"{EMPTY_STATE}\s*(\n|$)", body) or (has_marker and re.match(r"$|[A-Z][A-Za-z ]*:", body)):
        return None, ParsedState(frozenset(), True, 0)
    reader = _StateReader(body)
    return reader, reader.read()


def _state_parts(state: DialogueState) -> list[str]:
    """Return one string per triplet; joined they are the rendered state."""
    return _parts(state, may_be_empty=False)


def _parts(entries: Collection[SlotValue], *, may_be_empty: bool) -> list[str]:
    triplets = sorted(entries)
    parts = []
    for i, triplet in enumerate(triplets):
        if not (triplet.domain and triplet.slot and (triplet.value or may_be_empty)):
            raise DataError(  # without the value, which is somebody's
                f"triplet {i + 1} of {len(triplets)}: domain, slot and value have {len(triplet.domain)}, "
                f"{len(triplet.slot)} and {len(triplet.value)} characters; none may be empty in a state text"
            )
        opens = i == 0 or triplets[i - 1].domain != triplet.domain
        closes = i + 1 == len(triplets) or triplets[i + 1].domain != triplet.domain
        if not opens and triplets[i - 1].slot == triplet.slot:
            raise DataError(f"{triplet.domain}-{triplet.slot} has two values in one state; keep one")
        head = f"{_render_domain(triplet.domain)}(" if opens else ""
        tail = "," if not closes else ")"
        gap = " " if i + 1 < len(triplets) else ""
        parts.append(f"{head}{_escape(triplet.slot)}={_escape(triplet.value)}{tail}{gap}")
    return parts


def _escape(text: str, special: str = "\\(),=") -> str:
    inner = "".join(_NAMED.get(c, "\\" + c if c in special else c) for c in text)
    lead = len(text) - len(text.lstrip())
    trail = len(text.rstrip())
    if lead == 0 and trail == len(text):
        return inner
    # Blanks at either end would be trimmed when read back, so each of them is escaped.
    return "".join(_NAMED.get(c, "\\" + c if c in special or i < lead or i >= trail else c) for i, c in enumerate(text))


def _gets_capital(name: str) -> bool:
    return name.isprintable() and not any(c.isupper() or c.isdigit() for c in name)


def _render_domain(name: str) -> str:
    text = _escape(name, special="\\(),=:")
    if "a" <= name[0] <= "z" and _gets_capital(name[1:]):
        return text[0].upper() + text[1:]
    if "A" <= name[0] <= "Z" and _gets_capital(name[1:]):
        return "\\" + text
    return text


class _StateReader:
    """A forgiving reader of one state text: closed triplets are kept, an open one is dropped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.triplets: dict[tuple[str, str], SlotValue] = {}
        self.emptied: set[tuple[str, str]] = set()
        self.n_emptied = 0
        self.errors = 0
        self.n_domains = 0

    def read(self) -> ParsedState:
        is_complete = True
        while is_complete and (domain := self._domain()) is not None:
            self.n_domains += 1
            is_complete = self._slots(domain)
        if self.n_domains == 0:
            return ParsedState(None, False, self.errors)
        # `Restaurant(area=north) Tr` was cut in the next name; `... DB: 3 found` is the next section of a turn.
        rest = self.text[self.position :].split("\n", 1)[0]
        is_complete = is_complete and (not rest.strip() or ":" in rest)
        return ParsedState(frozenset(self.triplets.values()), is_complete, self.errors)

    def _domain(self) -> str | None:
        """Read `Name(`, or return None at the end of the state."""
        while self.position < len(self.text) and self.text[self.position] in " \t,":
            self.position += 1
        start = self.position
        name, is_plain, stop = self._token("(),=:\n")
        if stop != "(" or not name:
            self.position = start
            return None
        if is_plain and "A" <= name[0] <= "Z" and _gets_capital(name[1:]):
            return name[0].lower() + name[1:]
        return name

    def _slots(self, domain: str) -> bool:
        """Read `slot=value, ...)`; return whether the closing bracket was there."""
        while True:
            slot, _, stop = self._token("=,)\n")
            if stop != "=":
                self.errors += bool(slot)
                if stop == ",":
                    continue
                return stop == ")"
            value, _, stop = self._token(",)\n")
            if stop not in (",", ")"):
                return False
            if slot and value:
                self.errors += (domain, slot) in self.triplets
                self.triplets[domain, slot] = SlotValue(domain, slot, value)
            else:
                self.errors += 1
                if slot:
                    self.n_emptied += (domain, slot) not in self.emptied
                    self.emptied.add((domain, slot))
            if stop == ")":
                return True

    def _token(self, stops: str) -> tuple[str, bool, str]:
        """Read up to a stop character; return the trimmed text, whether it starts unescaped, and the stop."""
        characters: list[tuple[str, bool]] = []
        stop = ""
        for character, is_escaped in self._characters():
            if not is_escaped and character in stops:
                stop = character
                break
            characters.append((character, is_escaped))
        while characters and characters[0][0].isspace() and not characters[0][1]:
            characters.pop(0)
        while characters and characters[-1][0].isspace() and not characters[-1][1]:
            characters.pop()
        is_plain = bool(characters) and not characters[0][1]
        return "".join(character for character, _ in characters), is_plain, stop

    def _characters(self) -> Iterator[tuple[str, bool]]:
        while self.position < len(self.text):
            character = self.text[self.position]
            self.position += 1
            if character != "\\" or self.position == len(self.text):
                yield character, False
                continue
            escaped = self.text[self.position]
            self.position += 1
            yield _NAMED_BACK.get(escaped, escaped), True


def state_prompt(lines: Sequence[str]) -> str:
    """Return the prompt that asks for a state after a history."""
    return "".join(lines) + STATE_MARKER
