"""From a configuration to a bot: trained, taken over from a neighbour, or left as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from hushbot.composition import compose
from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import DataError
from hushbot.evaluation import making, suite
from hushbot.evaluation.experiment import Experiment
from hushbot.recipes.turn_level import TurnLevel
from hushbot.run import RunDirectory
from hushbot.schema import Schema, Slot
from hushbot.training import fit as training
from hushbot.training.data import Packer
from hushbot.training.fit import TrainerSettings
from hushbot.training.model_folder import folder_sha256, tiny_dir
from hushbot.training.stack import RecipeStack, stack_name
from hushbot.types import AuditReport, AuditSplit, Canary

Make = Callable[..., AuditReport]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one with every bot that is trained."""
    done: list[int] = []
    fit = training.fit

    def counted(*given: Any, **named: Any) -> Any:
        done.append(1)
        return fit(*given, **named)

    monkeypatch.setattr(training, "fit", counted)
    return done


@pytest.fixture
def make(synthetic_split: AuditSplit, synthetic_schema: Schema, tmp_path: Path) -> Make:
    """Return what makes a bot in a run directory of a name and returns the report that is then on disk."""
    split = AuditSplit(
        synthetic_split.members[:3],
        synthetic_split.nonmembers[:3],
        synthetic_split.nonmembers[3:5],
        synthetic_split.nonmembers[5:7],
    )
    dialogues = (*split.members, *split.nonmembers, *split.calibration, *split.controls)

    def run(
        name: str, *overrides: str, schema: Schema = synthetic_schema, canaries: tuple[Canary, ...] = ()
    ) -> AuditReport:
        config = compose(
            "train", ["trainer.accelerator=cpu", "trainer.progress_bar=false", "trainer.max_epochs=1", *overrides]
        )
        experiment = Experiment(
            config=config,
            name=stack_name(config),
            corpus=Corpus(dialogues, schema, "synthetic"),
            drawn=SplitReport(replace(split, canaries=canaries)),
            attacks={},
            trackers={},
            seed=0,
            reveal=False,
        )
        with suite.open_run(experiment, tmp_path / name) as directory:
            report = suite.start_report(experiment, directory)
            target, report = making.make_bot(experiment, config, directory, report, lambda _: None)
            assert target is not None
        assert RunDirectory.open(tmp_path / name).read_report() == report
        assert report.run.model_sha256 == folder_sha256(tmp_path / name / "model")
        return report

    return run


def lawful(report: AuditReport) -> list[str]:
    """Return the notes that say how many values the guard lets through."""
    return [note for note in report.notes if note.startswith("value_copy: ") and "members' final states" in note]


def test_an_arm_with_another_guard_and_other_utility_takes_the_model_over(
    make: Make, trained: list[int], tmp_path: Path
) -> None:
    first = make("first", "recipe=turn_level+value_copy", "recipe.value_copy.max_words=1")
    theirs = ["value_copy: of words one by one", *first.notes]
    RunDirectory.open(tmp_path / "first").write_report(first.model_copy(update={"notes": theirs}))
    second = make("second", "recipe=value_copy", "utility.max_dialogues=3", "trainer.keep_checkpoints=true")
    assert len(trained) == 1
    assert second.run.weights_sha256 == first.run.weights_sha256
    assert second.run.seconds["train"] == first.run.seconds["train"]
    assert first.run.peak_memory_mb["train"] > 0
    assert second.run.peak_memory_mb == {"train": first.run.peak_memory_mb["train"]}
    assert (second.run.trained_on, second.run.tokens_trained) == ("cpu", first.run.tokens_trained)
    (shared,) = [note for note in second.notes if first.run.id in note]
    assert shared == (
        f"this bot has the weights of run {first.run.id}, which differs only in what comes after training; "
        "the seconds and tokens of that training count once, and stand in both reports"
    )
    # A guard's notes are of its own settings, so the twin's are not repeated.
    assert theirs[0] not in second.notes
    assert len(lawful(second)) == 1


def test_chosen_canaries_are_trained_on_beside_the_members(
    make: Make, synthetic_schema: Schema, synthetic_split: AuditSplit
) -> None:
    canaries = draw_canaries(synthetic_schema, CanarySettings(m=8), 0)
    n_chosen = sum(canary.is_inserted for canary in canaries)
    assert 0 < n_chosen < 8
    plain = make("plain")
    report = make("canaries", canaries=canaries)
    packer = Packer(RecipeStack((TurnLevel(),)), AutoTokenizer.from_pretrained(tiny_dir()), 1024)
    more = sum(packed.n_supervised for packed in packer.pack([c.dialogue for c in canaries if c.is_inserted]))
    assert report.data.supervised_tokens == plain.data.supervised_tokens + more
    assert report.data.members == plain.data.members == 3
    assert report.run.weights_sha256 != plain.run.weights_sha256


def test_threads_may_be_asked_for_or_be_torchs_choice(make: Make, trained: list[int]) -> None:
    n_threads = torch.get_num_threads()
    other = n_threads + 1
    at_once = "trainer.max_epochs=0"
    make("default", at_once)
    make("asked", at_once, f"trainer.num_threads={n_threads}", "recipe=value_copy")
    assert len(trained) == 1
    first = make("other", at_once, f"trainer.num_threads={other}")
    assert len(trained) == 2
    second = make("other_too", at_once, f"trainer.num_threads={other}", "recipe=value_copy")
    assert len(trained) == 2
    assert first.run.versions["threads"] == second.run.versions["threads"] == str(other)


