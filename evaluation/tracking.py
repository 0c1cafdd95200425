"""Run a bot over dialogues: the states it tracks, what it answers, and how well it predicts the gold text.

Guarantees: decoding is greedy; the history is gold utterances, everything after it is the bot's own: the
database is asked with the predicted state and the previous predicted state, and actions and response are
continued from there. A state that was cut or cannot be read is None, which every score counts as wrong; for
what follows it the bot goes on with its last readable state of the dialogue, as a deployed one would.

A history that is too long loses its oldest lines where `shorten` says so, as it does in training.

What voids it: a target that ignores the decoding it is given. A state cut exactly after a closing bracket
cannot be told from a finished one; its missing domains count as missed.

The text layout is `hushbot.prompts`'; each stage is one call of `target.sample` over all turns of all
dialogues. A bot that learns changes is run by `hushbot.evaluation.running`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hushbot.errors import AuditError
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
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

Shorten = Callable[[tuple[str, ...]], tuple[str, ...]]
"""Drops the oldest lines of a history that is too long for the bot; the last line stays."""


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
    shorten: Shorten | None = None,
) -> tuple[TrackedTurn, ...]:
    """Run the bot end to end: states, database, actions and responses.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    turns = track_states(target, dialogues, max_new_tokens=max_new_tokens, seed=seed, shorten=shorten)
    return track_responses(target, turns, database, max_new_tokens=max_new_tokens, seed=seed)


def track_states(
    target: Target,
    dialogues: Sequence[Dialogue],
    *,
    max_new_tokens: int,
    seed: int,
    shorten: Shorten | None = None,
) -> tuple[TrackedTurn, ...]:
    """Let the bot read its state in every turn, dialogue by dialogue."""
    read = [[_history(dialogue, i, shorten) for i in range(len(dialogue.turns))] for dialogue in dialogues]
    prompts = [state_prompt(history) for histories in read for history, _ in histories]
    texts = iter(continue_greedily(target, prompts, max_new_tokens, seed))
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


def track_responses(
    target: Target,
    turns: Sequence[TrackedTurn],
    database: Database | None,
    *,
    max_new_tokens: int,
    seed: int,
) -> tuple[TrackedTurn, ...]:
    """Let the bot look up, act and answer on its own states, in every turn that has a gold response."""
    answered = [turn for turn in turns if turn.reference is not None]
    lookups = [look_up(turn, database) for turn in answered]
    prompts = [
        state_prompt(turn.history) + state_line(turn.in_use) + database_line(found) + ACTIONS_MARKER
        for turn, found in zip(answered, lookups, strict=True)
    ]
    actions = continue_greedily(target, prompts, max_new_tokens, seed)
    prompts = [prompt + text_line(action) + RESPONSE_MARKER for prompt, action in zip(prompts, actions, strict=True)]
    responses = continue_greedily(target, prompts, max_new_tokens, seed)
    done = {
        (turn.dialogue.id, turn.turn): replace(
            turn, database=found, actions=one_line(action), response=one_line(response)
        )
        for turn, found, action, response in zip(answered, lookups, actions, responses, strict=True)
    }
    return tuple(done.get((turn.dialogue.id, turn.turn), turn) for turn in turns)


def gold_log_likelihood(
    target: Target, dialogues: Sequence[Dialogue], shorten: Shorten | None = None
) -> list[tuple[float, int]]:
    """Return each dialogue's summed log-probability of its known gold states, and their number of tokens.

    Raises:
        AuditError: The target cannot score, or a score is not finite.
    """
    known = [
        (d, i)
        for d, dialogue in enumerate(dialogues)
        for i, turn in enumerate(dialogue.turns)
        if turn.state is not None
    ]
    return sum_scores(
        target,
        dialogues,
        [
            GoldLine(
                d,
                i,
                state_prompt(_history(dialogues[d], i, shorten)[0]),
                state_line(dialogues[d].turns[i].state or frozenset()),
            )
            for d, i in known
        ],
    )


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


def _history(dialogue: Dialogue, turn: int, shorten: Shorten | None) -> tuple[tuple[str, ...], bool]:
    """Return the lines a bot reads, and whether older ones were cut off."""
    whole = history_lines(dialogue, turn)
    kept = whole if shorten is None else shorten(whole)
    return kept, len(kept) < len(whole)


def look_up(turn: TrackedTurn, database: Database | None) -> str:
    """Return what the database says to the state in use.

    Without a database the corpus' own record stands in: an oracle, which the protocol names.
    """
    if database is None:
        return turn.dialogue.turns[turn.turn].database
    return database.lookup(turn.in_use, turn.before)


def continue_greedily(target: Target, prompts: Sequence[str], max_new_tokens: int, seed: int) -> list[str]:
    """Return one greedy continuation per prompt.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    if not prompts:
        return []
    texts = target.sample(prompts, n=1, max_new_tokens=max_new_tokens, decoding=GREEDY, seed=seed)
    if [len(drawn) for drawn in texts] != [1] * len(prompts):
        raise AuditError(f"the target did not answer each of {len(prompts)} prompts with one text")
    return [drawn[0] for drawn in texts]
