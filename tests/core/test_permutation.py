from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest

from hushbot.permutation import areas, auc_p, deal_sides, one_sided_p, two_sided_p


def pairwise_area(scores: np.ndarray, is_member: np.ndarray) -> float:
    """Count pairs, ties half: what an AUC is."""
    won = [(m > n) + (m == n) / 2 for m in scores[is_member] for n in scores[~is_member]]
    return float(np.mean(won))


def test_areas_count_pairs_and_ties_half_in_each_column() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 4, (12, 3)).astype(float)
    sides = np.column_stack([rng.permutation(np.arange(12) < 5) for _ in range(3)])
    assert areas(scores, sides).tolist() == pytest.approx([pairwise_area(scores[:, k], sides[:, k]) for k in range(3)])


def test_ties_are_no_evidence_whatever_the_order() -> None:
    # An ROC curve drawn point by point gives 0.375 or 0.625 here, as the rows happen to be sorted.
    scores, sides = np.array([[9.0], [9.0], [5.0], [5.0]]), np.array([[True], [False], [True], [False]])
    assert areas(scores, sides).tolist() == [0.5]
    assert areas(scores[::-1], sides[::-1]).tolist() == [0.5]


def test_a_deal_keeps_the_truth_first_and_the_number_of_members() -> None:
    truth = np.array([True, False, False, True, False])
    dealt = deal_sides(truth, 50, np.random.default_rng(1))
    assert dealt[:, 0].tolist() == truth.tolist()
    assert dealt.sum(axis=0).tolist() == [2] * 51
    assert len({tuple(column) for column in dealt.T}) == 10  # all pairs of five come up


def test_p_values_count_the_truth_among_the_deals() -> None:
    null = [0.1, 0.2, 0.3, 0.4]
    assert one_sided_p(0.9, null) == pytest.approx(1 / 5)
    assert one_sided_p(0.3, null) == pytest.approx(3 / 5)
    assert two_sided_p(0.9, null) == two_sided_p(0.0, null) == pytest.approx(2 / 5)
    assert two_sided_p(0.25, null) == 1.0


def test_the_p_of_an_auc_is_what_all_deals_give() -> None:
    members, others = [7.0, 8.0, 9.0], [1.0, 2.0, 7.5, 3.0]
    scores = np.array(members + others)
    exact = []
    for chosen in combinations(range(7), 3):
        exact.append(pairwise_area(scores, np.isin(np.arange(7), chosen)))
    as_far = np.mean(np.array(exact) >= pairwise_area(scores, np.arange(7) < 3) - 1e-12)
    assert auc_p(members, others, n_deals=20_000) == pytest.approx(2 * as_far, abs=0.01)


def test_a_cluster_is_dealt_whole() -> None:
    # Forty scores, but of two dialogues: nothing is shown by two things being unlike.
    members, others = [1.0] * 20, [0.0] * 20
    assert auc_p(members, others) == pytest.approx(2 / 2001)
    assert auc_p(members, others, clusters=(["a"] * 20, ["b"] * 20)) == 1.0


def test_neither_sign_nor_order_nor_names_of_clusters_change_it() -> None:
    rng = np.random.default_rng(3)
    members, others = rng.normal(0.3, 1, 40), rng.normal(0, 1, 50)
    names = ([f"m{i // 2}" for i in range(40)], [f"n{i // 3}" for i in range(50)])
    p = auc_p(members, others, clusters=names, n_deals=999)
    assert p is not None
    assert 0 < p < 1
    assert auc_p(-members, -others, clusters=names, n_deals=999) == p
    renamed = ([f"z{name}" for name in names[0]][::-1], [f"a{name}" for name in names[1]][::-1])
    assert auc_p(members[::-1], others[::-1], clusters=renamed, n_deals=999) == p


def test_it_holds_its_level_where_nothing_differs() -> None:
    rng = np.random.default_rng(4)
    found = np.array([auc_p(rng.normal(size=30), rng.normal(size=30), n_deals=199, seed=i) for i in range(200)])
    assert np.mean(found <= 0.05) <= 0.09  # 0.05 expected; more than 0.09 would occur in 1% of all cases
    assert np.mean(found <= 0.5) == pytest.approx(0.5, abs=0.1)


def test_an_empty_side_has_no_p() -> None:
    assert auc_p([], [1.0]) is None


def test_memory_does_not_grow_with_the_deals() -> None:
    rng = np.random.default_rng(5)
    members, others = rng.normal(0.1, 1, 2000), rng.normal(0, 1, 2000)
    auc_p(members[:20], others[:20], n_deals=100)  # imports and first-time allocations
    tracemalloc.start()
    try:
        auc_p(members, others, n_deals=1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1000 * 4000 / 2, "a table of all deals, a byte for each cluster, is twice as much"
