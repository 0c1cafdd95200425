"""MultiWOZ 2.0, 2.1 and 2.4 in their original format: a `log` of alternating utterances with `metadata`.

Guarantees:

* The state of user turn k is what the metadata of the following system turn holds: `semi` and `book` slots
  without `booked`, names in lower case (`book people`, `leaveat`). Nothing is carried over: turns repeat it.
* A system turn without metadata gives an unknown state (None), never an empty one, and a note.
* Booked references, phones and train ids are in `Turn.booked`, never in a state. A second booking may replace
  the first in the data, so all that a dialogue issued is the union over its turns.
* Spans of values are the `span_info` of 2.1 and 2.4, checked (see `spans`); 2.0 has none.
* Ids carry no `.json`; list files are plain lines whatever their name says.
* Malformed dialogues are reported together, or skipped with a note.

Void if turns do not alternate in a way that metadata would show: the format names no speakers.
Source: Budzianowski et al., EMNLP 2018; Eric et al., LREC 2020 (2.1); Ye et al., SIGDIAL 2022 (2.4).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.files import Location, Notes, OnError, Problems, locate, read_json, read_text, require
from hushbot.corpora.multiwoz_database import MultiwozDatabase
from hushbot.corpora.multiwoz_metadata import (
    normalise_name,
    ontology_slots,
    read_acts,
    read_booked,
    read_state,
    span_claims,
)
from hushbot.corpora.spans import check_spans
from hushbot.errors import ConfigError, DataError
from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, DialogueState, SlotValue, Span, Turn

VERSIONS = ("2.0", "2.1", "2.4")
PARTS = ("train", "val", "test")

_DATA_FILE = re.compile(r"(data|train|val|test)\.json(?:\.gz|\.zip)?")
_LIST_FILE = re.compile(r"(val|test)listfile(?:\.json|\.txt)?", flags=re.IGNORECASE)
_ONTOLOGY_FILE = re.compile(r"ontology.*\.json")
_ACTS_FILE = re.compile(r"(?:dialogue|system)_acts\.json")
_NOT_DOMAINS = ("message", "topic")


def load_multiwoz(
    path: str | Path,
    *,
    version: str = "2.1",
    parts: Sequence[str] | None = None,
    on_error: OnError = "raise",
) -> Corpus:
    """Read a folder, archive or single file of MultiWOZ.

    Args:
        path: A folder or zip archive with `data.json` and its list files, or with `train.json`, `val.json`,
            `test.json`, each also as .json.gz or .json.zip; or one such file.
        version: 2.0, 2.1 or 2.4; used for the corpus' name, the format is the same.
        parts: Which of train, val and test to keep; default: everything there is.
        on_error: `raise` one error that lists every malformed dialogue, or `skip` them with a note.

    Raises:
        ConfigError: An option is outside its choices.
        DataError: A file cannot be read, the files hold no dialogue, or dialogues are malformed and `on_error` is
            `raise`.
    """
    _check(version, parts)
    root = Path(path)
    files = locate(root)
    problems, notes = Problems(on_error), Notes()
    reader = MultiwozReader(_separate_acts(files), notes)
    dialogues: dict[str, Dialogue] = {}
    n_read = 0
    for source in _sources(root, files, parts, notes):
        n_read += len(source.raw)
        for raw_id, raw in source.raw.items():
            dialogue_id = _plain_id(raw_id)
            if source.wanted is not None and dialogue_id not in source.wanted:
                continue
            try:
                if dialogue_id in dialogues:
                    raise DataError("the id occurs twice")
                dialogues[dialogue_id] = reader.dialogue(dialogue_id, raw)
            except DataError as error:
                problems.add(source.path, dialogue_id, str(error))
    skipped = problems.finish()
    if not n_read:
        raise DataError(f"{root}: holds no dialogue; correct data.path")
    if not dialogues and skipped:
        raise DataError("\n".join([f"{root}: holds no usable dialogue; correct data.path", *skipped]))
    database = _database(root, files, notes)
    kept = tuple(_with_lookups(dialogue, database) for dialogue in dialogues.values())
    return Corpus(
        dialogues=kept,
        schema=Schema.of([*_ontology(files), *Schema.from_dialogues(kept).slots]),
        name=" ".join(["multiwoz", version, *(parts or ())]),
        database=database,
        notes=(*notes.finish(), *skipped),
    )


class _Source(NamedTuple):
    """One file of dialogues."""

    path: Path
    raw: Mapping[str, Any]
    wanted: frozenset[str] | None
    """Ids to keep; None keeps all."""


@dataclass(frozen=True, slots=True)
class MultiwozReader:
    """Reads single dialogues; what it repairs goes into notes."""

    acts: Mapping[str, Any]
    """The separate acts file of 2.0, by dialogue id; empty where acts stand in the turns."""
    notes: Notes

    def dialogue(self, dialogue_id: str, raw: Any) -> Dialogue:
        """Read one dialogue.

        Raises:
            DataError: It is malformed; the message says where.
        """
        if not require(dialogue_id, str, "the id"):
            raise DataError("the id is empty")
        fields = require(raw, dict, "the dialogue")
        if "log" not in fields:
            raise DataError("it has no log")
        log = [require(entry, dict, f"turn {i}") for i, entry in enumerate(require(fields["log"], list, "log"))]
        goal = fields.get("goal")
        if goal is not None:
            require(goal, dict, "goal")
        if not log:
            self.notes.add("dialogue without turns", dialogue_id)
        # The format names no speakers, but only the system's utterances carry metadata.
        first_user = 1 if log and log[0].get("metadata") else 0
        opening = _text(log, 0) if first_user else ""
        turns = tuple(self._turns(dialogue_id, log, first_user))
        return Dialogue(dialogue_id, turns, domains=_domains(goal, turns), goal=goal, opening=opening)

    def _turns(self, dialogue_id: str, log: list[Any], first_user: int) -> Iterator[Turn]:
        booked: tuple[SlotValue, ...] = ()
        for i in range(first_user, len(log), 2):
            if log[i].get("metadata"):
                raise DataError(f"turn {i} has metadata, but the user is due: user and system must alternate")
            self._usable_acts(dialogue_id, log, i)
            said = self._spans(dialogue_id, log, i)
            if i + 1 == len(log):
                self.notes.add("dialogue ends with the user, its last state is unknown (None)", dialogue_id)
                yield Turn(_text(log, i), None, response=None, booked=booked, user_spans=said)
                return
            state = None
            if metadata := log[i + 1].get("metadata"):
                state, booked = _metadata(metadata, i + 1)
            else:
                place = f"{dialogue_id} turn {i + 1}"
                self.notes.add("system turn without metadata, state unknown (None)", place)
            actions = self._actions(dialogue_id, log, i + 1)
            turn = Turn(_text(log, i), state, actions=actions, response=_text(log, i + 1), booked=booked)
            yield replace(turn, user_spans=said, response_spans=self._spans(dialogue_id, log, i + 1))

    def _spans(self, dialogue_id: str, log: list[Any], i: int) -> tuple[Span, ...]:
        if not (span_info := log[i].get("span_info")):
            return ()
        text = _text(log, i)
        return check_spans(text, span_claims(text, span_info), f"{dialogue_id} turn {i}", self.notes)

    def _actions(self, dialogue_id: str, log: list[Any], i: int) -> str:
        """Return the acts of a system utterance; acts are optional, so a fault is a note only."""
        try:
            return read_acts(self._usable_acts(dialogue_id, log, i))
        except DataError:  # its text may quote a value, which no note must hold
            self.notes.add("dialog_act ignored, it is malformed", f"{dialogue_id} turn {i}")
            return ""

    def _usable_acts(self, dialogue_id: str, log: list[Any], i: int) -> Mapping[str, Any]:
        """Return the acts of an utterance, none where they are missing or no object."""
        place = f"{dialogue_id} turn {i}"
        if "dialog_act" not in log[i]:
            by_turn = self.acts.get(dialogue_id)
            if isinstance(by_turn, dict):
                # The separate file numbers the system's turns from 1 and has none of the user's.
                acts = by_turn.get(str((i + 1) // 2), {}) if i % 2 else {}
            else:
                self.notes.add("turn without dialog_act", place)
                return {}
        else:
            acts = log[i]["dialog_act"]
        if not isinstance(acts, dict):
            self.notes.add(f"dialog_act is {type(acts).__name__}, not an object: no acts", place)
            return {}
        return acts


def _check(version: str, parts: Sequence[str] | None) -> None:
    problems = []
    if version not in VERSIONS:
        problems.append(f"version={version!r} is not one of {VERSIONS}; set data.version (2.2: data=multiwoz22)")
    unknown = [part for part in parts or () if part not in PARTS]
    if unknown or isinstance(parts, str):
        problems.append(f"parts={parts!r} is not a list of {PARTS}; set data.parts")
    if problems:
        raise ConfigError(*problems)


def _sources(root: Path, files: Mapping[str, Location], parts: Sequence[str] | None, notes: Notes) -> Iterator[_Source]:
    """Read each file that holds dialogues of the parts asked for."""
    # In reverse, so that of val.json and val.json.zip the plain file is taken.
    named = {match[1]: files[name] for name in sorted(files, reverse=True) if (match := _DATA_FILE.fullmatch(name))}
    if not named and root.is_file() and len(single := _json_files(files)) == 1:
        named = {"data": files[single[0]]}
    lists = {match[1].lower(): files[name] for name in sorted(files) if (match := _LIST_FILE.fullmatch(name))}
    if "data" in named:
        raw = _raw_dialogues(named["data"])
        yield _Source(named["data"].path, raw, _wanted(named["data"], raw, lists, parts, notes))
        return
    present = [part for part in PARTS if part in named and (parts is None or part in parts)]
    missing = [part for part in parts or () if part not in named]
    if missing or not present:
        expected = " and ".join(f"{part}.json" for part in missing) or "data.json, or train, val or test.json"
        raise DataError(f"{root}: no {expected} there (.json, .json.gz, .json.zip); set data.path or data.parts")
    for part in present:
        raw = _raw_dialogues(named[part])
        if part in lists:
            _listed(lists[part], part, raw, notes)
        yield _Source(named[part].path, raw, None)


def _wanted(
    data: Location,
    raw: Mapping[str, Any],
    lists: Mapping[str, Location],
    parts: Sequence[str] | None,
    notes: Notes,
) -> frozenset[str] | None:
    """Return the ids of the parts asked for, from the list files: train is all the rest."""
    by_part = {part: _listed(location, part, raw, notes) for part, location in lists.items()}
    for dialogue_id in sorted(by_part.get("val", frozenset()) & by_part.get("test", frozenset())):
        notes.add("listed in val and in test", dialogue_id)
    if parts is None:
        return None
    for part in ("val", "test"):
        if part not in lists:
            raise DataError(
                f"{data.path}: data.parts={list(parts)} needs {part}ListFile; "
                "set data.path to the folder or archive that holds both"
            )
    by_part["train"] = frozenset(map(_plain_id, raw)) - by_part["val"] - by_part["test"]
    return frozenset().union(*(by_part[part] for part in parts))


def _json_files(files: Mapping[str, Location]) -> list[str]:
    return [name for name in files if len(files) == 1 or name.endswith((".json", ".json.gz"))]


def _listed(location: Location, part: str, raw: Mapping[str, Any], notes: Notes) -> frozenset[str]:
    """Read a list file: one id a line, whatever its name says."""
    there = frozenset(map(_plain_id, raw))
    listed: set[str] = set()
    for line in read_text(*location).splitlines():
        dialogue_id = _plain_id(line)
        if not dialogue_id:
            continue
        if dialogue_id in listed:
            notes.add(f"listed twice in the {part} list", dialogue_id)
        elif dialogue_id not in there:
            notes.add(f"in the {part} list, but not in the data", dialogue_id)
        listed.add(dialogue_id)
    return frozenset(listed)


def _raw_dialogues(location: Location) -> dict[str, Any]:
    raw = read_json(*location)
    if not isinstance(raw, dict):
        raise DataError(
            f"{location.path}: expected an object of dialogues by id, found {type(raw).__name__}; "
            "MultiWOZ 2.2 and ConvLab-3 files are lists: data=multiwoz22 or data=unified"
        )
    return raw


def _plain_id(text: str) -> str:
    return text.strip().removesuffix(".json")


def _separate_acts(files: Mapping[str, Location]) -> dict[str, Any]:
    for name in sorted(files):
        if _ACTS_FILE.fullmatch(name):
            return {_plain_id(raw_id): acts for raw_id, acts in _raw_dialogues(files[name]).items()}
    return {}


def _text(log: list[Any], i: int) -> str:
    if "text" not in log[i]:
        raise DataError(f"turn {i} has no text")
    return require(log[i]["text"], str, f"text of turn {i}")


def _metadata(metadata: Any, i: int) -> tuple[DialogueState, tuple[SlotValue, ...]]:
    try:
        checked = require(metadata, dict, "metadata")
        return read_state(checked), read_booked(checked)
    except DataError as error:
        raise DataError(f"turn {i}: {error}") from error


def _domains(goal: Mapping[str, Any] | None, turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return the domains of the goal, or of the states where the goal names none."""
    asked = {
        normalise_name(require(name, str, "a domain of the goal"))
        for name, part in (goal or {}).items()
        if name not in _NOT_DOMAINS and isinstance(part, dict) and part
    }
    return tuple(sorted(asked or {triplet.domain for turn in turns for triplet in turn.state or ()}))


