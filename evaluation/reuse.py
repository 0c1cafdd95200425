"""A bot that another run has trained already: arms that differ in their guards only share one model.

Guarantees: a model is taken over only from a run in the same folder that had the very same members, data, backbone,
trainer settings, seed, training recipes and package versions, and whose weights still have the hash that its report
names; since training is deterministic on a CPU, the bot is the one that training would have given. A private run
never takes over a model nor gives one away: its epsilon is that of its own ledger.

What voids it on a GPU: kernels that are not deterministic; the model is then one draw that both arms share, which
pairs them better than two draws would.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from hushbot.errors import HushbotError
from hushbot.protocols import Recipe
from hushbot.run import RunDirectory
from hushbot.training.model_folder import weights_sha256
from hushbot.training.stack import build_stack
from hushbot.types import AuditReport

_DECISIVE = ("data", "split", "backbone", "trainer", "seed", "fit")
"""Top-level keys that decide the weights, beside the recipes; everything else is for after training."""
_TRAINING_HOOKS = ("rewrite", "examples", "privatize")


def find_twin(directory: RunDirectory, report: AuditReport) -> tuple[RunDirectory, AuditReport] | None:
    """Return a run beside this one that trained the very same model, with its report; None when there is none.

    Args:
        directory: The run that needs a model; its configuration and manifest are on disk.
        report: Its report so far.
    """
    wanted = _training_part(directory.config)
    if wanted is None:
        return None
    for path in sorted(directory.path.absolute().parent.iterdir()):
        if path == directory.path.absolute() or not (path / "report.json").is_file():
            continue
        # A folder that is damaged, half-written or another version's is simply no twin.
        with contextlib.suppress(HushbotError, OSError):
            twin = RunDirectory.open(path)
            theirs = twin.read_report()
            if _has_model(twin, theirs) and _is_alike(directory, report, twin, theirs, wanted):
                return twin, theirs
    return None


def copy_model(twin: RunDirectory, directory: RunDirectory) -> None:
    """Copy a twin's model, whole or not at all."""
    scratch = directory.path / "model.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(twin.model, scratch)
    os.replace(scratch, directory.model)


def is_for_training(recipe: Recipe) -> bool:
    """Return whether a recipe takes part in training; one that only guards the trained bot does not."""
    return recipe.makes_examples or any(
        getattr(type(recipe), hook) is not getattr(Recipe, hook) for hook in _TRAINING_HOOKS
    )


def _has_model(twin: RunDirectory, report: AuditReport) -> bool:
    known = report.run.weights_sha256
    return known is not None and twin.model.is_dir() and weights_sha256(twin.model) == known


def _is_alike(
    directory: RunDirectory, report: AuditReport, twin: RunDirectory, theirs: AuditReport, wanted: str
) -> bool:
    return (
        twin.manifest == directory.manifest
        and theirs.run.versions == report.run.versions
        and _training_part(twin.config) == wanted
    )


def _training_part(config: Mapping[str, Any]) -> str | None:
    """Return everything that decides the weights, as one text; None where a model is not to be shared."""
    if not config.get("fit") or "recipe" not in config:
        return None
    stack = build_stack(config)
    if stack.privacy_unit is not None:
        return None
    recipes = [_spelled(recipe) for recipe in stack.recipes if is_for_training(recipe)]
    return json.dumps([recipes, {key: config.get(key) for key in _DECISIVE}], sort_keys=True, default=str)


def _spelled(recipe: Recipe) -> list[Any]:
    kind = type(recipe)
    settings = asdict(recipe) if is_dataclass(recipe) else {}
    return [f"{kind.__module__}.{kind.__qualname__}", settings]
