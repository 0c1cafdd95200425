"""Where the values stand in a text that a bot writes: in states, in acts, and wherever else `slot=value` is written.

Guarantees: whatever `prompts.read_state` or `prompts.read_changes` reads as a triplet is found here, too, under the
same escapes, in states that were cut, under a marker in another spelling (`belief state:`) and in lines without one
(`area=north, food=thai)`); so is what stands in a state line where no value belongs, because an attacker may read
more forgivingly than we do. In any other line, and after the marker of another section (`Actions:`, `Response:`,
`User:`, ...), everything between `=` and the next `,`, `)` or end of the line is a value; the rest is what somebody
says or does.

Voids it: text in place of a name, before `(` or `=`, counts as the name it stands for; a line that holds one bare
value, without marker or slot, is ordinary text, and so is what another section says without `=`: the prose of a
response, the `acorn` of `hotel-inform(acorn)`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from hushbot.prompts import (
    ACTIONS_MARKER,
    DATABASE_MARKER,
    EMPTY_STATE,
    RESPONSE_MARKER,
    STATE_MARKER,
    SYSTEM_MARKER,
    USER_MARKER,
)

_SECTION = re.compile("|".join((DATABASE_MARKER, ACTIONS_MARKER, RESPONSE_MARKER, USER_MARKER, SYSTEM_MARKER)))
_MARKER = re.compile(STATE_MARKER.replace(" ", r"[ \t]*"), flags=re.IGNORECASE)
_ENTRY = re.compile(r"[^(),=:\n]+(?:\([^(),=\n]+)?=")
"""`slot=` or `Name(slot=`, wherever a line holds it."""
_ESCAPED = {"n": "\n", "r": "\r"}


class Written(NamedTuple):
    """One value, or text in place of one."""

    domain: str
    """As it is spelled; empty where the text starts inside a domain."""
    slot: str
    """Its slot; empty for text that stands where no value belongs."""
    value: str
    """Without escapes, trimmed; empty for a slot that was dropped."""
    start: int
    """Where it starts in the text: right after `=`."""
    end: int
    """Where its delimiter stands, or where the text or the line ends."""
    stop: str
    """The delimiter, `,` or `)`; empty where there is none."""
    section: str = ""
    """The marker of the section that it stands in; empty for a state."""


def written_values(text: str) -> list[Written]:
    """Return all values of a text of one or more lines, in order."""
    found: list[Written] = []
    at = 0
    while at < len(text):
        end = _line_end(text, at)
        for scanner in _scan_line(text, at, end):
            found += scanner.found
            end = max(end, _line_end(text, scanner.at))
        at = end + 1
    return sorted(set(found), key=lambda written: (written.start, written))


def _scan_line(text: str, at: int, end: int) -> Iterator[_Scanner]:
    """Yield every way in which one line may be read as a state."""
    marker = _MARKER.search(text, at, end)
    line = _Scanner(text, at)
    start = line.skip_blanks()
    if not _SECTION.match(text, start) and (marker is None or marker.start() > start):
        line.read_unmarked()
        if line.has_slots:
            yield line
        elif marker is None and (entry := _ENTRY.search(text, at, end)):
            line = _Scanner(text, entry.start())
            line.read_unmarked()
            if line.has_slots:
                yield line
    if marker is not None:
        line = _Scanner(text, marker.end())
        line.skip_blanks()
        line.read_domains()
        yield line
    # Of a state only what follows the marker of another section is left to read.
    is_state = marker is not None and marker.start() <= start
    section = _SECTION.search(text, at, end) if is_state else None
    if section or not is_state:
        line = _Scanner(text, section.start() if section else at)
        line.read_entries()
        yield line


def leave_out(text: str, places: Collection[int], own: int) -> str:
    """Take entries without a value out of the states of a text, so that they do not say that a slot was dropped.

    Args:
        text: One or more lines.
        places: Where the delimiters of the entries stand, right after `slot=`.
        own: Where the text begins that may be changed; what stands before stays, and so do entries that begin there.
    """
    for place in sorted(places, reverse=True):
        text = _without_entry(text, place, own)
    return text


def _without_entry(text: str, place: int, own: int) -> str:
    start = _after(text, place, "(,\n")
    opening = text[start - 1 : start]
    is_entry = opening in ("(", ",") and text[start:place].endswith("=") and text[place : place + 1] in (",", ")")
    if start < own or not is_entry:
        return text
    if text[place] == ",":
        end = place + 1
        while opening == "(" and text[end : end + 1] == " ":
            end += 1
        return text[:start] + text[end:]
    if opening == ",":
        return text[: max(start - 1, own)] + text[place:]
    head = _after(text, start - 1, "),:\n")
    if head < own:
        return text[:start] + text[place:]
    return _none_left(text[:head] + text[place + 1 :], head)


def _none_left(text: str, at: int) -> str:
    """Say that a line holds an empty state where nothing of it is left."""
    start, end = text.rfind("\n", 0, at) + 1, _line_end(text, at)
    line = text[start:end].strip()
    return text if line and not _MARKER.fullmatch(line) else f"{text[:at]} {EMPTY_STATE}{text[end:]}"


def _after(text: str, at: int, signs: str) -> int:
    """Return where the piece starts that goes on until a place: after the last of some signs that is not escaped."""
    while at > 0:
        n_escapes = len(text[: at - 1]) - len(text[: at - 1].rstrip("\\"))
        if text[at - 1] in signs and n_escapes % 2 == 0:
            break
        at -= 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def unescape(raw: str) -> str:
    """Return a raw piece of a state text without its escapes and outer blanks."""
    return _Scanner(raw, 0).token("")[1]


class _Scanner:
    """Reads on from a place in a text, as `prompts` does, and keeps the places."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.found: list[Written] = []

    @property
    def has_slots(self) -> bool:
        """Whether a slot was found, so that the text is a state."""
        return any(value.slot for value in self.found)

    def read_domains(self) -> None:
        """Read `Name(slot=value, ...) Name(...)` to the end of the line."""
        while True:
            start = self.skip(" \t,:")
            _, name = self.token("(),=:\n")
            if not name or self.stop != "(":
                self._read_rest(start)
                return
            self.at += 1
            if not self._read_slots(name):
                return

    def read_unmarked(self) -> None:
        """Read a line that may be a state, or the rest of one from somewhere inside a domain."""
        start = self.skip(" \t,:")
        _, name = self.token("(),=:\n")
        is_inside = name and self.stop in ("=", ",", ")")
        self.at = start
        if not is_inside or self._read_slots(""):
            self.read_domains()

    def read_entries(self) -> None:
        """Read every `slot=value` to the end of the line, inside brackets or not, with the head of its bracket."""
        begin = self.at
        heads: list[str] = []
        while self.stop not in ("", "\n"):
            _, name = self.token("(),=:\n")
            if self.stop == "=":
                self.at += 1
                start, value = self.token(",)\n")
                stop = self.stop if self.stop in (",", ")") else ""
                section = ["", *_SECTION.findall(self.text, begin, start)]
                self.found.append(Written(heads[-1] if heads else "", name, value, start, self.at, stop, section[-1]))
            if self.stop == "(":
                heads.append(name)
            elif self.stop == ")":
                heads = heads[:-1]
            self.at += self.stop not in ("", "\n")

    def skip_blanks(self) -> int:
        """Go to the next character of the line that is no blank; return where it is."""
        while self.stop.isspace() and self.stop != "\n":
            self.at += 1
        return self.at

    def skip(self, characters: str) -> int:
        """Go to the next other character; return where it is."""
        while self.at < len(self.text) and self.text[self.at] in characters:
            self.at += 1
        return self.at

    @property
    def stop(self) -> str:
        """The character that ended the last token; empty at the end of the text."""
        return self.text[self.at : self.at + 1]

    def token(self, stops: str) -> tuple[int, str]:
        """Read up to a stop character; return where the token starts, and the token without escapes, trimmed."""
        start = self.at
        characters: list[str] = []
        n_kept = 0  # length without the blanks at the end; escaped blanks belong to the token
        while self.at < len(self.text):
            character = self.text[self.at]
            is_escaped = character == "\\" and self.at + 1 < len(self.text)
            if is_escaped:
                self.at += 1
                character = _ESCAPED.get(self.text[self.at], self.text[self.at])
            elif character in stops:
                break
            self.at += 1
            if is_escaped or not character.isspace():
                characters.append(character)
                n_kept = len(characters)
            elif characters:
                characters.append(character)
        return start, "".join(characters[:n_kept])

    def _read_slots(self, domain: str) -> bool:
        """Read `slot=value, ...)`; return whether the closing bracket was there."""
        while True:
            start, slot = self.token("=,)\n")
            if self.stop == "=":
                self.at += 1
                start, value = self.token(",)\n")
            else:
                slot, value = "", slot
            stop = self.stop if self.stop in (",", ")") else ""
            if slot or value:
                self.found.append(Written(domain, slot, value, start, self.at, stop))
            if not stop:
                return False
            self.at += 1
            if stop == ")":
                return True

    def _read_rest(self, start: int) -> None:
        """Take what is no domain as one piece, up to another section or state of the same line."""
        self.at = start
        self.token("\n")
        end = self.at
        marker, section = (pattern.search(self.text, start, end) for pattern in (_MARKER, _SECTION))
        rest = min(match.start() if match else end for match in (marker, section))
        if value := unescape(self.text[start:rest]):
            self.found.append(Written("", "", value, start, rest, ""))
        if marker:
            self.at = marker.end()
            self.read_domains()
