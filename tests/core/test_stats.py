from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot import stats
from hushbot.errors import AuditError
from hushbot.intervals import draw_weights
from hushbot.stats import Bootstrap, auc, auc_difference, detectable_rate, orient, tpr_at_fpr

FEW = Bootstrap(n_draws=100)
SCORES = st.lists(st.integers(-3, 3), min_size=1, max_size=15)


def naive_auc(members: list[int], nonmembers: list[int]) -> float:
    wins = [1.0 if m > n else 0.5 if m == n else 0.0 for m in members for n in nonmembers]
    return sum(wins) / len(wins)


def test_contract_names_are_importable() -> None:
    names = [
        "auc",
        "tpr_at_fpr",
        "clopper_pearson",
        "cluster_bootstrap",
        "paired_bootstrap",
        "holm",
        "one_run_epsilon",
    ]
    assert all(callable(getattr(stats, name)) for name in [*names, "benjamini_hochberg"])


@settings(max_examples=60, deadline=None)
@given(SCORES, SCORES)
def test_auc_is_mann_whitney_with_ties_counting_half(members: list[int], nonmembers: list[int]) -> None:
    assert auc(members, nonmembers, bootstrap=FEW).value == pytest.approx(naive_auc(members, nonmembers))


def test_auc_of_interleaved_ties_does_not_depend_on_order() -> None:
    # LeakPro #465: scores 9 9 5 5 with labels 1 0 1 0 are worth exactly one half.
    assert auc([9, 5], [9, 5], bootstrap=FEW).value == 0.5
    assert auc([5, 9], [9, 5], bootstrap=FEW).value == 0.5


def test_higher_means_member() -> None:
    assert auc([2, 3], [0, 1], bootstrap=FEW).value == 1.0
    assert auc([0, 1], [2, 3], bootstrap=FEW).value == 0.0


def test_perfect_separation_is_not_certain() -> None:
    estimate = auc(range(100, 120), range(20), bootstrap=FEW)
    # 20 disjoint pairs, each won: the rate of wins is at least 0.025^(1/20).
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(0.025 ** (1 / 20))


def test_auc_without_one_side_is_not_measured() -> None:
    assert auc([], [1, 2]).value is None
    assert auc([1, 2], []).value is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nan_is_an_error_and_never_dropped(bad: float) -> None:
    for call in (auc, tpr_at_fpr):
        with pytest.raises(AuditError, match="member scores: 1 of 2 values"):
            call([1.0, bad], [0.0, 1.0])
        with pytest.raises(AuditError, match="non-member scores: 1 of 2 values"):
            call([0.0, 1.0], [1.0, bad])


