"""Utility against leakage, arm by arm, as a table and a figure.

Guarantees: what `hushbot.evaluation.arms` says of the numbers holds in both: nothing that was not measured is shown as
0, and a cell without a number is empty. Arms that are dominated or whose utility collapsed are marked as such, and so
is the front, where a comparison says which they are.

What voids it: see `hushbot.evaluation.arms`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hushbot.evaluation.arms import (
    ALL_SEEDS,
    AUDIT_NOTE,
    NO_GUARANTEE,
    UNKNOWN_GUARANTEE,
    ArmRow,
    Point,
    arm_name,
    control_of,
    is_audit,
    is_foreign,
    rows_of,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hushbot.evaluation.comparisons import Standing

__all__ = [
    "ALL_SEEDS",
    "AUDIT_NOTE",
    "COLOURS",
    "NO_GUARANTEE",
    "UNKNOWN_GUARANTEE",
    "ArmRow",
    "Point",
    "arm_name",
    "control_of",
    "is_audit",
    "is_foreign",
    "rows_of",
    "tradeoff_csv",
    "tradeoff_figure",
]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Okabe and Ito's palette, which readers with colour-blindness can tell apart."""
MARKS = {"front": "*", "dominated": "v", "perhaps dominated": "v"}
"""Marks of arms that a comparison placed; all others are discs."""
COLLAPSED_MARK = "X"
CHANCE = ", chance line"
"""How the control of an arm is labelled."""
FADED = 0.4
"""How strongly an arm that is dominated, or lost its use, is drawn."""


def tradeoff_csv(rows: Sequence[ArmRow], standings: Sequence[Standing] = ()) -> str:
    """Return tradeoff.csv: value, low, high and n of every number; empty where not measured.

    Args:
        rows: Runs and arms.
        standings: Of the arms, for the last columns; without them these are empty.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row.numbers))
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    parts = ("", "_low", "_high", "_n")
    names = [column + part for column in columns for part in parts]
    writer.writerow(["arm", "seed", "status", "privacy_unit", *names, "front", "dominated_by", "collapsed"])
    by_arm = {standing.arm: standing for standing in standings}
    for row in rows:
        cells = [row.numbers.get(column, Point(None, None, None, 0)) for column in columns]
        numbers = ("" if x is None else x for cell in cells for x in cell)
        about = (row.arm, row.seed, row.status, row.privacy_unit)
        writer.writerow([*about, *numbers, *_standing_cells(by_arm.get(row.arm))])
    return sink.getvalue()


def _standing_cells(standing: Standing | None) -> tuple[str, str, str]:
    if standing is None:
        return ("", "", "")
    collapsed = {True: "yes", False: "no", None: ""}[standing.is_collapsed]
    return (standing.front, ";".join(standing.dominated_by), collapsed)


def tradeoff_figure(
    rows: Sequence[ArmRow], utility: str = "joint_goal_accuracy", standings: Sequence[Standing] = ()
) -> Figure:
    """Draw utility against each attack's headline, its control as a hollow mark; one panel per attack.

    Args:
        rows: Runs and arms; runs are drawn.
        utility: What stands on the x-axis.
        standings: Of the arms: those on the front are stars, dominated ones faint triangles, collapsed ones crosses.
    """
    from matplotlib.figure import Figure

    runs = [row for row in rows if row.seed != ALL_SEEDS]
    attacks = list(dict.fromkeys(c for row in runs for c in row.numbers if c.count("/") == 1))
    arms = list(dict.fromkeys(row.arm for row in runs))
    by_arm = {standing.arm: standing for standing in standings}
    figure = Figure(figsize=(4.6 * max(1, len(attacks)), 3.6 + 0.2 * len(arms)), layout="constrained")
    axes = figure.subplots(1, max(1, len(attacks)), squeeze=False)[0]
    for axis, attack in zip(axes, attacks or [""], strict=True):
        for row in runs:
            colour = COLOURS[arms.index(row.arm) % len(COLOURS)]
            _draw(axis, row, (attack, utility), colour, by_arm.get(row.arm))
        axis.set_xlabel(f"{utility.replace('_', ' ')} (higher is more useful)")
        axis.set_ylabel(f"{attack.replace('_', ' ').replace('/', chr(10))}\n(higher is more leakage)")
        axis.grid(alpha=0.3)
        axis.margins(0.1)
    _add_legend(figure, axes)
    return figure


def _add_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Name each arm once, whichever panel it is in, and what is hollow."""
    found: dict[str, Artist] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            found.setdefault("hollow: chance line" if label.endswith(CHANCE) else label, handle)
    if found:
        columns = min(3, len(axes))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _draw(axis: Axes, row: ArmRow, columns: tuple[str, str], colour: str, standing: Standing | None) -> None:
    attack, utility = columns
    at, leak = row.numbers.get(utility), row.numbers.get(attack)
    if at is None or leak is None or at.value is None or leak.value is None:
        return
    mark, strength, words = _look(standing)
    axis.errorbar(
        [at.value],
        [leak.value],
        xerr=_bars(at),
        yerr=_bars(leak),
        fmt=mark,
        color=colour,
        alpha=strength,
        markersize=11 if mark == "*" else 7,
        capsize=3,
        label=f"{row.arm}{words}",
    )
    for label in ("nonmembers", "base"):
        control = row.numbers.get(f"{attack}/{label}")
        if control is not None and control.value is not None:
            axis.errorbar(
                [at.value],
                [control.value],
                yerr=_bars(control),
                fmt="o",
                color=colour,
                alpha=strength,
                markerfacecolor="white",
                capsize=3,
                label=f"{row.arm}{CHANCE}",
                markersize=4,
                zorder=1,
            )


def _look(standing: Standing | None) -> tuple[str, float, str]:
    """Return an arm's mark, how strongly it is drawn, and what the legend adds to its name."""
    if standing is None:
        return "o", 1.0, ""
    if standing.is_collapsed:
        return COLLAPSED_MARK, FADED, " (collapsed)"
    is_behind = "dominated" in standing.front
    words = f" ({standing.front})" if standing.front in MARKS else ""
    return MARKS.get(standing.front, "o"), FADED if is_behind else 1.0, words


def _bars(point: Point) -> list[list[float]] | None:
    if point.value is None or point.low is None or point.high is None:
        return None
    return [[max(0.0, point.value - point.low)], [max(0.0, point.high - point.value)]]
