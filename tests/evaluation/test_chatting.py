"""Chats with a run's bot: it answers as it does when its utility is measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hushbot.evaluation.chatting import Chat, dialogue_of
from hushbot.evaluation.running import run_responses, run_states
from hushbot.evaluation.tracking import GREEDY, Asker, track
from hushbot.prompts import RESPONSE_MARKER, STATE_MARKER
from hushbot.protocols import Target
from hushbot.serving.requests import Message
from hushbot.types import AuditSplit, Dialogue, DialogueState


class Lookup:
    """A database that says what it was asked."""

    def lookup(self, state: DialogueState, previous: DialogueState) -> str:
        return f"{len(state)} {len(previous)} found"


def chat_of(target: Target, *, learns_changes: bool = False) -> Chat:
    return Chat(target=target, database=Lookup(), limit=None, learns_changes=learns_changes, max_new_tokens=64)


def messages_of(dialogue: Dialogue) -> list[Message]:
    """Return a dialogue as a chat that waits for its last response."""
    said = [Message("assistant", dialogue.opening)] if dialogue.opening else []
    for turn in dialogue.turns:
        said += [Message("user", turn.user), Message("assistant", turn.response or "")]
    return said[:-1]


def answer(target: Target, prompt: str) -> str:
    return target.sample([prompt], n=1, max_new_tokens=64, decoding=GREEDY, seed=0)[0][0].strip()


@pytest.mark.parametrize("number", range(6))
def test_the_answer_is_the_one_that_utility_measures(
    number: int, synthetic_split: AuditSplit, memoriser: Target
) -> None:
    dialogue = replace(synthetic_split.members[number], opening="Hello." if number % 2 else "")
    expected = track(memoriser, [dialogue], Lookup(), max_new_tokens=64, seed=0)[-1]
    prompt = chat_of(memoriser).prompt_of(messages_of(dialogue))
    assert answer(memoriser, prompt) == expected.response
    assert prompt.endswith(RESPONSE_MARKER)
    assert "found" in prompt.splitlines()[-3]


class Clerk:
    """Writes changes that depend on all it reads, and nothing else."""

    reference = None

    def sample(self, prompts: Sequence[str], **settings: object) -> list[list[str]]:
        return [[self.say(prompt)] for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[object]:
        raise NotImplementedError

    def say(self, prompt: str) -> str:
        number = random.Random(prompt).randrange(100)
        return f" Restaurant(area={number})" if prompt.endswith(STATE_MARKER) else f" number {number}"


def test_a_bot_that_learns_changes_reads_its_own_earlier_turns(synthetic_split: AuditSplit) -> None:
    dialogue = max(synthetic_split.members, key=lambda dialogue: len(dialogue.turns))
    clerk = Clerk()
    asker = Asker(target=clerk, max_new_tokens=64, seed=0)  # type: ignore[arg-type]
    expected = run_responses(asker, run_states(asker, [dialogue], Lookup()))[-1]
    prompt = chat_of(clerk, learns_changes=True).prompt_of(messages_of(dialogue))  # type: ignore[arg-type]
    assert clerk.say(prompt).strip() == expected.response
    assert prompt.count(STATE_MARKER) == len(dialogue.turns) == 3
    assert prompt.count("found") == 3


def test_a_chat_becomes_a_dialogue() -> None:
    said = dialogue_of(
        [
            Message("assistant", "Hello."),
            Message("user", "a hotel"),
            Message("user", "cheap"),
            Message("assistant", "Where?"),
            Message("assistant", "North?"),
            Message("user", "yes"),
        ]
    )
    assert said.opening == "Hello."
    assert [(turn.user, turn.response) for turn in said.turns] == [
        ("a hotel", None),
        ("cheap", "Where? North?"),
        ("yes", "?"),
    ]
    assert all(turn.state is None for turn in said.turns)
