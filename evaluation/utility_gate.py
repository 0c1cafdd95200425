"""Is a bot still of use? How little a useless one leaks says nothing.

Guarantees: a bot is let through only where its joint goal accuracy was measured and held against something: the
reference arm, and the untrained backbone where there is one. What cannot be judged is None, which lets nobody through.

What voids it: a reference that is itself of little use, where no untrained backbone stands beside it; the notes of a
comparison say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hushbot.evaluation.arms import Arm, Point, headline_key
from hushbot.evaluation.differences import UTILITY, ComparisonSettings, is_one_corpus
from hushbot.types import AttackResult, Estimate


class Gate(NamedTuple):
    """Whether an arm's utility collapsed, and why that is said."""

    is_collapsed: bool | None
    why: str


class Yardsticks(NamedTuple):
    """What an arm is held against."""

    reference: Arm | None
    untrained: Arm | None
    is_alone: bool
    """Whether there is no other arm."""


def gate(arm: Arm, against: Yardsticks, settings: ComparisonSettings) -> Gate:
    """Say whether an arm is still of use."""
    accuracy = _accuracy(arm)
    if accuracy.value is None:
        return Gate(None, "joint goal accuracy was not measured")
    if worse := _no_better_than_untrained(arm, accuracy, against):
        return Gate(True, worse)
    reference = against.reference
    if reference is None:
        return Gate(None, "there is no reference arm")
    if reference.name == arm.name:
        if accuracy.value <= 0:
            return Gate(True, "no dialogue state is wholly right")
        is_judged = against.untrained is not None or not against.is_alone
        return Gate(False, "") if is_judged else Gate(None, "it stands alone, without the untrained base")
    return _above_floor(arm, accuracy, against, settings)


def _above_floor(arm: Arm, accuracy: Point, against: Yardsticks, settings: ComparisonSettings) -> Gate:
    reference = against.reference
    if reference is None or not is_one_corpus(arm, reference):
        return Gate(None, "the reference arm is on other data")
    usual = _accuracy(reference)
    if usual.value is None or usual.value <= 0 or _no_better_than_untrained(reference, usual, against):
        return Gate(None, "the reference arm is itself of no use, or was not measured")
    if accuracy.high is None:
        return Gate(None, "joint goal accuracy has no interval")
    if accuracy.high < settings.floor * usual.value:
        return Gate(True, f"joint goal accuracy surely below {settings.floor:g} times that of {reference.name}")
    return Gate(False, "")


def _no_better_than_untrained(arm: Arm, accuracy: Point, against: Yardsticks) -> str:
    untrained = against.untrained
    if untrained is None or arm.is_untrained or not is_one_corpus(arm, untrained):
        return ""
    floor = _accuracy(untrained).value
    if floor is None or accuracy.value is None or accuracy.value > floor:
        return ""
    return f"joint goal accuracy not above that of the untrained {untrained.name}"


def _accuracy(arm: Arm) -> Point:
    return arm.row.numbers.get(UTILITY, Point(None, None, None, 0))


def low_areas(arm: Arm, below: float) -> Iterator[tuple[str, int, Estimate]]:
    """Yield attack, seed and AUC wherever the AUC's interval lies wholly below a bound."""
    for report in arm.reports:
        for name, attack in report.attacks.items():
            area = _area(attack)
            if area is not None and None not in (area.value, area.low) and area.high is not None and area.high < below:
                yield name, report.run.seed, area


def _area(attack: AttackResult) -> Estimate | None:
    """Return the AUC of the score that an attack is judged by."""
    if attack.headline.metric == "auc":
        return attack.headline.estimate
    score, _, _ = headline_key(attack).rpartition("/")
    found = attack.metrics.get(f"{score}/auc" if score else "auc")
    return found if isinstance(found, Estimate) else None
