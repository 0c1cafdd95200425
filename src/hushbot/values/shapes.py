"""What kind of thing a value is, judged by its form and its slot's name, and another value of the same kind.

Guarantees: `like` never returns its value, whatever the case; digits stay digits, letters of a code stay letters of
the same case, a time stays on its grid of minutes, an e-mail address stays one, words become invented words. It looks
at nothing but the value, the slot's name and the generator it is given: no corpus, no other dialogue.

Void as a detector of identifiers: a shape is a guess (a hotel in a slot `address` becomes an address), good enough to
replace a value by something that can stand in its place.

>>> shape_of("01223 351880"), shape_of("17:45"), shape_of("golden wok", "name"), shape_of("korean", "food")
('phone', 'time', 'name', 'words')
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import lru_cache

from hushbot.values.clock import is_dotted, minutes_of, respell
from hushbot.values.dates import is_date, other_date, redated
from hushbot.values.words import KINDS, STOP, NewWords


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# fmt: off
NUMBER_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
NAME_SLOTS = frozenset(_words(
    "name title guest patient doctor person receiver recipient contact venue place track album artist song "
    "movie event theater station airport city location destination departure dest depart from to where cast director"
))
"""A slot whose name holds one of these words takes names, of people, places or works."""
_SLOT_SHAPES = {
    "email": "email", "mail": "email", "phone": "phone", "telephone": "phone", "postcode": "postcode",
    "post": "postcode", "zip": "postcode", "reference": "code", "ref": "code", "id": "code", "trainid": "code",
    "address": "address", "addr": "address", "street": "address",
}
# fmt: on
_RUN = re.compile(r"(?:[^\W\d_][\u0300-\u036f]*)+|\d+")
_KEPT = STOP | KINDS
_ORDINAL = re.compile(r"(\d{1,2})(st|nd|rd|th)?", flags=re.IGNORECASE)
_PRICE = re.compile(r"[$£€]\s?\d[\d.,]*|\d[\d.,]*\s?(?:gbp|usd|eur|pounds?|dollars?|euros?|bucks)", flags=re.IGNORECASE)
_AMOUNT = re.compile(r"\d[\d.,]*\d|\d")
_POSTCODE = re.compile(r"[a-z]{1,2}\d{1,2}[a-z]?\s?\d?[a-z]{2}", flags=re.IGNORECASE)
_PHONE = re.compile(r"\+?[\d\s()-]{7,}")
_WITH_CLOCK = re.compile(r"\d{1,2}:\d\d")
_QUANTITY = re.compile(r"\d+(?:\.\d+)?(?:\s(?:minutes?|hours?|days?|nights?|miles?|stars?|people|km|percent))?")
_ARTICLE = re.compile(r"the\s+(?=\S)", flags=re.IGNORECASE)
_POSSESSIVE_END = re.compile(r"\s?['\u2019`]\s?s$", flags=re.IGNORECASE)
_TIME_WORDS = ("time", "arrive", "arriveby", "leave", "leaveat")
_MORE_WORDS = ("early", "late", "around noon", "after lunch", "in the evening", "before dawn")
_N_TRIES = 64


def words_of(slot: str) -> list[str]:
    """Return the words of a slot's name, in small letters."""
    return re.findall(r"[a-z]+", slot.casefold())


@lru_cache(maxsize=16384)
def shape_of(value: str, slot: str = "") -> str:
    """Return `email`, `time`, `date`, `price`, `phone`, `number`, `postcode`, `code`, `address`, `name` or `words`."""
    text, words = value.strip(), words_of(slot)
    named = next((_SLOT_SHAPES[word] for word in words if word in _SLOT_SHAPES), None)
    if "@" in text or named == "email":
        return "email"
    if minutes_of(text) is not None or (_WITH_CLOCK.search(text) and len(text.split()) < 6):
        return "time"
    if any(word in _TIME_WORDS for word in words) and any(c.isdigit() for c in text) and not _is_measured(text):
        return "time"
    if is_date(text):
        return "date"
    if _PRICE.fullmatch(text):
        return "price"
    return _coded_shape(text, named) or ("name" if NAME_SLOTS.intersection(words) else "words")


