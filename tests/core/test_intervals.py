from __future__ import annotations

import numpy as np
import pytest

from hushbot.errors import AuditError
from hushbot.intervals import Bootstrap, clopper_pearson, cluster_bootstrap, paired_bootstrap

FEW = Bootstrap(n_draws=300)


def test_clopper_pearson_matches_values_done_by_hand() -> None:
    # 0 of n: (1 - high)^n = 2.5%, so high = 1 - 0.025^(1/n).
    nothing = clopper_pearson(0, 32)
    assert (nothing.value, nothing.low) == (0.0, 0.0)
    assert nothing.high == pytest.approx(1 - 0.025 ** (1 / 32))
    everything = clopper_pearson(32, 32)
    assert (everything.value, everything.high) == (1.0, 1.0)
    assert everything.low == pytest.approx(0.025 ** (1 / 32))


def test_clopper_pearson_solves_the_binomial_tails() -> None:
    from scipy.stats import binom

    estimate = clopper_pearson(3, 20, level=0.9)
    assert estimate.low is not None
    assert estimate.high is not None
    assert binom.sf(2, 20, estimate.low) == pytest.approx(0.05)
    assert binom.cdf(3, 20, estimate.high) == pytest.approx(0.05)


def test_no_trials_are_not_measured() -> None:
    estimate = clopper_pearson(0, 0)
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert estimate.method == "not measured: no trials"


@pytest.mark.parametrize(("k", "n", "level"), [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_clopper_pearson_refuses_impossible_counts(k: int, n: int, level: float) -> None:
    with pytest.raises(ValueError, match=r"k=|level="):
        clopper_pearson(k, n, level)


def test_cluster_bootstrap_draws_whole_clusters() -> None:
    # Two clusters of ten equal values each: a resampled mean can only be 0, 1/2 or 1.
    seen: set[float] = set()

    def remember(values: np.ndarray) -> float:
        seen.add(round(float(values.mean()), 6))
        return float(values.mean())

    estimate = cluster_bootstrap([0] * 10 + [1] * 10, ["a"] * 10 + ["b"] * 10, remember, bootstrap=FEW)
    assert seen == {0.0, 0.5, 1.0}
    assert (estimate.low, estimate.value, estimate.high, estimate.n) == (0.0, 0.5, 1.0, 20)
    assert estimate.method == "cluster_bootstrap (2 clusters)"


def test_clustering_widens_the_interval_of_repeated_units() -> None:
    values = np.repeat(np.random.default_rng(0).integers(0, 2, 40), 25)
    clusters = [i // 25 for i in range(1000)]
    wide = cluster_bootstrap(values, clusters, bootstrap=FEW)
    narrow = cluster_bootstrap(values, None, bootstrap=FEW)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)  # type: ignore[operator]


def test_cluster_bootstrap_takes_rows_and_any_statistic() -> None:
    rows = [[1, 2], [0, 1], [3, 4], [2, 3]]  # hits and trials per unit: 6 of 10
    ratio = cluster_bootstrap(rows, None, lambda r: float(r[:, 0].sum() / r[:, 1].sum()), bootstrap=FEW)
    assert ratio.value == pytest.approx(0.6)
    assert ratio.low < 0.6 < ratio.high  # type: ignore[operator]


def test_same_seed_same_interval_other_seed_other_interval() -> None:
    values = np.random.default_rng(1).normal(size=50)
    first, again = (cluster_bootstrap(values, None, bootstrap=Bootstrap(seed=3)) for _ in range(2))
    assert first == again
    assert first != cluster_bootstrap(values, None, bootstrap=Bootstrap(seed=4))


def test_no_hits_still_have_an_upper_bound() -> None:
    estimate = cluster_bootstrap([0] * 60, [i // 3 for i in range(60)], bootstrap=FEW)
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    # 20 clusters, not 60 units, say how much is left open.
    assert estimate.high == pytest.approx(1 - 0.025 ** (1 / 20))


def test_no_spread_without_known_bounds_gives_no_interval() -> None:
    estimate = cluster_bootstrap([7.0] * 9, None, bootstrap=FEW)
    assert (estimate.value, estimate.low, estimate.high) == (7.0, None, None)
    assert "no spread" in estimate.method


def test_one_cluster_gives_a_value_but_no_interval() -> None:
    estimate = cluster_bootstrap([0, 1], ["a", "a"], bootstrap=FEW)
    assert (estimate.value, estimate.low, estimate.high) == (0.5, None, None)
    assert "fewer than 2 clusters" in estimate.method


def test_an_undefined_statistic_is_not_measured() -> None:
    def precision(rows: np.ndarray) -> float:
        return float(rows[:, 0].sum() / rows[:, 1].sum())

    assert cluster_bootstrap([[0, 0], [0, 0]], None, precision, bootstrap=FEW).value is None
    assert cluster_bootstrap([], None, bootstrap=FEW).method == "not measured: no values"
    sometimes = cluster_bootstrap([[0, 0], [1, 1]], None, precision, bootstrap=FEW)
    assert (sometimes.value, sometimes.low) == (1.0, None)
    assert "undefined in" in sometimes.method


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_is_an_error(bad: float) -> None:
    with pytest.raises(AuditError, match="1 of 3 values are NaN or infinite"):
        cluster_bootstrap([0.0, bad, 1.0], None)
    with pytest.raises(AuditError, match="paired_bootstrap: b"):
        paired_bootstrap([0.0, 1.0], [bad, 1.0])


def test_paired_bootstrap_sees_what_the_units_share() -> None:
    noise = np.random.default_rng(0).normal(scale=10, size=80)
    estimate = paired_bootstrap(noise + 1.0 + np.tile([-0.1, 0.1], 40), noise, bootstrap=FEW)
    assert estimate.value == pytest.approx(1.0)
    assert estimate.low > 0.95  # type: ignore[operator]
    assert estimate.high < 1.05  # type: ignore[operator]


def test_paired_bootstrap_of_equal_binary_arms_is_not_certain() -> None:
    estimate = paired_bootstrap([0] * 20, [0] * 20, bootstrap=FEW)
    unseen = 1 - 0.025 ** (1 / 20)
    assert estimate.value == 0.0
    assert (estimate.low, estimate.high) == (pytest.approx(-unseen), pytest.approx(unseen))


def test_paired_bootstrap_refuses_unpaired_values() -> None:
    with pytest.raises(ValueError, match="pair them by unit"):
        paired_bootstrap([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="one per value"):
        paired_bootstrap([1, 2, 3], [1, 2, 3], ["a", "b"])


def test_interval_of_a_clustered_mean_covers_about_its_level() -> None:
    rng = np.random.default_rng(7)
    clusters = [i // 4 for i in range(160)]
    covered = 0
    for trial in range(120):
        values = np.repeat(rng.normal(size=40), 4) + rng.normal(size=160)
        estimate = cluster_bootstrap(values, clusters, bootstrap=Bootstrap(n_draws=200, seed=trial))
        covered += estimate.low < 0 < estimate.high  # type: ignore[operator]
    assert 0.86 <= covered / 120 <= 1.0


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="n_draws=99"):
        Bootstrap(n_draws=99)
