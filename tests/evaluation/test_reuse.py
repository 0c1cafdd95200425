"""Which arms may share one trained model: those that differ only in what comes after training, never private ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import DataError
from hushbot.evaluation import reuse
from hushbot.evaluation.reuse import Origin, copy_model
from hushbot.protocols import Recipe, Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.training.model_folder import folder_sha256, weights_sha256
from hushbot.types import AuditReport, DataInfo, RecipeInfo, RunInfo

HERE = __name__


class Muzzle(Recipe):
    """A recipe that guards only."""

    def guard(self, target: Target, schema: Schema) -> Target:
        return target


class Private(Recipe):
    """A recipe with a guarantee."""

    privacy_unit = "dialogue"

    def privatize(self, module: Any) -> Any:
        return module


TURN_LEVEL = {"turn_level": {"_target_": "hushbot.recipes.turn_level.TurnLevel"}}
MANIFEST = {"members": ["a"], "data_sha256": "0"}
ORIGIN = Origin(versions={"a": "1", "threads": "1"}, trained_on="cpu", annotation_sha256="s", base=lambda: "start")


def find_twin(
    directory: RunDirectory, origin: Origin = ORIGIN, trust: Sequence[str] = (HERE,)
) -> tuple[RunDirectory, AuditReport] | None:
    return reuse.find_twin(directory, origin, trust)


def config(recipe: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"fit": True, "recipe": recipe, "seed": 0, "data": {"name": "x"}, "attack": {}, **more}


@pytest.fixture
def make_run(tmp_path: Path) -> Any:
    def make(
        name: str, settings: dict[str, Any], *, model: bytes | None = None, manifest: dict[str, Any] = MANIFEST
    ) -> tuple[RunDirectory, AuditReport]:
        directory = RunDirectory(tmp_path / name).create(settings, manifest)
        directory.close()
        weights = None
        if model is not None:
            directory.model.mkdir()
            (directory.model / "model.safetensors").write_bytes(model)
            (directory.model / "hushbot_backbone.json").write_text('{"started_from": "start"}')
            (directory.model / "tokenizer.json").write_text("{}")
            weights = weights_sha256(directory.model)
        report = AuditReport(
            status="partial",
            run=RunInfo(
                id=name,
                created="",
                seed=0,
                config_sha256="",
                data_sha256="",
                weights_sha256=weights,
                model_sha256=folder_sha256(directory.model) if model is not None else None,
                versions={"a": "1", "threads": "1"},
                trained_on="cpu",
            ),
            recipe=RecipeInfo(stack=[name]),
            data=DataInfo(
                name="x",
                members=1,
                nonmembers=1,
                calibration=0,
                controls=0,
                domains=1,
                slots=1,
                turns=1,
                supervised_tokens=0,
                annotation_sha256="s",
            ),
        )
        directory.write_report(report)
        return directory, report

    return make


@pytest.fixture
def muzzle() -> dict[str, Any]:
    return {"muzzle": {"_target_": f"{HERE}.Muzzle"}}


def test_an_arm_that_adds_a_guard_takes_over_the_model(make_run: Any, muzzle: dict[str, Any]) -> None:
    make_run("plain", config(TURN_LEVEL), model=b"weights")
    # The attacks differ, which is none of the model's business; turn_level is meant where none is named.
    directory, _ = make_run("guarded", config(muzzle, attack={"membership": {}}))
    found = find_twin(directory)
    assert found is not None
    twin, theirs = found
    assert theirs.run.id == "plain"
    copy_model(twin, theirs, directory)
    assert weights_sha256(directory.model) == theirs.run.weights_sha256
    assert not (directory.path / "model.tmp").exists()


@pytest.mark.parametrize(
    "other",
    [
        config(TURN_LEVEL, seed=1),
        config(TURN_LEVEL, data={"name": "y"}),
        config(TURN_LEVEL, trainer={"max_epochs": 3}),
        config(TURN_LEVEL, fit=False),
        config(TURN_LEVEL, canaries={"m": 8, "repetitions": 2}),
        config({"private": {"_target_": f"{HERE}.Private"}, **TURN_LEVEL}),
    ],
)
def test_a_model_that_was_trained_otherwise_is_not_taken(make_run: Any, other: dict[str, Any]) -> None:
    make_run("other", other, model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is None


def test_canaries_are_part_of_what_a_model_is_trained_on(make_run: Any, muzzle: dict[str, Any]) -> None:
    once, none = {"m": 8, "repetitions": 1}, {"m": 0, "repetitions": 2}
    make_run("plain", config(TURN_LEVEL, canaries=once), model=b"weights")
    same, _ = make_run("same", config(muzzle, canaries=once))
    assert find_twin(same) is not None
    other, _ = make_run("other", config(muzzle, canaries={**once, "repetitions": 2}))
    assert find_twin(other) is None
    make_run("without", config(TURN_LEVEL), model=b"weights")
    off, _ = make_run("off", config(muzzle, canaries=none))
    assert find_twin(off) is not None


def test_how_processes_trained_together_counts_and_older_runs_had_one(make_run: Any) -> None:
    make_run("older", config(TURN_LEVEL, trainer={"max_epochs": 2}), model=b"weights")
    default, _ = make_run("default", config(TURN_LEVEL, trainer={"max_epochs": 2, "strategy": "auto"}))
    assert find_twin(default) is not None
    parted, _ = make_run("parted", config(TURN_LEVEL, trainer={"max_epochs": 2, "strategy": "fsdp"}))
    assert find_twin(parted) is None


def test_a_private_run_takes_no_model(make_run: Any) -> None:
    private = config({"private": {"_target_": f"{HERE}.Private"}, **TURN_LEVEL})
    make_run("other", private, model=b"weights")
    directory, _ = make_run("mine", private)
    assert find_twin(directory) is None


def test_other_members_other_versions_or_changed_weights_are_no_twin(make_run: Any) -> None:
    make_run("members", config(TURN_LEVEL), model=b"weights", manifest={**MANIFEST, "members": ["b"]})
    changed, _ = make_run("changed", config(TURN_LEVEL), model=b"weights")
    (changed.model / "model.safetensors").write_bytes(b"other")
    make_run("unfinished", config(TURN_LEVEL))
    older, report = make_run("older", config(TURN_LEVEL), model=b"weights")
    older.write_report(report.model_copy(update={"run": report.run.model_copy(update={"versions": {"a": "0"}})}))
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is None


DAMAGE: dict[str, tuple[str, str]] = {
    "report": ("report.json", "{"),
    "record": ("model/hushbot_backbone.json", "{"),
    "record of a list": ("model/hushbot_backbone.json", "[1]"),
    "no recipe": ("config.yaml", "fit: true\n"),
    "a recipe that is a number": ("config.yaml", "fit: true\nrecipe: 3\n"),
    "recipes that are texts": ("config.yaml", "fit: true\nrecipe: {a: b}\n"),
    "a trainer that is a list": (
        "config.yaml",
        "fit: true\nrecipe: {a: {_target_: hushbot.recipes.turn_level.TurnLevel}}\ntrainer: [1]\n",
    ),
}


@pytest.mark.parametrize(("file", "content"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_neighbour_is_passed_over(make_run: Any, file: str, content: str) -> None:
    make_run("plain", config(TURN_LEVEL), model=b"weights")
    wreck, report = make_run("a_wreck", config(TURN_LEVEL), model=b"weights")
    (wreck.path / file).write_text(content)
    if file.startswith("model/"):  # else its hash alone would pass it over
        run = report.run.model_copy(update={"model_sha256": folder_sha256(wreck.model)})
        wreck.write_report(report.model_copy(update={"run": run}))
    directory, _ = make_run("mine", config(TURN_LEVEL))
    found = find_twin(directory)
    assert found is not None
    assert found[1].run.id == "plain"


def test_nothing_that_a_neighbour_names_is_run(make_run: Any, tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    evil = {"_target_": "pathlib.Path.touch", "self": {"_target_": "pathlib.PosixPath", "path": str(trap)}}
    hidden = {"_target_": "hushbot.recipes.filter_guard.FilterGuard", "rewriter": evil}
    top = {"_target_": "hushbot.cli.main", "arguments": ["ls"]}
    for number, node in enumerate((evil, hidden, top)):
        make_run(f"evil{number}", config({**TURN_LEVEL, "guard": node}), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is None
    assert not trap.exists()


def test_a_neighbour_is_no_twin_where_its_guard_is_not_trusted(make_run: Any, muzzle: dict[str, Any]) -> None:
    make_run("guarded", config(muzzle), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is not None
    assert find_twin(directory, trust=()) is None
    mine, _ = make_run("also_mine", config(muzzle, attack={"x": {}}))
    assert find_twin(mine, trust=()) is None  # nor is our own compared, though it may be trained


def test_a_guard_is_compared_by_nothing_and_a_recipe_by_every_setting(make_run: Any) -> None:
    swap = {"_target_": "hushbot.recipes.counterfactual.Counterfactual"}
    guard = {"_target_": "hushbot.recipes.value_copy.ValueCopy", "max_words": 3}
    make_run("one", config({"counterfactual": {**swap, "pool": "public"}, "value_copy": guard}), model=b"weights")
    same, _ = make_run("same", config({"counterfactual": {**swap, "pool": "public"}}))
    other, _ = make_run("other", config({"counterfactual": {**swap, "pool": "members"}}))
    assert find_twin(same) is not None
    assert find_twin(other) is None


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"a": "2", "threads": "1"}},
        {"versions": {"a": "1", "threads": "2"}},
        {"trained_on": "NVIDIA H200"},
        {"annotation_sha256": "another schema"},
        {"base": lambda: "other weights under the same name"},
    ],
)
def test_what_a_model_is_made_of_is_compared(make_run: Any, change: dict[str, Any]) -> None:
    make_run("plain", config(TURN_LEVEL), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is not None
    assert find_twin(directory, replace(ORIGIN, **change)) is None


def test_threads_are_compared_as_they_were_not_as_they_were_asked_for(make_run: Any) -> None:
    make_run("plain", config(TURN_LEVEL, trainer={"max_epochs": 2, "num_threads": 1}), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL, trainer={"max_epochs": 2, "num_threads": None}))
    assert find_twin(directory) is not None


def test_the_backbone_is_loaded_only_where_all_else_is_alike(make_run: Any) -> None:
    make_run("plain", config(TURN_LEVEL, seed=1), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory, replace(ORIGIN, base=lambda: pytest.fail("loaded"))) is None


def test_a_changed_tokenizer_is_no_twin(make_run: Any) -> None:
    changed, _ = make_run("plain", config(TURN_LEVEL), model=b"weights")
    (changed.model / "tokenizer.json").write_text(json.dumps({"other": 1}))
    directory, _ = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory) is None


def test_a_model_that_changes_while_it_is_copied_is_not_kept(make_run: Any) -> None:
    twin, theirs = make_run("plain", config(TURN_LEVEL), model=b"weights")
    directory, _ = make_run("mine", config(TURN_LEVEL))
    (twin.model / "tokenizer.json").write_text("[]")
    with pytest.raises(DataError, match="changed while it was copied"):
        copy_model(twin, theirs, directory)
    assert not directory.model.exists()
    assert not (directory.path / "model.tmp").exists()
