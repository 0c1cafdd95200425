"""Masked forms of values and states, so that records can be shown without showing anybody's data.

Guarantees: a mask depends on nothing but its value and slot, says how long the value is, and shows no
character of a value that is short (5 characters or fewer), holds a digit or an `@`, is one word in capitals
(phone numbers, references, times, postcodes, mail addresses), or belongs to an identifier slot. Other values
keep their first and last character: `p***t(9)`.

The keys of a mapping inside a record are masked as well, except the names in `PLAIN_COLUMNS`.

What voids it: a mask is not anonymisation. Length, first and last letter narrow a value down when the set of
values is known (`yes` and `no` differ by length), so masked records are for reading an audit, not for
publishing a corpus.

>>> mask_value("pizza hut"), mask_value("17:15"), mask_value("01223351880")
('p***t(9)', '***(5)', '***(11)')
"""

from __future__ import annotations

from typing import Any

from hushbot.prompts import read_state, render_state
from hushbot.types import DialogueState, SlotValue

IDENTIFIER_SLOTS = frozenset(
    ["reference", "phone", "postcode", "trainid", "id", "email", "mail", "account", "number", "time"]
)
"""Slots whose values never show a character, wherever the word stands in the slot's name (`book time`)."""
# A column that nobody thought of is masked. `document` and `query` are not here: their cells may be texts.
# fmt: off
PLAIN_COLUMNS = frozenset([
    "dialogue_id", "document_id", "query_id", "turn", "seed", "rank",
    "role", "side", "group", "arm", "split", "population", "member", "is_member",
    "domain", "domains", "slot", "slots", "line", "type", "kind", "identifier_type", "data_type",
    "attack", "decoder", "decoding", "ranking", "strategy", "method", "score_name",
    "outcome", "verdict", "status", "complexity", "granularity",
])
# fmt: on
"""Columns of a record that name things and identify nobody; every other text is masked."""

_VALUE_COLUMNS = frozenset(["value", "values"])
_SHOWN_FROM = 6


def mask_value(value: str, *, slot: str = "") -> str:
    """Return `p***t(9)`, or `***(5)` for values of which no character may show."""
    hidden = f"***({len(value)})"
    words = slot.casefold().replace("_", " ").replace("-", " ").split()
    if len(value) < _SHOWN_FROM or any(word in IDENTIFIER_SLOTS for word in words) or _is_code(value):
        return hidden
    return f"{value[0]}{hidden[:3]}{value[-1]}{hidden[3:]}"


def mask_state(state: DialogueState) -> str:
    """Write a state with every value masked; domains and slots stay readable."""
    return render_state(frozenset(SlotValue(t.domain, t.slot, mask_value(t.value, slot=t.slot)) for t in state))


def mask_text(text: str) -> str:
    """Mask a text: value by value where all of it is a state, word by word otherwise."""
    parsed = read_state(text)
    # The reader skips what stands after a state, so only a text that is nothing else is written anew.
    if parsed.state is not None and render_state(parsed.state) == text.strip():
        return mask_state(parsed.state)
    return " ".join(mask_value(word) for word in text.split())


def mask_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a record with every text masked that does not stand in one of `PLAIN_COLUMNS`."""
    return {key: cell if key in PLAIN_COLUMNS else _mask_cell(cell, key) for key, cell in row.items()}


def _mask_cell(cell: Any, column: str) -> Any:
    if isinstance(cell, str):
        return mask_value(cell) if column in _VALUE_COLUMNS else mask_text(cell)
    if isinstance(cell, bytes):
        return mask_value(cell.decode("utf-8", errors="replace"))
    if isinstance(cell, SlotValue):
        return mask_state(frozenset({cell}))
    if isinstance(cell, dict):
        return _mask_mapping(cell)
    if isinstance(cell, (set, frozenset)):
        return sorted((_mask_cell(inner, column) for inner in cell), key=str)
    if isinstance(cell, (list, tuple)):
        return [_mask_cell(inner, column) for inner in cell]
    return cell


def _mask_mapping(cells: dict[Any, Any]) -> dict[Any, Any]:
    """Mask keys like values, unless they are names of columns; keys of one mask are told apart by a number."""
    masked: dict[Any, Any] = {}
    for key, inner in cells.items():
        shown = key if key in PLAIN_COLUMNS or key in _VALUE_COLUMNS else _mask_cell(key, "value")
        name, n = shown, 1
        while name in masked:
            n += 1
            name = f"{shown}#{n}"
        masked[name] = _mask_cell(inner, str(key))
    return masked


def _is_code(value: str) -> bool:
    return any(c.isdigit() or c == "@" for c in value) or (" " not in value and value.isupper())
