"""Rows of plain language: what an arm costs and buys, and whether that is real."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

from hushbot.evaluation.comparisons import ComparisonSettings, compare_arms
from hushbot.types import AuditReport

FAST = ComparisonSettings(n_draws=400)


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = neighbour("test_comparisons")
run, first, JGA = made.run, made.first, made.JGA


def words(*reports: AuditReport) -> dict[str, str]:
    return {standing.arm: standing.words for standing in compare_arms(reports, FAST).standings}


def test_the_reference_says_what_it_does() -> None:
    found = words(run("turn_level", first(20), first(30)), run("a", first(20), first(5)))["turn_level"]
    assert found == (
        "turn_level (the reference) gets 50% ([45%, 55%]) of dialogue states wholly right; leaks under untargeted "
        "extraction (state precision@100 0.750 [0.700, 0.800]); training took 10 s. Dominated by a."
    )


def test_a_real_gain_and_a_cost_within_noise() -> None:
    slow = run("a", first(19), first(5))
    slow = slow.model_copy(update={"run": slow.run.model_copy(update={"seconds": {"train": 13.0}})})
    found = words(run("turn_level", first(20), first(30)), slow)["a"]
    assert re.fullmatch(
        r"a costs 2\.5 points of joint goal accuracy against turn_level \(\[-\d\.\d, [+-]\d\.\d\]: within noise\); "
        r"leaks less under untargeted extraction \(state precision@100 0\.750 -> 0\.125, difference real after Holm\); "
        r"1\.3 times the training time\. Nothing here dominates it\. One seed: another training may differ\.",
        found,
    ), found


def test_a_real_cost_and_more_leakage() -> None:
    found = words(run("turn_level", first(30), first(5)), run("a", first(18), first(30)))["a"]
    assert "costs 30.0 points of joint goal accuracy" in found
    assert "difference real after Holm);" in found
    assert "leaks more under untargeted extraction" in found


def test_what_chance_reaches_as_well_is_not_called_a_leak() -> None:
    silent = run("a", first(20), first(39), verdict="inconclusive")
    found = words(run("turn_level", first(20), first(5)), silent)["a"]
    assert "leaks more" not in found
    assert (
        "has a higher number under untargeted extraction (state precision@100 0.125 -> 0.975), but gives no conclusion"
        in found
    )
    found = words(run("turn_level", first(20), first(39), verdict="inconclusive"), run("a", first(20), first(5)))["a"]
    assert "leaks less" not in found
    assert "0.975 -> 0.125), where turn_level shows no leak" in found


def test_an_interval_without_zero_is_not_noise_but_not_shown_either() -> None:
    arms = [
        run("turn_level", first(24), ()),
        *(run(name, first(n), ()) for name, n in zip("abcdef", [18, *[24] * 5], strict=True)),
    ]
    (made,) = (each for each in compare_arms(arms, FAST).differences if each.arm == "a" and each.metric == JGA)
    low, high = made.estimate.low, made.estimate.high
    assert low is not None
    assert high is not None
    assert high < 0
    assert made.p_holm is not None
    said = "difference real after Holm" if made.p_holm < 0.05 else "not shown after Holm"
    assert f"[{low * 100:+.1f}, {high * 100:+.1f}]: {said}" in words(*arms)["a"]


def test_within_noise_is_never_less() -> None:
    found = words(run("turn_level", first(20), first(10)), run("a", first(20), first(9)))["a"]
    assert "changes nothing in joint goal accuracy" in found
    assert (
        "no difference is shown under untargeted extraction (state precision@100 0.250 -> 0.225: within noise)" in found
    )
    assert "leaks less" not in found


def test_what_was_not_measured_is_said_with_its_reason() -> None:
    found = words(run("turn_level", first(20), first(10)), run("a", None, None))["a"]
    assert "gets a share that was not measured of dialogue states" in found
    assert "differences not measured in joint goal accuracy" in found
    assert "no candidates" in found
    assert "cannot be judged: joint goal accuracy was not measured" in found


def test_an_inconclusive_attack_is_said_to_be_one() -> None:
    found = words(run("turn_level", first(20), first(30)), run("a", first(20), first(5), verdict="inconclusive"))["a"]
    assert "difference real after Holm, by itself without a conclusion" in found


def test_an_arm_that_lost_its_use_does_not_leak_less() -> None:
    found = words(run("turn_level", first(30), first(30)), run("a", first(2), first(1)))["a"]
    assert found.startswith("a counts as collapsed (joint goal accuracy surely below 0.5 times that of turn_level)")
    assert "leaks less" not in found


def test_one_arm_alone_has_its_row() -> None:
    found = words(run("turn_level", first(20), first(30)))["turn_level"]
    assert found.startswith("turn_level (the reference) gets 50%")
    assert "it stands alone" in found


def test_nobody_is_called_private_or_safe() -> None:
    for reports in (
        [run("turn_level", first(20), first(30)), run("a", first(20), first(0))],
        [run("base", first(5), first(1)), run("turn_level", None, None)],
        [run("turn_level", first(20), first(3), verdict="no_leak_detected")],
    ):
        comparison = compare_arms(reports, FAST)
        texts = [*(s.words for s in comparison.standings), *comparison.notes]
        assert not [text for text in texts if re.search(r"privat|privac|safe|secur|protect", text, re.IGNORECASE)]
