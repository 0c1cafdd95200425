"""From a checked configuration to a finished report: train, measure utility, attack, step by step resumable.

Guarantees: the manifest (who is a member) is on disk before anything is trained, and a run directory whose manifest
or configuration differs is refused; the report is rewritten whole after every step, so an interrupted run keeps what
it has and the same command continues; an attack that is in the report is not run again. Non-members are read only
after training has ended.

What voids them: changing code or weights between two starts of the same run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from hushbot.composition import build, find_problems, free_keys
from hushbot.corpora.canaries import CanarySettings, with_canaries
from hushbot.corpora.split import check_manifest, make_split
from hushbot.discretion import Veil
from hushbot.errors import ConfigError, HushbotError, UnsupportedError
from hushbot.evaluation.caching import CacheSettings, forget, remembering
from hushbot.evaluation.card import write_card
from hushbot.evaluation.documents import pseudonymous_units, split_sha256, with_documents
from hushbot.evaluation.experiment import Experiment, Say
from hushbot.evaluation.following import check_installed, following
from hushbot.evaluation.informing import confronted, informed
from hushbot.evaluation.memory import start_phase, with_peak
from hushbot.evaluation.sensitivity import Sensitivity
from hushbot.evaluation.sharing import Team
from hushbot.evaluation.tracking import Limit
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.protocols import Attack, Target, Tracker
from hushbot.run import RunDirectory, versions
from hushbot.stats import unmeasured
from hushbot.training.fit import TrainerSettings
from hushbot.training.stack import build_stack
from hushbot.types import TIERS, AttackResult, AuditReport, DataInfo, Headline, RecipeInfo, RunInfo, Tier

WHOLE_STATES_NOTE = (
    "the membership attack and the quiz ask in whole states, which this bot was not trained to write; an attacker who "
    "knows its layout may do better, which was not measured"
)
WHOLE_STATES_NOTES = (
    WHOLE_STATES_NOTE,
    "the membership attack scores whole states, which this bot was not trained to write; an attacker who knows its "
    "layout may do better, which was not measured",
)
"""How reports say that a bot learnt changes, those that were written before there was a quiz as well."""


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
    trackers = build_trackers(config["tracker"])
    settings = build(config["split"], "split")
    # A configuration that was written before there was such a block assesses nothing.
    sensitivity = build(config["sensitivity"], "sensitivity") if "sensitivity" in config else Sensitivity()
    corpus = build(config["data"], "data")
    seed = int(config["seed"])
    canaries = build(config["canaries"], "canaries") if "canaries" in config else CanarySettings()
    return Experiment(
        config=config,
        name=name,
        corpus=corpus,
        drawn=with_canaries(make_split(corpus, settings, seed), corpus.schema, canaries, seed),
        attacks=attacks,
        trackers=trackers,
        seed=seed,
        reveal=bool(config["reveal"]),
        sensitivity=sensitivity,
        cache=build(config["cache"], "cache") if "cache" in config else CacheSettings(),
    )


def build_trackers(config: Mapping[str, Any]) -> dict[str, Tracker]:
    """Build the tracker of a configuration, or several by name; each can work here."""
    nodes = {"tracker": config} if "_target_" in config else {f"tracker.{name}": node for name, node in config.items()}
    trackers: dict[str, Tracker] = {key: build(node, key) for key, node in nodes.items()}
    check_installed(trackers.values())
    return trackers


def open_run(experiment: Experiment, path: Path, trust: Sequence[str] = ()) -> RunDirectory:
    """Create the run directory, or open it again to resume; the manifest on disk must be ours.

    Settings that change no result may differ from what is on disk, of recipes in packages in `trust` too.
    """
    directory = RunDirectory(path)
    if directory.manifest_path.exists():
        check_manifest(directory.manifest, experiment.manifest)
    free = free_keys(experiment.config, trust) | {f"trainer.{name}" for name in TrainerSettings.resumable}
    return directory.create(experiment.config, experiment.manifest, free_keys=free)


def start_report(experiment: Experiment, directory: RunDirectory) -> AuditReport:
    """Return the report so far, or an empty one."""
    who_is_where = split_sha256(directory.manifest)
    if directory.report_path.exists():
        report = directory.read_report()
        if report.run.split_sha256 is not None:
            return report
        # Written before reports had it.
        return report.model_copy(update={"run": report.run.model_copy(update={"split_sha256": who_is_where})})
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
            split_sha256=who_is_where,
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


def measure(
    experiment: Experiment, target: Target, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport:
    """Run every attack that the report does not hold yet, writing it after each."""
    if learns_changes(experiment) and not says_changes(report):
        # Also without those attacks: a later audit of this run takes the notes over.
        report = report.model_copy(update={"notes": [*report.notes, WHOLE_STATES_NOTE]})
    with following(experiment.trackers.values(), directory.path, experiment.config, say):
        with remembering(experiment.cache, target, directory) as asked:
            report = _attack_each(experiment, asked, directory, report, say)
        # Before the report is complete: a run that dies in between is started again, and leaves nothing in the clear.
        kept = forget(experiment.cache, directory)
        return finish(experiment, directory, report.model_copy(update={"notes": [*report.notes, *kept]}))


def _attack_each(
    experiment: Experiment, target: Target, directory: RunDirectory, report: AuditReport, say: Say
) -> AuditReport:
    """Return the report with every attack that it did not hold yet, written after each."""
    start_phase()
    veil = Veil.over(experiment.everybody, experiment.corpus.schema)
    for name, attack in experiment.attacks.items():
        if name in report.attacks:
            continue
        say(f"attacking {experiment.name} with {name}")
        started = time.perf_counter()
        # An audit knows no recipe, but takes over the notes of the run that it is of.
        attack = informed(attack, experiment.corpus, learns_changes=says_changes(report))
        result = attacked(confronted(attack, report.recipe.privacy), target, experiment)
        result = experiment.sensitivity.add_to(result, seed=experiment.seed)
        result = veil.veiled(with_documents(result, split_sha256(directory.manifest)))
        if result.rows:
            records = directory.write_records(name, result.rows, reveal=experiment.reveal)
            # Rows are in the clear: from here on they are in the masked records only, out of any tracker's reach.
            result = result.model_copy(update={"records": records, "rows": []})
        report = _with_attack(report, name, result, time.perf_counter() - started)
        directory.write_report(report)
        for tracker in experiment.trackers.values():
            tracker.log(report)
    return report


def attacked(attack: Attack, target: Target, experiment: Experiment) -> AttackResult:
    """Run one attack; one that needs what the target does not tell or cannot do is not measured, and says why."""
    needs: Tier = getattr(attack, "needs", "full")
    tier: Tier = getattr(target, "tier", "full")
    if TIERS.index(needs) > TIERS.index(tier):
        reason = f"it needs an endpoint of tier {needs!r}; this one's is {tier!r} (`hushbot doctor`)"
        return _not_measured(attack, reason)
    try:
        return attack.run(target, experiment.split, experiment.corpus.schema, seed=experiment.seed)
    except UnsupportedError as error:
        return _not_measured(attack, str(error))


def _not_measured(attack: Attack, reason: str) -> AttackResult:
    headline = Headline(metric=getattr(attack, "headline_metric", "not_measured"), estimate=unmeasured(reason))
    return AttackResult(verdict="not_measured", headline=headline, notes=[f"not measured: {reason}"])


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
    start_phase()
    utility = measure_utility(
        target,
        experiment.split.nonmembers,
        experiment.corpus.database,
        settings,
        seed=experiment.seed,
        limit=history_limit(experiment, settings, target, directory.model),
        learns_changes=learns_changes(experiment),
        team=team_of(experiment, directory.model),
    )
    if utility.rows:
        directory.write_records("utility", utility.rows, reveal=experiment.reveal)
    spent = {
        "seconds": report.run.seconds | {"utility": time.perf_counter() - started},
        "seconds_per_turn": utility.seconds_per_turn,
    }
    report = report.model_copy(
        update={
            "utility": utility.estimates,
            "utility_protocol": utility.protocol,
            "utility_by_domain": utility.by_domain,
            "utility_units": pseudonymous_units(utility.units, split_sha256(directory.manifest)),
            "run": with_peak(report.run.model_copy(update=spent), "utility"),
        }
    )
    directory.write_report(report)
    return report


def says_changes(report: AuditReport) -> bool:
    """Return whether a report says that its bot was trained to write changes."""
    return any(note in WHOLE_STATES_NOTES for note in report.notes)


def learns_changes(experiment: Experiment) -> bool:
    """Return whether the bot was trained to write what each turn changed, in one running text per dialogue.

    An untrained backbone has learnt neither layout and is asked for whole states; an audit knows no recipe.
    """
    return bool(experiment.config.get("fit")) and build_stack(experiment.config).learns_changes


def team_of(experiment: Experiment, folder: Path) -> Team | None:
    """Return the processes that measure the bot in a folder together; None where one does it alone."""
    from hushbot.evaluation.making import load_deployed

    n_processes = int(experiment.config.get("inference", {}).get("processes", 1))
    if n_processes == 1 or not folder.is_dir():
        return None
    make = partial(load_deployed, dict(experiment.config), folder, experiment.name, experiment.corpus.schema)
    return Team(make=make, n_processes=n_processes)


def history_limit(experiment: Experiment, settings: UtilitySettings, target: Target, folder: Path) -> Limit | None:
    """Return what the bot in a folder can read; None without a bot there."""
    if not folder.is_dir():
        return None
    from hushbot.evaluation.history_limit import load_history_limit

    return load_history_limit(
        folder, target, experiment.split.nonmembers, settings, learns_changes=learns_changes(experiment)
    )


def finish(experiment: Experiment, directory: RunDirectory, report: AuditReport) -> AuditReport:
    """Write the card, mark the report complete and tell the trackers."""
    report = report.model_copy(update={"status": "complete", "error": None})
    write_card(report, directory.path)  # first: a run whose report is complete is not looked at again
    directory.write_report(report)
    for tracker in experiment.trackers.values():
        tracker.log(report)
    return report


def fail(directory: RunDirectory, report: AuditReport, error: HushbotError) -> None:
    """Keep what was measured, and say what went wrong.

    A full disk takes no report either: then the one that is there stays, and the error is told all the same.
    """
    report = report.model_copy(update={"status": "failed", "error": str(error)})
    with contextlib.suppress(OSError):
        directory.write_report(report)
        write_card(report, directory.path)


def _with_attack(report: AuditReport, name: str, result: AttackResult, seconds: float) -> AuditReport:
    spent = report.run.seconds | {"audit": report.run.seconds.get("audit", 0.0) + seconds}
    return report.model_copy(
        update={
            "attacks": {**report.attacks, name: result},
            "run": with_peak(report.run.model_copy(update={"seconds": spent}), "audit"),
        }
    )
