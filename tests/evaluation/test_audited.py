"""Targets for an audit: only with the members that the run's manifest names, and only where there is a bot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import ConfigError, DataError
from hushbot.evaluation import audited, suite
from hushbot.evaluation.experiment import Experiment
from hushbot.protocols import Recipe, Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.training.model_folder import tiny_dir, weights_sha256
from hushbot.types import AuditSplit, Estimate, TrainingEpoch, Units

SOUND = "abc"
INFERENCE = {"batch_rows": 4, "batch_tokens": 4096}
JGA = Estimate(value=0.5, low=0.4, high=0.6, n=3)
LATENCY = Estimate(value=0.25, low=0.2, high=0.3, n=20, method="order statistics")
UNITS = Units(rule="ratio", documents=["5f0c"], values=[1.0], weights=[2.0])
CONFIG = {"recipe": {"turn_level": {"_target_": "hushbot.recipes.turn_level.TurnLevel"}}, "fit": True}


class Mine(Recipe):
    """A guard of somebody's own package."""


@pytest.fixture
def experiment(synthetic_split: AuditSplit, synthetic_schema: Schema) -> Experiment:
    dialogues = (*synthetic_split.members[:3], *synthetic_split.nonmembers[:3])
    return Experiment(
        config=CONFIG,
        name="turn_level",
        corpus=Corpus(dialogues, synthetic_schema, "synthetic"),
        drawn=SplitReport(AuditSplit(dialogues[:3], dialogues[3:])),
        attacks={},
        trackers={},
        seed=0,
        reveal=False,
    )


@pytest.fixture
def finished(experiment: Experiment, tmp_path: Path) -> RunDirectory:
    """Return a run that says it has trained a bot; there is a model folder with nothing in it."""
    with suite.open_run(experiment, tmp_path / "run") as directory:
        report = suite.start_report(experiment, directory)
        known = {"weights_sha256": SOUND, "tokens_trained": 99, "seconds_per_turn": LATENCY}
        run = report.run.model_copy(update=known)
        measured = {
            "utility": {"joint_goal_accuracy": JGA},
            "utility_by_domain": {"restaurant": {"joint_goal_accuracy": JGA}},
            "utility_units": {"joint_goal_accuracy": UNITS},
            "training": [TrainingEpoch(epoch=1, training_loss=0.5)],
        }
        directory.write_report(report.model_copy(update={"status": "complete", "run": run, **measured}))
        directory.model.mkdir()
    return RunDirectory.open(directory.path)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch, stranger: Target) -> list[dict[str, Any]]:
    """Replace loading by a stranger; return what was asked to be loaded."""
    asked: list[dict[str, Any]] = []

    def load(config: dict[str, Any], folder: Path, inference: dict[str, int], *, name: str) -> Target:
        asked.append({"config": config, "folder": folder, "inference": inference, "name": name})
        return stranger

    monkeypatch.setattr(audited, "target_of", load)
    monkeypatch.setattr(stranger, "device", "cpu", raising=False)
    monkeypatch.setattr(audited, "weights_sha256", lambda _: SOUND)
    return asked


def test_a_run_hands_on_its_bot_and_what_is_known_of_it(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]], stranger: Target
) -> None:
    target, update = audited.load_run_target(finished, experiment, INFERENCE)
    assert target is stranger  # turn_level guards nothing
    assert no_model == [{"config": CONFIG, "folder": finished.model, "inference": INFERENCE, "name": "turn_level"}]
    assert update["run"] == {
        "weights_sha256": SOUND,
        "tokens_trained": 99,
        "device": "cpu",
        "seconds_per_turn": LATENCY,
    }
    assert update["utility"] == {"joint_goal_accuracy": JGA}
    assert update["utility_by_domain"] == {"restaurant": {"joint_goal_accuracy": JGA}}
    assert update["utility_units"] == {"joint_goal_accuracy": UNITS}
    assert [epoch.training_loss for epoch in update["training"]] == [0.5]
    assert update["recipe"].stack == ["turn_level"]
    assert update["notes"][-1] == f"utility was measured by run {finished.read_report().run.id}"
    assert update["audited"] == {"target": "run"}


def test_a_run_without_utility_is_not_said_to_have_measured_it(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]]
) -> None:
    finished.write_report(finished.read_report().model_copy(update={"utility": {}}))
    _, update = audited.load_run_target(finished, experiment, INFERENCE)
    assert update["notes"][-1] == f"run {finished.read_report().run.id} measured no utility"


@pytest.mark.parametrize(
    ("key", "said"),
    [("recipe", r"config\.yaml: recipe\.x: _target_='.*' lies outside"), ("backbone", r"config\.yaml: backbone: .*")],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_what_a_run_names_is_not_run_unless_it_is_trusted(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]], key: str, said: str, is_nested: bool
) -> None:
    trap = finished.path / "sprung"
    evil: dict[str, Any] = {"_target_": "os.mkdir", "path": str(trap)}
    if is_nested:
        evil = {"_target_": "hushbot.recipes.filter_guard.FilterGuard", "rewriter": evil}
        said = r"rewriter: _target_='os\.mkdir' lies outside hushbot; name it with `--trust os`"
    config = CONFIG | {key: {"x": evil} if key == "recipe" else evil}
    finished.config_path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        audited.load_run_target(finished, experiment, INFERENCE)
    assert not trap.exists()
    assert no_model == []


