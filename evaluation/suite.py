"""From a checked configuration to a finished report: train, measure utility, attack, step by step resumable.

Guarantees: the manifest (who is a member) is on disk before anything is trained, and a run directory whose manifest
or configuration differs is refused; the report is rewritten whole after every step, so an interrupted run keeps what
it has and the same command continues; an attack that is in the report is not run again. Non-members are read only
after training has ended.

What voids them: changing code or weights between two starts of the same run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hushbot.composition import UNHASHED_KEYS, build, decisive, find_problems
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport, check_manifest, make_split, manifest
from hushbot.errors import ConfigError, HushbotError
from hushbot.evaluation.tracking import Shorten
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.protocols import Attack, Target, Tracker
from hushbot.run import RunDirectory, config_sha256, versions
from hushbot.training.stack import RecipeStack, build_stack
from hushbot.types import AttackResult, AuditReport, AuditSplit, DataInfo, RecipeInfo, RunInfo

if TYPE_CHECKING:
    from hushbot.targets.local import LocalTarget

Say = Callable[[str], None]
"""Where progress goes, one line at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Everything a run is made of, built and checked before any of it is used."""

    config: Mapping[str, Any]
    """The whole resolved configuration, as it is kept in the run directory."""
    name: str
    """What the run is called: its recipe stack, or `base`."""
    corpus: Corpus
    drawn: SplitReport
    attacks: Mapping[str, Attack]
    trackers: Mapping[str, Tracker]
    seed: int
    reveal: bool

    @property
    def split(self) -> AuditSplit:
        """Return who is a member and who is not."""
        return self.drawn.split

    @property
    def config_sha256(self) -> str:
        """Return the hash of what decides the results."""
        return config_sha256(decisive(self.config))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the loader repaired or skipped and what the split could not do."""
        return (*self.corpus.notes, *self.drawn.notes)

    @property
    def manifest(self) -> dict[str, Any]:
        """Return what is written before training."""
        return dict(manifest(self.drawn, self.corpus, self.seed))


def check(config: Mapping[str, Any], trust: Sequence[str]) -> None:
    """Check every component of a configuration.

    Raises:
        ConfigError: Holds all problems.
    """
    problems = find_problems(config, trust)
    if problems:
        raise ConfigError(*problems)


def quieten() -> None:
    """Silence the bars and hints of the libraries that load models; our own lines of progress stay."""
    import warnings

    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")


def prepare(config: Mapping[str, Any], name: str) -> Experiment:
    """Build the attacks and trackers, load the corpus, draw the split; components first, data last."""
    attacks = {key: build(node, f"attack.{key}") for key, node in config["attack"].items()}
    trackers = {key: build(node, f"tracker.{key}") for key, node in config["tracker"].items()}
    settings = build(config["split"], "split")
    corpus = build(config["data"], "data")
    seed = int(config["seed"])
    return Experiment(
        config=config,
        name=name,
        corpus=corpus,
        drawn=make_split(corpus, settings, seed),
        attacks=attacks,
        trackers=trackers,
        seed=seed,
        reveal=bool(config["reveal"]),
    )


def open_run(experiment: Experiment, path: Path) -> RunDirectory:
    """Create the run directory, or open it again to resume; the manifest on disk must be ours."""
    directory = RunDirectory(path)
    if directory.manifest_path.exists():
        check_manifest(directory.manifest, experiment.manifest)
    return directory.create(experiment.config, experiment.manifest, free_keys=UNHASHED_KEYS)


def start_report(experiment: Experiment, directory: RunDirectory) -> AuditReport:
    """Return the report so far, or an empty one."""
    if directory.report_path.exists():
        return directory.read_report()
    split, corpus = experiment.split, experiment.corpus
    used = (*split.members, *split.nonmembers, *split.calibration, *split.controls)
    return AuditReport(
        status="partial",
        run=RunInfo(
            id=f"{experiment.name}-s{experiment.seed}-{experiment.config_sha256[:8]}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            seed=experiment.seed,
            config_sha256=experiment.config_sha256,
            data_sha256=str(directory.manifest["data_sha256"]),
            versions=versions(),
        ),
        recipe=RecipeInfo(stack=experiment.name.split("+")),
        data=DataInfo(
            name=corpus.name,
            members=len(split.members),
            nonmembers=len(split.nonmembers),
            calibration=len(split.calibration),
            controls=len(split.controls),
            domains=len(corpus.schema.domains),
            slots=len(corpus.schema.slots),
            turns=sum(len(dialogue.turns) for dialogue in used),
            supervised_tokens=0,
        ),
        notes=list(experiment.notes),
    )