def _ontology(files: Mapping[str, Location]) -> list[Slot]:
    slots: list[Slot] = []
    for name in sorted(files):
        if _ONTOLOGY_FILE.fullmatch(name):
            content = read_json(*files[name])
            try:
                slots += ontology_slots(require(content, dict, "the ontology"))
            except DataError as error:
                raise DataError(f"{files[name].path}: {error}") from error
    return slots


def _database(root: Path, files: Mapping[str, Location], notes: Notes) -> MultiwozDatabase | None:
    """Read the tables of a folder; None where there are none."""
    if root.is_dir() and (any(root.glob("db/*_db.json")) or any(root.glob("*_db.json"))):
        return MultiwozDatabase.read(root)
    for name in sorted(files):
        if name.endswith("_db.json"):
            notes.add("tables in an archive are not read, unpack it to use the database", name)
    return None


def _with_lookups(dialogue: Dialogue, database: MultiwozDatabase | None) -> Dialogue:
    """Fill in what the database says to each known state; the lookup follows the last known one."""
    if database is None:
        return dialogue
    turns = []
    previous: DialogueState = frozenset()
    for turn in dialogue.turns:
        if turn.state is not None:
            turns.append(replace(turn, database=database.lookup(turn.state, previous)))
            previous = turn.state
        else:
            turns.append(turn)
    return replace(dialogue, turns=tuple(turns))
