"""Training one bot: it learns, resumes to the same bits wherever it was cut, stops early, leaves no mess."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn

from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.protocols import Recipe
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training import module as module_file
from hushbot.training.callbacks import AtomicCheckpointIO, BestWeights, LastCheckpoint
from hushbot.training.data import DialogueData, Packer
from hushbot.training.fit import FitResult, TrainerSettings
from hushbot.training.module import TaskBot
from hushbot.training.packing import PackedDialogue, loss_sum, unpack_rows
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit, Dialogue, Turn

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = TrainerSettings(
    max_epochs=3, batch_size=2, learning_rate=5e-3, num_threads=1, accelerator="cpu", progress_bar=False
)
"""Six members in batches of two: three steps an epoch, nine in all."""
EVERY_STEP = replace(SETTINGS, checkpoint_every_n_steps=1)


Train = Callable[..., tuple[dict[str, Tensor], FitResult]]
PowerCut = Callable[[object, str, int], AbstractContextManager[None]]


@pytest.fixture
def train(fit_small: Callable[..., Any], turn_stack: RecipeStack) -> Train:
    """Return a function that trains a fresh model and returns its weights and what `fit` said."""

    def run(
        settings: TrainerSettings = SETTINGS, *, stack: RecipeStack = turn_stack, **more: Any
    ) -> tuple[dict[str, Tensor], FitResult]:
        return fit_small(stack, settings, **more)  # type: ignore[no-any-return]

    return run


# --- learning ---


def test_the_loss_falls_and_the_counts_are_right(
    train: Train, few_dialogues: AuditSplit, small_tokenizer: Any, turn_stack: RecipeStack
) -> None:
    _, result = train(replace(SETTINGS, max_epochs=6))
    packs = Packer(turn_stack, small_tokenizer, 1024).pack(few_dialogues.members)
    first, last = result.history[0].train_loss, result.history[-1].train_loss
    assert first is not None
    assert last is not None
    assert last < 0.9 * first
    assert [record.epoch for record in result.history] == [1, 2, 3, 4, 5, 6]
    assert (result.epochs, result.steps, result.stopped_early) == (6, 18, False)
    assert result.tokens_trained == 6 * sum(packed.n_tokens for packed in packs)
    assert result.supervised_tokens == sum(packed.n_supervised for packed in packs)
    losses = [record.calibration_loss for record in result.history]
    assert result.best_calibration_loss == min(loss for loss in losses if loss is not None)
    assert result.seconds > 0


def test_the_calibration_loss_is_that_of_the_weights_after_the_epoch(
    train: Train,
    few_dialogues: AuditSplit,
    small_tokenizer: Any,
    turn_stack: RecipeStack,
    make_small_model: Callable[[], nn.Module],
) -> None:
    model = make_small_model()
    _, result = train(model=model)
    packs = Packer(turn_stack, small_tokenizer, 1024).pack(few_dialogues.calibration)
    with torch.no_grad():
        expected = sum(float(loss_sum(model, packed)) for packed in packs) / sum(p.n_supervised for p in packs)
    assert result.history[-1].calibration_loss == pytest.approx(expected, rel=1e-6)
    assert not model.training


def test_same_seed_same_bits_other_seed_other_bits(train: Train) -> None:
    first, second, other = train()[0], train()[0], train(seed=1)[0]
    assert first == second
    assert first != other


def test_nonmembers_change_nothing(train: Train, few_dialogues: AuditSplit) -> None:
    unusable = (Dialogue("secret", (Turn("hi", None, response=None),)),)
    assert train()[0] == train(split=replace(few_dialogues, nonmembers=unusable, controls=unusable))[0]


def test_examples_that_lost_history_are_counted(train: Train, few_dialogues: AuditSplit, small_tokenizer: Any) -> None:
    examples = [list(TurnLevel().examples(dialogue)) for dialogue in few_dialogues.members]
    rows = [row for one in examples for row in unpack_rows(one, small_tokenizer, max_length=1024)]
    longest = max(len(row.input_ids) for row in rows)
    limit = longest - 1
    expected = sum(len(row.input_ids) > limit for row in rows)
    for settings in (replace(SETTINGS, max_epochs=0), replace(SETTINGS, max_epochs=1)):
        assert train(settings, max_length=longest)[1].n_truncated == 0
        assert train(settings, max_length=limit, folder="b")[1].n_truncated == expected > 0


def test_no_epochs_trains_nothing(train: Train, make_small_model: Callable[[], nn.Module]) -> None:
    weights, result = train(replace(SETTINGS, max_epochs=0))
    assert weights == dict(make_small_model().named_parameters())
    assert (result.epochs, result.steps, result.tokens_trained) == (0, 0, 0)
    assert result.best_calibration_loss is None
    assert result.supervised_tokens > 0


def test_frozen_weights_stay_and_are_not_checkpointed(
    train: Train, make_small_model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    model = make_small_model()
    for name, weight in model.named_parameters():
        weight.requires_grad_("mlp" in name)
    weights, _ = train(replace(SETTINGS, keep_checkpoints=True), model=model)
    before = dict(make_small_model().named_parameters())
    moved = {name for name in weights if not torch.equal(weights[name], before[name])}
    assert moved == {name for name in weights if "mlp" in name}
    checkpoint = torch.load(tmp_path / "a/checkpoints/last.ckpt", weights_only=True)
    assert set(checkpoint["state_dict"]) == {f"model.{name}" for name in moved}


# --- being killed ---

# Where the run is cut, and how many of its nine steps the checkpoint then holds. After the last step of an
# epoch it is written once the calibration loss is known.
CUTS = [
    *((LastCheckpoint, "on_train_batch_end", step, step - (step % 3 == 0)) for step in range(1, 10)),
    *((TaskBot, "on_validation_epoch_end", epoch, 3 * epoch - 1) for epoch in (1, 2, 3)),
    *((LastCheckpoint, "on_train_epoch_end", epoch, 3 * epoch) for epoch in (1, 2, 3)),
    (TaskBot, "fill_gradients", 5, 4),
]


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the first dialogue of each batch trained on from now on."""
    original, steps = TaskBot.fill_gradients, list[str]()

    def counted(self: TaskBot, batch: list[PackedDialogue]) -> list[float]:
        steps.append(batch[0].dialogue_id)
        return original(self, batch)

    monkeypatch.setattr(TaskBot, "fill_gradients", counted)
    return steps


