"""One schema-guided dialogue, as JSON gives it, to a `Dialogue`: states, actions and service results.

Guarantees:

* A state is what holds after the user's turn. SGD repeats the active services only: a frame replaces its
  service, other services are carried over. MultiWOZ 2.2 repeats all: a state is the union of a turn's frames,
  whatever their intent. Which rule applies is read off each dialogue: 2.2 names its slots `domain-slot` (the
  domain is cut off, small letters).
* Values stand as the corpus writes them: `|` is never split, `None` is a value, the first of a list is the
  value and the others are its alternatives. An empty text is no value.
* A user turn without any state frame has an unknown state (None), not an empty one.
* Spans of values are checked (see `spans`). SGD gives them no value of their own: what stands there must be a
  value of that slot in the same frame's actions or state. MultiWOZ 2.2's `copy_from` has no offsets: not read.
* Whatever is malformed is a `DataError` that says where; no other exception leaves this module. Spans are
  optional, so a fault in one is a note only.

Not read: the user's own acts, intents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hushbot.corpora.exchanges import Utterance, pair_up
from hushbot.corpora.files import Notes, require
from hushbot.corpora.multiwoz_metadata import linear_act, read_acts
from hushbot.corpora.spans import Claim, check_spans
from hushbot.errors import DataError
from hushbot.masking import mask_value
from hushbot.prompts import one_line
from hushbot.types import Dialogue, DialogueState, SlotValue, Turn

Frame = Mapping[str, Any]
_IS_USER = {"user": True, "system": False}
_NO_INTENT = (None, "", "NONE")


def read_dialogue(raw: object, *, prefix: str = "", acts: Mapping[str, Any], notes: Notes | None = None) -> Dialogue:
    """Read one dialogue in row form.

    Args:
        raw: `{dialogue_id, services, turns: [{speaker, utterance, frames}]}`.
        prefix: Goes before the id, such as `train/`.
        acts: MultiWOZ 2.2's dialogue acts by dialogue id, possibly empty.
        notes: Where dropped spans are noted.

    Raises:
        DataError: It is malformed; the message says how.
    """
    record = require(raw, dict, "the dialogue")
    name = dialogue_id(record)
    turn_acts = require(acts.get(name) or acts.get(f"{name}.json") or {}, dict, "its dialogue acts")
    raw_turns = require(record.get("turns"), list, "turns")
    notes = Notes() if notes is None else notes
    said = [_utterance(turn, i, turn_acts) for i, turn in enumerate(raw_turns)]
    said = [_with_spans(utterance, f"{prefix}{name} turn {i}", notes) for i, utterance in enumerate(said)]
    opening, exchanges = pair_up(said)
    services = {require(s, str, "a service") for s in require(record.get("services") or [], list, "services")}
    services |= {frame["service"] for user, _ in exchanges for frame in user.annotations if _is_active(frame)}
    is_prefixed = any(_has_prefixed_slots(frame) for user, _ in exchanges for frame in user.annotations)
    turns = []
    known: dict[str, dict[str, SlotValue]] = {}
    for user, system in exchanges:
        known, state = _update(known, user.annotations, is_prefixed=is_prefixed)
        answers, spans = (system.annotations, system.spans) if system else ((), ())
        response = system.text if system else None
        described = describe_results(answers), linear_actions(answers)
        turns.append(Turn(user.text, state, *described, response, user_spans=user.spans, response_spans=spans))
    domains = {service.lower() if is_prefixed else service for service in services}
    return Dialogue(prefix + name, tuple(turns), tuple(sorted(domains)), opening=opening)


def dialogue_id(record: Mapping[str, Any]) -> str:
    """Return the id of a raw dialogue as text, without `.json`.

    Raises:
        DataError: It has none.
    """
    raw = record.get("dialogue_id")
    if isinstance(raw, int) and not isinstance(raw, bool):
        return str(raw)
    name = require(raw, str, "dialogue_id").strip().removesuffix(".json")
    if not name:
        raise DataError("dialogue_id is empty")
    return name


def local_name(service: str, slot: str) -> tuple[str, str]:
    """Cut `hotel-` off MultiWOZ 2.2's `hotel-area`; other names stand as they are."""
    start = f"{service.lower()}-"
    if slot.lower().startswith(start):
        return service.lower(), slot.lower().removeprefix(start)
    return service, slot


def linear_actions(frames: Iterable[Frame]) -> str:
    """Write actions as `Hotels_1-OFFER(hotel_name=Elm Inn, stars=3) Hotels_1-REQUEST(city=?)`.

    MultiWOZ 2.2's acts are written as those of the other MultiWOZ versions are.
    """
    acts: dict[str, list[tuple[str, str]]] = {}
    written = []
    for frame in frames:
        for name, slot, value in _actions(frame):
            acts.setdefault(name, []).append((slot, value or "?"))
        if frame.get("dialog_act"):
            written.append(read_acts(require(frame["dialog_act"], dict, "dialog_act")))
    return " ".join([*(linear_act(name, slots) for name, slots in acts.items()), *written])


def describe_results(frames: Iterable[Frame]) -> str:
    """Write what the service calls of a turn found, as `Hotels_1 3 found, Elm Inn`; empty without a call."""
    lines = []
    for frame in frames:
        results = require(frame.get("service_results") or [], list, "service_results")
        call = require(frame.get("service_call") or {}, dict, "service_call")
        if results or call:
            first = require(results[0], dict, "a service result") if results else {}
            name = f", {_name_of(first, frame)}" if first else ""
            lines.append(f"{frame['service']} {len(results)} found{name}")
    return one_line("; ".join(lines))


