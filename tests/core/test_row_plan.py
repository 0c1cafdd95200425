"""Which prompts are continued together: hand-counted rows, and the bound on tokens that every plan keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.targets.row_plan import PromptSize, RowPlan, plan_rows


def plans(sizes: list[tuple[int, int]], *, can_share: bool = True, **settings: int) -> list[RowPlan]:
    limits: dict[str, Any] = {"max_new_tokens": 100, "batch_rows": 64, "batch_tokens": 16384} | settings
    return list(plan_rows([PromptSize(*size) for size in sizes], can_share=lambda n_tokens: can_share, **limits))


def test_a_long_prompt_of_many_draws_is_shared_and_leaves_room_for_more_rows() -> None:
    assert plans([(500, 640)], can_share=False) == [RowPlan([0], False, 16384 // 600, 600, 0)]
    assert plans([(500, 640)]) == [RowPlan([0], True, 64, 100, 16384 - 64 * 100)]


@pytest.mark.parametrize(
    ("n_tokens", "n_draws", "is_shared"),
    [
        (32, 64, True),  # 2,048 tokens that 64 rows would each hold a copy of
        (31, 64, False),
        (31, 6400, False),  # no more than 64 rows at once
        (5000, 1, False),
    ],
)
def test_a_prompt_is_shared_where_that_saves_enough(n_tokens: int, n_draws: int, is_shared: bool) -> None:
    assert [plan.is_shared for plan in plans([(n_tokens, n_draws)])] == [is_shared]


def test_few_draws_leave_room_for_a_prompt_for_every_few_rows() -> None:
    # One prompt of 2,000 tokens, then rows that hold 100 tokens and half a prompt each.
    (plan,) = plans([(2000, 2)] * 50)
    assert plan.n_rows == (16384 - 2000) // (100 + 1000) == 13
    assert plan.most_shared == 16384 - 1300


def test_copies_are_sized_for_prompts_of_like_length() -> None:
    found = plans([(30, 1), (400, 1), (300, 1), (149, 1)], batch_rows=8)
    assert [plan.members for plan in found] == [[1, 2], [3, 0]]
    assert [plan.capacity for plan in found] == [500, 249]
    assert [plan.n_rows for plan in found] == [2, 2]
    # 250 tokens are half of 500.
    assert [plan.members for plan in plans([(30, 1), (400, 1), (300, 1), (150, 1)])] == [[1, 2, 3], [0]]


def test_there_is_always_a_row() -> None:
    assert [plan.n_rows for plan in plans([(9000, 4), (20, 1)], batch_tokens=10)] == [1, 1]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 200)), min_size=1, max_size=8),
    max_new_tokens=st.integers(1, 300),
    batch_rows=st.integers(1, 100),
    batch_tokens=st.integers(2300, 20000),
)
def test_every_prompt_has_one_plan_and_no_plan_holds_too_many_tokens(
    sizes: list[tuple[int, int]], max_new_tokens: int, batch_rows: int, batch_tokens: int
) -> None:
    found = plans(sizes, max_new_tokens=max_new_tokens, batch_rows=batch_rows, batch_tokens=batch_tokens)
    assert sorted(number for plan in found for number in plan.members) == list(range(len(sizes)))
    for plan in found:
        longest = max(sizes[number][0] for number in plan.members)
        assert longest == sizes[plan.members[0]][0]
        assert 1 <= plan.n_rows <= batch_rows
        shared = max(plan.most_shared, longest) if plan.is_shared else 0
        assert plan.n_rows * plan.capacity + shared <= batch_tokens
        assert plan.capacity == max_new_tokens + (0 if plan.is_shared else longest)
