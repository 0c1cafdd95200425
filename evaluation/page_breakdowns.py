"""Leakage taken apart by domain, slot and kind of value: dots with intervals, the controls beside them.

Guarantees: only measured numbers are drawn, and what was left out for want of room is counted. Slices are many looks at
few documents: they are exploratory, and the page says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from hushbot.evaluation.page_charts import RIGHT, WIDTH, Axis, bar, figure, linear_ticks, number_text, shape_path
from hushbot.evaluation.page_curves import SIDE_NAMES, SIDE_SHAPES, SIDES
from hushbot.evaluation.wording import show
from hushbot.types import AttackResult, Estimate, as_estimate

DIMENSIONS = {
    "domain": "domain",
    "slot": "slot",
    "kind": "kind of identifier",
    "type": "type of value",
    "category": "category",
}
"""What a part of a metric's key may name (`domain=hotel/auc`, `leak_rate/domain=hotel`), in words."""
MOST_ROWS = 40
ROW, DOT_ROOM, NAME_WIDTH = 24.0, 6.0, 150.0
_LONGEST_NAME = 24


class DotLook(NamedTuple):
    """How a dot looks, and what a legend and a hint call it."""

    label: str
    tone: str
    shape: str
    said: str = ""
    """In the hint, where it says more than the label."""
    arm: int | None = None
    """Which arm it is of, where arms can be hidden."""


SIDE_LOOKS = {side: DotLook(SIDE_NAMES[side], SIDES[side], SIDE_SHAPES[side]) for side in SIDES}

Row = tuple[str, list[tuple[DotLook, Estimate]]]


class Slice(NamedTuple):
    """One domain, slot or kind: its number on each side that has one."""

    name: str
    sides: dict[str, Estimate]


class Breakdown(NamedTuple):
    """One metric of one attack by one dimension."""

    dimension: str
    metric: str
    slices: list[Slice]

    @property
    def title(self) -> str:
        """Return what the chart shows, in words."""
        return f"{self.metric.replace('_', ' ')} by {DIMENSIONS[self.dimension]}"


def breakdowns_of(attack: AttackResult) -> Iterator[Breakdown]:
    """Yield an attack's headline metric by every dimension in which it was measured, else another rate's."""
    found: dict[tuple[str, str], dict[str, dict[str, Estimate]]] = {}
    for side, numbers in (("members", attack.metrics), *attack.control.items()):
        if side in SIDES and isinstance(numbers, Mapping):
            for dimension, name, metric, estimate in _sliced(numbers):
                found.setdefault((dimension, metric), {}).setdefault(name, {})[side] = estimate
    for dimension in DIMENSIONS:
        metrics = {metric: slices for (d, metric), slices in found.items() if d == dimension}
        chosen = _choose(attack, list(metrics))
        if chosen is not None:
            slices = [Slice(name, sides) for name, sides in metrics[chosen].items() if "members" in sides]
            yield Breakdown(dimension, chosen, sorted(slices, key=_by_value))


def _sliced(numbers: Mapping[str, object]) -> Iterator[tuple[str, str, str, Estimate]]:
    """Yield dimension, name, metric and number of every measured slice."""
    for key, number in numbers.items():
        match = re.fullmatch(rf"(?:(.+)/)?({'|'.join(DIMENSIONS)})=([^/]*)(?:/(.+))?", key)
        estimate = as_estimate(number)
        if match is None or estimate is None:
            continue
        metric = "/".join(part for part in (match[1], match[4]) if part)
        if estimate.value is not None and metric:
            yield match[2], match[3], metric, estimate


def _choose(attack: AttackResult, metrics: Sequence[str]) -> str | None:
    wanted = (attack.headline.key, attack.headline.metric)
    exact = [metric for metric in metrics if metric in wanted]
    alike = [metric for metric in metrics if metric.split("/")[-1] == attack.headline.metric]
    rates = [metric for metric in metrics if metric.split("/")[-1] in ("auc", "state_precision", "leak_rate")]
    return next(iter([*exact, *alike, *rates, *metrics]), None)


def _by_value(slice_: Slice) -> tuple[float, str]:
    value = slice_.sides["members"].value
    return (-value if value is not None else 0.0, slice_.name)


