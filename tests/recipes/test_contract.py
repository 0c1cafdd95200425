"""What every recipe promises, held against every recipe that has a YAML file."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from hushbot.prompts import STATE_MARKER, apply_changes, changes_line, read_changes, state_line, text_line
from hushbot.protocols import Recipe, Target
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.targets.guarded import guard_names, unguarded
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Decoding, Dialogue, DialogueState, Example

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "recipe"
FILES = sorted(FOLDER.rglob("*.yaml"))
N_FILES = 8


def recipes_of(path: Path) -> list[Recipe]:
    """Build the recipes of one file of the group: a dict of recipes, perhaps below a global `recipe` key."""
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    group = content.get("recipe", content)
    return [instantiate(entry, _convert_="all") for entry in group.values()]


def stack_of(path: Path) -> RecipeStack:
    """Return the file's recipes as a stack; one that makes no examples is stacked on the plain one."""
    recipes = recipes_of(path)
    plain = [] if any(recipe.makes_examples for recipe in recipes) else [TurnLevel()]
    return RecipeStack((*plain, *recipes))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def stack(request: pytest.FixtureRequest) -> RecipeStack:
    return stack_of(request.param)


@pytest.fixture(scope="module")
def dialogues(synthetic_split: AuditSplit) -> tuple[Dialogue, ...]:
    return synthetic_split.members[:20]


def test_every_recipe_is_under_contract() -> None:
    assert len(FILES) == N_FILES
    assert all(recipes_of(path) for path in FILES)


def test_a_file_is_named_after_its_recipe() -> None:
    for path in FILES:
        if not path.read_text().startswith("# @package _global_"):  # those are stacks with a name of their own
            assert RecipeStack.names.fget(stack_of(path))[-1] == path.stem  # type: ignore[attr-defined]


def test_rewriting_keeps_ids_and_their_order(
    stack: RecipeStack, dialogues: tuple[Dialogue, ...], synthetic_schema: Schema
) -> None:
    for epoch in (0, 1, 7):
        rewritten = stack.rewrite(dialogues, synthetic_schema, epoch=epoch, seed=3)
        assert [dialogue.id for dialogue in rewritten] == [dialogue.id for dialogue in dialogues]


def test_the_same_inputs_give_the_same_examples(
    stack: RecipeStack,
    dialogues: tuple[Dialogue, ...],
    synthetic_schema: Schema,
    request: pytest.FixtureRequest,
) -> None:
    again = stack_of(request.node.callspec.params["stack"])
    for epoch in (0, 1):
        first, second = (s.rewrite(dialogues, synthetic_schema, epoch=epoch, seed=3) for s in (stack, again))
        assert first == second
        assert [stack.examples(d) for d in first] == [again.examples(d) for d in second]


def test_every_supervised_text_is_a_state_an_action_or_a_response(
    stack: RecipeStack, dialogues: tuple[Dialogue, ...], synthetic_schema: Schema
) -> None:
    for dialogue in stack.rewrite(dialogues, synthetic_schema, epoch=1, seed=3):
        turns = [turn for turn in dialogue.turns if turn.state is not None]
        known = [turn.state for turn in turns if turn.state is not None]
        states = [state_line(state) for state in known]
        changes = [changes_line(*pair) for pair in pairwise([frozenset(), *known])]
        said = [
            text_line(text) for turn in turns if turn.response is not None for text in (turn.actions, turn.response)
        ]
        examples = stack.examples(dialogue)
        supervised = [s.text for example in examples for s in example.segments if s.supervised]
        assert {example.dialogue_id for example in examples} == {dialogue.id}
        if stack.learns_changes:
            assert sorted(supervised) == sorted([*changes, *said])
            assert states_told(examples) == known
        else:  # some recipes learn one state per dialogue instead of one per turn, the last; none anything else
            assert sorted(supervised) in (sorted([*states, *said]), sorted([states[-1], *said]))


def states_told(examples: Sequence[Example]) -> list[DialogueState]:
    """Return the states that the supervised changes of a dialogue accumulate to, in their order."""
    states: list[DialogueState] = []
    for example in examples:
        for marker, text in pairwise(example.segments):
            if marker.text == STATE_MARKER and text.supervised:
                changes = read_changes(text.text).changes
                assert changes is not None
                states.append(apply_changes(states[-1] if states else frozenset(), changes))
    return states


def test_inputs_are_not_changed(stack: RecipeStack, dialogues: tuple[Dialogue, ...], synthetic_schema: Schema) -> None:
    before = copy.deepcopy(dialogues)
    for dialogue in stack.rewrite(dialogues, synthetic_schema, epoch=1, seed=3):
        stack.examples(dialogue)
    assert dialogues == before


def test_a_guard_answers_every_prompt_the_same_way_again_and_stands_before_the_base_too(
    stack: RecipeStack, memoriser: Target, synthetic_schema: Schema
) -> None:
    prompts = [STATE_MARKER, "User: is there a cotto in the north?\nBelief State:", "User: thanks\nResponse:"]
    target = stack.guard(memoriser, synthetic_schema)
    first, again = (
        target.sample(prompts, n=2, max_new_tokens=40, decoding=Decoding(temperature=0), seed=3) for _ in range(2)
    )
    assert first == again
    assert [[type(text) for text in drawn] for drawn in first] == [[str, str]] * len(prompts)
    assert [len(scores.shape) for scores in target.logprobs(prompts[1:], [" None", " bye"])] == [1, 1]
    assert unguarded(target) is memoriser
    assert target.reference is not None
    assert guard_names(target.reference) == guard_names(target)
