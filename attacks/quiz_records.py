"""Whom a quiz is about: records, each a handful of named fields of which each has one value.

A record is a dialogue's final state (*structured*), the facts that one of its responses spells out with a span for
each (*prose*), or a line of a JSONL or CSV file that says who was a member.

Guarantees: records stand in an order that depends on what they hold only; a record that both sides hold, and one with
fewer than two facts, decides nothing and is left out, and the notes count them; of equal records of one side the first
by name is kept; what any turn of a dialogue said of a slot is known to its record, so it is never taken for a wrong
answer. A file is read whole or not at all; errors name the file and the line, never what stands there.

Voids it: near-copies of members among the non-members.

Source: Pop Quiz Attack, sections 3.2 and 4.6, appendix A.2.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hushbot.corpora.files import read_text
from hushbot.errors import ConfigError, DataError
from hushbot.prompts import one_line
from hushbot.types import AuditSplit, Dialogue

GRANULARITIES = ("structured", "prose")
VOID = frozenset({"", "?", "dontcare", "do not care", "don't care", "none", "null", "not mentioned"})
"""Values that say nothing of anybody."""
_YES, _NO = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """One field of a record."""

    domain: str
    """Domain of the slot; `record` in files."""
    slot: str
    value: str
    others: tuple[str, ...] = ()
    """Further values that are true of the record in this slot."""
    span: tuple[int, int] | None = None
    """Where the value stands in the record's text, for prose."""

    @property
    def key(self) -> tuple[str, str]:
        """Return which field this is."""
        return self.domain, self.slot


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one member or non-member."""

    id: str
    is_member: bool
    facts: tuple[Fact, ...]
    """Sorted by domain and slot; void values are left out."""
    granularity: str = "structured"
    text: str = ""
    """The prose that tells the facts; empty where there is none."""
    opening: str = ""
    """What stands before the prose where it was taught: the bot's response marker, or nothing."""

    @property
    def content(self) -> str:
        """Return what the record says, as a key for sorting and drawing that knows no side and no name."""
        return json.dumps([self.granularity, [(f.domain, f.slot, f.value) for f in self.facts]])

    def seed(self, seed: int) -> list[int]:
        """Return a seed that depends on the record's content and the run's seed only."""
        return [seed, int.from_bytes(blake2b(self.content.encode(), digest_size=8).digest(), "big")]


class Quizzed(NamedTuple):
    """The records to ask about."""

    records: list[Record]
    notes: list[str]

    @property
    def n_nonmembers(self) -> int:
        """Return of how many different non-members there are records."""
        return len({record.id for record in self.records if not record.is_member})


def records_of(split: AuditSplit, granularities: Sequence[str], *, max_records: int | None, seed: int) -> Quizzed:
    """Return the records of a split's members and non-members, at most `max_records` dialogues a side."""
    found = [
        record
        for dialogues, is_member in ((split.members, True), (split.nonmembers, False))
        for dialogue in dialogues
        for record in _records(dialogue, is_member, granularities)
    ]
    return choose(found, max_records=max_records, seed=seed)


def choose(records: Iterable[Record], *, max_records: int | None, seed: int) -> Quizzed:
    """Leave out what decides nothing and draw at most `max_records` names a side; return the rest in order."""
    listed = list(records)
    usable = [record for record in listed if len(record.facts) > 1]
    sides = [{r.content for r in usable if r.is_member is side} for side in (True, False)]
    shared = sides[0] & sides[1]
    first: dict[tuple[bool, str], Record] = {}
    for record in sorted(usable, key=lambda r: (r.content, r.id)):
        if record.content not in shared:
            first.setdefault((record.is_member, record.content), record)
    kept = list(first.values())
    notes = [
        f"records: {len(kept)} of {len(listed)} are asked about; left out are {len(listed) - len(usable)} with fewer "
        f"than two facts, {sum(r.content in shared for r in usable)} that both sides hold, and repetitions"
    ]
    if max_records is not None:
        for side, name in ((True, "members"), (False, "non-members")):
            names = list(dict.fromkeys(record.id for record in kept if record.is_member is side))
            if len(names) > max_records:
                drawn = np.random.default_rng([seed, int(side)]).permutation(len(names))[:max_records]
                chosen = {names[i] for i in drawn}
                kept = [record for record in kept if record.is_member is not side or record.id in chosen]
                notes.append(f"{name}: {max_records} of {len(names)} drawn at random")
    return Quizzed(kept, notes)


