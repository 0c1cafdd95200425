"""The front: who is dominated, surely or perhaps, and who is not judged at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from hushbot.evaluation.comparisons import ComparisonSettings, Standing, compare_arms
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
run, first = made.run, made.first


def placed(*reports: AuditReport) -> dict[str, Standing]:
    return {standing.arm: standing for standing in compare_arms(reports, FAST).standings}


def test_an_arm_that_is_surely_worse_and_better_in_nothing_is_dominated() -> None:
    found = placed(run("turn_level", first(20), first(30)), run("a", first(20), first(5)))
    assert (found["turn_level"].front, found["turn_level"].dominated_by) == ("dominated", ("a",))
    assert (found["a"].front, found["a"].dominated_by) == ("front", ())


def test_what_only_point_estimates_say_is_perhaps() -> None:
    found = placed(run("turn_level", first(20), first(6)), run("a", first(20), first(5)))
    assert (found["turn_level"].front, found["turn_level"].dominated_by) == ("perhaps dominated", ("a",))


def test_a_trade_of_utility_for_less_leakage_dominates_nobody() -> None:
    found = placed(run("turn_level", first(30), first(30)), run("a", first(25), first(5)))
    assert {standing.front for standing in found.values()} == {"front"}


def test_arms_that_are_level_in_everything_dominate_nobody() -> None:
    found = placed(run("turn_level", first(30), first(30)), run("a", first(30), first(30)))
    assert {standing.front for standing in found.values()} == {"front"}


def test_an_arm_that_lost_its_use_dominates_nobody_and_is_on_no_front() -> None:
    found = placed(run("turn_level", first(30), first(30)), run("a", first(2), first(0)))
    assert found["a"].is_collapsed is True
    assert found["a"].front == "not judged"
    assert any("utility collapsed" in flag for flag in found["a"].flags)


def test_the_untrained_base_is_left_out_however_little_it_leaks() -> None:
    found = placed(
        run("base", first(10), first(1)), run("turn_level", first(20), first(30)), run("a", first(25), first(20))
    )
    assert found["base"].front == "not judged"
    assert found["turn_level"].dominated_by == ("a",)


def test_an_attack_without_a_conclusion_judges_nobody() -> None:
    found = placed(
        run("turn_level", first(20), first(30)), run("a", first(20), first(5), verdict="inconclusive"),
    )  # fmt: skip
    assert found["a"].front == "not judged"
    assert found["turn_level"].front == "not judged"  # nobody is left to be chosen instead
    assert "not judged under untargeted_extraction" in found["a"].flags


def test_an_axis_that_one_arm_lacks_makes_domination_a_perhaps() -> None:
    def with_more(report: AuditReport, verdict: str) -> AuditReport:
        attack = report.attacks["untargeted_extraction"].model_copy(update={"verdict": verdict})
        return report.model_copy(update={"attacks": report.attacks | {"targeted_extraction": attack}})

    worse, better = run("turn_level", first(20), first(30)), run("a", first(20), first(5))
    both = placed(with_more(worse, "leak"), with_more(better, "leak"))
    assert both["turn_level"].front == "dominated"
    one = placed(with_more(worse, "leak"), with_more(better, "inconclusive"))
    assert one["turn_level"].front == "perhaps dominated"


def test_arms_on_other_data_do_not_dominate_each_other() -> None:
    other = run("a", first(20), first(5))
    other = other.model_copy(update={"run": other.run.model_copy(update={"data_sha256": "x"})})
    found = placed(run("turn_level", first(20), first(30)), other)
    assert found["turn_level"].dominated_by == ()


def test_one_arm_alone_is_no_choice() -> None:
    assert placed(run("turn_level", first(20), first(30)))["turn_level"].front == "not judged"
