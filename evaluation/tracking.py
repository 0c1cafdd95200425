"""Run a bot over dialogues: the states it tracks, what it answers, and how well it predicts the gold text.

Guarantees: decoding is greedy; the history is gold utterances, everything after it is the bot's own: the
database is asked with the predicted state and the previous predicted state, and actions and response are
continued from there. A state that was cut or cannot be read is None, which every score counts as wrong; for
what follows it the bot goes on with its last readable state of the dialogue, as a deployed one would.

A history that is too long loses its oldest lines where the limit says so, at every question anew. Where the model's
context leaves less room than `max_new_tokens`, an answer ends there; a prompt that fills it is answered by nothing.

What voids it: a target that ignores the decoding it is given. A state cut exactly after a closing bracket
cannot be told from a finished one; its missing domains count as missed.

The text layout is `hushbot.prompts`'; each stage is one call of `target.sample` over all turns of all
dialogues. A bot that learns changes is run by `hushbot.evaluation.running`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from hushbot.errors import AuditError
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    database_line,
    history_lines,
    one_line,
    read_state,
    state_line,
    state_prompt,
    text_line,
)
from hushbot.protocols import Database, Target
from hushbot.types import Decoding, Dialogue, DialogueState

GREEDY = Decoding(temperature=0)
_ROOM_STEP = 16
"""Questions that are short of room share a call by so many tokens."""


class Limit(Protocol):
    """What a bot can read; `hushbot.evaluation.history_limit` is the one of a model on disk."""

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        """Drop the oldest lines of a prompt that is too long; `rest` follows them and ends in the marker that asks."""
        ...

    def shorten_gold(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        """Drop the oldest lines before gold text that is scored; `rest` follows them and ends in that text."""
        ...

    def room(self, prompt: str) -> int | None:
        """Return how many new tokens fit after a prompt; None where there is no limit."""
        ...

    def protocol(self) -> dict[str, object]:
        """Return the rule in words, for the report."""
        ...


@dataclass(slots=True, kw_only=True)
class Asker:
    """Puts questions to a bot."""

    target: Target
    """The bot."""
    max_new_tokens: int
    """Longest answer in tokens."""
    seed: int
    """Passed on; greedy decoding draws nothing."""
    limit: Limit | None = None
    """What the bot can read; None never cuts."""
    n_squeezed: int = 0
    """How many questions so far left room for fewer than `max_new_tokens` tokens."""

    def shorten(self, lines: tuple[str, ...], rest: str) -> tuple[str, ...]:
        """Return the lines that the bot can read before the rest of a question."""
        return lines if self.limit is None else self.limit.shorten(lines, rest)

    def ask(self, prompts: Sequence[str]) -> list[str]:
        """Return one greedy continuation per prompt.

        Raises:
            AuditError: The target failed or gave fewer texts than it was asked for.
        """
        groups: dict[int, list[int]] = defaultdict(list)
        for index, prompt in enumerate(prompts):
            groups[self._allowance(prompt)].append(index)
        answers = [""] * len(prompts)
        for allowance, indices in groups.items():
            if allowance > 0:
                texts = self._continue([prompts[index] for index in indices], allowance)
                for index, text in zip(indices, texts, strict=True):
                    answers[index] = text
        return answers

    def _allowance(self, prompt: str) -> int:
        room = None if self.limit is None else self.limit.room(prompt)
        if room is None or room >= self.max_new_tokens:
            return self.max_new_tokens
        self.n_squeezed += 1
        return max(0, room // _ROOM_STEP * _ROOM_STEP or room)

    def _continue(self, prompts: list[str], max_new_tokens: int) -> list[str]:
        texts = self.target.sample(prompts, n=1, max_new_tokens=max_new_tokens, decoding=GREEDY, seed=self.seed)
        if [len(drawn) for drawn in texts] != [1] * len(prompts):
            raise AuditError(f"the target did not answer each of {len(prompts)} prompts with one text")
        return [drawn[0] for drawn in texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTurn:
    """What the bot did in one turn."""

    dialogue: Dialogue
    """The gold dialogue."""
    turn: int
    """Index of the turn in it."""
    text: str
    """What the bot wrote after the state marker."""
    state: DialogueState | None
    """The predicted state, all of it; None when the text was cut or cannot be read."""
    in_use: DialogueState
    """The state the bot goes on with: the predicted one, or its last readable one."""
    before: DialogueState
    """The state it went on with in the previous turn."""
    history: tuple[str, ...]
    """What the bot read, utterance by utterance, or turn by turn of a running text."""
    is_truncated: bool = False
    """Whether older lines were cut off."""
    database: str | None = None
    """What the database said to the state in use; None when it was not asked."""
    actions: str | None = None
    """The predicted actions; None when they were not asked for."""
    response: str | None = None
    """The predicted response; None when it was not asked for."""

    @property
    def reference(self) -> str | None:
        """Return the gold response on one line; None when the corpus has none here."""
        gold = self.dialogue.turns[self.turn].response
        return one_line(gold or "") or None


def track(
    target: Target,
    dialogues: Sequence[Dialogue],
    database: Database | None,
    *,
    max_new_tokens: int,
    seed: int,
    limit: Limit | None = None,
) -> tuple[TrackedTurn, ...]:
    """Run the bot end to end: states, database, actions and responses.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    asker = Asker(target=target, max_new_tokens=max_new_tokens, seed=seed, limit=limit)
    return track_responses(asker, track_states(asker, dialogues), database)


