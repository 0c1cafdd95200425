"""The page's curves, read out of reports: ROC, precision among the best k, prefix length, hits among k, training.

Guarantees: a curve is drawn from measured numbers alone, each with its interval where it has one; controls are drawn
beside what they control; a ROC curve is made of the report's own scores per document and shows only rates that a
threshold can reach; its axes begin at the smallest rate that so many documents can show. Scores that could not be had
are left out and counted in the caption.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from hushbot.evaluation.page_charts import N_TONES, SHAPES, Axis, Line, Mark, line_chart
from hushbot.evaluation.wording import show
from hushbot.types import AttackResult, AuditReport, Estimate, TrainingEpoch, Units, as_estimate


class Family(NamedTuple):
    """Metrics that differ by one number in their key: `hit@1`, `hit@2`, ... are a curve."""

    metric: str
    sign: str
    """What stands between the metric and the number."""
    title: str
    x_label: str
    is_log: bool


FAMILIES = (
    Family("state_precision", "@", "Precision among the best k candidates", "k, best first", True),
    Family("state_precision", "/l=", "Precision by prefix length", "triplets that the attacker knows", False),
    Family("hit", "@", "Identifiers found in at least one of k samples (hit@k)", "k samples", True),
    Family("extractable", "@", "Documents extractable with n samples", "n samples", True),
    Family("slot_recall", "@", "Slots found", "questions asked", True),
)
SIDES = {"members": "member", "nonmembers": "nonmember", "base": "base"}
"""Whose numbers a line shows, and its class in the stylesheet."""
DASHES = {"members": "solid", "nonmembers": "dashed", "base": "dotted"}
SIDE_SHAPES = {"members": "circle", "nonmembers": "square", "base": "triangle"}
SIDE_NAMES = {"members": "members", "nonmembers": "control: non-members", "base": "control: base model"}
SCORED = ("auc", "tpr_at_1pct_fpr")
ONE_PERCENT = 0.01

Numbers = Mapping[str, object]


class Curve(NamedTuple):
    """One family's numbers under one stem, for each side that has any."""

    family: Family
    stem: str
    """What stands before the metric: decoder and ranking, or method and temperature."""
    sides: dict[str, list[tuple[float, Estimate]]]


def curves_of(attack: AttackResult) -> Iterator[Curve]:
    """Yield every curve of an attack, under its headline's stem where there are several."""
    for family in FAMILIES:
        found = {
            side: points_of(family, numbers)
            for side, numbers in (("members", attack.metrics), *attack.control.items())
            if side in SIDES and isinstance(numbers, Mapping)
        }
        stem = _stem(attack, {stem: points for stem, points in found["members"].items() if len(points) > 1})
        if stem is not None:
            yield Curve(family, stem, {side: stems[stem] for side, stems in found.items() if stem in stems})


def points_of(family: Family, numbers: Numbers) -> dict[str, list[tuple[float, Estimate]]]:
    """Return the family's measured numbers by stem, in order."""
    pattern = re.compile(rf"(?:(.*)/)?{re.escape(family.metric)}{re.escape(family.sign)}(\d+)")
    points: dict[str, list[tuple[float, Estimate]]] = {}
    for key, number in numbers.items():
        match = pattern.fullmatch(key)
        estimate = as_estimate(number)
        if match is None or estimate is None:
            continue
        if estimate.value is not None:
            points.setdefault(match[1] or "", []).append((float(match[2]), estimate))
    return {stem: sorted(line, key=lambda point: point[0]) for stem, line in points.items()}


def _stem(attack: AttackResult, stems: Mapping[str, object]) -> str | None:
    """Choose the headline's stem; without its key the score that attacks judge by unless told otherwise."""
    key = attack.headline.key or ""
    # A stem may say more than the headline's, `greedy/none` beside `greedy/none/state_precision`.
    own = [stem for stem in stems if stem and (key.startswith(f"{stem}/") or stem.startswith(key.rpartition("/")[0]))]
    judged = [stem for stem in stems if "dc_ppl" in stem]
    return next(iter([*own, *judged, *stems]), None)


def curve_figure(curve: Curve) -> Markup:
    """Draw one attack's curve of one run, its controls beside it."""
    lines = [side_line(side, points) for side, points in curve.sides.items()]
    family = curve.family
    title = f"{family.title} ({curve.stem})" if curve.stem else family.title
    return line_chart(title, lines, _x_axis(family, lines), share_axis(lines, family.metric.replace("_", " ")))


