"""Utility against leakage, arm by arm, read from reports alone.

Guarantees: every number keeps its interval and n; a number that was not measured stays empty, never zero; the
aggregate of an arm over seeds is the mean of its runs, its interval spanning the runs' own intervals (so it is never
narrower than what one run shows; the paired analysis over seeds is another table); a guarantee is no measurement, so
its epsilon and delta are the largest of the runs', and missing where a run has none. An arm without a guarantee has
the privacy unit `none` and an empty epsilon, which is not an epsilon of 0. Only runs of one arm on one corpus
and sides of like size are aggregated; arms of one name that differ in these are told apart by name. Reports of
`hushbot audit` repeat a bot that has its own run, or one without a recipe: they have rows and no part in an aggregate.

What voids it: a report does not name the backbone and the settings of its run. Two runs of a group under one seed
show that it mixes experiments, and its aggregate is then marked `mixed` and holds no number; other mixtures go
unnoticed.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hushbot.types import AttackResult, AuditReport, Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999")
"""Okabe and Ito's palette, which readers with colour-blindness can tell apart."""
ALL_SEEDS = "all"
NO_GUARANTEE = "none"
"""The privacy unit of a run that was not differentially private."""
UNKNOWN_GUARANTEE = "unknown"
"""The privacy unit of a bot that others trained: whether it has a guarantee cannot be seen from here."""
GUARANTEES = ("epsilon", "delta")
"""Columns that bound every run of an arm by their largest value, not by their mean."""
ALIKE = 0.1
"""Sides whose sizes differ by no more than this part are of one experiment: seeds deal groups out differently."""
AUDIT_NOTE = "utility was measured by run "
"""How the report of an audited run says that it is one."""


class Point(NamedTuple):
    """One number of one run or arm."""

    value: float | None
    low: float | None
    high: float | None
    n: int


class ArmRow(NamedTuple):
    """One run, or one arm over all its seeds."""

    arm: str
    seed: str
    status: str
    numbers: Mapping[str, Point]
    """Column -> number; utility metrics and `<attack>/<headline metric>`, each attack's control beside it."""
    privacy_unit: str = NO_GUARANTEE
    """What epsilon is about (`dialogue`); `none` without a guarantee, `unknown` of a bot that others trained."""


def arm_name(report: AuditReport) -> str:
    """Return how an arm is spelled."""
    return "+".join(report.recipe.stack)


def control_of(name: str, attack: AttackResult) -> tuple[str, Estimate | None]:
    """Return the control that stands beside a headline: its label and its number, None when not measured.

    Non-members come first, since they answer the question "would everyone's state have been found?"; then the base.
    """
    wanted = attack.headline.key or _headline_key(attack)
    for label in ("nonmembers", "base"):
        numbers = attack.control.get(label)
        found = numbers.get(wanted) if isinstance(numbers, Mapping) else None
        if isinstance(found, Mapping | Estimate):
            return label, Estimate.model_validate(found)
    return "", None


def _headline_key(attack: AttackResult) -> str:
    """Return the key under which the metrics of an attack that does not say hold its headline, by its very numbers.

    Several scores may tie; the one that attacks judge by unless told otherwise then comes first.
    """
    metric = attack.headline.metric
    keys = [
        key
        for key, number in attack.metrics.items()
        if (key == metric or key.endswith(f"/{metric}")) and number == attack.headline.estimate
    ]
    return next((key for key in keys if "dc_ppl" in key), keys[0] if keys else metric)


def rows_of(reports: Sequence[AuditReport]) -> list[ArmRow]:
    """Return one row per run or audit in the order given, then one per arm over its runs."""
    groups = _groups(reports)
    names = _group_names(groups)
    label = {id(report): name for name, group in zip(names, groups, strict=True) for report in group}
    row = {id(r): ArmRow(label[id(r)], str(r.run.seed), r.status, dict(_numbers(r)), _unit(r)) for r in reports}
    return [row[id(report)] for report in reports] + [
        _aggregate(name, [row[id(report)] for report in group])
        for name, group in zip(names, groups, strict=True)
        if not is_audit(group[0])
    ]


