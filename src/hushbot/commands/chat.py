"""`hushbot chat`: a talk with a run's bot in the terminal, until /quit, Ctrl-D, Ctrl-C or the end of the input."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hushbot.commands.train import say
from hushbot.composition import compose, plain_problems
from hushbot.errors import ConfigError
from hushbot.heavy_imports import heavy_imports
from hushbot.run import RunDirectory


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Load the bot and talk."""
    check(config := compose("chat", overrides, config_dir=config_dir))
    audited = RunDirectory.open(config["run"])
    with heavy_imports():
        from hushbot.evaluation.chatting import load_chat
        from hushbot.evaluation.suite import quieten
        from hushbot.evaluation.talk_lines import HELP, WIDTH, converse, printer
        from hushbot.evaluation.talking import Talk

    quieten()
    chat, name = load_chat(audited, config["inference"], trust)
    opening = chat.opening if config["opening"] is None else config["opening"]
    talk = Talk(chat, opening=opening, reveal=config["reveal"])
    guards = f"behind {' and '.join(talk.guards)}" if talk.guards else "without a guard"
    say(f"talking to {name}, {guards}; {HELP}")
    with contextlib.suppress(KeyboardInterrupt):
        converse(talk, lines(WIDTH), printer())


def lines(width: int) -> Iterator[str]:
    """Yield what the user types after a prompt of that width, or each line of a file or pipe."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # what is no text in this terminal's encoding must not end the talk
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401  (lets `input` edit a line and step through earlier ones)

    while True:
        try:
            yield input("You".ljust(width))
        except EOFError:
            print()
            return


def check(config: dict[str, Any]) -> None:
    """Check every setting; a ConfigError holds all problems."""
    problems = plain_problems(config)
    if not config["run"]:
        problems.append("run is empty; give run=DIR, the run directory whose bot is talked to")
    if not isinstance(config["opening"], str | None):
        problems.append(f"opening={config['opening']!r} must be a text or null")
    if problems:
        raise ConfigError(*problems)
