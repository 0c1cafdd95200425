"""Private training end to end on a very small model: it learns as it should, spends what it says, tells nothing."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opacus.accountants import RDPAccountant
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from hushbot.errors import HushbotError, PrivacyError
from hushbot.protocols import Recipe
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training import gradients
from hushbot.training.callbacks import AtomicCheckpointIO
from hushbot.training.fit import FitResult, TrainerSettings
from hushbot.training.guarantee import DOES_NOT_COVER
from hushbot.training.ledger import PrivacyLedger, read_history
from hushbot.training.module import STATE_KEY, TaskBot
from hushbot.training.outline import OUTLINE_KEY
from hushbot.training.packing import PackedDialogue, loss_sum, unpack_rows
from hushbot.training.poisson import PoissonBatches
from hushbot.training.private_module import DP_KEY, LEDGER_NAME, PrivateTaskBot
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Dialogue, PrivacyInfo

SETTINGS = TrainerSettings(
    max_epochs=3, batch_size=2, learning_rate=5e-3, num_threads=1, accelerator="cpu", progress_bar=False
)
EVERY_STEP = replace(SETTINGS, checkpoint_every_n_steps=1)
PRIVATE = DpSgd(expected_batch_size=2, accountant="rdp")
"""Six members, each in each step with probability 1/3: three steps an epoch, nine in all, epsilon 8."""
GIVEN = replace(PRIVATE, target_epsilon=None, noise_multiplier=1.0)
FULL_BATCH = DpSgd(
    target_epsilon=None,
    noise_multiplier=1e-14,
    max_grad_norm=100.0,
    expected_batch_size=6,
    insecure_seed=0,
    accountant="rdp",
)
"""All six members in each step, gradients as they are, noise below rounding."""


Train = Callable[..., tuple[dict[str, Tensor], FitResult]]
PowerCut = Callable[[object, str, int], AbstractContextManager[None]]


@pytest.fixture
def train(fit_small: Callable[..., Any]) -> Train:
    """Return a function that trains a fresh model privately and returns its weights and what `fit` said."""

    def run(
        recipe: DpSgd = PRIVATE, settings: TrainerSettings = SETTINGS, *, others: tuple[Recipe, ...] = (), **more: Any
    ) -> tuple[dict[str, Tensor], FitResult]:
        return fit_small(RecipeStack((TurnLevel(), recipe, *others)), settings, **more)  # type: ignore[no-any-return]

    return run


def are_close(one: dict[str, Tensor], other: dict[str, Tensor], rel: float) -> bool:
    return one.keys() == other.keys() and all(
        torch.linalg.norm(one[name] - other[name]) <= rel * torch.linalg.norm(other[name]) for name in one
    )


def n_spent(path: Path) -> int:
    """Count the steps in a ledger by hand: lines that are no header."""
    lines = [json.loads(line) for line in (path / LEDGER_NAME).read_text().splitlines() if line]
    return sum("ledger" not in line for line in lines)


def rdp(n_steps: int, *, noise: float = 1.0, rate: float = 1 / 3, delta: float = 6**-1.1) -> float:
    accountant = RDPAccountant()
    accountant.history = [(noise, rate, n_steps)]
    return float(accountant.get_epsilon(delta))


@pytest.fixture
def noisy_gradients(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Return a list that grows by each step's gradient, all tensors in one row."""
    seen: list[Tensor] = []
    original = PrivateTaskBot.fill_gradients

    def spy(self: PrivateTaskBot, batch: list[PackedDialogue]) -> list[float]:
        losses = original(self, batch)
        seen.append(torch.cat([w.grad.flatten() for w in self.trainable().values() if w.grad is not None]))
        return losses

    monkeypatch.setattr(PrivateTaskBot, "fill_gradients", spy)
    return seen


# --- learning ---


def naive_gradients(model: Any, tokenizer: Any, dialogues: Any) -> list[dict[str, Tensor]]:
    """Compute each dialogue's gradient per supervised token, one ordinary row at a time."""
    found = []
    for dialogue in dialogues:
        model.zero_grad()
        rows = unpack_rows(TurnLevel().examples(dialogue), tokenizer, max_length=1024)
        n_supervised = sum(sum(row.supervised) for row in rows)
        for row in rows:
            ids = torch.tensor([row.input_ids])
            losses = F.cross_entropy(model(input_ids=ids).logits[0, :-1], ids[0, 1:], reduction="none")
            (losses[torch.tensor(row.supervised[1:])].sum() / n_supervised).backward()
        found.append({name: weight.grad.clone() for name, weight in model.named_parameters()})
    return found