def is_audit(report: AuditReport) -> bool:
    """Say whether a report is of `hushbot audit`: it says so, or has attacks though nothing was trained or measured."""
    extra = (report.model_extra or {}) | (report.run.model_extra or {})
    if extra.get("audited") or any(note.startswith(AUDIT_NOTE) for note in report.notes):
        return True
    return bool(report.attacks) and not report.utility and not report.run.seconds.keys() & {"train", "utility"}


def is_foreign(report: AuditReport) -> bool:
    """Say whether the bot came from outside (`target=hf`, `target=http`): nothing here knows how it was trained."""
    audited = (report.model_extra or {}).get("audited")
    target = audited.get("target") if isinstance(audited, Mapping) else None
    return report.endpoint is not None or target in ("hf", "http")


def _groups(reports: Sequence[AuditReport]) -> list[list[AuditReport]]:
    """Put together what is of one arm, corpus and size, and audits apart from runs."""
    groups: list[list[AuditReport]] = []
    for report in reports:
        group = next((group for group in groups if _is_alike(group[0], report)), None)
        if group is None:
            groups.append([report])
        else:
            group.append(report)
    return groups


def _is_alike(one: AuditReport, other: AuditReport) -> bool:
    sizes = ((one.data.members, other.data.members), (one.data.nonmembers, other.data.nonmembers))
    return (
        arm_name(one) == arm_name(other)
        and one.data.name == other.data.name
        and is_audit(one) == is_audit(other)
        and all(abs(a - b) <= ALIKE * max(a, b) for a, b in sizes)
    )


def _group_names(groups: Sequence[Sequence[AuditReport]]) -> list[str]:
    """Return the arm's name where it is enough, else the name and what tells the group from its namesakes."""
    kinds = Counter((arm_name(group[0]), is_audit(group[0])) for group in groups)
    names = []
    for first, *_ in groups:
        data = first.data
        details = ["audit"] if is_audit(first) else []
        if kinds[arm_name(first), is_audit(first)] > 1:
            details += [data.name, f"{data.members} members", f"{data.nonmembers} non-members"]
        names.append(f"{arm_name(first)} ({', '.join(details)})" if details else arm_name(first))
    return names


def _numbers(report: AuditReport) -> Iterator[tuple[str, Point]]:
    for name, estimate in report.utility.items():
        yield name, _point(estimate)
    for name, attack in report.attacks.items():
        headline = f"{name}/{attack.headline.metric}"
        yield headline, _point(attack.headline.estimate)
        label, control = control_of(name, attack)
        if control is not None:
            yield f"{headline}/{label}", _point(control)
    privacy = report.recipe.privacy
    yield "epsilon", Point(privacy.epsilon if privacy else None, None, None, 0)
    yield "delta", Point(privacy.delta if privacy else None, None, None, 0)
    yield "seconds", Point(sum(report.run.seconds.values()), None, None, 0)
    yield "tokens_trained", Point(report.run.tokens_trained, None, None, 0)


def _unit(report: AuditReport) -> str:
    if report.recipe.privacy is not None:
        return report.recipe.privacy.unit
    return UNKNOWN_GUARANTEE if is_foreign(report) else NO_GUARANTEE


def _point(estimate: Estimate) -> Point:
    return Point(estimate.value, estimate.low, estimate.high, estimate.n)


