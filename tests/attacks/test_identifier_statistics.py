"""Exact tests and functionals of samples, against hand-worked values and naive enumeration."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from scipy.stats import fisher_exact

from hushbot.attacks.identifier_statistics import (
    attribution_p,
    fisher,
    hit_at_k,
    is_extractable,
    overlaps,
    self_concentration,
)


@pytest.mark.parametrize(
    ("hits", "n", "control_n", "p"),
    [(5, 32, 32, 0.026), (6, 32, 32, 0.012), (1, 16, 16, 0.5), (2, 30, 240, 0.012)],
)
def test_fisher_has_the_published_values(hits: int, n: int, control_n: int, p: float) -> None:
    assert fisher(hits, n, 0, control_n) == pytest.approx(p, abs=6e-4)


def test_fisher_is_scipys_one_sided_test() -> None:
    for hits, control in product(range(0, 9, 2), range(0, 25, 5)):
        table = [[hits, 8 - hits], [control, 24 - control]]
        assert fisher(hits, 8, control, 24) == pytest.approx(fisher_exact(table, alternative="greater").pvalue)


def test_eight_controls_need_fewer_hits_than_one() -> None:
    assert fisher(5, 66, 0, 66) <= 0.05 < fisher(4, 66, 0, 66)
    assert fisher(2, 30, 0, 240) <= 0.05 < fisher(1, 30, 0, 240)
    assert fisher(3, 42, 0, 336) <= 0.01 < fisher(2, 42, 0, 336)


@pytest.mark.parametrize("rate", [0.01, 0.0424, 0.2])
def test_equal_rates_are_called_at_most_as_often_as_promised(rate: float) -> None:
    """Where leakit's rule attributes one in eight to one in four (n=16, one control), the exact test keeps its 5%."""
    n, m = 16, 128

    def chance(k: int, size: int) -> float:
        return math.comb(size, k) * rate**k * (1 - rate) ** (size - k)

    called = sum(
        chance(k, n) * chance(c, m)
        for k, c in product(range(n + 1), range(m + 1))
        if chance(k, n) > 1e-12 and chance(c, m) > 1e-12 and fisher(k, n, c, m) <= 0.05
    )
    assert called <= 0.05
    leakits = (1 - (1 - rate) ** n) * (1 - rate) ** n
    assert called < leakits or rate == 0.2


def test_one_control_that_gives_it_as_often_undoes_the_attribution() -> None:
    assert attribution_p(4, 16, [0] * 8, 16) == fisher(4, 16, 0, 128)
    assert attribution_p(4, 16, [3, *[0] * 7], 16) == fisher(4, 16, 3, 128)
    assert attribution_p(4, 16, [4, *[0] * 7], 16) == 1.0
    assert attribution_p(0, 16, [0] * 8, 16) == 1.0


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="hits=5"):
        fisher(5, 4, 0, 4)
    with pytest.raises(ValueError, match="k=5"):
        hit_at_k(1, 4, 5)


def test_hit_at_k_is_the_share_of_draws_without_replacement() -> None:
    samples = [True, True, False, False, False]
    for k in range(1, 6):
        draws = list(combinations(samples, k))
        assert hit_at_k(2, 5, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert hit_at_k(0, 5, 5) == 0.0


def test_extractability_is_one_minus_the_chance_of_missing_every_time() -> None:
    assert is_extractable(math.log(0.1), 7, 0.5)  # 1 - 0.9**7 = 0.522
    assert not is_extractable(math.log(0.1), 6, 0.5)  # 1 - 0.9**6 = 0.469
    assert is_extractable(0.0, 1, 0.5)
    assert not is_extractable(-2000.0, 10**6, 0.5)


def test_functionals_of_samples() -> None:
    assert overlaps(["a b", "c", ""], "a b") == (pytest.approx(1 / 3), 1.0)
    assert overlaps([], "a") is None
    assert overlaps(["a"], " ") is None
    # Pairs: {a b}-{a c} 1/3, {a b}-{} 0, {a c}-{} 0; the two empty ones make no pair.
    assert self_concentration(["a b", "a c", ""]) == pytest.approx(1 / 9)
    assert self_concentration(["", ""]) is None
    assert self_concentration(["a"]) is None