def test_without_clipping_and_noise_it_is_ordinary_full_batch_training(
    train: Train, make_small_model: Callable[[], Any], small_tokenizer: Any, few_dialogues: AuditSplit
) -> None:
    weights, result = train(FULL_BATCH, replace(SETTINGS, schedule="constant", warmup_fraction=0))
    naive = make_small_model()
    optimiser = torch.optim.AdamW(naive.parameters(), lr=5e-3, weight_decay=0)
    for _ in range(3):
        each = naive_gradients(naive, small_tokenizer, few_dialogues.members)
        for name, weight in naive.named_parameters():
            weight.grad = torch.stack([grads[name] for grads in each]).mean(dim=0)
        optimiser.step()
    assert result.steps == 3
    assert are_close(weights, {n: w.detach() for n, w in naive.named_parameters()}, 1e-3)


def test_a_steps_gradient_is_the_clipped_sum_over_the_expected_number(
    train: Train,
    noisy_gradients: list[Tensor],
    make_small_model: Callable[[], Any],
    small_tokenizer: Any,
    few_dialogues: AuditSplit,
) -> None:
    each = [
        torch.cat([g.flatten() for g in grads.values()])
        for grads in naive_gradients(make_small_model(), small_tokenizer, few_dialogues.members)
    ]
    limit = float(sorted(torch.linalg.norm(g) for g in each)[2]) * 0.999  # two stay as they are, four are clipped
    train(replace(FULL_BATCH, max_grad_norm=limit), replace(SETTINGS, max_epochs=1))
    expected = torch.stack([g * min(1.0, limit / float(torch.linalg.norm(g))) for g in each]).sum(0) / 6
    assert torch.linalg.norm(noisy_gradients[0] - expected) <= 1e-4 * torch.linalg.norm(expected)
    assert torch.linalg.norm(expected) <= limit


def test_a_large_budget_learns_and_a_small_one_does_not(
    train: Train, make_small_model: Callable[[], nn.Module], few_dialogues: AuditSplit, small_tokenizer: Any
) -> None:
    long = replace(SETTINGS, max_epochs=12, learning_rate=1e-2)
    rich = train(replace(PRIVATE, target_epsilon=50_000.0), long, folder="rich")[1]
    poor = train(replace(PRIVATE, target_epsilon=0.1, delta=1e-5), long, folder="poor")[1]
    untrained = float(torch.tensor(len(small_tokenizer)).log())  # a random model is near the uniform one
    assert rich.history[-1].calibration_loss is not None
    assert poor.history[-1].calibration_loss is not None
    assert rich.history[-1].calibration_loss < 0.8 * untrained
    assert poor.history[-1].calibration_loss > 0.95 * untrained
    assert rich.privacy is not None
    assert poor.privacy is not None
    assert 49_000 < rich.privacy.epsilon <= 50_000
    assert 0.09 < poor.privacy.epsilon <= 0.1


def test_the_clipping_norm_and_the_noise_reach_the_gradient(train: Train, noisy_gradients: list[Tensor]) -> None:
    loud = replace(GIVEN, noise_multiplier=1000.0, insecure_seed=1)
    short = replace(SETTINGS, max_epochs=1)
    train(loud, short)
    train(replace(loud, max_grad_norm=0.5), short, folder="b")
    for gradient, norm in ((noisy_gradients[0], 1.0), (noisy_gradients[3], 0.5)):
        assert float(gradient.std()) == pytest.approx(1000 * norm / 2, rel=0.03)  # over the expected two dialogues


