r"""What an identifier looks like, when two spellings are the same one, and how hard it is to guess.

Guarantees: a phone number is found with any of the usual signs between its digits, with a country code, without any
sign, and before a full stop (`01223323737`, `01223 323737`, `+44 1223 323737`, `555-0142.`); dates, ranges of years,
times and lists of prices are none. Two spellings are one identifier if their letters and digits are the same in order,
whatever the case and the signs between. `Identifier.holds` is word-bounded: `555-0142` does not stand in `1555-01429`.

The shapes are our own, not those of `targets.mask_identifiers`: a guard that was audited with its own patterns would
always be found clean.

What voids them: a code of letters only is found where a slot or the issued booking names it, not in running text;
postcodes are British ones; names are found in slots that hold persons; codes spelled letter by letter are not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

KINDS = ("reference", "phone", "email", "postcode", "id", "name", "number")
"""What is looked for."""

# fmt: off
_SLOT_WORDS = {
    "reference": "reference", "ref": "reference", "confirmation": "reference", "voucher": "reference",
    "phone": "phone", "telephone": "phone", "mobile": "phone", "email": "email", "mail": "email",
    "postcode": "postcode", "post": "postcode", "zip": "postcode", "zipcode": "postcode", "postal": "postcode",
    "id": "id", "trainid": "id", "passport": "id", "licence": "id", "license": "id", "plate": "id", "ssn": "id",
}
_PERSON_WORDS = frozenset([
    "guest", "patient", "person", "receiver", "recipient", "employee", "customer", "passenger", "traveller", "traveler",
    "therapist", "doctor", "owner",
])
# fmt: on
_SIGNS = "\u00ad\u2010-\u2015\u2212"
_BETWEEN = rf"[\s().+/@_\\{_SIGNS}-]{{0,4}}"
_SEPARATORS = rf"(?:\\?[ ./()_{_SIGNS}-]){{0,2}}"  # a state's text has backslashes before its brackets
_DATE = r"(?:\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d{4}|(?:19|20)\d\d ?- ?(?:19|20)\d\d)(?![\w-])"
_PATTERN = re.compile(
    r"(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)"
    r"|(?<!\w)(?P<number>\d{4}(?:[ -]\d{4}){3})(?!\w)"  # a card, before a phone takes a part of it
    rf"|(?<![\w@])(?!{_DATE})(?P<phone>\+?(?:\\?\()?\d(?:{_SEPARATORS}\d){{6,14}})(?!\w|[.:]\d)"
    r"|(?<!\w)(?P<postcode>[a-z]{1,2}\d[a-z\d]? {0,2}\d[a-z]{2})(?!\w)"
    r"|(?<!\w)(?P<reference>(?=[a-z\d]*[a-z])(?=[a-z\d]*\d)[a-z\d]{5,})(?!\w)"
    r"|(?<![\w.,:$£€])(?P<other_number>\d{5,6})(?!\w|[.:]\d)",
    flags=re.IGNORECASE,
)
_QUANTITY = re.compile(r"\d+[a-z]{2,}")
_TRAIN = re.compile(r"tr\d{3,5}", flags=re.IGNORECASE)
_NAME = re.compile(r"[^\W\d_]+(?:[ .'\u2019-]{1,2}[^\W\d_]+){0,3}\.?")
_NOBODY = frozenset(["dontcare", "none", "yes", "no", "me", "myself", "any", "unknown"])
_DIGIT_BITS, _CODE_LETTER_BITS, _WORD_LETTER_BITS = (
    3.32,
    4.70,
    2.5,
)  # log2 of 10 and 26; English letters, at the high end


class Found(NamedTuple):
    """A piece of text that looks like an identifier."""

    start: int
    end: int
    kind: str


def kind_of_slot(slot: str) -> str | None:
    """Return which kind of identifier a slot holds by its name; None for every other slot.

    >>> kind_of_slot("book reference"), kind_of_slot("therapist_name"), kind_of_slot("name")
    ('reference', 'name', None)
    """
    words = re.findall(r"[a-z]+", slot.casefold())
    named = next((_SLOT_WORDS[word] for word in words if word in _SLOT_WORDS), None)
    return named or ("name" if _PERSON_WORDS.intersection(words) else None)


def is_plausible(value: str, kind: str) -> bool:
    """Say whether a slot's value can be an identifier of its kind at all (`dontcare` and a sentence cannot)."""
    if key_of(value) in _NOBODY or len(value) > 80:
        return False
    if kind == "name":
        return _NAME.fullmatch(value.strip()) is not None
    return any(character.isdigit() for character in value) or "@" in value or " " not in value.strip()


def find_identifiers(text: str) -> Iterator[Found]:
    """Yield what looks like an identifier by its form alone, in order and without overlaps."""
    for match in _PATTERN.finditer(text):
        kind = match.lastgroup or ""
        written = match[kind]
        if kind == "phone" and max(map(len, re.findall(r"\d+", written))) < 3:
            continue  # times and prices in a row: `10.30 11.30 12.30`
        if kind == "reference":
            if _QUANTITY.fullmatch(written):
                continue  # `38minutes`
            kind = "id" if _TRAIN.fullmatch(written) else kind
        yield Found(match.start(), match.end(), kind.removeprefix("other_"))


def key_of(value: str) -> str:
    """Return what all spellings of an identifier share: its letters and digits, in small letters."""
    return "".join(character for character in value.casefold() if character.isalnum())


@lru_cache(maxsize=16384)
def matcher(key: str) -> re.Pattern[str]:
    """Return the word-bounded pattern of an identifier, however it is grouped and punctuated."""
    spelled = _BETWEEN.join(map(re.escape, key))
    return re.compile(rf"(?<![^\W_]){spelled}(?![^\W_])", flags=re.IGNORECASE)


def words_of(text: str) -> list[str]:
    """Return the words and numbers of a text, in small letters."""
    return re.findall(r"[^\W_]+", text.casefold())


def holds(text: str, key: str) -> bool:
    """Say whether a text holds an identifier as a whole."""
    return bool(key) and matcher(key).search(text) is not None


def bits_of(value: str, kind: str) -> float:
    """Return roughly how many bits somebody needs to guess a value whose kind is known.

    Digits count 3.3 bits, letters of codes 4.7, letters of names and mail addresses 2.5.
    """
    per_letter = _WORD_LETTER_BITS if kind in ("name", "email") else _CODE_LETTER_BITS
    return sum(_DIGIT_BITS if character.isdigit() else per_letter for character in key_of(value))
