"""From a checked configuration to a bot as it is deployed: train it, or find it trained, save it, load it, guard it.

Guarantees: the bot that is audited is the one on disk, and what is on disk computes what was trained (one dialogue that
is no member is scored by both); the report knows the weights' hash, the guarantee and how long it took in one and the
same write, so a run that dies in between trains or resumes again. A model that another arm has trained with the same
settings is taken over (`hushbot.evaluation.reuse`).

What voids them: changing code or weights between two starts of the same run.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hushbot.composition import build
from hushbot.errors import DataError
from hushbot.evaluation.experiment import Experiment, Say
from hushbot.evaluation.reuse import copy_model, find_twin
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.training.stack import RecipeStack, build_stack
from hushbot.types import AuditReport

if TYPE_CHECKING:
    from hushbot.targets.local import LocalTarget
    from hushbot.training.model_folder import LoadedBackbone


class _Parts(NamedTuple):
    """What a bot is trained from and with."""

    backbone: Any
    stack: RecipeStack
    settings: Any
    is_trained: bool
    """False for the `base` arm, which is the backbone as it is."""


def make_bot(
    experiment: Experiment, config: Mapping[str, Any], directory: RunDirectory, report: AuditReport, say: Say
) -> tuple[Target, AuditReport]:
    """Train (or find the trained) model and return it as deployed, with the report that says how it was made."""
    parts = _Parts(
        build(config["backbone"], "backbone"),
        build_stack(config),
        build(config["trainer"], "trainer"),
        bool(config["fit"]),
    )
    if report.run.weights_sha256 is None:
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

    shutil.rmtree(directory.model, ignore_errors=True)  # saved by a run that died before it could report
    torch.manual_seed(experiment.seed)  # adapters start at random weights
    loaded = parts.backbone.load()
    started_from = base_fingerprint(loaded.model)
    seconds, data, notes, tokens = report.run.seconds, report.data, report.notes, 0
    recipe = report.recipe
    if parts.is_trained:
        say(f"training {experiment.name} on {len(experiment.split.members)} dialogues")
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
        )
        seconds, tokens = seconds | {"train": result.seconds}, result.tokens_trained
        data = data.model_copy(update={"supervised_tokens": result.supervised_tokens})
        if result.n_truncated:
            lost = f"{result.n_truncated} training examples lost their oldest history to fit"
            notes = [*notes, f"{lost} the {parts.backbone.max_length} tokens of backbone.max_length"]
        notes = [*notes, *result.notes]
        recipe = recipe.model_copy(update={"privacy": result.privacy})
    save_model(loaded.model, loaded.tokenizer, directory.model, started_from=started_from)
    if parts.is_trained:
        notes = [*notes, *_check_reload(experiment, parts, loaded, directory.model)]
    threads = str(parts.settings.num_threads or torch.get_num_threads())
    made = {
        "weights_sha256": weights_sha256(directory.model),
        "seconds": seconds,
        "tokens_trained": tokens,
        "versions": report.run.versions | {"threads": threads},
    }
    run = report.run.model_copy(update=made)
    return report.model_copy(update={"run": run, "data": data, "notes": notes, "recipe": recipe})


def _take_over(
    experiment: Experiment, parts: _Parts, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport | None:
    """Copy the model of a run beside this one that was trained alike; None when there is no such run."""
    found = find_twin(directory, report)
    if found is None:
        return None
    twin, theirs = found
    say(f"{experiment.name} has the weights of {theirs.run.id}, which differs in its guards only")
    shutil.rmtree(directory.model, ignore_errors=True)
    copy_model(twin, directory)
    others = tuple(f"{name}: " for name in theirs.recipe.stack if name not in parts.stack.names)
    training_notes = [note for note in theirs.notes if not note.startswith(others)]
    own_notes = parts.stack.notes(experiment.split.members, experiment.corpus.schema, seed=experiment.seed)
    shared = f"the weights are those of run {theirs.run.id}, which differs in its guards only; its training is counted"
    run = report.run.model_copy(
        update={
            "weights_sha256": theirs.run.weights_sha256,
            "seconds": report.run.seconds | {"train": theirs.run.seconds.get("train", 0.0)},
            "tokens_trained": theirs.run.tokens_trained,
            "versions": theirs.run.versions,
        }
    )
    notes = list(dict.fromkeys([*report.notes, *training_notes, *own_notes, shared]))
    return report.model_copy(update={"run": run, "data": theirs.data, "notes": notes})


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