def test_a_recipe_has_its_own_learning_rate_and_schedule(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    original = TaskBot.clip_gradient

    def spy(self: TaskBot) -> None:
        rates.append(self.trainer.optimizers[0].param_groups[0]["lr"])
        original(self)

    monkeypatch.setattr(PrivateTaskBot, "clip_gradient", spy)
    train(replace(GIVEN, learning_rate=1e-3), replace(SETTINGS, schedule="linear", warmup_fraction=0.2))
    # Nine steps, two of them (0.2 * 9, rounded up) to warm up.
    assert rates == pytest.approx([1e-3 * f for f in (1 / 2, 1, 1, 6 / 7, 5 / 7, 4 / 7, 3 / 7, 2 / 7, 1 / 7)])


@pytest.fixture
def make_adapted_model(make_small_model: Callable[[], Any]) -> Callable[[], nn.Module]:
    """Return a maker of the small model with an adapter on it."""

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            adapter = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
            return get_peft_model(make_small_model(), adapter)

    return make


def test_how_gradients_are_computed_changes_nothing(train: Train, make_adapted_model: Callable[[], nn.Module]) -> None:
    recipe = replace(FULL_BATCH, noise_multiplier=0.1, sample_rate=0.5, max_grad_norm=0.1)
    trained = []
    for i, (engine, chunk) in enumerate((("auto", 4096), ("hooks", 1), ("loop", 4096), ("opacus", 700))):
        changed = replace(recipe, engine=engine, chunk_tokens=chunk)
        trained.append(train(changed, model=make_adapted_model(), folder=str(i))[0])
    before = dict(make_adapted_model().named_parameters())
    for name, weight in trained[0].items():
        assert torch.equal(weight, before[name]) == ("lora_" not in name)
    for other in trained[1:]:
        assert are_close(trained[0], other, 1e-4)


# --- what is spent ---


def test_epsilon_is_that_of_the_ledger(train: Train, tmp_path: Path) -> None:
    _, result = train(GIVEN)
    privacy = result.privacy
    assert privacy is not None
    assert n_spent(tmp_path / "a") == result.steps == privacy.steps == 9
    assert privacy.epsilon == pytest.approx(rdp(9), rel=1e-3)
    assert privacy.epsilon_at_1e5 == pytest.approx(rdp(9, delta=1e-5), rel=1e-3)
    assert (privacy.unit, privacy.n_units, privacy.accountant) == ("dialogue", 6, "rdp")
    assert (privacy.noise_multiplier, privacy.sample_rate, privacy.max_grad_norm) == (1.0, 1 / 3, 1.0)
    assert (privacy.delta, privacy.target_epsilon, privacy.secure_rng) == (6**-1.1, None, False)
    assert privacy.engine == "loop"
    assert privacy.does_not_cover == list(DOES_NOT_COVER)
    assert any("delta=0.139 is above 0.01" in note for note in result.notes)
    # One more step in the file is one more step spent, whatever else knows of the run.
    ledger = tmp_path / "a" / LEDGER_NAME
    ledger.write_text(ledger.read_text() + ledger.read_text().splitlines()[-1] + "\n")
    kept = train(GIVEN, replace(SETTINGS, max_epochs=1), folder="a")[1].privacy
    assert kept is not None
    assert kept.steps == 13


def test_a_target_is_nearly_reached_and_not_exceeded(train: Train) -> None:
    _, result = train(replace(PRIVATE, accountant="prv"), replace(SETTINGS, max_epochs=1))
    assert result.privacy is not None
    assert result.privacy.accountant == "prv"
    assert 7.8 < result.privacy.epsilon <= 8.0
    assert not any("budget" in note for note in result.notes)


def test_empty_batches_are_steps_of_noise(train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    moved: list[bool] = []
    original = PrivateTaskBot.training_step

    def spy(self: PrivateTaskBot, batch: list[PackedDialogue], batch_idx: int) -> None:
        before = {name: weight.detach().clone() for name, weight in self.trainable().items()}
        original(self, batch, batch_idx)
        sizes.append(len(batch))
        moved.append(all(not torch.equal(before[name], weight) for name, weight in self.trainable().items()))

    monkeypatch.setattr(PrivateTaskBot, "training_step", spy)
    _, result = train(replace(GIVEN, sample_rate=0.02, insecure_seed=0), replace(SETTINGS, max_epochs=1))
    assert (len(sizes), result.steps, n_spent(tmp_path / "a")) == (50, 50, 50)
    assert sizes.count(0) > 30
    assert sum(sizes) > 0
    assert all(moved)


def test_what_is_lost_with_a_checkpoint_stays_spent(train: Train, power_cut: PowerCut, tmp_path: Path) -> None:
    with power_cut(PrivateTaskBot, "fill_gradients", 5):
        train(GIVEN)
    _, result = train(GIVEN)
    assert result.privacy is not None
    assert result.steps == 9
    assert n_spent(tmp_path / "a") == result.privacy.steps == 5 + 6  # the checkpoint was three steps old
    assert result.privacy.epsilon == pytest.approx(rdp(11), rel=1e-3)
    assert not any("budget" in note for note in result.notes)


def test_what_was_lost_is_missing_from_the_budget(train: Train, power_cut: PowerCut, tmp_path: Path) -> None:
    stopping = replace(SETTINGS, patience=5, min_epochs=3, keep_checkpoints=True)
    for _ in range(2):  # both die in the first epoch, after three steps, of which no checkpoint tells
        with power_cut(PrivateTaskBot, "fill_gradients", 3):
            train(settings=stopping)
    weights, result = train(settings=stopping)
    assert (result.steps, result.epochs, result.stopped_early) == (3, 1, True)
    assert n_spent(tmp_path / "a") == 9
    assert result.privacy is not None
    assert 7.5 < result.privacy.epsilon <= 8.0
    assert "ended training after 3 of 9 planned steps" in result.notes[0]
    assert result.best_calibration_loss == result.history[0].calibration_loss  # of an epoch before min_epochs
    # It is over for good, and still there.
    again, repeated = train(settings=stopping)
    assert weights == again
    assert (repeated.steps, repeated.privacy, repeated.notes) == (3, result.privacy, result.notes)


def test_a_budget_may_end_inside_an_epoch(train: Train, power_cut: PowerCut, tmp_path: Path) -> None:
    with power_cut(PrivateTaskBot, "fill_gradients", 2):
        train()
    _, result = train()
    assert (result.steps, result.epochs, result.stopped_early) == (7, 3, True)
    assert result.history[-1].calibration_loss is not None
    assert n_spent(tmp_path / "a") == 9


def test_a_spent_budget_is_no_start(train: Train) -> None:
    train()
    with pytest.raises(PrivacyError, match=r"has 9 steps and no checkpoint goes with them: nothing of epsilon 8"):
        train()


KILLED_SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training import private_module
from hushbot.training.fit import fit
from hushbot.training.stack import RecipeStack

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
split, settings, recipe = pickle.loads((folder / "inputs.pickle").read_bytes())
add_noise, calls = private_module.noisy_gradient, [0]

def add_noise_or_die(*args, **kwargs):
    calls[0] += 1
    if calls[0] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    add_noise(*args, **kwargs)

private_module.noisy_gradient = add_noise_or_die
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
fit(model, tokenizer, stack=RecipeStack((TurnLevel(), recipe)), split=split, schema=Schema(()), settings=settings,
    max_length=1024, checkpoint_dir=folder / "a" / "checkpoints", seed=0)
"""


def test_kill_9_never_gives_anything_back(
    make_small_model: Callable[[], Any],
    small_tokenizer: Any,
    few_dialogues: AuditSplit,
    train: Train,
    tmp_path: Path,
) -> None:
    make_small_model().save_pretrained(tmp_path)
    small_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "inputs.pickle").write_bytes(pickle.dumps((few_dialogues, EVERY_STEP, PRIVATE)))
    (tmp_path / "killed.py").write_text(KILLED_SCRIPT)
    command = [sys.executable, "killed.py", str(tmp_path), "6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert n_spent(tmp_path / "a") == 6  # the sixth was in the ledger before its noise was drawn
    ledger = tmp_path / "a" / LEDGER_NAME
    ledger.write_text(ledger.read_text() + '{"st')  # a seventh was torn
    _, result = train(settings=EVERY_STEP)
    assert result.privacy is not None
    assert result.privacy.steps == 9
    assert result.privacy.epsilon <= 8.0
    assert result.privacy.epsilon == pytest.approx(rdp(9, noise=result.privacy.noise_multiplier), rel=1e-2)
    assert (result.steps, result.stopped_early) == (5 + 2, True)


# --- what a resume must know ---


@pytest.fixture
def interrupted(train: Train, power_cut: PowerCut, tmp_path: Path) -> Path:
    """Return the folder of a run that died at its fifth step, with a checkpoint of four."""
    with power_cut(PrivateTaskBot, "fill_gradients", 5):
        train(settings=EVERY_STEP)
    return tmp_path / "a"


def test_without_its_ledger_no_checkpoint_is_resumed(train: Train, interrupted: Path) -> None:
    (interrupted / LEDGER_NAME).unlink()
    with pytest.raises(PrivacyError, match="another directory"):
        train(settings=EVERY_STEP)


def test_an_other_runs_ledger_is_refused(train: Train, interrupted: Path, tmp_path: Path) -> None:
    train(folder="b")
    shutil.copy(tmp_path / "b" / LEDGER_NAME, interrupted / LEDGER_NAME)
    with pytest.raises(PrivacyError, match="another directory"):
        train(settings=EVERY_STEP)


def test_a_ledger_that_lost_steps_is_refused(train: Train, interrupted: Path) -> None:
    ledger = interrupted / LEDGER_NAME
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(PrivacyError, match="another directory"):
        train(settings=EVERY_STEP)


def test_a_ledger_of_other_dialogues_is_refused(train: Train, interrupted: Path, few_dialogues: AuditSplit) -> None:
    shutil.rmtree(interrupted / "checkpoints")
    with pytest.raises(PrivacyError, match="another directory"):
        train(split=replace(few_dialogues, members=few_dialogues.members[1:]))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({DP_KEY: None}, "was not written by a private run"),
        ({"noise_multiplier": 0.5}, "was written with noise_multiplier=0.5 now "),
        ({"max_grad_norm": 9.0}, r"was written with max_grad_norm=9\.0 now 1\.0"),
        ({"total_steps": 90}, "was written with total_steps=90 now 9"),
    ],
)
def test_a_checkpoint_of_another_mechanism_is_refused(
    train: Train, interrupted: Path, changes: dict[str, Any], said: str
) -> None:
    path = interrupted / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    if DP_KEY in changes:
        del checkpoint[DP_KEY]
    else:
        checkpoint[DP_KEY]["settings"].update(changes)
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    with pytest.raises(PrivacyError, match=said):
        train(settings=EVERY_STEP)


@pytest.mark.parametrize("changes", [{"chunk_tokens": 64}, {"engine": "loop"}])
def test_what_has_no_effect_may_change(train: Train, interrupted: Path, changes: dict[str, Any]) -> None:
    _, result = train(replace(PRIVATE, **changes), EVERY_STEP)
    assert result.steps == 8  # of nine, one was lost
    assert n_spent(interrupted) == 9


def test_noise_that_another_machine_rounded_otherwise_is_taken_over(train: Train, interrupted: Path) -> None:
    path = interrupted / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    settings = checkpoint[DP_KEY]["settings"]
    settings["noise_multiplier"] = theirs = settings["noise_multiplier"] * (1 + 1e-9)
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    _, result = train(settings=EVERY_STEP)
    assert result.privacy is not None
    assert result.privacy.noise_multiplier == theirs
    assert result.privacy.epsilon <= 8.0
    lines = [json.loads(line) for line in (interrupted / LEDGER_NAME).read_text().splitlines()]
    assert [line["noise_multiplier"] for line in lines if "step" in line][-1] == theirs


@pytest.mark.parametrize("factor", [1 - 1e-5, 1 + 1e-5])
def test_noise_that_is_another_one_is_refused(train: Train, interrupted: Path, factor: float) -> None:
    path = interrupted / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint[DP_KEY]["settings"]["noise_multiplier"] *= factor
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    with pytest.raises(PrivacyError, match="was written with noise_multiplier="):
        train(settings=EVERY_STEP)


def test_a_last_step_that_moves_nothing_is_no_alarm(train: Train, power_cut: PowerCut) -> None:
    # A step of 1.5e-7 moves a weight of 1, the last one, a ninth of it, is lost in rounding.
    slow = replace(EVERY_STEP, learning_rate=1.5e-7, schedule="linear")
    with power_cut(PrivateTaskBot, "fill_gradients", 9):
        train(GIVEN, slow)
    _, result = train(GIVEN, slow)
    assert result.steps == 9


# --- what is opened again ---


@pytest.mark.parametrize(("recipe", "cut_at"), [(PRIVATE, None), (GIVEN, None), (PRIVATE, 2)])
def test_a_finished_run_says_the_same_when_it_is_opened_again(
    train: Train, power_cut: PowerCut, tmp_path: Path, recipe: DpSgd, cut_at: int | None
) -> None:
    kept = replace(SETTINGS, keep_checkpoints=True)
    if cut_at is not None:  # its budget then ends inside the last epoch
        with power_cut(PrivateTaskBot, "fill_gradients", cut_at):
            train(recipe, kept)
    weights, first = train(recipe, kept)
    again, second = train(recipe, kept)
    assert weights == again
    assert (second.steps, second.privacy, second.notes) == (first.steps, first.privacy, first.notes)
    assert any("budget" in note for note in second.notes) == (cut_at is not None)
    assert n_spent(tmp_path / "a") == 9


def test_an_early_stop_is_not_laid_on_the_budget(
    train: Train, monkeypatch: pytest.MonkeyPatch, power_cut: PowerCut
) -> None:
    with power_cut(PrivateTaskBot, "fill_gradients", 2):
        train()
    original = PrivateTaskBot.on_train_epoch_end

    def stop(self: PrivateTaskBot) -> None:
        original(self)
        self.trainer.should_stop = True

    monkeypatch.setattr(PrivateTaskBot, "on_train_epoch_end", stop)
    _, result = train()
    assert result.steps == 3
    assert not any("budget" in note for note in result.notes)


def test_the_checkpoint_outlives_a_guarantee_that_could_not_be_computed(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(self: PrivateTaskBot) -> PrivacyInfo | None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PrivateTaskBot, "privacy", fail)
        with pytest.raises(KeyboardInterrupt):
            train()
    _, result = train()
    assert result.privacy is not None
    assert result.steps == result.privacy.steps == n_spent(tmp_path / "a") == 9
    assert not (tmp_path / "a/checkpoints").exists()


def test_the_ledger_is_closed_when_training_ends(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers: list[PrivacyLedger] = []
    original = PrivateTaskBot.on_fit_start

    def spy(self: PrivateTaskBot) -> None:
        original(self)
        ledgers.append(self._ledger)

    monkeypatch.setattr(PrivateTaskBot, "on_fit_start", spy)
    train(settings=replace(SETTINGS, max_epochs=1))
    with pytest.raises(PrivacyError, match="closed file"):
        ledgers[0].spend(9)


# --- sampling ---


def test_each_dialogue_is_drawn_as_often_as_epsilon_is_computed_for(
    train: Train, monkeypatch: pytest.MonkeyPatch, few_dialogues: AuditSplit
) -> None:
    drawn: list[str] = []
    original = PrivateTaskBot.fill_gradients

    def spy(self: PrivateTaskBot, batch: list[PackedDialogue]) -> list[float]:
        drawn.extend(packed.dialogue_id for packed in batch)
        return original(self, batch)

    monkeypatch.setattr(PrivateTaskBot, "fill_gradients", spy)
    recipe = replace(GIVEN, sample_rate=0.1, insecure_seed=3)
    _, result = train(recipe, replace(SETTINGS, max_epochs=30), split=replace(few_dialogues, calibration=()))
    assert result.steps == 300
    counts = [drawn.count(member.id) for member in few_dialogues.members]
    assert sum(counts) == len(drawn)
    assert 180 - 4 * 13 < len(drawn) < 180 + 4 * 13  # a binomial of 1800 draws at 0.1 deviates by 12.7
    assert all(30 - 4 * 5.2 < n < 30 + 4 * 5.2 for n in counts)


def test_batches_are_never_drawn_twice(train: Train, monkeypatch: pytest.MonkeyPatch, power_cut: PowerCut) -> None:
    drawn: list[list[list[int]]] = []
    original = PoissonBatches.epoch

    def spy(self: PoissonBatches, epoch: int) -> list[list[int]]:
        drawn.append(original(self, epoch))
        return drawn[-1]

    monkeypatch.setattr(PoissonBatches, "epoch", spy)
    recipe = replace(GIVEN, sample_rate=0.3)  # four steps an epoch: two draws are alike once in half a million
    one_epoch = replace(EVERY_STEP, max_epochs=1)
    train(recipe, one_epoch)
    train(recipe, one_epoch, folder="b")
    with power_cut(PrivateTaskBot, "clip_gradient", 3):
        train(recipe, one_epoch, folder="c")
    train(recipe, one_epoch, folder="c")
    assert len(drawn) == 4
    assert all(one != other for i, one in enumerate(drawn) for other in drawn[:i])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sample_rate": 2 / 3}, r"sample_rate of the batches is 0\.66\d*, epsilon is for 0\.33"),
        ({"n_steps": 6}, "n_steps of the batches is 6, epsilon is for 3"),
        ({"n_dialogues": 5}, "n_dialogues of the batches is 5, epsilon is for 6"),
        ({"generator": torch.Generator().manual_seed(0)}, "the sampling comes from a generator that may be foretold"),
    ],
)
def test_batches_that_are_not_those_of_the_mechanism_are_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    original = PrivateTaskBot.plan_batches

    def plan(self: PrivateTaskBot, data: Any, settings: TrainerSettings, run_dir: Path) -> Any:
        original(self, data, settings, run_dir)
        self._batches = replace(self._batches, **changes)
        return self._batches

    monkeypatch.setattr(PrivateTaskBot, "plan_batches", plan)
    with pytest.raises(PrivacyError, match=said):
        train()
    assert not (tmp_path / "a" / LEDGER_NAME).exists()


# --- noise ---


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def test_noise_is_never_drawn_twice(train: Train, noisy_gradients: list[Tensor], power_cut: PowerCut) -> None:
    loud = replace(GIVEN, noise_multiplier=100.0)
    with power_cut(PrivateTaskBot, "clip_gradient", 5):
        train(loud, EVERY_STEP)
    train(loud, EVERY_STEP)  # from the fifth step on
    train(loud, replace(EVERY_STEP, max_epochs=1), folder="same-seed")
    assert len(noisy_gradients) == 5 + 5 + 3
    n = noisy_gradients[0].numel()
    for i, one in enumerate(noisy_gradients):
        for other in noisy_gradients[:i]:
            assert abs(correlation(one, other)) < 6 / math.sqrt(n)


def test_a_known_seed_repeats_everything_and_promises_nothing(train: Train, tmp_path: Path) -> None:
    known = replace(PRIVATE, insecure_seed=5)
    first, result = train(known)
    assert first == train(known, folder="b")[0]
    assert first != train(replace(known, insecure_seed=6), folder="c")[0]
    assert result.privacy is None
    assert "NOT private" in result.notes[0]
    with pytest.raises(PrivacyError, match="noise is known"):
        read_history(tmp_path / "a" / LEDGER_NAME)


def test_the_callers_random_state_is_left_alone(train: Train) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(settings=replace(SETTINGS, max_epochs=1))
    assert torch.equal(torch.rand(3), expected)


# --- what is not told ---


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of nested dicts and lists with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from walk(item, f"{path}/{i}")
    else:
        yield path, value


def test_no_training_loss_is_kept_anywhere(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    metrics: list[str] = []
    original = TaskBot.on_train_end

    def spy(self: TaskBot) -> None:
        metrics.extend([*self.trainer.callback_metrics, *self.trainer.progress_bar_metrics])
        original(self)

    monkeypatch.setattr(TaskBot, "on_train_end", spy)
    _, result = train(settings=replace(EVERY_STEP, keep_checkpoints=True, progress_bar=True))
    assert [record.train_loss for record in result.history] == [None] * 3
    assert set(metrics) == {"calibration/loss"}
    out, err = capfd.readouterr()
    assert "  calibration " in err
    assert "  loss " not in out + err
    checkpoint = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint[STATE_KEY]["epoch_loss"] == checkpoint[STATE_KEY]["epoch_tokens"] == 0
    told = {path: value for path, value in walk(checkpoint) if "loss" in path or "norm" in path}
    allowed = (
        "calibration_loss",
        "train_loss",
        "epoch_loss",
        "max_grad_norm",
        "normaliser",
        "/state_dict/",
        "/weights",
    )
    assert all(any(name in path for name in allowed) for path in told), told
    assert checkpoint["hyper_parameters"]["normaliser"] == pytest.approx(2.0)  # not the members' number of tokens


def test_the_tokens_trained_are_those_that_are_drawn_on_average(train: Train, few_dialogues: AuditSplit) -> None:
    sizes: dict[str, int] = {}
    original = gradients.loss_sum

    def spy(model: nn.Module, packed: PackedDialogue) -> Tensor:
        sizes[packed.dialogue_id] = packed.n_tokens
        return original(model, packed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "loss_sum", spy)
        _, result = train(replace(FULL_BATCH, sample_rate=1.0), replace(SETTINGS, max_epochs=2))
        assert result.tokens_trained == 2 * sum(sizes.values())
        assert len(sizes) == 6
    for seed in (1, 2):
        drawn = train(replace(GIVEN, insecure_seed=seed), replace(SETTINGS, max_epochs=2), folder=str(seed))[1]
        assert drawn.tokens_trained == round(6 * sum(sizes.values()) / 3)


def test_a_dialogue_without_a_finite_loss_is_passed_over_in_silence(
    train: Train, monkeypatch: pytest.MonkeyPatch, few_dialogues: AuditSplit
) -> None:
    bad = few_dialogues.members[3].id

    def loss(model: nn.Module, packed: PackedDialogue) -> Tensor:
        return loss_sum(model, packed) * (float("nan") if packed.dialogue_id == bad else 1.0)

    weights, _ = train(FULL_BATCH, folder="whole")
    monkeypatch.setattr(gradients, "loss_sum", loss)
    broken, result = train(FULL_BATCH)
    assert result.steps == 3
    assert all(torch.isfinite(weight).all() for weight in broken.values())
    assert weights != broken


# --- refusals ---


class OwnAdam(torch.optim.Adam):
    """An optimiser that nobody looked at."""


def test_an_unknown_optimiser_is_refused_before_anything_is_spent(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(TaskBot, "configure_optimizers", lambda self: OwnAdam(self.trainable().values()))
    with pytest.raises(PrivacyError, match="the optimiser is OwnAdam, must be one of AdamW, Adam, SGD"):
        train()
    assert not (tmp_path / "a" / LEDGER_NAME).exists()


def test_weights_that_explode_later_are_an_error_that_tells_no_loss(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explode(self: PrivateTaskBot) -> None:
        if self.global_step == 4:
            next(iter(self.trainable().values())).data.mul_(math.inf)

    monkeypatch.setattr(PrivateTaskBot, "clip_gradient", explode)
    with pytest.raises(HushbotError, match=r"step 5 left 1 of \d+ trainable tensors not finite") as caught:
        train()
    assert "loss" not in str(caught.value)


def test_a_dialogue_stands_in_a_batch_once(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    original = PrivateTaskBot.fill_gradients
    monkeypatch.setattr(PrivateTaskBot, "fill_gradients", lambda self, batch: original(self, batch + batch))
    with pytest.raises(PrivacyError, match="holds a dialogue twice"):
        train(FULL_BATCH)


def test_steps_beyond_the_budget_are_refused(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateTaskBot, "_n_affordable", lambda self: 2)
    original = PrivateTaskBot.training_step

    def stubborn(self: PrivateTaskBot, batch: list[PackedDialogue], batch_idx: int) -> None:
        original(self, batch, batch_idx)
        self.trainer.should_stop = False

    monkeypatch.setattr(PrivateTaskBot, "training_step", stubborn)
    with pytest.raises(PrivacyError, match="step 3 is beyond the 2 that the budget allows"):
        train()


def test_nothing_but_plain_values_describes_the_mechanism(train: Train, tmp_path: Path) -> None:
    train(settings=replace(SETTINGS, keep_checkpoints=True))
    checkpoint = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    assert checkpoint[DP_KEY]["n_steps"] == 9
    assert isinstance(checkpoint[DP_KEY]["ledger_id"], str)
    assert {type(value) for value in checkpoint[DP_KEY]["settings"].values()} <= {int, float, str, type(None)}


def test_a_checkpoint_holds_what_is_listed_here_and_no_more(train: Train, tmp_path: Path) -> None:
    """A batch's size, or a generator's state, would tell what no epsilon covers."""
    train(settings=replace(EVERY_STEP, keep_checkpoints=True))
    checkpoint = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    assert set(checkpoint) == {
        "callbacks",
        "epoch",
        "global_step",
        "hparams_name",
        "hyper_parameters",
        "loops",
        "lr_schedulers",
        "optimizer_states",
        "pytorch-lightning_version",
        "state_dict",
        DP_KEY,
        OUTLINE_KEY,
        STATE_KEY,
    }
    assert set(checkpoint[DP_KEY]) == {"ledger_id", "n_steps", "stop_at", "settings"}
    assert set(checkpoint[STATE_KEY]) == {
        "fingerprint",
        "random_state",
        "history",
        "tokens_trained",
        "epoch_loss",
        "epoch_tokens",
        "calibration_loss",
        "calibration_tokens",
        "seconds",
    }
    states = [path for path, value in walk(checkpoint) if isinstance(value, Tensor) and value.dtype == torch.uint8]
    assert states == [f"/{STATE_KEY}/random_state/cpu"]  # torch's global one, from which nothing private is drawn


def test_a_frozen_weight_that_moved_is_an_error(
    train: Train, make_adapted_model: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddle(self: PrivateTaskBot) -> None:
        frozen = next(w for name, w in self.model.named_parameters() if "o_proj" in name and not w.requires_grad)
        frozen.data[0] += 1

    monkeypatch.setattr(PrivateTaskBot, "clip_gradient", meddle)
    with pytest.raises(PrivacyError, match=r"training changed 1 frozen tensors, the first is .*o_proj"):
        train(GIVEN, replace(SETTINGS, max_epochs=1), model=make_adapted_model())


def test_dropout_is_refused_before_anything_is_spent(
    train: Train, make_small_model: Callable[[], Any], tmp_path: Path
) -> None:
    adapter = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", lora_dropout=0.1)
    with pytest.raises(PrivacyError, match=r"1 layers drop values at random.*p=0\.1.*set backbone\.lora\.dropout=0"):
        train(model=get_peft_model(make_small_model(), adapter))
    functional = make_small_model()
    functional.model.layers[0].self_attn.attention_dropout = 0.1
    with pytest.raises(PrivacyError, match=r"the model draws random numbers.*set backbone\.lora\.dropout=0"):
        train(model=functional)
    assert not (tmp_path / "a" / LEDGER_NAME).exists()


# --- other recipes of the stack ---


class Loud(PrivateTaskBot):
    """Trains as it likes."""


class MakesLoud(Recipe):
    def privatize(self, module: Any) -> Any:
        return Loud(module.model, module.plan, module.settings)


class MakesPlain(Recipe):
    def privatize(self, module: Any) -> Any:
        return TaskBot(module.model, module.plan)


class MakesOther(Recipe):
    def privatize(self, module: Any) -> Any:
        return PrivateTaskBot(module.model, module.plan, replace(module.settings, max_grad_norm=1e9))


@pytest.mark.parametrize(
    ("other", "name"), [(MakesLoud(), "Loud"), (MakesPlain(), "TaskBot"), (MakesOther(), "PrivateTaskBot")]
)
def test_a_recipe_that_undoes_the_promise_is_refused(train: Train, tmp_path: Path, other: Recipe, name: str) -> None:
    with pytest.raises(PrivacyError, match=f"promises privacy per dialogue, and what trains is a {name} that"):
        train(others=(other,))
    assert not (tmp_path / "a").exists()


class Gossip(Recipe):
    """Takes the first turn of whoever stands before, and says that it does not."""

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        shifted = [dialogues[-1], *dialogues[:-1]]
        return [replace(d, turns=(other.turns[0], *d.turns[1:])) for d, other in zip(dialogues, shifted, strict=True)]


def test_a_recipe_that_looks_at_other_dialogues_is_found_out(train: Train, tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="gossip rewrites a member otherwise when it is alone"):
        train(others=(Gossip(),))
    assert not (tmp_path / "a").exists()


def test_no_guarantee_where_one_was_promised_is_an_error(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrivateTaskBot, "privacy", lambda self: None)
    with pytest.raises(PrivacyError, match="training gave no guarantee"):
        train(settings=replace(SETTINGS, max_epochs=1))
