"""The `hushbot` command: pops the verb, imports one command, prints its errors.

Exit codes (a contract): 0 done, 1 error, 2 usage or configuration error, 3 leak above budget, 4 inconclusive.
Nothing heavy is imported here: `hushbot --help` and `hushbot ls` must answer in under half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from hushbot.errors import ConfigError, HushbotError
from hushbot.machine_faults import machine_faults
from hushbot.quiet_libraries import quieten_deepspeed

EPILOG = "Overrides are Hydra's: key=value, group=option, +key=value. Exit codes: 0 done, 1 error, 2 configuration."
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Train privacy-hardened task-oriented dialogue bots, and audit every bot you train.",
    epilog=EPILOG,
)

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Configuration overrides, such as recipe=turn_level seed=1")
]
Trust = Annotated[list[str] | None, typer.Option(help="A package outside hushbot that a `_target_` may come from")]
ConfigDir = Annotated[Path | None, typer.Option(help="A folder with your own configuration groups")]


@app.command(epilog="Example: hushbot train data=multiwoz21 data.path=DIR backbone=smollm2 recipe=turn_level")
def train(overrides: Overrides = None, trust: Trust = None, config_dir: ConfigDir = None) -> None:
    """Train one bot with a recipe stack, measure its utility, audit it; writes one run directory."""
    from hushbot.commands import train as command

    command.main(overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(epilog="Example: hushbot audit target=run run=runs/turn_level-s0-1a2b3c4d")
def audit(overrides: Overrides = None, trust: Trust = None, config_dir: ConfigDir = None) -> None:
    """Attack an existing bot: target=run run=DIR, target=hf model=PATH_OR_ID, or target=http url=URL model=NAME."""
    from hushbot.commands import audit as command

    command.main(overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(epilog="Example: hushbot compare arms=[base,turn_level] seeds=[0,1,2]")
def compare(overrides: Overrides = None, trust: Trust = None, config_dir: ConfigDir = None) -> None:
    """Train and audit every arm x seed, resuming what is done; writes run directories and the comparison."""
    from hushbot.commands import compare as command

    command.main(overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(epilog="Example: hushbot report runs --out comparison. Exit code 1: a run had no readable report.")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them")],
    out: Annotated[Path, typer.Option(help="Where the comparison is written")] = Path("comparison"),
    reference: Annotated[
        str | None, typer.Option(help="The arm that others are held against; else turn_level, or the first trained")
    ] = None,
) -> None:
    """Rebuild every table, figure and page from report.json files alone; no model is loaded."""
    from hushbot.commands import report as command

    command.main(runs, out, reference)


@app.command(epilog="Example: hushbot reproduce tods data.path=DIR")
def reproduce(
    paper: Annotated[str, typer.Argument(help="tods, popquiz or leakit")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Where the tables and figures are written")] = Path("comparison"),
    read: Annotated[Path | None, typer.Option(help="A finished run to make them from; nothing is run")] = None,
    trust: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Run a paper's tables and figures and set ours beside the paper's; with target=run run=DIR on an existing bot."""
    from hushbot.commands import reproduce as command

    command.main(paper, overrides or [], out=out, read=read, trust=trust or [], config_dir=config_dir)


@app.command(
    epilog="Example: hushbot serve run=runs/turn_level-s0-1a2b3c4d port=8000, then hushbot audit target=http "
    "url=http://127.0.0.1:8000/v1 model=turn_level run=runs/turn_level-s0-1a2b3c4d"
)
def serve(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="run=DIR, and perhaps port=8000 (0 takes a free one), model=NAME, base=NAME, faults=[...]"),
    ] = None,
    trust: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Serve a run's bot as an OpenAI-compatible endpoint on the loopback address, until Ctrl-C."""
    from hushbot.commands import serve as command

    command.main(overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(epilog="Example: hushbot chat run=runs/value_copy-s0-1a2b3c4d, or with a file of user lines as its input")
def chat(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="run=DIR, and perhaps opening=TEXT and reveal=true (shows what a guard held back)"),
    ] = None,
    trust: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Talk to a run's bot: its state, database result, actions and reply, and what a guard held back."""
    from hushbot.commands import chat as command

    command.main(overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(
    epilog="Example: hushbot doctor url=http://localhost:8000/v1 model=NAME key_variable=MY_KEY. Exit codes: 0 the "
    "endpoint can be audited, 1 it cannot, 2 usage."
)
def doctor(
    settings: Annotated[
        list[str] | None,
        typer.Argument(help="The endpoint: url=URL model=NAME [key=value ...]; without it, this machine is examined"),
    ] = None,
) -> None:
    """Say what this machine and installation can do, or what an endpoint tells and whether it is true."""
    from hushbot.commands import doctor as command

    command.main(settings or [])


@app.command(
    epilog="Example: hushbot gate runs/turn_level-s0-1a2b3c4d budget=budget.yaml. Exit codes: 0 within budget, "
    "1 error, 2 usage or budget file, 3 budget broken, 4 inconclusive or not measured."
)
def gate(
    arguments: Annotated[list[str], typer.Argument(help="A report.json or a run directory, and budget=FILE")],
) -> int:
    """Check a report against a leakage budget file; the exit code says whether it is kept."""
    from hushbot.commands import gate as command

    return command.main(arguments)


@app.command()
def ls(group: Annotated[str | None, typer.Argument(help="One group only, such as recipe")] = None) -> None:
    """List recipes, attacks, data, backbones and trackers, one line each."""
    from hushbot.commands import ls as command

    command.main(group)


@app.command(epilog="Example: hushbot validate compare arms=[base,turn_level]")
def validate(
    verb: Annotated[str, typer.Argument(help="Whose configuration: train, audit or compare")] = "train",
    overrides: Overrides = None,
    trust: Trust = None,
    config_dir: ConfigDir = None,
) -> None:
    """Compose and check a configuration without running it; prints every error at once."""
    from hushbot.commands import validate as command

    command.main(verb, overrides or [], trust=trust or [], config_dir=config_dir)


@app.command(hidden=True)
def cell(path: Path, parent: int | None = None) -> None:
    """Run one arm of a comparison; `compare` starts it, and it ends with the process that did."""
    from hushbot.launching.worker import end_with

    if parent is not None:
        end_with(parent)
    from hushbot.commands import train as command

    command.cell(path)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; `arguments` defaults to the process's own."""
    quieten_deepspeed()
    return guarded(lambda: app(args=arguments, standalone_mode=False))


def guarded(action: Callable[[], object]) -> int:
    """Run an action and return its exit code; errors raised on purpose are printed, bugs keep their traceback."""
    try:
        with machine_faults():
            code = action()  # a command whose answer is an exit code returns it
    except HushbotError as error:
        problems = error.problems if isinstance(error, ConfigError) else (str(error),)
        for problem in problems:
            print(f"error: {problem}", file=sys.stderr)
        return error.exit_code
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted; the same command continues where it stopped", file=sys.stderr)
        return 130
    except Exception as error:
        # click's usage errors carry their own exit code and wording; anything else is a bug and keeps its traceback.
        if hasattr(error, "exit_code") and hasattr(error, "show"):
            error.show()
            return int(error.exit_code)
        raise
    return code if isinstance(code, int) else 0


def run() -> None:
    """Entry point of the `hushbot` script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
