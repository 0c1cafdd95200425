"""One metric of one arm against another arm, on the same documents; or why it cannot be had.

Guarantees: a difference is of runs of one corpus, one split and one seed on both sides, measured by the same rules, and
its units give back the numbers that the reports state; anything else is "not measured" with its reason, never a number.
What was measured without documents to pair (old reports, canaries) is not measured here. "higher" and "lower" need both
a p-value below 1 - level after Holm's adjustment and an interval without 0.

What voids it: settings of attacks that a report does not state; arms whose backbones differ (reports do not name them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushbot.evaluation.arms import Arm
from hushbot.evaluation.paired import Pair, paired_difference
from hushbot.intervals import Bootstrap, check_level, unmeasured
from hushbot.multiplicity import holm
from hushbot.types import AuditReport, Estimate, Units

UTILITY = "joint_goal_accuracy"
"""The metric that utility is judged by."""
HIGHER, LOWER, NO_DIFFERENCE, NOT_MEASURED = "higher", "lower", "no difference shown", "not measured"
NO_UNITS = "the report holds no units; run the audit again"
SAME_RULES = (
    *("dontcare", "missing", "drop_none", "values", "alternatives", "decoding", "database", "reference"),
    *("bleu", "dialogues_offered", "responses"),
)
"""Entries of the utility protocol that must agree; the others tell what a bot is, or how it fared."""
ROUNDING = 0.02
"""Units are rounded to six digits: ties among them may move a rate by a document or two, not more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSettings:
    """How arms are compared."""

    reference: str | None = None
    """The arm that others are held against; null takes `turn_level`, else the first trained one."""
    floor: float = 0.5
    """An arm whose joint goal accuracy surely lies below this part of the reference's has collapsed."""
    low_auc: float = 0.45
    """An AUC whose interval lies below this is flagged: it tells members apart the other way round."""
    max_missing: float = 0.1
    """Largest part of the documents that may be left out because one arm has no value for them."""
    level: float = 0.95
    """Coverage of intervals; a difference is called real below 1 - level."""
    n_draws: int = 2000
    """Bootstrap draws and exchanges per difference."""
    seed: int = 0
    """Same seed, same intervals."""

    def __post_init__(self) -> None:
        check_level(self.level)
        for name, ok, rule in (
            ("floor", 0 < self.floor <= 1, "in (0, 1]"),
            ("low_auc", 0 < self.low_auc <= 0.5, "in (0, 0.5]"),
            ("max_missing", 0 <= self.max_missing < 1, "in [0, 1)"),
            ("n_draws", self.n_draws >= 100, "at least 100"),
        ):
            if not ok:
                raise ValueError(f"{name}={getattr(self, name)!r} must be {rule}; set compare.{name}")

    @property
    def bootstrap(self) -> Bootstrap:
        """Return how documents are drawn."""
        return Bootstrap(level=self.level, n_draws=self.n_draws, seed=self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of one arm minus that of the reference, on the same documents."""

    arm: str
    reference: str
    metric: str
    """As in tradeoff.csv: `joint_goal_accuracy`, or `<attack>/<headline metric>`."""
    estimate: Estimate
    """Arm minus reference; n counts documents, `method` says how, or why not."""
    p: float | None
    """Two-sided."""
    p_holm: float | None
    """Adjusted for all arms that the metric was compared in."""
    n_seeds: int
    """Seeds that both arms have; each has its own split."""
    conclusion: str
    """`higher`, `lower`, `no difference shown` or `not measured`."""

    @property
    def is_real(self) -> bool:
        """Whether a difference is shown."""
        return self.conclusion in (HIGHER, LOWER)


class NotComparableError(Exception):
    """Two arms cannot be compared in a metric; the message says why."""


def metrics_of(arms: Sequence[Arm]) -> list[str]:
    """Return what arms are compared in: utility first, then each attack's headline."""
    reports = [report for arm in arms for report in arm.reports]
    utility = [name for report in reports for name in report.utility_units]
    attacks = [f"{name}/{a.headline.metric}" for report in reports for name, a in report.attacks.items()]
    return list(dict.fromkeys([UTILITY, *utility, *attacks]))


def difference(arm: Arm, reference: Arm, metric: str, settings: ComparisonSettings) -> Difference:
    """Return one difference, its p-value not yet adjusted for others."""
    shared = sorted(arm.by_seed.keys() & reference.by_seed.keys())
    try:
        pairs = _pairs(arm, reference, metric, shared, settings)
        splits = {arm.by_seed[seed].run.split_sha256 for seed in shared}
        found = paired_difference(pairs, settings.bootstrap, shares_documents=len(splits) == 1 < len(shared))
    except NotComparableError as error:
        estimate, p = unmeasured(str(error), level=settings.level), None
    else:
        n_missing = sum(pair.n_missing for pair in pairs)
        left_out = f"; {n_missing} documents without a value in one arm left out" if n_missing else ""
        estimate, p = found.estimate.model_copy(update={"method": found.estimate.method + left_out}), found.p
    made = Difference(
        arm=arm.name,
        reference=reference.name,
        metric=metric,
        estimate=estimate,
        p=p,
        p_holm=p,
        n_seeds=len(shared),
        conclusion=NOT_MEASURED,
    )
    return replace(made, conclusion=_conclusion(made))


def adjusted(differences: Sequence[Difference]) -> list[Difference]:
    """Adjust the p-values of one family for each other; what was not measured is no test."""
    known = [i for i, made in enumerate(differences) if made.p is not None]
    found = dict(zip(known, holm([differences[i].p or 0.0 for i in known]), strict=True))
    changed = [
        replace(made, p_holm=float(found[i])) if i in found else made for i, made in enumerate(differences)
    ]  # fmt: skip
    return [replace(made, conclusion=_conclusion(made)) for made in changed]


def is_one_corpus(arm: Arm, other: Arm) -> bool:
    """Whether all runs of two arms are on the same data, so that their numbers may stand side by side."""
    return len({(r.data.name, r.run.data_sha256) for r in (*arm.reports, *other.reports)}) == 1


def estimate_of(report: AuditReport, metric: str) -> Estimate | None:
    """Return the number that a report states for a metric; None where it has none."""
    name, slash, headline = metric.partition("/")
    if not slash:
        return report.utility.get(metric)
    attack = report.attacks.get(name)
    return attack.headline.estimate if attack is not None and attack.headline.metric == headline else None


def _conclusion(made: Difference) -> str:
    estimate, p = made.estimate, made.p_holm
    if estimate.value is None or p is None:
        return NOT_MEASURED
    if estimate.low is None or estimate.high is None or p >= 1 - estimate.level:
        return NO_DIFFERENCE
    return HIGHER if estimate.low > 0 else LOWER if estimate.high < 0 else NO_DIFFERENCE


def _pairs(
    arm: Arm, reference: Arm, metric: str, seeds: Sequence[int], settings: ComparisonSettings
) -> list[Pair]:  # fmt: skip
    for one in (arm, reference):
        if one.is_mixed:
            raise NotComparableError(f"{one.name} has two runs under one seed, so it is no one experiment")
    if not seeds:
        raise NotComparableError("no seed is in both arms")
    made = []
    for seed in seeds:
        try:
            made.append(_pair(arm.by_seed[seed], reference.by_seed[seed], metric, settings))
        except (NotComparableError, ValueError) as error:
            where = f"seed {seed}: " if len(seeds) > 1 else ""
            raise NotComparableError(f"{where}{error}") from error
    return made


def _pair(ours: AuditReport, theirs: AuditReport, metric: str, settings: ComparisonSettings) -> Pair:
    """Return the units of two runs side by side.

    Raises:
        NotComparableError: They are not of one corpus, split and measurement.
    """
    for reason in _unlike(ours, theirs, metric):
        raise NotComparableError(reason)
    units = [_units_of(report, metric) for report in (ours, theirs)]
    pair = Pair.of(*units)
    n_all = pair.n + pair.n_missing
    if not pair.n or pair.n_missing > settings.max_missing * n_all:
        raise NotComparableError(f"only {pair.n} of {n_all} documents have a value in both arms")
    for report, value in zip((ours, theirs), pair.values(), strict=True):
        stated = estimate_of(report, metric)
        if not math.isfinite(value):
            raise NotComparableError("the metric is undefined on the documents that both arms have")
        is_same = stated is not None and stated.value is not None and abs(stated.value - value) <= ROUNDING
        if not (is_same or pair.n_missing):
            raise NotComparableError(f"the units give {value:.3f}, which is not what the report states")
    return pair


def _unlike(ours: AuditReport, theirs: AuditReport, metric: str) -> Iterator[str]:
    """Yield why two runs cannot be compared in a metric."""
    if (ours.data.name, ours.run.data_sha256) != (theirs.data.name, theirs.run.data_sha256):
        yield "the runs are on different data"
    splits = (ours.run.split_sha256, theirs.run.split_sha256)
    if None not in splits and splits[0] != splits[1]:
        yield "the runs have different splits"
    for report in (ours, theirs):
        stated = estimate_of(report, metric)
        if stated is None or stated.value is None:
            why = stated.method.removeprefix("not measured: ") if stated is not None else ""
            yield f"{'+'.join(report.recipe.stack)} has no number" + (f" ({why})" if why else "")
    name, slash, _ = metric.partition("/")
    if not slash:
        rules, others = ours.utility_protocol, theirs.utility_protocol
        if unlike := [key for key in SAME_RULES if key in rules and key in others and rules[key] != others[key]]:
            yield f"utility was measured by other rules ({', '.join(unlike)})"
    elif (one := _measurement(ours, name)) != (other := _measurement(theirs, name)):
        yield f"the attack was another one ({one} and {other})"
    if None in splits:
        yield NO_UNITS


def _measurement(report: AuditReport, attack: str) -> tuple[Any, ...]:
    """Return what of an attack's settings a report states."""
    found = report.attacks[attack]
    return (found.threat_model, found.headline.metric, found.headline.key)


def _units_of(report: AuditReport, metric: str) -> Units:
    name, slash, _ = metric.partition("/")
    units = report.attacks[name].units if slash else report.utility_units.get(metric)
    if units is None:
        raise NotComparableError("the metric has no documents to pair")
    return units
