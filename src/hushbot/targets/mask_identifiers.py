"""A rewriter by rule: identifiers that nobody gave the bot become placeholders.

Guarantees: an e-mail address, phone number, postcode, booking code or long number in a sampled text stays only if it
stands, spelled with whatever blanks, dashes and punctuation, in a trusted line of the prompt (what the customer said,
what the lookup found) or in a prompt without our layout. Anything else becomes `[phone]` and the like; of a dialogue
state the whole entry is left out instead, so that the state stays readable, names no wrong value and drops no earlier
one (an entry that was cut, or that the prompt begins, is left without its value). A state's slot that is named after an
identifier (`phone`, `reference`) is held to the same rule whatever its value looks like. Times, dates, prices and
counts stay. An identifier that begins in the prompt and ends in the text is found. Nothing is drawn at random.

Voids it: identifiers of other shapes. Names, addresses without postcode, codes of small letters only that no word
`reference` announces, codes spelled letter by letter (`7 gawk 763`, `q s m z c n 9`), mail addresses in words
(`rosa (at) mail`), phone numbers with more between two digits than blanks or two signs, and spelled-out numbers pass; a
postcode is a British one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from hushbot.masking import IDENTIFIER_SLOTS
from hushbot.prompts import DATABASE_MARKER, USER_MARKER
from hushbot.targets.filter_guard import MARKERS, Line, cut_lines
from hushbot.targets.state_values import leave_out

_DASHES = "\u00ad\u2010-\u2015\u2212-"  # the plain one last, where a set of characters takes it as it is
_BLANK = r"[^\S\n]"
_SIGN = f"[/{_DASHES}]"
_DATE = (
    rf"(?:\d{{4}}(?:\.|{_SIGN})\d{{1,2}}(?:\.|{_SIGN})\d{{1,2}}|"
    rf"\d{{1,2}}(?:\.|{_SIGN})\d{{1,2}}(?:\.|{_SIGN})(?:\d{{2}}|\d{{4}}))(?![\w{_DASHES}])"
)
# Blanks, or one or two signs with at most one blank: `10.50 - 20.50` is no number.
_BETWEEN = rf"(?:{_BLANK}{{0,4}}|[().+/_{_DASHES}]{{1,2}}{_BLANK}?|{_BLANK}[().+/_{_DASHES}])"
_PATTERNS = {
    # With blanks around the sign, only a domain with a dot tells it from `a table @ 5`.
    "email": r"(?P<email>[\w.+-]+(?:@[\w-]+(?:\.[\w-]+)*|"
    rf"{_BLANK}{{0,2}}@{_BLANK}{{0,2}}[\w-]+(?:\.[\w-]+)*\.[a-z]{{2,}}))",
    # Seven to fifteen digits, in groups if need be.
    "phone": rf"(?<!\w)(?!{_DATE})(?P<phone>\+?\(?\d(?:{_BETWEEN}\d){{6,14}})(?!\w)",
    "postcode": rf"(?<!\w)(?P<postcode>[a-z]{{1,2}}\d[a-z\d]?(?:{_BLANK}{{0,3}}|{_SIGN})\d[a-z]{{2}})(?!\w)",
    # Whatever follows the word, since such codes may be letters only.
    "reference": r"\breference(?: number| code| no\.?)?\s*(?:is\s*:?|:|=|\#)\s*(?P<reference>[a-z\d]{4,})(?!\w)",
    # Capitals and digits in groups; one or two letters before a long number; a digit after a letter; or capitals, with
    # or without digits, that are neither an act's name nor a time.
    "code": rf"(?<!\w)(?P<code>(?-i:(?=[A-Z\d{_DASHES}]*[A-Z]\d)(?=(?:{_SIGN}?[A-Z\d]){{5}})"
    rf"[A-Z\d]+(?:[{_DASHES}][A-Z\d]+)+)|[a-z]{{1,2}}[{_DASHES}]\d{{4,}}|"
    r"(?=[a-z\d]*[a-z]\d)[a-z\d]{5,}|"
    r"(?<!-)(?-i:(?!\d+[AP]M\b)(?=\d*[A-Z])[A-Z\d]{5,})(?!\())(?!\w)",
    "number": r"(?<!\w)(?P<number>\d{5,})(?!\w)",
}
KINDS = tuple(_PATTERNS)
"""What is looked for; where several kinds begin at one place, the first of them counts."""
_SLOT_WORDS = IDENTIFIER_SLOTS - {"time", "account", "number"}  # these also name opening times, account types, counts
_NO_IDENTIFIER = frozenset(["", "?", "dontcare", "none", "yes", "no"])


@cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(pattern for kind, pattern in _PATTERNS.items() if kind in kinds), flags=re.IGNORECASE)


class Change(NamedTuple):
    """What to write over a piece of a line."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, kw_only=True)
