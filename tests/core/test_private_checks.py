"""Which trainers are refused, and which weights may move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pytorch_lightning import Trainer
from torch import nn

from hushbot.errors import HushbotError, PrivacyError
from hushbot.protocols import Recipe
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.mechanism import plan_mechanism
from hushbot.training.poisson import PoissonBatches, secret_generator, seeded_generator
from hushbot.training.private_checks import (
    chance_refusals,
    check_alone,
    check_weights,
    refusals,
    sampling_refusals,
    weight_digests,
)
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Dialogue

BATCHES: Any = object()


class TwoLayers(nn.Module):
    """A frozen and a trained layer, and a trained weight under a second name."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(2, affine=False)
        self.learns = nn.Linear(2, 2, bias=False)
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.learns.weight

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}


def trainer_of(model: TwoLayers, **changes: Any) -> Any:
    values = {
        "optimizers": [torch.optim.AdamW(model.trainable().values())],
        "accumulate_grad_batches": 1,
        "gradient_clip_val": None,
        "overfit_batches": 0.0,
        "limit_train_batches": 1.0,
        "precision": "32-true",
        "world_size": 1,
        "datamodule": SimpleNamespace(batches=BATCHES),
    }
    return SimpleNamespace(**{**values, **changes})


class OwnSGD(torch.optim.SGD):
    pass


def test_a_plain_trainer_is_let_through() -> None:
    model: Any = TwoLayers()
    for optimiser in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
        trainer = trainer_of(model, optimizers=[optimiser(model.trainable().values(), lr=0.1)], precision="bf16-mixed")
        assert refusals(trainer, model, BATCHES) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2 must be 1"),
        ({"gradient_clip_val": 1.0}, "gradient_clip_val=1.0 must be unset"),
        ({"overfit_batches": 1}, "overfit_batches=1 must be 0"),
        ({"limit_train_batches": 0.5}, "limit_train_batches=0.5 must be 1.0"),
        ({"limit_train_batches": 1}, "limit_train_batches=1 must be 1.0"),
        ({"precision": "16-mixed"}, "precision=16-mixed must be 32-true or bf16-mixed"),
        ({"precision": "bf16-true"}, "precision=bf16-true must be"),
        ({"world_size": 2}, "2 processes train together"),
        ({"datamodule": SimpleNamespace(batches=object())}, "batches come from elsewhere"),
        ({"datamodule": None}, "batches come from elsewhere"),
        ({"optimizers": []}, "the optimiser is missing"),
    ],
)
def test_what_would_void_the_guarantee_is_refused(changes: dict[str, Any], said: str) -> None:
    model: Any = TwoLayers()
    problems = refusals(trainer_of(model, **changes), model, BATCHES)
    assert any(said in problem for problem in problems)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"accumulate_grad_batches": 2}, ["accumulate_grad_batches=2"]),
        ({"gradient_clip_val": 0.5}, ["gradient_clip_val=0.5"]),
        ({"overfit_batches": 1}, ["overfit_batches=1", "limit_train_batches=1"]),
        ({"limit_train_batches": 0.5}, ["limit_train_batches=0.5"]),
        ({"fast_dev_run": True}, ["limit_train_batches=1"]),
        ({"precision": "64-true"}, ["precision=64-true"]),
        ({}, []),
    ],
)
def test_a_real_trainer_says_what_it_was_told(option: dict[str, Any], said: list[str]) -> None:
    model: Any = TwoLayers()
    trainer: Any = Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, **option)
    trainer.strategy.optimizers = [torch.optim.AdamW(model.trainable().values())]
    problems = refusals(trainer, model, BATCHES)
    assert [problem.split(" must")[0] for problem in problems[:-1]] == said
    assert problems[-1].startswith("batches come from elsewhere")  # nothing was fitted


@pytest.mark.parametrize("optimiser", [OwnSGD, torch.optim.Rprop, torch.optim.Adagrad])
def test_optimisers_that_nobody_looked_at_are_refused(optimiser: Any) -> None:
    model: Any = TwoLayers()
    (problem,) = refusals(trainer_of(model, optimizers=[optimiser(model.trainable().values())]), model, BATCHES)
    assert f"the optimiser is {optimiser.__name__}, must be one of AdamW, Adam, SGD" in problem


def test_an_optimiser_must_hold_exactly_the_trained_weights() -> None:
    model: Any = TwoLayers()
    for weights in (list(model.parameters()), [nn.Parameter(torch.zeros(2, 2))]):
        (problem,) = refusals(trainer_of(model, optimizers=[torch.optim.SGD(weights, lr=1.0)]), model, BATCHES)
        assert "that are not the model's 1 trainable ones" in problem


def test_all_problems_are_told_at_once() -> None:
    model: Any = TwoLayers()
    assert len(refusals(trainer_of(model, world_size=2, gradient_clip_val=1.0), model, BATCHES)) == 2


