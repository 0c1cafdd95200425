"""Charts for the page: numbers in, SVG out, without a library and without a colour of their own.

Guarantees: every text is escaped, so that no label can act as markup; colours, line widths and fonts come from the
page's stylesheet by class, so that a chart can be read on light and on dark paper; a number that was not measured is
not drawn, and neither is one that a logarithmic axis cannot hold; no style attribute and no script, so that the page
may forbid both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

WIDTH, HEIGHT = 440.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 14.0, 12.0, 46.0
"""Room for the labels around the plot."""
SHAPES = ("circle", "square", "triangle", "diamond", "bolt")
"""Marks of one colour are told apart by shape."""
N_TONES = 8
"""Colours of arms in the stylesheet; more arms than that share them and differ by shape."""
_MOST_TICKS = 6
_STEP = 0.5
"""Marks nearer than this many pixels to the one before are one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows, from where to where."""

    label: str
    low: float
    high: float
    is_log: bool = False
    ticks: tuple[float, ...] = ()
    """Where to put numbers; none given: round numbers."""

    def at(self, value: float, start: float, length: float) -> float:
        """Return the pixel of a value; values beyond the ends stand at the ends."""
        low, high, v = (math.log10(x) for x in self._logged(value)) if self.is_log else (self.low, self.high, value)
        share = (v - low) / (high - low) if high > low else 0.5
        return start + length * min(1.0, max(0.0, share))

    def _logged(self, value: float) -> tuple[float, float, float]:
        return self.low, self.high, max(value, self.low)

    @property
    def numbers(self) -> tuple[float, ...]:
        """Return where numbers stand."""
        if self.ticks:
            return self.ticks
        return log_ticks(self.low, self.high) if self.is_log else linear_ticks(self.low, self.high)


class Mark(NamedTuple):
    """One measured point."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    tip: str = ""
    """What is said when somebody points at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve."""

    label: str
    marks: Sequence[Mark]
    tone: str
    """Class of the stylesheet that gives the colour: `member`, `nonmember`, `base`, `arm0`."""
    dash: str = "solid"
    """`solid`, `dashed` or `dotted`."""
    is_step: bool = False
    """Whether the curve keeps its height until the next point (what a threshold can reach)."""
    has_marks: bool = True
    shape: str = "circle"
    arm: int | None = None
    """Which arm it is of, where the legend shows and hides arms."""


def linear_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return round numbers in [low, high], at most six of them."""
    if not high > low:
        return (low,)
    raw = (high - low) / (_MOST_TICKS - 1)
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return tuple(round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the powers of ten in [low, high]; where those are few, twice and five times them too."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high / low > 1000 else (1, 2, 5)
    return tuple(f * 10.0**p for p in powers for f in factors if low * 0.999 <= f * 10.0**p <= high * 1.001)


def number_text(value: float) -> str:
    """Write a tick's number shortly."""
    return f"{value:.6g}"


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis, *, chance: str = "") -> Markup:
    """Draw curves with their intervals and a legend; `chance` is `diagonal`, or a number at which a line stands."""
    drawn = Markup("").join(_curve(line, x, y) for line in lines)
    return figure(title, frame(x, y) + _chance(chance, x, y) + drawn, legend(lines, chance))


def figure(title: str, content: Markup, key: Markup | None = None, *, height: float = HEIGHT) -> Markup:
    """Put a drawing and its legend under a caption."""
    return Markup(
        '<figure><figcaption>{0}</figcaption><svg class="chart" viewBox="0 0 {1:g} {2:g}" role="group" '
        'aria-label="{0}">{3}</svg>{4}</figure>'
    ).format(title, WIDTH, height, content, key or Markup(""))


