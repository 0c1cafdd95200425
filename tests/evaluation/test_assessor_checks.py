"""Monotonicity is enforced and its breaches are counted; kappa is scikit-learn's."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from hushbot.errors import AuditError
from hushbot.evaluation.assessor_checks import agreement, cohen_kappa, judge
from hushbot.stats import Bootstrap
from hushbot.types import DialogueState, SlotValue


def state(letters: str) -> DialogueState:
    return frozenset(SlotValue("d", letter, "v") for letter in letters)


@dataclass
class Told:
    """Scores states by a table; what is not in it is not answered."""

    table: Mapping[str, float]
    asked: list[list[str]] = field(default_factory=list)
    note: str = "told"

    def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
        names = ["".join(sorted(t.slot for t in found)) for found in states]
        self.asked.append(names)
        return [self.table.get(name) for name in names]


def judged(table: Mapping[str, float], names: Sequence[str]) -> tuple[dict[str, float | None], tuple[int, int]]:
    found = judge([state(name) for name in names], Told(table))
    return {name: found.scores[state(name)] for name in names}, (found.n_violations, found.n_pairs)


def test_a_state_scores_at_least_what_its_parts_score() -> None:
    # Nested pairs: a < ab, b < ab, a < abc, b < abc, ab < abc. Broken: a > ab (3 > 1) and a > abc (3 > 2).
    scores, counts = judged({"a": 3, "b": 1, "ab": 1, "abc": 2, "c d": 0}, ["abc", "ab", "a", "b"])
    assert scores == {"a": 3, "b": 1, "ab": 3, "abc": 3}
    assert counts == (2, 5)


def test_what_is_not_answered_stays_so_and_raises_nothing() -> None:
    scores, counts = judged({"a": 4, "abc": 2}, ["a", "ab", "abc"])
    assert scores == {"a": 4, "ab": None, "abc": 4}
    assert counts == (1, 1)


def test_equal_states_are_not_parts_and_are_asked_once_in_one_order() -> None:
    told = Told({"a": 1, "b": 2, "ab": 2})
    found = judge([state("ab"), state("b"), state("a"), state("ab"), state("")], told)
    again = judge([state(""), state("a"), state("ab"), state("b")], told)
    assert told.asked == [["a", "b", "ab"]] * 2
    assert (found.n_violations, found.n_pairs) == (0, 2)
    assert found == again


def test_violations_are_a_share_with_an_interval() -> None:
    found = judge([state(name) for name in ("a", "b", "ab", "abc")], Told({"a": 3, "b": 1, "ab": 1, "abc": 2}))
    assert found.violations.value == pytest.approx(2 / 5)
    assert found.violations.low is not None
    assert found.violations.high is not None
    assert found.violations.low <= 2 / 5 <= found.violations.high


def test_no_violation_still_has_an_upper_bound_and_no_pair_is_not_measured() -> None:
    clean = judge([state("a"), state("ab"), state("abc")], Told({"a": 1, "ab": 1, "abc": 1})).violations
    assert clean.value == 0
    assert clean.high is not None
    assert clean.high > 0
    assert judge([state("a"), state("b")], Told({"a": 1, "b": 1})).violations.value is None
    assert judge([], Told({})).violations.value is None


def test_enforcement_is_that_of_a_naive_loop() -> None:
    rng = random.Random(0)
    names = sorted({"".join(sorted(rng.sample("abcdef", rng.randint(1, 5)))) for _ in range(40)})
    table = {name: float(rng.randint(0, 5)) for name in names if rng.random() < 0.9}
    scores, counts = judged(table, names)
    pairs = [(a, b) for a in table for b in table if set(a) < set(b)]
    assert len(pairs) > 20
    assert counts == (sum(table[a] > table[b] for a, b in pairs), len(pairs))
    for name in names:
        below = [table[a] for a in table if set(a) <= set(name)]
        assert scores[name] == (max(below) if name in table else None)


@pytest.mark.parametrize("score", [-1.0, 5.5, math.nan, math.inf])
def test_a_score_off_the_scale_is_an_error_that_names_no_value(score: float) -> None:
    with pytest.raises(AuditError, match="must lie in") as caught:
        judge([frozenset({SlotValue("hotel", "name", "golden wok")})], Told({"name": score}))
    assert "golden" not in str(caught.value)


def test_one_score_per_state_is_demanded() -> None:
    class Short(Told):
        def scores(self, states: Sequence[DialogueState]) -> list[float | None]:
            return super().scores(states)[1:]

    with pytest.raises(AuditError, match="1 scores for 2 states"):
        judge([state("a"), state("b")], Short({"b": 1}))


@pytest.mark.parametrize("weights", [None, "linear", "quadratic"])
def test_kappa_is_that_of_scikit_learn(weights: str | None) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        one = rng.integers(0, 6, 30)
        other = np.clip(one + rng.integers(-1, 2, 30), 0, 5)
        # Its weights count ranks among the labels given, ours count points of the scale; with all labels they agree.
        expected = cohen_kappa_score(one, other, weights=weights, labels=range(6))
        pairs = np.stack([one, other], 1).astype(float)
        assert cohen_kappa(pairs, weights) == pytest.approx(expected)  # type: ignore[arg-type]


def test_kappa_by_hand_drops_and_counts_what_is_missing() -> None:
    # Equal in 3 of 4; by chance 1/2 * 3/4 + 1/2 * 1/4 = 1/2; kappa = (3/4 - 1/2) / (1 - 1/2) = 1/2.
    found = agreement([0, 0, 5, 5, None, 3], [0, 0, 0, 5, 2, None], bootstrap=Bootstrap(n_draws=200))
    assert found.kappa.value == pytest.approx(0.5)
    assert found.kappa.n == 4
    assert found.n_dropped == 2


def test_kappa_has_an_interval_over_clusters() -> None:
    one = [float(i % 3) for i in range(60)]
    other = [float(i % 3) if i % 5 else float((i + 1) % 3) for i in range(60)]
    alone = agreement(one, other).kappa
    grouped = agreement(one, other, clusters=[i // 20 for i in range(60)]).kappa
    assert alone.value == grouped.value == pytest.approx(0.7, abs=0.01)
    assert alone.low is not None
    assert alone.high is not None
    assert alone.low < 0.7 < alone.high
    assert "3 clusters" in grouped.method


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ([3, 3, 3], [3, 3, 3], "one score to everything"),
        ([3, 3, 3], [1, 2, 3], "one score to everything"),
        ([None, 1], [1, 1], "fewer than 2"),
        ([], [], "fewer than 2"),
    ],
)
def test_raters_without_spread_are_not_measured(
    one: list[float | None], other: list[float | None], reason: str
) -> None:
    kappa = agreement(one, other).kappa
    assert kappa.value is None
    assert reason in kappa.method


def test_scores_must_pair_up_and_be_whole() -> None:
    with pytest.raises(ValueError, match="2 and 1 scores"):
        agreement([1, 2], [1])
    with pytest.raises(ValueError, match="1 scores are no whole numbers"):
        agreement([1.5, 2], [1, 2])