@pytest.mark.parametrize(("owner", "hook", "call", "kept"), CUTS, ids=[f"{h}-{c}" for _, h, c, _ in CUTS])
def test_a_run_cut_anywhere_resumes_to_the_same_bits(
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    power_cut: PowerCut,
    owner: type,
    hook: str,
    call: int,
    kept: int,
    whole_run: Any,
) -> None:
    with power_cut(owner, hook, call):
        train(EVERY_STEP)
    steps = count_steps(monkeypatch)
    weights, result = train(EVERY_STEP)
    whole, expected = whole_run
    assert len(steps) == 9 - kept
    assert weights == whole
    assert replace(result, seconds=0, history=()) == replace(expected, seconds=0, history=())
    assert [replace(r, seconds=0) for r in result.history] == [replace(r, seconds=0) for r in expected.history]


@pytest.fixture(scope="module")
def whole_runs() -> dict[str, Any]:
    return {}


@pytest.fixture
def whole_run(train: Train, whole_runs: dict[str, Any]) -> Any:
    """Return weights and result of the run that nobody cut."""
    if "plain" not in whole_runs:
        whole_runs["plain"] = train(SETTINGS, folder="whole")
    return whole_runs["plain"]


def test_a_run_cut_between_epochs_without_step_checkpoints_resumes(
    train: Train, power_cut: PowerCut, whole_run: Any
) -> None:
    with power_cut(TaskBot, "fill_gradients", 5):
        train()
    assert train()[0] == whole_run[0]


def test_dropout_continues_where_it_was(
    train: Train, power_cut: PowerCut, make_small_model: Callable[[], nn.Module]
) -> None:
    def with_dropout() -> nn.Module:
        model: Any = make_small_model()
        model.model.embed_tokens.register_forward_hook(lambda m, _, out: F.dropout(out, 0.3, m.training))
        return model  # type: ignore[no-any-return]

    whole = train(model=with_dropout(), folder="whole")[0]
    with power_cut(TaskBot, "fill_gradients", 6):
        train(EVERY_STEP, model=with_dropout())
    assert train(EVERY_STEP, model=with_dropout())[0] == whole
    assert whole != train(folder="dry")[0]


