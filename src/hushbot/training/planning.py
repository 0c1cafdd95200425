"""What a training comes to before its first step: the module that trains, and the plan of its updates.

Guarantees: whatever promises privacy trains with the module that gives it and stops by nothing that members tell; the
plan's fingerprint is of everything that decides the weights, so that a checkpoint with another one is another run's.

What voids them: a recipe that changes the module after it was planned.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

from torch import nn

from hushbot.errors import ConfigError, PrivacyError
from hushbot.schema import Schema
from hushbot.training.data import DialogueData
from hushbot.training.joint import check_machine
from hushbot.training.module import TaskBot, TrainingPlan
from hushbot.training.private_checks import check_alone
from hushbot.training.private_module import PrivateTaskBot
from hushbot.training.stack import RecipeStack, check_strategy
from hushbot.training.watching import Watch
from hushbot.types import PrivacyInfo

if TYPE_CHECKING:
    from hushbot.training.fit import TrainerSettings


def check_settings(stack: RecipeStack, data: DialogueData, settings: TrainerSettings, watch: Watch | None) -> None:
    """Refuse what cannot be trained as it was asked for.

    Raises:
        ConfigError: Early stopping is on and there is no calibration part; members would decide when a training ends
            that promises privacy; or the processes cannot be had, or cannot do what they would have to.
    """
    check_strategy(settings.strategy, stack.recipes)
    if settings.patience is not None and not data.has_calibration:
        raise ConfigError(
            f"patience={settings.patience} needs calibration dialogues to stop by, there are none; "
            "set split.calibration or trainer.patience=null"
        )
    check_machine(settings)
    if settings.is_parted and watch is not None:
        raise ConfigError(
            f"strategy={settings.strategy}: no process has the whole bot while it trains, so nobody can look at it; "
            "set trainer.strategy=ddp or watch.every=null"
        )
    if watch is not None and watch.stops and stack.privacy_unit is not None:
        raise ConfigError(
            f"recipe={'+'.join(stack.names)} promises privacy per {stack.privacy_unit}, which stopping by members' "
            "scores would void; leave out watch.budget"
        )


def plan_module(
    model: nn.Module, stack: RecipeStack, data: DialogueData, plan: TrainingPlan, schema: Schema
) -> TaskBot:
    """Return the module that trains, once it is sure that it can do what the stack promises.

    Raises:
        PrivacyError: A guarantee that a recipe promises would be void.
    """
    module = _trained_by(stack, TaskBot(model, plan))
    if stack.privacy_unit is not None:
        check_alone(stack, data.members, schema, seed=data.seed)
    return module


def _trained_by(stack: RecipeStack, module: TaskBot) -> TaskBot:
    """Return the module that trains.

    Raises:
        PrivacyError: The stack promises a guarantee, and what trains is not the module that gives it.
    """
    trains: TaskBot = stack.privatize(module)
    if stack.privacy_unit is None:
        return trains
    promising = [recipe for recipe in stack.recipes if recipe.privacy_unit is not None]
    # A subclass may do with the members what no ledger sees.
    settings: object = getattr(trains, "settings", None)
    if type(trains) is not PrivateTaskBot or not any(settings is recipe for recipe in promising):
        raise PrivacyError(
            f"recipe={'+'.join(stack.names)} promises privacy per {stack.privacy_unit}, and what trains is a "
            f"{type(trains).__name__} that the promising recipe did not make; leave out the recipe that replaced it"
        )
    return trains


def guarantee(stack: RecipeStack, module: TaskBot) -> PrivacyInfo | None:
    """Return what training guarantees.

    Raises:
        PrivacyError: The stack promises a guarantee, and there is none though the noise was secret.
    """
    privacy = module.privacy()
    is_insecure = isinstance(module, PrivateTaskBot) and module.is_insecure
    if stack.privacy_unit is not None and privacy is None and not is_insecure:
        raise PrivacyError(
            f"recipe={'+'.join(stack.names)} promises privacy per {stack.privacy_unit}, and training gave no "
            "guarantee; start a new run in another directory"
        )
    return privacy


def plan_training(data: DialogueData, settings: TrainerSettings, watch: Watch | None = None) -> TrainingPlan:
    """Return what decides the updates, as far as data and settings say."""
    n_members = len(data.members)
    batch_size = min(settings.batch_size, n_members)
    total_steps = settings.max_epochs * data.batches.n_steps
    ignored = (*settings.no_effect, "accelerator", "devices", "num_threads")
    decisive: list[object] = [
        {key: value for key, value in asdict(settings).items() if key not in ignored},
        data.seed,
        data.fingerprint,
    ]
    if watch is not None and watch.stops:  # one that only looks decides nothing
        decisive.append(watch.fingerprint)
    text = json.dumps(decisive, sort_keys=True)
    return TrainingPlan(
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        warmup_steps=math.ceil(settings.warmup_fraction * total_steps),
        total_steps=total_steps,
        max_grad_norm=settings.max_grad_norm,
        normaliser=batch_size * data.n_supervised / n_members,
        batch_size=batch_size,
        seed=data.seed,
        fingerprint=hashlib.sha256(text.encode()).hexdigest(),
    )