def side_line(side: str, points: Sequence[tuple[float, Estimate]]) -> Line:
    """Return one side's numbers as a line."""
    name = SIDE_NAMES[side]
    marks = [Mark(x, e.value, e.low, e.high, f"{name}, at {x:g}: {show(e)}") for x, e in points if e.value is not None]
    return Line(label=name, marks=marks, tone=SIDES[side], dash=DASHES[side], shape=SIDE_SHAPES[side])


def arms_figure(title: str, curves: Sequence[tuple[ArmMark, Curve]]) -> Markup:
    """Draw one family's curve of several runs, each with its non-members as a dashed line in its arm's colour."""
    lines = [
        _arm_line(mark, side, points)
        for mark, curve in curves
        for side, points in curve.sides.items()
        if side != "base"
    ]
    family = curves[0][1].family
    return line_chart(title, lines, _x_axis(family, lines), share_axis(lines, family.metric.replace("_", " ")))


class ArmMark(NamedTuple):
    """Whose line it is among those of several runs."""

    number: int
    arm: str
    run: str
    """The arm and the seed."""

    @property
    def tone(self) -> str:
        """Return the class of the arm's colour."""
        return f"arm{self.number % N_TONES}"


def _arm_line(mark: ArmMark, side: str, points: Sequence[tuple[float, Estimate]]) -> Line:
    is_control = side != "members"
    return Line(
        label=SIDE_NAMES[side] if is_control else mark.arm,
        marks=[Mark(x, e.value, tip=f"{mark.run}, at {x:g}: {show(e)}") for x, e in points if e.value is not None],
        tone=mark.tone,
        dash="dashed" if is_control else "solid",
        shape=SHAPES[mark.number % len(SHAPES)],
        has_marks=not is_control,
        arm=mark.number,
    )


def _x_axis(family: Family, lines: Sequence[Line]) -> Axis:
    values = sorted({mark.x for line in lines for mark in line.marks})
    ticks = tuple(values) if len(values) <= 8 else ()
    low, high = values[0], values[-1]
    if family.is_log:
        return Axis(label=family.x_label, low=low, high=max(high, low * 2), is_log=True, ticks=ticks)
    return Axis(label=family.x_label, low=low - 0.2, high=high + 0.2, ticks=ticks)


def share_axis(lines: Sequence[Line], label: str) -> Axis:
    """Return an axis from 0 to what the numbers and their intervals need; a share never needs more than 1."""
    tops = [y for line in lines for mark in line.marks for y in (mark.y, mark.high) if y is not None]
    return Axis(
        label=label, low=0.0, high=max([0.05, *(top * 1.05 for top in tops)]) if max(tops) < 0.95 else max(tops)
    )


# ROC


class Roc(NamedTuple):
    """The operating points that an attack's scores can reach."""

    false_rates: list[float]
    true_rates: list[float]
    n_members: int
    n_nonmembers: int
    n_missing: int


def roc_of(units: Units | None) -> Roc | None:
    """Return the curve of members against non-members; None where there are no scores of both sides."""
    if units is None or units.rule not in SCORED or units.sides is None:
        return None
    from sklearn.metrics import roc_curve  # slow to import, and only pages with scores need it

    judged = [(v, s == "member") for v, s in zip(units.values, units.sides, strict=True) if s != "calibration"]
    known = [(v, is_member) for v, is_member in judged if v is not None and math.isfinite(v)]
    n_members = sum(is_member for _, is_member in known)
    if not known or n_members in (0, len(known)):
        return None
    # Vertices on a straight line are no steps of less use: they are what a threshold can reach.
    false_rates, true_rates, _ = roc_curve([m for _, m in known], [v for v, _ in known], drop_intermediate=False)
    return Roc(
        [float(rate) for rate in false_rates],
        [float(rate) for rate in true_rates],
        n_members,
        len(known) - n_members,
        len(judged) - len(known),
    )


