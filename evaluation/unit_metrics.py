"""A metric put together again from units that count several times, for many such counts at once.

Guarantees: with every count 1 the value is that of `hushbot.stats` on the same scores, ties included; where a metric is
undefined (a side that was never drawn, a denominator of 0) it is NaN, never 0.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from hushbot.intervals import FloatArray, IntArray

Rule: TypeAlias = Literal["ratio", "auc", "tpr_at_1pct_fpr"]
FALSE_POSITIVE_RATE = 0.01


def metric_values(rule: Rule, values: FloatArray, seconds: FloatArray, counts: FloatArray) -> FloatArray:
    """Return one value per row of counts.

    Args:
        rule: How the metric is made of its units.
        values: One numerator or score per unit, scores higher for members.
        seconds: Its denominator for a ratio; for scores 1 for a member, 0 for what members are held against.
        counts: How often each unit (column) counts in each row.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        if rule == "ratio":
            ratio: FloatArray = (counts @ values) / (counts @ seconds)
            return np.where(np.isfinite(ratio), ratio, np.nan)
        is_member = seconds > 0
        sides = (values[is_member], values[~is_member])
        columns = (counts[:, is_member], counts[:, ~is_member])
        return _auc(sides, columns) if rule == "auc" else _tpr(sides, columns)


def _auc(sides: tuple[FloatArray, FloatArray], counts: tuple[FloatArray, FloatArray]) -> FloatArray:
    levels, position = np.unique(np.concatenate(sides), return_inverse=True)
    n = len(sides[0])
    members = _by_level(counts[0], position[:n], len(levels))
    others = _by_level(counts[1], position[n:], len(levels))
    below = np.cumsum(others, axis=1) - others
    area: FloatArray = (members * (below + others / 2)).sum(axis=1) / (members.sum(axis=1) * others.sum(axis=1))
    return area


def _tpr(sides: tuple[FloatArray, FloatArray], counts: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Choose each row's threshold on the others, so that at most the nominal share lies above it."""
    levels, position = np.unique(-sides[1], return_inverse=True)  # best score first
    others = _by_level(counts[1], position, len(levels))
    above = np.cumsum(others, axis=1) - others
    allowed = np.floor(FALSE_POSITIVE_RATE * others.sum(axis=1) + 1e-9)
    chosen = (above <= allowed[:, None]).sum(axis=1) - 1
    # A member beats a level, and all worse ones, from the first level that lies strictly below its score.
    beats_from = np.searchsorted(levels, -sides[0], side="right")
    order = np.argsort(beats_from, kind="stable")
    caught = np.cumsum(np.pad(counts[0][:, order], ((0, 0), (1, 0))), axis=1)
    n_caught = np.searchsorted(beats_from[order], chosen, side="right")
    rate: FloatArray = caught[np.arange(len(chosen)), n_caught] / counts[0].sum(axis=1)
    return np.where(others.sum(axis=1) > 0, rate, np.nan)


def _by_level(counts: FloatArray, position: IntArray, n_levels: int) -> FloatArray:
    """Add up the counts of units with equal scores."""
    summed: FloatArray = np.zeros((counts.shape[0], n_levels))
    if counts.shape[1]:
        order = np.argsort(position, kind="stable")
        starts = np.flatnonzero(np.diff(position[order], prepend=-1))
        summed[:, position[order][starts]] = np.add.reduceat(counts[:, order], starts, axis=1)
    return summed
