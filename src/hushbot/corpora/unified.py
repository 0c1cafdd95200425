"""ConvLab-3's unified format: `data.zip` or `dialogues.json` with a state on each user turn.

Guarantees:

* Names stand as the corpus spells them (`price range`, `Restaurants_1`), and so do values, trimmed. A blank
  is absent; `|` separates alternatives, whose order is kept. Nothing is carried over: turns repeat the state.
* A user turn without a state gives an unknown state (None), never an empty one, and a note.
* A dialogue may end with the user (response None), and a goal may be missing (None).
* Spans of values are those of the non-categorical acts, checked (see `spans`).
* `Turn.booked` accumulates; the format lists a booking one turn after the system has said it.
* Malformed dialogues are reported together, or skipped with a note.

Void for values that hold a `|` of their own, as a few of SGD do: the format cannot tell; use the SGD loader.
SGD files made before ConvLab-3 issue 76 was fixed lack the state of inactive services.
Not read: `db_results` and database files; the database line stays empty in training and in use alike.
Source: Zhu et al., ConvLab-3, EMNLP 2023 (demonstrations).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.exchanges import Utterance, pair_up
from hushbot.corpora.files import Location, Notes, OnError, Problems, listing, locate, read_json, require
from hushbot.corpora.multiwoz_metadata import booked_in, linear_act
from hushbot.corpora.spans import Claim, check_spans
from hushbot.errors import ConfigError, DataError
from hushbot.masking import mask_value
from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue, DialogueState, SlotValue, Turn

_DIALOGUES = ("dialogues.json", "dialogues.json.gz")
_DUMMY = "dummy_data.json"
_ONTOLOGY = "ontology.json"
_IS_USER = {"user": True, "system": False}
_ACT_KINDS = ("categorical", "non-categorical", "binary")


def load_unified(path: str | Path, *, splits: Sequence[str] | None = None, on_error: OnError = "raise") -> Corpus:
    """Read a data set of ConvLab-3.

    Args:
        path: The `data.zip`, a folder that holds it or its content, or one file of dialogues.
        splits: Which `data_split`s to keep (train, validation, test); default: all.
        on_error: `raise` one error that lists every malformed dialogue, or `skip` them with a note.

    Raises:
        ConfigError: A split is not in the data.
        DataError: A file cannot be read, holds no dialogue, or dialogues are malformed and `on_error` is `raise`.
    """
    problems, notes = Problems(on_error), Notes()
    if isinstance(splits, str):
        raise ConfigError(f"splits={splits!r} must be a list, such as [train]; set data.splits")
    files = _files(Path(path))
    location = _dialogues_file(Path(path), files)
    raw = read_json(*location)
    if not isinstance(raw, list):
        raise DataError(
            f"{location.path}: expected a list of dialogues, found {type(raw).__name__}; "
            "original MultiWOZ files are objects: data=multiwoz21"
        )
    kept, datasets = _read_all(raw, location, splits, problems, notes)
    skipped = problems.finish()
    if not kept:
        raise DataError("\n".join([f"{location.path}: holds no usable dialogue; correct data.path", *skipped]))
    for name in sorted(files):
        if name.endswith(".json") and "db" in name.lower():
            notes.add("database not read, the bot will see no lookups", name)
    return Corpus(
        dialogues=kept,
        schema=Schema.of([*_ontology(files), *Schema.from_dialogues(kept).slots]),
        name=" ".join(["unified", *datasets, *(splits or ())]),
        notes=(*notes.finish(), *skipped),
    )


def _read_all(
    raw: list[Any], location: Location, splits: Sequence[str] | None, problems: Problems, notes: Notes
) -> tuple[tuple[Dialogue, ...], list[str]]:
    """Return the dialogues of the splits asked for, and the names of their data sets."""
    dialogues: dict[str, Dialogue] = {}
    datasets: set[str] = set()
    found: set[str] = set()
    for number, record in enumerate(raw):
        name = f"#{number}"
        try:
            fields = require(record, dict, "the dialogue")
            name = require(fields.get("dialogue_id"), str, "dialogue_id")
            split = require(fields.get("data_split") or "", str, "data_split")
            found.add(split)
            if splits is not None and split not in splits:
                continue
            if name in dialogues:
                raise DataError("the id occurs twice")
            dialogues[name] = read_unified_dialogue(fields, notes)
            datasets.add(require(fields.get("dataset") or "", str, "dataset"))
        except DataError as error:
            problems.add(location.path, name, str(error))
    missing = sorted(set(splits or ()) - found)
    if missing and found:
        raise ConfigError(
            f"splits={list(splits or ())}: {location.path} has no split {missing[0]!r}, "
            f"only {listing(sorted(found))}; set data.splits"
        )
    return tuple(dialogues.values()), sorted(datasets - {""})


def read_unified_dialogue(raw: object, notes: Notes) -> Dialogue:
    """Read one dialogue: `{dialogue_id, turns: [{speaker, utterance, state, dialogue_acts, booked}]}`.

    Raises:
        DataError: It is malformed; the message says how.
    """
    fields = require(raw, dict, "the dialogue")
    name = require(fields.get("dialogue_id"), str, "dialogue_id")
    if not name:
        raise DataError("dialogue_id is empty")
    if "turns" not in fields:
        raise DataError("it has no turns")
    raw_turns = require(fields["turns"], list, "turns")
    opening, exchanges = pair_up(_utterance(turn, i, name, notes) for i, turn in enumerate(raw_turns))
    turns = []
    booked: tuple[SlotValue, ...] = ()
    for number, (user, system) in enumerate(exchanges):
        state = _state(user)
        if state is None:
            notes.add("user turn without state, unknown (None)", f"{name} user turn {number}")
        answers, spans = (system.annotations, system.spans) if system else ((), ())
        booked = tuple(dict.fromkeys((*booked, *(triplet for turn in answers for triplet in _booked(turn)))))
        actions = " ".join(act for turn in answers for act in _acts(turn, f"{name} user turn {number}", notes))
        response = system.text if system else None
        turn = Turn(user.text, state, actions=actions, response=response, booked=booked)
        turns.append(replace(turn, user_spans=user.spans, response_spans=spans))
    goal = fields.get("goal")
    if goal is not None:
        require(goal, dict, "goal")
    domains = [require(d, str, "a domain") for d in require(fields.get("domains") or [], list, "domains")]
    return Dialogue(name, tuple(turns), domains=tuple(sorted(set(domains))), goal=goal, opening=opening)


def _utterance(turn: Any, i: int, name: str, notes: Notes) -> Utterance:
    fields = require(turn, dict, f"turn {i}")
    speaker = require(fields.get("speaker"), str, f"speaker of turn {i}").lower()
    if speaker not in _IS_USER:
        raise DataError(f"speaker of turn {i} is {mask_value(speaker)}, not user or system")
    text = require(fields.get("utterance"), str, f"utterance of turn {i}")
    spans = check_spans(text, _claims(fields.get("dialogue_acts")), f"{name} turn {i}", notes)
    return Utterance(_IS_USER[speaker], text, (fields,), spans)


def _claims(acts: Any) -> Iterator[Claim]:
    """Yield the spans of an utterance's acts that have offsets; acts that cannot be read are noted elsewhere."""
    entries = acts.get("non-categorical") if isinstance(acts, dict) else None
    for act in entries if isinstance(entries, list) else ():
        if isinstance(act, dict) and not (act.get("start") is None and act.get("end") is None):
            yield Claim(act.get("domain"), act.get("slot"), (act.get("value"),), act.get("start"), act.get("end"))


