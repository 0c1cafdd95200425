"""What every loader returns: dialogues, their schema, and the database the bot may look things up in."""

from __future__ import annotations

from dataclasses import dataclass

from hushbot.protocols import Database
from hushbot.schema import Schema
from hushbot.types import Dialogue


@dataclass(frozen=True, slots=True)
class Corpus:
    """A set of dialogues with what is known about them."""

    dialogues: tuple[Dialogue, ...]
    schema: Schema
    name: str = ""
    """Which data this is, for reports (`multiwoz 2.1`)."""
    database: Database | None = None
    """None when the corpus has none: the database line of the layout then stays empty."""
    notes: tuple[str, ...] = ()
    """What a loader repaired, skipped or could not know; shown to the user and stored in the report."""
