"""A bot that is run over dialogues by several processes, each with a copy of it and a part of the dialogues.

Guarantees: every dialogue is played and scored once, by one process; nothing is padded, and there are no more processes
than dialogues. What comes back is put into the order of the dialogues and checked against them, turn by turn. A process
that fails is an error, and a bot that fails in one of them has no number: there is no mean over a part. Answers are
greedy, so who gives them does not matter.

What voids it: a bot whose answers depend on what it is asked beside, or on the number of threads, in more than the last
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from hushbot.errors import AuditError
from hushbot.evaluation.bot import Bot, Played
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.launching.ranks import Ranks, own_devices, threads_each
from hushbot.launching.worker import held_to
from hushbot.protocols import Target
from hushbot.types import Decoding, Dialogue

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Team:
    """Processes that can make the same bot."""

    make: Callable[[], Target]
    """Makes it, as it is deployed; of a module that other processes can import."""
    n_processes: int
    """How many play, the caller's own included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """What a process gets."""

    make: Callable[[], Target]
    bot: Bot
    """Without its target."""
    dialogues: Sequence[Dialogue]
    is_answering: bool
    n_processes: int
    n_threads: int


class _Part(NamedTuple):
    """What one process has to say of its dialogues."""

    played: Played
    gold: list[tuple[float, int]]
    """Of each dialogue, as `Bot.score_gold` has it."""
    why_no_gold: str | None
    n_squeezed: int


@dataclass(frozen=True, slots=True)
class SharedBot(Bot):
    """A bot that others play beside."""

    team: Team
    _gold: dict[str, tuple[float, int] | str] = field(default_factory=dict)
    """Dialogue id -> what was scored while it was played, or why it could not be."""

    def play(self, dialogues: Sequence[Dialogue], *, is_answering: bool) -> Played:
        """Run the bot over dialogues, each process over its own.

        Raises:
            HushbotError: A process failed.
        """
        n_processes = min(self.team.n_processes, len(dialogues))
        if n_processes < 2:
            return Bot.play(self, dialogues, is_answering=is_answering)
        parts = self._parts(dialogues, n_processes, is_answering=is_answering)
        for rank, part in enumerate(parts):
            for i, dialogue in enumerate(dialogues[rank::n_processes]):
                self._gold[dialogue.id] = part.gold[i] if part.why_no_gold is None else part.why_no_gold
            self.asker.n_squeezed += 0 if rank == 0 else part.n_squeezed
        return merged([part.played for part in parts], dialogues)

    def score_gold(self, dialogues: Sequence[Dialogue]) -> list[tuple[float, int]]:
        """Return how probable the bot finds what it should have written; what was scored in `play` is not asked again.

        Raises:
            AuditError: The target cannot score.
        """
        known = [self._gold.get(dialogue.id) for dialogue in dialogues]
        if any(one is None for one in known):
            return Bot.score_gold(self, dialogues)
        if reasons := [one for one in known if isinstance(one, str)]:
            raise AuditError(reasons[0])
        return [one for one in known if isinstance(one, tuple)]

    def _parts(self, dialogues: Sequence[Dialogue], n_processes: int, *, is_answering: bool) -> list[_Part]:
        import torch  # a table of utility is made without it

        n_threads = threads_each(torch.get_num_threads(), n_processes)
        request = _Request(
            make=self.team.make,
            bot=Bot(replace(self.asker, target=_Nobody(), n_squeezed=0), self.database, self.learns_changes),
            dialogues=dialogues,
            is_answering=is_answering,
            n_processes=n_processes,
            n_threads=n_threads,
        )
        devices = own_devices(n_processes, torch.cuda.device_count())
        around = [{**device, **held_to(n_threads)} for device in devices]
        with Ranks(_play_beside, request, n_processes, around) as others, _threads(n_threads):
            mine = _part_of(self, dialogues[::n_processes], is_answering=is_answering)
            return [mine, *others.results()]


def merged(parts: Sequence[Played], dialogues: Sequence[Dialogue]) -> Played:
    """Return what all processes did as one; part r of n has every nth dialogue from the r-th on.

    Raises:
        AuditError: A turn is missing, there twice, or of another dialogue.
    """
    if failed := [part.failures["states"] for part in parts if "states" in part.failures]:
        return Played((), {"states": failed[0], "responses": failed[0]})
    failures = {stage: reason for part in parts for stage, reason in part.failures.items()}
    rests = [iter(part.turns) for part in parts]
    turns = [turn for i, dialogue in enumerate(dialogues) for turn in _turns_of(dialogue, rests[i % len(parts)])]
    if more := [turn for rest in rests for turn in rest]:
        raise AuditError(f"{len(more)} turns too many came back, the first of dialogue {more[0].dialogue.id}")
    if "responses" in failures:  # some processes have some: no part of the answers counts
        turns = [replace(turn, response=None) for turn in turns]
    return Played(tuple(turns), failures)


def _turns_of(dialogue: Dialogue, rest: Iterator[TrackedTurn]) -> Iterator[TrackedTurn]:
    for i in range(len(dialogue.turns)):
        turn = next(rest, None)
        if turn is None or (turn.dialogue.id, turn.turn) != (dialogue.id, i):
            found = "nothing" if turn is None else f"turn {turn.turn} of {turn.dialogue.id}"
            raise AuditError(f"dialogue {dialogue.id}, turn {i}: {found} came back; every turn must, once")
        yield turn


def _play_beside(request: _Request, rank: int) -> _Part:
    from hushbot.evaluation.suite import quieten  # suite imports this module

    quieten()
    bot = request.bot
    with _threads(request.n_threads):
        playing = replace(bot, asker=replace(bot.asker, target=request.make()))
        dialogues = request.dialogues[rank :: request.n_processes]
        return _part_of(playing, dialogues, is_answering=request.is_answering)


def _part_of(bot: Bot, dialogues: Sequence[Dialogue], *, is_answering: bool) -> _Part:
    played = Bot.play(bot, dialogues, is_answering=is_answering)
    try:
        gold, why = Bot.score_gold(bot, dialogues), None
    except AuditError as error:
        gold, why = [], str(error)
    return _Part(played, gold, why, bot.asker.n_squeezed)


@contextmanager
def _threads(n_threads: int) -> Iterator[None]:
    """Compute with so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Nobody:
    """Stands for a target on its way to another process, which makes its own."""

    reference = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Answer nothing."""
        raise AuditError("a bot was asked before it was made")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Score nothing."""
        raise AuditError("a bot was asked before it was made")
