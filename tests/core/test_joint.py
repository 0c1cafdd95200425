"""Several processes train what one trains: the same weights and curves, the same epsilon, and one error for all."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from hushbot.errors import ConfigError, DataError, HushbotError, MachineError
from hushbot.launching.ranks import Ranks
from hushbot.recipes.dp_sgd import DpSgd
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training import joint
from hushbot.training.callbacks import AtomicCheckpointIO
from hushbot.training.fit import FitResult, TrainerSettings
from hushbot.training.joint import JointStrategy, ShardedStrategy, check_machine
from hushbot.training.ledger import PrivacyLedger
from hushbot.training.module import TaskBot
from hushbot.training.private_checks import refusals
from hushbot.training.private_module import LEDGER_NAME
from hushbot.training.share import ALONE, Share, part_of, parted_like, whole
from hushbot.training.stack import RecipeStack, build_stack
from hushbot.types import AuditSplit, Estimate, PrivacyInfo

SETTINGS = TrainerSettings(
    max_epochs=3,
    batch_size=4,
    learning_rate=5e-3,
    weight_decay=0.01,
    num_threads=1,
    accelerator="cpu",
    progress_bar=False,
)
"""Five members in batches of four and one: two steps an epoch, six in all."""
EVERY_STEP = replace(SETTINGS, checkpoint_every_n_steps=1)
TOLERANCE = 1e-5
"""Relative, over six steps: sums in another order."""

HELD = {
    "ddp": (1.0, 1.0),
    "fsdp": (0.5, 0.5),
    "deepspeed_stage_1": (1.0, 0.5),
    "deepspeed": (1.0, 0.5),
    "deepspeed_stage_3": (0.5, 0.5),
}
"""What part of the weights, and of the optimiser's state, one of two processes has (ddp: of any number)."""
NEEDS_DEEPSPEED = pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed")

Train = Callable[..., tuple[dict[str, Tensor], FitResult]]
PowerCut = Callable[[object, str, int], AbstractContextManager[None]]

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def over(n_processes: int, strategy: str = "ddp", settings: TrainerSettings = SETTINGS) -> TrainerSettings:
    return replace(settings, devices=n_processes, strategy=strategy)


@pytest.fixture(scope="session")
def odd_split(few_dialogues: AuditSplit) -> AuditSplit:
    """Return five members and one calibration dialogue: some processes have none of the last batch, or of that."""
    return AuditSplit(few_dialogues.members[:5], (), calibration=few_dialogues.calibration[:1])


@pytest.fixture
def train(
    fit_small: Callable[..., Any], turn_stack: RecipeStack, odd_split: AuditSplit, monkeypatch: pytest.MonkeyPatch
) -> Train:
    """Return a function that trains a fresh model and returns its weights and what `fit` said."""
    monkeypatch.syspath_prepend(Path(__file__).parent)  # for `joining`, here and in the other processes

    def run(
        settings: TrainerSettings = SETTINGS, *, stack: RecipeStack = turn_stack, **more: Any
    ) -> tuple[dict[str, Tensor], FitResult]:
        return fit_small(stack, settings, **{"split": odd_split, **more})  # type: ignore[no-any-return]

    return run


@pytest.fixture(scope="session")
def known() -> dict[str, Any]:
    return {}


@pytest.fixture
def alone(train: Train, known: dict[str, Any]) -> tuple[dict[str, Tensor], FitResult]:
    """Return what one process comes to."""
    if "alone" not in known:
        known["alone"] = train(folder="alone")
    found: tuple[dict[str, Tensor], FitResult] = known["alone"]
    return found


def assert_same(found: tuple[dict[str, Tensor], FitResult], wanted: tuple[dict[str, Tensor], FitResult]) -> None:
    """Check that weights, curve and counts are the same, up to the order of sums."""
    (weights, result), (expected, one) = found, wanted
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert torch.linalg.norm(weight - expected[name]) <= TOLERANCE * torch.linalg.norm(expected[name]), name
    counts = ("epochs", "steps", "tokens_trained", "supervised_tokens", "stopped_early", "n_truncated")
    assert [getattr(result, name) for name in counts] == [getattr(one, name) for name in counts]
    for record, known in zip(result.history, one.history, strict=True):
        assert record.epoch == known.epoch
        assert_close(record.train_loss, known.train_loss)
        assert_close(record.calibration_loss, known.calibration_loss)
    assert_close(result.best_calibration_loss, one.best_calibration_loss)


