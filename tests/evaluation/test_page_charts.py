"""Charts: where points stand, what is left out, and that no text becomes markup."""

from __future__ import annotations

import re

import pytest

from hushbot.evaluation.page_charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SHAPES,
    TOP,
    WIDTH,
    Axis,
    Line,
    Mark,
    across,
    line_chart,
    linear_ticks,
    log_ticks,
    shape_path,
    up,
)


def test_ticks_are_round_and_within() -> None:
    assert linear_ticks(0, 1) == (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert linear_ticks(0.13, 0.37) == (0.15, 0.2, 0.25, 0.3, 0.35)
    assert linear_ticks(2, 2) == (2,)
    assert log_ticks(0.001, 1) == pytest.approx((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1))
    assert log_ticks(1e-4, 1) == pytest.approx((1e-4, 1e-3, 1e-2, 1e-1, 1))


def test_values_stand_where_they_belong() -> None:
    flat, log = Axis(label="", low=0, high=10), Axis(label="", low=0.01, high=1, is_log=True)
    inner = WIDTH - LEFT - RIGHT
    assert across(flat, 2.5) == LEFT + inner / 4
    assert across(log, 0.1) == pytest.approx(LEFT + inner / 2)
    assert up(flat, 0) == HEIGHT - BOTTOM
    assert up(flat, 10) == TOP
    assert across(flat, 99) == LEFT + inner  # beyond the end stands at the end
    assert up(log, 0) == HEIGHT - BOTTOM  # and so does what has no logarithm


def line(*marks: Mark, label: str = "a", is_step: bool = False, has_marks: bool = True) -> Line:
    return Line(label=label, marks=marks, tone="arm0", is_step=is_step, has_marks=has_marks)


def drawn(*lines: Line, x: Axis | None = None) -> str:
    axis = Axis(label="y", low=0, high=1)
    return str(line_chart("title", lines, x or axis, axis))


def test_a_step_keeps_its_height_until_the_next_point() -> None:
    text = drawn(line(Mark(0, 0.5), Mark(1, 1), is_step=True, has_marks=False))
    assert 'd="M58.0 133.0H426.0V12.0"' in text
    assert 'd="M58.0 133.0L426.0 12.0"' in drawn(line(Mark(0, 0.5), Mark(1, 1), has_marks=False))


def test_an_interval_is_drawn_where_there_is_one() -> None:
    assert drawn(line(Mark(0.5, 0.5, 0.25, 0.75))).count('class="bar"') == 1
    assert drawn(line(Mark(0.5, 0.5))).count('class="bar"') == 0


def test_what_an_axis_cannot_hold_is_left_out() -> None:
    log = Axis(label="x", low=0.01, high=1, is_log=True)
    assert drawn(line(Mark(0, 0.5), Mark(0.1, 0.5)), x=log).count('class="dot"') == 1
    assert 'class="curve"' not in drawn(line(Mark(0, 0.5)), x=log).split("legend")[0]
    assert drawn(line(Mark(0.5, float("nan")), Mark(0.5, 0.5))).count('class="dot"') == 1


def test_points_on_one_pixel_are_one_and_the_last_one_stays() -> None:
    crowd = [Mark(i / 100_000, i / 100_000) for i in range(100_001)]
    path = re.findall(r'class="curve" d="(M[^"]*)"', drawn(line(*crowd, has_marks=False)))[0]
    assert path.count("L") < 800
    assert path.endswith("L426.0 12.0")


def test_no_text_becomes_markup_and_every_curve_has_one_entry_in_the_legend() -> None:
    text = drawn(line(Mark(0.5, 0.5, tip='"><b>'), label="<b>"), line(Mark(0.5, 0.5), label="<b>"))
    assert "<b>" not in text
    assert text.count("&lt;b&gt;</li>") == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_closed_and_around_its_point(shape: str) -> None:
    path = shape_path(shape, 100, 50, 4)
    assert path.startswith("M")
    assert path.endswith("z")
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.split("a")[0])]
    assert all(abs(x - 100) <= 6 for x in numbers[::2])
    assert all(abs(y - 50) <= 6 for y in numbers[1::2])
