"""How long a bot takes for one turn, asked one at a time as in a conversation.

Guarantees: turns that the bot was run over are drawn at random and done once more, each by itself: its state, the
lookup, actions and response where responses are on, guards included, after the text that it read then. Answers are
greedy and thrown away, so no other number changes. The first turn warms up and does not count. The median has a
distribution-free interval (order statistics, binomial). A GPU has finished before the clock is read. Answers that are
kept from earlier (`hushbot.targets.cache`) are not used. Over HTTP it is the round trip, waiting and retries included.

What voids it: other work on the same machine or server; a longer conversation than those measured.
Source: the order-statistic interval of a quantile, David and Nagaraja, Order Statistics (2003), section 7.1.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import bdtr

from hushbot.errors import AuditError
from hushbot.evaluation.bot import Bot
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.protocols import Target
from hushbot.stats import unmeasured
from hushbot.targets.cache import CachedTarget
from hushbot.targets.guarded import GuardedTarget
from hushbot.types import Estimate

FEWEST_TURNS = 6
"""With fewer the median has no interval of level 0.95."""


def seconds_per_turn(
    bot: Bot, turns: Sequence[TrackedTurn], *, n_turns: int, is_answering: bool, seed: int
) -> Estimate:
    """Return the median time in which the bot does one turn, one at a time; a failing target gives none.

    Args:
        bot: The bot.
        turns: What it did when it was run over dialogues.
        n_turns: How many turns are timed, at most.
        is_answering: Whether it also acts and answers.
        seed: Of the draw of turns.
    """
    offered = [turn for turn in turns if turn.reference is not None or not is_answering]
    if len(offered) <= FEWEST_TURNS:
        return unmeasured(f"{len(offered)} turns to time, {FEWEST_TURNS} and one to warm up needed")
    drawn = random.Random(seed).sample(offered, min(n_turns + 1, len(offered)))
    try:
        # An asker of its own: nothing that the utility's counts is asked here.
        fresh = replace(bot, asker=replace(bot.asker, target=without_memory(bot.asker.target), n_squeezed=0))
        seconds = [_time(fresh, turn, is_answering=is_answering) for turn in drawn]
    except AuditError as error:
        return unmeasured(str(error))
    found = median(seconds[1:])
    what = "state and response" if is_answering else "state only"
    return found if found.value is None else found.model_copy(update={"method": f"{found.method}; {what}"})


def median(seconds: Sequence[float], *, level: float = 0.95) -> Estimate:
    """Return the median with its distribution-free interval; the ends are two of the values."""
    n = len(seconds)
    # So many order statistics from either end leave at most half of 1 - level outside.
    rank = int(np.count_nonzero(bdtr(np.arange(n), n, 0.5) <= (1 - level) / 2))
    if rank == 0:
        return unmeasured(f"{n} turns were timed, too few for an interval of level {level:g}", level=level, n=n)
    ordered = sorted(seconds)
    return Estimate(
        value=statistics.median(ordered),
        low=ordered[rank - 1],
        high=ordered[n - rank],
        level=level,
        n=n,
        method="median of turns asked one at a time, order statistics",
    )


def without_memory(target: Target) -> Target:
    """Return the target without what remembers its answers.

    Raises:
        AuditError: The memory stands behind a guard.
    """
    while isinstance(target, CachedTarget):
        target = target.inner
    inner = target
    while isinstance(inner, GuardedTarget):
        inner = inner.inner
        if isinstance(inner, CachedTarget):
            raise AuditError(
                "the bot's answers are kept behind a guard, and memory has no latency; guard the bot first"
            )
    return target


def _time(bot: Bot, turn: TrackedTurn, *, is_answering: bool) -> float:
    started = _now()
    bot.repeat(turn, is_answering=is_answering)
    return _now() - started


def _now() -> float:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