def _aggregate(arm: str, rows: Sequence[ArmRow]) -> ArmRow:
    if len({row.seed for row in rows}) < len(rows):
        return ArmRow(arm, ALL_SEEDS, "mixed", {}, "mixed")
    units = {row.privacy_unit for row in rows}
    numbers = {}
    for column in dict.fromkeys(column for row in rows for column in row.numbers):
        points = [row.numbers[column] for row in rows if column in row.numbers]
        values = [point.value for point in points if point.value is not None]
        lows = [point.low for point in points if point.low is not None]
        highs = [point.high for point in points if point.high is not None]
        is_whole = len(values) == len(rows)  # a run without the number must not vanish in a mean
        is_bound = column in GUARANTEES
        if is_bound and len(units) > 1:
            is_whole = False  # epsilons of different units do not compare
        numbers[column] = Point(
            (max(values) if is_bound else sum(values) / len(values)) if values and is_whole else None,
            min(lows) if lows and is_whole else None,
            max(highs) if highs and is_whole else None,
            sum(point.n for point in points),
        )
    status = "complete" if all(row.status == "complete" for row in rows) else "partial"
    return ArmRow(arm, ALL_SEEDS, status, numbers, units.pop() if len(units) == 1 else "mixed")


def tradeoff_csv(rows: Sequence[ArmRow]) -> str:
    """Return tradeoff.csv: value, low, high and n of every number; empty where not measured."""
    columns = list(dict.fromkeys(column for row in rows for column in row.numbers))
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    parts = ("", "_low", "_high", "_n")
    writer.writerow(["arm", "seed", "status", "privacy_unit", *(column + part for column in columns for part in parts)])
    for row in rows:
        cells = [row.numbers.get(column, Point(None, None, None, 0)) for column in columns]
        numbers = ("" if x is None else x for cell in cells for x in cell)
        writer.writerow([row.arm, row.seed, row.status, row.privacy_unit, *numbers])
    return sink.getvalue()


def tradeoff_figure(rows: Sequence[ArmRow], utility: str = "joint_goal_accuracy") -> Figure:
    """Draw utility against each attack's headline, its control as a hollow mark; one panel per attack."""
    from matplotlib.figure import Figure

    runs = [row for row in rows if row.seed != ALL_SEEDS]
    attacks = list(dict.fromkeys(c for row in runs for c in row.numbers if c.count("/") == 1))
    arms = list(dict.fromkeys(row.arm for row in runs))
    figure = Figure(figsize=(4.4 * max(1, len(attacks)), 3.8), layout="constrained")
    axes = figure.subplots(1, max(1, len(attacks)), squeeze=False)[0]
    for axis, attack in zip(axes, attacks or [""], strict=True):
        for row in runs:
            colour = COLOURS[arms.index(row.arm) % len(COLOURS)]
            _draw(axis, row, attack, utility, colour)
        axis.set_xlabel(f"{utility.replace('_', ' ')} (higher is more useful)")
        axis.set_ylabel(f"{attack.replace('_', ' ')}\n(higher is more leakage)")
        axis.grid(alpha=0.3)
        axis.margins(0.1)
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    if unique:
        figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _draw(axis: object, row: ArmRow, attack: str, utility: str, colour: str) -> None:
    at, leak = row.numbers.get(utility), row.numbers.get(attack)
    if at is None or leak is None or at.value is None or leak.value is None:
        return
    axis.errorbar(  # type: ignore[attr-defined]
        [at.value],
        [leak.value],
        xerr=_bars(at),
        yerr=_bars(leak),
        fmt="o",
        color=colour,
        capsize=3,
        label=row.arm,
    )
    for label in ("nonmembers", "base"):
        control = row.numbers.get(f"{attack}/{label}")
        if control is not None and control.value is not None:
            axis.errorbar(  # type: ignore[attr-defined]
                [at.value],
                [control.value],
                yerr=_bars(control),
                fmt="o",
                color=colour,
                markerfacecolor="white",
                capsize=3,
                label=f"{row.arm}, chance line",
            )


def _bars(point: Point) -> list[list[float]] | None:
    if point.value is None or point.low is None or point.high is None:
        return None
    return [[max(0.0, point.value - point.low)], [max(0.0, point.high - point.value)]]
