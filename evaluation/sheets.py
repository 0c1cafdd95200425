"""Everything that a comparison's page shows, as CSV files: each number of each run, and the points of its ROC curves.

Guarantees: the numbers are those of the reports and the curves those of the page; what was not measured has an empty
value and its reason under `method`, and no document is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hushbot.evaluation.arms import arm_name
from hushbot.evaluation.page_curves import roc_of
from hushbot.evaluation.tracker_rows import Row, rows_of
from hushbot.storage import csv_text
from hushbot.types import AuditReport

WHOSE = ("arm", "seed", "run")


def metrics_csv(reports: Sequence[AuditReport]) -> str:
    """Return one row per number of every report, losses of training included."""
    rows = (
        [*_whose(report), *(row._replace(method=row.method.replace("\n", " "))[:-1])]
        for report in reports
        for section in rows_of(report).values()
        for row in section
    )
    return csv_text((*WHOSE, *Row._fields[:-1]), rows)


def roc_csv(reports: Sequence[AuditReport]) -> str:
    """Return the operating points of every attack that scores members and non-members."""
    curves = ((report, name, roc_of(attack.units)) for report in reports for name, attack in report.attacks.items())
    rows = (
        [*_whose(report), name, false_rate, true_rate, roc.n_members, roc.n_nonmembers]
        for report, name, roc in curves
        if roc is not None
        for false_rate, true_rate in zip(roc.false_rates, roc.true_rates, strict=True)
    )
    columns = ("attack", "false_positive_rate", "true_positive_rate", "n_members", "n_nonmembers")
    return csv_text((*WHOSE, *columns), rows)


def _whose(report: AuditReport) -> list[Any]:
    return [arm_name(report), report.run.seed, report.run.id]
