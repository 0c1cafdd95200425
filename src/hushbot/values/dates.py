"""Dates as people write them: months, days of the week, days of a month, "today".

Guarantees: `is_date` accepts a text only if each of its words belongs to a date; `other_date` returns another date in
the same words, and `redated` writes a date in the words of another text for the same day, always in the same way.

>>> is_date("11th of March"), is_date("28th street station"), redated("5th of may", "March 11th")
(True, False, 'May 5th')
"""

from __future__ import annotations

import random
import re

# fmt: off
MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)
# fmt: on
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
RELATIVE = ("today", "tomorrow", "tonight", "yesterday")
# fmt: off
_AROUND = frozenset([
    "of", "this", "the", "month", "next", "last", "coming", "week", "weekend", "day", "after", "before", "later", "on",
    "in", "from", "now",
])
# fmt: on
_DAY = re.compile(r"(\d{1,2})(st|nd|rd|th)", flags=re.IGNORECASE)
_NUMERIC = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[/.]\d\d?[/.]\d{2,4}")
_WORD = re.compile(r"\w+")


def is_date(text: str) -> bool:
    """Say whether a text is a date and nothing else."""
    if _NUMERIC.fullmatch(text):
        return True
    words = [word.casefold() for word in _WORD.findall(text)]
    told = [word for word in words if word in (*MONTHS, *WEEKDAYS, *RELATIVE) or _DAY.fullmatch(word)]
    return bool(told) and all(word in told or word in _AROUND or word.isdigit() for word in words)


def other_date(value: str, rng: random.Random) -> str:
    """Return a date with another day, month or day of the week for each that the value has."""
    if _NUMERIC.fullmatch(value):
        year = re.search(r"\d{4}", value)
        made = re.sub(r"(?<!\d)\d{1,2}(?!\d)", lambda m: f"{rng.randint(1, 12):0{len(m[0])}}", value)
        return made.replace(year[0], str(int(year[0]) + rng.randint(-3, 3))) if year else made

    def other(match: re.Match[str]) -> str:
        word = match[0].casefold()
        for names in (MONTHS, WEEKDAYS, RELATIVE):
            if word in names:
                return _capital_as(match[0], rng.choice([name for name in names if name != word]))
        day = _DAY.fullmatch(word)
        if day is None and not word.isdigit():
            return match[0]
        number = rng.choice([n for n in range(1, 29) if n != int(day[1] if day else word)])
        return f"{number}{_ending(number)}" if day else str(number)

    return _WORD.sub(other, value)


def redated(date: str, like: str) -> str | None:
    """Write a date in the words of a text for another date; None where they say different things.

    A month that the date does not give follows from its day, so that all texts of one dialogue name the same.
    """
    day, place = _DAY.search(date), _DAY.search(like)
    if day is None or place is None:
        return None
    number = int(day[1])
    months = [word for word in _WORD.findall(date.casefold()) if word in MONTHS]

    def other(match: re.Match[str]) -> str:
        word = match[0].casefold()
        if word in MONTHS:
            shifted = MONTHS[(MONTHS.index(word) + 1 + number % 11) % 12]
            return _capital_as(match[0], months[0] if months else shifted)
        return f"{number}{_ending(number)}" if _DAY.fullmatch(word) else match[0]

    return _WORD.sub(other, like)


def day_of(text: str) -> tuple[int, int] | None:
    """Return the month and the day that a date names, counted from 1; None unless it names both, in words.

    >>> day_of("Monday, 5th of March"), day_of("the 5th")
    ((3, 5), None)
    """
    words = [word.casefold() for word in _WORD.findall(text)]
    months = [word for word in words if word in MONTHS]
    days = [
        int(re.sub(r"\D", "", word)) for word in words if _DAY.fullmatch(word) or (word.isdigit() and len(word) < 3)
    ]
    is_plain = is_date(text) and len(months) == len(days) == 1
    return (MONTHS.index(months[0]) + 1, days[0]) if is_plain else None


def day_spellings(month: int, day: int) -> list[str]:
    """Return how a day of a month stands in texts."""
    name, ordinal = MONTHS[month - 1], f"{day}{_ending(day)}"
    return [f"{name} {ordinal}", f"{ordinal} {name}", f"{ordinal} of {name}", f"{name} {day}", f"{day} {name}"]


def dated(text: str, month: int, day: int, rng: random.Random) -> str:
    """Write another day in the words of a date that names a month and a day; its day of the week is drawn."""

    def other(match: re.Match[str]) -> str:
        word = match[0].casefold()
        if word in MONTHS:
            return _capital_as(match[0], MONTHS[month - 1])
        if _DAY.fullmatch(word):
            return f"{day}{_ending(day)}"
        if word in WEEKDAYS:
            return _capital_as(match[0], rng.choice([name for name in WEEKDAYS if name != word]))
        return str(day) if word.isdigit() and len(word) < 3 else match[0]

    return _WORD.sub(other, text)


def _ending(number: int) -> str:
    return "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _capital_as(word: str, name: str) -> str:
    return name.capitalize() if word[0].isupper() else name
