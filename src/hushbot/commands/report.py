"""`hushbot report`: everything that can be made again from report.json files, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def main(runs: Sequence[Path], out: Path) -> None:
    """Write each run's privacy card and the comparison, and print its table."""
    from hushbot.evaluation.card import write_card
    from hushbot.evaluation.report import print_summary, write_comparison
    from hushbot.run import RunDirectory

    write_comparison(runs, out)
    reports = [RunDirectory.open(path).read_report() for path in runs]
    for path, report in zip(runs, reports, strict=True):
        write_card(report, path)
    print_summary(reports)
    print(f"comparison: {out / 'report.html'}")
