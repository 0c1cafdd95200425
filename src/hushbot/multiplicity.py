"""Many tests at once: p-values adjusted for the family-wise error or the false discovery rate.

Guarantees: results stand in the order of the input, ties get equal values, and nothing exceeds 1. Holm
holds under any dependence; Benjamini-Hochberg under independence or positive dependence, which voids it
otherwise.

Source: Holm, Scandinavian Journal of Statistics 6 (1979); Benjamini and Hochberg, JRSS B 57 (1995).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hushbot.intervals import FloatArray, IntArray, finite_array


def holm(p_values: ArrayLike) -> FloatArray:
    """Return p-values adjusted for family-wise error (step-down), in the given order."""
    p = _checked_p_values(p_values)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    return _unsort(np.minimum(steps, 1.0), order)


def benjamini_hochberg(p_values: ArrayLike) -> FloatArray:
    """Return q-values: p-values adjusted for the false discovery rate (step-up), in the given order."""
    p = _checked_p_values(p_values)
    order = np.argsort(p, kind="stable")
    ratios = p[order] * len(p) / np.arange(1, len(p) + 1)
    return _unsort(np.minimum(np.minimum.accumulate(ratios[::-1])[::-1], 1.0), order)


def _checked_p_values(p_values: ArrayLike) -> FloatArray:
    p = finite_array("p-values", p_values)
    if p.ndim != 1 or np.any((p < 0) | (p > 1)):
        raise ValueError("p-values must be one list of numbers in [0, 1]")
    return p


def _unsort(values: FloatArray, order: IntArray) -> FloatArray:
    result = np.empty_like(values)
    result[order] = values
    return result
