"""`hushbot train`: one bot, trained, measured, audited; the same command again continues or shows what is there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hushbot.composition import build, compose, decisive
from hushbot.errors import HushbotError
from hushbot.heavy_imports import heavy_imports
from hushbot.machine_faults import machine_faults
from hushbot.run import config_sha256
from hushbot.storage import read_json
from hushbot.training.stack import build_stack, stack_name
from hushbot.types import AuditReport


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Compose, run, and print the table."""
    config = compose("train", overrides, config_dir=config_dir)
    report = run(config, path := run_path(config, trust), trust)
    from hushbot.evaluation.report import print_end, print_summary

    print_summary([report])
    print_end(report, path)


def run_path(config: Mapping[str, Any], trust: Sequence[str] = ()) -> Path:
    """Return the run directory: the one asked for, or one named after recipe, seed and configuration."""
    if config["run"]:
        return Path(config["run"])
    name = f"{stack_name(config)}-s{config['seed']}-{config_sha256(decisive(config, trust))[:8]}"
    return Path(config["runs_dir"]) / name


def run(config: Mapping[str, Any], path: Path, trust: Sequence[str] = ()) -> AuditReport:
    """Train and audit into a run directory, resuming what is there."""
    with heavy_imports():
        import hushbot.training.joint  # noqa: F401  (which `making` imports where there is something to train)
        from hushbot.discretion import discreet
        from hushbot.evaluation import making, suite
        from hushbot.evaluation.report import write_page

    page = path / "report.html"
    suite.check(config, trust)
    build_stack(config)  # a senseless one is refused before anything is read or written
    suite.quieten()
    settings = build(config["utility"], "utility")
    experiment = suite.prepare(config, stack_name(config))
    for note in experiment.notes:
        say(f"note: {note}")
    with suite.open_run(experiment, path, trust) as directory:
        report = suite.start_report(experiment, directory)
        if report.status != "complete":
            try:
                with discreet(experiment.everybody, experiment.corpus.schema), machine_faults():
                    target, report = making.make_bot(experiment, config, directory, report, say, trust)
                    report = suite.measure_bot(experiment, settings, target, directory, report, say)
                    report = suite.measure(experiment, target, directory, report, say)
            except HushbotError as error:
                # The report on disk is the newest: a step that failed half-way has not returned its own.
                suite.fail(directory, suite.start_report(experiment, directory), error)
                raise
        elif page.exists():
            return report
    write_page([path], page)
    return report


def say(line: str) -> None:
    """Print one line of progress."""
    print(line, file=sys.stderr, flush=True)


def cell(path: Path) -> None:
    """Run one arm of a comparison, in its own process: a JSON file of config, path and trusted packages."""
    content = read_json(path)
    run(content["config"], Path(content["path"]), content["trust"])
