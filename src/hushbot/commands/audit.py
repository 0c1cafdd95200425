"""`hushbot audit`: the attack suite on a bot that exists, a run's, a model's or a server's, in a directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hushbot.commands.train import say
from hushbot.composition import compose, decisive
from hushbot.errors import HushbotError
from hushbot.heavy_imports import heavy_imports
from hushbot.machine_faults import machine_faults
from hushbot.run import RunDirectory, config_sha256
from hushbot.types import AuditReport


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Compose, attack, print the table."""
    with heavy_imports():
        from hushbot.evaluation.audited import chosen, load_target  # noqa: F401  (and all that loads a bot)
        from hushbot.evaluation.report import print_end, print_summary, write_page

    config, audited = chosen(compose("audit", overrides, config_dir=config_dir), trust)
    path = out_path(config)
    report = attack(config, audited, path, trust)
    write_page([path], path / "report.html")
    print_summary([report])
    print_end(report, path)


def out_path(config: dict[str, Any]) -> Path:
    """Return where the audit is written."""
    if config["out"]:
        return Path(config["out"])
    return Path(config["runs_dir"]) / f"audit-{config['target']}-{config_sha256(decisive(config))[:8]}"


def attack(config: dict[str, Any], audited: RunDirectory | None, path: Path, trust: Sequence[str]) -> AuditReport:
    """Run the suite against the target, resuming what is there."""
    from hushbot.discretion import discreet
    from hushbot.evaluation import suite
    from hushbot.evaluation.audited import load_target, name_of

    suite.check(config, trust)
    suite.quieten()
    experiment = suite.prepare(config, name_of(config, audited))
    for note in experiment.notes:
        say(f"note: {note}")
    with suite.open_run(experiment, path) as directory:
        report = suite.start_report(experiment, directory)
        if report.status == "complete":
            return report
        try:
            with discreet(experiment.everybody, experiment.corpus.schema), machine_faults():
                target, report = load_target(config, audited, experiment, report, trust, say)
                return suite.measure(experiment, target, directory, report, say)
        except HushbotError as error:
            suite.fail(directory, suite.start_report(experiment, directory), error)
            raise
