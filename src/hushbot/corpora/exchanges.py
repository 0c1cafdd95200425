"""Utterances in any order to the turns of a dialogue: a user speaks, then the system.

Guarantees: no utterance is lost. A system that speaks first becomes the dialogue's opening; utterances in a
row by one speaker are joined with a blank, and what is known about them is kept in order, with spans that fit
the joined text; a user who speaks last has no answer (None).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hushbot.corpora.spans import shifted
from hushbot.errors import DataError
from hushbot.types import Span


class Utterance(NamedTuple):
    """What one speaker said, with whatever the format annotates it with."""

    is_user: bool
    text: str
    annotations: tuple[Any, ...] = ()
    """Frames, deltas or acts, in order; joined utterances concatenate theirs."""
    spans: tuple[Span, ...] = ()
    """Where values stand in the text."""


class Exchange(NamedTuple):
    """A user utterance and the system's answer to it, if there is one."""

    user: Utterance
    system: Utterance | None


def pair_up(utterances: Iterable[Utterance]) -> tuple[str, tuple[Exchange, ...]]:
    """Return the opening (empty when the user speaks first) and the exchanges.

    Raises:
        DataError: The user says nothing in the whole dialogue.
    """
    said = _join_speakers(utterances)
    opening = said.pop(0).text if said and not said[0].is_user else ""
    if not said:
        raise DataError("has no user utterance")
    systems = [*said[1::2], *[None] * (len(said) % 2)]
    return opening, tuple(Exchange(user, system) for user, system in zip(said[::2], systems, strict=True))


def _join_speakers(utterances: Iterable[Utterance]) -> list[Utterance]:
    said: list[Utterance] = []
    for utterance in utterances:
        if said and said[-1].is_user == utterance.is_user:
            last = said.pop()
            text = " ".join(part for part in (last.text, utterance.text) if part)
            spans = last.spans + shifted(utterance.spans, len(text) - len(utterance.text))
            utterance = Utterance(last.is_user, text, last.annotations + utterance.annotations, spans)
        said.append(utterance)
    return said
