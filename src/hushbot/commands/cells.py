"""Cells of a comparison: one per arm and seed, each with its whole configuration, checked before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hushbot.commands.train import run_path
from hushbot.composition import compose, find_problems, plain_problems
from hushbot.errors import ConfigError
from hushbot.launching import Cell


def checked_cells(
    config: dict[str, Any], overrides: Sequence[str], trust: Sequence[str], config_dir: Path | None
) -> list[Cell]:
    """Return the cells, every one's components and recipe stack checked before anything runs.

    Raises:
        ConfigError: Holds the problems of all cells.
    """
    cells = list(make_cells(config, overrides, trust, config_dir))
    problems = dict.fromkeys(problem for cell in cells for problem in _problems(cell))
    if problems:
        raise ConfigError(*problems)
    return cells


def _problems(cell: Cell) -> Sequence[str]:
    """Return what is wrong with a cell: its settings, or else the stack that they make."""
    from hushbot.training.stack import build_stack

    if problems := find_problems(cell.config, cell.trust):
        return problems
    try:
        build_stack(cell.config)
    except ConfigError as error:
        return error.problems
    return ()


def make_cells(
    config: dict[str, Any], overrides: Sequence[str], trust: Sequence[str], config_dir: Path | None
) -> Iterator[Cell]:
    """Yield one cell per arm and seed, each with its whole configuration.

    Raises:
        ConfigError: There is no arm or no seed, or a key that names one run was given; or arms are misspelled.
    """
    if problems := plain_problems(config):
        raise ConfigError(*problems)
    if not config["arms"] or not config["seeds"]:
        raise ConfigError(f"arms={config['arms']} seeds={config['seeds']}: each must name at least one")
    if config["run"]:
        raise ConfigError(f"run={config['run']!r} names one run, compare makes several; set runs_dir instead")
    if (reference := config["compare"]["reference"]) not in (None, *config["arms"]):
        raise ConfigError(f"compare.reference={reference!r} is none of arms={config['arms']}; name one of them")
    seen = set()
    for arm in config["arms"]:
        for seed in config["seeds"]:
            cell = compose("compare", [*overrides, f"recipe={arm}", f"seed={seed}"], config_dir=config_dir)
            path = run_path(cell, trust)
            if path not in seen:  # named twice, or spelled in two ways
                seen.add(path)
                yield Cell(name=f"{arm} seed {seed}", config=cell, path=path, trust=tuple(trust))
