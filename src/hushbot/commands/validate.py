"""`hushbot validate`: every configuration error at once, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hushbot.commands.cells import checked_cells
from hushbot.composition import compose, decisive, find_problems
from hushbot.errors import ConfigError
from hushbot.run import config_sha256
from hushbot.training.stack import build_stack

VERBS = ("train", "audit", "compare")


def main(verb: str, overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Compose and check; raise one error that holds every problem."""
    if verb not in VERBS:
        # `hushbot validate recipe=x` is what one types first: the verb may be left out.
        verb, overrides = "train", [verb, *overrides]
    config = compose(verb, overrides, config_dir=config_dir)
    problems = find_problems(config, trust)
    if problems:
        raise ConfigError(*problems)
    if verb == "compare":
        checked_cells(config, overrides, trust, config_dir)
    elif verb == "train":
        build_stack(config)
    Console().print(f"{verb}: configuration is valid ({config_sha256(decisive(config, trust))[:12]})")
