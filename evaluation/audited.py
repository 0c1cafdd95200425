"""Targets for `hushbot audit`: the bot of a run directory, or any model folder or hub id.

Guarantees: a run's bot is attacked with the members that its manifest names, and its base control is the backbone its
own configuration names; a data pack or a bot that has changed since is refused.

What voids it for a hub id: only its name says which weights they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hushbot.corpora.split import check_manifest
from hushbot.errors import DataError
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.making import target_of
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.targets.local import LocalTarget
from hushbot.training.backbone import weights_sha256
from hushbot.training.stack import build_stack


def load_run_target(
    audited: RunDirectory, experiment: Experiment, inference: Mapping[str, int]
) -> tuple[Target, dict[str, Any]]:
    """Return a run's bot as deployed, and what its report already says of it.

    Raises:
        DataError: The corpus no longer gives the split in the run's manifest, the run has no bot (yet), or its
            bot is not the one that its report is about.
    """
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
    return stack.guard(target, experiment.corpus.schema), {
        "run": known,
        "data": report.data,
        "recipe": report.recipe,
        "utility": report.utility,
        "utility_protocol": report.utility_protocol,
        "notes": [*report.notes, f"utility was measured by run {report.run.id}"],
    }


def load_model_target(model: str, adapter: str | None, inference: Mapping[str, int]) -> tuple[Target, dict[str, Any]]:
    """Return a model folder's or hub id's bot."""
    target = LocalTarget.from_pretrained(
        model, adapter=adapter, batch_rows=int(inference["batch_rows"]), batch_tokens=int(inference["batch_tokens"])
    )
    folder = Path(adapter or model)
    hashed = weights_sha256(folder) if folder.is_dir() else None
    return target, {"run": {"weights_sha256": hashed, "device": target.device}}


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
    base = json.loads(path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    return str(base) if base else None
