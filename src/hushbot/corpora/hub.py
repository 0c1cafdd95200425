"""Dialogue data sets of the Hugging Face hub, or rows of them that are already in memory.

Guarantees: a row in columns reads as the same dialogue as in row form (see `columns`); no code from the hub
is run. Understood rows: `multi_woz_v22`, `schema_guided_dstc8`, and what `schema_guided`, `unified`, `delta`
and `multiwoz` read from files (the last also as an object id -> {goal, log}).

Void for the configuration `v2.2_active_only`, that data set's own default: it drops the state of frames
without an intent. `v2.2` is asked for instead unless it is named.
Sources: the data set cards of pfb30/multi_woz_v22 and google-research-datasets/schema_guided_dstc8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hushbot.corpora.columns import row_form, straighten_acts, straighten_spans
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.delta import read_delta_dialogue
from hushbot.corpora.files import Notes, OnError, Problems, listing, require
from hushbot.corpora.frames import dialogue_id, read_dialogue
from hushbot.corpora.multiwoz import MultiwozReader
from hushbot.corpora.schema_guided import shown_id
from hushbot.corpora.unified import read_unified_dialogue
from hushbot.errors import ConfigError, DataError
from hushbot.schema import Schema
from hushbot.types import Dialogue

_DEFAULT_CONFIGS = {"multi_woz_v22": "v2.2", "schema_guided_dstc8": "dialogues"}
_ACTIVE_ONLY = "v2.2_active_only"


class _Row(NamedTuple):
    """A raw row with what to call it in an error and in the corpus."""

    source: Path
    shown_id: str
    prefix: str
    content: object


def load_hub(
    rows_or_id: object,
    *,
    split: str | None = None,
    config: str | None = None,
    on_error: OnError = "raise",
) -> Corpus:
    """Load rows, a `datasets.Dataset`, a `DatasetDict`, or a data set by its hub id.

    Args:
        rows_or_id: Rows, or the rows of each split by its name, or an id such as `pfb30/multi_woz_v22`.
        split: Which split; default all. With several, ids read `train/1_00000`.
        config: Which configuration of a hub id; default the one with whole states.
        on_error: `raise` one error that lists every malformed dialogue, or `skip` them with a note.

    Raises:
        ConfigError: There is no such split.
        DataError: The hub cannot be reached, or dialogues are malformed.
    """
    name = rows_or_id if isinstance(rows_or_id, str) else "rows"
    rows = _download(rows_or_id, config) if isinstance(rows_or_id, str) else rows_or_id
    problems = Problems(on_error)
    dialogues, notes = _read_rows(_named(name, _by_split(rows, split)), problems)
    notes += problems.finish()
    if not dialogues:
        raise DataError("\n".join([f"{name}: holds no usable dialogue", *notes]))
    if config == _ACTIVE_ONLY:
        notes += (f"config {_ACTIVE_ONLY} drops the state of frames without an intent; use v2.2",)
    schema = Schema.from_dialogues(dialogues)
    return Corpus(dialogues, schema, name, notes=notes)


def _download(name: str, config: str | None) -> object:
    import datasets  # slow to import, and needed for hub ids only

    config = config or _DEFAULT_CONFIGS.get(name.rsplit("/", 1)[-1])
    try:
        return datasets.load_dataset(name, name=config)
    except (OSError, RuntimeError, ValueError) as error:
        # No network, an unknown id, a data set that is a script, a wrong configuration.
        reason = next(iter(str(error).strip().splitlines()), "no reason given")
        raise DataError(
            f"{name}: cannot be loaded from the hub ({type(error).__name__}: {reason}); check the id and the "
            "network, or download its files and set data=multiwoz22 or data=sgd with data.path"
        ) from error


def _by_split(rows: object, split: str | None) -> dict[str, Iterable[Any]]:
    """Return the rows of each wanted split; rows that belong to no split have the empty name."""
    if isinstance(rows, Mapping) and "dialogue_id" in rows:
        rows = [rows]
    rows = _listed(rows)
    if not isinstance(rows, Mapping):
        if split is not None:
            raise ConfigError(f"data.split={split!r}: these rows have no splits; leave data.split out")
        return {"": _checked(rows, "rows")}
    if split is not None and split not in rows:
        raise ConfigError(f"data.split={split!r} is not one of {sorted(map(str, rows))}")
    return {str(key): _checked(_listed(rows[key]), f"split {key}") for key in rows if split in (None, key)}


def _listed(rows: object) -> object:
    """Return the rows of an object id -> {goal, log}; anything else as it is."""
    if not isinstance(rows, Mapping) or not any(isinstance(row, Mapping) and "log" in row for row in rows.values()):
        return rows
    return [{**row, "dialogue_id": name} if isinstance(row, Mapping) else row for name, row in rows.items()]


def _checked(rows: object, where: str) -> Iterable[Any]:
    if not isinstance(rows, Iterable) or isinstance(rows, (str, bytes, Mapping)):
        raise DataError(f"{where}: a {type(rows).__name__} is neither rows nor a Dataset")
    return rows


def _named(name: str, by_split: Mapping[str, Iterable[Any]]) -> list[_Row]:
    return [
        _Row(
            Path(f"{name}:{split}" if split else name),
            shown_id(content, position),
            f"{split}/" if len(by_split) > 1 else "",
            content,
        )
        for split, rows in by_split.items()
        for position, content in enumerate(rows)
    ]


def _read_rows(rows: Sequence[_Row], problems: Problems) -> tuple[tuple[Dialogue, ...], tuple[str, ...]]:
    """Read rows of any understood kind; return the dialogues and notes on what was repaired."""
    framed = {}
    for i, row in enumerate(rows):
        if _is_framed(row.content):
            try:
                framed[i] = row_form(row.content)
            except DataError:
                continue  # the second pass reports it, in the rows' order
    repairs = Notes()
    is_reversed, is_swapped = straighten_acts(framed.values()), straighten_spans(framed.values())
    dialogues: dict[str, Dialogue] = {}
    for i, row in enumerate(rows):
        try:
            found = _read_framed(framed[i], repairs) if i in framed else _read(row.content, repairs)
            dialogue = replace(found, id=row.prefix + found.id)
            if dialogue.id in dialogues:
                raise DataError("this id occurs twice; give each dialogue its own")
            dialogues[dialogue.id] = dialogue
        except DataError as error:
            problems.add(row.source, row.prefix + row.shown_id, str(error))
    straightened = {
        "slot and value of the acts were reversed and have been put in order": is_reversed,
        "start and end of spans were swapped and have been put in order": is_swapped,
    }
    notes = tuple(note for note, happened in straightened.items() if happened)
    return tuple(dialogues.values()), notes + repairs.finish()


def _read_framed(row: Mapping[str, Any], notes: Notes) -> Dialogue:
    found = read_dialogue(row, acts={}, notes=notes)
    for position, turn in enumerate(found.turns):
        if turn.state is None:
            notes.add("user turn without state, unknown (None)", f"{found.id} user turn {position}")
    return found


def _is_framed(content: object) -> bool:
    return isinstance(content, dict) and "turns" in content and not _is_unified(content)


def _is_unified(content: Mapping[str, Any]) -> bool:
    """Say whether a row is in ConvLab-3's form; frames are a schema-guided dialogue's, whatever else it has."""
    turns = content.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else turns
    has_frames = isinstance(first, dict) and "frames" in first
    return ("data_split" in content or "original_id" in content) and not has_frames


def _without_nulls(value: Any) -> Any:
    """Return a row without the keys that hold nothing: a column of a Dataset gives every record all keys."""
    if isinstance(value, dict):
        return {key: _without_nulls(content) for key, content in value.items() if content is not None}
    return [_without_nulls(content) for content in value] if isinstance(value, list) else value


def _read(content: object, notes: Notes) -> Dialogue:
    row = require(content, dict, "the row")
    if _is_unified(row):
        return read_unified_dialogue(_without_nulls(row), notes)
    if "log" in row:
        return MultiwozReader({}, notes).dialogue(dialogue_id(row), _without_nulls(row))
    if "turns" not in row and {"speaker", "utterance", "state"} <= row.keys():
        return read_delta_dialogue(row)
    if "turns" not in row:
        raise DataError(f"a row with the keys {listing(sorted(map(str, row)))} is of no known kind")
    return _read_framed(row_form(row), notes)