def _state(user: Utterance) -> DialogueState | None:
    """Return the state on a user's turn, the last one where the user spoke twice; None when there is none."""
    states = [turn["state"] for turn in user.annotations if turn.get("state") is not None]
    if not states:
        return None
    triplets = []
    for domain, slots in require(states[-1], dict, "state").items():
        for slot, value in require(slots, dict, f"state, {domain}").items():
            what = f"state, {domain}-{slot}"
            text = "" if value is None else require(value, str, what)
            parts = [part.strip() for part in text.split("|")]
            values = tuple(dict.fromkeys(part for part in parts if part))
            if not values:
                continue
            if not (require(domain, str, what).strip() and require(slot, str, what).strip()):
                raise DataError(f"{what} has an empty name, but the value {mask_value(values[0])}")
            triplets.append(SlotValue(domain.strip(), slot.strip(), values[0], values[1:]))
    if len({(triplet.domain, triplet.slot) for triplet in triplets}) < len(triplets):
        raise DataError("state has a slot twice, in names that differ by blanks only")
    return frozenset(triplets)


def _booked(turn: Mapping[str, Any]) -> Iterator[SlotValue]:
    for domain, entries in require(turn.get("booked") or {}, dict, "booked").items():
        yield from booked_in(domain, entries)


def _acts(turn: Mapping[str, Any], place: str, notes: Notes) -> list[str]:
    """Return a turn's acts in linear form; they are optional, so a fault is a note only."""
    try:
        kinds = require(turn.get("dialogue_acts") or {}, dict, "dialogue_acts")
        acts: dict[str, list[tuple[str, str]]] = {}
        for kind in _ACT_KINDS:
            for entry in require(kinds.get(kind) or [], list, kind):
                act = require(entry, dict, kind)
                intent, domain, slot, value = (
                    require(act.get(key) or "", str, key) for key in ("intent", "domain", "slot", "value")
                )
                acts.setdefault(f"{domain}-{intent}" if domain else intent, []).append((slot, value))
    except DataError:  # its text may quote a value, which no note must hold
        notes.add("dialogue_acts ignored, they are malformed", place)
        return []
    return [linear_act(name, slots) for name, slots in acts.items()]


