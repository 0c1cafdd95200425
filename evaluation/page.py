"""report.html: one page over one or several runs, made from report.json files alone.

Guarantees: the page is one self-contained file; its own content security policy forbids every connection and every
script and style but its own, which are named by hash. Whatever stands in a report is hostile text and is escaped. A
number stands beside its control and its blind baseline; what was not measured is said once in one list, with the
reason. Runs that cannot be read, and reports that are partial or failed, are shown as such and stop no other.

What voids it: a report edited by hand. A mask is not anonymisation (`hushbot.masking`): the page shows masked examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from hushbot.errors import HushbotError
from hushbot.evaluation.card_gaps import untested
from hushbot.evaluation.comparisons import Comparison, compare_arms
from hushbot.evaluation.page_breakdowns import (
    Breakdown,
    DotLook,
    arms_breakdown_figure,
    breakdown_figure,
    breakdowns_of,
)
from hushbot.evaluation.page_charts import SHAPES, Line
from hushbot.evaluation.page_curves import (
    ArmMark,
    Curve,
    Roc,
    arms_figure,
    curve_figure,
    curves_of,
    roc_figure,
    roc_label,
    roc_line,
    roc_of,
    training_figures,
)
from hushbot.evaluation.page_tables import (
    NumberTable,
    blind_numbers,
    domain_table,
    example_columns,
    number_table,
)
from hushbot.evaluation.page_template import fill_template
from hushbot.evaluation.page_tradeoff import Look, looks_of, tradeoff_panels
from hushbot.evaluation.run_reports import read_run
from hushbot.evaluation.tradeoff import ArmRow, control_of, rows_of
from hushbot.run import write_atomically
from hushbot.types import AttackResult, AuditReport, Estimate


class AttackView(NamedTuple):
    """One attack of one run, as the page shows it."""

    name: str
    result: AttackResult
    control_label: str
    control: Estimate | None
    blind: list[tuple[str, str]]
    figures: list[Markup]
    numbers: NumberTable
    example_columns: list[str]


class RunView(NamedTuple):
    """One run, as the page shows it."""

    anchor: str
    report: AuditReport
    arm: str
    look: Look
    attacks: list[AttackView]
    training: list[Markup]
    domain_metrics: list[str]
    domains: list[tuple[str, list[str]]]

    def attack(self, name: str) -> AttackView | None:
        """Return the attack of that name, None where it was not run."""
        return next((attack for attack in self.attacks if attack.name == name), None)


def write_page(
    runs: Sequence[Path],
    out: Path,
    *,
    damaged: Sequence[tuple[str, str]] = (),
    comparison: Comparison | None = None,
) -> None:
    """Write one self-contained HTML page over one or several runs.

    Args:
        runs: Run directories with a report that can be read.
        out: Where the page goes.
        damaged: Runs that cannot be read, each with the reason; the page lists them.
        comparison: What was found between the arms; worked out from the reports where it is not given.
    """
    reports = [read_run(path) for path in runs]
    page = render_page(reports, damaged=damaged, comparison=comparison)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page.encode("utf-8"))


def render_page(
    reports: Sequence[AuditReport],
    *,
    damaged: Sequence[tuple[str, str]] = (),
    comparison: Comparison | None = None,
) -> str:
    """Return the page's text; see `write_page`."""
    not_compared = ""
    if comparison is None:
        comparison, not_compared = _compared(reports)
    rows = rows_of(reports)
    standings = comparison.standings if comparison is not None else ()
    looks = looks_of(rows, {standing.arm: standing.front for standing in standings})
    is_whole = len(reports) == 1
    views = [
        _run_view(f"run-{i}", report, row, looks[row.arm], is_whole=is_whole)
        for i, (report, row) in enumerate(zip(reports, rows, strict=False))  # rows of whole arms follow
    ]
    return fill_template(
        {
            "runs": views,
            "damaged": damaged,
            "comparison": comparison,
            "not_compared": not_compared,
            "looks": looks,
            "headlines": _headlines(views),
            "panels": tradeoff_panels(rows, looks),
            "shared_figures": _shared_figures(views) if len(views) > 1 else [],
            "gaps": _gaps(views),
        }
    )


