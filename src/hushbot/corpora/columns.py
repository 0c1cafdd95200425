"""Nested columns back to rows: how `datasets` stores dialogues, undone.

A list of records is stored as a dict of lists, a dict with free keys as two lists (`slots_values_name` and
`slots_values_list`), an optional field as an empty one, a name from a closed list as its index.

Guarantees: a dialogue in columns becomes the row form that `frames.read_dialogue` reads, without loss of what
is read there; a dialogue that is in row form already stays as it is. Lists of unequal length are a
`DataError`: no record is cut off or shifted. Acts whose slot and value are reversed, as in old revisions of
`multi_woz_v22`, are recognised by the slot names and put in order; so are spans whose start and end are swapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hushbot.corpora.files import require
from hushbot.corpora.frames import local_name
from hushbot.errors import DataError

_SPEAKERS = ("USER", "SYSTEM")
# The class names of schema_guided_dstc8, in the order of their indices.
_SGD_ACTS = (
    *("AFFIRM", "AFFIRM_INTENT", "CONFIRM", "GOODBYE", "INFORM", "INFORM_COUNT", "INFORM_INTENT", "NEGATE"),
    *("NEGATE_INTENT", "NOTIFY_FAILURE", "NOTIFY_SUCCESS", "OFFER", "OFFER_INTENT", "REQUEST"),
    *("REQUEST_ALTS", "REQ_MORE", "SELECT", "THANK_YOU"),
)
# Slots of MultiWOZ's acts that need not occur in any state.
_ACT_SLOTS = (
    *("address", "choice", "entrancefee", "name", "none", "openhours"),
    *("phone", "postcode", "price", "ref", "trainid"),
)


def row_form(raw: object) -> dict[str, Any]:
    """Return a dialogue with its turns, frames, states and acts as lists of records and plain dicts.

    Raises:
        DataError: Its columns do not fit together.
    """
    row = require(raw, dict, "the row")
    turns = [_turn(turn, f"turn {i}") for i, turn in enumerate(records(row.get("turns"), "turns"))]
    return {**row, "turns": turns}


def records(value: object, where: str) -> list[dict[str, Any]]:
    """Return a list of records, given as such or as a dict of equally long lists.

    Raises:
        DataError: It is neither.
    """
    if not isinstance(value, dict):
        return [require(record, dict, where) for record in require(value, list, where)]
    columns = {key: require(column, list, f"{where}: {key}") for key, column in value.items()}
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: columns of unequal length {lengths}")
    n_records = next(iter(lengths.values()), 0)
    return [{key: column[i] for key, column in columns.items()} for i in range(n_records)]


def straighten_acts(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Swap slot and value in all acts of rows in row form if most are reversed; return whether they were.

    One vote is taken over all rows, since a single value may by chance be a slot's name (`name`, `type`).
    """
    turns = [turn for row in rows for turn in row["turns"]]
    known = set(_ACT_SLOTS).union(*(_state_slots(turn) for turn in turns))
    acts = [turn["dialog_act"] for turn in turns if turn.get("dialog_act")]
    pairs = [pair for act in acts for listed in act.values() for pair in listed]
    reversed_votes = sum((value in known) - (slot in known) for slot, value in pairs)
    if reversed_votes <= 0:
        return False
    for pair in pairs:
        pair.reverse()
    return True


def straighten_spans(rows: Iterable[Mapping[str, Any]]) -> bool:
    """Swap start and end of every span in rows in row form that ends before it starts; return whether any did.

    Old revisions of `multi_woz_v22` have all of them so; whether the text there is the value is checked later.
    """
    frames = [frame for row in rows for turn in row["turns"] for frame in turn["frames"]]
    spans = [span for frame in frames for span in frame["slots"]]
    swapped = [span for span in spans if _ends_before_it_starts(span)]
    for span in swapped:
        span["start"], span["exclusive_end"] = span["exclusive_end"], span["start"]
    return bool(swapped)


def _ends_before_it_starts(span: Mapping[str, Any]) -> bool:
    start, end = span.get("start"), span.get("exclusive_end")
    return isinstance(start, int) and isinstance(end, int) and end < start