def assert_close(found: float | None, wanted: float | None) -> None:
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert found == pytest.approx(wanted, rel=TOLERANCE)


def entries(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


# --- the same training ---


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        "fsdp",
        pytest.param("deepspeed_stage_1", marks=[NEEDS_DEEPSPEED, pytest.mark.long]),
        pytest.param("deepspeed", marks=[NEEDS_DEEPSPEED, pytest.mark.long]),
        pytest.param("deepspeed_stage_3", marks=NEEDS_DEEPSPEED),
    ],
)
def test_several_processes_train_what_one_trains(
    train: Train,
    alone: Any,
    tmp_path: Path,
    strategy: str,
    capfd: pytest.CaptureFixture[str],
    held: list[float],
) -> None:
    environment, n_processes = dict(os.environ), 3 if strategy == "ddp" else 2
    found = train(replace(over(n_processes, strategy), progress_bar=True), folder="joint")
    assert_same(found, alone)
    said = f"trained by {n_processes} processes together ({strategy})"
    assert [note.startswith(said) for note in found[1].notes] == [True]
    assert entries(tmp_path / "joint") == []  # the checkpoint is gone, and nobody else wrote anything
    lines = capfd.readouterr()
    assert lines.err.count("epoch 1/3") == 1
    assert lines.out == ""
    assert not torch.distributed.is_initialized()
    assert dict(os.environ) == environment
    # Weights and both moments of each: all of them here, or half.
    assert held == [pytest.approx(share, abs=0.05) for share in HELD[strategy]]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of what part of the weights, and of the optimiser's state, this process held at the end."""
    found: list[float] = []
    original = TaskBot.on_train_end

    def spy(self: TaskBot) -> None:
        weights = self.trainable().values()
        states = [state["exp_avg"] for state in self.trainer.optimizers[0].state.values()]
        for parts in ([part_of(weight) for weight in weights], [part_of(state) for state in states]):
            found.append(sum(part.numel() for part in parts))
        original(self)
        n_all = sum(weight.numel() for weight in (self.final_weights or self.trainable()).values())
        found[:] = [n / n_all for n in found]

    monkeypatch.setattr(TaskBot, "on_train_end", spy)
    return found


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp", marks=pytest.mark.long),
        "fsdp",
        pytest.param("deepspeed_stage_1", marks=[NEEDS_DEEPSPEED, pytest.mark.long]),
        pytest.param("deepspeed", marks=[NEEDS_DEEPSPEED, pytest.mark.long]),
        pytest.param("deepspeed_stage_3", marks=NEEDS_DEEPSPEED),
    ],
)
def test_an_adapter_and_early_stopping_end_at_the_same_weights(
    train: Train, make_small_model: Callable[[], nn.Module], strategy: str, few_dialogues: AuditSplit
) -> None:
    # A base that knows the calibration dialogues: every epoch on others makes it worse, and the best is not the last.
    base = make_small_model()
    learnt = AuditSplit(few_dialogues.calibration, ())
    train(replace(SETTINGS, max_epochs=15, learning_rate=2e-2), model=base, split=learnt, folder="base")

    def adapted() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
            return get_peft_model(copy.deepcopy(base), config)  # type: ignore[return-value, arg-type]

    settings = replace(SETTINGS, learning_rate=2e-2, schedule="constant", max_epochs=6, patience=2)
    models = [adapted(), adapted()]
    frozen = {name for name, weight in models[0].named_parameters() if not weight.requires_grad}
    one = train(settings, model=models[0], split=few_dialogues)
    two = train(over(2, strategy, settings), model=models[1], split=few_dialogues, folder="joint")
    assert one[1].stopped_early
    assert one[1].best_calibration_loss != one[1].history[-1].calibration_loss
    assert_same(two, one)
    assert all(torch.equal(one[0][name], two[0][name]) for name in frozen)
    assert {type(weight) for weight in models[1].parameters()} == {nn.Parameter}  # whole ones, as they were
    assert not models[1].training


