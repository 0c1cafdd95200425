"""A stack of recipes, applied in the order in which they are named.

Guarantees: exactly one recipe makes the examples, no recipe stands twice, at most one privacy unit is claimed,
no recipe of a stack with one looks from one dialogue at another, and a bot that is not trained has guards only, all
checked when the stack is built; a rewrite that adds, drops, renames or reorders dialogues is refused, because the
split and the privacy unit are stated in dialogue ids.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hushbot.composition import build
from hushbot.errors import ConfigError, DataError
from hushbot.protocols import Recipe, Target
from hushbot.schema import Schema
from hushbot.types import Dialogue, Example

BASE = "base"
"""What a bot is called that nobody trains."""
DEFAULT_MAKER = {"_target_": "hushbot.recipes.turn_level.TurnLevel"}
"""What makes the examples of a stack in which no recipe does."""
WHOLE = ("auto", "ddp")
"""The strategies of several processes by which each has all of a bot and of its gradient."""
_TRAINING_HOOKS = ("rewrite", "examples", "privatize")
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class RecipeStack:
    """Recipes that harden one bot together."""

    recipes: tuple[Recipe, ...]
    """Applied in this order; exactly one says `makes_examples`."""

    def __post_init__(self) -> None:
        problems = []
        spelled = "+".join(self.names) or "(empty)"
        makers = [_name(recipe) for recipe in self.recipes if recipe.makes_examples]
        if len(makers) != 1:
            problems.append(
                f"recipe={spelled} has {len(makers)} recipes that make examples "
                f"({', '.join(makers) or 'none'}), needs exactly one; put turn_level or another one in recipe"
            )
        if repeated := sorted({name for name in self.names if self.names.count(name) > 1}):
            problems.append(f"recipe={spelled} names {', '.join(repeated)} more than once; name each recipe once")
        units = sorted({recipe.privacy_unit for recipe in self.recipes if recipe.privacy_unit is not None})
        if len(units) > 1:
            problems.append(f"recipe={spelled} claims {len(units)} privacy units ({', '.join(units)}); keep one")
        lookers = [_name(recipe) for recipe in self.recipes if recipe.reads_other_dialogues]
        if units and lookers:
            problems.append(
                f"recipe={spelled}: {', '.join(lookers)} takes values from other dialogues, so one {units[0]} changes "
                f"more than its own gradient and epsilon would not hold; set recipe.{lookers[0]}.pool=public"
            )
        if problems:
            raise ConfigError(*problems)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of each recipe, as it is spelled in a configuration (`turn_level`)."""
        return tuple(_name(recipe) for recipe in self.recipes)

    @property
    def privacy_unit(self) -> str | None:
        """Return the unit of the differential privacy guarantee, or None when no recipe gives one."""
        return next((recipe.privacy_unit for recipe in self.recipes if recipe.privacy_unit is not None), None)

    @property
    def learns_changes(self) -> bool:
        """Return whether the bot writes what each turn changed, in one running text per dialogue."""
        return self._maker.learns_changes

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> tuple[Dialogue, ...]:
        """Return the dialogues to train on in one epoch, same ids in the same order.

        Raises:
            DataError: A recipe changed the ids or their order.
        """
        ids = [dialogue.id for dialogue in dialogues]
        rewritten: Sequence[Dialogue] = dialogues
        for recipe in self.recipes:
            rewritten = recipe.rewrite(rewritten, schema, epoch=epoch, seed=seed)
            if [dialogue.id for dialogue in rewritten] != ids:
                raise DataError(
                    f"recipe {_name(recipe)} returned {len(rewritten)} dialogues for {len(ids)} in epoch "
                    f"{epoch}, or other ids or another order; its rewrite must keep ids and their order"
                )
        return tuple(rewritten)

    def examples(self, dialogue: Dialogue) -> tuple[Example, ...]:
        """Return the training examples of one dialogue, from the one recipe that makes them."""
        return tuple(self._maker.examples(dialogue))

    def privatize(self, module: Any) -> Any:
        """Return the Lightning module that trains."""
        for recipe in self.recipes:
            module = recipe.privatize(module)
        return module

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the target as deployed: the guard of the last recipe stands outermost."""
        for recipe in self.recipes:
            target = recipe.guard(target, schema)
        return target

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> tuple[str, ...]:
        """Return what the recipes have to say of their work on the members, each note under its recipe's name."""
        return tuple(
            f"{_name(recipe)}: {note}" for recipe in self.recipes for note in recipe.notes(dialogues, schema, seed=seed)
        )

    @property
    def _maker(self) -> Recipe:
        return next(recipe for recipe in self.recipes if recipe.makes_examples)


