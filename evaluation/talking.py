"""A talk with a run's bot, turn by turn: what it tracks, looks up, does and says, and what its guards held back.

Guarantees: the bot answers as in `chatting`, greedily, so the same words give the same talk; earlier turns are not
asked again. A guarded bot is asked once more without its guards after the very prompts of the turn, and the two answers
are compared (`withheld`); nothing that the bot said without its guards shapes the talk. Nothing is written to disk.

A value counts as unfounded where it stands in the bot's state, acts or response, and neither the user nor the opening
said it, no lookup gave it, the database does not publish it and the schema does not list it: it may be memorised, made
up, or said in other words. Two characters or fewer never count, since numbers are spelled in many ways; of a response
only what looks like an identifier does.

Voids it: a corpus without a database, whose bots know venues from training alone: all of those are unfounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hushbot.evaluation.chatting import Chat
from hushbot.evaluation.tracking import Asker, TrackedTurn
from hushbot.evaluation.withheld import MARKERS, Withheld, missing_runs, values_in, withheld
from hushbot.prompts import DATABASE_MARKER, SYSTEM_MARKER, USER_MARKER, one_line
from hushbot.protocols import Published
from hushbot.serving.requests import Message
from hushbot.targets.guarded import guard_names, unguarded
from hushbot.targets.mask_identifiers import KINDS, MaskIdentifiers
from hushbot.targets.value_law import ValueLaw, normalise, read_history
from hushbot.types import DialogueState
from hushbot.values.clock import minutes_of, spellings
from hushbot.values.finder import Finder, squash

_LONG_ENOUGH = 3
_PUNCTUATION = ".,;:!?"
_PLACEHOLDERS = frozenset(f"[{kind}]" for kind in KINDS)


@dataclass(slots=True, kw_only=True)
class _Memory(Asker):
    """Asks nothing twice, and remembers what it was asked last for each part of an answer."""

    answers: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)
    """The last prompt that ended in each marker."""

    def ask(self, prompts: Sequence[str]) -> list[str]:
        """Return one greedy continuation per prompt."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self.answers]
        self.answers |= zip(new, Asker.ask(self, new), strict=True)
        for prompt in prompts:
            self.last[next(marker for marker in MARKERS.values() if prompt.endswith(marker))] = prompt
        return [self.answers[prompt] for prompt in prompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One turn of a talk, as far as the bot's side of it goes."""

    turn: TrackedTurn
    """What it tracked, looked up, did and said."""
    withheld: tuple[Withheld, ...] = ()
    """What its guards kept it from writing."""
    unfounded: tuple[str, ...] = ()
    """What it wrote that nobody gave it."""


class Talk:
    """A talk in progress.

    Args:
        chat: Lays the talk out for the bot.
        opening: What the bot says first; empty where the user begins.
        reveal: Whether what a guard held back is shown unmasked.
    """

    def __init__(self, chat: Chat, *, opening: str = "", reveal: bool = False) -> None:
        self.guards = guard_names(chat.target)
        self.opening = one_line(opening)
        self._chat = chat
        self._reveal = reveal
        # It is asked what is lawful, never for what to say instead, so the limits of that are of no account.
        self._law = ValueLaw(schema=chat.schema, max_candidates=1, max_words=1)
        self.restart()

    def restart(self) -> None:
        """Forget all that was said."""
        self._asker = self._asker_of(is_guarded=True)
        self._messages = [Message("assistant", self.opening)] if self.opening else []
        self._given = [f"{SYSTEM_MARKER} {self.opening}"] if self.opening else []
        self.state: DialogueState = frozenset()

    def say(self, text: str) -> Reply:
        """Say something to the bot and return what it makes of it.

        Raises:
            AuditError: The bot failed; the talk stays as it was.
        """
        messages = [*self._messages, Message("user", one_line(text))]
        turn = self._chat.turn_of(messages, self._asker)
        held = self._withheld()
        self._messages = [*messages, Message("assistant", turn.response or "")]
        self._given += [f"{USER_MARKER} {one_line(text)}", f"{DATABASE_MARKER} {one_line(turn.database or '')}"]
        self.state = turn.in_use
        return Reply(turn=turn, withheld=held, unfounded=tuple(dict.fromkeys(self._unfounded(turn))))

    def _asker_of(self, *, is_guarded: bool) -> _Memory:
        chat = self._chat
        target = chat.target if is_guarded else unguarded(chat.target)
        return _Memory(target=target, max_new_tokens=chat.max_new_tokens, seed=0, limit=chat.limit)

    def _withheld(self) -> tuple[Withheld, ...]:
        """Ask the bot the last turn's questions without its guards, and compare."""
        if not self.guards:
            return ()
        last = self._asker.last
        asked = {part: last[marker] for part, marker in MARKERS.items() if marker in last}
        plain = self._asker_of(is_guarded=False).ask(list(asked.values()))
        found = (
            withheld(part, self._asker.answers[prompt], text, self._chat.schema, reveal=self._reveal)
            for (part, prompt), text in zip(asked.items(), plain, strict=True)
        )
        return tuple(difference for difference in found if difference is not None)

    def _unfounded(self, turn: TrackedTurn) -> Iterator[str]:
        """Yield what the bot wrote in a turn that nobody gave it."""
        for said in sorted(turn.in_use):
            if self._is_unfounded(said.domain, said.slot, said.value):
                yield f"{said.domain} {said.slot}={said.value}"
        shown = {squash(said.value) for said in turn.in_use}
        for act in values_in("actions", turn.actions or ""):
            if squash(act.value) not in shown and self._is_unfounded(act.domain, act.slot, act.value):
                shown.add(squash(act.value))
                yield f"{act.domain} {act.slot}={act.value}"
        response = turn.response or ""
        given = "".join(f"{line}\n" for line in self._given) + MARKERS["response"]
        lines = (USER_MARKER, DATABASE_MARKER, SYSTEM_MARKER)
        (masked,) = MaskIdentifiers(trusted_lines=lines).rewrite([response], [given])
        for run in missing_runs(masked, response):
            words = " ".join(run).strip(_PUNCTUATION)
            if squash(words) not in shown:
                yield words

    def _is_unfounded(self, domain: str, slot: str, value: str) -> bool:
        given = "\n".join(self._given)
        history = read_history(given, with_lookups=True)
        if len(value) < _LONG_ENOUGH or value in _PLACEHOLDERS or normalise(value) in self._published:
            return False
        if self._law.allows(domain, slot, value, history):
            return False
        minutes = minutes_of(value)
        spelled = [value] if minutes is None else [value, *(way for ways in spellings(minutes) for way in ways)]
        finder = Finder({squash(way): value for way in spelled}, spelled)
        return not any(finder.find(line.partition(":")[2]) for line in self._given)

    @cached_property
    def _published(self) -> frozenset[str]:
        database = self._chat.database
        entries = database.entries() if isinstance(database, Published) else frozenset[str]()
        return frozenset(map(normalise, entries))
