"""`hushbot report`: everything that can be made again from report.json files, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hushbot.errors import HushbotError


def main(runs: Sequence[Path], out: Path, reference: str | None = None) -> None:
    """Write and print the comparison, then each run's page and privacy card; say at the end what could not be read.

    Raises:
        HushbotError: A run has no readable report, or its directory cannot be written; everything else is done.
    """
    from hushbot.evaluation.comparisons import ComparisonSettings
    from hushbot.evaluation.report import show_comparison

    found = show_comparison(runs, out, ComparisonSettings(reference=reference)).found
    refused = [problem for path in found.paths for problem in rebuild(path)]
    if refused:
        raise HushbotError("\n".join([*refused, *found.problems]))
    found.check()


def rebuild(path: Path) -> list[str]:
    """Write a run's page and card anew; return what is in the way, which keeps no other run from being rebuilt."""
    from hushbot.evaluation.card import write_card
    from hushbot.evaluation.page import write_page
    from hushbot.evaluation.run_reports import read_run

    try:
        write_card(read_run(path), path)
        write_page([path], path / "report.html")
    except OSError as error:
        return [f"{path}: cannot be written: {error.strerror}; its part of the comparison is there"]
    return []
