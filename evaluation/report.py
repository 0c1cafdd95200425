"""Tables, pages and comparisons, made from report.json files alone: no model is loaded.

Guarantees: the page is one self-contained file without network access; whatever a bot said is hostile text and is
escaped; a number without a measurement reads "not measured", and its reason stands in the notes; an arm without a
formal guarantee reads "none" where others have their epsilon, never a number, and "unknown" of a bot that others
trained.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hushbot.errors import DataError
from hushbot.evaluation.card import recipe_notes
from hushbot.evaluation.tradeoff import (
    NO_GUARANTEE,
    UNKNOWN_GUARANTEE,
    arm_name,
    control_of,
    is_foreign,
    rows_of,
    tradeoff_csv,
    tradeoff_figure,
)
from hushbot.run import RunDirectory, write_atomically
from hushbot.types import AuditReport, Estimate, Metric

if TYPE_CHECKING:
    from rich.table import Table

NOT_MEASURED = "not measured"
UTILITY_SHOWN = ("joint_goal_accuracy", "state_f1")
"""Utility metrics in the summary table; the page shows all."""


def show(number: Metric) -> str:
    """Write an estimate with its interval and n, a plain number, or that there is none."""
    if isinstance(number, Estimate):
        if number.value is None:
            return NOT_MEASURED
        interval = "" if number.low is None else f" [{_end(number.low)}, {_end(number.high)}]"
        return f"{number.value:.3f}{interval} (n={number.n})"
    if number is None:
        return NOT_MEASURED
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _end(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def guarantee(report: AuditReport) -> str:
    """Write a run's differential privacy guarantee with its unit and delta, and at 1e-5, or that none is known."""
    privacy = report.recipe.privacy
    if privacy is None:
        return UNKNOWN_GUARANTEE if is_foreign(report) else NO_GUARANTEE
    if not math.isfinite(privacy.epsilon):
        return f"{NO_GUARANTEE} (epsilon is not finite)"
    also = "" if privacy.epsilon_at_1e5 is None else f" (epsilon {privacy.epsilon_at_1e5:.4g} at delta 1e-05)"
    return f"epsilon {privacy.epsilon:.4g} per {privacy.unit}, delta {privacy.delta:.4g}{also}"


_ARM_WIDTH = len("dialogue_level")
"""Where the terminal is narrow, numbers are folded before the name of a recipe is."""
_CELL_WIDTH = len("[0.000, 1.000]") + 3
"""An interval on one line, and its frame."""


def print_summary(reports: Sequence[AuditReport]) -> None:
    """Print a row per run, utility first, then each attack's headline above its chance line.

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


def write_page(runs: Sequence[Path], out: Path) -> None:
    """Write one self-contained HTML page over one or several runs."""
    import jinja2

    reports = [RunDirectory.open(path).read_report() for path in runs]
    rows = rows_of(reports)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hushbot.evaluation", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    page = environment.get_template("report.html").render(
        reports=reports,
        figure=_svg(rows),
        arm_name=arm_name,
        control_of=control_of,
        flat=_flat,
        guarantee=guarantee,
        recipe_notes=recipe_notes,
        summaries=[summary(report) for report in reports],
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode("utf-8"))


def summary(report: AuditReport) -> str:
    """Say in words what a run found."""
    accuracy = report.utility.get("joint_goal_accuracy")
    parts = [f"{arm_name(report)} (seed {report.run.seed}) is {report.status}"]
    if accuracy is not None and accuracy.value is not None:
        parts.append(f"it gets {accuracy.value:.0%} of dialogue states wholly right")
    formal = guarantee(report)
    has_none = formal.startswith(NO_GUARANTEE)
    parts.append("it has no formal guarantee" if has_none else f"its formal guarantee is {formal}")
    words = {
        "leak": "leaks",
        "no_leak_detected": "shows no leak",
        "inconclusive": "gives no conclusion",
        "not_measured": "was not measured",
    }
    parts += [f"{words[attack.verdict]} under {name.replace('_', ' ')}" for name, attack in report.attacks.items()]
    return "; ".join(parts) + "."


def _flat(numbers: object) -> list[tuple[str, str]]:
    """Return (key, text) pairs of a control or blind block, nested keys joined."""
    if isinstance(numbers, Estimate):
        return [("", show(numbers))]
    if isinstance(numbers, Mapping):
        if "value" in numbers and "method" in numbers:
            return [("", show(Estimate.model_validate(numbers)))]
        found = [(str(key), inner) for key, value in numbers.items() for inner in _flat(value)]
        return [(f"{key}/{sub}" if sub else key, text) for key, (sub, text) in found]
    return [
        (
            "",
            NOT_MEASURED if numbers is None else f"{numbers:.4g}" if isinstance(numbers, float) else str(numbers),
        )
    ]


def _svg(rows: Sequence[object]) -> str:
    sink = io.StringIO()
    tradeoff_figure(rows).savefig(sink, format="svg", metadata={"Date": None})  # type: ignore[arg-type]
    text = sink.getvalue()
    return text[text.index("<svg") :]


def write_comparison(runs: Sequence[Path], out: Path) -> None:
    """Write tradeoff.csv, tradeoff.png and report.html from the runs' reports.

    Raises:
        DataError: There is no run, or a directory holds none.
    """
    if not runs:
        raise DataError("no run directory was given; name at least one, such as runs/*")
    rows = rows_of([RunDirectory.open(path).read_report() for path in runs])
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "tradeoff.csv", tradeoff_csv(rows).encode("utf-8"))
    sink = io.BytesIO()
    tradeoff_figure(rows).savefig(sink, format="png", dpi=160, metadata={"Software": None})
    write_atomically(out / "tradeoff.png", sink.getvalue())
    write_page(runs, out / "report.html")
