"""What decoders got out of a bot, counted against one side or both.

Guarantees: every number is `<decoder>/<ranking>/<metric>`; a side without any known state gives "not measured", never
zero; rankings drop nothing, so what is counted over all candidates is the same under each.

What voids it: counts against sides of different sizes do not compare (`state_sides` cuts them to one).

Source: Task-oriented dialogue state extraction, section V-B (Tables II and III).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hushbot.attacks.decoding import Decoder, resolved
from hushbot.attacks.state_candidates import RANKINGS, Harvest
from hushbot.attacks.state_judgement import RANKING, Rule, judged_metrics
from hushbot.attacks.state_metrics import (
    N_DRAWS,
    StateIndex,
    extraction_metrics,
    paired_differences,
    precision_curve,
)
from hushbot.attacks.state_sides import Sides
from hushbot.stats import Bootstrap, auc, orient, unmeasured
from hushbot.types import DialogueState, Estimate, Metric

SEQUENCES_PER_CANDIDATE = 3
"""Texts that the four scores of one candidate need: whole, suffix after prefix, suffix alone."""


class Found(NamedTuple):
    """What one decoder got out of one bot."""

    decoder: Decoder
    harvest: Harvest
    n_queries: int
    notes: list[str]


def measured(
    found: Mapping[str, Found], truth: StateIndex, rule: Rule, curve: Sequence[int], seed: int
) -> dict[str, Metric]:
    """Count every decoder's candidates against one side, all of them and the best k of each ranking.

    Args:
        found: What each decoder got.
        truth: The side.
        rule: Says how many are the best, and which the verdict rests on.
        curve: Further numbers of best ones whose precision is measured.
        seed: Of the random order, and of intervals.
    """
    metrics: dict[str, Metric] = {}
    for spec, each in found.items():
        rankings = _of_rankings(each.harvest, truth, rule, curve, seed)
        metrics |= {f"{spec}/{name}": value for name, value in rankings.items()}
    return metrics


def _of_rankings(harvest: Harvest, truth: StateIndex, rule: Rule, curve: Sequence[int], seed: int) -> dict[str, Metric]:
    if not truth.owners:  # nothing can be found on such a side, which is not the same as finding nothing
        reason = "the side has no known dialogue state"
        return {f"{name}/state_precision@{rule.k}": unmeasured(reason) for name in ("none", *RANKINGS)}
    states = harvest.states
    metrics: dict[str, Metric] = {}
    over_all = extraction_metrics(states, truth)
    for ranking, order in harvest.rankings(seed).items():
        ranked = [states[i] for i in order]
        best = extraction_metrics(ranked[: rule.k], truth, suffix=f"@{rule.k}")
        values = precision_curve(ranked, truth, curve) | over_all | best
        metrics |= {f"{ranking}/{name}": value for name, value in values.items()}
    judged = judged_metrics(harvest, truth, rule, seed)
    metrics |= {f"{RANKING}/{name}": value for name, value in judged.items()}
    for ranking in RANKINGS:
        reason = harvest.failures.get(ranking, "nothing was extracted")
        metrics.setdefault(f"{ranking}/state_precision@{rule.k}", unmeasured(reason))
    return metrics


def best_states(harvest: Harvest, k: int, seed: int) -> list[DialogueState]:
    """Return the k states that the registered ranking puts first; none where it failed."""
    order = harvest.rankings(seed).get(RANKING, [])
    return [harvest.states[i] for i in order[:k]]


def differences(found: Mapping[str, Found], sides: Sides, k: int, seed: int) -> dict[str, Estimate]:
    """Return every decoder's and ranking's paired differences."""
    metrics: dict[str, Estimate] = {}
    for spec, each in found.items():
        harvest = each.harvest
        if not (sides.n_equal and harvest.candidates):
            continue
        hits = [
            [side.holds(state) for state in harvest.states] for side in (sides.equal_members, sides.equal_nonmembers)
        ]
        orders = harvest.rankings(seed)
        slices = [("none", "", orders["none"])]
        slices += [(name, f"@{k}", order[:k]) for name, order in orders.items()]
        for ranking, suffix, chosen in slices:
            parts = paired_differences(
                [len(harvest.states[i]) for i in chosen],
                *([side[i] for i in chosen] for side in hits),
                suffix=suffix,
                seed=seed,
            )
            metrics |= {f"{spec}/{ranking}/{name}": value for name, value in parts.items()}
    return metrics


def sample_counts(found: Mapping[str, Found]) -> dict[str, Metric]:
    """Return what became of each decoder's samples."""
    return {f"{spec}/{name}": n for spec, each in found.items() for name, n in each.harvest.counts.items()}


def hit_aucs(found: Mapping[str, Found], truth: StateIndex, seed: int) -> dict[str, Metric]:
    """Return how well each score parts the candidates that are members' states from the others."""
    metrics: dict[str, Metric] = {}
    for spec, each in found.items():
        hits = [truth.holds(state) for state in each.harvest.states]
        for ranking, values in each.harvest.scores.items():
            high = orient(ranking, values)
            sides = [[float(v) for v, hit in zip(high, hits, strict=True) if hit is wanted] for wanted in (True, False)]
            bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)
            area = auc(sides[0], sides[1], bootstrap=bootstrap)
            if area.value is None:
                metrics[f"{spec}/{ranking}/hit_auc"] = unmeasured("all or none of the candidates are members' states")
                continue
            method = f"{area.method} over candidates, dialogues taken as given"
            metrics[f"{spec}/{ranking}/hit_auc"] = area.model_copy(update={"method": method})
    return metrics


def _of_harvest(harvest: Harvest, k: int) -> list[str]:
    counts = harvest.counts
    n = len(harvest.candidates)
    notes = [
        f"{n} distinct states in {counts['samples']} samples; {counts['parse_failures']} held no state, "
        f"{counts['empty_states']} an empty one, {counts['cut_states']} were cut (closed triplets are kept)"
    ]
    if n < k:
        notes.append(f"fewer than {k} distinct states: @{k} uses all {n}")
    return notes + [f"ranking {name} not measured: {reason}" for name, reason in harvest.failures.items()]


def rows(found: Found, sides: Sides) -> list[dict[str, Any]]:
    """Return one record per candidate of a decoder."""
    harvest = found.harvest
    return [
        {
            "decoder": found.decoder.name,
            "state": candidate.text,
            "n_triplets": len(candidate.state),
            "count": candidate.count,
            "is_member_hit": sides.equal_members.holds(candidate.state) if sides.n_equal else None,
            "is_nonmember_hit": sides.equal_nonmembers.holds(candidate.state) if sides.n_equal else None,
            **{name: float(values[i]) for name, values in harvest.scores.items()},
        }
        for i, candidate in enumerate(harvest.candidates)
    ]


def found_notes(found: Mapping[str, Found], k: int, *, settings: bool = True) -> list[str]:
    """Return what is worth saying of each decoder; with its settings, unless they stand elsewhere."""
    notes = []
    for spec, each in found.items():
        notes += [f"{spec}: {note}" for note in _of_harvest(each.harvest, k)]
        notes += [*each.notes, *([resolved(each.decoder)] if settings else [])]
    return notes
