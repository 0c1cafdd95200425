"""MultiWOZ's tables of venues and trains: how many match a state, and the first of them.

Guarantees: a lookup depends on the two states only, never on chance (published scripts draw a random venue).
Values match when they are equal after lower-casing, never as substrings; a state's value and any of its
alternatives count. `leaveat` asks for that time or later, `arriveby` for that time or earlier.

Ignored: `dontcare`, booking slots, slots that the table lacks, and times that are no HH:MM (`after lunch`).
The taxi table lists colours and types, not venues, and is not looked up.
Source: the `*_db.json` files beside the dialogues in the original releases.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hushbot.corpora.files import find, read_json, require
from hushbot.errors import DataError
from hushbot.types import DialogueState, SlotValue

_SUFFIX = "_db"
_NOT_VENUES = frozenset({"taxi"})
_LABELS = ("name", "trainid", "department")
_TIMES = ("leaveat", "arriveby")
_TIME = re.compile(r"(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of one domain, indexed by column and value."""

    labels: tuple[str, ...]
    """What to call each row: a venue's name, a train's id."""
    rows_with: Mapping[str, Mapping[str, frozenset[int]]]
    """Row numbers for each column and lower-cased value."""
    minutes: Mapping[str, Sequence[int | None]]
    """Each row's time, for the columns that are compared as times."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Table:
        """Index rows as a database file lists them; columns that hold no text or number are left out."""
        labels: list[str] = []
        index: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for number, row in enumerate(rows):
            cells = {
                name.strip().lower(): str(cell).strip()
                for name, cell in row.items()
                if isinstance(cell, str | int) and not isinstance(cell, bool)
            }
            for name, cell in cells.items():
                index[name][cell.lower()].add(number)
            labels.append(next((cells[name] for name in _LABELS if cells.get(name)), ""))
        frozen = {name: {v: frozenset(n) for v, n in values.items()} for name, values in index.items()}
        minutes = {name: _minutes_of_rows(frozen[name], len(labels)) for name in _TIMES if name in frozen}
        return cls(tuple(labels), frozen, minutes)

    def matching(self, triplets: Sequence[SlotValue]) -> list[int]:
        """Return the numbers of the rows that meet every constraint, in file order."""
        allowed = [rows for triplet in triplets if (rows := self._allowed(triplet)) is not None]
        matches = sorted(frozenset.intersection(*allowed)) if allowed else list(range(len(self.labels)))
        # Times last: they are compared row by row, and by then few rows are left.
        for triplet in triplets:
            matches = self._in_time(matches, triplet)
        return matches

    def _allowed(self, triplet: SlotValue) -> frozenset[int] | None:
        """Return the rows that hold a constraint's value; None when it is none, or one on a time."""
        column = self.rows_with.get(triplet.slot.lower())
        values = [value.lower() for value in triplet.values]
        if column is None or triplet.slot.lower() in _TIMES or "dontcare" in values:
            return None
        return frozenset().union(*(column.get(value, frozenset()) for value in values))

    def _in_time(self, rows: list[int], triplet: SlotValue) -> list[int]:
        """Return those of some rows that keep to a constraint on a time; all of them when it is none."""
        minutes = self.minutes.get(triplet.slot.lower())
        values = [value.lower() for value in triplet.values]
        wanted = [time for value in values if (time := _minutes(value)) is not None]
        if minutes is None or not wanted or "dontcare" in values:
            return rows
        # Any of several times may be meant: the earliest start, the latest arrival.
        if triplet.slot.lower() == "leaveat":
            return [row for row in rows if (time := minutes[row]) is not None and time >= min(wanted)]
        return [row for row in rows if (time := minutes[row]) is not None and time <= max(wanted)]


@dataclass(frozen=True, slots=True)
class MultiwozDatabase:
    """The tables of all domains; a `protocols.Database`."""

    tables: Mapping[str, Table]
    """One table for each domain that has venues."""

    @classmethod
    def read(cls, folder: Path | str) -> MultiwozDatabase:
        """Read `db/*_db.json` of a folder, or its own `*_db.json` where there is no `db`.

        Raises:
            DataError: There is no such file, or one is not a list of objects.
        """
        root = Path(folder)
        files = find(root, [f"db/*{_SUFFIX}.json"]) or find(root, [f"*{_SUFFIX}.json"])
        if not files:
            raise DataError(f"{root}: no *{_SUFFIX}.json files there or in db/; the releases hold seven of them")
        tables = {}
        for file in files:
            domain = file.name.removesuffix(f"{_SUFFIX}.json")
            if domain not in _NOT_VENUES:
                tables[domain] = Table.of(_rows(file))
        return cls(tables)

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        """Return what the changed domains match, such as `restaurant 2 found, golden wok; train 0 found`.

        A turn that changes nothing repeats all domains of the state.
        """
        held = {triplet.domain for triplet in state}
        changed = {triplet.domain for triplet in state ^ previous} & held
        return "; ".join(self._found(domain, state) for domain in sorted(changed or held) if domain in self.tables)

    def entries(self) -> frozenset[str]:
        """Return every value of every table, in small letters."""
        columns = (column for table in self.tables.values() for column in table.rows_with.values())
        return frozenset(value for column in columns for value in column)

    def _found(self, domain: str, state: DialogueState) -> str:
        table = self.tables[domain]
        rows = table.matching(sorted(triplet for triplet in state if triplet.domain == domain))
        first = f", {table.labels[rows[0]]}" if rows and table.labels[rows[0]] else ""
        return f"{domain} {len(rows)} found{first}"


def _rows(file: Path) -> list[Mapping[str, Any]]:
    rows = require(read_json(file), list, f"{file}: the table")
    return [require(row, dict, f"{file}: row {number}") for number, row in enumerate(rows)]


@lru_cache(maxsize=4096)
def _minutes(text: str) -> int | None:
    """Return a time in minutes; None when it is no HH:MM. Hours past 24 occur in the data and count on."""
    match = _TIME.fullmatch(text)
    return int(match[1]) * 60 + int(match[2]) if match else None


def _minutes_of_rows(column: Mapping[str, frozenset[int]], n_rows: int) -> list[int | None]:
    found: list[int | None] = [None] * n_rows
    for text, rows in column.items():
        for row in rows:
            found[row] = _minutes(text)
    return found
