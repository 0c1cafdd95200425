"""What a guard kept a bot from writing: its answer to one prompt beside that of the same bot without the guard.

Guarantees: unless `reveal` is set nothing leaves unmasked, but names of domains and slots that the schema knows. Of a
state or of acts the values that are gone are told, of other words the ones that are gone, run by run.

Voids it: a guard that changes the prompt, such as an instruction, holds nothing back by itself; what is told then is
what the bot would have said without it. After an early difference the rest of a text may differ for that reason alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hushbot.masking import mask_value
from hushbot.prompts import ACTIONS_MARKER, RESPONSE_MARKER, STATE_MARKER
from hushbot.schema import Schema
from hushbot.targets.state_values import Written, written_values

Part = Literal["state", "actions", "response"]
MARKERS: dict[Part, str] = {"state": STATE_MARKER, "actions": ACTIONS_MARKER, "response": RESPONSE_MARKER}
"""The marker that asks for each part of an answer, in the order in which they are asked for."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """What is missing from one part of an answer."""

    part: Part
    pieces: tuple[str, ...]
    """Ready to be shown; empty where the guard changed the part and took nothing away."""


def withheld(part: Part, said: str, unguarded: str, schema: Schema, *, reveal: bool) -> Withheld | None:
    """Compare what a guarded bot said with what it says without its guard; None where that is the same."""
    if said.split() == unguarded.split():
        return None
    gone: list[str] = []
    if part != "response":
        left = {_key(value) for value in values_in(part, said)}
        names = {name.casefold(): name for slot in schema.slots for name in (slot.domain, slot.name)}
        gone = [_shown(value, names, reveal=reveal) for value in values_in(part, unguarded) if _key(value) not in left]
    if not gone:
        gone = [" ".join(word if reveal else mask_value(word) for word in run) for run in missing_runs(said, unguarded)]
    return Withheld(part, tuple(dict.fromkeys(gone)))


def values_in(part: Part, text: str) -> list[Written]:
    """Return the values that a state or acts hold, in order."""
    return [written for written in written_values(f"{MARKERS[part]} {text}") if written.slot and written.value]


def missing_runs(said: str, unguarded: str) -> list[list[str]]:
    """Return the runs of words of one text that another one lacks or has replaced.

    >>> missing_runs("call [phone] now", "call 01223 351880 now")
    [['01223', '351880']]
    """
    ours, theirs = said.split(), unguarded.split()
    changes = difflib.SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    return [theirs[start:end] for change, start, end, *_ in changes if change != "equal" and end > start]


def _key(value: Written) -> tuple[str, str, str]:
    return value.domain.casefold(), value.slot, value.value


def _shown(value: Written, names: Mapping[str, str], *, reveal: bool) -> str:
    # An act names its domain first: `restaurant-inform`.
    domain = value.domain if value.domain.casefold() in names else value.domain.partition("-")[0]
    place = " ".join(
        names.get(name.casefold(), name if reveal else mask_value(name)) for name in (domain, value.slot) if name
    )
    return f"{place}={value.value if reveal else mask_value(value.value, slot=value.slot)}"
