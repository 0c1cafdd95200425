"""The trade-off plot: a mark per run with everything it says, gaps named, the front marked."""

from __future__ import annotations

import re

from hushbot.evaluation.page_tradeoff import Look, looks_of, tradeoff_panels
from hushbot.evaluation.tradeoff import ArmRow, Point


def row(arm: str, seed: str, useful: float | None, leak: float | None) -> ArmRow:
    numbers = {
        "joint_goal_accuracy": Point(useful, None if useful is None else useful - 0.1, useful, 50),
        "membership/auc": Point(leak, None, None, 9),
        "membership/auc/base": Point(0.5, 0.4, 0.6, 9),
        "epsilon": Point(None, None, None, 0),
    }
    return ArmRow(arm, seed, "complete", numbers)


ROWS = [row("a", "0", 0.5, 0.9), row("b", "0", 0.3, 0.8), row("b", "1", 0.3, None), row("a", "all", 0.5, 0.9)]
LOOKS = looks_of(ROWS, {"a": "front", "b": "dominated"})


def test_arms_are_numbered_in_order_and_told_where_they_stand() -> None:
    assert LOOKS["a"] == Look(0, "front")
    assert LOOKS["b"] == Look(1, "dominated")
    assert looks_of(ROWS, {})["a"].front == "not judged"


def test_a_mark_says_all_and_a_run_without_a_number_is_named() -> None:
    (panel,) = tradeoff_panels(ROWS, LOOKS)
    assert panel.attack == "membership/auc"
    tips = re.findall(r'data-tip="([^"]*)"', panel.figure)
    assert tips[0].splitlines() == [
        "a, seed 0",
        "joint goal accuracy: 0.500 [0.400, 0.500] (n=50)",
        "membership: auc: 0.900 (n=9)",
        "control (base): 0.500 [0.400, 0.600] (n=9)",
        "on the front: no arm beats it in all that was measured",
    ]
    assert len(tips) == 2  # neither the aggregate nor the run without a number
    assert panel.missing == ["b, seed 1: membership: auc not measured"]
    assert panel.figure.count('class="ring"') == 1
    assert panel.figure.count("faded") == 1
    assert panel.figure.count('class="hollow"') == 2


def test_no_number_at_all_is_no_figure() -> None:
    (panel,) = tradeoff_panels([row("a", "0", None, 0.5)], {"a": Look(0, "not judged")})
    assert panel.figure == ""
    assert panel.missing == ["a, seed 0: joint goal accuracy not measured"]
