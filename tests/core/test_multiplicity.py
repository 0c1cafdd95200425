from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.errors import AuditError
from hushbot.multiplicity import benjamini_hochberg, holm

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_holm_by_hand() -> None:
    # Sorted 0.01 0.02 0.04 times 3 2 1; the third may not undercut the second.
    assert holm([0.04, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])


def test_benjamini_hochberg_by_hand() -> None:
    # Sorted 0.01 0.02 0.04 0.9 times 4/1 4/2 4/3 4/4: 0.04 0.04 0.0533 0.9.
    assert benjamini_hochberg([0.9, 0.04, 0.01, 0.02]) == pytest.approx([0.9, 0.16 / 3, 0.04, 0.04])


@given(P_VALUES)
def test_adjusting_keeps_order_and_never_lowers(p: list[float]) -> None:
    for adjusted in (holm(p), benjamini_hochberg(p)):
        assert np.all(adjusted >= np.array(p) - 1e-12)
        assert np.all(adjusted <= 1)
        assert np.all(np.diff(adjusted[np.argsort(p, kind="stable")]) >= -1e-12)


@given(P_VALUES)
def test_holm_agrees_with_the_sequential_procedure(p: list[float]) -> None:
    alpha = 0.05
    rejected = set()
    for step, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        if p[i] * (len(p) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, value in enumerate(holm(p)) if value <= alpha} == rejected


def test_no_p_values_give_none() -> None:
    assert len(holm([])) == len(benjamini_hochberg([])) == 0


def test_bad_p_values_are_refused() -> None:
    with pytest.raises(AuditError, match="NaN"):
        holm([0.5, float("nan")])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        benjamini_hochberg([0.5, 1.5])
