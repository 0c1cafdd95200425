"""`hushbot compare`: every arm x seed in its own process, then the comparison from their reports alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushbot.commands.cells import checked_cells
from hushbot.commands.train import say
from hushbot.composition import build, compose
from hushbot.errors import HushbotError
from hushbot.launching import Launcher

if TYPE_CHECKING:
    from hushbot.evaluation.report import Compared


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Compose every arm, run what is not done yet, compare them; where one fails, the others are still compared."""
    config = compose("compare", overrides, config_dir=config_dir)
    cells = checked_cells(config, overrides, trust, config_dir)
    paths, folder = [cell.path for cell in cells], Path(config["comparison"]) / "cells"
    launcher: Launcher = build(config["launcher"], "launcher")
    try:
        launcher.launch(cells, folder)
    except HushbotError:
        finish(paths, config)
        raise
    finish(paths, config).found.check()


def finish(paths: Sequence[Path], config: Mapping[str, Any]) -> Compared:
    """Write and print the comparison of what there is, and tell the trackers that show comparisons."""
    from hushbot.evaluation.report import show_comparison
    from hushbot.evaluation.suite import build_trackers
    from hushbot.evaluation.tracker_comparison import log_comparison

    settings = build(config["compare"], "compare")
    compared = show_comparison(paths, Path(config["comparison"]), settings)
    trackers = build_trackers(config["tracker"])
    log_comparison(trackers.values(), compared.found.reports, compared.comparison, config, say)
    return compared
