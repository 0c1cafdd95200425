"""Looking at a bot in training: it leaves no trace, its curve survives a kill, and a budget ends training once."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hushbot.errors import ConfigError, HushbotError
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training import module as module_file
from hushbot.training.callbacks import BestWeights, LastCheckpoint
from hushbot.training.fit import FitResult, TrainerSettings
from hushbot.training.module import EpochRecord, TaskBot
from hushbot.training.stack import RecipeStack
from hushbot.training.watching import OUTSIDE_THE_GUARANTEE
from hushbot.types import Estimate

SETTINGS = TrainerSettings(
    max_epochs=4,
    batch_size=2,
    learning_rate=5e-3,
    num_threads=1,
    accelerator="cpu",
    progress_bar=False,
    schedule="constant",
    warmup_fraction=0,
)
"""Three steps an epoch; the learning rate is the same in each, so that a shorter training is the start of a longer."""
METRIC = "membership/auc"

Train = Callable[..., tuple[dict[str, Tensor], FitResult]]
PowerCut = Callable[[object, str, int], AbstractContextManager[None]]


@dataclass
class Scripted:
    """Sees what it is told to see, look by look, and is as careless with the model as a watch can be."""

    values: tuple[float | None, ...]
    budget: float | None = None
    every: int = 1
    n_looks: int = 0
    seen: list[Tensor] = field(default_factory=list)

    @property
    def stops(self) -> bool:
        return self.budget is not None

    @property
    def fingerprint(self) -> str:
        return f"{self.budget}"

    @property
    def description(self) -> str:
        return "scripted"

    def look(self, model: nn.Module) -> dict[str, Estimate]:
        model.eval()
        torch.rand(3), np.random.rand(3), random.random()
        self.seen.append(next(model.parameters()).detach().clone())
        value = self.values[self.n_looks]
        self.n_looks += 1
        return {METRIC: Estimate(value=value, low=value, high=value, n=9, method="scripted")}

    def excess(self, measured: Mapping[str, Estimate]) -> str | None:
        value = measured[METRIC].value
        return None if self.budget is None or (value is not None and value <= self.budget) else f"{value} leaks"


@pytest.fixture
def train(fit_small: Callable[..., Any], turn_stack: RecipeStack) -> Train:
    def run(
        settings: TrainerSettings = SETTINGS, *, stack: RecipeStack = turn_stack, **more: Any
    ) -> tuple[dict[str, Tensor], FitResult]:
        return fit_small(stack, settings, **more)  # type: ignore[no-any-return]

    return run


def curve(result: FitResult) -> list[tuple[int, float | None]]:
    return [(r.epoch, r.measured[METRIC].value) for r in result.history if METRIC in r.measured]


# --- looking ---


def test_looking_changes_neither_weights_nor_random_states(
    train: Train, make_small_model: Callable[[], nn.Module]
) -> None:
    def with_dropout() -> nn.Module:
        model: Any = make_small_model()
        model.model.embed_tokens.register_forward_hook(lambda m, _, out: F.dropout(out, 0.3, m.training))
        return model  # type: ignore[no-any-return]

    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    expected = random.getstate(), np.random.rand(), torch.rand(1)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    watch = Scripted((0.1,) * 5)
    watched = train(model=with_dropout(), watch=watch)
    found = random.getstate(), np.random.rand(), torch.rand(1)
    plain = train(model=with_dropout(), folder="b")
    assert watch.n_looks == 5
    assert watched[0] == plain[0]
    assert found == expected
    assert [replace(r, seconds=0, measured={}) for r in watched[1].history[1:]] == [
        replace(r, seconds=0) for r in plain[1].history
    ]
    assert train(folder="dry")[0] != plain[0]  # dropout was on, and looking in evaluation mode did not end it


def test_it_looks_before_the_first_step_after_every_few_epochs_and_after_the_last(train: Train) -> None:
    watch = Scripted((0.5, 0.6, 0.7), every=3)
    _, result = train(watch=watch)
    assert curve(result) == [(0, 0.5), (3, 0.6), (4, 0.7)]
    assert [record.epoch for record in result.history] == [0, 1, 2, 3, 4]
    assert result.epochs == 4
    assert result.history[0].train_loss is None
    assert "watch: scripted" in result.notes
    _, plain = train(folder="b")
    assert [record.epoch for record in plain.history] == [1, 2, 3, 4]
    assert plain.notes == ()
    assert plain.seconds_watching == 0


def test_it_sees_the_weights_as_they_are_then(train: Train, make_small_model: Callable[[], nn.Module]) -> None:
    watch = Scripted((0.5,) * 5)
    weights, _ = train(watch=watch)
    name, first = next(make_small_model().named_parameters())
    assert torch.equal(watch.seen[0], first)
    assert torch.equal(watch.seen[-1], weights[name])
    assert torch.equal(watch.seen[1], train(replace(SETTINGS, max_epochs=1), folder="b")[0][name])


def test_the_time_of_looking_is_not_training_time(monkeypatch: pytest.MonkeyPatch, small_plan: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(module_file.time, "perf_counter", lambda: now[0])
    module = small_plan()
    module.leave_out(7)  # before training there is nothing to leave it out of
    module._started = 100.0
    now[0] = 130.0
    module.leave_out(10)
    assert module.seconds == 20


@pytest.fixture
def small_plan(make_small_model: Callable[[], nn.Module]) -> Callable[[], TaskBot]:
    from hushbot.training.module import TrainingPlan

    def make() -> TaskBot:
        plan = TrainingPlan(
            learning_rate=1e-3,
            weight_decay=0,
            schedule="constant",
            warmup_steps=0,
            total_steps=1,
            max_grad_norm=None,
            normaliser=1,
            batch_size=1,
            seed=0,
            fingerprint="",
        )
        return TaskBot(make_small_model(), plan)

    return make


def test_lines_of_progress_show_what_was_seen(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train(replace(SETTINGS, max_epochs=1, progress_bar=True), watch=Scripted((0.5, None)))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch")]
    assert lines[0].startswith("epoch 0/1  membership/auc 0.500 [0.500, 0.500]")
    assert "  loss " in lines[1]
    assert "membership/auc not measured" in lines[1]


# --- a budget ---


def test_a_budget_ends_training_and_keeps_the_last_weights_within_it(train: Train) -> None:
    watch = Scripted((0.9, 0.5, 0.55, 0.7, 0.5), budget=0.6)
    weights, result = train(watch=watch)
    assert curve(result) == [(0, 0.9), (1, 0.5), (2, 0.55), (3, 0.7)]  # before the first step nothing is decided
    assert (result.epochs, result.steps, result.stopped_early) == (3, 9, True)
    assert weights == train(replace(SETTINGS, max_epochs=2), folder="b")[0]
    (note,) = [note for note in result.notes if "stopped" in note and "leaks" in note]
    assert note == (
        "watch: training stopped after epoch 3 of 4: 0.7 leaks; the bot has the weights of epoch 2, the last look that "
        "was within the budget"
    )
    assert any("intervals of the audit do not take into account" in note for note in result.notes)


def test_within_the_budget_training_runs_to_its_end(train: Train) -> None:
    weights, result = train(watch=Scripted((0.5,) * 5, budget=0.6))
    assert not result.stopped_early
    assert result.notes == ("watch: scripted",)
    assert weights == train(folder="b")[0]


@pytest.mark.parametrize("value", [0.7, None])
def test_a_bot_that_was_never_within_the_budget_is_said_to_be_over_it(train: Train, value: float | None) -> None:
    weights, result = train(watch=Scripted((0.5, value), budget=0.6))  # what could not be measured is over it too
    assert result.epochs == 1
    assert weights == train(replace(SETTINGS, max_epochs=1), folder="b")[0]
    assert any("no look was ever within the budget" in note for note in result.notes)


@pytest.mark.parametrize(("best_epoch", "kept"), [(1, 1), (3, 2)])
def test_the_best_weights_are_kept_only_where_they_are_within_the_budget(
    train: Train, monkeypatch: pytest.MonkeyPatch, best_epoch: int, kept: int
) -> None:
    original = TaskBot.epoch_record

    def record(self: TaskBot) -> EpochRecord:
        made = original(self)
        return replace(made, calibration_loss=float(abs(made.epoch - best_epoch)))

    monkeypatch.setattr(TaskBot, "epoch_record", record)
    watch = Scripted((0.5, 0.5, 0.5, 0.7), budget=0.6)
    weights, result = train(replace(SETTINGS, patience=3), watch=watch)
    assert result.epochs == 3
    assert weights == train(replace(SETTINGS, max_epochs=kept), folder="b")[0]
    assert any(f"the weights of epoch {kept}, " in note for note in result.notes)


# --- being killed ---


@dataclass
class ByWeights(Scripted):
    """Sees the same in the same weights, whenever it looks."""

    known: list[Tensor] = field(default_factory=list)

    def look(self, model: nn.Module) -> dict[str, Estimate]:
        now = next(model.parameters()).detach()
        self.n_looks = next((i for i, one in enumerate(self.known) if torch.equal(one, now)), len(self.known))
        if self.n_looks == len(self.known):
            self.known.append(now.clone())
        return super().look(model)


VALUES = (0.9, 0.5, 0.55, 0.7)


@pytest.fixture(scope="module")
def whole_runs() -> dict[str, Any]:
    return {}


CUTS = [
    (TaskBot, "fill_gradients", 2),
    (TaskBot, "fill_gradients", 8),
    (BestWeights, "on_validation_end", 3),
    (LastCheckpoint, "on_train_epoch_end", 2),
    (LastCheckpoint, "on_train_epoch_end", 3),
]


@pytest.mark.parametrize(("owner", "hook", "call"), CUTS, ids=[f"{hook}-{call}" for _, hook, call in CUTS])
def test_a_killed_run_has_the_same_curve_and_stops_after_the_same_epoch(
    train: Train, power_cut: PowerCut, whole_runs: dict[str, Any], owner: type, hook: str, call: int
) -> None:
    settings = replace(SETTINGS, checkpoint_every_n_steps=1, patience=4)
    if not whole_runs:
        whole_runs["run"] = train(settings, watch=ByWeights(VALUES, budget=0.6), folder="whole")
    weights, expected = whole_runs["run"]
    watch = ByWeights(VALUES, budget=0.6)
    with power_cut(owner, hook, call):
        train(settings, watch=watch)
    found, result = train(settings, watch=watch)
    assert found == weights
    assert curve(result) == curve(expected) == [(0, 0.9), (1, 0.5), (2, 0.55), (3, 0.7)]
    assert result.notes == expected.notes
    assert (result.epochs, result.steps) == (3, 9)
    assert len(watch.seen) <= 5  # at most the look that was lost is taken again


def test_a_checkpoint_of_another_budget_is_another_runs(train: Train, power_cut: PowerCut) -> None:
    with power_cut(LastCheckpoint, "on_train_epoch_end", 1):
        train(watch=Scripted(VALUES, budget=0.6))
    for watch in (Scripted(VALUES, budget=0.65), None):
        with pytest.raises(HushbotError, match="other data, settings or weights"):
            train(watch=watch)


def test_a_watch_that_only_looks_may_come_and_go(train: Train, power_cut: PowerCut) -> None:
    with power_cut(LastCheckpoint, "on_train_epoch_end", 1):
        train(watch=Scripted(VALUES))
    weights, result = train()
    assert curve(result) == [(0, 0.9), (1, 0.5)]
    assert weights == train(folder="b")[0]


def test_records_of_older_checkpoints_have_nothing_measured() -> None:
    old = {"epoch": 2, "train_loss": 0.5, "calibration_loss": None, "seconds": 3.0}
    assert EpochRecord.of_plain(old) == EpochRecord(epoch=2, train_loss=0.5, calibration_loss=None, seconds=3.0)
    record = EpochRecord(
        epoch=1, train_loss=1.0, calibration_loss=2.0, seconds=0.0, measured={METRIC: Estimate(value=0.5, n=4)}
    )
    assert EpochRecord.of_plain(record.as_plain()) == record


# --- privacy ---


def test_a_private_training_may_be_looked_at_but_not_ended_by_what_is_seen(train: Train, tmp_path: Path) -> None:
    stack = RecipeStack((TurnLevel(), DpSgd(expected_batch_size=2, accountant="rdp")))
    with pytest.raises(ConfigError, match="privacy per dialogue, which stopping by members' scores would void"):
        train(stack=stack, watch=Scripted((0.5,) * 5, budget=0.6))
    assert not (tmp_path / "a").exists()
    _, result = train(replace(SETTINGS, max_epochs=1), stack=stack, watch=Scripted((0.5, 0.6)))
    assert curve(result) == [(0, 0.5), (1, 0.6)]
    assert OUTSIDE_THE_GUARANTEE in result.notes
    assert result.privacy is not None
    assert result.privacy.steps == 3
