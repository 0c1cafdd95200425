"""One row of plain language per arm: what it costs, what it buys, whether the difference is real.

Guarantees: a difference is called real only where it is shown after Holm's adjustment; everything else reads "not shown
after Holm", "within noise" or "not measured" with its reason; an arm leaks more only where its own verdict is a leak,
and less only where the reference's is; where utility collapsed that comes first, and no leak is said to be less. Nobody
is called private or safe, for an attack that finds nothing is no proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hushbot.evaluation.arms import Arm, Point
from hushbot.evaluation.differences import HIGHER, UTILITY, Difference
from hushbot.evaluation.pareto import Place
from hushbot.evaluation.utility_gate import Gate

METRICS = {"tpr_at_1pct_fpr": "TPR at 1% FPR", "auc": "AUC"}
VERDICTS = {
    "leak": "leaks",
    "no_leak_detected": "shows no leak",
    "inconclusive": "gives no conclusion",
    "not_measured": "was not measured",
}
_NOTHING = Point(None, None, None, 0)


class Subject(NamedTuple):
    """An arm, and all that is known of it beside others."""

    arm: Arm
    reference: Arm | None
    differences: Mapping[str, Difference]
    """By metric; empty for the reference."""
    place: Place
    gate: Gate
    flags: Sequence[str]


def row_of_words(subject: Subject) -> str:
    """Return the row."""
    parts = [*_utility(subject), *_leaks(subject), *_unmeasured(subject), *_cost(subject)]
    sentence = "; ".join(part for part in parts if part)
    is_reference = subject.reference is not None and subject.reference.name == subject.arm.name
    name = f"{subject.arm.name} (the reference)" if is_reference else subject.arm.name
    return " ".join([f"{name} {sentence}.", *_standing(subject)])


def metric_words(metric: str) -> str:
    """Return how a metric reads, its attack left out."""
    name = metric.rpartition("/")[2]
    return METRICS.get(name, name.replace("_", " "))


def _utility(subject: Subject) -> Iterator[str]:
    arm, reference = subject.arm, subject.reference
    accuracy = arm.row.numbers.get(UTILITY, _NOTHING)
    if arm.is_mixed:
        yield "has two runs under one seed, so they are not one experiment and have no common number"
        return
    if subject.gate.is_collapsed:
        yield f"counts as collapsed ({subject.gate.why}), so that what it does not leak says nothing"
    if reference is None or reference.name == arm.name:
        yield f"gets {_percent(accuracy)} of dialogue states wholly right"
        return
    made = subject.differences.get(UTILITY)
    usual = reference.row.numbers.get(UTILITY, _NOTHING)
    if made is None or made.estimate.value is None:
        yield f"gets {_percent(accuracy)} of dialogue states wholly right, {reference.name} {_percent(usual)}"
    else:
        yield f"{_change(made)} against {reference.name} ({_points(made)}: {_reality(made)})"
    yield from _other_utility(subject)


def _other_utility(subject: Subject) -> Iterator[str]:
    """Name other utility metrics where a difference is shown."""
    for metric, made in subject.differences.items():
        if "/" not in metric and metric != UTILITY and made.is_real and made.estimate.value is not None:
            verb = "raises" if made.conclusion == HIGHER else "lowers"
            yield f"{verb} {metric_words(metric)} by {abs(made.estimate.value) * 100:.1f} points ({_points(made)})"


def _leaks(subject: Subject) -> Iterator[str]:
    for attack, metric in _headlines(subject.arm).items():
        ours = subject.arm.row.numbers.get(metric, _NOTHING)
        if ours.value is None:
            continue  # said with the rest that was not measured
        made = subject.differences.get(metric)
        if made is not None and made.estimate.value is not None and subject.reference is not None:
            usual = subject.reference.row.numbers.get(metric, _NOTHING)
            yield _against(subject, attack, made, f"{metric_words(metric)} {_plain(usual)} -> {_plain(ours)}")
        else:
            said = " or ".join(sorted(VERDICTS[verdict] for verdict in _verdicts(subject.arm, attack)))
            yield f"{said} under {_name(attack)} ({metric_words(metric)} {_with_interval(ours)})"


def _against(subject: Subject, attack: str, made: Difference, numbers: str) -> str:
    """Say whether an arm leaks less or more than the reference; a number that chance reaches as well is no leak."""
    verdicts, usual = _verdicts(subject.arm, attack), _verdicts(subject.reference, attack)
    doubt = ", by itself without a conclusion" if "inconclusive" in verdicts else ""
    if not made.is_real:
        return f"no difference is shown under {_name(attack)} ({numbers}: {_reality(made)}{doubt})"
    if made.conclusion == HIGHER and "leak" not in verdicts:
        said = " or ".join(sorted(VERDICTS[verdict] for verdict in verdicts))
        return f"has a higher number under {_name(attack)} ({numbers}{_chance(subject.arm, attack)}), but {said}"
    if made.conclusion != HIGHER and "leak" not in usual and subject.reference is not None:
        return f"has a lower number under {_name(attack)} ({numbers}), where {subject.reference.name} shows no leak"
    verb = "leaks more" if made.conclusion == HIGHER else "gives up less" if subject.gate.is_collapsed else "leaks less"
    return f"{verb} under {_name(attack)} ({numbers}, {_reality(made)}{doubt})"


def _verdicts(arm: Arm | None, attack: str) -> set[str]:
    reports = arm.reports if arm is not None else []
    return {found.verdict for report in reports if (found := report.attacks.get(attack)) is not None}


def _chance(arm: Arm, attack: str) -> str:
    """Name the control that stands beside a headline."""
    headline = _headlines(arm)[attack]
    found = (arm.row.numbers.get(f"{headline}/{label}") for label in ("nonmembers", "base"))
    point = next((point for point in found if point is not None and point.value is not None), None)
    return "" if point is None else f"; chance {_plain(point)}"


def _unmeasured(subject: Subject) -> Iterator[str]:
    """Say what was not measured, once for each reason."""
    reasons: dict[str, list[str]] = {}
    for metric, made in subject.differences.items():
        is_told = "/" in metric or metric == UTILITY  # other utility metrics stand in the table
        if made.estimate.value is None and is_told:
            what = _name(metric.partition("/")[0])
            reasons.setdefault(made.estimate.method.removeprefix("not measured: "), []).append(what)
    for reason, names in reasons.items():
        yield f"differences not measured in {', '.join(names)} ({reason})"
    missing = [
        _name(attack)
        for attack, metric in _headlines(subject.arm).items()
        if subject.arm.row.numbers.get(metric, _NOTHING).value is None and metric not in subject.differences
    ]
    if missing:
        yield f"not measured: {', '.join(missing)}"


def _cost(subject: Subject) -> Iterator[str]:
    ours = training_seconds(subject.arm)
    if subject.reference is None or subject.reference.name == subject.arm.name:
        if ours:
            yield f"training took {ours:.0f} s"
        return
    usual = training_seconds(subject.reference)
    if ours and usual:
        yield f"{ours / usual:.1f} times the training time"
    elif not subject.arm.is_untrained:
        yield "training time not measured"


def _standing(subject: Subject) -> Iterator[str]:
    place = subject.place
    names = ", ".join(place.dominated_by)
    if place.front == "front":
        yield "Nothing here dominates it."
    elif names:
        yield f"{'Dominated' if place.front == 'dominated' else 'Perhaps dominated'} by {names}."
    if subject.gate.is_collapsed is None:
        yield f"Whether it is still of use cannot be judged: {subject.gate.why}."
    yield from (f"Note: {flag}." for flag in subject.flags)
    measured = [made for made in subject.differences.values() if made.p is not None]
    if measured and all(made.n_seeds == 1 for made in measured):
        yield "One seed: another training may differ."


def training_seconds(arm: Arm) -> float | None:
    """Return the mean time of training; None where a run has none."""
    seconds = [report.run.seconds.get("train") for report in arm.reports]
    known = [value for value in seconds if value is not None]
    return sum(known) / len(known) if known and len(known) == len(seconds) else None


def _headlines(arm: Arm) -> dict[str, str]:
    return {name: f"{name}/{a.headline.metric}" for r in arm.reports for name, a in r.attacks.items()}


def _name(attack: str) -> str:
    return attack.replace("_", " ")


def _change(made: Difference) -> str:
    value = (made.estimate.value or 0.0) * 100
    if abs(value) < 0.05:
        return "changes nothing in joint goal accuracy"
    return f"{'gains' if value > 0 else 'costs'} {abs(value):.1f} points of joint goal accuracy"


def _points(made: Difference) -> str:
    low, high = made.estimate.low, made.estimate.high
    return "no interval" if low is None or high is None else f"[{low * 100:+.1f}, {high * 100:+.1f}]"


def _reality(made: Difference) -> str:
    if made.is_real:
        return "difference real after Holm"
    low, high = made.estimate.low, made.estimate.high
    is_beyond = low is not None and high is not None and not low <= 0 <= high
    return "not shown after Holm" if is_beyond else "within noise"


def _plain(point: Point) -> str:
    return "not measured" if point.value is None else f"{point.value:.3f}"


def _with_interval(point: Point) -> str:
    if point.low is None or point.high is None:
        return _plain(point)
    return f"{_plain(point)} [{point.low:.3f}, {point.high:.3f}]"


def _percent(point: Point) -> str:
    if point.value is None:
        return "a share that was not measured"
    ends = "" if point.low is None or point.high is None else f" ([{point.low:.0%}, {point.high:.0%}])"
    return f"{point.value:.0%}{ends}"
