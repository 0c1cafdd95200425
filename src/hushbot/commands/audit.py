"""`hushbot audit`: the attack suite on a bot that exists, a run's or a model's, in a run directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hushbot.commands.train import say
from hushbot.composition import compose, decisive
from hushbot.errors import ConfigError, HushbotError
from hushbot.run import RunDirectory, config_sha256
from hushbot.types import AuditReport


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Compose, attack, print the table."""
    from hushbot.evaluation.report import print_summary, write_page

    config = compose("audit", overrides, config_dir=config_dir)
    audited = None
    if config["target"] == "run":
        if not config["run"]:
            raise ConfigError("run is empty; target=run needs run=DIR, the run directory to attack")
        audited = RunDirectory.open(config["run"])
        from hushbot.evaluation.audited import setting_of

        config |= setting_of(audited, trust)
        # Runs of one split share their manifest, so the bot itself must be part of what an audit is.
        config["audited"] = audited.read_report().run.model_dump(include={"id", "weights_sha256"})
    elif config["target"] != "hf" or not config["model"]:
        raise ConfigError(
            f"target={config['target']!r} model={config['model']!r}: give target=run run=DIR, or target=hf model=PATH"
        )
    else:
        from hushbot.evaluation.audited import weights_of

        # The path may hold other weights tomorrow.
        config["audited"] = weights_of(config["model"], config["adapter"])
    path = out_path(config)
    report = attack(config, audited, path, trust)
    write_page([path], path / "report.html")
    print_summary([report])
    print(f"report: {path / 'report.html'}")


def out_path(config: dict[str, Any]) -> Path:
    """Return where the audit is written."""
    if config["out"]:
        return Path(config["out"])
    return Path(config["runs_dir"]) / f"audit-{config['target']}-{config_sha256(decisive(config))[:8]}"


def attack(config: dict[str, Any], audited: RunDirectory | None, path: Path, trust: Sequence[str]) -> AuditReport:
    """Run the suite against the target, resuming what is there."""
    from hushbot.evaluation import suite
    from hushbot.evaluation.audited import load_model_target, load_run_target

    suite.check(config, trust)
    suite.quieten()
    name = audited.read_report().recipe.stack if audited is not None else [Path(str(config["model"])).name]
    experiment = suite.prepare(config, "+".join(name))
    for note in experiment.notes:
        say(f"note: {note}")
    with suite.open_run(experiment, path) as directory:
        report = suite.start_report(experiment, directory)
        if report.status == "complete":
            return report
        try:
            target, update = (
                load_run_target(audited, experiment, config["inference"], trust)
                if audited is not None
                else load_model_target(config["model"], config["adapter"], config["inference"])
            )
            report = report.model_copy(update={**update, "run": report.run.model_copy(update=update.pop("run"))})
            return suite.measure(experiment, target, directory, report, say)
        except HushbotError as error:
            suite.fail(directory, suite.start_report(experiment, directory), error)
            raise
