"""The figures of a reproduction, drawn from its numbers.

Guarantees: what was not measured is not drawn, and a figure without any measured number says so; intervals are bars,
chance lines hollow marks (dashed where there are lines), the paper's printed numbers crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hushbot.evaluation.reproduction import FIGURES, Number
from hushbot.evaluation.tradeoff import COLOURS
from hushbot.types import Estimate, Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part: TypeAlias = Literal["row", "column", "metric"]
MARKS = "osD^vP*X"
N_COLUMNS = 3


def draw(name: str, numbers: Sequence[Number]) -> Figure:
    """Draw one table or figure by its name."""
    shown = [each for each in numbers if _value(each.ours) is not None]
    if not shown:
        return _empty(f"{name}: not measured in this run")
    return _DRAWN[name](shown)


def _empty(text: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 2), layout="constrained")
    figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure


def _panels(names: Sequence[str], width: float) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    columns = min(N_COLUMNS, len(names))
    rows = -(-len(names) // columns)
    figure = Figure(figsize=(width * columns, 3.4 * rows + 0.6), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(name.replace("_", " "), fontsize=10)
        axis.grid(alpha=0.3)
    return figure, axes[: len(names)]


def _legend(figure: Figure, axes: Sequence[Any]) -> None:
    unique: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        unique |= dict(zip(labels, handles, strict=True))
    if unique:
        figure.legend(
            list(unique.values()), list(unique), loc="outside lower center", ncols=4, frameon=False, fontsize=8
        )


def lines(numbers: Sequence[Number], panel: Part, series: Part, xlabel: str, *, is_log: bool = False) -> Figure:
    """Draw numbers along their columns: a panel each per one part, a line each per another."""
    panels = _distinct(numbers, panel)
    names = _distinct(numbers, series)
    figure, axes = _panels(panels, 4.4)
    for axis, wanted in zip(axes, panels, strict=True):
        mine = [each for each in numbers if getattr(each, panel) == wanted]
        places = [float(each.column) for each in mine]
        span = max(places) - min(places)
        for i, name in enumerate(names):
            chosen = [each for each in mine if getattr(each, series) == name]
            chosen.sort(key=lambda each: float(each.column))
            # Error bars of several lines at one place would hide each other.
            aside = i - (len(names) - 1) / 2
            xs = [float(each.column) for each in chosen]
            _line(axis, chosen, [x * 1.02**aside if is_log else x + 0.008 * aside * span for x in xs], name, i)
        axis.set_xlabel(xlabel)
        if is_log:
            axis.set_xscale("log")
        axis.margins(0.05)
    _legend(figure, axes)
    return figure


def _line(axis: Any, chosen: Sequence[Number], xs: Sequence[float], name: str, i: int) -> None:
    colour, mark = COLOURS[i % len(COLOURS)], MARKS[(i // len(COLOURS) + i) % len(MARKS)]
    if chosen:
        axis.errorbar(
            xs,
            [_value(each.ours) for each in chosen],
            yerr=_bars(chosen),
            color=colour,
            marker=mark,
            markersize=4,
            capsize=2,
            linewidth=1,
            label=name.replace("_", " "),
        )
    lined = [(x, y) for x, each in zip(xs, chosen, strict=True) if (y := _value(each.chance)) is not None]
    if lined:
        axis.plot(
            *zip(*lined, strict=True),
            color=colour,
            marker=mark,
            markersize=4,
            markerfacecolor="white",
            linestyle="--",
            linewidth=0.8,
            alpha=0.8,
        )


def bars(numbers: Sequence[Number]) -> Figure:
    """Draw a panel per metric, a group of bars per row, a bar per column."""
    panels, groups, series = (_distinct(numbers, part) for part in ("metric", "row", "column"))
    figure, axes = _panels(panels, max(4.4, 0.7 * len(groups) + 1.5))
    width = 0.8 / len(series)
    for axis, metric in zip(axes, panels, strict=True):
        for i, column in enumerate(series):
            chosen = [each for each in numbers if (each.metric, each.column) == (metric, column)]
            places = [groups.index(each.row) + (i - (len(series) - 1) / 2) * width for each in chosen]
            if chosen:
                _bar_series(axis, chosen, places, width, COLOURS[i % len(COLOURS)])
        axis.set_xticks(range(len(groups)), [name.replace("_", " ") for name in groups], rotation=40, ha="right")
        axis.tick_params(labelsize=8)
    _legend(figure, axes)
    return figure


def _bar_series(axis: Any, chosen: Sequence[Number], places: Sequence[float], width: float, colour: str) -> None:
    values = [_value(each.ours) for each in chosen]
    axis.bar(
        places, values, width, yerr=_bars(chosen), color=colour, capsize=2, error_kw={"linewidth": 0.8},
        label=chosen[0].column.replace("_", " "),
    )  # fmt: skip
    for label, mark, found in (
        ("chance line", {"marker": "o", "facecolors": "white", "edgecolors": "black"}, [e.chance for e in chosen]),
        ("the paper", {"marker": "x", "color": "black"}, [e.paper for e in chosen]),
    ):
        points = [(x, y) for x, y in zip(places, map(_value, found), strict=True) if y is not None]
        if points:
            axis.scatter(*zip(*points, strict=True), s=18, zorder=3, linewidths=1, label=label, **mark)


def histograms(numbers: Sequence[Number]) -> Figure:
    """Draw how scores are distributed: a panel per score, members' states against the others, each as shares."""
    panels = _distinct(numbers, "row")
    figure, axes = _panels(panels, 4.4)
    for axis, name in zip(axes, panels, strict=True):
        chosen = [each for each in numbers if each.row == name]
        x = [float(each.column) for each in chosen]
        for label, counts, colour in (
            ("members' states", [_value(each.ours) or 0.0 for each in chosen], COLOURS[1]),
            ("other states", [_value(each.chance) or 0.0 for each in chosen], COLOURS[0]),
        ):
            total = sum(counts)
            if total:
                shares = [count / total for count in counts]
                axis.fill_between(x, shares, step="mid", alpha=0.35, color=colour, label=label)
                axis.step(x, shares, where="mid", color=colour, linewidth=1)
        axis.set_xlabel(name.replace("_", " "))
        axis.set_ylabel("share of completions")
    _legend(figure, axes)
    return figure