KILLED_SCRIPT = """
import os, pickle, signal, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.fit import fit
from hushbot.training.module import TaskBot
from hushbot.training.stack import RecipeStack

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
split, settings = pickle.loads((folder / "inputs.pickle").read_bytes())
clip = TaskBot.clip_gradient

def clip_or_die(self):
    if self.global_step == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    clip(self)

TaskBot.clip_gradient = clip_or_die
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
fit(model, tokenizer, stack=RecipeStack((TurnLevel(),)), split=split, schema=Schema(()), settings=settings,
    max_length=1024, checkpoint_dir=folder / "checkpoints", seed=0)
model.save_pretrained(folder / "trained")
"""


def test_kill_9_in_mid_training_then_the_same_call_gives_the_same_bits(
    make_small_model: Callable[[], Any],
    small_tokenizer: Any,
    few_dialogues: AuditSplit,
    train: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_run: Any,
) -> None:
    make_small_model().save_pretrained(tmp_path)
    small_tokenizer.save_pretrained(tmp_path)
    (tmp_path / "inputs.pickle").write_bytes(pickle.dumps((few_dialogues, EVERY_STEP)))
    (tmp_path / "killed.py").write_text(KILLED_SCRIPT)
    command = [sys.executable, "killed.py", str(tmp_path), "4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (tmp_path / "checkpoints/last.ckpt").exists()
    assert not (tmp_path / "trained").exists()
    # The second attempt is made in this process, from the files that the first one left.
    (tmp_path / "a").mkdir()
    (tmp_path / "checkpoints").rename(tmp_path / "a" / "checkpoints")
    steps = count_steps(monkeypatch)
    weights, result = train(EVERY_STEP)
    assert len(steps) == 5
    assert weights == whole_run[0]
    assert result.tokens_trained == whole_run[1].tokens_trained


def test_an_other_runs_checkpoint_is_refused(train: Train) -> None:
    train(replace(SETTINGS, keep_checkpoints=True))
    with pytest.raises(HushbotError, match="other data, settings or weights"):
        train(replace(SETTINGS, learning_rate=1e-3))
    with pytest.raises(HushbotError, match="other data, settings or weights"):
        train(seed=1)


def test_a_damaged_checkpoint_is_an_error_that_names_the_file(train: Train, tmp_path: Path) -> None:
    train(replace(SETTINGS, keep_checkpoints=True))
    path = tmp_path / "a/checkpoints/last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(HushbotError, match=r"last\.ckpt is no checkpoint"):
        train()


def without(checkpoint: dict[str, Any], *path: Any) -> None:
    for key in path[:-1]:
        checkpoint = checkpoint[key]
    del checkpoint[path[-1]]


DAMAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    # Of the first four, Lightning says nothing, and trains another bot.
    "no loops": lambda c: without(c, "loops"),
    "no progress": lambda c: without(c, "loops", "fit_loop", "epoch_progress"),
    "no schedule": lambda c: without(c, "lr_schedulers", 0, "last_epoch"),
    "no moments of a weight": lambda c: without(c, "optimizer_states", 0, "state", 0),
    "no weights": lambda c: without(c, "state_dict"),
    "no optimiser": lambda c: without(c, "optimizer_states"),
    "no history": lambda c: without(c, "hushbot", "history"),
    "no version": lambda c: without(c, "pytorch-lightning_version"),
    "other shapes": lambda c: c["state_dict"].update(dict.fromkeys(c["state_dict"], torch.zeros(3, 3))),
    "another number": lambda c: c["hushbot"].update(tokens_trained=1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_lacks_a_part_is_an_error_that_names_the_file(
    train: Train, tmp_path: Path, power_cut: PowerCut, damage: str
) -> None:
    with power_cut(TaskBot, "training_step", 5):
        train(EVERY_STEP)
    path = tmp_path / "a/checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    DAMAGES[damage](checkpoint)
    torch.save(checkpoint, path)
    with pytest.raises(HushbotError, match=rf"{path} is not as it was written.*; delete it to train from the start"):
        train(EVERY_STEP)


@pytest.mark.parametrize("damage", ["no weights", "no optimiser", "no history", "no version", "other shapes"])
def test_a_whole_checkpoint_that_lightning_cannot_use_is_an_error_that_names_the_file(
    train: Train, tmp_path: Path, power_cut: PowerCut, damage: str
) -> None:
    with power_cut(TaskBot, "training_step", 5):
        train(EVERY_STEP)
    path = tmp_path / "a/checkpoints/last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    DAMAGES[damage](checkpoint)
    AtomicCheckpointIO().save_checkpoint(checkpoint, path)
    with pytest.raises(HushbotError, match=rf"{path} cannot be gone on from \(.*; delete it to train from the start"):
        train(EVERY_STEP)


def test_an_error_of_training_itself_is_not_the_checkpoints(
    train: Train, power_cut: PowerCut, monkeypatch: pytest.MonkeyPatch
) -> None:
    with power_cut(TaskBot, "training_step", 5):
        train(EVERY_STEP)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TaskBot, "fill_gradients", fail)
    with pytest.raises(ZeroDivisionError):
        train(EVERY_STEP)


def test_a_checkpoint_with_code_in_it_is_refused(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "a/checkpoints"
    folder.mkdir(parents=True)
    torch.save({"state_dict": subprocess.Popen}, folder / "last.ckpt")
    with pytest.raises(HushbotError, match=r"last\.ckpt is no checkpoint"):
        train()


def test_a_finished_run_is_not_trained_again(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = replace(SETTINGS, keep_checkpoints=True)
    weights, result = train(kept)
    monkeypatch.setattr(TaskBot, "fill_gradients", None)
    again, repeated = train(kept)
    assert weights == again
    assert replace(repeated, seconds=0) == replace(result, seconds=0)


def test_checkpoints_stay_or_go_as_asked_and_nothing_else_is_written(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    train(folder="gone")
    train(replace(SETTINGS, keep_checkpoints=True), folder="kept")
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert files == [Path("kept/checkpoints/last.ckpt")]
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_global_state_is_left_as_it_was(train: Train) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    n_threads, level = torch.get_num_threads(), logging.getLogger("pytorch_lightning").level
    train()
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == n_threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert logging.getLogger("pytorch_lightning").level == level


def test_one_line_per_epoch_where_no_bar_can_be_drawn(train: Train, capfd: pytest.CaptureFixture[str]) -> None:
    _, result = train(replace(SETTINGS, progress_bar=True))
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert f"loss {result.history[0].train_loss:.4f}  calibration {result.history[0].calibration_loss:.4f}" in lines[0]


# --- early stopping ---

STOPPING = replace(EVERY_STEP, max_epochs=9, patience=2)


@pytest.fixture
def worse_after_epoch_3(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make the calibration loss fall for three epochs and rise from then on, whatever the weights are."""
    losses = [5.0, 4.0, 3.0, 3.5, 3.2, 9.0, 9.0, 9.0, 9.0]

    def planned(self: TaskBot, batch: list[PackedDialogue], batch_idx: int) -> None:
        self._calibration_loss, self._calibration_tokens = losses[self.current_epoch], 1

    monkeypatch.setattr(TaskBot, "validation_step", planned)
    return losses


@pytest.mark.usefixtures("worse_after_epoch_3")
def test_early_stopping_restores_the_best_weights(train: Train) -> None:
    seen = []
    original = BestWeights.on_validation_end

    def spy(self: BestWeights, trainer: Any, module: TaskBot) -> None:
        seen.append({n.removeprefix("model."): w.detach().clone() for n, w in module.trainable().items()})
        original(self, trainer, module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BestWeights, "on_validation_end", spy)
        weights, result = train(STOPPING)
    assert (result.epochs, result.stopped_early, result.best_calibration_loss) == (5, True, 3.0)
    assert len(seen) == 5
    assert weights == seen[2]
    assert weights != seen[4]


@pytest.mark.usefixtures("worse_after_epoch_3")
@pytest.mark.parametrize(
    ("owner", "hook", "call"),
    [
        (TaskBot, "fill_gradients", 11),
        (LastCheckpoint, "on_train_epoch_end", 4),
        (LastCheckpoint, "on_train_epoch_end", 5),
    ],
)
def test_early_stopping_survives_a_cut(train: Train, power_cut: PowerCut, owner: type, hook: str, call: int) -> None:
    whole, expected = train(STOPPING, folder="whole")
    with power_cut(owner, hook, call):
        train(STOPPING)
    weights, result = train(STOPPING)
    assert weights == whole
    assert (result.epochs, result.steps, result.best_calibration_loss) == (5, 15, 3.0)
    assert result.stopped_early == expected.stopped_early is True


@pytest.mark.usefixtures("worse_after_epoch_3")
def test_epochs_before_min_epochs_do_not_count(train: Train) -> None:
    _, result = train(replace(STOPPING, min_epochs=4))
    assert result.best_calibration_loss == 3.2
    assert result.epochs == 7


def test_early_stopping_needs_calibration_dialogues(train: Train, few_dialogues: AuditSplit) -> None:
    without = replace(few_dialogues, calibration=())
    with pytest.raises(ConfigError, match="patience=2 needs calibration dialogues"):
        train(STOPPING, split=without)
    _, result = train(split=without)
    assert result.best_calibration_loss is None
    assert [record.calibration_loss for record in result.history] == [None] * 3


# --- errors ---


def test_a_loss_that_is_not_finite_is_an_error_naming_step_and_dialogue(
    train: Train, monkeypatch: pytest.MonkeyPatch, few_dialogues: AuditSplit
) -> None:
    bad = few_dialogues.members[3].id

    def loss(model: nn.Module, packed: PackedDialogue) -> Tensor:
        return loss_sum(model, packed) * (float("nan") if packed.dialogue_id == bad else 1.0)

    monkeypatch.setattr(module_file, "loss_sum", loss)
    with pytest.raises(HushbotError, match=rf"step [123]: the training loss of dialogue '{bad}' is nan"):
        train()


def test_dialogues_without_supervised_tokens_are_all_named(train: Train, few_dialogues: AuditSplit) -> None:
    silent = tuple(Dialogue(name, (Turn("hello", None, response="hi"),)) for name in ("mute-1", "mute-2"))
    with pytest.raises(DataError, match=r"(?s)'mute-1' contributes no supervised token.*'mute-2'"):
        train(split=replace(few_dialogues, members=(*few_dialogues.members, *silent)))
    with pytest.raises(DataError, match="'mute-1' contributes no supervised token"):
        train(split=replace(few_dialogues, calibration=silent[:1]))


def test_a_recipe_can_replace_module_and_batches(train: Train, few_dialogues: AuditSplit) -> None:
    seen: list[list[str]] = []

    class Two:
        n_steps = 2

        def epoch(self, epoch: int) -> list[list[int]]:
            return [[0, 1], [epoch]]

    class Private(TaskBot):
        def plan_batches(self, data: DialogueData, settings: TrainerSettings, run_dir: Path) -> Two:
            return Two()

        def fill_gradients(self, batch: list[PackedDialogue]) -> list[float]:
            seen.append([packed.dialogue_id for packed in batch])
            return super().fill_gradients(batch)

    class Privacy(Recipe):
        def privatize(self, module: Any) -> Any:
            return Private(module.model, module.plan)

    _, result = train(stack=RecipeStack((TurnLevel(), Privacy())))
    ids = [dialogue.id for dialogue in few_dialogues.members]
    assert seen == [[ids[0], ids[1]], [ids[0]], [ids[0], ids[1]], [ids[1]], [ids[0], ids[1]], [ids[2]]]
    assert result.steps == 6


def test_wrong_settings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainerSettings(batch_size=0, learning_rate=float("nan"), warmup_fraction=2, devices=[1, 1])
    assert [problem.split("; ")[1] for problem in caught.value.problems] == [
        "set trainer.batch_size",
        "set trainer.learning_rate",
        "set trainer.warmup_fraction",
        "set trainer.devices",
    ]


def test_the_yaml_holds_every_setting_at_its_default() -> None:
    settings = dict(OmegaConf.load(ROOT / "configs/trainer/default.yaml"))
    assert settings.pop("_target_") == "hushbot.training.fit.TrainerSettings"
    assert settings == {field.name: getattr(TrainerSettings(), field.name) for field in fields(TrainerSettings)}


def test_settings_need_no_torch() -> None:
    code = "import sys, hushbot.training.fit; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
