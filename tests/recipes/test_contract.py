"""What every recipe promises, held against every recipe that has a YAML file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from hushbot.prompts import state_line, text_line
from hushbot.protocols import Recipe
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Dialogue

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "recipe"
FILES = sorted(FOLDER.rglob("*.yaml"))
N_FILES = 2


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
        states = [state_line(turn.state) for turn in turns if turn.state is not None]
        said = [
            text_line(text) for turn in turns if turn.response is not None for text in (turn.actions, turn.response)
        ]
        examples = stack.examples(dialogue)
        supervised = [s.text for example in examples for s in example.segments if s.supervised]
        assert {example.dialogue_id for example in examples} == {dialogue.id}
        # Some recipes learn one state per dialogue instead of one per turn, the last; none anything else.
        assert sorted(supervised) in (sorted([*states, *said]), sorted([states[-1], *said]))


def test_inputs_are_not_changed(stack: RecipeStack, dialogues: tuple[Dialogue, ...], synthetic_schema: Schema) -> None:
    before = copy.deepcopy(dialogues)
    for dialogue in stack.rewrite(dialogues, synthetic_schema, epoch=1, seed=3):
        stack.examples(dialogue)
    assert dialogues == before
