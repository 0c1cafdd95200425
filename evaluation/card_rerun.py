"""How a report is made again: the command, as far as the report knows it, and what it ran with.

Guarantees: a folder of this machine or an address never stands in a command; what the report does not know is said.
"""

from __future__ import annotations

import re

from hushbot.evaluation.card_words import bullets, plain
from hushbot.evaluation.tradeoff import AUDIT_NOTE, is_audit
from hushbot.types import AuditReport


def how_to_rerun(report: AuditReport) -> str:
    """Return the command and the hashes and versions behind it."""
    run = report.run
    versions = ", ".join(f"{plain(name)} {plain(version)}" for name, version in run.versions.items())
    facts = [
        f"configuration hash `{run.config_sha256}`: config.yaml in the run directory holds every setting; repeat those "
        "that differ from the defaults as overrides, and the run has the same hash",
        f"run `{plain(run.id)}`, made {plain(run.created)} on {plain(run.device)}",
    ]
    facts += [f"versions: {versions}"] if versions else []
    command = rerun_command(report)
    shown = "This report is of `hushbot audit`; which target it attacked stands in config.yaml."
    return f"{shown if command is None else _shell(command)}\n\n{bullets(facts)}"


def _shell(command: str) -> str:
    return f"```sh\n{command}\n```"


def rerun_command(report: AuditReport) -> str | None:
    """Return the command that makes such a report, as far as the report knows it; None where it does not."""
    audited = (report.model_extra or {}).get("audited")
    known = audited if isinstance(audited, dict) else {}
    if not is_audit(report):
        return f"hushbot train recipe={'+'.join(report.recipe.stack)} seed={report.run.seed}"
    if known.get("target") == "hf":
        sources = {name: known[name] for name in ("model", "adapter") if name in known}
        shown = " ".join(f"{name}={_hub_id(source) or 'PATH'}" for name, source in sources.items())
        return f"hushbot audit target=hf {shown} seed={report.run.seed}"
    if known.get("target") == "http":
        model = _hub_id(known.get("model")) or "NAME"
        return f"hushbot audit target=http url=URL model={model} seed={report.run.seed}"
    if known.get("target") == "run" or any(note.startswith(AUDIT_NOTE) for note in report.notes):
        return "hushbot audit target=run run=RUN"
    return None


def _hub_id(source: object) -> str | None:
    """Return a hub id, which is no path and needs no quotes; None for anything else."""
    return source if isinstance(source, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) else None
