"""Which arms are worth choosing among: utility up, every leak down.

Guarantees: only arms whose utility was measured and has not collapsed take part, on one corpus; the untrained backbone
and audits do not, for nobody ships them. An arm is dominated only where another one is at least as good in everything
that was measured in both, one of these differences is shown (paired and adjusted by Holm for all arms and axes it was
held against; without units: intervals that do not touch) and none is shown the other way; where that is only what the
point estimates say, or something was measured in one of them alone, it is perhaps dominated. An arm that is on the
front was dominated by none of those that took part; with large intervals that says little.

What voids it: leaks that no attack here looks for. Cost is no axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Literal, NamedTuple, TypeAlias

from hushbot.evaluation.arms import Arm, Point
from hushbot.evaluation.differences import HIGHER, LOWER, UTILITY, Difference, adjusted, is_one_corpus

Front: TypeAlias = Literal["front", "dominated", "perhaps dominated", "not judged"]
DECIDED = ("leak", "no_leak_detected")
"""Verdicts that say something about a leak."""


class Place(NamedTuple):
    """Where an arm stands."""

    front: Front
    dominated_by: tuple[str, ...]


Measure: TypeAlias = Callable[[Arm, Arm, str], Difference]
"""First arm minus the second in a metric."""


def leak_axes(arm: Arm) -> dict[str, Point]:
    """Return the headlines of the attacks that came to a verdict in every run, by their column."""
    found = {}
    for report in arm.reports:
        for name, attack in report.attacks.items():
            column = f"{name}/{attack.headline.metric}"
            point = arm.row.numbers.get(column)
            runs = [r.attacks.get(name) for r in arm.reports]
            is_decided = all(run is not None and run.verdict in DECIDED for run in runs)
            if is_decided and point is not None and point.value is not None:
                found[column] = point
    return found


def places_of(arms: Sequence[Arm], is_collapsed: Mapping[str, bool | None], measure: Measure) -> dict[str, Place]:
    """Return where each arm stands.

    Args:
        arms: All arms.
        is_collapsed: By name; None where that cannot be judged.
        measure: Makes a paired difference, not adjusted.
    """
    taking_part = [arm for arm in arms if is_collapsed[arm.name] is False and _can_be_placed(arm)]
    names = {arm.name for arm in taking_part} if len(taking_part) > 1 else set()  # one alone is no choice
    return {
        arm.name: _place(arm, [other for other in taking_part if other is not arm], measure)
        if arm.name in names
        else Place("not judged", ())
        for arm in arms
    }


def _can_be_placed(arm: Arm) -> bool:
    return not (arm.is_untrained or arm.is_audit or arm.is_mixed) and bool(leak_axes(arm)) and _utility(arm) is not None


def _place(arm: Arm, others: Sequence[Arm], measure: Measure) -> Place:
    better = [other for other in others if is_one_corpus(arm, other) and _is_better(other, arm)]
    if not better:
        return Place("front", ())
    shown = _shown(arm, better, measure)
    sure = tuple(other.name for other in better if _is_sure(shown[other.name]) and _is_whole(arm, other))
    return Place("dominated", sure) if sure else Place("perhaps dominated", tuple(other.name for other in better))


def _is_better(other: Arm, arm: Arm) -> bool:
    """Whether point estimates put the other at least level on every axis that both have, and ahead on one."""
    gains = [_gain(other, arm, axis) for axis in _axes(arm, other)]
    return len(gains) > 1 and all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)


def _axes(arm: Arm, other: Arm) -> list[str]:
    theirs = leak_axes(other)
    return [UTILITY, *(axis for axis in leak_axes(arm) if axis in theirs)]


def _is_whole(arm: Arm, other: Arm) -> bool:
    """Whether no axis was judged in one of the two arms alone."""
    attacks = {name for one in (arm, other) for report in one.reports for name in report.attacks}
    return len(_axes(arm, other)) == 1 + len(attacks)


def _gain(other: Arm, arm: Arm, axis: str) -> float:
    """Return by how much the other arm is better on an axis, leaks counting downwards."""
    theirs, ours = _point(other, axis).value, _point(arm, axis).value
    if theirs is None or ours is None:
        return float("-inf")
    return theirs - ours if axis == UTILITY else ours - theirs


def _shown(arm: Arm, others: Sequence[Arm], measure: Measure) -> dict[str, list[int]]:
    """Return for each other arm and axis +1 where its advantage is shown, -1 where this arm's is, else 0."""
    cells = [(other, axis) for other in others for axis in _axes(arm, other)]
    tested = adjusted([measure(other, arm, axis) for other, axis in cells])
    found = [
        (other.name, _sign(made, axis) if made.p is not None else _apart(other, arm, axis))
        for (other, axis), made in zip(cells, tested, strict=True)
    ]
    return {name: [sign for _, sign in group] for name, group in groupby(found, key=lambda cell: cell[0])}


def _is_sure(signs: Sequence[int]) -> bool:
    return max(signs) > 0 and min(signs) >= 0


def _sign(made: Difference, axis: str) -> int:
    sign = {HIGHER: 1, LOWER: -1}.get(made.conclusion, 0)
    return sign if axis == UTILITY else -sign


def _apart(other: Arm, arm: Arm, axis: str) -> int:
    """Compare intervals, which is cruder than pairing."""
    theirs, ours = _point(other, axis), _point(arm, axis)
    ends = (theirs.low, theirs.high, ours.low, ours.high)
    low, high, our_low, our_high = (float("nan") if end is None else end for end in ends)
    sign = 1 if low > our_high else -1 if high < our_low else 0
    return sign if axis == UTILITY else -sign


def _point(arm: Arm, axis: str) -> Point:
    return arm.row.numbers.get(axis, Point(None, None, None, 0))


def _utility(arm: Arm) -> float | None:
    return _point(arm, UTILITY).value
