"""The page's trade-off plot: utility against one attack's headline, one point per run, its control beneath it.

Guarantees: every point can be reached by pointer, finger and keyboard and says the arm, the seed, both numbers with
interval and n, the control and where the arm stands; a run without either number is not drawn and is named below the
plot; arms on the front have a ring, dominated arms are faded. Where an arm stands is judged over all attacks, not over
the pair that one plot shows (`hushbot.evaluation.pareto`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from hushbot.evaluation.page_charts import N_TONES, SHAPES, Axis, across, bar, figure, frame, shape_path, up
from hushbot.evaluation.tradeoff import ALL_SEEDS, ArmRow, Point
from hushbot.evaluation.wording import NOT_MEASURED

UTILITY = "joint_goal_accuracy"
CONTROLS = ("nonmembers", "base")
_SIZE = 6.0


class Panel(NamedTuple):
    """One attack's plot."""

    attack: str
    """The column: `<attack>/<headline metric>`."""
    figure: Markup
    missing: list[str]
    """Runs that have no point, with what they lack."""


class Look(NamedTuple):
    """How an arm is drawn wherever it appears."""

    number: int
    front: str
    """As a comparison says: `front`, `dominated`, `perhaps dominated`, `not judged`."""


def looks_of(rows: Sequence[ArmRow], fronts: Mapping[str, str]) -> dict[str, Look]:
    """Give every arm a number, which is its colour and shape, in the order of the rows."""
    arms = dict.fromkeys(row.arm for row in rows if row.seed != ALL_SEEDS)
    return {arm: Look(i, fronts.get(arm, "not judged")) for i, arm in enumerate(arms)}


def tradeoff_panels(rows: Sequence[ArmRow], looks: Mapping[str, Look], utility: str = UTILITY) -> list[Panel]:
    """Return one plot per attack that any run has."""
    runs = [row for row in rows if row.seed != ALL_SEEDS]
    attacks = dict.fromkeys(column for row in runs for column in row.numbers if column.count("/") == 1)
    return [_panel(attack, runs, looks, utility) for attack in attacks]


def _panel(attack: str, runs: Sequence[ArmRow], looks: Mapping[str, Look], utility: str) -> Panel:
    drawn = [row for row in runs if not _lacking(row, attack, utility)]
    missing = [f"{_name(row)}: {lacking}" for row in runs if (lacking := _lacking(row, attack, utility))]
    if not drawn:
        return Panel(attack, Markup(""), missing)
    title = f"{utility.replace('_', ' ')} against {_words(attack)}; better is right and down"
    x = _axis([row.numbers[utility] for row in drawn], f"{utility.replace('_', ' ')} → more useful", is_tight=True)
    controls = [control for row in drawn for _, control in _controls(row, attack)]
    y = _axis([*(row.numbers[attack] for row in drawn), *controls], f"{attack.split('/')[1]} → more leakage")
    points = Markup("").join(_point(row, attack, utility, looks[row.arm], (x, y)) for row in drawn)
    return Panel(attack, figure(title, frame(x, y) + points), missing)


def _lacking(row: ArmRow, attack: str, utility: str) -> str:
    missing = [name for name in (utility, attack) if name not in row.numbers or row.numbers[name].value is None]
    return f"{' and '.join(_words(name) for name in missing)} {NOT_MEASURED}" if missing else ""


def _axis(points: Sequence[Point], label: str, *, is_tight: bool = False) -> Axis:
    ends = [end for point in points for end in (point.value, point.low, point.high) if end is not None]
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low) or 0.05
    bottom = low - room if is_tight else min(0.0, low)
    return Axis(label=label, low=max(0.0, bottom) if low >= 0 else low - room, high=high + room)


def _controls(row: ArmRow, attack: str) -> list[tuple[str, Point]]:
    found = ((label, row.numbers.get(f"{attack}/{label}")) for label in CONTROLS)
    return [(label, point) for label, point in found if point is not None and point.value is not None]


def _point(row: ArmRow, attack: str, utility: str, look: Look, axes: tuple[Axis, Axis]) -> Markup:
    useful, leak = row.numbers[utility], row.numbers[attack]
    if useful.value is None or leak.value is None:
        return Markup("")
    x, y = across(axes[0], useful.value), up(axes[1], leak.value)
    parts = [_bars(x, y, useful, leak, axes)]
    for _, control in _controls(row, attack):
        if control.value is not None:
            at = up(axes[1], control.value)
            parts.append(Markup('<path class="tie" d="M{0:.1f} {1:.1f}V{2:.1f}"/>').format(x, y, at))
            parts.append(Markup('<path class="hollow" d="{}"/>').format(shape_path("circle", x, at, 3.5)))
    if look.front == "front":
        parts.append(Markup('<path class="ring" d="{}"/>').format(shape_path("circle", x, y, _SIZE + 4)))
    outline = shape_path(SHAPES[look.number % len(SHAPES)], x, y, _SIZE)
    said = "\n".join(_said(row, attack, utility, look))
    parts.append(
        Markup('<path class="dot" tabindex="0" role="img" aria-label="{0}" data-tip="{0}" d="{1}"/>').format(
            said, outline
        )
    )
    state = "faded" if look.front == "dominated" else ""
    return Markup('<g class="arm{0} {1}" data-arm="{2}">{3}</g>').format(
        look.number % N_TONES, state, look.number, Markup("").join(parts)
    )


def _bars(x: float, y: float, useful: Point, leak: Point, axes: tuple[Axis, Axis]) -> Markup:
    drawn = Markup("")
    if useful.low is not None and useful.high is not None:
        drawn += bar(y, across(axes[0], useful.low), across(axes[0], useful.high), is_flat=True)
    if leak.low is not None and leak.high is not None:
        drawn += bar(x, up(axes[1], leak.low), up(axes[1], leak.high))
    return drawn


def _said(row: ArmRow, attack: str, utility: str, look: Look) -> list[str]:
    """Return what a point says, line by line."""
    lines = [_name(row), f"{_words(utility)}: {point_text(row.numbers[utility])}"]
    lines.append(f"{_words(attack)}: {point_text(row.numbers[attack])}")
    lines += [f"control ({label}): {point_text(point)}" for label, point in _controls(row, attack)]
    lines += [f"control: {NOT_MEASURED}"] if not _controls(row, attack) else []
    return [*lines, FRONT_WORDS[look.front]] if look.front in FRONT_WORDS else lines


FRONT_WORDS = {
    "front": "on the front: no arm beats it in all that was measured",
    "dominated": "dominated: another arm is as good in everything and better in something",
    "perhaps dominated": "perhaps dominated: the values say so, their intervals do not decide",
}


def point_text(point: Point) -> str:
    """Write a number with its interval and n."""
    if point.value is None:
        return NOT_MEASURED
    interval = f" [{point.low:.3f}, {point.high:.3f}]" if point.low is not None and point.high is not None else ""
    return f"{point.value:.3f}{interval} (n={point.n})"


def _name(row: ArmRow) -> str:
    return f"{row.arm}, seed {row.seed}"


def _words(column: str) -> str:
    return column.replace("/", ": ").replace("_", " ")
