"""From a checked configuration to a bot as it is deployed: train it, or find it trained, save it, load it, guard it.

Guarantees: the bot that is audited is the one on disk, and what is on disk computes what was trained (one dialogue that
is no member is scored by both); the report knows the weights' hash, the guarantee and how long it took in one and the
same write, so a run that dies in between trains or resumes again. A model that another arm has trained with the same
settings is taken over (`hushbot.evaluation.reuse`).

What voids them: changing code or weights between two starts of the same run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hushbot.composition import build
from hushbot.corpora.split import annotation_sha256
from hushbot.errors import DataError, HushbotError
from hushbot.evaluation.experiment import Experiment, Say
from hushbot.evaluation.memory import start_phase, with_peak
from hushbot.evaluation.reuse import Origin, copy_model, find_twin
from hushbot.evaluation.state_scoring import ScoringRules
from hushbot.evaluation.watch import WatchSettings, make_watch, watch_of
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.training.stack import RecipeStack, build_stack
from hushbot.types import AuditReport, TrainingEpoch

if TYPE_CHECKING:
    from hushbot.targets.local import LocalTarget
    from hushbot.training.fit import FitResult, TrainerSettings
    from hushbot.training.model_folder import LoadedBackbone
    from hushbot.training.watching import Watch


class _Parts(NamedTuple):
    """What a bot is trained from and with."""

    backbone: Any
    stack: RecipeStack
    settings: Any
    is_trained: bool
    """False for the `base` arm, which is the backbone as it is."""
    trust: Sequence[str]
    """Packages beside hushbot that a neighbour's recipes may come from."""
    watch: WatchSettings
    """Whether and how the bot is looked at while it trains."""
    rules: ScoringRules
    """What counts as a right state."""


def make_bot(
    experiment: Experiment,
    config: Mapping[str, Any],
    directory: RunDirectory,
    report: AuditReport,
    say: Say,
    trust: Sequence[str] = (),
) -> tuple[Target, AuditReport]:
    """Train (or find the trained) model and return it as deployed, with the report that says how it was made."""
    parts = _Parts(
        build(config["backbone"], "backbone"),
        build_stack(config),
        build(config["trainer"], "trainer"),
        bool(config["fit"]),
        trust,
        build(config["watch"], "watch") if "watch" in config else WatchSettings(),
        build(config["utility"], "utility").rules,
    )
    if report.run.weights_sha256 is None:
        if parts.is_trained:
            _check_watch(directory, config)
        report = _take_over(experiment, parts, directory, report, say) or _make_model(
            experiment, parts, directory, report, say
        )
        directory.write_report(report)
    if not parts.settings.keep_checkpoints:
        shutil.rmtree(directory.checkpoints, ignore_errors=True)
    target = target_of(config, directory.model, config["inference"], name=experiment.name)
    report = report.model_copy(update={"run": report.run.model_copy(update={"device": target.device})})
    directory.write_report(report)
    return parts.stack.guard(target, experiment.corpus.schema), report


