"""Differences between decoders, rankings and prefix lengths, from the records of one run.

Guarantees: a comparison that lacks a row, a score or a side is *not measured*, with the reason, never zero; dialogues
of targeted extraction are resampled with everything that is theirs, on both decoders at once; candidates of untargeted
extraction are resampled with the dialogues taken as given.

Source: Zou and Donner, Statistics in Medicine 2008 (a difference of two estimates from their intervals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from hushbot.intervals import Bootstrap, FloatArray, cluster_bootstrap, paired_bootstrap, unmeasured
from hushbot.types import Estimate

TURNING_POINT = 6
"""The paper's precision falls with the prefix up to so many triplets."""


def rows_of(frame: pd.DataFrame, decoder: str, role: str) -> pd.DataFrame:
    """Return one decoder's rows of one side."""
    return frame[(frame["decoder"] == decoder) & (frame["role"] == role)]


def hits_of(rows: pd.DataFrame | None, beyond: bool) -> FloatArray | None:
    """Return 1 per correct row, minus 1 where the non-members hold it too if asked; None where that is not known."""
    if rows is None or not len(rows):
        return None
    columns = ["is_hit"] if "is_hit" in rows else ["is_member_hit", *(["is_nonmember_hit"] if beyond else [])]
    if rows[columns].isna().any(axis=None):
        return None
    values = [rows[name].to_numpy(dtype=np.float64) for name in columns]
    return values[0] - values[1] if len(values) == 2 else values[0]


def best_rows(rows: pd.DataFrame, ranking: str, k: int, seed: int) -> FloatArray | None:
    """Return 1 for the rows that a ranking puts first, as the attack ranks them; `none` keeps all."""
    if ranking == "none":
        return np.ones(len(rows))
    scores = rows[ranking].to_numpy(dtype=np.float64) if ranking in rows else np.full(len(rows), np.nan)
    if not np.isfinite(scores).all():
        return None
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    mask = np.zeros(len(rows))
    mask[order[:k]] = 1
    return mask


def two_lists(hits: FloatArray, first: FloatArray | None, second: FloatArray | None, bootstrap: Bootstrap) -> Estimate:
    """Return the precision of one list minus that of another, both of the same candidates, which are resampled."""
    if first is None or second is None:
        return unmeasured("a score could not be had for every candidate", level=bootstrap.level)
    if np.array_equal(first, second):
        return unmeasured(f"both rankings keep the same {int(first.sum())}", level=bootstrap.level, n=len(hits))
    table = np.stack([hits * first, first, hits * second, second], axis=1)
    table = table[table[:, 1] + table[:, 3] > 0]
    return cluster_bootstrap(table, None, _ratio_difference, bounds=(-2.0, 2.0), bootstrap=bootstrap)


def _ratio_difference(table: FloatArray) -> float:
    a, n, b, m = table.sum(axis=0)
    return float(a / n - b / m)


def paired_precision(
    frame: pd.DataFrame | None, decoders: tuple[str, str], beyond: bool, bootstrap: Bootstrap
) -> Estimate:
    """Return one decoder's precision minus another's on the same dialogues, which are resampled together.

    Beyond chance, each decoder's precision on the non-members' prefixes is taken off first.
    """
    if frame is None:
        return unmeasured("targeted extraction left no records", level=bootstrap.level)
    roles = ("member", "nonmember") if beyond else ("member",)
    table = _by_dialogue(frame, [(decoder, role) for role in roles for decoder in decoders])

    def difference(rows: FloatArray) -> float:
        parts = [_ratio_difference(rows[:, 4 * i : 4 * i + 4]) for i in range(len(roles))]
        return parts[0] - sum(parts[1:])

    bound = float(len(roles))
    return cluster_bootstrap(table, None, difference, bounds=(-bound, bound), bootstrap=bootstrap)


def paired_counts(frame: pd.DataFrame | None, first: str, second: str, bootstrap: Bootstrap) -> Estimate:
    """Return how many more correct states per dialogue one decoder gives than another."""
    if frame is None or not {first, second} <= set(frame["decoder"]):
        return unmeasured(f"{first} or {second} left no records", level=bootstrap.level)
    table = _by_dialogue(frame, [(first, "member"), (second, "member")])
    return paired_bootstrap(table[:, 0], table[:, 2], bootstrap=bootstrap)


def _by_dialogue(frame: pd.DataFrame, parts: Sequence[tuple[str, str]]) -> FloatArray:
    """Return one row per dialogue: of each (decoder, role), its correct completions and all of them."""
    columns = []
    for decoder, role in parts:
        grouped = rows_of(frame, decoder, role).groupby("dialogue_id")["is_hit"]
        columns += [grouped.sum().astype(float), grouped.count().astype(float)]
    return pd.concat(columns, axis=1).fillna(0.0).sort_index().to_numpy(dtype=np.float64)


def fall_of(frame: pd.DataFrame | None, decoder: str, beyond: bool, bootstrap: Bootstrap) -> Estimate:
    """Return minus the least-squares slope of being right on the prefix length, dialogues resampled."""
    if frame is None:
        return unmeasured("targeted extraction left no records", level=bootstrap.level)
    rows = frame[(frame["decoder"] == decoder) & (frame["prefix_length"] <= TURNING_POINT)]
    if not beyond:
        rows = rows[rows["role"] == "member"]
    table = np.stack(
        [
            rows["prefix_length"].to_numpy(dtype=np.float64),
            rows["is_hit"].to_numpy(dtype=np.float64),
            (rows["role"] == "member").to_numpy(dtype=np.float64),
        ],
        axis=1,
    )

    def fall(drawn: FloatArray) -> float:
        members = _slope(drawn[drawn[:, 2] == 1])
        return _slope(drawn[drawn[:, 2] == 0]) - members if beyond else -members

    return cluster_bootstrap(table, rows["dialogue_id"].tolist(), fall, bounds=(-2.0, 2.0), bootstrap=bootstrap)


def _slope(table: FloatArray) -> float:
    if not len(table):
        return math.nan
    x = table[:, 0] - table[:, 0].mean()
    spread = float(x @ x)
    return float(x @ table[:, 1]) / spread if spread > 0 else math.nan


def difference_of(first: Estimate, second: Estimate) -> Estimate:
    """Return one estimate minus an independent other from their intervals, each end from the ends that move it."""
    ends = (first.value, first.low, first.high, second.value, second.low, second.high)
    if any(end is None for end in ends):
        return unmeasured("; ".join(each.method for each in (first, second) if each.low is None or each.high is None))
    if first.level != second.level:
        raise ValueError(f"intervals at {first.level} and {second.level} do not make one; measure both at one level")
    a, a_low, a_high, b, b_low, b_high = (float(end) for end in ends if end is not None)
    return Estimate(
        value=a - b,
        low=a - b - math.hypot(a - a_low, b_high - b),
        high=a - b + math.hypot(a_high - a, b - b_low),
        level=first.level,
        n=min(first.n, second.n),
        method="square and add, of two independent estimates",
    )