class MaskIdentifiers:
    """Replace identifiers that the prompt does not give."""

    kinds: tuple[str, ...] = KINDS
    """Which identifiers to replace."""
    trusted_lines: tuple[str, ...] = (USER_MARKER, DATABASE_MARKER)
    """Lines of the prompt whose identifiers the bot may repeat: those that it did not write itself."""

    def __post_init__(self) -> None:
        for name, chosen, known in (("kinds", self.kinds, KINDS), ("trusted_lines", self.trusted_lines, MARKERS)):
            if unknown := [choice for choice in chosen if choice not in known]:
                raise ValueError(f"{name} has {', '.join(unknown)}; choose from {', '.join(known)}")
        if not self.kinds:
            raise ValueError(f"kinds is empty, so nothing would be filtered; choose from {', '.join(KINDS)}")

    def rewrite(self, texts: Sequence[str], prompts: Sequence[str]) -> list[str]:
        """Return the texts without the identifiers that are news to the prompt."""
        trusted = {prompt: self._trusted(prompt) for prompt in dict.fromkeys(prompts)}
        return [
            "".join(self.rewrite_line(line, trusted[prompt]) for line in cut_lines(text, prompt))
            for text, prompt in zip(texts, prompts, strict=True)
        ]

    def rewrite_line(self, line: Line, trusted: str) -> str:
        """Return what the text should hold of a line; `trusted` is whatever may be repeated."""
        whole = line.before + line.head + line.body
        own = len(line.before) + len(line.head)
        changes = self._state_changes(whole, trusted) if line.is_state else self._text_changes(whole, trusted)
        text, done, emptied = whole[:own], own, []
        for change in changes:
            if change.end > own:
                start = max(change.start, own)
                text += whole[done:start] + change.text
                done = change.end
                emptied += [len(text)] if not change.text and change.start >= own else []
        return leave_out(text + whole[done:], emptied, own)[len(line.before) :]

    def _trusted(self, prompt: str) -> str:
        """Return the lines of a prompt that the bot did not write; a line without a marker is anybody's."""
        untrusted = tuple(marker for marker in MARKERS if marker not in self.trusted_lines)
        return "\n".join(line for line in prompt.split("\n") if not line.startswith(untrusted)).casefold()

    def _text_changes(self, whole: str, trusted: str) -> Iterator[Change]:
        for match in _pattern(tuple(self.kinds)).finditer(whole):
            kind = match.lastgroup or ""
            if not _is_known(match[kind], trusted):
                yield Change(match.start(kind), match.end(kind), f"[{kind}]")

    def _state_changes(self, whole: str, trusted: str) -> Iterator[Change]:
        """Empty values that hold an identifier; mask those that stand where no value should be."""
        values = list(_values(whole))
        changes = [
            c for c in self._text_changes(whole, trusted) if all(c.end <= v.start or v.end <= c.start for v in values)
        ]
        changes += [Change(v.start, v.end, "") for v in values if self._is_hidden(v, whole[v.start : v.end], trusted)]
        yield from sorted(changes)

    def _is_hidden(self, place: Change, written: str, trusted: str) -> bool:
        value = re.sub(r"\\(.)", r"\1", written).strip()
        if any(True for _ in self._text_changes(value, trusted)):
            return True
        words = re.split(r"[\s_-]+", place.text.casefold())
        is_identifier = any(word in _SLOT_WORDS for word in words) and value.casefold() not in _NO_IDENTIFIER
        return is_identifier and not _is_known(value, trusted)


def _is_known(identifier: str, trusted: str) -> bool:
    """Say whether a text holds an identifier as a whole, however it is grouped and punctuated."""
    signs = re.findall(r"[^\W_]", identifier.casefold())
    spelled = rf"[\s().+/@_{_DASHES}]{{0,4}}".join(map(re.escape, signs))
    return bool(signs) and re.search(rf"(?<![^\W_]){spelled}(?![^\W_])", trusted) is not None


def _values(line: str) -> Iterator[Change]:
    """Yield where the values of a state stand, each with its slot as the text; an unclosed one counts."""
    slot, slot_start, value_start, is_inside, i = "", 0, -1, False, 0
    while i < len(line):
        sign = line[i]
        if sign == "\\":
            i += 2
            continue
        if value_start >= 0 and sign in ",)\n":
            yield Change(value_start, i, slot)
            value_start = -1
        if value_start < 0:
            if sign == "=" and is_inside:
                slot, value_start = line[slot_start:i], i + 1
            elif sign in "(,":
                is_inside, slot_start = is_inside or sign == "(", i + 1
            elif sign in ")\n":
                is_inside = False
        i += 1
    if value_start >= 0:
        yield Change(value_start, len(line.rstrip("\n")), slot)