def test_auc_interval_covers_about_its_level_under_clustering() -> None:
    # Clusters of three equal scores; the truth is 0.5. Without clusters the same intervals cover far less.
    rng = np.random.default_rng(0)
    clusters = ([i // 3 for i in range(90)],) * 2
    hits = {"clustered": 0, "ignored": 0}
    for trial in range(100):
        m, n = (np.repeat(rng.normal(size=30), 3) for _ in range(2))
        bootstrap = Bootstrap(n_draws=200, seed=trial)
        for name, grouping in (("clustered", clusters), ("ignored", None)):
            estimate = auc(m, n, clusters=grouping, bootstrap=bootstrap)
            hits[name] += estimate.low <= 0.5 <= estimate.high  # type: ignore[operator]
    assert hits["clustered"] >= 88
    assert hits["ignored"] < 85


def test_auc_difference_pairs_the_units() -> None:
    rng = np.random.default_rng(0)
    m, n = rng.normal(1, 1, 60), rng.normal(0, 1, 60)
    same = auc_difference((m, n), (2 * m, 2 * n), bootstrap=FEW)
    assert same.value == 0.0
    better = auc_difference((m + 5, n), (m, n), bootstrap=FEW)
    assert better.value == pytest.approx(
        auc(m + 5, n, bootstrap=FEW).value - auc(m, n, bootstrap=FEW).value  # type: ignore[operator]
    )
    assert better.low > 0  # type: ignore[operator]
    with pytest.raises(ValueError, match="differ in length"):
        auc_difference((m, n), (m[:-1], n))


def naive_tpr(members: list[int], reference: list[int], fpr: float) -> float:
    """Try every threshold; keep the lowest that lets at most its share of the reference through."""
    allowed = [t for t in reference if sum(r > t for r in reference) <= fpr * len(reference) + 1e-9]
    return sum(m > min(allowed) for m in members) / len(members)


@settings(max_examples=40, deadline=None)
@given(SCORES, st.lists(st.integers(-3, 3), min_size=5, max_size=15))
def test_tpr_is_tie_safe_and_agrees_with_trying_every_threshold(members: list[int], others: list[int]) -> None:
    point = tpr_at_fpr(members, others, fpr=0.2, bootstrap=FEW)
    assert point.tpr.value == pytest.approx(naive_tpr(members, others, 0.2))
    assert point.realised_fpr.value is not None
    assert point.realised_fpr.value <= 0.2


@settings(max_examples=60, deadline=None)
@given(SCORES, SCORES, st.integers(0, 2**32 - 1))
def test_counting_a_unit_twice_is_the_same_as_having_it_twice(m: list[int], n: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    members, nonmembers = np.array(m, dtype=float), np.array(n, dtype=float)
    twice_m, twice_n = (draw_weights(np.arange(len(side)), rng) for side in (m, n))
    repeated = np.repeat(m, twice_m).tolist(), np.repeat(n, twice_n).tolist()
    area = stats._weighted_auc(members, nonmembers)
    assert area(twice_m, twice_n) == pytest.approx(naive_auc(*repeated))
    rate = stats._weighted_tpr(members, nonmembers, 0.3)
    assert rate(twice_m, twice_n) == pytest.approx(naive_tpr(*repeated, 0.3))


def test_tpr_by_hand() -> None:
    # 100 non-members 0..99: one may pass, so the threshold is 98 and 99 passes.
    point = tpr_at_fpr([97, 98, 99, 100], range(100), bootstrap=FEW)
    assert (point.threshold, point.realised_fpr.value, point.tpr.value) == (98.0, 0.01, 0.5)
    assert (point.n_members, point.n_nonmembers, point.n_reference, point.nominal_fpr) == (4, 100, 100, 0.01)


def test_constant_scores_catch_nobody() -> None:
    point = tpr_at_fpr([1] * 50, [1] * 100, bootstrap=FEW)
    assert (point.tpr.value, point.realised_fpr.value) == (0.0, 0.0)
    assert point.tpr.high == pytest.approx(1 - 0.025 ** (1 / 50))


def test_below_a_hundred_nonmembers_one_percent_is_refused() -> None:
    point = tpr_at_fpr(range(500), range(99), bootstrap=FEW)
    assert (point.tpr.value, point.threshold, point.realised_fpr.value) == (None, None, None)
    assert "99 independent non-members, 100 needed" in point.tpr.method


def test_a_hundred_states_of_few_dialogues_are_not_a_hundred() -> None:
    clusters = (None, [i // 10 for i in range(100)], None)
    assert tpr_at_fpr(range(50), range(100), clusters=clusters, bootstrap=FEW).tpr.value is None


def test_threshold_comes_from_the_calibration_scores_when_given() -> None:
    point = tpr_at_fpr([150], range(100), calibration=range(100, 300), bootstrap=FEW)
    assert (point.threshold, point.tpr.value, point.realised_fpr.value) == (297.0, 0.0, 0.0)
    shifted = tpr_at_fpr([150], range(100, 200), calibration=range(100), bootstrap=FEW)
    assert (shifted.threshold, shifted.realised_fpr.value) == (98.0, 1.0)


def test_interval_carries_the_uncertainty_of_the_threshold() -> None:
    rng = np.random.default_rng(0)
    m, n = rng.normal(2, 1, 4000), rng.normal(0, 1, 100)
    estimate = tpr_at_fpr(m, n, bootstrap=Bootstrap(n_draws=500)).tpr
    # Members alone would give a half-width of about 0.015; 100 non-members hardly fix the threshold.
    assert estimate.high - estimate.low > 0.1  # type: ignore[operator]


@pytest.mark.parametrize("has_calibration", [True, False])
def test_exchangeable_scores_rarely_look_like_a_leak(has_calibration: bool) -> None:
    rng = np.random.default_rng(11)
    alarms = 0
    for trial in range(150):
        m, n, c = rng.normal(size=(3, 150))
        point = tpr_at_fpr(
            m, n, calibration=c if has_calibration else None, bootstrap=Bootstrap(n_draws=150, seed=trial)
        )
        alarms += point.tpr.low > max(0.01, point.realised_fpr.value)  # type: ignore[operator, type-var]
    assert alarms / 150 <= 0.05


def test_a_leak_is_seen() -> None:
    rng = np.random.default_rng(5)
    assert tpr_at_fpr(rng.normal(3, 1, 200), rng.normal(size=200), bootstrap=FEW).tpr.low > 0.2  # type: ignore[operator]


def test_orientation_turns_low_perplexities_up() -> None:
    assert list(orient("dc_ppl", [0.2, 0.9])) == [-0.2, -0.9]
    assert list(orient("min_k", [-3.0, -1.0])) == [-3.0, -1.0]
    assert set(stats.ORIENTATION) == {"ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k", "min_k_pp", "ref_ratio"}
    with pytest.raises(ValueError, match="no known orientation"):
        orient("blue", [1.0])


def test_detectable_rate_is_detected_with_its_power() -> None:
    from scipy.stats import binom

    rate = detectable_rate(100, 0.01)
    assert rate is not None
    detecting = [k for k in range(101) if stats.clopper_pearson(k, 100).low > 0.01]  # type: ignore[operator]
    assert binom.pmf(detecting, 100, rate).sum() == pytest.approx(0.8)
    assert detectable_rate(1, 0.5) is None