@pytest.mark.slow
@pytest.mark.parametrize(
    "legs",
    [
        [(2, "fsdp"), (2, "ddp"), (1, "auto")],
        pytest.param([(1, "auto"), (2, "fsdp")], marks=pytest.mark.long),
        pytest.param([(2, "deepspeed_stage_1"), (2, "deepspeed_stage_3"), (1, "auto")], marks=NEEDS_DEEPSPEED),
        pytest.param(
            [(1, "auto"), (2, "deepspeed"), (3, "deepspeed_stage_3")], marks=[NEEDS_DEEPSPEED, pytest.mark.long]
        ),
    ],
)
def test_a_run_that_was_cut_goes_on_with_another_number_of_processes(
    train: Train, alone: Any, power_cut: PowerCut, legs: list[tuple[int, str]]
) -> None:
    for n_processes, strategy in legs[:-1]:
        with power_cut(AtomicCheckpointIO, "save_checkpoint", 2):  # two steps further each time, one of them saved
            train(over(n_processes, strategy, EVERY_STEP))
    assert_same(train(over(*legs[-1], EVERY_STEP)), alone)


@dataclass
class Looker:
    """Counts its looks; from the second epoch on too much leaks."""

    every: int = 1
    stops: bool = True
    fingerprint: str = "looker"
    description: str = "counted"
    n_looks: int = 0

    def look(self, model: nn.Module) -> dict[str, Estimate]:
        self.n_looks += 1
        value = 0.1 * self.n_looks
        return {"membership/auc": Estimate(value=value, low=value, high=value, n=9, method="counted")}

    def excess(self, measured: Mapping[str, Estimate]) -> str | None:
        value = measured["membership/auc"].value
        return "it leaks" if value is not None and value > 0.25 else None


def test_the_first_process_looks_and_all_stop(train: Train) -> None:
    lookers = [Looker(), Looker()]
    one = train(watch=lookers[0])
    two = train(over(2), watch=lookers[1], folder="joint")
    assert_same(two, one)
    assert two[1].stopped_early
    assert two[1].epochs == 2
    assert [looker.n_looks for looker in lookers] == [3, 3]
    assert [record.measured for record in two[1].history] == [record.measured for record in one[1].history]


# --- errors ---


def test_an_error_in_another_process_is_the_error_of_all(train: Train) -> None:
    from joining import FailsBeside  # type: ignore[import-not-found]

    with pytest.raises(DataError, match=r"dialogue d.* is damaged; mend it"):
        train(over(2), stack=RecipeStack((FailsBeside(),)))
    assert not torch.distributed.is_initialized()


def test_a_process_that_is_killed_is_the_error_of_all(train: Train, tmp_path: Path) -> None:
    from joining import DiesBeside

    with pytest.raises(MachineError, match=r"process 1 of 2 .* was killed by SIGKILL"):
        train(over(2), stack=RecipeStack((DiesBeside(),)))
    assert entries(tmp_path / "a") == ["checkpoints", "checkpoints/last.ckpt"]  # of the first epoch: it can go on


# --- private training ---


def private(**settings: Any) -> RecipeStack:
    return RecipeStack((TurnLevel(), DpSgd(**{"expected_batch_size": 2, "accountant": "rdp", **settings})))


def test_with_known_seeds_a_private_training_is_the_same(train: Train, tmp_path: Path) -> None:
    stack = private(target_epsilon=None, noise_multiplier=1.0, insecure_seed=3)
    one, two = train(stack=stack), train(over(2), stack=stack, folder="joint")
    assert_same(two, one)
    ledgers = [[json.loads(line) for line in (tmp_path / f / LEDGER_NAME).open()] for f in ("a", "joint")]
    assert [["ledger" in line for line in lines] for lines in ledgers] == [[True] + 9 * [False]] * 2


