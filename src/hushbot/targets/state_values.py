"""Where the values stand in a text that a bot writes: every piece of a state line that is not a name, with its place.

Guarantees: whatever `prompts.read_state` or `prompts.read_changes` reads as a triplet is found here, too, under the
same escapes, in states that were cut, under a marker in another spelling (`belief state:`) and in lines without one
(`area=north, food=thai)`); so is what stands in a state line where no value belongs, because an attacker may read
more forgivingly than we do. Lines of the other sections (`Actions:`, `Response:`, `User:`, ...) hold no values.

Voids it: text in place of a name, before `(` or `=`, counts as the name it stands for; a line that holds one bare
value, without marker or slot, is ordinary text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from hushbot.prompts import (
    ACTIONS_MARKER,
    DATABASE_MARKER,
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
