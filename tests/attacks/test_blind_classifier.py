from __future__ import annotations

import numpy as np
import pytest

from hushbot.attacks.blind_classifier import N_FOLDS, PENALTIES, deal_folds, featurise, out_of_fold
from hushbot.intervals import FloatArray, IntArray


def fitted(features: FloatArray, sides: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """Return the centre and the weights of one ridge regression, in units of the scores' spread."""
    centre = features.mean(axis=0)
    x, y = features - centre, sides - sides.mean()
    unit = np.trace(x.T @ x) / len(x)
    weights = np.linalg.solve(x.T @ x + penalty * unit * np.eye(x.shape[1]), x.T @ y)
    return centre, weights / np.sqrt(np.mean((x @ weights) ** 2))


def naive(features: FloatArray, folds: IntArray, sides: FloatArray) -> FloatArray:
    """Do nested cross-validation of one split as one would write it down."""
    scores = np.zeros(len(sides))
    for k in range(N_FOLDS):
        best, chosen = 0.0, None
        for penalty in PENALTIES:
            inner: list[float] = []
            truth: list[float] = []
            for j in set(range(N_FOLDS)) - {k}:
                train, test = (folds != k) & (folds != j), folds == j
                centre, weights = fitted(features[train], sides[train], penalty)
                inner += list((features[test] - centre) @ weights)
                truth += list(sides[test])
            agreement = float(np.dot(inner, truth) / np.linalg.norm(inner))
            if agreement > best:
                best, chosen = agreement, penalty
        if chosen is not None:
            centre, weights = fitted(features[folds != k], sides[folds != k], chosen)
            scores[folds == k] = (features[folds == k] - centre) @ weights
    return scores


def test_all_splits_at_once_are_nested_cross_validations_one_by_one() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(80, 6))
    folds = deal_folds(np.arange(80), rng)
    sides = np.where(rng.normal(size=(80, 12)) + np.linspace(-2, 2, 12).clip(0) * features[:, [0]] > 0, 1.0, -1.0)
    together = out_of_fold(features, folds, sides)
    for column in range(12):
        assert together[:, column] == pytest.approx(naive(features, folds, sides[:, column]), abs=1e-9)
    assert np.any(together == 0)  # a fold without any agreement says nothing
    assert np.all(together[:, -1] != 0)


def test_no_text_is_scored_by_its_own_fold() -> None:
    rng = np.random.default_rng(1)
    features, sides = rng.normal(size=(60, 4)), np.where(rng.normal(size=(60, 1)) > 0, 1.0, -1.0)
    folds = deal_folds(np.arange(60), rng)
    sides[:, 0] = np.where(features[:, 0] > 0, 1.0, -1.0)
    before = out_of_fold(features, folds, sides)
    swapped = np.where((folds == 2)[:, None], -sides, sides)
    assert np.sign(out_of_fold(features, folds, swapped)[folds == 2]) == pytest.approx(np.sign(before[folds == 2]))


def test_folds_keep_clusters_whole_and_are_of_like_size() -> None:
    clusters = np.repeat(np.arange(40), [1, 3] * 20)
    folds = deal_folds(clusters, np.random.default_rng(2))
    assert all(len(set(folds[clusters == c])) == 1 for c in range(40))
    assert np.ptp(np.bincount(folds, minlength=N_FOLDS)) <= 3


def test_features_see_words_pairs_domains_and_numbers_and_no_more() -> None:
    texts = ["cheap food", "cheap food", "food cheap", "cheap, food"]
    numbers = np.array([[10.0], [10.0], [10.0], [11.0]])

    def rows(domains: list[tuple[str, ...]]) -> FloatArray:
        return featurise(texts, domains, numbers, np.random.default_rng(0))

    features = rows([("a",)] * 4)
    products = features @ features.T
    assert features[0] == pytest.approx(features[1])
    assert products[0, 2] < products[0, 1] - 0.01  # the same words, another pair
    assert products[0, 3] < products[0, 2] - 0.01
    other = rows([("a",), ("b",), ("a",), ("a",)])
    assert (other @ other.T)[0, 1] < products[0, 1] - 0.01


def test_many_texts_are_seen_through_their_likeness_to_some() -> None:
    texts = [f"a table at {i} for {i % 7}" for i in range(700)]
    rng = np.random.default_rng(0)
    features = featurise(texts, [()] * 700, np.zeros((700, 1)), rng)
    assert features.shape[1] <= 512
    assert np.all(np.isfinite(features))
    assert np.linalg.norm(features, axis=1).max() < 1.01
