"""Run a bot that learns changes over dialogues: what `tracking` measures, on one running text per dialogue.

Guarantees: decoding is greedy. In each turn the bot reads the running text so far and writes what the turn changed;
applied to the state in use this is its predicted state, whole, so that it is scored like any other bot's. Earlier
turns of the text hold gold utterances, and else what this bot itself wrote and looked up: its changes, written anew
from what could be read of them, its database results, its actions. Changes that were cut or cannot be read give the
state None, which every score counts as wrong; the text then holds `None` and the state in use stays as it was.

A running text that is too long loses its oldest whole turns where the limit says so, at every question anew; the turn
in progress stays.

What voids it: as in `tracking`. The bot is asked in every turn, also where the corpus knows no state; in training
such a turn is two utterances.

All dialogues advance together: two calls of `target.sample` per turn index (changes, actions), and one for all
responses, which nothing later depends on. Turns are laid out by `prompts.running_turn`, as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hushbot.evaluation.tracking import Asker, GoldLine, Limit, TrackedTurn, look_up, sum_scores
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    Changes,
    apply_changes,
    changes_line,
    one_line,
    opening_lines,
    read_changes,
    running_turn,
    running_turns,
    state_prompt,
    user_lines,
)
from hushbot.protocols import Database, Target
from hushbot.types import Dialogue, DialogueState, SlotValue

_NO_CHANGES = Changes(frozenset())


def run_states(
    asker: Asker, dialogues: Sequence[Dialogue], database: Database | None, *, is_answering: bool = True
) -> tuple[TrackedTurn, ...]:
    """Let the bot track its state, look up and act, turn by turn; actions stand in the text of later turns.

    Args:
        asker: Asks the bot.
        dialogues: What it is asked about.
        database: What it looks things up in.
        is_answering: Whether responses follow; otherwise nobody needs what it does in the last turn.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    runs = [_Run(dialogue, asker) for dialogue in dialogues]
    for index in range(max((len(dialogue.turns) for dialogue in dialogues), default=0)):
        going = [run for run in runs if index < len(run.dialogue.turns)]
        for run, text in zip(going, asker.ask([run.ask() for run in going]), strict=True):
            run.take_changes(text)
        going = [run for run in going if is_answering or index + 1 < len(run.dialogue.turns)]
        acting = [run for run in going if run.dialogue.turns[index].response is not None]
        prompts = [run.ask_actions(database) for run in acting]
        for run, text in zip(acting, asker.ask(prompts), strict=True):
            run.take_actions(text)
        for run in going:
            run.end_turn()
    return tuple(turn for run in runs for turn in run.done)


