"""What may be compared, and why the rest may not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hushbot.evaluation.arms import arms_of
from hushbot.evaluation.differences import ComparisonSettings, Difference, difference, is_one_corpus, metrics_of
from hushbot.types import AuditReport

FAST = ComparisonSettings(n_draws=200)


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = neighbour("test_comparisons")
run, first, JGA, LEAK = made.run, made.first, made.JGA, made.LEAK


def between(ours: AuditReport, theirs: AuditReport, metric: str = JGA) -> Difference:
    arm, reference = arms_of([ours, theirs])
    return difference(arm, reference, metric, FAST)


def with_run(report: AuditReport, **changes: Any) -> AuditReport:
    return report.model_copy(update={"run": report.run.model_copy(update=changes)})


def test_metrics_are_utility_first_then_headlines_each_once() -> None:
    arms = arms_of([run("a", first(20), first(3)), run("b", first(20), first(3))])
    assert metrics_of(arms) == [JGA, LEAK]
    assert metrics_of(arms_of([run("a", None)])) == [JGA]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"data_sha256": "other"}, "different data"),
        ({"split_sha256": "other"}, "different splits"),
        ({"split_sha256": None}, "holds no units; run the audit again"),
        ({"seed": 7}, "no seed is in both arms"),
    ],
)
def test_unlike_runs_are_not_compared(changes: dict[str, Any], reason: str) -> None:
    found = between(run("a", first(20)), with_run(run("b", first(10)), **changes))
    assert found.conclusion == "not measured"
    assert reason in found.estimate.method
    assert (found.p, found.p_holm) == (None, None)


def test_utility_by_other_rules_is_not_compared_and_what_tells_bots_apart_is_no_rule() -> None:
    rules = {"dontcare": "strict", "layout": "one", "turns_unparsed": 3}
    ours = run("a", first(30)).model_copy(update={"utility_protocol": rules})

    def against(**others: object) -> Difference:
        theirs = run("b", first(10)).model_copy(update={"utility_protocol": rules | others})
        return between(ours, theirs)

    assert against(layout="two", turns_unparsed=9).conclusion == "higher"
    assert "other rules (dontcare)" in against(dontcare="lenient").estimate.method


def test_attacks_that_judge_by_other_scores_are_not_compared() -> None:
    def keyed(report: AuditReport, key: str) -> AuditReport:
        attack = report.attacks["untargeted_extraction"]
        headline = attack.headline.model_copy(update={"key": key})
        return report.model_copy(
            update={"attacks": {"untargeted_extraction": attack.model_copy(update={"headline": headline})}}
        )

    ours, theirs = keyed(run("a", first(20), first(3)), "vanilla/x"), keyed(run("b", first(20), first(3)), "top_k/x")
    assert "attack was another one" in between(ours, theirs, LEAK).estimate.method
    assert between(ours, keyed(theirs, "vanilla/x"), LEAK).p == 1


def test_units_that_do_not_give_the_reported_number_are_not_trusted() -> None:
    wrong = run("a", first(20)).model_copy(update={"utility_units": {JGA: made.units(first(30))}})
    assert "not what the report states" in between(wrong, run("b", first(10))).estimate.method


def test_too_many_documents_without_a_value_are_no_comparison_and_few_are_counted() -> None:
    def holed(n: int) -> AuditReport:
        report = run("a", first(20))
        units = report.utility_units[JGA]
        values = [None if i >= made.N - n else value for i, value in enumerate(units.values)]
        return report.model_copy(update={"utility_units": {JGA: units.model_copy(update={"values": values})}})

    few = between(holed(4), run("b", first(20)))
    assert few.estimate.n == made.N - 4
    assert "4 documents without a value in one arm left out" in few.estimate.method
    assert "only 35 of 40 documents" in between(holed(5), run("b", first(20))).estimate.method


def test_other_documents_are_not_paired() -> None:
    theirs = run("b", first(20)).model_copy(update={"utility_units": {JGA: made.units(first(20), seed=9)}})
    assert "only 0 of 80 documents" in between(run("a", first(20)), theirs).estimate.method


def test_one_seed_that_cannot_be_compared_makes_the_whole_not_measured() -> None:
    ours = [run("a", first(20), seed=seed) for seed in (0, 1)]
    theirs = [run("b", first(20)), run("b", None, seed=1)]
    arm, reference = arms_of([*ours, *theirs])
    found = difference(arm, reference, JGA, FAST)
    assert found.estimate.method.startswith("not measured: seed 1: b has no number")


def test_seeds_of_one_split_share_their_documents() -> None:
    def same(arm: str, seed: int, n: int) -> AuditReport:
        return with_run(run(arm, first(n)), seed=seed)

    arm, reference = arms_of([same("a", 0, 20), same("a", 1, 22), same("b", 0, 10), same("b", 1, 10)])
    assert difference(arm, reference, JGA, FAST).estimate.n == made.N


def test_runs_on_other_data_are_not_one_corpus() -> None:
    one, other = arms_of([run("a", first(20)), with_run(run("b", first(20)), data_sha256="x")])
    assert not is_one_corpus(one, other)
    assert is_one_corpus(one, one)