class _Parts(NamedTuple):
    """What a bot is trained from and with."""

    backbone: Any
    stack: RecipeStack
    settings: Any
    is_trained: bool
    """False for the `base` arm, which is the backbone as it is."""


def fit_bot(
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
        report = _make_model(experiment, parts, directory, report, say)
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
    save_model(loaded.model, loaded.tokenizer, directory.model, started_from=started_from)
    threads = str(parts.settings.num_threads or torch.get_num_threads())
    made = {
        "weights_sha256": weights_sha256(directory.model),
        "seconds": seconds,
        "tokens_trained": tokens,
        "versions": report.run.versions | {"threads": threads},
    }
    run = report.run.model_copy(update=made)
    return report.model_copy(update={"run": run, "data": data, "notes": notes})


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


def measure(
    experiment: Experiment, target: Target, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport:
    """Run every attack that the report does not hold yet, writing it after each."""
    for name, attack in experiment.attacks.items():
        if name in report.attacks:
            continue
        say(f"attacking {experiment.name} with {name}")
        started = time.perf_counter()
        result = attack.run(target, experiment.split, experiment.corpus.schema, seed=experiment.seed)
        if result.rows:
            records = directory.write_records(name, result.rows, reveal=experiment.reveal)
            # Rows are in the clear: from here on they are in the masked records only, out of any tracker's reach.
            result = result.model_copy(update={"records": records, "rows": []})
        report = _with_attack(report, name, result, time.perf_counter() - started)
        directory.write_report(report)
        for tracker in experiment.trackers.values():
            tracker.log(report)
    return finish(experiment, directory, report)


def measure_bot(
    experiment: Experiment,
    settings: UtilitySettings,
    target: Target,
    directory: RunDirectory,
    report: AuditReport,
    say: Say,
) -> AuditReport:
    """Measure the bot's utility on the non-members, unless the report holds it."""
    if report.utility:
        return report
    say(f"measuring the utility of {experiment.name}")
    started = time.perf_counter()
    utility = measure_utility(
        target,
        experiment.split.nonmembers,
        experiment.corpus.database,
        settings,
        seed=experiment.seed,
        shorten=history_cutter(directory.model, settings.max_new_tokens),
    )
    if utility.rows:
        directory.write_records("utility", utility.rows, reveal=experiment.reveal)
    seconds = report.run.seconds | {"utility": time.perf_counter() - started}
    report = report.model_copy(
        update={
            "utility": utility.estimates,
            "utility_protocol": utility.protocol,
            "run": report.run.model_copy(update={"seconds": seconds}),
        }
    )
    directory.write_report(report)
    return report


def history_cutter(folder: Path, max_new_tokens: int) -> Shorten | None:
    """Return what cuts a history by the limit a bot was trained with, with room for its answer; None without a bot."""
    if not folder.is_dir():
        return None
    from hushbot.training.model_folder import load_limit
    from hushbot.training.packing import shorten_history

    tokenizer, max_length = load_limit(folder)
    return lambda lines: shorten_history(lines, tokenizer, max_length - max_new_tokens)


def finish(experiment: Experiment, directory: RunDirectory, report: AuditReport) -> AuditReport:
    """Mark the report complete and tell the trackers."""
    report = report.model_copy(update={"status": "complete", "error": None})
    directory.write_report(report)
    for tracker in experiment.trackers.values():
        tracker.log(report)
    return report


def fail(directory: RunDirectory, report: AuditReport, error: HushbotError) -> None:
    """Keep what was measured, and say what went wrong."""
    directory.write_report(report.model_copy(update={"status": "failed", "error": str(error)}))


def _with_attack(report: AuditReport, name: str, result: AttackResult, seconds: float) -> AuditReport:
    spent = report.run.seconds | {"audit": report.run.seconds.get("audit", 0.0) + seconds}
    return report.model_copy(
        update={
            "attacks": {**report.attacks, name: result},
            "run": report.run.model_copy(update={"seconds": spent}),
        }
    )