def _turn(turn: Mapping[str, Any], where: str) -> dict[str, Any]:
    row = {**turn, "frames": [_frame(frame, where) for frame in records(turn.get("frames") or [], where)]}
    speaker = turn.get("speaker")
    if isinstance(speaker, int):
        row["speaker"] = _class_name(speaker, _SPEAKERS, f"{where}: speaker")
    wrapped = require(turn.get("dialogue_acts") or {}, dict, f"{where}: dialogue_acts")
    row["dialog_act"] = _acts(wrapped.get("dialog_act") or turn.get("dialog_act") or {}, where)
    return row


def _frame(frame: Mapping[str, Any], where: str) -> dict[str, Any]:
    spans = [_span(span) for span in records(frame.get("slots") or [], f"{where}: slots")]
    row = {"service": frame.get("service"), "slots": spans}
    state = require(frame.get("state") or {}, dict, f"{where}: state")
    # A frame without a state is stored with an empty intent; a state without an intent says "NONE".
    if state and state.get("active_intent") != "":
        row["state"] = {
            "active_intent": state.get("active_intent"),
            "slot_values": _slot_values(state, where),
        }
    if frame.get("actions"):
        row["actions"] = [_action(action, where) for action in records(frame["actions"], f"{where}: actions")]
    results = frame.get("service_results") or []
    if isinstance(results, dict):
        results = results.get("service_results_list") or []
    keys = ("service_slot_name", "service_canonical_value")
    row["service_results"] = [_free(result, keys, where) for result in require(results, list, where)]
    call = require(frame.get("service_call") or {}, dict, f"{where}: service_call")
    if call.get("method"):
        row["service_call"] = call
    return row


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return a span as a new dict; a value copied from elsewhere has no offsets, stored as -1."""
    if span.get("copy_from") or span.get("start") == span.get("exclusive_end") == -1:
        return {"slot": span.get("slot")}
    return {key: span.get(key) for key in ("slot", "value", "start", "exclusive_end")}


def _slot_values(state: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "slots_values" in state:
        return _free(state["slots_values"], ("slots_values_name", "slots_values_list"), where)
    return _free(state.get("slot_values"), ("slot_name", "slot_value_list"), where)


def _free(value: object, keys: tuple[str, str], where: str) -> dict[str, Any]:
    """Return a dict with free keys, given as such or as its names and values."""
    name, content = keys
    if isinstance(value, dict) and name not in value:
        return value
    pairs = records(value, f"{where}: {name}")
    return {require(pair.get(name), str, f"{where}: {name}"): pair.get(content) for pair in pairs}


def _action(action: Mapping[str, Any], where: str) -> dict[str, Any]:
    act = action.get("act")
    return {**action, "act": _class_name(act, _SGD_ACTS, f"{where}: act") if isinstance(act, int) else act}


def _acts(value: object, where: str) -> dict[str, list[list[str]]]:
    """Return MultiWOZ's acts as act -> [slot, value] pairs, as new lists."""
    acts: dict[str, list[list[str]]] = {}
    if isinstance(value, dict) and "act_type" not in value:
        for act, pairs in value.items():
            acts[act] = [_pair(pair, where) for pair in require(pairs, list, f"{where}: the act {act}")]
        return acts
    for record in records(value, f"{where}: dialog_act"):
        act = require(record.get("act_type"), str, f"{where}: act_type")
        pairs = [[pair.get("slot_name"), pair.get("slot_value")] for pair in records(record.get("act_slots"), where)]
        acts.setdefault(act, []).extend(_pair(pair, where) for pair in pairs)
    return acts


def _pair(raw: object, where: str) -> list[str]:
    pair = [require(text, str, f"{where}: a slot or value of an act") for text in require(raw, list, where)]
    if len(pair) != 2:
        raise DataError(f"{where}: an act holds {len(pair)} texts, not a [slot, value] pair")
    return pair


def _state_slots(turn: Mapping[str, Any]) -> set[str]:
    return {
        local_name(str(frame["service"]), str(slot))[1]
        for frame in turn["frames"]
        for slot in frame.get("state", {}).get("slot_values", ())
    }


def _class_name(index: int, names: Sequence[str], where: str) -> str:
    if not 0 <= index < len(names):
        raise DataError(f"{where} is class {index}, outside [0, {len(names)})")
    return names[index]