def test_a_twin_that_started_from_other_weights_is_not_taken_over(
    make: Make, trained: list[int], tmp_path: Path
) -> None:
    make("first")
    record = tmp_path / "first" / "model" / "hushbot_backbone.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"started_from": "older weights of that name"}))
    first = RunDirectory.open(tmp_path / "first")
    report = first.read_report()
    run = report.run.model_copy(update={"model_sha256": folder_sha256(first.model)})
    first.write_report(report.model_copy(update={"run": run}))
    second = make("second", "recipe=value_copy")  # which would else be refused by its base control, again and again
    assert len(trained) == 2
    assert not any("the weights of run" in note for note in second.notes)


WATCHED = ("watch.every=1", "watch.dialogues=1")


def test_the_report_holds_the_curve_and_looking_changes_nothing(make: Make, trained: list[int]) -> None:
    watched, plain = make("watched", *WATCHED, "trainer.max_epochs=2"), make("plain", "trainer.max_epochs=2")
    assert len(trained) == 1  # who does not look takes any curve over
    assert [epoch.epoch for epoch in watched.training] == [0, 1, 2]
    assert [set(epoch.measured) for epoch in watched.training] == [{"membership/auc", "joint_goal_accuracy"}] * 3
    assert watched.training[0].training_loss is None
    assert all(epoch.training_loss and epoch.calibration_loss for epoch in watched.training[1:])
    assert watched.run.seconds["watch"] > 0
    assert any(note.startswith("watch: looked at before training") for note in watched.notes)
    assert plain.training == watched.training
    alone = make("alone", "trainer.max_epochs=2", "trainer.keep_checkpoints=true", "recipe=dialogue_level")
    assert [epoch.epoch for epoch in alone.training] == [1, 2]
    assert "watch" not in alone.run.seconds


def test_looking_gives_the_same_weights(make: Make, trained: list[int]) -> None:
    plain, watched = make("plain"), make("watched", *WATCHED)
    assert len(trained) == 2  # the first has no curve
    assert watched.run.weights_sha256 == plain.run.weights_sha256
    guarded = make("guarded", *WATCHED, "recipe=value_copy")
    assert len(trained) == 2
    assert guarded.training == watched.training
    make("otherwise", "watch.every=2", "watch.dialogues=1", "recipe=value_copy")
    assert len(trained) == 3


def test_a_run_goes_on_with_the_watch_it_was_started_with(
    make: Make, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", lambda *_, **__: _die())
        with pytest.raises(KeyboardInterrupt):
            make("run", *WATCHED)
    with pytest.raises(DataError, match=r"has watch\.every=1, this command None"):
        make("run")
    assert [epoch.epoch for epoch in make("run", *WATCHED).training] == [0, 1]


def _die() -> None:
    raise KeyboardInterrupt


def test_another_schema_is_another_model(make: Make, trained: list[int]) -> None:
    make("first")
    # The dialogues and so their hash are the same.
    make("second", "recipe=value_copy", schema=Schema((Slot("hotel", "stars"),)))
    assert len(trained) == 2


def test_a_model_that_cannot_be_copied_is_trained(
    make: Make, trained: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("first")

    def broken(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(making, "copy_model", broken)
    make("second", "recipe=value_copy")
    assert len(trained) == 2


def test_a_guarded_base_says_what_its_guard_does(make: Make, trained: list[int]) -> None:
    report = make("base", "recipe=base+value_copy")
    assert trained == []
    assert report.recipe.stack == ["base", "value_copy"]
    assert len(lawful(report)) == 1
    assert (report.run.trained_on, report.run.tokens_trained) == (None, 0)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("turn_level", "training examples lost their oldest history to fit the 120 tokens of backbone.max_length"),
        ("dialogue_level", "dialogues do not fit the 120 tokens of backbone.max_length: they are learnt in windows"),
    ],
)
def test_what_is_too_long_is_told_as_the_layout_treats_it(make: Make, recipe: str, said: str) -> None:
    report = make("run", f"recipe={recipe}", "trainer.max_epochs=0", "backbone.max_length=120")
    (note,) = [note for note in report.notes if "backbone.max_length" in note]
    assert said in note
    assert int(note.split()[0]) > 0


def test_the_device_is_the_one_that_lightning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = TrainerSettings(accelerator="cpu")
    auto, third = TrainerSettings(accelerator="auto"), TrainerSettings(accelerator="gpu", devices=[2])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert [making.training_device(one) for one in (cpu, auto, third)] == ["cpu", "GPU 0", "GPU 2"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends, "mps", SimpleNamespace(is_available=lambda: False))
    assert making.training_device(auto) == "cpu"
    assert making.training_device(replace(auto, accelerator="tpu")) == "tpu"


def test_a_private_run_that_died_before_its_report_spends_nothing_twice(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hushbot.training import backbone

    private = ("recipe=dp_sgd", "recipe.dp_sgd.accountant=rdp")

    def die(*_given: Any, **_named: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backbone, "save_model", die)
        with pytest.raises(KeyboardInterrupt):
            make("run", *private)
    spent = [line for line in (tmp_path / "run/privacy_ledger.jsonl").read_text().splitlines() if '"step"' in line]
    report = make("run", *private)
    again = [line for line in (tmp_path / "run/privacy_ledger.jsonl").read_text().splitlines() if '"step"' in line]
    assert report.recipe.privacy is not None
    assert report.recipe.privacy.steps == len(spent) == len(again) == 1
    assert not any("budget" in note for note in report.notes)
    assert not (tmp_path / "run/checkpoints").exists()
