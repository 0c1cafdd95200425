"""The target behind `hushbot audit target=http`: examined first, then attacked as far as it tells anything.

Guarantees: nothing is asked of an endpoint before the doctor has seen it; its verdict is in the report, and decides
which attacks run. Members are those of the run that `run=` names (its corpus, split and seed; its manifest is compared
with the split), or of a split that is drawn here. An audit that is continued is of the model that it began with, as far
as its greedy answers tell. Neither address nor key is in the report.

What voids it: a served bot that was not trained on the members of that split, which nobody can see from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hushbot.composition import build, find_problems
from hushbot.corpora.split import check_manifest
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation.experiment import Experiment, Say
from hushbot.evaluation.suite import WHOLE_STATES_NOTES
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.targets.doctor import Diagnosis, examine
from hushbot.targets.http import HTTPTarget
from hushbot.types import AuditReport, EndpointFinding, EndpointInfo

_BLANK = "an endpoint shows no weights: what it serves is known by name and by its answers only"


_SETTINGS = ("url", "model", "key_variable", "reference_model", "start_text", "manifest", "pace")
"""What of an audit's configuration is about its endpoint."""


def check_endpoint(config: Mapping[str, Any]) -> None:
    """Check what is configured of an endpoint; nothing is sent.

    Raises:
        ConfigError: A setting is missing, wrong, or of another target.
    """
    problems = find_problems({key: config[key] for key in _SETTINGS})
    if config.get("adapter"):
        problems.append("adapter: a server puts adapters on by itself; leave it out, or use target=hf")
    if problems:
        raise ConfigError(*problems)
    endpoint_of(config)


def endpoint_of(config: Mapping[str, Any]) -> HTTPTarget:
    """Return the configured endpoint, unexamined; nothing is sent.

    Raises:
        ConfigError: A setting is missing or wrong.
    """
    if not config["url"] or not config["model"]:
        raise ConfigError(
            f"target=http model={config['model']!r}: give url=URL, such as http://localhost:8000/v1, and model=NAME"
        )
    return HTTPTarget(
        config["url"],
        config["model"],
        key_variable=config["key_variable"],
        reference_model=config["reference_model"],
        start_text=config["start_text"],
        pace=build(config["pace"], "pace"),
    )


def load_endpoint_target(
    config: Mapping[str, Any], audited: RunDirectory | None, experiment: Experiment, report: AuditReport, say: Say
) -> tuple[Target, dict[str, Any]]:
    """Return an endpoint's bot, examined, and what the report is to say of it.

    Raises:
        AuditError: It is of no use, or answers otherwise than when this audit began.
        DataError: The corpus no longer gives the split in the manifest of the run that the bot is of.
    """
    if audited is not None:
        check_manifest(audited.manifest, experiment.manifest)
    target, diagnosis = _examined(endpoint_of(config), say)
    _check_same(report.endpoint, diagnosis)
    if target.reference is not None:
        _check_reference(target, target.reference, say)
    info = EndpointInfo(
        model=Path(target.model).name,
        tier=target.tier,
        fingerprint=diagnosis.fingerprint,
        start_text=target.start_text,
        reference_model=None if target.reference_model is None else Path(target.reference_model).name,
        findings=[EndpointFinding(**finding._asdict()) for finding in diagnosis.findings],
    )
    weak = ", ".join(finding.name for finding in diagnosis.findings if not finding.is_fine)
    verdict = f"endpoint of tier {target.tier}, by `hushbot doctor`{f'; not fine: {weak}' if weak else ''}"
    notes = [_BLANK, verdict, *([] if audited is None else _notes_of(audited.read_report()))]
    return target, {
        "run": {"device": "endpoint"},
        "endpoint": info,
        "notes": [*report.notes, *(note for note in notes if note not in report.notes)],
        "audited": {"target": "http", "model": info.model},
    }


def _notes_of(run: AuditReport) -> list[str]:
    """Return what an audit must know of the run whose bot is served, such as how that is to be asked."""
    return [f"members are those of run {run.run.id}", *(note for note in run.notes if note in WHOLE_STATES_NOTES)]


def _examined(target: HTTPTarget, say: Say) -> tuple[HTTPTarget, Diagnosis]:
    say(f"examining the endpoint that serves {Path(target.model).name}")
    diagnosis = examine(target)
    for finding in diagnosis.findings:
        if not finding.is_fine:
            say(f"endpoint: {finding.name}: {finding.detail}")
    examined = diagnosis.applied_to(target)
    say(f"endpoint: tier {examined.tier}")
    return examined, diagnosis


def _check_same(began: EndpointInfo | None, diagnosis: Diagnosis) -> None:
    """Compare an endpoint with what it was when this audit began.

    Raises:
        AuditError: It tells more or less than it did, or says something else.
    """
    if began is None:
        return
    if began.tier != diagnosis.tier:
        raise AuditError(
            f"the endpoint's tier is {diagnosis.tier!r}; when this audit began it was {began.tier!r}; begin anew with "
            "out=DIR"
        )
    if None not in (began.fingerprint, diagnosis.fingerprint) and began.fingerprint != diagnosis.fingerprint:
        raise AuditError(
            "the endpoint answers otherwise than when this audit began: it serves another model, or the same one "
            "otherwise; begin anew with out=DIR"
        )


def _check_reference(target: HTTPTarget, reference: HTTPTarget, say: Say) -> None:
    """Examine the base control as well: scores of its own may be wrong.

    Raises:
        AuditError: It tells less than the bot does.
    """
    found = _examined(reference, say)[0].tier
    if found != target.tier:
        raise AuditError(
            f"reference_model: its tier is {found!r}, the audited model's {target.tier!r}; leave reference_model out"
        )
