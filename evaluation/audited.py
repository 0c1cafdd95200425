"""Targets for `hushbot audit`: the bot of a run directory, any model folder or hub id, or an endpoint (`endpoint`).

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
from hushbot.evaluation.experiment import Experiment, Say
from hushbot.evaluation.making import target_of
from hushbot.evaluation.tradeoff import AUDIT_NOTE
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.storage import read_json
from hushbot.targets.local import LocalTarget
from hushbot.training.backbone import weights_sha256
from hushbot.training.stack import build_stack
from hushbot.types import AuditReport

_BUILT = ("fit", "backbone", "recipe")
"""What of an audited run's configuration is built or decides what is."""


_TAKEN_OVER = ("data", "split", "seed")
"""What says who was a member, which is the audited run's to say."""
_TAKEN_IF_THERE = ("canaries",)
"""What says so, too, where there is such a thing."""


def chosen(config: Mapping[str, Any], trust: Sequence[str]) -> tuple[dict[str, Any], RunDirectory | None]:
    """Return an audit's whole configuration, with what says who is audited, and the run that says who was a member.

    Raises:
        ConfigError: The target's settings are missing or wrong.
        DataError: There is no such run.
    """
    target, run = config["target"], config["run"]
    if target == "run":
        if not run:
            raise ConfigError("run is empty; target=run needs run=DIR, the run directory to attack")
        audited = RunDirectory.open(run)
        # Runs of one split share their manifest, so the bot itself must be part of what an audit is.
        shown = audited.read_report().run.model_dump(include={"id", "weights_sha256"})
        return {**config, **setting_of(audited, trust), "audited": shown}, audited
    if target == "hf" and config["model"]:
        # The path may hold other weights tomorrow.
        return {**config, "audited": weights_of(config["model"], config["adapter"])}, None
    if target == "http":
        from hushbot.evaluation.endpoint import check_endpoint

        check_endpoint(config)
        members = RunDirectory.open(run) if run else None
        return {**config, **({} if members is None else setting_of(members, trust))}, members
    raise ConfigError(
        f"target={target!r} model={config['model']!r}: give target=run run=DIR, target=hf model=PATH, "
        "or target=http url=URL model=NAME"
    )


def name_of(config: Mapping[str, Any], audited: RunDirectory | None) -> str:
    """Return what reports call the bot: its recipes where they are known, or its name."""
    if config["target"] == "run" and audited is not None:
        return "+".join(audited.read_report().recipe.stack)
    return Path(str(config["model"])).name


def load_target(
    config: Mapping[str, Any],
    audited: RunDirectory | None,
    experiment: Experiment,
    report: AuditReport,
    trust: Sequence[str],
    say: Say,
) -> tuple[Target, AuditReport]:
    """Return the bot to attack, and the report with what is known of it.

    Raises:
        AuditError: It is of no use.
        ConfigError: Something cannot be loaded, or is not trusted.
        DataError: It is not the bot, or not the split, that it is said to be.
    """
    if config.get("manifest"):
        check_manifest(read_json(Path(config["manifest"])), experiment.manifest)
    if config["target"] == "http":
        from hushbot.evaluation.endpoint import load_endpoint_target

        target, update = load_endpoint_target(config, audited, experiment, report, say)
    elif audited is not None:
        target, update = load_run_target(audited, experiment, config["inference"], trust)
    else:
        target, update = load_model_target(config["model"], config["adapter"], config["inference"])
    return target, report.model_copy(update={**update, "run": report.run.model_copy(update=update.pop("run"))})


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
    return {key: theirs[key] for key in (*_TAKEN_OVER, *_TAKEN_IF_THERE) if key in theirs}


def _check(audited: RunDirectory, trust: Sequence[str]) -> None:
    """Check what would be built of an audited run's configuration, before any of it is."""
    config = audited.config
    keys = (*_TAKEN_OVER, *_TAKEN_IF_THERE, *_BUILT)
    problems = find_problems({key: config[key] for key in keys if key in config}, trust)
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
    known = {
        "weights_sha256": found,
        "tokens_trained": report.run.tokens_trained,
        "device": target.device,
        "seconds_per_turn": report.run.seconds_per_turn,
    }
    utility = f"{AUDIT_NOTE}{report.run.id}" if report.utility else f"run {report.run.id} measured no utility"
    return stack.guard(target, experiment.corpus.schema), {
        "run": known,
        "data": report.data,
        "recipe": report.recipe,
        "utility": report.utility,
        "utility_protocol": report.utility_protocol,
        "utility_by_domain": report.utility_by_domain,
        "utility_units": report.utility_units,
        "training": report.training,
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