def test_a_trusted_recipe_is_built(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]]
) -> None:
    config = CONFIG | {"recipe": {"mine": {"_target_": f"{__name__}.Mine"}}}
    finished.config_path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ConfigError, match="lies outside"):
        audited.load_run_target(finished, experiment, INFERENCE)
    audited.load_run_target(finished, experiment, INFERENCE, [__name__])
    assert len(no_model) == 1


def test_canaries_are_taken_over_where_a_run_has_them(finished: RunDirectory) -> None:
    setting = {"data": {"_target_": "hushbot.corpora.bookings.load_bookings"}, "seed": 3}
    setting["split"] = {"_target_": "hushbot.corpora.split.SplitSettings"}
    finished.config_path.write_text(json.dumps(CONFIG | setting), encoding="utf-8")
    assert audited.setting_of(finished, ()) == setting
    setting["canaries"] = {"_target_": "hushbot.corpora.canaries.CanarySettings", "m": 8}
    finished.config_path.write_text(json.dumps(CONFIG | setting), encoding="utf-8")
    assert audited.setting_of(finished, ()) == setting
    setting["canaries"] = {"_target_": "os.mkdir", "path": "trap"}
    finished.config_path.write_text(json.dumps(CONFIG | setting), encoding="utf-8")
    with pytest.raises(ConfigError, match="canaries"):
        audited.setting_of(finished, ())


def test_other_members_are_refused_before_the_bot_is_loaded(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]]
) -> None:
    split = experiment.split
    swapped = AuditSplit(split.nonmembers, split.members)
    with pytest.raises(DataError, match=r"manifest\.json.*members: 3 only there"):
        audited.load_run_target(finished, replace(experiment, drawn=SplitReport(swapped)), INFERENCE)
    assert no_model == []


def test_changed_data_is_refused(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]]
) -> None:
    first, *rest = experiment.corpus.dialogues
    changed = replace(experiment.corpus, dialogues=(replace(first, opening="hello"), *rest))
    with pytest.raises(DataError, match="data_sha256"):
        audited.load_run_target(finished, replace(experiment, corpus=changed), INFERENCE)
    assert no_model == []


@pytest.mark.parametrize("lack", ["model", "weights", "recipe"])
def test_a_directory_without_a_bot_says_so(
    finished: RunDirectory, experiment: Experiment, no_model: list[dict[str, Any]], lack: str
) -> None:
    if lack == "model":
        finished.model.rmdir()
    elif lack == "weights":
        report = json.loads(finished.report_path.read_text(encoding="utf-8"))
        report["run"]["weights_sha256"] = None
        finished.report_path.write_text(json.dumps(report), encoding="utf-8")
    else:  # the directory of an audit
        finished.config_path.write_text("target: run\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"run holds no trained bot; give a run directory of `train`"):
        audited.load_run_target(finished, experiment, INFERENCE)
    assert no_model == []


def test_a_model_folder_is_named_by_its_weights() -> None:
    target, update = audited.load_model_target(str(tiny_dir()), None, INFERENCE)
    assert isinstance(target, Target)
    assert update == {
        "run": {"weights_sha256": weights_sha256(tiny_dir()), "device": target.device},
        "audited": {"target": "hf", "model": None},  # a folder is a machine's
    }


def test_a_hub_id_is_kept(monkeypatch: pytest.MonkeyPatch, stranger: Target) -> None:
    monkeypatch.setattr(stranger, "device", "cpu", raising=False)
    monkeypatch.setattr(audited.LocalTarget, "from_pretrained", lambda *_, **__: stranger)
    _, update = audited.load_model_target("someone/on-the-hub", None, INFERENCE)
    assert update["audited"] == {"target": "hf", "model": "someone/on-the-hub"}


def test_a_bot_that_was_trained_anew_is_refused_before_it_is_loaded(
    finished: RunDirectory,
    experiment: Experiment,
    no_model: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audited, "weights_sha256", lambda _: "another")
    with pytest.raises(DataError, match="have the hash another, the run's report says abc"):
        audited.load_run_target(finished, experiment, INFERENCE)
    assert no_model == []


def test_an_audit_is_of_weights_and_not_of_a_path(tmp_path: Path) -> None:
    model, adapter = tmp_path / "model", tmp_path / "adapter"
    for folder in (model, adapter):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"first")
    before = audited.weights_of(str(model), str(adapter))
    assert before == {"model": weights_sha256(model), "adapter": weights_sha256(adapter), "base": None}
    (adapter / "model.safetensors").write_bytes(b"trained again")
    after = audited.weights_of(str(model), str(adapter))
    assert after["adapter"] != before["adapter"]
    assert after["model"] == before["model"]
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}), encoding="utf-8")
    assert audited.weights_of(str(adapter), None)["base"] == weights_sha256(model)
    assert audited.weights_of("someone/on-the-hub", None) == {"model": None, "adapter": None, "base": None}
