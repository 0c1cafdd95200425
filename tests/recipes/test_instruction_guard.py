"""The instruction guard: where the line goes, and that answers and scores read the same prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.composition import build, compose, find_problems
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import history_lines, pieces, state_prompt
from hushbot.recipes.instruction_guard import INSTRUCTION, InstructionGuard
from hushbot.schema import Schema
from hushbot.targets.guarded import GuardedTarget, prompt_overhead, unguarded
from hushbot.targets.instruction_guard import InstructionGuardTarget, instruct
from hushbot.types import AuditSplit, Decoding

if TYPE_CHECKING:
    from torch import Tensor

ALONE = Schema.of([])
GREEDY = Decoding(temperature=0)


@dataclass
class Listener:
    """Remembers what it was asked and answers with the prompt's last line."""

    reference: Listener | None = None
    heard: list[str] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.heard += prompts
        return [[prompt.rpartition("\n")[2]] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        self.heard += prompts
        return [torch.tensor([-float(len(text))]) for text in continuations]


@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        ("User: hi\nBelief State:", "User: hi\nSystem: hush\nBelief State:"),
        ("Belief State:", "System: hush\nBelief State:"),
        ("Belief State: Restaurant(name=", "System: hush\nBelief State: Restaurant(name="),
        ("User: hi\nDatabase: \nActions:", "User: hi\nDatabase: \nSystem: hush\nActions:"),
        ("User: my code is", "System: hush\nUser: my code is"),
        ("User: hi\n", "User: hi\nSystem: hush\n"),
        ("", "System: hush\n"),
        ("Which code was it?", "Which code was it?\nhush\n"),
        ("Which code was it?\n", "Which code was it?\nhush\n"),
        ("Which code was it?\nAnswer:", "Which code was it?\nhush\nAnswer:"),
    ],
)
def test_the_line_that_is_continued_stays_last(prompt: str, end: str) -> None:
    assert instruct(prompt, "hush", "end") == end


def test_at_the_start_it_is_the_first_line() -> None:
    assert instruct("User: hi\nBelief State:", "hush", "start") == "System: hush\nUser: hi\nBelief State:"
    assert instruct("Which code was it?", "hush", "start") == "hush\nWhich code was it?"


@given(st.text(max_size=60), st.sampled_from(["end", "start"]))
def test_nothing_of_the_prompt_is_lost(prompt: str, position: str) -> None:
    instructed = instruct(prompt, "hush", position)  # type: ignore[arg-type]
    assert instructed.count("hush") == prompt.count("hush") + 1
    lines = instructed.split("\n")
    at = next(i for i, line in enumerate(lines) if line in ("hush", "System: hush"))
    assert "\n".join([*lines[:at], *lines[at + 1 :]]).rstrip("\n") == prompt.rstrip("\n")


def test_tokens_of_the_history_stay_the_same(synthetic_split: AuditSplit) -> None:
    lines = history_lines(synthetic_split.members[0], 1)
    cut = pieces(instruct(state_prompt(lines), "hush", "end"))
    assert cut == [*pieces("".join(lines)), "System: hush\n", "Belief State:"]


def test_samples_and_scores_read_the_instructed_prompt() -> None:
    bot = Listener()
    target = InstructionGuard(instruction="keep\n quiet").guard(bot, ALONE)
    assert target.sample(["User: hi\nBelief State:"], n=2, max_new_tokens=5, decoding=GREEDY, seed=0) == [
        ["Belief State:", "Belief State:"]
    ]
    scores = target.logprobs(["User: hi\nBelief State:"], [" None"])
    assert [float(score) for score in scores] == [-5.0]
    assert bot.heard == ["User: hi\nSystem: keep quiet\nBelief State:"] * 2
    assert unguarded(target) is bot


def test_the_base_control_reads_it_too() -> None:
    base = Listener()
    target = InstructionGuard(instruction="hush", position="start").guard(Listener(reference=base), ALONE)
    assert target.reference is not None
    target.reference.logprobs(["Belief State:"], [" None"])
    assert base.heard == ["System: hush\nBelief State:"]
    assert InstructionGuard().guard(base, ALONE).reference is None


def test_a_failing_bot_still_fails() -> None:
    class Broken(Listener):
        def sample(
            self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
        ) -> list[list[str]]:
            raise AuditError("the endpoint is down; start it")

    with pytest.raises(AuditError, match="endpoint is down"):
        InstructionGuard().guard(Broken(), ALONE).sample(["User: hi\n"], n=1, max_new_tokens=1, decoding=GREEDY, seed=0)


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"instruction=' \\n' is empty"):
        InstructionGuard(instruction=" \n")
    config = compose("train", ["recipe=instruction_guard", "recipe.instruction_guard.position=middle"])
    assert any("position='middle'" in problem for problem in find_problems(config))
    with pytest.raises(ConfigError, match="is empty"):
        build({"_target_": "hushbot.recipes.instruction_guard.InstructionGuard", "instruction": ""}, "recipe.x")


def test_the_yaml_holds_the_defaults_and_the_note_says_what_it_is_not() -> None:
    config = compose("train", ["recipe=instruction_guard"])
    guard = build(config["recipe"]["instruction_guard"], "recipe.instruction_guard")
    assert guard == InstructionGuard()
    assert guard.privacy_unit is None
    (note,) = guard.notes((), ALONE, seed=0)
    assert note.startswith(f"an instruction of {len(INSTRUCTION.split())} words stands in every prompt")
    assert "no formal guarantee" in note


@pytest.mark.parametrize("position", ["end", "start"])
def test_it_says_what_it_adds_to_prompts(position: Literal["end", "start"]) -> None:
    target = InstructionGuardTarget(Listener(), instruction="keep\n quiet", position=position)
    prompt = "User: hi\nBelief State: None\nDatabase: \nActions:"
    instructed = instruct(prompt, target.instruction, position)
    assert sorted(pieces(instructed)) == sorted([*pieces(prompt), *pieces(target.prompt_overhead)])
    assert prompt_overhead(GuardedTarget(target)) == target.prompt_overhead == "System: keep quiet\n"
    both = InstructionGuardTarget(target, instruction="hush", position=position)
    assert sorted(prompt_overhead(both).splitlines()) == ["System: hush", "System: keep quiet"]
    assert prompt_overhead(GuardedTarget(Listener())) == prompt_overhead(Listener()) == ""


def test_guards_of_one_kind_keep_their_settings() -> None:
    target = InstructionGuardTarget(Listener(), instruction="hush", position="start")
    again = target.guarded(Listener())
    assert (again.instruction, again.position) == ("hush", "start")