def build_stack(config: Mapping[str, Any]) -> RecipeStack:
    """Build the recipe stack of a composed configuration; one that makes no examples itself makes one per turn.

    Raises:
        ConfigError: A recipe has a wrong setting, or the stack is senseless: by itself, or because nothing is trained.
    """
    built = {key: build(node, f"recipe.{key}") for key, node in config["recipe"].items()}
    if not config.get("fit", True):
        _refuse_training(config["recipe"], built)
    recipes = tuple(built.values())
    _refuse_budget(config.get("watch"), recipes)
    trainer = config.get("trainer")
    check_strategy(trainer.get("strategy") if isinstance(trainer, Mapping) else None, recipes)
    if not any(recipe.makes_examples for recipe in recipes):
        recipes = (build(DEFAULT_MAKER, "recipe.turn_level"), *recipes)
    return RecipeStack(recipes)


def stack_name(config: Mapping[str, Any]) -> str:
    """Return how a recipe stack is spelled; where nothing is trained `base`, with the guards around it."""
    if config["fit"]:
        return "+".join(config["recipe"])
    return "+".join([BASE, *(key for key, node in config["recipe"].items() if not _is_default_maker(node))])


def is_for_training(kind: type[Recipe]) -> bool:
    """Return whether recipes of a class take part in training; one that only guards the trained bot does not."""
    return kind.makes_examples or any(getattr(kind, hook) is not getattr(Recipe, hook) for hook in _TRAINING_HOOKS)


def _refuse_training(nodes: Mapping[str, Any], built: Mapping[str, Recipe]) -> None:
    training = [
        key
        for key, recipe in built.items()
        if (is_for_training(type(recipe)) or recipe.makes_examples) and not _is_default_maker(nodes[key])
    ]
    if training:
        raise ConfigError(
            f"recipe={'+'.join(built)}: {', '.join(training)} would harden the training, and with fit=false there is "
            f"none (`base` says so); leave out base and fit=false, or {' and '.join(training)}"
        )


def _refuse_budget(watch: object, recipes: Sequence[Recipe]) -> None:
    """Refuse to end by what members' scores say a training that promises privacy."""
    budget = watch.get("budget") if isinstance(watch, Mapping) else None
    private = [recipe for recipe in recipes if recipe.privacy_unit is not None]
    if private and isinstance(budget, Mapping) and any(limit is not None for limit in budget.values()):
        raise ConfigError(
            f"watch.budget={dict(budget)}: {_name(private[0])} promises privacy per {private[0].privacy_unit}, which "
            "stopping by members' scores would void; leave watch.budget out, looking alone is allowed"
        )


def check_strategy(strategy: object, recipes: Sequence[Recipe]) -> None:
    """Refuse to part the weights of a training that promises privacy.

    Raises:
        ConfigError: A gradient must be whole where it is clipped.
    """
    private = [recipe for recipe in recipes if recipe.privacy_unit is not None]
    if strategy not in (None, *WHOLE) and private:
        raise ConfigError(
            f"strategy={strategy}: {_name(private[0])} clips each {private[0].privacy_unit}'s gradient, which must be "
            "whole where it is clipped; set trainer.strategy=ddp, or train an adapter (backbone.lora) to save memory"
        )


def _is_default_maker(node: object) -> bool:
    return isinstance(node, Mapping) and node.get("_target_") == DEFAULT_MAKER["_target_"]


def _name(recipe: Recipe) -> str:
    return _WORD_START.sub("_", type(recipe).__name__).lower()
