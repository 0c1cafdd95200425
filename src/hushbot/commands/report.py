"""`hushbot report`: everything that can be made again from report.json files, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def main(runs: Sequence[Path], out: Path) -> None:
    """Write the comparison and print its table."""
    from hushbot.evaluation.report import print_summary, write_comparison
    from hushbot.run import RunDirectory

    write_comparison(runs, out)
    print_summary([RunDirectory.open(path).read_report() for path in runs])
    print(f"comparison: {out / 'report.html'}")
