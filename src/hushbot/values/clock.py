"""Times of day as people write them: one time, many spellings.

Guarantees: `minutes_of` reads `17:45`, `9:00`, `5:45 pm`, `5 p.m.` and nothing else; `respell` writes another time
the way a given text writes its own; `spellings` lists how a time may stand in a text, unambiguous ones first.

>>> minutes_of("5:45 pm"), respell(9 * 60 + 15, "5:45 pm", 17 * 60 + 45), respell(9 * 60, "17:45", 17 * 60 + 45)
(1065, '9:15 am', '09:00')
"""

from __future__ import annotations

import re

_TIME = re.compile(r"(\d{1,2})(:\d\d)?(?:(\s*)([ap])(\.?\s?m\.?))?", flags=re.IGNORECASE)
_DOTTED = re.compile(r"\d{1,2}\.\d\d")
_NOON = 12 * 60
_NOON_WORDS = ("noon", "midday")


def minutes_of(text: str) -> int | None:
    """Return the minutes since midnight, or None where the text is no time; 24:15 counts on, as corpora have it."""
    if text.strip().casefold() in _NOON_WORDS:
        return _NOON
    match = _TIME.fullmatch(text.strip())
    if match is None or not (match[2] or match[4]):
        return None
    hour, minute = int(match[1]), int((match[2] or ":00")[1:])
    if match[4]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (match[4] in "pP")
    return hour * 60 + minute if hour <= 24 and minute < 60 else None


def is_dotted(text: str) -> bool:
    """Say whether a text may be a time with a point, such as `17.45`, or else an amount."""
    return bool(_DOTTED.fullmatch(text))


def respell(minutes: int, like: str, original: int) -> str:
    """Write a time in the style of a text that stands for the original time.

    The text may leave out the half of the day (`5:45` for 17:45); the result then does, too.
    """
    hour, minute = divmod(minutes, 60)
    if is_dotted(like):
        return f"{hour:02}.{minute:02}"
    half = _TIME.fullmatch(like.strip())
    if half is None:
        return f"{hour:02}:{minute:02}"
    if half[4]:
        letter = "p" if _NOON <= minutes < 2 * _NOON else "a"
        letter = letter.upper() if half[4].isupper() else letter
        shown = f":{minute:02}" if minute or half[2] else ""
        return f"{_on_dial(hour)}{shown}{half[3]}{letter}{half[5]}"
    if minutes_of(like) != original:
        return f"{_on_dial(hour)}:{minute:02}"
    return f"{hour:02}:{minute:02}" if len(half[1]) == 2 else f"{hour}:{minute:02}"


def spellings(minutes: int) -> tuple[list[str], list[str]]:
    """Return the spellings that mean this time only, and those that may mean another."""
    hour, minute = divmod(minutes, 60)
    half = "pm" if _NOON <= minutes < 2 * _NOON else "am"
    dial = f"{_on_dial(hour)}:{minute:02}"
    sure = [f"{hour:02}:{minute:02}", f"{hour}:{minute:02}", f"{dial}{half}"]
    if minutes == _NOON:
        sure += _NOON_WORDS
    if minute == 0:
        sure.append(f"{_on_dial(hour)}{half}")
    return sure, [dial, f"{hour:02}.{minute:02}", f"{hour}.{minute:02}"]


def _on_dial(hour: int) -> int:
    return hour % 12 or 12
