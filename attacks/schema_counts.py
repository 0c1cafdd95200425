"""What probes of a bot found, counted against the true schema: precision, recall, F1, and how many questions it took.

Guarantees: a slot is a (domain, slot) pair; names are compared after trimming and folding case. Intervals resample
names, each with what all runs made of it: runs that find the same name are no further evidence. What cannot be counted
is not measured, never zero.

What voids it: names that mean the same and are spelled otherwise, which count as wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from hushbot.attacks.schema_asking import Pair, Trace
from hushbot.intervals import DEFAULT_BOOTSTRAP, from_draws
from hushbot.schema import Schema
from hushbot.stats import unmeasured
from hushbot.types import Estimate, Metric

Rows = list[tuple[float, float]]
"""Numerator and denominator of each name."""


def counted(traces: Sequence[Trace], true: set[Pair], curve: Sequence[int]) -> dict[str, Metric]:
    """Return what all runs of one method found, and how fast."""
    folded = [
        trace._replace(seen=[frozenset(_fold(*pair) for pair in pairs) for pairs in trace.seen]) for trace in traces
    ]
    found = [trace.pairs() for trace in folded]
    metrics: dict[str, Metric] = {**rates(found, true)}
    metrics["slot_f1_best"] = _best([_ratio(_f1_rows([pairs], true), "names") for pairs in found])
    needed = [n_needed(trace, true) for trace in folded]
    if any(n is None for n in needed):
        metrics |= {"questions": None, "asked": None}
    else:
        asked = [(n or 0) * trace.n_queries / len(trace.seen) for n, trace in zip(needed, folded, strict=True)]
        metrics["questions"] = float(np.mean([n or 0 for n in needed]))
        metrics["asked"] = float(np.mean(asked))
    for n in curve:
        if n <= min(len(trace.seen) for trace in folded):
            metrics[f"slot_recall@{n}"] = _ratio(_recall_rows([t.pairs(n) for t in folded], true), "true names")
    return metrics


def rates(found: Sequence[set[Pair]], true: set[Pair]) -> dict[str, Estimate]:
    """Return precision and recall of domains and slots, and slot F1, of all runs together."""
    domains, true_domains = [{domain for domain, _ in pairs} for pairs in found], {domain for domain, _ in true}
    return {
        "domain_precision": _ratio(_precision_rows(domains, true_domains), "names found"),
        "domain_recall": _ratio(_recall_rows(domains, true_domains), "true names"),
        "slot_precision": _ratio(_precision_rows(found, true), "names found"),
        "slot_recall": _ratio(_recall_rows(found, true), "true names"),
        "slot_f1": _ratio(_f1_rows(found, true), "names") if any(found) else unmeasured("no slot was found"),
    }


def _precision_rows(found: Sequence[set[Any]], true: set[Any]) -> Rows:
    counts = Counter(name for names in found for name in names)
    return [(count * (name in true), count) for name, count in counts.items()]


def _recall_rows(found: Sequence[set[Any]], true: set[Any]) -> Rows:
    return [(sum(name in names for names in found), len(found)) for name in true]


def _f1_rows(found: Sequence[set[Pair]], true: set[Pair]) -> Rows:
    counts = Counter(pair for pairs in found for pair in pairs)
    return [
        (2 * counts[pair] * (pair in true), counts[pair] + len(found) * (pair in true)) for pair in true | counts.keys()
    ]


def _ratio(rows: Rows, of: str) -> Estimate:
    """Return the sum of the first entries over that of the second; the interval resamples rows, one per name."""
    if not rows:
        return unmeasured(f"there are no {of}")
    # Names of which the runs made the same are alike to the bootstrap: it draws how many of each kind there are.
    kinds, counts = np.unique(np.array(rows, dtype=np.float64), axis=0, return_counts=True)
    rng = np.random.default_rng(DEFAULT_BOOTSTRAP.seed)
    drawn = rng.multinomial(len(rows), counts / len(rows), size=DEFAULT_BOOTSTRAP.n_draws) @ kinds
    top, bottom = counts @ kinds
    estimate = from_draws(
        float(top / bottom),
        drawn[:, 0] / drawn[:, 1],
        n=len(rows),
        n_clusters=len(rows),
        level=DEFAULT_BOOTSTRAP.level,
        bounds=(0.0, 1.0),
    )
    return estimate.model_copy(update={"method": f"{estimate.method} over {of}"})


def _best(runs: Sequence[Estimate]) -> Estimate:
    values = [run.value for run in runs if run.value is not None]
    if not values:
        return unmeasured("no slot was found")
    return Estimate(value=max(values), n=len(runs), method=f"best of {len(runs)} runs, so without an interval")


def n_needed(trace: Trace, true: set[Pair]) -> int | None:
    """Return after how many questions F1 was first as high as it ever was; None where it was never above 0."""
    best, needed = 0.0, None
    pairs: set[Pair] = set()
    for n, found in enumerate(trace.seen, start=1):
        if found <= pairs:
            continue
        pairs |= found
        f1 = 2 * len(pairs & true) / (len(pairs) + len(true))
        if f1 > best:
            best, needed = f1, n
    return needed


def names_of(schema: Schema) -> set[Pair]:
    """Return the pairs of a schema, as they are compared."""
    return {_fold(slot.domain, slot.name) for slot in schema.slots}


def _fold(domain: str, slot: str) -> Pair:
    return domain.strip().casefold(), slot.strip().casefold()
