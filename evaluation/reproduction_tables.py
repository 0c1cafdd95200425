"""Tables of a reproduction: as CSV files, as a summary, and in the terminal, ours beside chance and the paper.

Guarantees: everything comes from a run's report and configuration, and the same run gives the same files; a run that is
not complete is said to be so; a number without a measurement reads "not measured".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hushbot.evaluation.report import NOT_MEASURED
from hushbot.evaluation.reproduction import Number, csv_of
from hushbot.evaluation.reproduction_orderings import Ordering
from hushbot.evaluation.reproduction_words import by_claim, is_measured, shown_difference, shown_metric, tally
from hushbot.run import write_atomically
from hushbot.types import AuditReport

if TYPE_CHECKING:
    from rich.table import Table


class Reproduction(NamedTuple):
    """What a run says of a paper."""

    title: str
    tables: Mapping[str, tuple[str, Sequence[Number]]]
    """File stem -> heading and numbers."""
    legend: str
    differences: Sequence[str]
    """How the run's measurement differs from the paper's."""
    orderings: Sequence[Ordering]
    said: Mapping[str, str]
    """What the paper says of a table without printing numbers."""


def write_tables(found: Reproduction, report: AuditReport, out: Path) -> None:
    """Write a CSV per table and summary.md into a folder, and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    for name, (_, numbers) in found.tables.items():
        write_atomically(out / f"{name}.csv", csv_of(numbers).encode())
    write_atomically(out / "summary.md", summary(found, report).encode())
    print_tables(found)


def summary(found: Reproduction, report: AuditReport) -> str:
    """Return summary.md: what differs from the paper, which of its orderings hold, and every number."""
    lines = [f"# {found.title}, reproduced: {report.run.id}", ""]
    if report.status != "complete":
        lines += [f"**The run is {report.status}**: what it lacks is missing here.", ""]
    lines += ["## What differs from the paper", "", *(f"- {line}" for line in found.differences), ""]
    lines += [
        "## Does the paper's ordering hold here?",
        "",
        "| claim | case | difference | outcome |",
        "|---|---|---|---|",
    ]
    lines += [f"| {o.claim} | {o.case} | {shown_difference(o.difference)} | {o.outcome} |" for o in found.orderings]
    lines += ["", "## Verdicts", ""]
    lines += [f"- {name}: {attack.verdict.replace('_', ' ')}" for name, attack in report.attacks.items()]
    for name, (heading, numbers) in found.tables.items():
        lines += ["", f"## {heading} (`{name}.csv`)", ""]
        lines += [f"The paper: {found.said[name]}.", ""] if name in found.said else []
        lines += _markdown(numbers) if any(is_measured(each.ours) for each in numbers) else [NOT_MEASURED]
    return "\n".join(lines) + "\n"


def _markdown(numbers: Sequence[Number]) -> list[str]:
    rows = [
        f"| {each.row} | {each.column} | {each.metric} | {shown_metric(each.ours)} | {_chance(each)} | {_paper(each)} |"
        for each in numbers
    ]
    return ["| | | metric | ours | chance | paper |", "|---|---|---|---|---|---|", *rows]


def _chance(each: Number) -> str:
    return "-" if each.chance is None else shown_metric(each.chance)


def _paper(each: Number) -> str:
    return "-" if each.paper is None else f"{each.paper:.4g}"


def print_tables(found: Reproduction) -> None:
    """Print every table that holds a number, what differs, and which orderings hold."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for heading, numbers in found.tables.values():
        if any(is_measured(each.ours) for each in numbers):
            console.print(_table(heading, numbers))
    console.print(found.legend)
    for line in found.differences:
        console.print(f"- {escape(line)}", highlight=False)
    table = Table("case", "difference", "outcome", title="does the paper's ordering hold here?", title_justify="left")
    for claim, cases in by_claim(found.orderings).items():
        table.add_section()
        table.add_row(f"[bold]{escape(claim)}", "", f"[bold]{tally(cases)}")
        for each in cases:
            table.add_row(escape(each.case), escape(shown_difference(each.difference)), each.outcome)
    console.print(table)


def _table(title: str, numbers: Sequence[Number]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    metrics = list(dict.fromkeys(each.metric for each in numbers))
    table = Table("", title=title, title_justify="left", show_lines=True)
    for name in metrics:
        table.add_column(name.replace("_", " "), overflow="fold")
    cells = {(each.row, each.column, each.metric): each for each in numbers}
    for row, column in dict.fromkeys((each.row, each.column) for each in numbers):
        texts = [_cell(cells.get((row, column, name))) for name in metrics]
        table.add_row(escape(f"{row}\n{column}".strip()), *map(escape, texts))
    return table


def _cell(each: Number | None) -> str:
    if each is None:
        return ""
    lines = [shown_metric(each.ours)]
    lines += [] if each.chance is None else [f"chance {shown_metric(each.chance)}"]
    lines += [] if each.paper is None else [f"paper {each.paper:.4g}"]
    return "\n".join(lines)
