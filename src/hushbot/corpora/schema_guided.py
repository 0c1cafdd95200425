"""Schema-guided corpora: MultiWOZ 2.2, the Schema-Guided Dialogue dataset (SGD) and all in their format.

Guarantees: every dialogue of the files is read or reported, by the rules that `frames` states; ids are unique
(SGD repeats them across splits, so with several splits they carry the split's name); the schema is the union
of all `schema.json` and of what the states use.

Source: the descriptions of MultiWOZ 2.2 (arXiv:2007.12720) and of SGD (arXiv:1909.05855).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.files import Notes, OnError, Problems, find, listing, read_json, require
from hushbot.corpora.frames import local_name, read_dialogue
from hushbot.errors import ConfigError, DataError
from hushbot.schema import Schema, Slot
from hushbot.types import Dialogue

PATTERNS = ("dialogues_*.json", "dialogues_*.json.gz")
_SCHEMA_PATTERNS = ("schema.json", "schema.json.gz")
_ACTS_PATTERNS = ("dialog_acts.json", "dialog_acts.json.gz")


class _Part(NamedTuple):
    """The files of one split; the split of a flat folder has no name."""

    name: str
    files: tuple[Path, ...]
    acts: Mapping[str, Any]


def load_schema_guided(
    path: str | Path | Sequence[str | Path],
    *,
    name: str = "schema_guided",
    on_error: OnError = "raise",
    splits: Sequence[str] | None = None,
) -> Corpus:
    """Load dialogues from a folder, one file or several files (.json or .json.gz).

    Args:
        path: A folder with `dialogues_*.json`, or with one subfolder of them per split; or files. A
            `schema.json` and a `dialog_acts.json` in the folder, or beside the files, are used.
        name: What reports call this data.
        on_error: `raise` one error that lists every malformed dialogue, or `skip` them with a note.
        splits: Which subfolders; default all. With several, ids read `train/1_00000`.

    Raises:
        ConfigError: `splits` and `path` do not go together.
        DataError: Nothing is there, a file cannot be read, or dialogues are malformed.
    """
    problems, repairs = Problems(on_error), Notes()
    if isinstance(splits, str):
        raise ConfigError(f"splits={splits!r} must be a list, such as [train]; set data.splits")
    paths = [Path(path)] if isinstance(path, (str, Path)) else [Path(p) for p in path]
    parts = _find_parts(paths, splits)
    dialogues: dict[str, Dialogue] = {}
    for part in parts:
        prefix = f"{part.name}/" if part.name and len(parts) > 1 else ""
        _read_part(part, prefix, dialogues, problems, repairs)
    notes = problems.finish()
    if not dialogues:
        raise DataError("\n".join([f"{paths[0]}: holds no usable dialogue", *notes]))
    found = tuple(dialogues.values())
    schema, schema_notes = _read_schema(paths, parts, found)
    notes += schema_notes + repairs.finish() + unknown_state_notes(found)
    return Corpus(found, schema, name, notes=notes)


def _read_part(part: _Part, prefix: str, into: dict[str, Dialogue], problems: Problems, notes: Notes) -> None:
    """Read the dialogues of one split into a mapping by id; what is malformed goes to the problems."""
    for file in part.files:
        for position, raw in enumerate(require(read_json(file), list, f"{file}: the content")):
            try:
                dialogue = read_dialogue(raw, prefix=prefix, acts=part.acts, notes=notes)
                if dialogue.id in into:
                    raise DataError("this id occurs twice; give each dialogue its own")
                into[dialogue.id] = dialogue
            except DataError as error:
                problems.add(file, prefix + shown_id(raw, position), str(error))


def shown_id(raw: object, position: int) -> str:
    """Return how to name a raw dialogue in an error: its id, or its place where it has none."""
    value = raw.get("dialogue_id") if isinstance(raw, dict) else None
    return str(value) if isinstance(value, (str, int)) else f"number {position + 1}"


def unknown_state_notes(dialogues: Iterable[Dialogue]) -> tuple[str, ...]:
    """Return a note that counts the user turns whose state the corpus does not give."""
    ids = [dialogue.id for dialogue in dialogues for turn in dialogue.turns if turn.state is None]
    if not ids:
        return ()
    return (f"{len(ids)} user turn(s) have no state in the data: unknown in {listing(list(dict.fromkeys(ids)))}",)


def _find_parts(paths: Sequence[Path], splits: Sequence[str] | None) -> list[_Part]:
    if not paths:
        raise ConfigError("data.path is empty; set it to a folder or to files")
    if len(paths) > 1 or paths[0].is_file():
        if splits is not None:
            raise ConfigError(f"data.splits={list(splits)} needs a folder, but data.path names files")
        files = tuple(file for path in paths for file in find(path, PATTERNS))
        return [_Part("", files, _read_acts(paths[0].parent))]
    folder = paths[0]
    flat = tuple(find(folder, PATTERNS))
    acts = _read_acts(folder)
    parts = [_Part("", flat, acts)] if flat and splits is None else []
    wanted = sorted(sub.name for sub in folder.iterdir() if sub.is_dir()) if splits is None else splits
    for split in wanted:
        files = tuple(find(folder / split, PATTERNS))
        if files:
            parts.append(_Part(split, files, acts or _read_acts(folder / split)))
        elif splits is not None:
            raise DataError(f"{folder / split}: holds no {PATTERNS[0]}; correct data.splits")
    if not parts:
        raise DataError(f"{folder}: holds no {PATTERNS[0]}, nor does a subfolder; correct data.path")
    return parts


def _read_acts(folder: Path) -> Mapping[str, Any]:
    """Return MultiWOZ 2.2's dialogue acts by dialogue id; empty when there is no such file."""
    files = find(folder, _ACTS_PATTERNS)
    content = read_json(files[0]) if files else {}
    if not isinstance(content, dict):
        raise DataError(f"{files[0]}: must hold an object, dialogue id -> turn -> acts")
    return content


