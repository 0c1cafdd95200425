"""What a reproduction leaves: a CSV and a picture per table and figure, a summary, and tables in the terminal.

Guarantees: everything is made from a run directory's report, configuration and records; no model is loaded, and the
same run gives the same files. A run that is not complete is said to be so, and lacks what it has not measured yet.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from pyarrow import ArrowException

from hushbot.errors import DataError
from hushbot.evaluation import paper_tods as paper
from hushbot.evaluation.report import NOT_MEASURED
from hushbot.evaluation.reproduction import FIGURES, TARGETED, UNTARGETED, Number, csv_of, differences, fig11
from hushbot.evaluation.reproduction_orderings import Ordering, orderings
from hushbot.evaluation.reproduction_plots import draw
from hushbot.evaluation.reproduction_words import by_claim, is_measured, shown_difference, shown_metric, tally
from hushbot.run import RunDirectory, write_atomically
from hushbot.types import AuditReport

if TYPE_CHECKING:
    from rich.table import Table

PRINTED = {
    "table2": "Table II: untargeted extraction, ranked by perplexity",
    "table3": "Table III: untargeted extraction, all distinct states",
    "table4": "Table IV: untargeted extraction under every ranking",
}
SHOWN = {
    "states": "#States",
    "state_precision": "SP %",
    "triplets": "#Triplets",
    "values": "#Values",
    "value_precision": "VP %",
}


def write_reproduction(run: Path, out: Path) -> None:
    """Write every table and figure of the paper and the summary into a folder, and print the tables.

    Raises:
        DataError: There is no run or no report, or it holds none of the paper's attacks.
    """
    directory = RunDirectory.open(run)
    report, records = directory.read_report(), read_records(directory)
    if not {UNTARGETED, TARGETED} & report.attacks.keys():
        raise DataError(
            f"{directory.report_path} has neither {UNTARGETED} nor {TARGETED}; `hushbot reproduce tods` runs both"
        )
    numbers = {name: make(report) for name, make in FIGURES.items()} | {"fig11": fig11(records.get(TARGETED))}
    found = orderings(report, records)
    told = differences(report, directory.config)
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in numbers.items():
        write_atomically(out / f"{name}.csv", csv_of(rows).encode())
        sink = io.BytesIO()
        draw(name, rows).savefig(sink, format="png", dpi=140, metadata={"Software": None})
        write_atomically(out / f"{name}.png", sink.getvalue())
    write_atomically(out / "summary.md", summary(report, told, found, numbers).encode())
    print_tables(numbers, told, found)


def read_records(directory: RunDirectory) -> dict[str, pd.DataFrame]:
    """Return the records of the extractions that have any, by attack; of targeted ones what says something new.

    Raises:
        DataError: A file cannot be read.
    """
    frames = {}
    for name in (UNTARGETED, TARGETED):
        path = directory.records / f"{name}.parquet"
        if path.is_file():
            try:
                frame = pd.read_parquet(path)
                # A continuation that says nothing new is no completion: it has no score and enters no precision.
                frames[name] = frame[frame["n_new"] > 0] if "n_new" in frame else frame
            except (OSError, ValueError, TypeError, KeyError, ArrowException) as error:
                raise DataError(f"{path} cannot be read: {error}; restore it or audit again") from error
    return frames


def summary(
    report: AuditReport, told: Sequence[str], found: Sequence[Ordering], numbers: Mapping[str, Sequence[Number]]
) -> str:
    """Return summary.md: what differs from the paper, which of its orderings hold, and what is in the folder."""
    lines = [
        f"# Dialogue-state extraction, reproduced: {report.run.id}",
        "",
        *([] if report.status == "complete" else [f"**The run is {report.status}**: what it lacks is missing here.\n"]),
        "## What differs from the paper",
        "",
        *(f"- {line}" for line in told),
        "",
        "## Does the paper's ordering hold here?",
        "",
        "A difference is positive in the paper's direction. It holds if its interval lies above zero, does not hold if",
        "the interval lies below, and otherwise nobody can tell. Levels are corrected for the cases of a claim where",
        "these were compared record by record. *Beyond chance*: after taking off what as many people give whom the bot",
        "never saw. Orderings can hold by memory or by what is usual; only those beyond chance speak of memory.",
        "",
        *(f"- {claim}: {tally(cases)}" for claim, cases in by_claim(found).items()),
        "",
        "| claim | case | difference | outcome |",
        "|---|---|---|---|",
        *(f"| {each.claim} | {each.case} | {shown_difference(each.difference)} | {each.outcome} |" for each in found),
        "",
        "## Verdicts",
        "",
        *(f"- {name}: {attack.verdict.replace('_', ' ')}" for name, attack in report.attacks.items()),
        "",
        "## Files",
        "",
    ]
    for name, rows in sorted(numbers.items()):
        measured = any(is_measured(each.ours) for each in rows)
        said = f" The paper: {paper.SAID[name]}." if name in paper.SAID else ""
        lines.append(f"- `{name}.csv`, `{name}.png`{'' if measured else ': ' + NOT_MEASURED}.{said}")
    return "\n".join(lines) + "\n"


def print_tables(numbers: Mapping[str, Sequence[Number]], told: Sequence[str], found: Sequence[Ordering]) -> None:
    """Print the paper's tables: ours, the chance line and the paper's number, one below the other."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    for name, title in PRINTED.items():
        console.print(_table(title, numbers[name]))
    console.print(f"ours with 95% intervals; chance: the same against as many non-members; paper: {paper.MODEL}")
    for line in told:
        console.print(f"- {escape(line)}", highlight=False)
    table = Table("case", "difference", "outcome", title="does the paper's ordering hold here?", title_justify="left")
    for claim, cases in by_claim(found).items():
        table.add_section()
        table.add_row(f"[bold]{escape(claim)}", "", f"[bold]{tally(cases)}")
        for each in cases:
            table.add_row(each.case, escape(shown_difference(each.difference)), each.outcome)
    console.print(table)


def _table(title: str, numbers: Sequence[Number]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    metrics = list(dict.fromkeys(each.metric for each in numbers))
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("method, ranking", overflow="fold", min_width=len("decaying_temperature"))
    for name in metrics:
        table.add_column(SHOWN[name], overflow="fold")
    cells = {(each.row, each.column, each.metric): each for each in numbers}
    for row, column in dict.fromkeys((each.row, each.column) for each in numbers):
        texts = (_cell(cells[row, column, name]) for name in metrics)
        table.add_row(escape(f"{row}\n{column}"), *map(escape, texts))
    return table


def _cell(each: Number) -> str:
    scale = 100.0 if each.metric.endswith("precision") else 1.0
    stated = "-" if each.paper is None else f"{scale * each.paper:.4g}"
    return f"{shown_metric(each.ours, scale)}\nchance {shown_metric(each.chance, scale)}\npaper {stated}"