def _compared(reports: Sequence[AuditReport]) -> tuple[Comparison | None, str]:
    """Return the comparison of the arms, or why there is none."""
    try:
        return compare_arms(reports), ""
    except HushbotError as error:
        return None, str(error)


def _run_view(anchor: str, report: AuditReport, row: ArmRow, look: Look, *, is_whole: bool) -> RunView:
    attacks = [_attack_view(name, attack, is_whole=is_whole) for name, attack in report.attacks.items()]
    metrics, domains = domain_table(report)
    return RunView(anchor, report, row.arm, look, attacks, training_figures(report), metrics, domains)


def _attack_view(name: str, attack: AttackResult, *, is_whole: bool) -> AttackView:
    label, control = control_of(name, attack)
    figures = []
    roc = roc_of(attack.units)
    if roc is not None:
        figures.append(
            roc_figure("ROC on logarithmic axes", [(roc_line(roc, roc_label("members", roc), "member"), roc)])
        )
    figures += [curve_figure(curve) for curve in curves_of(attack)]
    figures += [breakdown_figure(breakdown) for breakdown in breakdowns_of(attack)]
    table = number_table(attack, is_whole=is_whole)
    return AttackView(name, attack, label, control, blind_numbers(attack), figures, table, example_columns(attack))


def _shared_figures(views: Sequence[RunView]) -> list[Markup]:
    """Return by attack the curves of all runs on one pair of axes."""
    names = dict.fromkeys(attack.name for view in views for attack in view.attacks)
    return [figure for name in names for figure in _figures_of(name, views)]


def _figures_of(name: str, views: Sequence[RunView]) -> list[Markup]:
    lines: list[tuple[Line, Roc]] = []
    families: dict[str, list[tuple[ArmMark, Curve]]] = {}
    slices: dict[str, list[tuple[DotLook, Breakdown]]] = {}
    for view in views:
        attack = view.report.attacks.get(name)
        if attack is None:
            continue
        mark = ArmMark(view.look.number, view.arm, _run_name(view))
        if (roc := roc_of(attack.units)) is not None:
            lines.append((roc_line(roc, mark.arm, mark.tone, arm=mark.number), roc))
        for curve in curves_of(attack):
            families.setdefault(curve.family.title, []).append((mark, curve))
        look = DotLook(mark.arm, mark.tone, SHAPES[mark.number % len(SHAPES)], mark.run, mark.number)
        for breakdown in breakdowns_of(attack):
            if breakdown.dimension == "domain":
                slices.setdefault(breakdown.title, []).append((look, breakdown))
    title = name.replace("_", " ")
    figures = [roc_figure(f"{title}: ROC on logarithmic axes", lines)] if lines else []
    figures += [arms_figure(f"{title}: {family}", curves) for family, curves in families.items()]
    return figures + [arms_breakdown_figure(f"{title}: {what}", runs) for what, runs in slices.items()]


def _run_name(view: RunView) -> str:
    return f"{view.arm}, seed {view.report.run.seed}"


def _headlines(views: Sequence[RunView]) -> dict[str, str]:
    """Return every attack of any run with the metric that it is judged by, in the order of their appearance."""
    found: dict[str, str] = {}
    for view in views:
        for attack in view.attacks:
            found.setdefault(attack.name, attack.result.headline.metric)
    return found


def _gaps(views: Sequence[RunView]) -> list[tuple[str, str]]:
    """Return everything that was not measured, each line once with the runs that it is of."""
    owners: dict[str, list[str]] = {}
    for view in views:
        for line in untested(view.report):
            owners.setdefault(line, []).append(_run_name(view))
    return [
        (line, "all runs" if len(names) == len(views) and len(views) > 1 else "; ".join(dict.fromkeys(names)))
        for line, names in owners.items()
    ]