def _read_schema(
    paths: Sequence[Path], parts: Sequence[_Part], dialogues: Sequence[Dialogue]
) -> tuple[Schema, tuple[str, ...]]:
    """Return the union of all schema files and of what the states use, and what the files lack."""
    folders = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
    folders |= dict.fromkeys(file.parent for part in parts for file in part.files)
    files = [file for folder in folders for file in find(folder, _SCHEMA_PATTERNS)]
    used = Schema.from_dialogues(dialogues)
    if not files:
        return used, ("no schema.json: the schema holds only the slots that the states use",)
    slots = [slot for file in files for slot in read_slots(file)]
    declared = {(slot.domain, slot.name) for slot in slots}
    lacking = [f"{s.domain}-{s.name}" for s in used.slots if (s.domain, s.name) not in declared]
    notes = (f"schema.json lacks slots that states use, added: {listing(lacking)}",) if lacking else ()
    return Schema.of([*slots, *used.slots]), notes


def read_slots(file: Path) -> list[Slot]:
    """Read the slots of a `schema.json`, in the file's order.

    Raises:
        DataError: The file is malformed.
    """
    slots = []
    try:
        for raw_service in require(read_json(file), list, "the schema"):
            service = require(raw_service, dict, "a service")
            service_name = require(service.get("service_name"), str, "service_name")
            for slot in require(service.get("slots"), list, f"the slots of {service_name}"):
                slots.append(_slot(service_name, require(slot, dict, f"a slot of {service_name}")))
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    return slots


def _slot(service_name: str, raw: Mapping[str, Any]) -> Slot:
    domain, name = local_name(service_name, require(raw.get("name"), str, f"a slot's name in {service_name}"))
    values = require(raw.get("possible_values") or [], list, f"possible_values of {domain} {name}")
    return Slot(
        domain,
        name,
        categorical=bool(raw.get("is_categorical", False)),
        possible_values=tuple(require(value, str, "a possible value") for value in values),
        description=require(raw.get("description") or "", str, "a description"),
    )