def test_epsilon_is_that_of_one_process(train: Train, tmp_path: Path) -> None:
    settings, stack = replace(SETTINGS, keep_checkpoints=True), private()
    alone = train(settings, stack=stack)[1].privacy
    weights, result = train(over(2, settings=settings), stack=stack, folder="joint")
    assert isinstance(alone, PrivacyInfo)
    assert result.privacy == alone
    assert alone.epsilon <= 8 < 1.1 * alone.epsilon
    state = torch.load(tmp_path / "joint/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(state[f"model.{name}"], weight) for name, weight in weights.items())


@pytest.mark.slow
def test_a_step_that_was_lost_with_a_process_counts(train: Train, power_cut: PowerCut) -> None:
    stack = private(target_epsilon=None, noise_multiplier=1.0)
    with power_cut(PrivacyLedger, "spend", 3):  # written down and never taken
        train(over(2, settings=EVERY_STEP), stack=stack)
    privacy = train(over(2, settings=EVERY_STEP), stack=stack)[1].privacy
    assert isinstance(privacy, PrivacyInfo)
    assert privacy.steps == 9 + 1


def test_our_noisy_step_is_that_of_opacus_distributed_optimiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from joining import EXPECTED, MAX_NORM, Step, gradients, step_both

    drawn = [(3, 2), (2, 0)]  # one process may have drawn nobody
    steps = [*(Step(0.0, 100, sizes) for sizes in drawn), Step(0.0, 50_000, (1, 1)), Step(2.0, 50_000, (1, 1))]
    request = (tmp_path / "store", steps)
    with Ranks(step_both, request, 2) as others:
        mine, (theirs,) = step_both(request, 0), others.results()
    for first, second in zip(mine, theirs, strict=True):
        assert torch.equal(first.ours, second.ours)
    for sizes, first in zip(drawn, mine, strict=False):
        rows = [torch.cat([g.flatten(1) for g in gradients(rank, sizes[rank], 100)], 1) for rank in (0, 1)]
        by_hand = sum(row / max(1.0, float(row.norm()) / MAX_NORM) for row in torch.cat(rows)) / EXPECTED
        torch.testing.assert_close(first.ours, by_hand)
        torch.testing.assert_close(first.ours, first.opacus, rtol=1e-4, atol=1e-6)
    *_, still, noisy = mine
    for found, without in ((noisy.ours, still.ours), (noisy.opacus, still.opacus)):
        # 55,000 draws: two standard errors of a standard deviation are 0.6% of it; noise drawn twice would be 41% more.
        assert float((found - without).std()) == pytest.approx(2.0 * MAX_NORM / EXPECTED, rel=0.02)


def test_only_unwrapped_processes_train_privately(make_small_model: Callable[[], nn.Module]) -> None:
    trainer = SimpleNamespace(
        optimizers=[],
        accumulate_grad_batches=1,
        gradient_clip_val=None,
        overfit_batches=0,
        limit_train_batches=1.0,
        precision="32-true",
        world_size=2,
        datamodule=None,
    )
    module: Any = SimpleNamespace(trainable=dict)
    for strategy, said in ((DDPStrategy(), "DDPStrategy"), (ShardedStrategy(), "ShardedStrategy"), (None, "NoneType")):
        trainer.strategy = strategy
        found = [problem for problem in refusals(trainer, module, Any) if "train together" in problem]  # type: ignore[arg-type]
        assert [f"2 processes train together by {said}" in problem for problem in found] == [True]
    trainer.strategy = JointStrategy()
    assert not [problem for problem in refusals(trainer, module, Any) if "train together" in problem]  # type: ignore[arg-type]


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"strategy": "deepspeed_stage_4", "devices": 2},
            "'deepspeed_stage_4' must be one of auto, ddp, fsdp, ",
        ),
        ({"strategy": "fsdp"}, "strategy='fsdp' parts the training among processes, devices=1 is one"),
        ({"strategy": "deepspeed"}, "strategy='deepspeed' parts the training among processes, devices=1 is one"),
        ({"strategy": "ddp_spawn", "devices": 2}, "strategy='ddp_spawn' must be one of auto, ddp, fsdp, deepspeed, "),
        ({"devices": 0}, "devices=0 must be at least 1"),
        ({"devices": [0, 0]}, "devices=[0, 0] must be at least 1 or a list of different device indices"),
        ({"devices": []}, "devices=[] must be"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainerSettings(**settings)
    assert len(caught.value.problems) == 1
    assert said in caught.value.problems[0]
    assert "set trainer." in caught.value.problems[0]


@pytest.mark.parametrize("strategy", ["fsdp", "deepspeed_stage_1"])
def test_what_clips_whole_gradients_cannot_part_them(train: Train, strategy: str) -> None:
    said = f"strategy={strategy}: dp_sgd clips each dialogue's gradient, which must be whole"
    config = {
        "recipe": {"dp_sgd": {"_target_": "hushbot.recipes.dp_sgd.DpSgd"}},
        "trainer": {"strategy": strategy},
    }
    with pytest.raises(ConfigError, match=said):
        build_stack(config)
    with pytest.raises(ConfigError, match=said):
        train(over(2, strategy), stack=private())


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("deepspeed_stage_1", marks=NEEDS_DEEPSPEED)])
def test_a_bot_of_which_nobody_has_all_cannot_be_looked_at(train: Train, strategy: str) -> None:
    with pytest.raises(ConfigError, match=f"strategy={strategy}: no process has the whole bot"):
        train(over(2, strategy), watch=Looker(stops=False))


