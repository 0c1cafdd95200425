"""Tables, pages and comparisons, made from report.json files alone: no model is loaded.

Guarantees: the page is one self-contained file without network access; whatever a bot said is hostile text and is
escaped; a number without a measurement reads "not measured", and its reason stands in the notes; an arm without a
formal guarantee reads "none" where others have their epsilon, never a number, and "unknown" of a bot that others
trained.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hushbot.errors import DataError
from hushbot.evaluation.comparisons import Comparison, ComparisonSettings, compare_arms, comparisons_csv
from hushbot.evaluation.page import write_page
from hushbot.evaluation.run_reports import RunReports, read_reports
from hushbot.evaluation.sheets import metrics_csv, roc_csv
from hushbot.evaluation.tradeoff import arm_name, control_of, rows_of, tradeoff_csv, tradeoff_figure
from hushbot.evaluation.wording import NOT_MEASURED, guarantee, show, summary
from hushbot.report_hash import report_sha256
from hushbot.storage import remove_scratch, write_atomically
from hushbot.types import AuditReport, Metric

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "NOT_MEASURED",
    "guarantee",
    "print_summary",
    "show",
    "show_comparison",
    "summary",
    "write_comparison",
    "write_page",
]

UTILITY_SHOWN = ("joint_goal_accuracy", "state_f1")
"""Utility metrics in the summary table; the page shows all."""


_ARM_WIDTH = len("dialogue_level")
"""Where the terminal is narrow, numbers are folded before the name of a recipe is."""
_CELL_WIDTH = len("[0.000, 1.000]") + 3
"""An interval on one line, and its frame."""


def print_summary(reports: Sequence[AuditReport], comparison: Comparison | None = None) -> None:
    """Print a row per run, utility first, then each attack's headline above its chance line; then each arm in words.

    More columns than a line has room for go on in a further table.
    """
    from rich.console import Console

    console = Console()
    headlines = {name: attack.headline.metric for report in reports for name, attack in report.attacks.items()}
    columns = {name.replace("_", " "): [_lines(r.utility.get(name)) for r in reports] for name in UTILITY_SHOWN}
    for name, metric in headlines.items():
        columns[f"{name}\n{metric}".replace("_", " ")] = [_attack_cell(report, name) for report in reports]
    at_once = max(len(UTILITY_SHOWN) + 2, (console.width - _ARM_WIDTH) // _CELL_WIDTH)
    titles = list(columns)
    for start in range(0, len(titles), at_once):
        shown = {title: columns[title] for title in titles[start : start + at_once]}
        console.print(_summary_table(reports, shown, is_first=start == 0))
    if comparison is not None:
        for line in (*(standing.words for standing in comparison.standings), *comparison.notes):
            console.print(f"- {line}", markup=False, highlight=False)


def _summary_table(reports: Sequence[AuditReport], columns: Mapping[str, Sequence[str]], *, is_first: bool) -> Table:
    from rich.table import Table

    title = "utility and leakage, with 95% intervals" if is_first else "leakage, continued"
    table = Table(title=title, title_justify="left", show_lines=True, pad_edge=False)
    table.add_column("arm", overflow="fold", min_width=_ARM_WIDTH)
    for name in columns:
        table.add_column(name, overflow="fold")
    for i, report in enumerate(reports):
        arm = arm_name(report).replace("+", "\n+ ")  # a stack is longer than a column
        about = [f"seed {report.run.seed}", *([f"guarantee: {guarantee(report)}"] if is_first else [])]
        table.add_row("\n".join([arm, *about]), *(cells[i] for cells in columns.values()))
    return table


def _lines(number: Metric) -> str:
    """Write an estimate on two lines, value above interval, for narrow columns."""
    return show(number).split(" (")[0].replace(" [", "\n[")


def _attack_cell(report: AuditReport, name: str) -> str:
    attack = report.attacks.get(name)
    if attack is None:
        return NOT_MEASURED
    label, control = control_of(name, attack)
    lines = [_lines(attack.headline.estimate)]
    lines += [f"chance ({label}):", _lines(control)] if control is not None else []
    return "\n".join([*lines, attack.verdict.replace("_", " ")])


def print_end(report: AuditReport, path: Path) -> None:
    """Print where the report's page is, and the hash that is the same where the same was found."""
    print(f"report: {path / 'report.html'}")
    print(f"report sha256: {report_sha256(report)} (of what was found; docs/reproducing.md says what may differ)")


class Compared(NamedTuple):
    """What was read, and what came of it."""

    found: RunReports
    comparison: Comparison


def write_comparison(runs: Sequence[Path], out: Path, settings: ComparisonSettings | None = None) -> Compared:
    """Write tradeoff.csv, comparisons.csv, metrics.csv, roc.csv, tradeoff.png and report.html from the runs' reports.

    A run without a readable report is shown as such on the page, and stops no other.

    Raises:
        DataError: No run was given.
    """
    if not runs:
        raise DataError("no run directory was given; name at least one, such as runs/*")
    found = read_reports(runs)
    rows, comparison = rows_of(found.reports), compare_arms(found.reports, settings)
    out.mkdir(parents=True, exist_ok=True)
    remove_scratch(out)
    write_atomically(out / "tradeoff.csv", tradeoff_csv(rows, comparison.standings).encode("utf-8"))
    write_atomically(out / "comparisons.csv", comparisons_csv(comparison).encode("utf-8"))
    write_atomically(out / "metrics.csv", metrics_csv(found.reports).encode("utf-8"))
    write_atomically(out / "roc.csv", roc_csv(found.reports).encode("utf-8"))
    sink = io.BytesIO()
    figure = tradeoff_figure(rows, standings=comparison.standings)
    figure.savefig(sink, format="png", dpi=160, metadata={"Software": None})
    write_atomically(out / "tradeoff.png", sink.getvalue())
    write_page(found.paths, out / "report.html", damaged=found.told, comparison=comparison)
    return Compared(found, comparison)


def show_comparison(runs: Sequence[Path], out: Path, settings: ComparisonSettings | None = None) -> Compared:
    """Write the comparison, print its table, its words and where it lies."""
    compared = write_comparison(runs, out, settings)
    print_summary(compared.found.reports, compared.comparison)
    print(f"comparison: {out / 'report.html'}")
    return compared