def _files(root: Path) -> dict[str, Location]:
    """Return the files of a data set; a folder may hold them in data.zip or in a folder `data`."""
    files = locate(root)
    if "data.zip" in files and root.is_dir():
        return locate(root / "data.zip")
    if (root / "data").is_dir() and not any(name in files for name in _DIALOGUES):
        return locate(root / "data")
    return files


def _dialogues_file(root: Path, files: Mapping[str, Location]) -> Location:
    """Return the one file of dialogues.

    Raises:
        DataError: There is none, or several.
    """
    if len(files) == 1:
        return next(iter(files.values()))
    named = [name for name in _DIALOGUES if name in files][:1]
    found = named or sorted(name for name in files if name.endswith(_DUMMY))
    if len(found) != 1:
        shown = f"found {listing(found)}" if found else "found none"
        raise DataError(f"{root}: expected data.zip or dialogues.json, {shown}; set data.path to one file")
    return files[found[0]]


def _ontology(files: Mapping[str, Location]) -> Iterator[Slot]:
    if _ONTOLOGY not in files:
        return
    where = str(files[_ONTOLOGY].path)
    ontology = require(read_json(*files[_ONTOLOGY]), dict, f"{where}: the ontology")
    for domain, about in require(ontology.get("domains") or {}, dict, f"{where}: domains").items():
        slots = require(about, dict, f"{where}: {domain}").get("slots") or {}
        for name, slot in require(slots, dict, f"{where}: {domain}, slots").items():
            details = require(slot, dict, f"{where}: {domain}, {name}")
            values = require(details.get("possible_values") or [], list, f"{where}: {domain}, {name}, values")
            is_categorical = details.get("is_categorical") is True
            yield Slot(
                domain,
                name,
                categorical=is_categorical,
                possible_values=tuple(value for value in values if isinstance(value, str) and value),
                description=str(details.get("description") or ""),
                # The format lists every annotated value of an open slot, whoever's it was.
                collected=not is_categorical,
            )
