"""A linear classifier of texts that is trained on one split and on hundreds of permuted ones at once.

Ridge regression on the side (member +1, non-member -1): with squared loss the weights are linear in the sides, so that
every permuted split is one more column on the right-hand side. What cross-validation needs of a training set are sums
over its folds, so that no fold is read twice.

Features: n-grams (words and punctuation, single and in pairs, tf-idf, hashed), domains, and what numbers the caller
gives; each of the three blocks has a mean square of one. Where there are more texts than dimensions, texts are seen
through their likeness to that many of them, drawn at random (Nyström).

Guarantees: features and folds know no sides. A text's score rests on other folds alone, and so does the choice of the
penalty behind it: for each fold, the others are trained on in turns without one of them. Where none does better than
chance there, the scores of the fold are all zero: a split that was balanced (by domain, say) makes folds each other's
opposites, and a classifier that has learnt the opposite is no finding. Scores have no intercept, which would tell a
fold how many members the others have, and are in units of their own spread, so that folds compare.

Source: Ojala and Garriga, JMLR 11 (2010), permutation tests of classifiers; Williams and Seeger, NIPS 2000 (Nyström).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from hushbot.intervals import FloatArray, IntArray

N_FOLDS = 5
PENALTIES = (10.0, 1.0, 0.1)
"""To choose from, strongest first, in units of the features' mean square."""
_DIMENSIONS = 512
_N_HASHES = 2**18
_TOKEN = r"\w+|[^\w\s]"


