"""Which trainers are refused, and which weights may move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pytorch_lightning import Trainer
from torch import nn

from hushbot.errors import HushbotError, PrivacyError
from hushbot.training.private_checks import check_weights, refusals, weight_digests

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