def _make_model(
    experiment: Experiment, parts: _Parts, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport:
    """Save the backbone, trained if it is to be, and return the report that knows its weights."""
    import torch

    from hushbot.training.backbone import base_fingerprint, save_model, weights_sha256
    from hushbot.training.fit import fit
    from hushbot.training.model_folder import folder_sha256

    shutil.rmtree(directory.model, ignore_errors=True)  # saved by a run that died before it could report
    torch.manual_seed(experiment.seed)  # adapters start at random weights
    loaded = parts.backbone.load()
    started_from = base_fingerprint(loaded.model)
    if parts.is_trained:
        say(f"training {experiment.name} on {len(experiment.split.trained)} dialogues")
        start_phase()
        result = fit(
            loaded.model,
            loaded.tokenizer,
            stack=parts.stack,
            split=experiment.split,
            schema=experiment.corpus.schema,
            # The checkpoint outlives the fit until the model is on disk and in the report.
            settings=replace(parts.settings, keep_checkpoints=True),
            max_length=parts.backbone.max_length,
            checkpoint_dir=directory.checkpoints,
            seed=experiment.seed,
            watch=_watch(experiment, parts, loaded),
        )
        report = _with_training(experiment, parts, report, result)
    else:
        notes = parts.stack.notes(experiment.split.members, experiment.corpus.schema, seed=experiment.seed)
        report = report.model_copy(update={"notes": [*report.notes, *notes]})
    save_model(loaded.model, loaded.tokenizer, directory.model, started_from=started_from)
    notes = _check_reload(experiment, parts, loaded, directory.model) if parts.is_trained else ()
    made = {
        "weights_sha256": weights_sha256(directory.model),
        "model_sha256": folder_sha256(directory.model),
        "versions": _versions(parts, report),
    }
    run = report.run.model_copy(update=made)
    return report.model_copy(update={"run": run, "notes": [*report.notes, *notes]})


def _check_watch(directory: RunDirectory, config: Mapping[str, Any]) -> None:
    """Refuse to go on without the watch that a run was started with: its curve would break off, its budget not hold.

    Raises:
        DataError: This run was started with another one.
    """
    started, now = watch_of(directory.config), watch_of(config)
    if started != now:
        raise DataError(
            f"{directory.config_path} has watch.every={(started or {}).get('every')}, this command "
            f"{(now or {}).get('every')}; give the settings of watch that the run was started with, or another run"
        )


def _watch(experiment: Experiment, parts: _Parts, loaded: LoadedBackbone) -> Watch | None:
    """Return what looks at the bot while it trains; None where nothing does."""
    return make_watch(
        parts.watch,
        experiment,
        loaded.tokenizer,
        rules=parts.rules,
        max_length=parts.backbone.max_length,
        learns_changes=parts.stack.learns_changes,
    )


def _with_training(experiment: Experiment, parts: _Parts, report: AuditReport, result: FitResult) -> AuditReport:
    """Return the report with what training came to."""
    watching = {"watch": result.seconds_watching} if parts.watch.every is not None else {}
    trained = {
        "seconds": report.run.seconds | {"train": result.seconds} | watching,
        "tokens_trained": result.tokens_trained,
        "trained_on": training_device(parts.settings),
    }
    read = {
        "supervised_tokens": result.supervised_tokens,
        "annotation_sha256": annotation_sha256(experiment.corpus),
    }
    return report.model_copy(
        update={
            "run": with_peak(report.run.model_copy(update=trained), "train"),
            "data": report.data.model_copy(update=read),
            "recipe": report.recipe.model_copy(update={"privacy": result.privacy}),
            "training": [
                TrainingEpoch(
                    epoch=record.epoch,
                    training_loss=record.train_loss,
                    calibration_loss=record.calibration_loss,
                    measured=dict(record.measured),
                )
                for record in result.history
            ],
            "notes": [*report.notes, *_length_note(parts, result.n_truncated), *result.notes],
        }
    )


def _length_note(parts: _Parts, n_truncated: int) -> tuple[str, ...]:
    """Say how many examples were too long, and what the layout makes of such a one."""
    if not n_truncated:
        return ()
    limit = f"the {parts.backbone.max_length} tokens of backbone.max_length"
    if parts.stack.learns_changes:
        return (
            f"{n_truncated} dialogues do not fit {limit}: they are learnt in windows, every turn once, after as much "
            "of the text before it as fits",
        )
    return (f"{n_truncated} training examples lost their oldest history to fit {limit}",)


def _take_over(
    experiment: Experiment, parts: _Parts, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport | None:
    """Copy the model of a run beside this one that was trained alike; None when there is no such run."""
    if not parts.is_trained or parts.stack.privacy_unit is not None:
        return None
    origin = Origin(
        versions=_versions(parts, report),
        trained_on=training_device(parts.settings),
        annotation_sha256=annotation_sha256(experiment.corpus),
        base=lambda: _start_of(parts),
    )
    found = find_twin(directory, origin, parts.trust)
    if found is None:
        return None
    twin, theirs = found
    try:
        copy_model(twin, theirs, directory)
    except (HushbotError, OSError) as error:
        say(f"{experiment.name} is trained: {error}")
        return None
    why = f"the weights of run {theirs.run.id}, which differs only in what comes after training"
    say(f"{experiment.name} has {why}")
    recipes = tuple(f"{name}: " for name in {*theirs.recipe.stack, *parts.stack.names})
    training_notes = [note for note in theirs.notes if not note.startswith(recipes)]
    own_notes = parts.stack.notes(experiment.split.members, experiment.corpus.schema, seed=experiment.seed)
    shared = f"this bot has {why}; the seconds and tokens of that training count once, and stand in both reports"
    run = report.run.model_copy(
        update={
            "weights_sha256": theirs.run.weights_sha256,
            "model_sha256": theirs.run.model_sha256,
            "seconds": report.run.seconds | {"train": theirs.run.seconds.get("train", 0.0)},
            "peak_memory_mb": {phase: held for phase, held in theirs.run.peak_memory_mb.items() if phase == "train"},
            "tokens_trained": theirs.run.tokens_trained,
            "versions": theirs.run.versions,
            "trained_on": theirs.run.trained_on,
        }
    )
    notes = list(dict.fromkeys([*report.notes, *training_notes, *own_notes, shared]))
    made = {"run": run, "data": theirs.data, "training": theirs.training, "notes": notes}
    return report.model_copy(update=made)


def _versions(parts: _Parts, report: AuditReport) -> dict[str, str]:
    """Return the versions that a model is made with: the threads are those that train."""
    import torch

    return report.run.versions | {"threads": str(parts.settings.num_threads or torch.get_num_threads())}


def _start_of(parts: _Parts) -> str:
    """Return the fingerprint of what would be trained."""
    from hushbot.training.model_folder import base_fingerprint

    return base_fingerprint(parts.backbone.load().model)


def training_device(settings: TrainerSettings) -> str:
    """Return where Lightning trains: a GPU's name, since two kinds of GPU do not give the same weights, or `cpu`."""
    import torch

    wanted = settings.accelerator
    if wanted in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(settings.devices[0] if isinstance(settings.devices, list) else 0)
    if wanted in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return "mps"
    return "cpu" if wanted == "auto" else wanted


def _check_reload(experiment: Experiment, parts: _Parts, loaded: LoadedBackbone, folder: Path) -> tuple[str, ...]:
    """Check that what was saved is what was trained, on a dialogue that is no member; return a note where none will do.

    Raises:
        HushbotError: The saved model computes something else.
    """
    from hushbot.training.data import Packer
    from hushbot.training.reload import check_reload

    packer = Packer(parts.stack, loaded.tokenizer, parts.backbone.max_length)
    for dialogue in (*experiment.split.calibration, *experiment.split.controls):
        try:
            (packed,) = packer.pack([dialogue])
        except DataError:  # controls may have no known state or be too long; training never saw them
            continue
        check_reload(loaded.model, folder, packed)
        return ()
    return ("the saved model was not compared with the trained one: no calibration or control dialogue to do it on",)


def load_deployed(config: Mapping[str, Any], folder: Path, name: str, schema: Schema) -> Target:
    """Load a saved model as it is deployed: behind the guards of its recipes."""
    target = target_of(config, folder, config["inference"], name=name)
    return build_stack(config).guard(target, schema)


def target_of(config: Mapping[str, Any], folder: Path, inference: Mapping[str, int], *, name: str) -> LocalTarget:
    """Load a saved model as a target; its reference is the backbone before fine-tuning.

    A LoRA bot is its own reference, with the adapter off; an untrained bot has none.

    Raises:
        DataError: The backbone is not the one that the bot was trained from.
    """
    import torch

    from hushbot.targets.causal_lm import CausalLM
    from hushbot.targets.local import LocalTarget
    from hushbot.training.backbone import check_start, load_model

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, tokens = int(inference["batch_rows"]), int(inference["batch_tokens"])
    loaded = load_model(folder)
    model, reference = loaded.model, None
    has_adapter = hasattr(model, "peft_config")
    if not config["fit"] and has_adapter:
        model = CausalLM(model, without_adapter=True)  # else a bot that nobody trained would be its own control
    if config["fit"] and not has_adapter:
        before = build(config["backbone"], "backbone").load()
        check_start(folder, before.model)
        reference = LocalTarget(
            before.model, before.tokenizer, name="base", device=device, batch_rows=rows, batch_tokens=tokens
        )
    return LocalTarget(
        model,
        loaded.tokenizer,
        name=name,
        device=device,
        reference=reference,
        batch_rows=rows,
        batch_tokens=tokens,
    )
