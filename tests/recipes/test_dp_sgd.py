"""The recipe's settings, and which module it makes private."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

from hushbot.errors import ConfigError
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.schema import Schema
from hushbot.training.module import TaskBot, TrainingPlan
from hushbot.training.private_module import PrivateTaskBot

ROOT = Path(__file__).resolve().parents[2]
PLAN = TrainingPlan(
    learning_rate=1.0,
    weight_decay=0.0,
    schedule="constant",
    warmup_steps=0,
    total_steps=1,
    max_grad_norm=None,
    normaliser=1.0,
    batch_size=1,
    seed=0,
    fingerprint="",
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_epsilon", 0.0),
        ("target_epsilon", math.nan),
        ("target_epsilon", math.inf),
        ("delta", 0.0),
        ("delta", 1.0),
        ("max_grad_norm", 0.0),
        ("max_grad_norm", math.inf),
        ("expected_batch_size", 0),
        ("sample_rate", 0.0),
        ("sample_rate", 1.5),
        ("learning_rate", -1.0),
        ("accountant", "gdp"),
        ("engine", "ghost"),
        ("chunk_tokens", 0),
        ("insecure_seed", -1),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}={value!r} must be .*; set recipe\.dp_sgd\.{name}$"):
        DpSgd(**{name: value})


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf])
def test_there_is_no_training_without_noise(noise: float) -> None:
    with pytest.raises(ConfigError, match=r"noise_multiplier=.* must be positive"):
        DpSgd(target_epsilon=None, noise_multiplier=noise)


@pytest.mark.parametrize("values", [(8.0, 1.0), (None, None)])
def test_target_and_noise_exclude_each_other(values: tuple[float | None, float | None]) -> None:
    with pytest.raises(ConfigError, match="exactly one must be set"):
        DpSgd(target_epsilon=values[0], noise_multiplier=values[1])


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        DpSgd(noise_multiplier=-1.0, delta=2.0, chunk_tokens=0)
    assert len(caught.value.problems) == 4


def test_the_file_names_every_setting_with_its_default() -> None:
    content = yaml.safe_load((ROOT / "configs/recipe/dp_sgd.yaml").read_text(encoding="utf-8"))["dp_sgd"]
    assert content.pop("_target_") == "hushbot.recipes.dp_sgd.DpSgd"
    assert content == {field.name: field.default for field in fields(DpSgd)}


def test_the_module_keeps_model_and_plan() -> None:
    module, recipe = TaskBot(nn.Linear(1, 1), PLAN), DpSgd()
    private = recipe.privatize(module)
    assert type(private) is PrivateTaskBot
    assert private.model is module.model
    assert private.plan == PLAN
    assert private.settings is recipe


def test_a_module_with_a_step_of_its_own_is_refused() -> None:
    class Curious(TaskBot):
        pass

    for module in (Curious(nn.Linear(1, 1), PLAN), DpSgd().privatize(TaskBot(nn.Linear(1, 1), PLAN)), "text"):
        with pytest.raises(ConfigError, match=f"got a {type(module).__name__}"):
            DpSgd().privatize(module)


def test_the_unit_is_the_dialogue_and_only_a_known_seed_is_worth_a_note() -> None:
    assert DpSgd.privacy_unit == "dialogue"
    assert not DpSgd.makes_examples
    assert not DpSgd.reads_other_dialogues
    assert DpSgd().notes((), Schema(()), seed=0) == ()
    (note,) = DpSgd(insecure_seed=3).notes((), Schema(()), seed=0)
    assert "NOT private" in note


def test_noise_that_gives_no_finite_epsilon_is_refused_unless_none_is_promised() -> None:
    with pytest.raises(ConfigError, match=r"noise_multiplier=0\.005 must be at least 0\.01"):
        DpSgd(target_epsilon=None, noise_multiplier=0.005)
    assert DpSgd(target_epsilon=None, noise_multiplier=0.01).noise_multiplier == 0.01
    assert DpSgd(target_epsilon=None, noise_multiplier=0.005, insecure_seed=0).noise_multiplier == 0.005


def test_only_settings_that_exist_are_said_to_have_no_effect() -> None:
    assert set(DpSgd.no_effect) == {"engine", "chunk_tokens"} <= {field.name for field in fields(DpSgd)}