@NEEDS_DEEPSPEED
@pytest.mark.long
@pytest.mark.parametrize("strategy", ["deepspeed", "deepspeed_stage_3"])
def test_a_step_that_deepspeed_would_leave_out_is_an_error(train: Train, strategy: str) -> None:
    settings = replace(SETTINGS, learning_rate=1e30)
    with pytest.raises(HushbotError, match=r"step 2: the gradient norm is (nan|inf), must be finite"):
        train(over(2, strategy, settings))


def test_an_engine_that_is_not_there_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs DeepSpeed: `pip install 'hushbot\[deepspeed\]'`"):
        check_machine(over(2, "deepspeed"))


def test_what_a_machine_lacks_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    check_machine(over(64))  # processes of a CPU share it
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_machine(replace(over(2), accelerator="gpu"))
    for devices, index in ((3, 2), ([1, 2], 2)):
        with pytest.raises(ConfigError, match=f"names GPU {index} .*, this machine has 2; lower trainer.devices"):
            check_machine(replace(SETTINGS, devices=devices, accelerator="gpu"))
    with pytest.raises(ConfigError, match=r"devices=\[0, 1\] names GPUs, there are none; set trainer.devices=2"):
        check_machine(replace(SETTINGS, devices=[0, 1], accelerator="cpu"))
    with pytest.raises(ConfigError, match="several processes need GPUs of NVIDIA or accelerator=cpu, not 'mps'"):
        check_machine(replace(over(2), accelerator="mps"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2: another launcher, such as torchrun"):
        check_machine(over(2))
    check_machine(SETTINGS)


# --- parts ---


@given(items=st.lists(st.integers(), max_size=20), size=st.integers(1, 6))
def test_parts_are_disjoint_and_together_the_whole(items: list[int], size: int) -> None:
    parts = [Share(rank, size).of(list(enumerate(items))) for rank in range(size)]
    assert sorted(pair for part in parts for pair in part) == list(enumerate(items))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_alone_nothing_is_added_up() -> None:
    weight = nn.Parameter(torch.ones(2))
    ALONE.add_up_gradients([weight])
    assert weight.grad is None
    tensor = torch.ones(2)
    ALONE.add_up([tensor])
    assert tensor.tolist() == [1, 1]
    assert ALONE.numbers([1.5, 2]) == [1.5, 2]
    assert ALONE.tell("x") == "x"
    assert ALONE.n_idle(3) == 0
    ALONE.check_same("anything", object())
    assert whole(tensor) is tensor
    assert parted_like(tensor, weight) is tensor


def test_together_processes_use_no_more_threads_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    free = replace(SETTINGS, num_threads=None)
    assert joint.n_threads_of(free) is None
    assert joint.n_threads_of(over(3, settings=free)) == 2
    assert joint.n_threads_of(over(3)) == 1
