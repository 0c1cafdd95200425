"""What MultiWOZ 2.x writes into a turn, as hushbot's values: states, bookings, acts, spans; and its ontology.

Guarantees: pure functions. Values are trimmed and casefolded; blank, `not mentioned`, `not men` and `none`
are absent; every spelling of "do not care" is the value `dontcare` and is kept; `|`, `<` and `>` separate
alternatives, whose order is kept. A slot that would have two values is a `DataError`.

Void if `none` or a separator stands in a real value; in MultiWOZ they do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from hushbot.corpora.files import require
from hushbot.corpora.spans import Claim, token_range
from hushbot.errors import DataError
from hushbot.masking import mask_text, mask_value
from hushbot.schema import Slot
from hushbot.types import DialogueState, SlotValue

DONTCARE = "dontcare"

_ABSENT = frozenset({"", "not mentioned", "not men", "none"})
_DONTCARE = frozenset({"dontcare", "donotcare", "doesnotcare", "doesntcare"})
_SEPARATORS = re.compile("[|<>]")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_UP_TO_EIGHT = tuple("12345678")
# What the 2.2 schema publishes for categorical slots. The ontology's lists are what annotators wrote into dialogues.
_CATEGORICAL = {
    "area": ("centre", "east", "north", "south", "west"),
    "book day": _DAYS,
    "book people": _UP_TO_EIGHT,
    "book stay": _UP_TO_EIGHT,
    "day": _DAYS,
    "internet": ("free", "no", "yes"),
    "parking": ("free", "no", "yes"),
    "pricerange": ("cheap", "expensive", "moderate"),
    "stars": tuple("012345"),
}
# fmt: off
_CATEGORICAL_IN = {
    ("attraction", "type"): (
        "architecture", "boat", "cinema", "college", "concerthall", "entertainment", "multiple sports", "museum",
        "nightclub", "park", "swimmingpool", "theatre",
    ),
    ("hotel", "type"): ("guesthouse", "hotel"),
    ("train", "book people"): ("0", *_UP_TO_EIGHT, "9", "10", "15"),
}
# fmt: on
# What acts and spans call the slots of states and bookings; the details of a booking are `book ...`.
_STATE_NAMES = {
    "addr": "address",
    "arrive": "arriveby",
    "car": "type",
    "depart": "departure",
    "dest": "destination",
    "id": "trainid",
    "leave": "leaveat",
    "post": "postcode",
    "price": "pricerange",
    "ref": "reference",
}
_DETAILS = {
    "hotel": frozenset({"day", "people", "stay"}),
    "restaurant": frozenset({"day", "people", "time"}),
    "train": frozenset({"people"}),
}


@lru_cache(maxsize=65536)
def alternatives(text: str) -> tuple[str, ...]:
    """Normalise a raw value into all that counts as right, the canonical first; empty when absent.

    >>> alternatives(" Hotel|guesthouse"), alternatives("do n't care"), alternatives("not mentioned")
    (('hotel', 'guesthouse'), ('dontcare',), ())
    """
    values = (_normalise(part) for part in _SEPARATORS.split(text))
    return tuple(dict.fromkeys(value for value in values if value not in _ABSENT))


@lru_cache(maxsize=4096)
def normalise_name(name: str) -> str:
    """Return a domain or slot name as states spell it: `leaveAt` -> `leaveat`."""
    return name.strip().lower()


def read_state(metadata: Mapping[str, Any]) -> DialogueState:
    """Return the state that a system turn's metadata holds; `booked` is no part of it.

    Raises:
        DataError: The metadata is malformed.
    """
    triplets: dict[tuple[str, str], SlotValue] = {}
    for domain, slot, value in _cells(metadata):
        values = _values(value, f"{domain}-{slot}")
        if not values:
            continue
        if not domain or not slot.removeprefix("book "):
            raise DataError(f"{domain}-{slot} has an empty name, but the value {mask_value(values[0])}")
        triplet = SlotValue(domain, slot, values[0], values[1:])
        if triplets.setdefault((domain, slot), triplet).values != values:
            both = " and ".join(mask_text(", ".join(found)) for found in (triplets[domain, slot].values, values))
            raise DataError(f"{domain}-{slot} has two values: {both}")
    return frozenset(triplets.values())


def read_booked(metadata: Mapping[str, Any]) -> tuple[SlotValue, ...]:
    """Return every identifier in the `booked` lists, spelled as the system says it.

    Raises:
        DataError: The metadata is malformed.
    """
    return tuple(
        triplet
        for domain, sections in metadata.items()
        for triplet in booked_in(domain, (require(sections, dict, domain).get("book") or {}).get("booked"))
    )


def booked_in(domain: str, entries: Any) -> Iterator[SlotValue]:
    """Yield the identifiers of one domain's list of bookings.

    Raises:
        DataError: It is no list of objects that hold text.
    """
    what = f"{domain}, booked"
    for entry in require(entries or [], list, what):
        for slot, value in require(entry, dict, what).items():
            text = _as_text(value, f"{what}, {require(slot, str, what)}").strip()
            if text.casefold() not in _ABSENT:
                yield SlotValue(normalise_name(domain), normalise_name(slot), text)


def ontology_slots(ontology: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the slots of an ontology: `hotel-semi-area`, `hotel-book-day` (2.1), `hotel-price range`.

    Categorical slots have the published values, whatever the ontology says; others have the ontology's, which were
    collected from dialogues.
    """
    for key, values in ontology.items():
        domain, _, slot = normalise_name(require(key, str, "an ontology key")).partition("-")
        if not (domain and slot and isinstance(values, list)):
            continue
        name = slot.removeprefix("semi-").replace("book-", "book ", 1)
        name = name if name.startswith("book ") else name.replace(" ", "")
        if published := _CATEGORICAL_IN.get((domain, name)) or _CATEGORICAL.get(name):
            yield Slot(domain, name, categorical=True, possible_values=published)
            continue
        possible = {v for raw in values if isinstance(raw, str) for v in alternatives(raw) if v != DONTCARE}
        yield Slot(domain, name, possible_values=tuple(sorted(possible)), collected=True)