def track_states(asker: Asker, dialogues: Sequence[Dialogue]) -> tuple[TrackedTurn, ...]:
    """Let the bot read its state in every turn, dialogue by dialogue.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    read = [[_history(asker, dialogue, i) for i in range(len(dialogue.turns))] for dialogue in dialogues]
    prompts = [state_prompt(history) for histories in read for history, _ in histories]
    texts = iter(asker.ask(prompts))
    tracked: list[TrackedTurn] = []
    for dialogue, histories in zip(dialogues, read, strict=True):
        before: DialogueState = frozenset()
        for i, (history, is_truncated) in enumerate(histories):
            text = next(texts)
            parsed = read_state(text)
            state = parsed.state if parsed.is_complete else None
            in_use = before if state is None else state
            tracked.append(
                TrackedTurn(
                    dialogue=dialogue,
                    turn=i,
                    text=text,
                    state=state,
                    in_use=in_use,
                    before=before,
                    history=history,
                    is_truncated=is_truncated,
                )
            )
            before = in_use
    return tuple(tracked)


def track_responses(asker: Asker, turns: Sequence[TrackedTurn], database: Database | None) -> tuple[TrackedTurn, ...]:
    """Let the bot look up, act and answer on its own states, in every turn that has a gold response.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    asked = [replace(turn, database=look_up(turn, database)) for turn in turns if turn.reference is not None]
    acted = [
        replace(turn, actions=one_line(text))
        for turn, text in _ask_after_state(asker, asked, lambda turn: ACTIONS_MARKER)
    ]
    answered = [
        replace(turn, response=one_line(text))
        for turn, text in _ask_after_state(
            asker, acted, lambda turn: ACTIONS_MARKER + text_line(turn.actions or "") + RESPONSE_MARKER
        )
    ]
    done = {(turn.dialogue.id, turn.turn): turn for turn in answered}
    return tuple(done.get((turn.dialogue.id, turn.turn), turn) for turn in turns)


def repeat_turn(asker: Asker, turn: TrackedTurn, database: Database | None, *, is_answering: bool) -> None:
    """Let the bot do one turn once more, alone: its state, and where it answers the lookup, actions and response.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    read_state(asker.ask([state_prompt(turn.history)])[0])
    if is_answering:
        track_responses(asker, [turn], database)


def _ask_after_state(
    asker: Asker, turns: Sequence[TrackedTurn], question: Callable[[TrackedTurn], str]
) -> list[tuple[TrackedTurn, str]]:
    """Ask something after state and database result; return the turns as they were read, each with its answer."""
    read, prompts = [], []
    for turn in turns:
        rest = STATE_MARKER + state_line(turn.in_use) + database_line(turn.database or "") + question(turn)
        history = asker.shorten(turn.history, rest)
        is_truncated = turn.is_truncated or len(history) < len(turn.history)
        read.append(replace(turn, history=history, is_truncated=is_truncated))
        prompts.append("".join(history) + rest)
    return list(zip(read, asker.ask(prompts), strict=True))


def gold_log_likelihood(
    target: Target, dialogues: Sequence[Dialogue], limit: Limit | None = None
) -> list[tuple[float, int]]:
    """Return each dialogue's summed log-probability of its known gold states, and their number of tokens.

    Raises:
        AuditError: The target cannot score, or a score is not finite.
    """
    lines = []
    for d, dialogue in enumerate(dialogues):
        for i, turn in enumerate(dialogue.turns):
            if turn.state is not None:
                gold, history = state_line(turn.state), history_lines(dialogue, i)
                if limit is not None:
                    history = limit.shorten_gold(history, STATE_MARKER + gold)
                lines.append(GoldLine(d, i, state_prompt(history), gold))
    return sum_scores(target, dialogues, lines)


class GoldLine(NamedTuple):
    """What the bot should have written in one turn."""

    dialogue: int
    """Position of its dialogue."""
    turn: int
    prompt: str
    text: str


def sum_scores(target: Target, dialogues: Sequence[Dialogue], gold: Sequence[GoldLine]) -> list[tuple[float, int]]:
    """Return the summed log-probability of each dialogue's gold lines, and their number of tokens.

    Raises:
        AuditError: The target cannot score, or a score is not finite.
    """
    scores = target.logprobs([line.prompt for line in gold], [line.text for line in gold]) if gold else []
    if len(scores) != len(gold):
        raise AuditError(f"the target scored {len(scores)} of {len(gold)} gold states; perplexity needs all")
    sums = [(0.0, 0) for _ in dialogues]
    for (d, i, _, _), score in zip(gold, scores, strict=True):
        total = float(score.sum())
        if not math.isfinite(total):
            raise AuditError(f"dialogue {dialogues[d].id}, turn {i}: the gold state's log-probability is {total}")
        sums[d] = (sums[d][0] + total, sums[d][1] + len(score))
    return sums


def _history(asker: Asker, dialogue: Dialogue, turn: int) -> tuple[tuple[str, ...], bool]:
    """Return the lines a bot reads when it is asked for a state, and whether older ones were cut off."""
    whole = history_lines(dialogue, turn)
    kept = asker.shorten(whole, STATE_MARKER)
    return kept, len(kept) < len(whole)


def look_up(turn: TrackedTurn, database: Database | None) -> str:
    """Return what the database says to the state in use.

    Without a database the corpus' own record stands in: an oracle, which the protocol names.
    """
    if database is None:
        return turn.dialogue.turns[turn.turn].database
    return database.lookup(turn.in_use, turn.before)
