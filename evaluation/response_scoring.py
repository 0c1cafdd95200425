"""How close answers are to the corpus' own, as BLEU.

Guarantees: the point estimate is sacrebleu's corpus score on its scale of 0 to 100; its interval resamples dialogues.
The counts that a corpus score is made of add up, so that other scores can be resampled together with it.

What voids comparability: one reference, plain (not delexicalised) text, tokenizer 13a, case kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hushbot.evaluation.tracking import TrackedTurn
from hushbot.stats import Bootstrap, cluster_bootstrap
from hushbot.types import Estimate

N_COUNTS = 10
"""Matches and totals of four n-gram lengths, and the two texts' lengths."""


def answered(turns: Sequence[TrackedTurn]) -> dict[str, list[tuple[str, str]]]:
    """Return each dialogue's answers beside the corpus' own, where there are both."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for turn in turns:
        if turn.response is not None and turn.reference is not None:
            pairs.setdefault(turn.dialogue.id, []).append((turn.response, turn.reference))
    return pairs


def bleu(turns: Sequence[TrackedTurn], *, seed: int) -> Estimate:
    """Return sacrebleu's corpus score of the responses, on its scale of 0 to 100; `n` counts responses."""
    pairs = answered(turns)
    if not pairs:
        return Estimate(value=None, method="not measured: no response was generated where the corpus has one")
    rows = np.array([bleu_counts(said) for said in pairs.values()], dtype=np.float64)
    found = cluster_bootstrap(rows, None, bleu_of_counts(), bounds=(0.0, 100.0), bootstrap=Bootstrap(seed=seed))
    return found.model_copy(update={"n": sum(len(said) for said in pairs.values())})


def bleu_counts(said: Sequence[tuple[str, str]]) -> list[int]:
    """Return what a corpus score is made of; these counts add up over dialogues."""
    from sacrebleu.metrics.bleu import BLEU  # not at the top: states can be scored without it

    if not said:
        return [0] * N_COUNTS
    score = BLEU().corpus_score([response for response, _ in said], [[reference for _, reference in said]])
    return [*score.counts, *score.totals, score.sys_len, score.ref_len]


def bleu_of_counts() -> Callable[[NDArray[np.float64]], float]:
    """Return the function that makes one corpus score of rows of counts."""
    from sacrebleu.metrics.bleu import BLEU

    def value(rows: NDArray[np.float64]) -> float:
        total = [int(count) for count in rows.sum(axis=0)]
        score = BLEU.compute_bleu(
            correct=total[:4], total=total[4:8], sys_len=total[8], ref_len=total[9], smooth_method="exp"
        )
        return float(score.score)

    return value
