"""Headlines taken apart into dialogues, so that two bots can be compared on the same ones.

Guarantees: putting the units together again (`Units.rule`) gives the headline's value; a headline that was not measured
has no units, for nothing is not zero. Documents are dialogue ids, as every attack gives them; whoever writes a report
hashes them.

What voids it: two bots have the same documents only where split, seed and the attack's settings are the same. What
several dialogues decide together (a threshold, whose prefix a state was first completed from, which identifiers are
called) was decided once, by all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from hushbot.attacks.state_metrics import StateIndex
from hushbot.intervals import FloatArray
from hushbot.types import Dialogue, DialogueState, Units

if TYPE_CHECKING:
    from hushbot.attacks.completions import Side  # only its type: scores need nothing that writes texts

Scores: TypeAlias = Mapping[Literal["member", "nonmember", "calibration"], tuple[FloatArray, Sequence[str]]]
"""By side: one score per unit, higher = more like a member, and the dialogue of each."""


def score_units(rule: Literal["auc", "tpr_at_1pct_fpr"], scores: Scores) -> Units:
    """Return the units of a rule that reads scores of several sides."""
    return Units(
        rule=rule,
        documents=[name for _, names in scores.values() for name in names],
        values=[float(value) for values, _ in scores.values() for value in values],
        sides=[side for side, (values, _) in scores.items() for _ in values],
    )


def extraction_units(states: Sequence[DialogueState], truth: StateIndex, dialogues: Sequence[Dialogue]) -> Units | None:
    """Share correct candidates out among the dialogues that hold them; a candidate of several is divided equally.

    Args:
        states: The candidates that the precision is of.
        truth: The side that they are counted against.
        dialogues: All of that side: each has an equal part of the denominator, whatever came out.
    """
    if not (states and truth.owners):
        return None
    values = dict.fromkeys((dialogue.id for dialogue in dialogues), 0.0)
    for state in states:
        holders = truth.holders(state)
        for name in holders:
            values[name] += 1 / len(holders)
    return Units(
        rule="ratio",
        documents=list(values),
        values=list(values.values()),
        weights=[len(states) / len(values)] * len(values),
    )


def completion_units(side: Side) -> Units | None:
    """Count completed states, and correct ones, by the dialogue that their prefix is of.

    A prefix of several dialogues is the first one's, as in the headline's interval. Dialogues whose prefixes gave
    nothing weigh nothing: they are there so that every bot has the same documents.
    """
    completions = side.completions
    if not completions:
        return None
    weights = Counter(completion.prefix.dialogue_id for completion in completions)
    hits = Counter(completion.prefix.dialogue_id for completion in completions if completion.is_hit)
    names = sorted({prefix.dialogue_id for prefix in side.prefixes})
    return Units(
        rule="ratio",
        documents=names,
        values=[float(hits[name]) for name in names],
        weights=[float(weights[name]) for name in names],
    )
