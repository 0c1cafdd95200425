"""A bot that another run has trained already: arms that differ only in what comes after training share one model.

Guarantees: a model is taken over only from a run in the same folder that had the very same members, data, schema,
backbone (its weights too), trainer settings, seed, training recipes, package versions, threads and kind of device,
and whose model folder is still, file by file, the one that its report names, before and after it is copied; since
training is deterministic on a CPU, the bot is the one that training would have given. Nothing that a neighbour's
files name is built or run: its recipes are compared as they are written, and of those that are not ours only classes
of hushbot or of a package the user trusts are looked at. A damaged neighbour is no twin. A private run never takes
over a model nor gives one away: its epsilon is that of its own ledger.

What voids it on a GPU: kernels that are not deterministic; the model is then one draw that both arms share, which
pairs them better than two draws would. And a neighbour whose files and report were forged together.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushbot.composition import components, locate_trusted
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.evaluation.watch import watch_of
from hushbot.protocols import Recipe
from hushbot.run import RunDirectory
from hushbot.training.fit import TrainerSettings
from hushbot.training.model_folder import folder_sha256, started_from
from hushbot.training.stack import DEFAULT_MAKER, is_for_training
from hushbot.types import AuditReport

_DECISIVE = ("data", "split", "backbone", "trainer", "seed", "fit")
"""Top-level keys that decide the weights, beside the recipes; everything else is for after training."""
_NOT_DECISIVE = (*(name for name in TrainerSettings.no_effect if name != "strategy"), "num_threads")
"""Trainer settings that do not: threads are compared as they were, not as they were asked for."""
_WITHOUT_STRATEGY = {"strategy": "auto"}
"""How a bot was trained whose configuration is older than the setting, which changes last bits."""
_DAMAGE = (HushbotError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What a folder that is damaged, half-written or another version's may raise: it is simply no twin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What decides a model beside the configuration and the members."""

    versions: Mapping[str, str]
    """Of every package, with the number of threads that trains."""
    trained_on: str
    """The device: a GPU's model is not a CPU's."""
    annotation_sha256: str
    """Of the schema and of spans, which recipes read."""
    base: Callable[[], str]
    """Returns the backbone's fingerprint; asked only where all else is alike, since it loads the weights."""


def find_twin(
    directory: RunDirectory, origin: Origin, trust: Sequence[str] = ()
) -> tuple[RunDirectory, AuditReport] | None:
    """Return a run beside this one that trained the very same model, with its report; None when there is none.

    Args:
        directory: The run that needs a model; its configuration and manifest are on disk.
        origin: What else its model would be made of.
        trust: Packages beside hushbot that recipes may come from.
    """
    try:
        wanted = _training_part(directory.config, trust)
    except ConfigError:  # a recipe of our own that this call was not told to trust: it can be trained, not compared
        return None
    if wanted is None:
        return None
    for path in sorted(directory.path.absolute().parent.iterdir()):
        if path == directory.path.absolute() or not (path / "report.json").is_file():
            continue
        twin = RunDirectory(path)
        try:
            theirs = twin.read_report()
            start = started_from(twin.model) if _is_alike(directory, origin, twin, theirs, wanted, trust) else None
        except _DAMAGE:
            continue
        if start is not None and start == origin.base():
            return twin, theirs
    return None


def copy_model(twin: RunDirectory, theirs: AuditReport, directory: RunDirectory) -> None:
    """Copy a twin's model, whole or not at all.

    Raises:
        DataError: What was copied is not what its report names: it is being changed, or the copy is damaged.
    """
    scratch = directory.path / "model.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(twin.model, scratch)
    if folder_sha256(scratch) != theirs.run.model_sha256:
        shutil.rmtree(scratch, ignore_errors=True)
        raise DataError(f"{twin.model} changed while it was copied; train this arm, or start again when it is at rest")
    shutil.rmtree(directory.model, ignore_errors=True)
    os.replace(scratch, directory.model)


def _is_alike(
    directory: RunDirectory,
    origin: Origin,
    twin: RunDirectory,
    theirs: AuditReport,
    wanted: str,
    trust: Sequence[str],
) -> bool:
    return (
        twin.manifest == directory.manifest
        and theirs.data.annotation_sha256 == origin.annotation_sha256
        and theirs.run.versions == origin.versions
        and theirs.run.trained_on == origin.trained_on
        and _training_part(twin.config, trust) == wanted
        and _has_our_curve(directory.config, twin.config)
        and _is_whole(twin.model, theirs)
    )


def _has_our_curve(config: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether a run looked at its bot in training as this one wants to; one that does not want to takes any."""
    watch = watch_of(config)
    return watch is None or watch == watch_of(theirs)


def _is_whole(folder: Path, report: AuditReport) -> bool:
    known = report.run.model_sha256
    return known is not None and folder.is_dir() and folder_sha256(folder) == known


def _training_part(config: Mapping[str, Any], trust: Sequence[str]) -> str | None:
    """Return everything in a configuration that decides the weights, as one text; None where there is no sharing.

    Raises:
        ConfigError: A recipe names what is neither ours nor trusted.
    """
    if config.get("fit") is not True:
        return None
    kinds = {key: _kind_of(node, trust) for key, node in config["recipe"].items()}
    if any(kind is None or kind.privacy_unit is not None for kind in kinds.values()):
        return None
    recipes = [[key, config["recipe"][key]] for key, kind in kinds.items() if kind and is_for_training(kind)]
    if not any(kind and kind.makes_examples for kind in kinds.values()):
        recipes.insert(0, ["turn_level", DEFAULT_MAKER])
    settings = {key: config.get(key) for key in _DECISIVE}
    canaries = config.get("canaries") or {}
    settings["canaries"] = canaries if canaries.get("m") else None
    watch = watch_of(config)
    # Without a budget nothing that is seen decides.
    is_stopping = watch is not None and any(limit is not None for limit in (watch.get("budget") or {}).values())
    settings["watch"] = watch if is_stopping else None
    trainer = _WITHOUT_STRATEGY | (config.get("trainer") or {})
    settings["trainer"] = {k: v for k, v in trainer.items() if k not in _NOT_DECISIVE}
    return json.dumps([recipes, settings], sort_keys=True)


def _kind_of(node: Mapping[str, Any], trust: Sequence[str]) -> type[Recipe] | None:
    """Return a recipe's class without building it; None where it is none."""
    kind = locate_trusted(str(node["_target_"]), trust)
    for _, inner in components(node):
        locate_trusted(str(inner["_target_"]), trust)
    return kind if inspect.isclass(kind) and issubclass(kind, Recipe) else None
