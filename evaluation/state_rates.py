"""From scored turns to rates: joint goal accuracy, precision, recall and F1, as estimates and by dialogue.

Guarantees: every rate is a ratio of sums over turns that count, with an interval that resamples whole dialogues; taken
apart into dialogues, the parts' sums give the very same ratio. A rate of nothing is not measured, never 0.

What voids comparability: rules of scoring, see `hushbot.evaluation.state_scoring`.

Source: joint goal accuracy as in the MultiWOZ read-me's tracking convention; precision, recall and F1 are
micro-averages over triplets, a wrong value being one spurious and one missed triplet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushbot.evaluation.state_scoring import STRICT, ScoringRules, States, TurnScore, score_turns
from hushbot.stats import Bootstrap, cluster_bootstrap, unmeasured
from hushbot.types import Estimate, Units

Part: TypeAlias = tuple[str, float, float]
"""A dialogue's id and what one of its units adds to the numerator and the denominator of a ratio."""

_PARTS: Mapping[str, Callable[[TurnScore], tuple[float, float]]] = {
    "joint_goal_accuracy": lambda s: (s.is_correct, 1),
    "state_precision": lambda s: (s.matched, s.matched + s.spurious),
    "state_recall": lambda s: (s.matched, s.matched + s.missed),
    "state_f1": lambda s: (2 * s.matched, 2 * s.matched + s.spurious + s.missed),
}
STATE_METRICS = tuple(_PARTS)
_NOTHING = {
    "joint_goal_accuracy": "no turn was scored",
    "state_precision": "no triplet was predicted",
    "state_recall": "the gold has no triplet",
    "state_f1": "neither side has a triplet",
}


def dialogue_state_metrics(
    predicted: States, gold: States, *, rules: ScoringRules = STRICT, seed: int = 0
) -> dict[str, Estimate]:
    """Compare predicted states with gold ones.

    Args:
        predicted: The state of each turn; None where a prediction could not be read.
        gold: The state of each turn; None where the corpus does not know it.
        rules: What counts as right.
        seed: Seed of the bootstrap over dialogues.

    Returns:
        `joint_goal_accuracy`, `joint_goal_accuracy_nonempty` (turns with a non-empty gold state only),
        `state_precision`, `state_recall`, `state_f1`, `coverage_dialogues` and `coverage_turns`; `n` is the
        denominator of each.

    Raises:
        DataError: A predicted dialogue is not in the gold, or has more turns than it.
    """
    return estimates(score_turns(predicted, gold, rules), seed=seed)


def parts(scores: Sequence[TurnScore], metric: str) -> list[Part]:
    """Return what each turn that counts adds to numerator and denominator of one of `STATE_METRICS`."""
    return [(score.dialogue_id, *_PARTS[metric](score)) for score in scores if score.counts]


def estimates(scores: Sequence[TurnScore], *, seed: int = 0) -> dict[str, Estimate]:
    """Summarise scored turns; `dialogue_state_metrics` says how."""
    known = [score for score in scores if score.outcome != "unknown"]
    answered = {(score.dialogue_id, score.turn) for score in known if score.outcome != "missing"}
    nonempty = [score for score in scores if not score.is_empty]
    return {
        **{name: state_estimate(scores, name, seed=seed) for name in STATE_METRICS},
        "joint_goal_accuracy_nonempty": state_estimate(
            nonempty, "joint_goal_accuracy", seed=seed, nothing="no scored turn has a gold triplet"
        ),
        "coverage_dialogues": _share(len({name for name, _ in answered}), len({s.dialogue_id for s in known})),
        "coverage_turns": _share(len(answered), len(known)),
    }


def state_estimate(scores: Sequence[TurnScore], metric: str, *, seed: int, nothing: str = "") -> Estimate:
    """Return one of `STATE_METRICS` over scored turns.

    Args:
        scores: The turns.
        metric: Its name.
        seed: Seed of the bootstrap.
        nothing: Why there is no number where there is none; empty says the usual.
    """
    return ratio_by_dialogue(parts(scores, metric), nothing=nothing or _NOTHING[metric], seed=seed)


def ratio_by_dialogue(pairs: Sequence[Part], *, nothing: str, seed: int, upper: float = 1.0) -> Estimate:
    """Return a ratio of sums with an interval that resamples dialogues.

    Args:
        pairs: (dialogue id, numerator, denominator) per unit.
        nothing: Why there is no number where the denominators sum to 0.
        seed: Seed of the bootstrap.
        upper: The largest possible ratio; the smallest is 0.
    """
    # A dialogue without any unit says nothing about the ratio and is no cluster of it.
    rows = np.array([row for row in _sums(pairs).values() if row[1] > 0])
    total = int(rows[:, 1].sum()) if len(rows) else 0
    if total == 0:
        return unmeasured(nothing)
    found = cluster_bootstrap(
        rows,
        None,
        lambda drawn: float(drawn[:, 0].sum() / drawn[:, 1].sum()),
        bounds=(0.0, upper),
        bootstrap=Bootstrap(seed=seed),
    )
    return found.model_copy(update={"n": total})


def ratio_units(pairs: Sequence[Part]) -> Units:
    """Return a ratio of sums taken apart into dialogues; one without any unit stays, with weight 0.

    So that two bots have the same documents, whatever they predicted.
    """
    sums = _sums(pairs)
    return Units(
        rule="ratio",
        documents=list(sums),
        values=[float(row[0]) for row in sums.values()],
        weights=[float(row[1]) for row in sums.values()],
    )


def _sums(pairs: Sequence[Part]) -> dict[str, NDArray[np.float64]]:
    sums: dict[str, NDArray[np.float64]] = {}
    for name, numerator, denominator in pairs:
        sums.setdefault(name, np.zeros(2))
        sums[name] += (numerator, denominator)
    return sums


def _share(part: int, whole: int) -> Estimate:
    """Return a share that was counted in full, so that its interval is a point."""
    if whole == 0:
        return unmeasured("no known gold state")
    share = part / whole
    return Estimate(value=share, low=share, high=share, n=whole, method="full count")
