"""Curves are the report's own numbers: the right family, the right stem, the operating points that can be reached."""

from __future__ import annotations

from hushbot.evaluation.page_curves import curves_of, roc_line, roc_of
from hushbot.types import AttackResult, Estimate, Headline, Metric, Units


def rate(value: float | None) -> Estimate:
    return Estimate(value=value, low=0.0, high=1.0, n=9)


def attack(key: str | None, metrics: dict[str, Metric], control: dict[str, object] | None = None) -> AttackResult:
    headline = Headline(metric="state_precision@100", estimate=rate(0.5), key=key)
    return AttackResult(verdict="leak", headline=headline, metrics=metrics, control=control or {})


def test_a_curve_is_of_the_headlines_stem_and_has_its_controls() -> None:
    metrics: dict[str, Metric] = {
        "vanilla/ppl/state_precision@10": rate(0.9),
        "vanilla/ppl/state_precision@100": rate(0.8),
        "vanilla/c_ppl/state_precision@100": rate(0.2),
        "vanilla/c_ppl/state_precision@10": rate(0.4),
        "vanilla/c_ppl/state_precision@20": rate(None),
        "vanilla/c_ppl/states@100": 7,
        "vanilla/c_ppl/state_precision@100/n=3": rate(0.1),
    }
    control = {"nonmembers": {key: rate(0.05).model_dump() for key in metrics}, "base": None, "randomisation_p": 0.5}
    (curve,) = curves_of(attack("vanilla/c_ppl/state_precision@100", metrics, control))
    assert curve.stem == "vanilla/c_ppl"
    assert [(x, e.value) for x, e in curve.sides["members"]] == [(10, 0.4), (100, 0.2)]  # in order, without the gap
    assert [(x, e.value) for x, e in curve.sides["nonmembers"]] == [(10, 0.05), (20, 0.05), (100, 0.05)]
    assert list(curve.sides) == ["members", "nonmembers"]


def test_prefix_lengths_and_hits_are_curves_of_their_own() -> None:
    metrics: dict[str, Metric] = {f"greedy/none/state_precision/l={n}": rate(n / 10) for n in (1, 2, 10)}
    metrics |= {f"hit@{k}": rate(k / 10) for k in (1, 2, 4)}
    found = {curve.family.title: curve for curve in curves_of(attack("greedy/none/state_precision", metrics))}
    assert [[x for x, _ in curve.sides["members"]] for curve in found.values()] == [[1, 2, 10], [1, 2, 4]]


def test_a_single_number_is_no_curve() -> None:
    assert list(curves_of(attack(None, {"vanilla/dc_ppl/state_precision@100": rate(0.5)}))) == []


def units(values: list[float | None], sides: list[str], rule: str = "auc") -> Units:
    documents = [str(i) for i in range(len(values))]
    return Units.model_validate({"rule": rule, "documents": documents, "values": values, "sides": sides})


def test_roc_points_are_the_shares_above_each_threshold() -> None:
    scores: list[float | None] = [0.9, 0.7, 0.7, 0.1, 0.8, 0.7, 0.3, 0.2, None, 5.0]
    sides = ["member"] * 4 + ["nonmember"] * 4 + ["member", "calibration"]
    roc = roc_of(units(scores, sides))
    assert roc is not None
    assert (roc.n_members, roc.n_nonmembers, roc.n_missing) == (4, 4, 1)
    known = list(zip(scores[:8], sides[:8], strict=True))
    for threshold in (0.9, 0.8, 0.7, 0.3, 0.2, 0.1):  # by hand: ties are called together
        called = [side for score, side in known if score is not None and score >= threshold]
        point = (called.count("nonmember") / 4, called.count("member") / 4)
        assert point in set(zip(roc.false_rates, roc.true_rates, strict=True))


def test_a_roc_line_begins_at_one_nonmember_with_what_is_reached_there() -> None:
    sides = ["member"] * 4 + ["nonmember"] * 4
    roc = roc_of(units([9.0, 8.0, 5.0, 1.0, 7.0, 6.0, 0.0, -1.0], sides))
    assert roc is not None
    marks = roc_line(roc, "a", "member").marks
    assert (marks[0].x, marks[0].y) == (0.25, 0.5)  # two members above every non-member, and above the first one
    assert [mark.x for mark in marks] == sorted(mark.x for mark in marks)
    assert (marks[-1].x, marks[-1].y) == (1.0, 1.0)


def test_without_scores_of_both_sides_there_is_no_roc() -> None:
    assert roc_of(None) is None
    assert roc_of(units([0.5, 0.4], ["member", "member"])) is None
    assert roc_of(units([0.5, None], ["member", "nonmember"])) is None
    ratio = Units(rule="ratio", documents=["a"], values=[1.0], weights=[1.0])
    assert roc_of(ratio) is None
    parted = roc_of(units([0.5, 0.4], ["member", "nonmember"], "tpr_at_1pct_fpr"))
    assert parted == ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0], 1, 1, 0)
