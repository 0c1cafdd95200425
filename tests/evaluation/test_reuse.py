"""Which arms may share one trained model: those whose guards alone differ, and never a private one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hushbot.evaluation.reuse import copy_model, find_twin, is_for_training
from hushbot.protocols import Recipe, Target
from hushbot.recipes.turn_level import TurnLevel
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.training.model_folder import weights_sha256
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
                versions={"a": "1"},
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
            ),
        )
        directory.write_report(report)
        return directory, report

    return make


@pytest.fixture
def muzzle() -> dict[str, Any]:
    return {"muzzle": {"_target_": f"{HERE}.Muzzle"}}


def test_what_takes_part_in_training() -> None:
    assert is_for_training(TurnLevel())
    assert is_for_training(Private())
    assert not is_for_training(Muzzle())


def test_an_arm_that_adds_a_guard_takes_over_the_model(make_run: Any, muzzle: dict[str, Any]) -> None:
    make_run("plain", config(TURN_LEVEL), model=b"weights")
    # The attacks differ, which is none of the model's business; turn_level is meant where none is named.
    directory, report = make_run("guarded", config(muzzle, attack={"membership": {}}))
    found = find_twin(directory, report)
    assert found is not None
    twin, theirs = found
    assert theirs.run.id == "plain"
    copy_model(twin, directory)
    assert weights_sha256(directory.model) == theirs.run.weights_sha256
    assert not (directory.path / "model.tmp").exists()


@pytest.mark.parametrize(
    "other",
    [
        config(TURN_LEVEL, seed=1),
        config(TURN_LEVEL, data={"name": "y"}),
        config(TURN_LEVEL, trainer={"max_epochs": 3}),
        config(TURN_LEVEL, fit=False),
        config({"private": {"_target_": f"{HERE}.Private"}, **TURN_LEVEL}),
    ],
)
def test_a_model_that_was_trained_otherwise_is_not_taken(make_run: Any, other: dict[str, Any]) -> None:
    make_run("other", other, model=b"weights")
    directory, report = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory, report) is None


def test_a_private_run_takes_no_model(make_run: Any) -> None:
    private = config({"private": {"_target_": f"{HERE}.Private"}, **TURN_LEVEL})
    make_run("other", private, model=b"weights")
    directory, report = make_run("mine", private)
    assert find_twin(directory, report) is None


def test_other_members_other_versions_or_changed_weights_are_no_twin(make_run: Any) -> None:
    make_run("members", config(TURN_LEVEL), model=b"weights", manifest={**MANIFEST, "members": ["b"]})
    changed, _ = make_run("changed", config(TURN_LEVEL), model=b"weights")
    (changed.model / "model.safetensors").write_bytes(b"other")
    make_run("unfinished", config(TURN_LEVEL))
    older, report = make_run("older", config(TURN_LEVEL), model=b"weights")
    older.write_report(report.model_copy(update={"run": report.run.model_copy(update={"versions": {"a": "0"}})}))
    directory, report = make_run("mine", config(TURN_LEVEL))
    assert find_twin(directory, report) is None


def test_a_damaged_neighbour_is_passed_over(make_run: Any, tmp_path: Path) -> None:
    make_run("plain", config(TURN_LEVEL), model=b"weights")
    (tmp_path / "a_wreck").mkdir()
    (tmp_path / "a_wreck" / "report.json").write_text("{")
    directory, report = make_run("mine", config(TURN_LEVEL))
    found = find_twin(directory, report)
    assert found is not None
    assert found[1].run.id == "plain"
