"""Arms against each other, from report.json contents alone: what is different, what collapsed, what is worth choosing.

    >>> compare_arms([]).notes
    ('no report was given; there is nothing to compare',)

Guarantees: every arm has one standing with one row of plain words, also where it stands alone or is the reference;
every other arm has one difference per metric, "not measured" with a reason where runs are of unlike data, splits or
rules or hold no units; p-values are adjusted by Holm across arms within each metric; what is not covered stands in
`notes`. No model is loaded.

What voids it: see `hushbot.evaluation.paired` for the statistics, `differences` for what reports do not state, and
`pareto` for what the front says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hushbot.evaluation.arms import Arm, arms_of
from hushbot.evaluation.differences import (
    ComparisonSettings,
    Difference,
    adjusted,
    difference,
    metrics_of,
)
from hushbot.evaluation.pareto import Front, Place, leak_axes, places_of
from hushbot.evaluation.plain_words import Subject, row_of_words
from hushbot.evaluation.utility_gate import Gate, Yardsticks, gate, low_areas
from hushbot.storage import csv_text
from hushbot.types import AuditReport

__all__ = [
    "Comparison",
    "ComparisonSettings",
    "Difference",
    "Front",
    "Standing",
    "compare_arms",
    "comparisons_csv",
]

USUAL_REFERENCE = "turn_level"
COLUMNS = (
    *("arm", "reference", "metric", "n_seeds", "n_documents", "difference", "low", "high", "level", "p", "p_holm"),
    *("conclusion", "method"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one arm stands among the others."""

    arm: str
    is_collapsed: bool | None
    """Whether its utility collapsed; None where that cannot be judged."""
    front: Front
    dominated_by: tuple[str, ...]
    flags: tuple[str, ...]
    """What a reader must not overlook."""
    words: str
    """One row of plain language."""
    seconds: float | None
    """Training, utility and audit, mean of the runs."""
    tokens: int | None
    """Tokens trained on, mean of the runs."""
    memory_mb: float | None
    """Most memory held, of any run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All arms beside each other."""

    reference: str | None
    """The arm that others are held against; None without any that could be."""
    differences: tuple[Difference, ...]
    standings: tuple[Standing, ...]
    notes: tuple[str, ...]


def compare_arms(reports: Sequence[AuditReport], settings: ComparisonSettings | None = None) -> Comparison:
    """Return differences, standings and notes of all arms that the reports are of.

    Args:
        reports: In any order; runs of one arm are put together over seeds.
        settings: None takes the defaults.
    """
    settings = settings or ComparisonSettings()
    arms = arms_of(reports)
    reference = _reference(arms, settings)
    measured = _Measured(settings)
    differences = _differences(arms, reference, measured)
    untrained = next((arm for arm in arms if arm.is_untrained), None)
    gates = {
        arm.name: gate(arm, Yardsticks(reference, untrained, is_alone=len(arms) == 1), settings) for arm in arms
    }  # fmt: skip
    places = places_of(arms, {name: found.is_collapsed for name, found in gates.items()}, measured)
    standings = []
    for arm in arms:
        flags = tuple(_flags(arm, settings))
        own = {made.metric: made for made in differences if made.arm == arm.name}
        subject = Subject(arm, reference, own, places[arm.name], gates[arm.name], flags)
        standings.append(_standing(subject))
    return Comparison(
        reference=None if reference is None else reference.name,
        differences=tuple(differences),
        standings=tuple(standings),
        notes=tuple(_notes(arms, reference, untrained, differences, settings)),
    )


class _Measured:
    """Differences that are made once, in either direction."""

    def __init__(self, settings: ComparisonSettings) -> None:
        self._settings = settings
        self._made: dict[tuple[str, str, str], Difference] = {}

    def __call__(self, arm: Arm, other: Arm, metric: str) -> Difference:
        key = (arm.name, other.name, metric)
        if key not in self._made:
            self._made[key] = difference(arm, other, metric, self._settings)
        return self._made[key]


def _differences(arms: Sequence[Arm], reference: Arm | None, measured: _Measured) -> list[Difference]:
    if reference is None:
        return []
    others = [arm for arm in arms if arm is not reference]
    families = [adjusted([measured(arm, reference, metric) for arm in others]) for metric in metrics_of(arms)]
    return [family[i] for i in range(len(others)) for family in families]