def read_acts(acts: Mapping[str, Any]) -> str:
    """Return `dialog_act` in linear form: `hotel-inform(name=acorn guest house) hotel-request(area=?)`.

    Raises:
        DataError: An act's slots are no list of [slot, value] pairs.
    """
    return " ".join(
        linear_act(normalise_name(require(name, str, "an act")), _pairs(pairs)) for name, pairs in acts.items()
    )


def span_claims(text: str, span_info: object) -> Iterator[Claim]:
    """Yield the spans `[act, slot, value, first token, last token]` of a turn, by characters of its text.

    Tokens are those between white space, and the last one belongs to the span. An entry of another form is
    yielded as a claim that cannot hold.

    >>> list(span_claims("to ely .", [["Train-Inform", "Dest", "Ely", 1, 1]]))
    [Claim(domain='train', slot='destination', values=('Ely',), start=3, end=6)]
    """
    for entry in span_info if isinstance(span_info, list) else [span_info]:
        fields = entry if isinstance(entry, list) and len(entry) == 5 else [None] * 5
        act, raw_slot, value, first, last = fields
        start, end = token_range(text, first, last) or (None, None)
        domain = normalise_name(act).partition("-")[0] if isinstance(act, str) else None
        slot = _state_name(domain, normalise_name(raw_slot)) if isinstance(raw_slot, str) else None
        yield Claim(domain, slot, (value,), start, end)


def linear_act(name: str, slots: Sequence[tuple[str, str]]) -> str:
    r"""Write one act of any corpus as `restaurant-inform(name=pizza hut)`, escaped as states are.

    A slot without a value stands alone, a value without a slot is left out.

    >>> linear_act("hotel-inform", [("name", "acorn (north)"), ("parking", ""), ("", "")])
    'hotel-inform(name=acorn \\(north\\), parking)'
    """
    written = [f"{_escape(slot)}={_escape(value)}" if value else _escape(slot) for slot, value in slots if slot]
    return f"{_escape(name)}({', '.join(written)})"


def _cells(metadata: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (domain, slot, raw value) of every slot; any part of the metadata may be missing."""
    for domain, sections in metadata.items():
        require(domain, str, "a domain")
        for kind, prefix in (("semi", ""), ("book", "book ")):
            section = require(sections, dict, domain).get(kind) or {}
            for slot, value in require(section, dict, f"{domain}, {kind}").items():
                # Most slots are blank: passing over them halves the time.
                if slot != "booked" and value != "":
                    require(slot, str, f"{domain}: a slot")
                    yield normalise_name(domain), prefix + normalise_name(slot), value


def _values(value: Any, what: str) -> tuple[str, ...]:
    """Return the alternatives of a raw value: text, a number, a list of these, or nothing."""
    if value is None:
        return ()
    if isinstance(value, str):
        return alternatives(require(value, str, what))
    given = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(v for raw in given for v in alternatives(_as_text(raw, what))))


def _state_name(domain: str | None, slot: str) -> str:
    """Return what states call a slot of an act: `dest` -> `destination`, a hotel's `day` -> `book day`."""
    return f"book {slot}" if slot in _DETAILS.get(domain or "", ()) else _STATE_NAMES.get(slot, slot)


def _as_text(value: Any, what: str) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_number else require(value, str, what)


def _pairs(pairs: Any) -> list[tuple[str, str]]:
    """Check the [slot, value] pairs of one act; `none` says that there is no slot or no value."""
    checked = []
    for pair in require(pairs, list, "an act's slots"):
        if len(require(pair, list, "a slot")) != 2:
            raise DataError("a slot is not a [slot, value] pair")
        slot = normalise_name(require(pair[0], str, "a slot's name"))
        value = _as_text(pair[1], "a slot's value").strip()
        checked.append(("" if slot in _ABSENT else slot, "" if value.lower() in _ABSENT else value))
    return checked


def _normalise(text: str) -> str:
    value = text.strip().casefold()
    # Spelled with and without blanks, apostrophes (straight, curly) and tokenisation: compare the letters.
    return DONTCARE if "care" in value and re.sub("[^a-z]", "", value) in _DONTCARE else value


def _escape(text: str) -> str:
    return re.sub(r"[\\(),=]", r"\\\g<0>", " ".join(text.split()))