def _records(dialogue: Dialogue, is_member: bool, granularities: Sequence[str]) -> Iterable[Record]:
    said: dict[tuple[str, str], dict[str, None]] = {}
    for turn in dialogue.turns:
        for triplet in sorted(turn.state or ()):
            said.setdefault((triplet.domain, triplet.slot), {}).update(dict.fromkeys(triplet.values))
    if "structured" in granularities and dialogue.final_state:
        facts = [Fact(t.domain, t.slot, t.value, tuple(said[t.domain, t.slot])) for t in dialogue.final_state]
        yield Record(dialogue.id, is_member, _told(facts))
    if "prose" in granularities:
        # The response that tells most: a record is one text.
        told = max(dialogue.turns, key=lambda t: len(t.response_spans), default=None)
        if told is not None and told.response and told.response_spans:
            found = {(s.domain, s.slot): s for s in reversed(told.response_spans)}
            facts = [
                Fact(s.domain, s.slot, s.value, tuple(said.get((s.domain, s.slot), ())), (s.start, s.end))
                for s in found.values()
            ]
            yield Record(dialogue.id, is_member, _told(facts), "prose", told.response, "Response: ")


def _told(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    return tuple(sorted(fact for fact in facts if fact.value.strip().casefold() not in VOID))


@dataclass(frozen=True, kw_only=True)
class RecordFile:
    """A file of structured records, each with who was a member: JSONL (an object a line) or CSV (with a header)."""

    path: str
    """The file, UTF-8; a name that ends in `.csv` is read as CSV."""
    id_column: str = "id"
    """Names the record; no two records have the same name."""
    member_column: str = "member"
    """Says whether it was trained on: true, 1 or yes; false, 0 or no."""
    text_column: str | None = None
    """Holds the record in prose; makes the records prose. None where there is none."""
    domain_column: str | None = None
    """Holds the kind of record, for the breakdown by category; None gives all the kind `record`."""
    fields: Sequence[str] | None = None
    """The columns to ask about; None takes all others."""

    def __post_init__(self) -> None:
        names = [self.id_column, self.member_column, self.text_column, self.domain_column]
        given = [name for name in names if name is not None]
        given += self.fields or ()
        if not self.path or not all(given) or len(set(given)) != len(given):
            raise ConfigError(f"records: path={self.path!r} and columns {given} must be given, and the columns differ")

    def read(self) -> list[Record]:
        """Return the records in the file's order.

        Raises:
            DataError: The file cannot be read, or a line is no record.
        """
        text = read_text(Path(self.path))
        rows = _csv_rows(self.path, text) if self.path.endswith(".csv") else _json_rows(self.path, text)
        records = [self._record(row, f"{self.path}: line {line}") for line, row in rows]
        if len({record.id for record in records}) != len(records):
            raise DataError(f"{self.path}: two records have the same {self.id_column!r}; give each its own")
        if not records:
            raise DataError(f"{self.path}: holds no record")
        return records

    def _record(self, row: Mapping[str, Any], where: str) -> Record:
        missing = [name for name in (self.id_column, self.member_column) if row.get(name) in (None, "")]
        missing += [name for name in (self.text_column, *(self.fields or ())) if name is not None and name not in row]
        if missing:
            raise DataError(f"{where} has no {' and no '.join(missing)}; set attack.quiz.records to the right columns")
        nested = [name for name, cell in row.items() if isinstance(cell, (dict, list))]
        if nested:
            raise DataError(f"{where}: {nested[0]!r} is a list or an object; a field has one value")
        member = _as_text(row[self.member_column]).strip().casefold()
        if member not in _YES | _NO:
            raise DataError(f"{where}: {self.member_column!r} is none of true, 1, yes, false, 0, no")
        domain = _as_text(row.get(self.domain_column)) if self.domain_column else ""
        own = {self.id_column, self.member_column, self.text_column, self.domain_column}
        facts = [
            Fact(domain or "record", name, one_line(_as_text(cell)))
            for name, cell in row.items()
            if name not in own and (self.fields is None or name in self.fields)
        ]
        record = Record(_as_text(row[self.id_column]), member in _YES, _told(facts))
        if self.text_column is None:
            return record
        prose = one_line(_as_text(row.get(self.text_column)))
        placed = [replace(fact, span=_only_place(prose, fact.value)) for fact in record.facts]
        return replace(record, facts=tuple(f for f in placed if f.span), granularity="prose", text=prose)


def _only_place(text: str, value: str) -> tuple[int, int] | None:
    """Return where a value first stands as whole words; None where it does not."""
    match = re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text, flags=re.IGNORECASE)
    return match.span() if match else None


def _as_text(cell: object) -> str:
    if cell is None:
        return ""
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def _json_rows(path: str, text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is no JSON ({type(error).__name__})") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}: line {number} is no object; write one record a line")
        yield number, row


def _csv_rows(path: str, text: str) -> Iterable[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise DataError(f"{path}: line {reader.line_num} has more or fewer cells than the header")
            yield reader.line_num, row
    except csv.Error:
        raise DataError(f"{path}: line {reader.line_num + 1} is no CSV; check its quotes") from None
