"""Who is an arm: runs of one recipe stack, corpus and size, put together over seeds, and their numbers.

Guarantees: every number keeps its interval and n; a number that was not measured stays empty, never zero; the
aggregate of an arm over seeds is the mean of its runs, its interval spanning the runs' own intervals (so it is never
narrower than what one run shows; the paired analysis over seeds is another table); a guarantee is no measurement, so
its epsilon and delta are the largest of the runs', and missing where a run has none; memory, too, is the most of any
run. An arm without a guarantee has the privacy unit `none` and an empty epsilon, which is not an epsilon of 0. Only
runs of one arm on one corpus and sides of like size are aggregated; arms of one name that differ in these are told
apart by name. Reports of `hushbot audit` repeat a bot that has its own run, or one without a recipe: they have rows and
no part in an aggregate.

What voids it: a report does not name the backbone and the settings of its run. Two runs of a group under one seed
show that it mixes experiments, and its aggregate is then marked `mixed` and holds no number; other mixtures go
unnoticed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hushbot.types import AttackResult, AuditReport, Estimate, as_estimate

ALL_SEEDS = "all"
MIXED = "mixed"
"""The status of a group whose runs are of several experiments."""
UNTRAINED = "base"
"""The arm of the backbone as it is."""
NO_GUARANTEE = "none"
"""The privacy unit of a run that was not differentially private."""
UNKNOWN_GUARANTEE = "unknown"
"""The privacy unit of a bot that others trained: whether it has a guarantee cannot be seen from here."""
GREATEST = ("epsilon", "delta", "memory_mb")
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
    wanted = headline_key(attack)
    for label in ("nonmembers", "base"):
        numbers = attack.control.get(label)
        found = numbers.get(wanted) if isinstance(numbers, Mapping) else None
        if (estimate := as_estimate(found)) is not None:
            return label, estimate
    return "", None


def headline_key(attack: AttackResult) -> str:
    """Return the headline's key in an attack's metrics; where the attack does not say it, by its very numbers.

    Several scores may tie; the one that attacks judge by unless told otherwise then comes first.
    """
    if attack.headline.key is not None:
        return attack.headline.key
    metric = attack.headline.metric
    keys = [
        key
        for key, number in attack.metrics.items()
        if (key == metric or key.endswith(f"/{metric}")) and number == attack.headline.estimate
    ]
    return next((key for key in keys if "dc_ppl" in key), keys[0] if keys else metric)


class Arm(NamedTuple):
    """The runs of one arm, or audits of one bot."""

    name: str
    """As in the tables: how the stack is spelled, and what tells it from its namesakes."""
    reports: tuple[AuditReport, ...]
    row: ArmRow
    """Over all seeds."""

    @property
    def is_mixed(self) -> bool:
        """Whether two of the runs have one seed: they are not one experiment, and nothing can be said of them."""
        return self.row.status == MIXED

    @property
    def is_audit(self) -> bool:
        """Whether these are audits, not runs."""
        return is_audit(self.reports[0])

    @property
    def is_untrained(self) -> bool:
        """Whether this is the backbone as it is, which nobody would ship."""
        return self.reports[0].recipe.stack[:1] == [UNTRAINED] and not self.is_audit

    @property
    def by_seed(self) -> dict[int, AuditReport]:
        """Return the run of each seed; of no use where the arm is mixed."""
        return {report.run.seed: report for report in self.reports}


def arms_of(reports: Sequence[AuditReport]) -> list[Arm]:
    """Return the arms in the order in which they appear, audits too."""
    groups = _groups(reports)
    return [
        Arm(name, tuple(group), _aggregate(name, [_row(name, report) for report in group]))
        for name, group in zip(_group_names(groups), groups, strict=True)
    ]


def rows_of(reports: Sequence[AuditReport]) -> list[ArmRow]:
    """Return one row per run or audit in the order given, then one per arm over its runs."""
    arms = arms_of(reports)
    label = {id(report): arm.name for arm in arms for report in arm.reports}
    rows = [_row(label[id(report)], report) for report in reports]
    return rows + [arm.row for arm in arms if not arm.is_audit]


def _row(name: str, report: AuditReport) -> ArmRow:
    return ArmRow(name, str(report.run.seed), report.status, dict(_numbers(report)), _unit(report))


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
    yield "memory_mb", Point(max(report.run.peak_memory_mb.values(), default=None), None, None, 0)
    if report.run.seconds_per_turn is not None:
        yield "seconds_per_turn", _point(report.run.seconds_per_turn)


def _unit(report: AuditReport) -> str:
    if report.recipe.privacy is not None:
        return report.recipe.privacy.unit
    return UNKNOWN_GUARANTEE if is_foreign(report) else NO_GUARANTEE


def _point(estimate: Estimate) -> Point:
    return Point(estimate.value, estimate.low, estimate.high, estimate.n)


def _aggregate(arm: str, rows: Sequence[ArmRow]) -> ArmRow:
    if len({row.seed for row in rows}) < len(rows):
        return ArmRow(arm, ALL_SEEDS, MIXED, {}, MIXED)
    units = {row.privacy_unit for row in rows}
    numbers = {}
    for column in dict.fromkeys(column for row in rows for column in row.numbers):
        points = [row.numbers[column] for row in rows if column in row.numbers]
        values = [point.value for point in points if point.value is not None]
        lows = [point.low for point in points if point.low is not None]
        highs = [point.high for point in points if point.high is not None]
        is_whole = len(values) == len(rows)  # a run without the number must not vanish in a mean
        is_greatest = column in GREATEST
        if column in ("epsilon", "delta") and len(units) > 1:
            is_whole = False  # epsilons of different units do not compare
        numbers[column] = Point(
            (max(values) if is_greatest else sum(values) / len(values)) if values and is_whole else None,
            min(lows) if lows and is_whole else None,
            max(highs) if highs and is_whole else None,
            sum(point.n for point in points),
        )
    status = "complete" if all(row.status == "complete" for row in rows) else "partial"
    return ArmRow(arm, ALL_SEEDS, status, numbers, units.pop() if len(units) == 1 else MIXED)
