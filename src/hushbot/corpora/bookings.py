"""The bundled corpus `bookings`: invented dialogues with personal identifiers, ready without any download.

Two halves come from disjoint value pools: `public`, on which the bundled `tiny` backbone was pretrained, and
`private`, from which members and non-members are drawn. Nothing of the private half is known to the backbone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Literal

from hushbot.corpora.bookings_tasks import Row, matching
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.files import read_json
from hushbot.corpora.schema_guided import load_schema_guided
from hushbot.types import Dialogue, DialogueState


@dataclass(frozen=True, slots=True)
class BookingsDatabase:
    """The venues of one half, looked up by exact match."""

    tables: Mapping[str, Sequence[Row]]
    """Domain -> rows; `taxi` has no table."""

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        """Return the matches of the domains that the turn changed, or of all domains when it changed none.

        A single match is shown with its phone and postcode, several with their number and the first two names.
        """
        changed = {triplet.domain for triplet in state ^ previous} or {triplet.domain for triplet in state}
        return "; ".join(self._describe(domain, state) for domain in sorted(changed & self.tables.keys()) if changed)

    def entries(self) -> frozenset[str]:
        """Return every value of every table."""
        return frozenset(value for rows in self.tables.values() for row in rows for value in row.values())

    def _describe(self, domain: str, state: DialogueState) -> str:
        rows = self.tables[domain]
        columns = rows[0].keys() if rows else ()
        constraints = {t.slot: t.value for t in state if t.domain == domain and t.slot in columns and t.slot != "phone"}
        found = matching(rows, constraints)
        name = next((column for column in ("name", "title", "doctor") if column in columns), "")
        if len(found) == 1:
            return f"{domain} 1 found, {found[0][name]}, {found[0]['phone']}, {found[0]['postcode']}"
        return ", ".join([f"{domain} {len(found)} found", *(row[name] for row in found[:2])])


def load_bookings(
    half: Literal["public", "private"] = "private", *, on_error: Literal["raise", "skip"] = "raise"
) -> Corpus:
    """Load one half of the bundled corpus with its database."""
    with as_file(files("hushbot") / "assets" / "bookings") as folder:
        return read_bookings(Path(folder), half, on_error=on_error)


def read_bookings(folder: Path, half: str, *, on_error: Literal["raise", "skip"] = "raise") -> Corpus:
    """Load one half from a folder written by `bookings_generator`."""
    corpus = load_schema_guided(folder, name=f"bookings ({half})", splits=[half], on_error=on_error)
    database = BookingsDatabase(read_json(folder / half / "database.json"))
    dialogues = tuple(with_lookups(dialogue, database) for dialogue in corpus.dialogues)
    return replace(corpus, dialogues=dialogues, database=database)


def with_lookups(dialogue: Dialogue, database: BookingsDatabase) -> Dialogue:
    """Fill in the database result that the bot saw at each turn."""
    previous: DialogueState = frozenset()
    turns = []
    for turn in dialogue.turns:
        state = previous if turn.state is None else turn.state
        turns.append(replace(turn, database=database.lookup(state, previous)))
        previous = state
    return replace(dialogue, turns=tuple(turns))


__all__ = ["BookingsDatabase", "load_bookings", "read_bookings", "with_lookups"]