def _utterance(raw: object, position: int, acts: Mapping[str, Any]) -> Utterance:
    where = f"turn {position}"
    turn = require(raw, dict, where)
    speaker = require(turn.get("speaker"), str, f"{where}: speaker").lower()
    if speaker not in _IS_USER:
        raise DataError(f"{where}: speaker {mask_value(speaker)} is neither USER nor SYSTEM")
    frames = []
    for raw_frame in require(turn.get("frames") or [], list, f"{where}: frames"):
        frame = require(raw_frame, dict, f"{where}: a frame")
        if not require(frame.get("service"), str, f"{where}: a frame's service"):
            raise DataError(f"{where}: a frame's service is empty")
        frames.append(frame)
    turn_acts = turn.get("dialog_act") or _acts_of_turn(acts, str(turn.get("turn_id", position)), where)
    if turn_acts:
        frames.append({"service": "", "dialog_act": turn_acts})
    text = require(turn.get("utterance"), str, f"{where}: utterance")
    return Utterance(_IS_USER[speaker], text, tuple(frames))


def _with_spans(utterance: Utterance, place: str, notes: Notes) -> Utterance:
    claims = [claim for frame in utterance.annotations for claim in _claims(frame)]
    return utterance._replace(spans=check_spans(utterance.text, claims, place, notes)) if claims else utterance


def _claims(frame: Frame) -> Iterator[Claim]:
    """Yield the spans of a frame that have offsets; one that is no object holds nowhere."""
    listed = frame.get("slots") or []
    for entry in listed if isinstance(listed, list) else [listed]:
        raw = entry if isinstance(entry, dict) else {"start": entry}
        slot, start, end = (raw.get(key) for key in ("slot", "start", "exclusive_end"))
        if start is None and end is None:
            continue
        values = (raw["value"],) if raw.get("value") is not None else _values_of(frame, slot)
        domain, name = local_name(frame["service"], slot) if isinstance(slot, str) else ("", "")
        yield Claim(domain, name, values, start, end)


def _values_of(frame: Frame, slot: object) -> tuple[object, ...]:
    """Return what the actions and the state of a frame give as a slot's values."""
    actions = require(frame.get("actions") or [], list, "actions")
    given = [action.get("values") for action in actions if isinstance(action, dict) and action.get("slot") == slot]
    given += [values for name, values in _slot_values(frame).items() if name == slot]
    return tuple(value for values in given if isinstance(values, list) for value in values)


def _acts_of_turn(acts: Mapping[str, Any], turn_id: str, where: str) -> object:
    """Return the acts that the acts file has for a turn; it lacks some turns and dialogues."""
    entry = require(acts.get(turn_id) or {}, dict, f"{where}: its dialogue acts")
    return entry.get("dialog_act") or entry.get("dialogue_act")


def _state_of(frame: Frame) -> Mapping[str, Any] | None:
    state = frame.get("state")
    return None if state is None else require(state, dict, f"the state of {frame['service']}")


def _slot_values(frame: Frame) -> Mapping[str, Any]:
    values = (_state_of(frame) or {}).get("slot_values")
    return require({} if values is None else values, dict, f"slot_values of {frame['service']}")


def _is_active(frame: Frame) -> bool:
    """Say whether the user is doing something with the frame's service."""
    return bool(_slot_values(frame)) or (_state_of(frame) or {}).get("active_intent") not in _NO_INTENT


def _has_prefixed_slots(frame: Frame) -> bool:
    start = f"{frame['service'].lower()}-"
    return any(slot.lower().startswith(start) for slot in _slot_values(frame))


def _update(
    known: dict[str, dict[str, SlotValue]], frames: Sequence[Frame], *, is_prefixed: bool
) -> tuple[dict[str, dict[str, SlotValue]], DialogueState | None]:
    """Return what is known per service after a user turn, and the state; None when no frame has one."""
    states = [frame for frame in frames if _state_of(frame) is not None]
    if not states:
        return known, None
    known = {} if is_prefixed else dict(known)
    for frame in states:
        values = {triplet.slot: triplet for triplet in _triplets(frame)}
        # Two frames of one service in a turn: MultiWOZ 2.2 means their union, SGD the later one.
        earlier = known.get(frame["service"], {}) if is_prefixed else {}
        known[frame["service"]] = {**earlier, **values}
    return known, frozenset(triplet for values in known.values() for triplet in values.values())


def _triplets(frame: Frame) -> Iterator[SlotValue]:
    for slot, listed in _slot_values(frame).items():
        where = f"the value of {frame['service']} {slot}"
        values = [require(value, str, where) for value in require(listed, list, where)]
        values = [value for value in values if value.strip()]
        domain, name = local_name(frame["service"], require(slot, str, "a slot's name"))
        if not name:
            raise DataError(f"{where} belongs to a slot without a name")
        if values:
            yield SlotValue(domain, name, values[0], tuple(values[1:]))


def _actions(frame: Frame) -> Iterator[tuple[str, str, str]]:
    """Yield SGD's (act, slot, value): the slot is empty where the act has none, the value where it asks."""
    for raw in require(frame.get("actions") or [], list, "actions"):
        action = require(raw, dict, "an action")
        listed = require(action.get("values") or [], list, "an action's values")
        value = "|".join(require(value, str, "an action's value") for value in listed)
        act = require(action.get("act"), str, "an action's act")
        yield f"{frame['service']}-{act}", require(action.get("slot") or "", str, "an action's slot"), value


def _name_of(result: Mapping[str, Any], frame: Frame) -> str:
    """Return what tells a result apart: its name or title, else what the system offers of it."""
    named = [slot for slot in result if slot.endswith(("name", "title")) and "airport" not in slot]
    offered = [slot for _, slot, _ in _actions(frame) if slot in result]
    slot = next(iter([*named, *offered, *result]))
    return require(result[slot], str, f"the result's {slot}")