def frame(x: Axis, y: Axis) -> Markup:
    """Draw axes, grid and labels."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in x.numbers:
        at = across(x, value)
        parts.append(Markup('<path class="grid" d="M{0:.1f} {1:g}V{2:g}"/>').format(at, TOP, bottom))
        parts.append(_text(at, bottom + 15, number_text(value), "middle"))
    for value in y.numbers:
        at = up(y, value)
        parts.append(Markup('<path class="grid" d="M{0:g} {1:.1f}H{2:g}"/>').format(LEFT, at, right))
        parts.append(_text(LEFT - 6, at + 4, number_text(value), "end"))
    parts.append(Markup('<path class="frame" d="M{0:g} {1:g}V{2:g}H{3:g}"/>').format(LEFT, TOP, bottom, right))
    parts.append(_text((LEFT + right) / 2, HEIGHT - 10, x.label, "middle"))
    middle = (TOP + bottom) / 2
    parts.append(
        Markup(
            '<text class="label" text-anchor="middle" transform="translate(13 {0:g}) rotate(-90)">{1}</text>'
        ).format(middle, y.label)
    )
    return Markup("").join(parts)


def across(axis: Axis, value: float) -> float:
    """Return the pixel of a value on the horizontal axis."""
    return axis.at(value, LEFT, WIDTH - LEFT - RIGHT)


def up(axis: Axis, value: float) -> float:
    """Return the pixel of a value on the vertical axis."""
    return axis.at(value, HEIGHT - BOTTOM, TOP + BOTTOM - HEIGHT)


def bar(at: float, low: float, high: float, *, is_flat: bool = False) -> Markup:
    """Draw an interval: a stroke with a cap at each end."""
    if is_flat:
        ends = f"M{low:.1f} {at - 3:.1f}v6M{low:.1f} {at:.1f}H{high:.1f}M{high:.1f} {at - 3:.1f}v6"
    else:
        ends = f"M{at - 3:.1f} {low:.1f}h6M{at:.1f} {low:.1f}V{high:.1f}M{at - 3:.1f} {high:.1f}h6"
    return Markup('<path class="bar" d="{}"/>').format(ends)


def shape_path(shape: str, x: float, y: float, size: float) -> str:
    """Return the outline of a mark around a point."""
    r = size
    if shape == "circle":
        return f"M{x - r:.1f} {y:.1f}a{r:g} {r:g} 0 1 0 {2 * r:g} 0a{r:g} {r:g} 0 1 0 {-2 * r:g} 0z"
    corners = {
        "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
        "triangle": ((0, -1.15), (1.1, 0.85), (-1.1, 0.85)),
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "bolt": ((-1.1, -0.85), (1.1, -0.85), (0, 1.15)),
    }[shape]
    return "M" + "L".join(f"{x + r * a:.1f} {y + r * b:.1f}" for a, b in corners) + "z"


def legend(lines: Sequence[Line], chance: str = "") -> Markup:
    """Return the legend as a list; lines of one name have one entry, and so have the controls of all arms."""
    entries = [_entry(*_key(line)) for line in lines]
    entries += [_entry("chance", "", "chance")] if chance else []
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(dict.fromkeys(entries)))


def _key(line: Line) -> tuple[str, str, str]:
    """Return what a legend says of a line; a control of an arm has its arm's colour, which says nothing of it."""
    is_arms_control = line.arm is not None and line.dash == "dashed"
    return ("any" if is_arms_control else line.tone, line.dash, line.label)


def _entry(tone: str, dash: str, label: str) -> Markup:
    swatch = Markup(
        '<svg class="swatch" viewBox="0 0 26 12" aria-hidden="true"><path class="curve" d="M1 6H25"/></svg>'
    )
    return Markup('<li class="{0} {1}">{2} {3}</li>').format(tone, dash, swatch, label)


def _curve(line: Line, x: Axis, y: Axis) -> Markup:
    points = [mark for mark in line.marks if _can_hold(x, mark.x) and _is_finite(mark.y)]
    if not points:
        return Markup("")
    pixels = list(_thinned((across(x, mark.x), up(y, mark.y)) for mark in points))
    path = Markup('<path class="curve" d="{}"/>').format(_path(pixels, is_step=line.is_step))
    bars = Markup("").join(
        bar(across(x, mark.x), up(y, mark.low), up(y, mark.high))
        for mark in points
        if line.has_marks and mark.low is not None and mark.high is not None
    )
    dots = Markup("").join(_dot(line, x, y, mark) for mark in points if line.has_marks)
    of_arm = "" if line.arm is None else Markup(' data-arm="{}"').format(line.arm)
    return Markup('<g class="{0} {1}"{2}>{3}{4}{5}</g>').format(line.tone, line.dash, of_arm, bars, path, dots)


def _dot(line: Line, x: Axis, y: Axis, mark: Mark) -> Markup:
    tip = Markup(' data-tip="{}"').format(mark.tip) if mark.tip else ""
    outline = shape_path(line.shape, across(x, mark.x), up(y, mark.y), 3.5)
    return Markup('<path class="dot"{0} d="{1}"/>').format(tip, outline)


def _path(pixels: Sequence[tuple[float, float]], *, is_step: bool) -> str:
    (x, y), *rest = pixels
    if is_step:
        return f"M{x:.1f} {y:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in rest)
    return f"M{x:.1f} {y:.1f}" + "".join(f"L{a:.1f} {b:.1f}" for a, b in rest)


def _thinned(pixels: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Leave out what would fall on the point before it; the last point stays."""
    last: tuple[float, float] | None = None
    left: tuple[float, float] | None = None
    for point in pixels:
        if last is None or max(abs(point[0] - last[0]), abs(point[1] - last[1])) >= _STEP:
            yield point
            last, left = point, None
        else:
            left = point
    if left is not None:
        yield left


def _chance(chance: str, x: Axis, y: Axis) -> Markup:
    if not chance:
        return Markup("")
    if chance == "diagonal":
        low, high = max(x.low, y.low), min(x.high, y.high)
        ends = (across(x, low), up(y, low), across(x, high), up(y, high))
    else:
        ends = (LEFT, up(y, float(chance)), WIDTH - RIGHT, up(y, float(chance)))
    return Markup('<path class="chance curve" d="M{0:.1f} {1:.1f}L{2:.1f} {3:.1f}"/>').format(*ends)


def _can_hold(axis: Axis, value: float) -> bool:
    return _is_finite(value) and (value > 0 or not axis.is_log)


def _is_finite(value: float) -> bool:
    return math.isfinite(value)


def _text(x: float, y: float, text: str, anchor: str) -> Markup:
    return Markup('<text class="label" x="{0:.1f}" y="{1:.1f}" text-anchor="{2}">{3}</text>').format(
        x, y, anchor, escape(text)
    )