def like(
    value: str, slot: str, rng: random.Random, words: NewWords | None = None, *, keeps: frozenset[str] = _KEPT
) -> str:
    """Return another value of the same shape, drawn from the generator alone.

    Args:
        value: A value.
        slot: The name of its slot.
        rng: What is drawn from.
        words: Which words take the place of which; new ones unless given.
        keeps: Words that stay, in small letters.
    """
    make = _MAKERS[shape_of(value, slot)]
    words = words or NewWords(rng)
    for _ in range(_N_TRIES):
        made = make(value, rng, words, keeps)
        if made.casefold() != value.casefold():
            return made
        keeps = keeps & STOP if keeps - STOP else frozenset()
    # Nothing but signs that have no like, or function words.
    return words.word("value" + value)


@lru_cache(maxsize=16384)
def number_of(text: str) -> str | None:
    """Return the digits of a small number written in digits or as a word, else None."""
    word = text.strip().casefold()
    if word in NUMBER_WORDS:
        return str(NUMBER_WORDS.index(word) + 1)
    return word if word.isascii() and word.isdigit() and len(word) <= 2 else None


def follow(replacement: str, original: str, occurrence: str) -> str:
    """Write a replacement as an occurrence writes the original: case, number words, clock, calendar, currency."""
    if occurrence == original:
        return replacement
    if (digits := number_of(replacement)) is not None and number_of(occurrence) is not None:
        is_word = occurrence.strip().casefold() in NUMBER_WORDS and int(digits) in range(1, len(NUMBER_WORDS) + 1)
        replacement = NUMBER_WORDS[int(digits) - 1] if is_word else digits
    before, after = minutes_of(original), minutes_of(replacement)
    if before is not None and after is not None and (minutes_of(occurrence) is not None or is_dotted(occurrence)):
        return respell(after, occurrence, before)
    if is_date(replacement) and is_date(occurrence):
        return redated(replacement, occurrence) or replacement
    if _PRICE.fullmatch(replacement) and _PRICE.fullmatch(occurrence) and (amount := _AMOUNT.search(replacement)):
        return _AMOUNT.sub(amount[0], occurrence)
    return _as_long(replacement, original, occurrence)


def bare(text: str) -> str:
    """Return a text without the article before and the possessive after it.

    >>> bare("The Mill 's")
    'Mill'
    """
    return _POSSESSIVE_END.sub("", _ARTICLE.sub("", text.strip())) or text


def amount_of(text: str) -> str | None:
    """Return the digits of a price, else None."""
    found = _AMOUNT.search(text) if _PRICE.fullmatch(text.strip()) else None
    return found and found[0]


def _as_long(replacement: str, original: str, occurrence: str) -> str:
    """Write a replacement with or without an article and a possessive, as an occurrence of the original has them."""
    if _ARTICLE.match(original) or _ARTICLE.match(occurrence) or _POSSESSIVE_END.search(original):
        article = _ARTICLE.match(occurrence)
        ending = _POSSESSIVE_END.search(occurrence)
        written = in_case_of(bare(occurrence), bare(replacement))
        return (article[0] if article else "") + written + (ending[0] if ending else "")
    return in_case_of(occurrence, replacement)


def _coded_shape(text: str, named: str | None) -> str | None:
    n_digits = sum(c.isdigit() for c in text)
    if _PHONE.fullmatch(text) and (n_digits >= 7 or named == "phone"):
        return "phone"
    if number_of(text) is not None or _QUANTITY.fullmatch(text):
        return named if named in ("phone", "postcode", "code") else "number"
    if named in ("phone", "postcode", "code") or _POSTCODE.fullmatch(text):
        return named or "postcode"
    if named == "address" or (re.match(r"\d+\s?[a-z]?\s", text) and _POSTCODE.search(text)):
        return "address"
    if " " not in text and n_digits and any(c.isalpha() for c in text) and not _ORDINAL.fullmatch(text):
        return "code"
    return None