def _curves(numbers: Sequence[Number]) -> Figure:
    split = [each._replace(metric=each.row.split("/")[0], row=each.row.split("/")[1]) for each in numbers]
    return lines(split, "metric", "row", "best k, state precision", is_log=True)


def _settings(numbers: Sequence[Number]) -> Figure:
    return lines([n for n in numbers if n.metric in ("states", "values")], "row", "metric", "setting")


_DRAWN: dict[str, Callable[[Sequence[Number]], Figure]] = {
    **dict.fromkeys(("table2", "table3", "table4", "fig10", "fig12"), bars),
    **dict.fromkeys(("fig4", "fig5"), lambda numbers: lines(numbers, "metric", "row", "temperature")),
    **dict.fromkeys(
        ("fig6", "fig8", "fig9"), lambda numbers: lines(numbers, "metric", "row", "triplets in the prefix")
    ),
    "fig7": _settings,
    "fig11": histograms,
    "curve": _curves,
}
if missing := FIGURES.keys() - _DRAWN.keys():
    raise TypeError(f"no drawing for {', '.join(sorted(missing))}")


def _distinct(numbers: Sequence[Number], part: Part) -> list[str]:
    return list(dict.fromkeys(str(getattr(each, part)) for each in numbers))


def _value(metric: Metric) -> float | None:
    found = metric.value if isinstance(metric, Estimate) else metric
    return None if found is None else float(found)


def _bars(chosen: Sequence[Number]) -> list[list[float]] | None:
    """Return the lengths of error bars, 0 where a number has no interval; None where none has one."""
    ends = [(e.ours.value, e.ours.low, e.ours.high) if isinstance(e.ours, Estimate) else (0, 0, 0) for e in chosen]
    lengths = [
        (0.0, 0.0) if value is None or low is None or high is None else (max(0.0, value - low), max(0.0, high - value))
        for value, low, high in ends
    ]
    return [list(side) for side in zip(*lengths, strict=True)] if any(map(any, lengths)) else None
