"""A run's bot as somebody meets it: a chat goes in, and what the bot is asked to go on from comes out.

Guarantees: the bot is asked as when its utility is measured (`tracking`, `running`): it reads its own state from the
utterances, looks it up in the corpus' database, decides on its actions, all greedily, with the guards that it is
deployed with; what follows is its response, which whoever asked for the prompt draws as they like. Each user message
is a turn; assistant messages are the bot's earlier responses, or its opening where they come first.

Voids it: a corpus without a database: the lookup is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hushbot.errors import DataError
from hushbot.evaluation import running, suite, tracking
from hushbot.evaluation.audited import load_run_target, setting_of
from hushbot.evaluation.history_limit import load_history_limit
from hushbot.evaluation.tracking import Asker, Limit, TrackedTurn
from hushbot.evaluation.utility import UtilitySettings
from hushbot.prompts import RESPONSE_MARKER, one_line
from hushbot.protocols import Database, Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.serving.requests import Message
from hushbot.training.model_folder import folder_sha256
from hushbot.training.stack import build_stack
from hushbot.types import Dialogue, Turn

_UNKNOWN = "?"
"""Stands for the response that is asked for; nothing of it is read."""


@dataclass(slots=True, kw_only=True)
class _PromptReader(Asker):
    """Asks a bot everything but for its responses; remembers how it would ask for those."""

    kept: list[str] = field(default_factory=list)

    def ask(self, prompts: Sequence[str]) -> list[str]:
        """Return one greedy continuation per prompt, empty where a response is asked for."""
        if not all(prompt.endswith(RESPONSE_MARKER) for prompt in prompts):
            return Asker.ask(self, prompts)
        self.kept += prompts
        return [""] * len(prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """Lays chats out for a bot."""

    target: Target
    """The bot, with its guards."""
    database: Database | None
    limit: Limit | None
    """What it can read; None never cuts."""
    learns_changes: bool
    """Whether it writes what each turn changed, in one running text per dialogue."""
    max_new_tokens: int
    """Longest state and actions."""
    schema: Schema = field(default_factory=lambda: Schema(()))
    """What the bot can be asked for."""
    opening: str = ""
    """What the system says first in the bot's corpus; empty where the user begins."""

    def turn_of(self, messages: Sequence[Message], asker: Asker) -> TrackedTurn:
        """Return the last turn of a chat that ends with the user, as the bot goes through it.

        Raises:
            AuditError: The bot failed.
        """
        dialogue = dialogue_of(messages)
        if self.learns_changes:
            return running.run_responses(asker, running.run_states(asker, [dialogue], self.database)[-1:])[-1]
        return tracking.track_responses(asker, tracking.track_states(asker, [dialogue])[-1:], self.database)[-1]

    def prompt_of(self, messages: Sequence[Message]) -> str:
        """Return the text after which the bot writes its response to a chat that ends with the user.

        Raises:
            AuditError: The bot failed.
        """
        asker = _PromptReader(target=self.target, max_new_tokens=self.max_new_tokens, seed=0, limit=self.limit)
        self.turn_of(messages, asker)
        return asker.kept[-1]


def dialogue_of(messages: Sequence[Message]) -> Dialogue:
    """Return a chat as a dialogue whose last response is still unknown."""
    opening, turns = "", list[Turn]()
    for message in messages:
        if message.role == "user":
            turns.append(Turn(message.content, None, response=None))
        elif turns:
            said = turns[-1].response
            turns[-1] = replace(turns[-1], response=message.content if said is None else f"{said} {message.content}")
        else:
            opening = f"{opening} {message.content}".strip()
    turns[-1] = replace(turns[-1], response=_UNKNOWN)
    return Dialogue("chat", tuple(turns), opening=opening)


def common_opening(dialogues: Iterable[Dialogue]) -> str:
    """Return how a system that speaks first mostly begins; empty where most users begin.

    An opening of one dialogue alone is somebody's, and never returned.
    """
    openings = Counter(one_line(dialogue.opening) for dialogue in dialogues)
    if openings.pop("", 0) >= openings.total():
        return ""
    opening, n = max(openings.items(), key=lambda found: (found[1], found[0]))
    return opening if n > 1 else ""


def load_chat(audited: RunDirectory, inference: Mapping[str, int], trust: Sequence[str]) -> tuple[Chat, str]:
    """Return a run's bot as deployed, ready to chat, and its name: its recipes.

    Raises:
        ConfigError: The run's configuration names something that is neither ours nor trusted.
        DataError: The run has no bot, or its corpus is not what it was.
    """
    name = "+".join(audited.read_report().recipe.stack)
    config: dict[str, Any] = {"attack": {}, "tracker": {}, "reveal": False, **setting_of(audited, trust)}
    _check_model(audited)
    experiment = suite.prepare(config, name)
    target, _ = load_run_target(audited, experiment, inference, trust)
    learns_changes = bool(audited.config.get("fit")) and build_stack(audited.config).learns_changes
    settings, split = UtilitySettings(), experiment.split
    limit = load_history_limit(audited.model, target, split.nonmembers, settings, learns_changes=learns_changes)
    chat = Chat(
        target=target,
        database=experiment.corpus.database,
        limit=limit,
        learns_changes=learns_changes,
        max_new_tokens=settings.max_new_tokens,
        schema=experiment.corpus.schema,
        opening=common_opening((*split.nonmembers, *split.calibration, *split.controls)),
    )
    return chat, name


def _check_model(audited: RunDirectory) -> None:
    """Refuse a model of which any file has changed, a tokenizer too; older reports do not tell."""
    known = audited.read_report().run.model_sha256
    if known is not None and audited.model.is_dir() and folder_sha256(audited.model) != known:
        raise DataError(
            f"{audited.model}: its files are not those that the run's report is about; restore the model or train again"
        )
