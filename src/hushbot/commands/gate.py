"""`hushbot gate`: one report against a leakage budget, as an exit code that a pipeline can stop at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hushbot.errors import ConfigError

if TYPE_CHECKING:
    from hushbot.evaluation.gate import Finding

_STYLES = {"within": "green", "broken": "bold red", "undecided": "yellow"}


def main(arguments: Sequence[str]) -> int:
    """Judge, print every limit, and return the exit code."""
    report_path, budget_path = read_arguments(arguments)
    from hushbot.evaluation.gate import exit_code, judge, read_budget
    from hushbot.run import read_report

    budget = read_budget(budget_path)
    report = read_report(report_path / "report.json" if report_path.is_dir() else report_path)
    findings = judge(report, budget)
    code = exit_code(findings)
    print_findings(findings, f"{report.run.id} against {budget_path.name}")
    print({0: "within budget", 3: "budget broken", 4: "undecided: not shown to be within budget"}[code])
    return code


def read_arguments(arguments: Sequence[str]) -> tuple[Path, Path]:
    """Return the paths of report and budget.

    Raises:
        ConfigError: Not exactly one of each was given.
    """
    budgets = [argument.removeprefix("budget=") for argument in arguments if argument.startswith("budget=")]
    reports = [argument for argument in arguments if not argument.startswith("budget=")]
    if len(budgets) != 1 or len(reports) != 1 or not budgets[0]:
        raise ConfigError(
            f"{' '.join(arguments) or 'nothing'} was given; gate needs one report and one budget: "
            "hushbot gate RUN_OR_REPORT budget=FILE"
        )
    return Path(reports[0]), Path(budgets[0])


def print_findings(findings: Sequence[Finding], title: str) -> None:
    """Print one row per limit."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in ("what", "limit", "found", "outcome", "why"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        # Texts, not strings: an interval in brackets is no markup.
        cells = [Text(cell) for cell in (finding.what, finding.limit, finding.found)]
        table.add_row(*cells, Text(finding.outcome, _STYLES[finding.outcome]), Text(finding.why))
    Console().print(table)