def _reference(arms: Sequence[Arm], settings: ComparisonSettings) -> Arm | None:
    runs = [arm for arm in arms if not arm.is_audit]
    if settings.reference is not None:
        return next((arm for arm in arms if settings.reference == arm.name), None) or next(
            (arm for arm in runs if settings.reference == "+".join(arm.reports[0].recipe.stack)), None
        )
    trained = [arm for arm in runs if not arm.is_untrained]
    usual = next((arm for arm in trained if arm.reports[0].recipe.stack == [USUAL_REFERENCE]), None)
    return usual or next(iter(trained), None) or (arms[0] if len(arms) == 1 else None)


def _flags(arm: Arm, settings: ComparisonSettings) -> Iterator[str]:
    for attack, seed, area in low_areas(arm, settings.low_auc):
        ends = f"{area.value:.3f} [{area.low:.3f}, {area.high:.3f}]"
        yield f"{attack} AUC far below 0.5 ({ends}, seed {seed}): it tells members apart, the other way round"
    if arm.is_untrained:
        yield "the untrained backbone, left out of the front"
    judged = {axis.partition("/")[0] for axis in leak_axes(arm)}
    if undecided := [name for r in arm.reports for name in r.attacks if name not in judged]:
        yield f"not judged under {', '.join(dict.fromkeys(undecided))}"
    if unfinished := [report.status for report in arm.reports if report.status != "complete"]:
        yield f"{len(unfinished)} of {len(arm.reports)} runs not complete"


def _standing(subject: Subject) -> Standing:
    numbers = subject.arm.row.numbers
    seconds, tokens, memory = (
        numbers[column].value if column in numbers else None for column in ("seconds", "tokens_trained", "memory_mb")
    )
    place, found = _gated(subject.place, subject.gate), subject.gate
    flags = [f"utility collapsed: {found.why}"] if found.is_collapsed else []
    flags += [f"utility cannot be judged: {found.why}"] if found.is_collapsed is None else []
    return Standing(
        arm=subject.arm.name,
        is_collapsed=found.is_collapsed,
        front=place.front,
        dominated_by=place.dominated_by,
        flags=(*flags, *subject.flags),
        words=row_of_words(subject),
        seconds=seconds,
        tokens=None if tokens is None else round(tokens),
        memory_mb=memory,
    )


def _gated(place: Place, found: Gate) -> Place:
    """Return a place that no arm has whose use is gone or unknown, whatever else is true of it."""
    return place if found.is_collapsed is False else Place("not judged", ())


def _notes(
    arms: Sequence[Arm],
    reference: Arm | None,
    untrained: Arm | None,
    differences: Sequence[Difference],
    settings: ComparisonSettings,
) -> Iterator[str]:
    if not arms:
        yield "no report was given; there is nothing to compare"
        return
    if reference is None:
        wanted = f" {settings.reference}" if settings.reference else ""
        yield f"the reference arm{wanted} is not among the reports, so no difference was made; set compare.reference"
        return
    if untrained is None:
        yield f"no untrained base arm: nothing shows whether {reference.name}, the reference, is itself of use"
    if differences:
        n_others = len(arms) - 1
        yield f"differences are from {reference.name}; Holm's adjustment is across {n_others} arms within each metric"
    seeds = [made.n_seeds for made in differences if made.p is not None]
    if seeds and min(seeds) == 1:
        yield "one seed: that another training would differ is not covered by those intervals and p-values"
    for arm in arms:
        if lost := arm.by_seed.keys() ^ reference.by_seed.keys():
            listed = ", ".join(map(str, sorted(lost)))
            yield f"{arm.name} and {reference.name}: seeds {listed} are not in both, and were left out"
    if untrained is not None:
        yield f"{untrained.name} is not trained and no arm to ship; it is left out of the front"


def comparisons_csv(comparison: Comparison) -> str:
    """Return comparisons.csv: one row per difference, empty where not measured, with the reason under `method`."""
    rows = []
    for made in comparison.differences:
        found = made.estimate
        numbers = (found.value, found.low, found.high, found.level, made.p, made.p_holm)
        about = (made.arm, made.reference, made.metric, made.n_seeds, found.n)
        rows.append([*about, *numbers, made.conclusion, found.method])
    return csv_text(COLUMNS, rows)
