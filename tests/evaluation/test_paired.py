"""Paired differences: known by hand, against naive loops, and as often wrong as they claim to be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from hushbot.evaluation.paired import Pair, paired_difference
from hushbot.evaluation.unit_metrics import Rule, metric_values
from hushbot.intervals import Bootstrap
from hushbot.stats import auc, tpr_at_fpr
from hushbot.types import Units

FEW = Bootstrap(n_draws=200)


def ratio(values: Sequence[float | None], weights: Sequence[float] | None = None, names: str = "d") -> Units:
    return Units(
        rule="ratio",
        documents=[f"{names}{i}" for i in range(len(values))],
        values=list(values),
        weights=list(weights or [1.0] * len(values)),
    )


def scores(
    members: Sequence[float], others: Sequence[float], calibration: Sequence[float] = (), rule: Rule = "auc"
) -> Units:
    sides = {"member": members, "nonmember": others, "calibration": calibration}
    return Units(
        rule=rule,
        documents=[f"{side}{i}" for side, found in sides.items() for i in range(len(found))],
        values=[float(value) for found in sides.values() for value in found],
        sides=[side for side, found in sides.items() for _ in found],  # type: ignore[misc]
    )


# metrics made again from units


@pytest.mark.parametrize("decimals", [0, 1, 6])
def test_metrics_are_those_of_stats_ties_included(decimals: int) -> None:
    rng = np.random.default_rng(decimals)
    members, others = rng.normal(1, 1, 120).round(decimals), rng.normal(0, 1, 150).round(decimals)
    wanted = {"auc": auc(members, others).value, "tpr_at_1pct_fpr": tpr_at_fpr(members, others).tpr.value}
    for rule, value in wanted.items():
        pair = Pair.of(*[scores(members, others, rule=rule)] * 2)  # type: ignore[arg-type]
        assert pair.values() == pytest.approx((value, value))


def test_thresholds_are_chosen_on_the_calibration_alone() -> None:
    rng = np.random.default_rng(3)
    members, others, calibration = rng.normal(1, 1, 100), rng.normal(5, 1, 100), rng.normal(0, 1, 110)
    wanted = tpr_at_fpr(members, others, calibration=calibration).tpr.value
    pair = Pair.of(*[scores(members, others, calibration, "tpr_at_1pct_fpr")] * 2)
    assert pair.values()[0] == pytest.approx(wanted)
    assert pair.n == 210  # the non-members take no part


@pytest.mark.parametrize("rule", ["ratio", "auc", "tpr_at_1pct_fpr"])
def test_counts_stand_for_copies_of_units(rule: Rule) -> None:
    rng = np.random.default_rng(5)
    values = rng.integers(0, 6, 40).astype(float)
    seconds = np.repeat([1.0, 0.0], 20) if rule != "ratio" else rng.integers(1, 5, 40).astype(float)
    counts = rng.integers(0, 4, (7, 40)).astype(float)
    found = metric_values(rule, values, seconds, counts)
    for row, value in zip(counts.astype(int), found, strict=True):
        copies, second = np.repeat(values, row), np.repeat(seconds, row)
        naive = metric_values(rule, copies, second, np.ones((1, len(copies))))
        assert value == pytest.approx(naive[0])
        if rule == "ratio":
            assert value == pytest.approx(copies.sum() / second.sum())
        if rule == "auc":
            one, other = copies[second > 0], copies[second == 0]
            beats = (one[:, None] > other).mean() + (one[:, None] == other).mean() / 2
            assert value == pytest.approx(beats)


def test_what_was_never_drawn_is_undefined_and_not_zero() -> None:
    nothing, values = np.zeros((1, 2)), np.array([1.0, 2.0])
    assert math.isnan(metric_values("ratio", values, values, nothing)[0])
    for rule in ("auc", "tpr_at_1pct_fpr"):
        assert math.isnan(metric_values(rule, values, np.array([1.0, 0.0]), np.array([[1.0, 0.0]]))[0])  # type: ignore[arg-type]


# pairing


def test_a_document_without_a_value_in_one_arm_is_left_out_in_both() -> None:
    pair = Pair.of(ratio([1, 0, None, 1]), ratio([0, 0, 1]))
    assert (pair.n, pair.n_missing) == (2, 2)  # d2 has no value in ours, d3 is not in theirs
    assert pair.values() == (0.5, 0.0)


def test_units_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="one headline has one rule"):
        Pair.of(ratio([1]), scores([1], [0]))
    turned = scores([1], [0])
    turned = turned.model_copy(update={"sides": ["nonmember", "member"]})
    with pytest.raises(ValueError, match="splits differ"):
        Pair.of(scores([1], [0]), turned)
    twice = Units(rule="auc", documents=["a", "a"], values=[1.0, 2.0], sides=["member", "nonmember"])
    with pytest.raises(ValueError, match="on two sides"):
        Pair.of(twice, twice)


def test_all_values_of_a_document_are_drawn_together() -> None:
    one = Units(rule="ratio", documents=["a"] * 50 + ["b"] * 50, values=[1.0] * 50 + [0.0] * 50, weights=[1.0] * 100)
    other = one.model_copy(update={"values": [0.0] * 100})
    drawn = Pair.of(one, other).drawn(200, np.random.default_rng(0))
    assert set(np.round(drawn, 9)) == {0.0, 0.5, 1.0}


def test_order_of_units_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    values, others = rng.random(30).tolist(), rng.random(30).tolist()
    order = rng.permutation(30)
    there = ratio(others)
    moved = Units(
        rule="ratio",
        documents=[there.documents[i] for i in order],
        values=[there.values[i] for i in order],
        weights=[1.0] * 30,
    )
    assert paired_difference([Pair.of(ratio(values), there)], FEW) == paired_difference(
        [Pair.of(ratio(values), moved)], FEW
    )


# p-values and intervals


def test_p_is_that_of_every_exchange() -> None:
    ours, theirs = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    # Of four documents that differ, all point one way: 2 of 2^4 exchanges are as far out.
    found = paired_difference([Pair.of(ratio(ours), ratio(theirs))], Bootstrap(n_draws=20_000))
    assert found.estimate.value == pytest.approx(4 / 6)
    assert found.p == pytest.approx(2 / 16, abs=0.01)


def test_scores_on_another_scale_are_no_difference() -> None:
    rng = np.random.default_rng(2)
    members, others = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
    found = paired_difference([Pair.of(scores(members, others), scores(9 * members - 5, 9 * others - 5))], FEW)
    assert found.estimate.value == pytest.approx(0)
    assert found.p == 1


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_no_difference_anywhere_gives_p_one_and_an_interval_that_is_not_a_point(n_seeds: int) -> None:
    pair = Pair.of(ratio([1, 0] * 10), ratio([1, 0] * 10))
    found = paired_difference([pair] * n_seeds, FEW)
    assert found.p == 1
    assert found.estimate.value == 0
    assert found.estimate.low is not None
    assert found.estimate.high is not None
    assert found.estimate.low < 0 < found.estimate.high


def test_p_is_never_zero_and_one_document_has_no_interval() -> None:
    found = paired_difference([Pair.of(ratio([1] * 60), ratio([0] * 60))], FEW)
    assert found.p == pytest.approx(1 / 201)
    alone = paired_difference([Pair.of(ratio([1]), ratio([0]))], FEW)
    assert alone.estimate.low is None
    assert alone.p == 1


def test_several_seeds_have_students_interval_where_documents_do_not_differ() -> None:
    """Differences of 0.1, 0.2 and 0.3 in documents that are all alike: 0.2 -+ 4.303 * 0.1 / sqrt(3)."""
    n = 400
    pairs = [Pair.of(ratio([0.5 + gain] * n), ratio([0.5] * n)) for gain in (0.1, 0.2, 0.3)]
    found = paired_difference(pairs, FEW)
    assert found.estimate.value == pytest.approx(0.2)
    assert found.estimate.low == pytest.approx(0.2 - 4.3027 * 0.1 / math.sqrt(3), abs=0.005)
    assert found.estimate.n == 3 * n
    assert found.p == pytest.approx(0.0742, abs=0.002)  # of t = 0.2 / 0.0577 with 2 degrees of freedom


def test_seeds_on_the_same_documents_are_drawn_together() -> None:
    rng = np.random.default_rng(4)
    pair = Pair.of(ratio(rng.random(40).tolist()), ratio(rng.random(40).tolist()))
    shared = paired_difference([pair, pair], FEW, shares_documents=True).estimate
    apart = paired_difference([pair, pair], FEW).estimate
    assert (shared.n, apart.n) == (40, 80)
    widths = [found.high - found.low for found in (shared, apart) if found.high is not None and found.low is not None]
    assert widths[0] > 1.2 * widths[1]  # two samples of documents say more than one, by sqrt(2)


def drawn_pair(rng: np.random.Generator, n: int, shift: float = 0.0) -> Pair:
    """Two arms on n dialogues of four turns; dialogues differ in how hard they are."""
    ease = rng.beta(2, 2, n)
    ours, theirs = rng.binomial(4, np.clip(ease + shift, 0, 1)), rng.binomial(4, ease)
    return Pair.of(ratio(ours.tolist(), [4.0] * n), ratio(theirs.tolist(), [4.0] * n))


def test_one_seed_is_wrong_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    found = [paired_difference([drawn_pair(rng, 25)], FEW) for _ in range(300)]
    assert np.mean([f.p < 0.05 for f in found]) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 300)
    covered = [f.estimate.low <= 0 <= f.estimate.high for f in found if f.estimate.low is not None]  # type: ignore[operator]
    assert len(covered) == 300
    assert np.mean(covered) >= 0.95 - 2.5 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_three_seeds_cover_what_trainings_differ_in(spread: float) -> None:
    rng = np.random.default_rng(12)
    found = [
        paired_difference([drawn_pair(rng, 25, rng.normal(0, spread)) for _ in range(3)], Bootstrap(n_draws=100))
        for _ in range(200)
    ]
    covered = [f.estimate.low <= 0 <= f.estimate.high for f in found if f.estimate.low is not None]  # type: ignore[operator]
    assert np.mean(covered) >= 0.95 - 2.5 * math.sqrt(0.05 * 0.95 / 200)
    assert np.mean([f.p < 0.05 for f in found]) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 200)


def test_a_real_difference_is_found() -> None:
    rng = np.random.default_rng(13)
    for n_seeds in (1, 3):
        found = paired_difference([drawn_pair(rng, 80, 0.3) for _ in range(n_seeds)], FEW)
        assert found.p < 0.05
        assert found.estimate.low is not None
        assert found.estimate.low > 0


def test_a_rate_of_one_stays_a_rate_though_units_are_rounded() -> None:
    """150 weights of 15/150 in six digits add up to a little less than 15; the difference is still at most 1."""
    names = [f"d{i}" for i in range(150)]
    ours = Units(rule="ratio", documents=names, values=[1.0] * 15 + [0.0] * 135, weights=[0.0999999] * 150)
    theirs = Units(rule="ratio", documents=names, values=[0.0] * 135 + [1.0] * 15, weights=[0.666667] * 150)
    high = paired_difference([Pair.of(ours, theirs)], Bootstrap(n_draws=400)).estimate.high
    assert high is not None
    assert high <= 1.0
