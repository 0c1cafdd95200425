"""How much of a dialogue a bot reads when it is asked: as much as in training, and never more than its model can take.

Guarantees: a history loses its oldest lines, whole ones, only where prompt and the rest of a typical turn (the median
of the gold turns that the bot is measured on) would exceed the `max_length` of training, so that of a typical turn a
bot reads what training kept; or where the longest gold answer to that question, at most `max_new_tokens`, would no
longer fit into the model's context. Gold text that is scored has the room that training gave it: history and line
within `max_length`, nothing set aside. Tokens that guards add to a prompt count against the context alone, so bots
that differ in their guards read the same wherever both can.

What voids it: a target whose context is not known; a guard that lengthens prompts and does not say so.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hushbot.evaluation.utility import UtilitySettings
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    Changes,
    pieces,
    running_turn,
    running_turns,
)
from hushbot.protocols import Target
from hushbot.targets.guarded import prompt_overhead, unguarded
from hushbot.tokens import encode_pieces
from hushbot.training.model_folder import load_limit
from hushbot.training.packing import shorten_history
from hushbot.types import Dialogue

_QUESTIONS = (STATE_MARKER, ACTIONS_MARKER, RESPONSE_MARKER)


class AnswerLength(NamedTuple):
    """How long gold texts are that follow one of the markers, in tokens."""

    typical_rest: int = 0
    """Median of all that follows it in its turn, which training had to keep."""
    longest: int = 0
    """The longest line that follows it."""


@dataclass(slots=True, eq=False)
class PieceCounter:
    """Counts the tokens of texts; a piece that many of them hold is encoded once."""

    tokenizer: Any
    """A fast transformers tokenizer."""
    known: dict[str, int] = field(default_factory=dict)
    """The number of tokens of each piece so far."""

    def __call__(self, text: str) -> int:
        """Return the number of tokens of a text, without a start token."""
        cut = pieces(text)
        new = list(dict.fromkeys(piece for piece in cut if piece not in self.known))
        self.known.update(zip(new, map(len, encode_pieces(self.tokenizer, new)), strict=True))
        return sum(self.known[piece] for piece in cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimit:
    """What a bot may read, in tokens."""

    count: PieceCounter
    """Counts them."""
    max_length: int
    """Tokens that an example had at most in training, its start token included."""
    max_new_tokens: int
    """Longest answer."""
    context_length: int | None = None
    """Tokens that the model can read at most; None where it has no limit."""
    n_added: int = 0
    """Tokens that guards add to every prompt."""
    answers: Mapping[str, AnswerLength] = field(default_factory=dict)
    """Per marker; one that is missing needs no room."""

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        """Return the newest lines that leave room for an answer.

        Args:
            lines: One string per utterance, or per turn of a running text; the last stays.
            rest: What follows them in the prompt, up to and including the marker that asks.
        """
        answer = self.answers.get(next(marker for marker in _QUESTIONS if rest.endswith(marker)), AnswerLength())
        most = self.max_length - answer.typical_rest
        if self.context_length is not None:
            # The last new token is never read back, so it needs no place.
            n_new = max(1, min(self.max_new_tokens, answer.longest))
            most = min(most, self.context_length - self.n_added - n_new + 1)
        return self._fit(lines, rest, most)

    def shorten_gold(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        """Return the newest lines that fit before a text that is scored; `rest` is the marker and that text."""
        most = self.max_length if self.context_length is None else min(self.max_length, self.context_length)
        return self._fit(lines, rest, most)

    def room(self, prompt: str) -> int | None:
        """Return how many new tokens the context has room for after a prompt; None where it has no limit."""
        if self.context_length is None:
            return None
        return self.context_length - self.n_added - self.count(prompt)

    def protocol(self) -> dict[str, object]:
        """Return the rule in words, for the report."""
        typical = self.answers.get(STATE_MARKER, AnswerLength()).typical_rest
        rule = (
            f"prompt and the rest of a typical turn ({typical} tokens after the state marker, the median of the gold "
            f"turns) within the {self.max_length} tokens that an example had in training"
        )
        if self.context_length is not None:
            rule += (
                f"; prompt and the longest gold answer to the question within the model's context of "
                f"{self.context_length} tokens, of which guards take {self.n_added}"
            )
        found: dict[str, object] = {"history_limit": rule}
        if 2 * self.max_new_tokens > self.max_length:
            found["max_new_tokens"] = (
                f"utility.max_new_tokens={self.max_new_tokens} is more than half of the {self.max_length} tokens that "
                "an example had in training; histories are not cut to make room for it, an answer ends where the "
                "model's context does"
            )
        return found

    def _fit(self, lines: tuple[str, ...], rest: str, most: int) -> tuple[str, ...]:
        return shorten_history(lines, [self.count(line) for line in lines], most - 1 - self.count(rest))


def load_history_limit(
    folder: Path, target: Target, dialogues: Sequence[Dialogue], settings: UtilitySettings, *, learns_changes: bool
) -> HistoryLimit:
    """Return the limit of the bot whose model lies in a folder.

    Args:
        folder: As `save_model` wrote it.
        target: The bot, with its guards.
        dialogues: What it is measured on.
        settings: How it is measured.
        learns_changes: Whether its gold texts are changes or whole states.
    """
    tokenizer, max_length = load_limit(folder)
    count = PieceCounter(tokenizer)
    model = getattr(unguarded(target), "causal_lm", None)
    return HistoryLimit(
        count=count,
        max_length=max_length,
        max_new_tokens=settings.max_new_tokens,
        context_length=None if model is None else model.context_length,
        n_added=count(prompt_overhead(target)),
        answers=answer_lengths(
            (turn for dialogue in dialogues for turn in gold_turns(dialogue, learns_changes=learns_changes)), count
        ),
    )


def answer_lengths(turns: Iterable[Sequence[str]], count: PieceCounter) -> dict[str, AnswerLength]:
    """Return how long gold texts are, per marker, from turns that are cut at their markers."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for texts in turns:
        lengths = [count(text) for text in texts]
        for i, text in enumerate(texts):
            if text in _QUESTIONS:
                found[text].append((sum(lengths[i + 1 :]), lengths[i + 1]))
    return {
        marker: AnswerLength(statistics.median_low(rest for rest, _ in pairs), max(longest for _, longest in pairs))
        for marker, pairs in found.items()
    }


def gold_turns(dialogue: Dialogue, *, learns_changes: bool) -> Iterator[list[str]]:
    """Yield each turn with a known state as the bot should write it."""
    turns = (
        running_turns(dialogue)
        if learns_changes
        # Against an empty state, changes are the whole state.
        else (running_turn(turn, Changes(turn.state)) for turn in dialogue.turns if turn.state is not None)
    )
    for segments in turns:
        yield [segment.text for segment in segments]
