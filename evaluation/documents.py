"""What a report tells of single dialogues: hashes in the place of their ids, and a few masked records.

Guarantees: an id has the same hash in every report of one split, and another one in reports of other splits; no id and
no text of a record reaches a report as it is, `reveal=true` or not: masked records are for reading, units for
comparing.

What voids it: a hash is a pseudonym. Who has the corpus and the split's hash can find out whose it is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from hushbot.corpora.split import SIDES
from hushbot.errors import DataError
from hushbot.masking import mask_row
from hushbot.types import AttackResult, Units

N_EXAMPLES = 5
HASH_CHARACTERS = 12
"""48 bits: two of ten thousand dialogues share a hash once in five million reports."""
SIGNIFICANT_DIGITS = 6
LONGEST_CELL = 300
"""Characters of a masked text that an example shows."""
HIT_COLUMNS = ("is_member_hit", "is_hit", "is_called", "is_right")
"""Columns of records that say whether the attack got something out."""
ID_COLUMNS = ("dialogue_id", "document_id")


def split_sha256(manifest: Mapping[str, Any]) -> str:
    """Return the hash of who is on which side of which data; order and canaries do not matter.

    Raises:
        DataError: The manifest lacks a side, or a side is no list of ids.
    """
    for key in ("data_sha256", *SIDES):
        found = manifest.get(key)
        ids = [found] if key == "data_sha256" else found
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise DataError(f"manifest.json: {key} is missing or damaged; restore the file or start a new run")
    content = {"data_sha256": manifest["data_sha256"], **{side: sorted(manifest[side]) for side in SIDES}}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def document_hash(name: str, split: str) -> str:
    """Return what a dialogue is called in reports of a split."""
    return hashlib.sha256(f"{split}:{name}".encode()).hexdigest()[:HASH_CHARACTERS]


def pseudonymous(units: Units, split: str) -> Units:
    """Return units with hashes in the place of dialogue ids, and numbers as short as a report keeps them.

    Args:
        units: As measured.
        split: Hash of the split.
    """
    weights = units.weights
    return units.model_copy(
        update={
            "documents": [document_hash(name, split) for name in units.documents],
            "values": [None if value is None else _rounded(value) for value in units.values],
            "weights": None if weights is None else [_rounded(weight) for weight in weights],
        }
    )


def pseudonymous_units(units: Mapping[str, Units], split: str) -> dict[str, Units]:
    """Return the units of several metrics, each pseudonymous."""
    return {name: pseudonymous(each, split) for name, each in units.items()}


def with_documents(result: AttackResult, split: str) -> AttackResult:
    """Return a result whose units are pseudonymous, with a few masked examples of its rows.

    Args:
        result: As an attack gave it, its rows in the clear.
        split: Hash of the split.
    """
    units = None if result.units is None else pseudonymous(result.units, split)
    return result.model_copy(update={"units": units, "examples": examples_of(result.rows, split)})


def examples_of(rows: Sequence[Mapping[str, Any]], split: str) -> list[dict[str, Any]]:
    """Return the first records that are hits on members, masked; the first records where there are none."""
    chosen = list(islice((row for row in rows if _is_hit(row)), N_EXAMPLES))
    return [_example(row, split) for row in chosen or rows[:N_EXAMPLES]]


def _is_hit(row: Mapping[str, Any]) -> bool:
    if row.get("role") == "nonmember" or row.get("is_member") is False:
        return False
    return any(bool(row.get(column)) for column in HIT_COLUMNS)


def _example(row: Mapping[str, Any], split: str) -> dict[str, Any]:
    masked = mask_row(dict(row))
    hashed = {column: document_hash(str(row[column]), split) for column in ID_COLUMNS if row.get(column) is not None}
    return {column: _cell(cell) for column, cell in (masked | hashed).items()}


def _cell(cell: Any) -> Any:
    """Return a cell as JSON can hold it: what is no finite number is empty."""
    if hasattr(cell, "item"):  # a NumPy scalar
        cell = cell.item()
    if isinstance(cell, float):
        return _rounded(cell) if math.isfinite(cell) else None
    if isinstance(cell, str):
        return cell if len(cell) <= LONGEST_CELL else f"{cell[:LONGEST_CELL]}…"
    if isinstance(cell, Mapping):
        return {str(key): _cell(inner) for key, inner in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_cell(inner) for inner in cell]
    return cell


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