def roc_figure(title: str, curves: Sequence[tuple[Line, Roc]]) -> Markup:
    """Draw ROC curves on logarithmic axes, from the smallest rate that the documents can show."""
    x_low = min(1 / roc.n_nonmembers for _, roc in curves)
    y_low = min(1 / roc.n_members for _, roc in curves)
    x = Axis(label="false-positive rate (non-members called)", low=min(x_low, 0.5), high=1.0, is_log=True)
    y = Axis(label="true-positive rate (members called)", low=min(y_low, 0.5), high=1.0, is_log=True)
    return line_chart(title, [line for line, _ in curves], x, y, chance="diagonal")


def roc_line(roc: Roc, label: str, tone: str, *, arm: int | None = None) -> Line:
    """Return a curve as steps: between two thresholds there is nothing to reach.

    On a logarithmic axis a false-positive rate of 0 has no place: the curve begins at one of n non-members, with what
    is reached by calling no more than that one.
    """
    left = 1 / roc.n_nonmembers
    marks: list[Mark] = []
    for false_rate, true_rate in zip(roc.false_rates, roc.true_rates, strict=True):
        at = max(false_rate, left)
        if marks and marks[-1].x == at:
            marks.pop()
        marks.append(Mark(at, true_rate))
    return Line(label=label, marks=marks, tone=tone, is_step=True, has_marks=False, arm=arm)


def roc_label(name: str, roc: Roc) -> str:
    """Write whose curve it is, and of how many."""
    missing = f", {roc.n_missing} scores could not be had" if roc.n_missing else ""
    return f"{name} ({roc.n_members} members, {roc.n_nonmembers} non-members{missing})"


# Training


def training_figures(report: AuditReport) -> list[Markup]:
    """Draw the losses, and what was measured during training: utility and leakage on one axis."""
    if not report.training:
        return []
    losses = [
        _epoch_line("training loss", "arm0", "solid", report.training, lambda epoch: epoch.training_loss),
        _epoch_line("calibration loss", "arm1", "dashed", report.training, lambda epoch: epoch.calibration_loss),
    ]
    figures = _figure_of_epochs("Loss per supervised token", "loss", losses)
    names = dict.fromkeys(name for epoch in report.training for name in epoch.measured)
    measured = [_measured_line(i, name, report.training) for i, name in enumerate(names)]
    shares = [line for line in measured if all(0 <= mark.y <= 1 for mark in line.marks)]
    others = [line for line in measured if line not in shares]
    figures += _figure_of_epochs("Utility and leakage during training", "rate", shares)
    figures += [figure for line in others for figure in _figure_of_epochs(line.label, "value", [line])]
    return figures


def _figure_of_epochs(title: str, y_label: str, lines: Sequence[Line]) -> list[Markup]:
    drawn = [line for line in lines if line.marks]
    if not drawn:
        return []
    epochs = sorted({mark.x for line in drawn for mark in line.marks})
    x = Axis(
        label="epochs trained",
        low=min(0.0, epochs[0]),
        high=max(epochs[-1], 1.0),
        ticks=tuple(epochs) if len(epochs) <= 8 else (),
    )
    return [line_chart(title, drawn, x, _spread_axis(drawn, y_label))]


def _spread_axis(lines: Sequence[Line], label: str) -> Axis:
    ends = [y for line in lines for mark in line.marks for y in (mark.y, mark.low, mark.high) if y is not None]
    return Axis(label=label, low=min(0.0, *ends), high=max(*ends, 0.05) * (1.0 if max(ends) == 1 else 1.05))


def _epoch_line(
    label: str,
    tone: str,
    dash: str,
    epochs: Sequence[TrainingEpoch],
    value: Callable[[TrainingEpoch], float | None],
) -> Line:
    marks = []
    for epoch in epochs:
        y = value(epoch)
        if y is not None:
            marks.append(Mark(float(epoch.epoch), y, tip=f"{label} after epoch {epoch.epoch}: {y:.4g}"))
    return Line(label=label, marks=marks, tone=tone, dash=dash)


def _measured_line(i: int, name: str, epochs: Sequence[TrainingEpoch]) -> Line:
    marks = []
    for epoch in epochs:
        e = epoch.measured.get(name)
        if e is not None and e.value is not None:
            tip = f"{name} after epoch {epoch.epoch}: {show(e)}"
            marks.append(Mark(float(epoch.epoch), e.value, e.low, e.high, tip))
    dash = "dashed" if "/" in name else "solid"  # what names an attack is leakage
    return Line(
        label=name, marks=marks, tone=f"arm{(i + 2) % 8}", dash=dash, shape="square" if "/" in name else "circle"
    )
