"""Which prompts are continued together, in how many rows, and whether rows share what was read of a prompt.

Guarantees: rows and the prompts they share hold at most `batch_tokens` tokens, as long as one row of one prompt fits;
rows that hold a copy of their prompt are sized for prompts of like length, so that at least half of the longest row
is used by each prompt. A prompt is shared where that saves more than it costs to treat its rows as a group.

Voids it: `most_shared` is for whoever admits rows to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

_WORTH_SHARING = 2048
"""From so many tokens on, each counted once per row at one time, it saves time to share a prompt.

Measured on a CPU at width 128, for prompts of 32 to 512 tokens: at 1,024 copies are up to 7 % faster, at 2,048 sharing
is as fast for the shortest prompts and up to 15 % faster for the others, at 3,072 it is 6 to 34 % faster.
"""


class PromptSize(NamedTuple):
    """What counts of a prompt."""

    n_tokens: int
    """Start token included."""
    n_draws: int
    """Of all places where it stands."""


class RowPlan(NamedTuple):
    """Prompts that are continued together."""

    members: list[int]
    """Which prompts, longest first."""
    is_shared: bool
    """Whether a prompt stands once for all rows that continue it, and not in each."""
    n_rows: int
    """Most rows at once."""
    capacity: int
    """Most tokens of a row, a shared prompt not counted."""
    most_shared: int
    """Most tokens of shared prompts at once; a single prompt may have more."""


def plan_rows(
    sizes: Sequence[PromptSize],
    *,
    max_new_tokens: int,
    batch_rows: int,
    batch_tokens: int,
    can_share: Callable[[int], bool],
) -> Iterator[RowPlan]:
    """Yield which prompts are continued together, one plan after the other.

    Args:
        sizes: Of each prompt.
        max_new_tokens: The longest continuation.
        batch_rows: Most rows at once.
        batch_tokens: Most tokens that rows and shared prompts may hold.
        can_share: Told the length of a prompt with its continuation, says whether the prompt may be shared.
    """
    alone: list[int] = []
    shared: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number].n_tokens):
        size = sizes[number]
        n_at_once = min(size.n_draws, batch_rows)
        is_worth_it = n_at_once > 1 and n_at_once * size.n_tokens >= _WORTH_SHARING
        (shared if is_worth_it and can_share(size.n_tokens + max_new_tokens) else alone).append(number)
    if shared:
        longest, n_each = sizes[shared[0]].n_tokens, min(sizes[number].n_draws for number in shared)
        # One prompt, and for each row its own tokens and its part of a prompt.
        n_fit = n_each * (batch_tokens - longest) // (n_each * max_new_tokens + longest)
        n_rows = _within(n_fit, batch_rows, sum(sizes[number].n_draws for number in shared))
        yield RowPlan(shared, True, n_rows, max_new_tokens, batch_tokens - n_rows * max_new_tokens)
    for band in _bands(alone, sizes, max_new_tokens):
        capacity = sizes[band[0]].n_tokens + max_new_tokens
        n_rows = _within(batch_tokens // capacity, batch_rows, sum(sizes[number].n_draws for number in band))
        yield RowPlan(band, False, n_rows, capacity, 0)


def _within(n_fit: int, *limits: int) -> int:
    return max(1, min(n_fit, *limits))


def _bands(numbers: Sequence[int], sizes: Sequence[PromptSize], max_new_tokens: int) -> Iterator[list[int]]:
    """Cut prompts, longest first, where rows sized for the longest would be more than half empty."""
    band: list[int] = []
    for number in numbers:
        if band and 2 * (sizes[number].n_tokens + max_new_tokens) < sizes[band[0]].n_tokens + max_new_tokens:
            yield band
            band = []
        band.append(number)
    if band:
        yield band