def run_responses(asker: Asker, turns: Sequence[TrackedTurn]) -> tuple[TrackedTurn, ...]:
    """Let the bot answer after its own changes, database result and actions, where there is a gold response.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    asked = [i for i, turn in enumerate(turns) if turn.reference is not None]
    rests = {i: _rest(turns[i], RESPONSE_MARKER) for i in asked}
    histories = {i: asker.shorten(turns[i].history, rests[i]) for i in asked}
    texts = asker.ask(["".join(histories[i]) + rests[i] for i in asked])
    answered = list(turns)
    for i, text in zip(asked, texts, strict=True):
        is_truncated = turns[i].is_truncated or len(histories[i]) < len(turns[i].history)
        answered[i] = replace(turns[i], response=one_line(text), is_truncated=is_truncated)
    return tuple(answered)


def repeat_turn(asker: Asker, turn: TrackedTurn, database: Database | None, *, is_answering: bool) -> None:
    """Let the bot do one turn once more, alone: its changes, and where it answers the lookup, actions and response.

    Raises:
        AuditError: The target failed or gave fewer texts than it was asked for.
    """
    _read(asker.ask([state_prompt(turn.history)])[0])
    if is_answering:
        again = replace(turn, database=look_up(turn, database))
        asker.ask(["".join(again.history) + _rest(again, ACTIONS_MARKER)])
        run_responses(asker, [again])


def gold_log_likelihood(
    target: Target, dialogues: Sequence[Dialogue], limit: Limit | None = None
) -> list[tuple[float, int]]:
    """Return each dialogue's summed log-probability of its gold changes after the gold text, and their tokens.

    Raises:
        AuditError: The target cannot score, or a score is not finite.
    """
    lines = [line for d, dialogue in enumerate(dialogues) for line in _gold_lines(d, dialogue, limit)]
    return sum_scores(target, dialogues, lines)


class _Run:
    """One dialogue in progress."""

    def __init__(self, dialogue: Dialogue, asker: Asker) -> None:
        self.dialogue = dialogue
        self.done: list[TrackedTurn] = []
        self._asker = asker
        self._text = opening_lines(dialogue)
        """The running text before this turn, turn by turn, as far as it fits."""
        self._is_cut = False

    @property
    def _now(self) -> TrackedTurn:
        return self.done[-1]

    def ask(self) -> str:
        """Return the prompt for the changes of the next turn."""
        user = "".join(user_lines(self.dialogue.turns[len(self.done)].user))
        self._cut(user, STATE_MARKER)
        return state_prompt((*self._text, user))

    def take_changes(self, text: str) -> None:
        """Start the turn with what the bot wrote after the state marker."""
        before: DialogueState = self._now.in_use if self.done else frozenset()
        changes = _read(text)
        state = None if changes is None else apply_changes(before, changes)
        user = "".join(user_lines(self.dialogue.turns[len(self.done)].user))
        self.done.append(
            TrackedTurn(
                dialogue=self.dialogue,
                turn=len(self.done),
                text=text,
                state=state,
                in_use=before if state is None else state,
                before=before,
                history=(*self._text, user),
                is_truncated=self._is_cut,
            )
        )

    def ask_actions(self, database: Database | None) -> str:
        """Look up the state in use and return the prompt for the turn's actions."""
        self.done[-1] = replace(self._now, database=look_up(self._now, database))
        user, rest = self._now.history[-1], _rest(self._now, ACTIONS_MARKER)
        self._cut(user, rest)
        self.done[-1] = replace(self._now, history=(*self._text, user), is_truncated=self._is_cut)
        return "".join((*self._text, user, rest))

    def take_actions(self, text: str) -> None:
        """Go on with what the bot wrote after the actions marker."""
        self.done[-1] = replace(self._now, actions=one_line(text))

    def end_turn(self) -> None:
        """Put the turn into the running text, with the gold response."""
        self._text = (*self._text, self._now.history[-1] + _rest(self._now))

    def _cut(self, user: str, rest: str) -> None:
        # A turn that is dropped once stays dropped, as in a dialogue that is going on.
        kept = self._asker.shorten((*self._text, user), rest)[:-1]
        self._is_cut = self._is_cut or len(kept) < len(self._text)
        self._text = kept


def _read(text: str) -> Changes | None:
    """Return the changes that the bot wrote; None when they were cut or cannot be read."""
    parsed = read_changes(text)
    return parsed.changes if parsed.is_complete else None


def _rest(turn: TrackedTurn, marker: str | None = None) -> str:
    """Return what follows the user's line in one turn as the bot has it, up to a marker or to its end."""
    gold = turn.dialogue.turns[turn.turn]
    shown = replace(gold, user="", database=turn.database or "", actions=turn.actions or "")
    texts = [segment.text for segment in running_turn(shown, _read(turn.text) or _NO_CHANGES)]
    return "".join(texts if marker is None else texts[: texts.index(marker) + 1])


def _gold_lines(number: int, dialogue: Dialogue, limit: Limit | None) -> list[GoldLine]:
    """Return a line per turn with a known state, after the text it has in training."""
    text, before, lines = opening_lines(dialogue), frozenset[SlotValue](), list[GoldLine]()
    for i, (turn, segments) in enumerate(zip(dialogue.turns, running_turns(dialogue), strict=True)):
        if turn.state is not None:
            gold, read = changes_line(before, turn.state), (*text, "".join(user_lines(turn.user)))
            if limit is not None:
                read = limit.shorten_gold(read, STATE_MARKER + gold)
            lines.append(GoldLine(number, i, state_prompt(read), gold))
            before = turn.state
        text = (*text, "".join(segment.text for segment in segments))
    return lines