def deal_folds(clusters: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the fold of each text, clusters whole and dealt at random, each to the fold that has the fewest texts."""
    sizes = np.bincount(clusters)
    fold_of = np.zeros(len(sizes), dtype=np.intp)
    filled = np.zeros(N_FOLDS)
    for cluster in rng.permutation(len(sizes)):
        fold_of[cluster] = np.argmin(filled)
        filled[fold_of[cluster]] += sizes[cluster]
    return fold_of[clusters]


def featurise(
    texts: Sequence[str], domains: Sequence[Sequence[str]], numbers: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Return a row of features per text, of at most 512 dimensions.

    Args:
        texts: What is read.
        domains: The domains of each.
        numbers: Further features, a row per text; they are brought to one scale here.
        rng: Draws the texts that others are compared with.
    """
    from scipy import sparse
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from sklearn.preprocessing import normalize

    grams = HashingVectorizer(
        n_features=_N_HASHES, ngram_range=(1, 2), token_pattern=_TOKEN, alternate_sign=False, norm=None
    ).transform(texts)
    named = FeatureHasher(n_features=_N_HASHES, input_type="string", alternate_sign=False).transform(domains)
    spread = numbers.std(axis=0)
    scaled = (numbers - numbers.mean(axis=0)) / np.where(spread > 0, spread, 1) / np.sqrt(numbers.shape[1])
    rows = sparse.hstack(
        [TfidfTransformer(sublinear_tf=True).fit_transform(grams), normalize(named), sparse.csr_array(scaled)]
    ).tocsr()
    return _through_landmarks(rows, rng)


def _through_landmarks(rows: Any, rng: np.random.Generator) -> FloatArray:
    """Return dense rows with the same products, or nearly so, as the sparse ones."""
    n = rows.shape[0]
    landmarks = np.sort(rng.permutation(n)[:_DIMENSIONS])
    likeness = np.asarray((rows @ rows[landmarks].T).todense(), dtype=np.float64)
    values, vectors = np.linalg.eigh(likeness[landmarks])
    kept = values > 1e-9 * values.max()
    reduced: FloatArray = likeness @ (vectors[:, kept] / np.sqrt(values[kept]))
    return reduced


def out_of_fold(features: FloatArray, folds: IntArray, sides: FloatArray) -> FloatArray:
    """Return a score of each text under each split, higher = more like a member.

    Args:
        features: A row per text.
        folds: The fold of each text.
        sides: +1 for members and -1 for others: a row per text, a column per split.
    """
    parts = [_Part.of(features[folds == k], sides[folds == k]) for k in range(N_FOLDS)]
    agreement = _agreement_within(parts)
    scores = np.empty_like(sides)
    for k, part in enumerate(parts):
        solved = _solve(_Sums.of(other.sums for other in _without(parts, {k})))
        # First the classifier that says nothing: chosen where no penalty agrees with the sides of the other folds.
        by_penalty = np.stack(
            [np.zeros_like(part.sides), *(part.features @ weights - offset for weights, offset in solved)]
        )
        best = np.argmax(np.concatenate([np.zeros_like(agreement[k][:1]), agreement[k]]), axis=0)
        scores[folds == k] = np.take_along_axis(by_penalty, best[None, None], axis=0)[0]
    # Rounded, so that texts of which nothing is known are ties and not ordered by the last bits.
    return np.round(scores, 9)


class _Sums(NamedTuple):
    """What ridge regression needs to know of a set of texts."""

    n: int
    features: FloatArray
    sides: FloatArray
    squares: FloatArray
    products: FloatArray

    @classmethod
    def of(cls, sums: Iterable[_Sums]) -> _Sums:
        """Add up."""
        n, features, sides, squares, products = (sum(parts) for parts in zip(*sums, strict=True))
        return cls(n, features, sides, squares, products)


class _Part(NamedTuple):
    """The texts of one fold."""

    features: FloatArray
    sides: FloatArray
    sums: _Sums

    @classmethod
    def of(cls, features: FloatArray, sides: FloatArray) -> _Part:
        sums = _Sums(len(features), features.sum(axis=0), sides.sum(axis=0), features.T @ features, features.T @ sides)
        return cls(features, sides, sums)


def _without(parts: Sequence[_Part], left_out: set[int]) -> list[_Part]:
    return [part for k, part in enumerate(parts) if k not in left_out]


def _solve(sums: _Sums) -> list[tuple[FloatArray, FloatArray]]:
    """Return, per penalty, weights (a column per split) and the score of the mean text, to be taken off."""
    from scipy.linalg import cho_factor, cho_solve

    mean = sums.features / sums.n
    squares = sums.squares - np.outer(sums.features, mean)
    products = sums.products - np.outer(mean, sums.sides)
    unit = float(np.trace(squares)) / sums.n or 1.0
    solved = []
    for penalty in PENALTIES:
        weights = cho_solve(cho_factor(squares + penalty * unit * np.eye(len(mean))), products)
        # The squares' product with the weights is what the penalty leaves of the right-hand side.
        variance = np.einsum("ij,ij->j", weights, products - penalty * unit * weights) / sums.n
        weights = weights / np.where(variance > 1e-24, np.sqrt(np.maximum(variance, 1e-24)), 1.0)
        solved.append((weights, mean @ weights))
    return solved


def _agreement_within(parts: Sequence[_Part]) -> FloatArray:
    """Return, for each fold, how well each penalty does among the other folds, under each split."""
    n_splits = parts[0].sides.shape[1]
    covered = np.zeros((N_FOLDS, len(PENALTIES), n_splits))
    squared = np.zeros_like(covered)
    for pair in combinations(range(N_FOLDS), 2):
        # One training set without both folds serves twice: each of the two is predicted for the other's choice.
        solved = _solve(_Sums.of(part.sums for part in _without(parts, set(pair))))
        for k, tested in (pair, pair[::-1]):
            for i, (weights, offset) in enumerate(solved):
                scores = parts[tested].features @ weights - offset
                covered[k, i] += np.einsum("ij,ij->j", scores, parts[tested].sides)
                squared[k, i] += np.einsum("ij,ij->j", scores, scores)
    agreement: FloatArray = covered / np.sqrt(np.where(squared > 0, squared, 1.0))
    return agreement
