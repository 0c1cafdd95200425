"""A stack applies its recipes in order and refuses combinations that make no sense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from hushbot.errors import ConfigError, DataError
from hushbot.protocols import Recipe, Target
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.stack import RecipeStack, build_stack, is_for_training, stack_name
from hushbot.types import Dialogue, Example, Segment, Turn

DIALOGUES = tuple(Dialogue(name, (Turn("hi", frozenset()),)) for name in ("a", "b", "c"))


@dataclass(frozen=True, kw_only=True)
class AppendWord(Recipe):
    """Appends a word wherever a recipe can act."""

    word: str = "x"

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        return [
            replace(d, turns=tuple(replace(t, user=f"{t.user} {self.word}{epoch}{seed}") for t in d.turns))
            for d in dialogues
        ]

    def privatize(self, module: Any) -> Any:
        return f"{self.word}({module})"

    def guard(self, target: Target, schema: Schema) -> Target:
        return cast(Target, f"{self.word}[{target}]")

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        return [f"{self.word} appended to {len(dialogues)} dialogues"]


class AppendMore(AppendWord):
    """The same under another name."""


class DpSgd(Recipe):
    privacy_unit = "dialogue"


class Borrow(Recipe):
    reads_other_dialogues = True


class PerUser(Recipe):
    privacy_unit = "user"


class WholeText(Recipe):
    makes_examples = True

    def examples(self, dialogue: Dialogue) -> Sequence[Example]:
        return [Example(dialogue.id, (Segment("whole", True),))]


class DropLast(Recipe):
    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        return dialogues[:-1]


class Reverse(Recipe):
    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        return dialogues[::-1]


@pytest.mark.parametrize(
    ("recipes", "said"),
    [
        ((), r"recipe=\(empty\) has 0 recipes that make examples \(none\)"),
        ((DpSgd(),), "recipe=dp_sgd has 0 recipes that make examples"),
        ((TurnLevel(), WholeText()), r"recipe=turn_level\+whole_text has 2 .*\(turn_level, whole_text\)"),
        ((TurnLevel(), AppendWord(), AppendWord()), "names append_word more than once"),
        ((TurnLevel(), Borrow(), DpSgd()), r"borrow takes values from other dialogues, so one dialogue changes more"),
        ((TurnLevel(), DpSgd(), PerUser()), r"claims 2 privacy units \(dialogue, user\)"),
    ],
)
def test_stacks_that_make_no_sense_are_refused(recipes: tuple[Recipe, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RecipeStack(recipes)


def test_all_problems_of_a_stack_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        RecipeStack((DpSgd(), DpSgd(), PerUser()))
    assert len(caught.value.problems) == 3


def test_hooks_apply_in_the_order_of_the_stack() -> None:
    stack = RecipeStack((AppendWord(word="x"), TurnLevel(), AppendMore(word="y")))
    rewritten = stack.rewrite(DIALOGUES, Schema(()), epoch=4, seed=2)
    assert [d.turns[0].user for d in rewritten] == ["hi x42 y42"] * 3
    assert stack.privatize("m") == "y(x(m))"
    assert stack.guard(cast(Target, "t"), Schema(())) == "y[x[t]]"
    assert stack.notes(DIALOGUES, Schema(()), seed=2) == (
        "append_word: x appended to 3 dialogues",
        "append_more: y appended to 3 dialogues",
    )
    assert stack.names == ("append_word", "turn_level", "append_more")


def test_examples_come_from_the_one_recipe_that_makes_them() -> None:
    stack = RecipeStack((DpSgd(), WholeText(), AppendWord()))
    assert stack.examples(DIALOGUES[0]) == (Example("a", (Segment("whole", True),)),)


def test_the_privacy_unit_is_that_of_the_recipe_that_has_one() -> None:
    assert RecipeStack((TurnLevel(), DpSgd())).privacy_unit == "dialogue"
    assert RecipeStack((TurnLevel(),)).privacy_unit is None


@pytest.mark.parametrize("recipe", [DropLast(), Reverse()])
def test_a_rewrite_that_loses_or_reorders_dialogues_is_refused(recipe: Recipe) -> None:
    stack = RecipeStack((TurnLevel(), recipe))
    with pytest.raises(DataError, match=f"recipe {stack.names[1]} returned"):
        stack.rewrite(DIALOGUES, Schema(()), epoch=0, seed=0)


def test_without_a_recipe_that_makes_examples_a_configuration_means_one_per_turn() -> None:
    alone = {"recipe": {"append_word": {"_target_": "hushbot.protocols.Recipe"}}}
    assert build_stack(alone).names == ("turn_level", "recipe")
    named = {"recipe": {"turn_level": {"_target_": "hushbot.recipes.turn_level.TurnLevel"}, **alone["recipe"]}}
    assert build_stack(named).names == ("turn_level", "recipe")


def test_a_stack_says_how_its_bot_writes_states() -> None:
    assert not RecipeStack((TurnLevel(),)).learns_changes


def test_what_takes_part_in_training() -> None:
    assert is_for_training(TurnLevel)
    assert is_for_training(AppendWord)  # rewrites
    assert is_for_training(WholeText)
    assert not is_for_training(Recipe)
    assert not is_for_training(Muzzle)


class Muzzle(Recipe):
    """Guards only."""

    def guard(self, target: Target, schema: Schema) -> Target:
        return target


def target_of(kind: type[Recipe]) -> dict[str, str]:
    return {"_target_": f"{kind.__module__}.{kind.__name__}"}


def test_where_nothing_is_trained_there_are_guards_only() -> None:
    turn_level = {"turn_level": target_of(TurnLevel)}
    guarded = {"fit": False, "recipe": {**turn_level, "muzzle": target_of(Muzzle)}}
    assert build_stack(guarded).names == ("turn_level", "muzzle")
    assert stack_name(guarded) == "base+muzzle"
    assert stack_name({**guarded, "fit": True}) == "turn_level+muzzle"
    assert stack_name({"fit": False, "recipe": turn_level}) == "base"
    for kind in (AppendWord, WholeText):
        with pytest.raises(ConfigError, match="x would harden the training, and with fit=false there is none"):
            build_stack({"fit": False, "recipe": {"x": target_of(kind)}})


def test_a_private_training_is_not_ended_by_what_members_scores_say() -> None:
    private = {"recipe": {"dp_sgd": target_of(DpSgd)}, "watch": {"every": 1, "budget": {"membership_auc": 0.6}}}
    with pytest.raises(ConfigError, match=r"watch\.budget=.*dp_sgd promises privacy per dialogue"):
        build_stack(private)
    looking = {"every": 1, "budget": {"membership_auc": None}}
    assert build_stack({**private, "watch": looking}).privacy_unit == "dialogue"
    plain = {"turn_level": target_of(TurnLevel)}
    assert build_stack({**private, "recipe": plain}).privacy_unit is None
