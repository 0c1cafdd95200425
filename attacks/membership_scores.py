"""The scores of a population's states under a bot, and under what it was before training.

Guarantees: all sides are asked about in one shuffled call, so that no batch holds one side alone; a score that could
not be had is missing, with the reason, and never a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushbot.attacks.state_population import Population
from hushbot.attacks.token_scores import FROM_LOGPROBS, cannot_give, ref_ratio, score
from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.prompts import STATE_MARKER
from hushbot.protocols import Target


class Scored(NamedTuple):
    """One value per state of the population under each score."""

    raw: dict[str, FloatArray]
    missing: dict[str, str]
    """Why the others could not be had, by name."""
    queries: int


def score_population(target: Target, population: Population, names: Sequence[str], seed: int) -> Scored:
    """Score all states; those from log-probabilities whether they are named or not.

    Raises:
        AuditError: A query failed. Where only `min_k_pp` did, that score is missing.
    """
    raw = _score_shuffled(target, population, FROM_LOGPROBS, seed)
    queries = 3 * len(population.units)
    missing = cannot_give(target, names)
    if "min_k_pp" in names and not missing:
        queries += len(population.units)
        try:
            raw |= _score_shuffled(target, population, ("min_k_pp",), seed)
        except AuditError as error:
            missing = {"min_k_pp": str(error)}
    if "ref_ratio" in names:
        missing["ref_ratio"] = "no reference was asked"
    return Scored(raw, missing, queries)


def with_ratio(ours: Scored, reference: Scored | None, reason: str) -> Scored:
    """Return the scores with the reference ratio among them, or with the reason why there is none.

    Args:
        ours: Under the bot.
        reference: Under what it was before training; None where that could not be asked.
        reason: Why.
    """
    if "ref_ratio" not in ours.missing:
        return ours
    missing = {name: why for name, why in ours.missing.items() if name != "ref_ratio"}
    if reference is None:
        return ours._replace(missing={**missing, "ref_ratio": reason})
    return ours._replace(raw={**ours.raw, "ref_ratio": ref_ratio(ours.raw, reference.raw)}, missing=missing)


def _score_shuffled(target: Target, population: Population, names: Sequence[str], seed: int) -> dict[str, FloatArray]:
    units = population.units
    order = np.random.default_rng(seed).permutation(len(units))
    shuffled = score(target, [STATE_MARKER] * len(units), [f" {units[i].text}" for i in order], names=names)
    back = np.argsort(order)
    return {name: values[back] for name, values in shuffled.items()}