def _is_measured(text: str) -> bool:
    """Say whether a text is a number with its unit, such as `38 minutes`."""
    return bool(_QUANTITY.fullmatch(text)) and not text.isdigit()


def _time(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    minutes = minutes_of(value)
    if minutes is not None:
        step = next(step for step in (15, 5, 1) if minutes % step == 0)
        return respell(rng.randrange(7 * 60, 22 * 60, step), value, minutes)
    if _WITH_CLOCK.search(value):
        hours = (1, 5) if "afternoon" in value else (5, 11) if "evening" in value or "night" in value else (7, 12)
        return _WITH_CLOCK.sub(lambda _: f"{rng.randrange(*hours)}:{rng.choice(('00', '15', '30', '45'))}", value)
    if any(c.isdigit() for c in value):
        hours = (7, 21) if value.strip().isdigit() else (1, 11)
        return re.sub(r"\d{1,2}", lambda _: str(rng.randint(*hours)), value)
    return rng.choice(_MORE_WORDS)


def _code(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    return "".join(_other_character(c, rng) for c in value)


def _phone(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    # A leading zero is the trunk prefix: it tells nobody apart, and a number without it is none.
    first = next((i for i, c in enumerate(value) if c.isdigit()), -1)
    return "".join(c if i == first and c == "0" else _other_character(c, rng) for i, c in enumerate(value))


def _number(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    if value.strip().casefold() in NUMBER_WORDS:
        return in_case_of(value, rng.choice(NUMBER_WORDS[1:]))
    return re.sub(r"\d+", lambda match: _digits(match[0], rng), value)


def _digits(run: str, rng: random.Random) -> str:
    first = rng.choice("0123456789" if run[0] == "0" else "123456789")
    return first + "".join(rng.choice("0123456789") for _ in run[1:])


def _email(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    local, at, host = value.partition("@")
    name, dot, top = host.rpartition(".")
    made = _reworded(local, rng, words, frozenset()) + at + _reworded(name or top, rng, words, frozenset())
    return made + (dot + top if name else "")


def _name(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    return _reworded(value, rng, words, keeps)


def _date(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    return other_date(value, rng)


def _reworded(value: str, rng: random.Random, words: NewWords, keeps: frozenset[str]) -> str:
    """Exchange each run of letters or digits; short runs and short capitals letter by letter."""

    def other(match: re.Match[str]) -> str:
        run = match[0]
        if run.casefold() in keeps:
            return run
        if run[0].isdigit():
            return _digits(run, rng)
        if run.isupper() and 2 < len(run) <= 4:
            return "".join(_other_character(c, rng) for c in run)
        return in_case_of(run, words.word(run))

    return _RUN.sub(other, value)


def _other_character(character: str, rng: random.Random) -> str:
    if character.isdigit():
        return rng.choice("0123456789")
    if not character.isalpha():
        return character
    letter = rng.choice("abcdefghjkmnpqrstuvwxyz")
    return letter.upper() if character.isupper() else letter


def in_case_of(occurrence: str, text: str) -> str:
    """Write a text in the case of an occurrence: small, CAPITALS, Each Word, or the first letter only."""
    letters = [c for c in occurrence if c.isalpha()]
    if not letters:
        return text
    if occurrence.islower():
        return text.lower()
    if occurrence.isupper() and len(letters) > 1:
        return text.upper()
    words = [word for word in re.findall(r"[^\W\d_]+", occurrence) if len(word) > 3] or [occurrence]
    if all(word[0].isupper() for word in words):
        return re.sub(r"(?<![^\W_'’])[^\W\d_]{2,}(?![^\W_])", lambda m: m[0][0].upper() + m[0][1:], text)
    return text[0].upper() + text[1:] if letters[0].isupper() and occurrence[0].isupper() else text


_MAKERS: dict[str, Callable[[str, random.Random, NewWords, frozenset[str]], str]] = {
    "email": _email,
    "time": _time,
    "date": _date,
    "price": _number,
    "phone": _phone,
    "number": _number,
    "postcode": _code,
    "code": _code,
    "address": _name,
    "name": _name,
    "words": _name,
}
