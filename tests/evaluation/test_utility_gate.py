"""An arm that lost its use is said to have, and what cannot be judged is not let through."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from hushbot.evaluation.comparisons import ComparisonSettings, compare_arms
from hushbot.types import AuditReport, Estimate

FAST = ComparisonSettings(n_draws=200)


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = neighbour("test_comparisons")
run, first, JGA = made.run, made.first, made.JGA


def collapsed(*reports: AuditReport, settings: ComparisonSettings = FAST) -> dict[str, bool | None]:
    return {standing.arm: standing.is_collapsed for standing in compare_arms(reports, settings).standings}


def test_the_upper_end_must_lie_below_the_floor() -> None:
    """The reference has 0.75, so the floor is 0.375; intervals reach 0.05 up."""
    usual = run("turn_level", first(30))
    assert collapsed(usual, run("a", first(12)))["a"] is True  # 0.30, at most 0.35
    assert collapsed(usual, run("a", first(14)))["a"] is False  # 0.35, perhaps 0.40
    lower = ComparisonSettings(floor=0.4, n_draws=200)
    assert collapsed(usual, run("a", first(12)), settings=lower)["a"] is False


def test_nobody_is_of_use_who_is_no_better_than_the_untrained_base() -> None:
    base, usual = run("base", first(20)), run("turn_level", first(30))
    found = collapsed(base, usual, run("a", first(20)), run("b", first(21)))
    assert (found["a"], found["b"], found["turn_level"]) == (True, False, False)


def test_what_was_not_measured_cannot_be_judged() -> None:
    assert collapsed(run("turn_level", first(30)), run("a", None))["a"] is None
    assert collapsed(run("turn_level", None), run("a", first(30)))["a"] is None
    no_interval = run("a", first(30)).model_copy(update={"utility": {JGA: Estimate(value=0.75, n=9)}})
    assert collapsed(run("turn_level", first(30)), no_interval)["a"] is None


def test_a_reference_of_no_use_is_no_yardstick() -> None:
    found = collapsed(run("base", first(20)), run("turn_level", first(10)), run("a", first(30)))
    assert (found["turn_level"], found["a"]) == (True, None)
    assert collapsed(run("turn_level", [0.0] * made.N), run("a", first(30))) == {"turn_level": True, "a": None}


@pytest.mark.parametrize(("with_base", "wanted"), [(True, False), (False, None)])
def test_an_arm_alone_is_judged_by_the_base_if_at_all(*, with_base: bool, wanted: bool | None) -> None:
    arms = [run("turn_level", first(30))] + ([run("base", first(5))] if with_base else [])
    assert collapsed(*arms)["turn_level"] is wanted


def test_other_data_cannot_be_held_against_the_reference() -> None:
    other = run("a", first(5))
    other = other.model_copy(update={"run": other.run.model_copy(update={"data_sha256": "x"})})
    assert collapsed(run("turn_level", first(30)), other)["a"] is None