def test_trained_weights_must_move_and_others_must_not() -> None:
    model = TwoLayers()
    before = weight_digests(model)
    with pytest.raises(HushbotError, match=r"left 2 of 2 trainable tensors as they were, the first is learns\.weight"):
        check_weights(model, before)
    model.learns.weight.data[0, 0] += 1
    check_weights(model, before)
    model.frozen.bias.data[1] += 1e-7
    with pytest.raises(PrivacyError, match=r"changed 1 frozen tensors, the first is frozen\.bias"):
        check_weights(model, before)


def test_statistics_of_a_batch_must_not_be_kept() -> None:
    model = TwoLayers()
    before = weight_digests(model)
    model.learns.weight.data += 1
    model.norm(torch.randn(4, 2))
    with pytest.raises(PrivacyError, match=r"the first is norm\.running_mean"):
        check_weights(model, before)


MECHANISM = plan_mechanism(
    DpSgd(target_epsilon=None, noise_multiplier=1.0, expected_batch_size=2), n_units=6, max_epochs=2
)


def planned() -> PoissonBatches:
    return PoissonBatches(n_dialogues=6, sample_rate=1 / 3, n_steps=3, generator=secret_generator())


def test_batches_as_they_are_accounted_for_are_let_through() -> None:
    assert sampling_refusals(planned(), secret_generator(), MECHANISM, is_insecure=False) == []
    known = replace(planned(), generator=seeded_generator(0))
    assert sampling_refusals(known, seeded_generator(1), MECHANISM, is_insecure=True) == []


def test_batches_that_are_not_accounted_for_are_named() -> None:
    odd = PoissonBatches(n_dialogues=5, sample_rate=0.5, n_steps=2, generator=seeded_generator(0))
    problems = sampling_refusals(odd, seeded_generator(1), MECHANISM, is_insecure=False)
    assert [problem.split(" the batches")[0].split(" comes")[0] for problem in problems] == [
        "sample_rate of",
        "n_steps of",
        "n_dialogues of",
        "the sampling",
        "the noise",
    ]
    batches = planned()
    (problem,) = sampling_refusals(batches, batches.generator, MECHANISM, is_insecure=False)
    assert "share one generator" in problem


class DropPath(nn.Module):
    """As image models have it: it is no subclass of torch's dropout."""

    drop_prob = 0.2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Shaky(nn.Module):
    """Draws numbers that change nothing, as dropout before an adapter's weights of zero."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0 * F.dropout(x, 0.5, self.training)


class Moody(nn.Module):
    """Computes something else each time without torch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x * self.n


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (nn.Dropout(0.1), r"first is model.norm.1 with p=0.1"),
        (nn.AlphaDropout(0.3), r"first is model.norm.1 with p=0.3"),
        (DropPath(), r"first is model.norm.1 with p=0.2"),
        (Shaky(), "draws random numbers"),
        (Moody(), "draws random numbers"),
        (nn.Dropout(0.0), None),
        (nn.Identity(), None),
    ],
)
def test_a_model_that_is_left_to_chance_is_refused(
    make_small_model: Callable[[], Any], layer: nn.Module, said: str | None
) -> None:
    model = make_small_model()
    model.model.norm = nn.Sequential(model.model.norm, layer)
    before = torch.get_rng_state()
    problems = chance_refusals(model)
    if said is None:
        assert problems == []
    else:
        (problem,) = problems
        assert said in problem
        assert "set backbone.lora.dropout=0" in problem
    assert torch.equal(torch.get_rng_state(), before)


def test_asking_for_chance_leaves_each_layers_mode(make_small_model: Callable[[], Any]) -> None:
    model = make_small_model().train()
    model.lm_head.eval()
    assert chance_refusals(model) == []
    assert model.training
    assert not model.lm_head.training


class OddEpochs(Recipe):
    """Takes a turn of another dialogue in odd epochs."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        if epoch % 2 == 0:
            return dialogues
        return [replace(dialogue, turns=dialogues[-1].turns) for dialogue in dialogues]


class Own(Recipe):
    """Drops the last turn of each."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        return [replace(dialogue, turns=dialogue.turns[:-1]) for dialogue in dialogues]


def test_recipes_that_look_at_others_are_found_out(few_dialogues: AuditSplit) -> None:
    for members in (few_dialogues.members, few_dialogues.members[:2], few_dialogues.members[:1]):
        check_alone(RecipeStack((TurnLevel(), Own())), members, Schema(()), seed=0)
    with pytest.raises(PrivacyError, match="odd_epochs rewrites a member otherwise when it is alone"):
        check_alone(RecipeStack((TurnLevel(), OddEpochs())), few_dialogues.members, Schema(()), seed=0)
