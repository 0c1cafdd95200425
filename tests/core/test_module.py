"""One optimiser step: the gradient of a logical batch, clipping, the schedule, and what makes it refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbot.errors import HushbotError
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.data import DialogueData, Packer
from hushbot.training.fit import TrainerSettings, fit
from hushbot.training.module import TaskBot, TrainingPlan
from hushbot.training.packing import unpack_rows
from hushbot.training.planning import plan_training
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit

Start = Callable[..., None]


class Seen(Exception):
    """Stops training as soon as a test has seen enough."""


def plan(**changes: Any) -> TrainingPlan:
    values: dict[str, Any] = {
        "learning_rate": 1.0,
        "weight_decay": 0.0,
        "schedule": "cosine",
        "warmup_steps": 0,
        "total_steps": 10,
        "max_grad_norm": None,
        "normaliser": 1.0,
        "batch_size": 2,
        "seed": 0,
        "fingerprint": "",
    }
    return TrainingPlan(**{**values, **changes})


@pytest.fixture
def start(small_tokenizer: Any, few_dialogues: AuditSplit, turn_stack: RecipeStack, tmp_path: Any) -> Start:
    """Return a function that starts training a model for two epochs in batches of four."""

    def run(model: nn.Module, *, max_grad_norm: float | None = None, learning_rate: float = 1e-2) -> None:
        settings = TrainerSettings(
            max_epochs=2,
            batch_size=4,
            learning_rate=learning_rate,
            warmup_fraction=0,
            max_grad_norm=max_grad_norm,
            accelerator="cpu",
            progress_bar=False,
            num_threads=1,
        )
        fit(
            model,
            small_tokenizer,
            stack=turn_stack,
            split=few_dialogues,
            schema=Schema(()),
            settings=settings,
            max_length=1024,
            checkpoint_dir=tmp_path / "checkpoints",
            seed=0,
        )

    return run


def naive_gradient(model: Any, tokenizer: Any, dialogues: Any, normaliser: float) -> dict[str, Tensor]:
    """Compute the gradient one ordinary row at a time, logits everywhere, nothing shared."""
    model.zero_grad()
    for dialogue in dialogues:
        for row in unpack_rows(TurnLevel().examples(dialogue), tokenizer, max_length=1024):
            ids = torch.tensor([row.input_ids])
            losses = F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none")
            (losses[torch.tensor(row.supervised[1:])].sum() / normaliser).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def test_the_gradient_of_a_logical_batch_is_the_naive_mean(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    make_small_model: Callable[[], nn.Module],
    small_tokenizer: Any,
    few_dialogues: AuditSplit,
) -> None:
    batches: list[list[str]] = []
    gradients: dict[str, Tensor] = {}
    fill = TaskBot.fill_gradients

    def spy(self: TaskBot, batch: Any) -> list[float]:
        losses = fill(self, batch)
        batches.append([packed.dialogue_id for packed in batch])
        for name, weight in self.trainable().items():
            if weight.grad is not None:
                gradients[name.removeprefix("model.")] = weight.grad.clone()
        raise Seen(losses)

    monkeypatch.setattr(TaskBot, "fill_gradients", spy)
    with pytest.raises(Seen):
        start(make_small_model())
    by_id = {dialogue.id: dialogue for dialogue in few_dialogues.members}
    rows = [
        row
        for d in few_dialogues.members
        for row in unpack_rows(TurnLevel().examples(d), small_tokenizer, max_length=1024)
    ]
    mean_supervised = sum(sum(row.supervised) for row in rows) / 6
    batch = [by_id[name] for name in batches[0]]
    expected = naive_gradient(make_small_model(), small_tokenizer, batch, 4 * mean_supervised)
    assert len(batch) == 4
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert torch.linalg.norm(gradient - expected[name]) <= 1e-5 * torch.linalg.norm(expected[name]), name


def test_the_normaliser_is_batch_size_times_mean_supervised_tokens(
    small_tokenizer: Any, few_dialogues: AuditSplit, turn_stack: RecipeStack
) -> None:
    data = DialogueData(
        members=few_dialogues.members,
        calibration=(),
        schema=Schema(()),
        packer=Packer(turn_stack, small_tokenizer, 1024),
        batch_size=4,
        seed=0,
    )
    planned = plan_training(data, TrainerSettings(batch_size=4, max_epochs=5, warmup_fraction=0.25))
    assert planned.normaliser == pytest.approx(4 * data.n_supervised / 6)
    assert (planned.total_steps, planned.warmup_steps) == (10, 3)
    # A batch cannot hold more than there is.
    assert plan_training(data, TrainerSettings(batch_size=50)).normaliser == pytest.approx(data.n_supervised)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0]),
    ],
)
def test_the_learning_rate_rises_and_falls_as_planned(schedule: str, expected: list[float]) -> None:
    planned = plan(schedule=schedule, warmup_steps=2, total_steps=6)
    assert [planned.learning_rate_factor(step) for step in range(7)] == pytest.approx(expected)


def test_clipping_scales_the_whole_gradient() -> None:
    bot = TaskBot(nn.Linear(2, 1, bias=False), plan(max_grad_norm=1.0))
    weight = next(bot.model.parameters())
    weight.grad = torch.tensor([[3.0, 4.0]])
    bot.clip_gradient()
    assert weight.grad.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]
    weight.grad = torch.tensor([[0.3, 0.4]])
    bot.clip_gradient()
    assert weight.grad.tolist() == [[pytest.approx(0.3), pytest.approx(0.4)]]


def test_a_gradient_that_is_not_finite_is_an_error_naming_the_step(
    start: Start, make_small_model: Callable[[], Any]
) -> None:
    model = make_small_model()
    model.model.norm.weight.register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(HushbotError, match=r"step 1: the gradient norm is (nan|inf), must be finite"):
        start(model)


def test_weights_that_do_not_move_are_an_error(start: Start, make_small_model: Callable[[], nn.Module]) -> None:
    with pytest.raises(HushbotError, match=r"step 1 changed none of \d+ trainable tensors"):
        start(make_small_model(), learning_rate=1e-30)


def test_weights_that_explode_are_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, make_small_model: Callable[[], Any]
) -> None:
    def explode(self: TaskBot) -> None:
        next(iter(self.trainable().values())).data.mul_(math.inf)

    monkeypatch.setattr(TaskBot, "clip_gradient", explode)
    with pytest.raises(HushbotError, match=r"step 1 left 1 of \d+ trainable tensors not finite"):
        start(make_small_model())


def test_an_optimiser_with_other_tensors_is_an_error(
    start: Start, monkeypatch: pytest.MonkeyPatch, make_small_model: Callable[[], nn.Module]
) -> None:
    copies = [nn.Parameter(weight.detach().clone()) for weight in make_small_model().parameters()]
    monkeypatch.setattr(TaskBot, "configure_optimizers", lambda self: torch.optim.AdamW(copies))
    with pytest.raises(HushbotError, match="the optimiser holds"):
        start(make_small_model())


def test_only_plain_values_are_hyperparameters() -> None:
    bot = TaskBot(nn.Linear(1, 1), plan())
    assert {type(value) for value in bot.hparams.values()} <= {int, float, str, type(None)}
    assert bot.hparams["learning_rate"] == 1.0
