"""Targets for `hushbot audit`: the bot of a run directory, or any model folder or hub id.

Guarantees: a run's bot is attacked with the members that its manifest names, and its base control is the backbone its
own configuration names; a data pack or a bot that has changed since is refused, and so is a configuration that would
run what is neither hushbot's nor of a package that the user trusts: a run directory may be anybody's.

What voids it for a hub id: only its name says which weights they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hushbot.composition import find_problems
from hushbot.corpora.split import check_manifest
from hushbot.errors import ConfigError, DataError
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.making import target_of
from hushbot.evaluation.tradeoff import AUDIT_NOTE
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.storage import read_json
from hushbot.targets.local import LocalTarget
from hushbot.training.backbone import weights_sha256
from hushbot.training.stack import build_stack

_BUILT = ("fit", "backbone", "recipe")
"""What of an audited run's configuration is built or decides what is."""


_TAKEN_OVER = ("data", "split", "seed")
"""What says who was a member, which is the audited run's to say."""


def setting_of(audited: RunDirectory, trust: Sequence[str]) -> dict[str, Any]:
    """Return what an audit takes over from the configuration of the run that it is of, once that is checked.

    Raises:
        ConfigError: The run's configuration names something that is neither ours nor trusted.
        DataError: It lacks a part.
    """
    _check(audited, trust)
    theirs = audited.config
    if missing := [key for key in _TAKEN_OVER if key not in theirs]:
        raise DataError(f"{audited.config_path} has no {', '.join(missing)}; give a run directory of `train`")
    return {key: theirs[key] for key in _TAKEN_OVER}


def _check(audited: RunDirectory, trust: Sequence[str]) -> None:
    """Check what would be built of an audited run's configuration, before any of it is."""
    config = audited.config
    problems = find_problems({key: config[key] for key in (*_TAKEN_OVER, *_BUILT) if key in config}, trust)
    if problems:
        raise ConfigError(*(f"{audited.config_path}: {problem}" for problem in problems))


def load_run_target(
    audited: RunDirectory, experiment: Experiment, inference: Mapping[str, int], trust: Sequence[str] = ()
) -> tuple[Target, dict[str, Any]]:
    """Return a run's bot as deployed, and what its report already says of it.

    Raises:
        ConfigError: The run's configuration names something that is neither ours nor trusted.
        DataError: The corpus no longer gives the split in the run's manifest, the run has no bot (yet), or its
            bot is not the one that its report is about.
    """
    _check(audited, trust)
    check_manifest(audited.manifest, experiment.manifest)
    config, report = audited.config, audited.read_report()
    if "recipe" not in config or report.run.weights_sha256 is None or not audited.model.is_dir():
        raise DataError(f"{audited.path} holds no trained bot; give a run directory of `train` or `compare`")
    found = weights_sha256(audited.model)
    if found != report.run.weights_sha256:
        raise DataError(
            f"{audited.model}: its weights have the hash {found}, the run's report says {report.run.weights_sha256}; "
            "restore the model or train again"
        )
    stack = build_stack(config)
    target = target_of(config, audited.model, inference, name=experiment.name)
    known = {"weights_sha256": found, "tokens_trained": report.run.tokens_trained, "device": target.device}
    utility = f"{AUDIT_NOTE}{report.run.id}" if report.utility else f"run {report.run.id} measured no utility"
    return stack.guard(target, experiment.corpus.schema), {
        "run": known,
        "data": report.data,
        "recipe": report.recipe,
        "utility": report.utility,
        "utility_protocol": report.utility_protocol,
        "notes": [*report.notes, utility],
        "audited": {"target": "run"},
    }


def load_model_target(model: str, adapter: str | None, inference: Mapping[str, int]) -> tuple[Target, dict[str, Any]]:
    """Return a model folder's or hub id's bot."""
    target = LocalTarget.from_pretrained(
        model, adapter=adapter, batch_rows=int(inference["batch_rows"]), batch_tokens=int(inference["batch_tokens"])
    )
    folder = Path(adapter or model)
    hashed = weights_sha256(folder) if folder.is_dir() else None
    # The report may be shown to anybody, and a folder's path is a machine's: only a hub id is kept.
    shown = {
        name: source if not Path(source).exists() else None
        for name, source in (("model", model), ("adapter", adapter))
        if source is not None
    }
    return target, {
        "run": {"weights_sha256": hashed, "device": target.device},
        "audited": {"target": "hf", **shown},
    }


def weights_of(model: str, adapter: str | None) -> dict[str, str | None]:
    """Return the hashes of a model's and an adapter's folder, for the configuration; null for what is no folder here.

    Raises:
        DataError: A folder holds no safetensors file.
    """
    folders = {"model": model, "adapter": adapter, "base": _base_of(Path(model))}
    return {
        name: weights_sha256(Path(folder)) if folder and Path(folder).is_dir() else None
        for name, folder in folders.items()
    }


def _base_of(folder: Path) -> str | None:
    """Return what an adapter's folder says its base is."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        return None
    base = read_json(path).get("base_model_name_or_path")
    return str(base) if base else None
