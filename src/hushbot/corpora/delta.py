"""Corpora whose states are increments, with the system speaking first: HR-MultiWOZ.

Guarantees: a turn's state is everything said so far, a later value replaces an earlier one, an empty value
says nothing. The system's first utterance is the dialogue's opening; the speaker's name before a text
(`HR Assistant:`) is cut off.

Void if a corpus takes values back: an increment cannot say that a slot no longer holds.
Source: HR-MultiWOZ (arXiv:2402.01018); its dialogues are written by a language model, not by people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.exchanges import Utterance, pair_up
from hushbot.corpora.files import OnError, Problems, find, read_json, require
from hushbot.corpora.frames import dialogue_id
from hushbot.corpora.schema_guided import shown_id
from hushbot.errors import DataError
from hushbot.schema import Schema
from hushbot.types import Dialogue, SlotValue, Turn

_ROLE = re.compile(r"^\s*(?:HR Assistant|Assistant|Agent|System|Employee|Customer|User)\s*:\s*")
_IS_USER = {0: False, 1: True}


def load_delta(path: str | Path, *, name: str = "hr_multiwoz", on_error: OnError = "raise") -> Corpus:
    """Load a file of parallel-array dialogues, or a folder that holds such files.

    Args:
        path: A .json, .json.gz or .zip file, or a folder of .json or .json.gz files.
        name: What reports call this data.
        on_error: `raise` one error that lists every malformed dialogue, or `skip` them with a note.

    Raises:
        DataError: Nothing is there, a file cannot be read, or dialogues are malformed.
    """
    problems = Problems(on_error)
    dialogues: dict[str, Dialogue] = {}
    for file in find(Path(path), ("*.json", "*.json.gz")):
        for position, raw in enumerate(require(read_json(file), list, f"{file}: the content")):
            try:
                dialogue = read_delta_dialogue(raw)
                if dialogue.id in dialogues:
                    raise DataError("this id occurs twice; give each dialogue its own")
                dialogues[dialogue.id] = dialogue
            except DataError as error:
                problems.add(file, shown_id(raw, position), str(error))
    notes = problems.finish()
    if not dialogues:
        raise DataError("\n".join([f"{path}: holds no usable dialogue; correct data.path", *notes]))
    found = tuple(dialogues.values())
    return Corpus(found, Schema.from_dialogues(found), name, notes=notes)


def read_delta_dialogue(raw: object) -> Dialogue:
    """Read one dialogue: `{dialogue_id, service: [name], speaker: [0, 1], utterance: [...], state: [{}]}`.

    Raises:
        DataError: It is malformed; the message says how.
    """
    record = require(raw, dict, "the dialogue")
    services = [require(s, str, "a service") for s in require(record.get("service"), list, "service")]
    if len(services) != 1 or not services[0]:
        raise DataError(f"service is {services}; exactly one is understood")
    opening, exchanges = pair_up(_utterances(record))
    known: dict[str, SlotValue] = {}
    turns = []
    for user, system in exchanges:
        for delta in user.annotations:
            known.update(_triplets(services[0], delta))
        turns.append(Turn(user.text, frozenset(known.values()), response=system.text if system else None))
    return Dialogue(dialogue_id(record), tuple(turns), (services[0],), opening=opening)


def _utterances(record: Mapping[str, Any]) -> Iterator[Utterance]:
    """Yield the utterances, each of the user's with its increment."""
    speakers = require(record.get("speaker"), list, "speaker")
    texts = require(record.get("utterance"), list, "utterance")
    deltas = require(record.get("state"), list, "state")
    roles = [_IS_USER.get(speaker) if isinstance(speaker, int) else None for speaker in speakers]
    if None in roles:
        raise DataError("speaker must list 0 (system) and 1 (user) only")
    if not len(texts) == len(roles) or not len(deltas) == sum(map(bool, roles)):
        raise DataError(
            f"{len(roles)} speakers, {len(texts)} utterances and {len(deltas)} states do not fit; "
            "there must be one utterance per speaker and one state per user utterance"
        )
    remaining = iter(deltas)
    for position, (is_user, text) in enumerate(zip(roles, texts, strict=True)):
        said = _ROLE.sub("", require(text, str, f"utterance {position}"), count=1)
        delta = (require(next(remaining), dict, f"the state of utterance {position}"),) if is_user else ()
        yield Utterance(bool(is_user), said, delta)


def _triplets(domain: str, delta: Mapping[str, Any]) -> dict[str, SlotValue]:
    found = {}
    for slot, value in delta.items():
        if not require(slot, str, "a slot's name"):
            raise DataError("a slot has no name")
        if require(value, str, f"the value of {slot}").strip():
            found[slot] = SlotValue(domain, slot, value)
    return found