def breakdown_figure(breakdown: Breakdown) -> Markup:
    """Draw one row per slice, the largest leak first, with a dot per side."""
    shown = breakdown.slices[:MOST_ROWS]
    left_out = len(breakdown.slices) - len(shown)
    more = f" (the {len(shown)} largest; {left_out} more in the table)" if left_out else ""
    rows = [(s.name, [(SIDE_LOOKS[side], estimate) for side, estimate in s.sides.items()]) for s in shown]
    return dot_figure(breakdown.title + more, rows)


def arms_breakdown_figure(title: str, runs: Sequence[tuple[DotLook, Breakdown]]) -> Markup:
    """Draw one row per domain with a dot per run; controls stand in each run's own chart."""
    names = dict.fromkeys(slice_.name for _, breakdown in runs for slice_ in breakdown.slices)
    rows = [
        (name, [(look, s.sides["members"]) for look, breakdown in runs for s in breakdown.slices if s.name == name])
        for name in names
    ]
    return dot_figure(title, rows[:MOST_ROWS])


def dot_figure(title: str, rows: Sequence[Row]) -> Markup:
    """Draw dots with intervals, one row per name, and their legend."""
    dots = [dot for _, dots in rows for dot in dots]
    ends = [end for _, e in dots for end in (e.value, e.low, e.high) if end is not None]
    axis = Axis(label="", low=min(0.0, *ends), high=max(1.0 if max(ends) > 0.6 else max(ends) * 1.05, 0.05))
    row_height = max(ROW, DOT_ROOM * max(len(dots) for _, dots in rows) + 6)
    height = row_height * len(rows) + 28
    drawn = Markup("").join(_row(row, row_height * (i + 0.5), axis) for i, row in enumerate(rows))
    return figure(title, _grid(axis, height) + drawn, _legend([look for look, _ in dots]), height=height)


def _at(axis: Axis, value: float) -> float:
    return axis.at(value, NAME_WIDTH, WIDTH - RIGHT - NAME_WIDTH)


def _grid(axis: Axis, height: float) -> Markup:
    return Markup("").join(
        Markup(
            '<path class="grid" d="M{0:.1f} 0V{1:g}"/><text class="label" x="{0:.1f}" y="{2:g}" '
            'text-anchor="middle">{3}</text>'
        ).format(_at(axis, value), height - 22, height - 7, number_text(value))
        for value in linear_ticks(axis.low, axis.high)
    )


def _row(row: Row, middle: float, axis: Axis) -> Markup:
    name, dots = row
    short = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
    label = Markup('<text class="label" x="{0:g}" y="{1:g}" text-anchor="end">{2}</text>')
    drawn = [label.format(NAME_WIDTH - 8, middle + 4, short)]
    for j, (look, estimate) in enumerate(dots):
        drawn.append(_dot(name, look, estimate, axis, middle + DOT_ROOM * (j - (len(dots) - 1) / 2)))
    return Markup("").join(drawn)


def _dot(name: str, look: DotLook, estimate: Estimate, axis: Axis, y: float) -> Markup:
    if estimate.value is None:
        return Markup("")
    x = _at(axis, estimate.value)
    interval = Markup("")
    if estimate.low is not None and estimate.high is not None:
        interval = bar(y, _at(axis, estimate.low), _at(axis, estimate.high), is_flat=True)
    of_arm = "" if look.arm is None else Markup(' data-arm="{}"').format(look.arm)
    return Markup('<g class="{0}"{1}>{2}<path class="dot" data-tip="{3}" d="{4}"/></g>').format(
        look.tone,
        of_arm,
        interval,
        f"{name}, {look.said or look.label}: {show(estimate)}",
        shape_path(look.shape, x, y, 3.5),
    )


def _legend(looks: Sequence[DotLook]) -> Markup:
    entry = Markup(
        '<li class="{0}"><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true">'
        '<path class="dot" d="{1}"/></svg> {2}</li>'
    )
    entries = dict.fromkeys(entry.format(look.tone, shape_path(look.shape, 6, 6, 4), look.label) for look in looks)
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(entries))
