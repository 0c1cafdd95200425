"""Score predicted dialogue states against gold ones, turn by turn, by rules that are named.

Guarantees: a turn is right only if its set of triplets is exactly the gold one; any alternative of a gold
value counts as right; values are compared after trimming, case folding and collapsing blanks, and never by
similarity. Every gold turn has exactly one outcome, so nothing is zipped to the shorter: a missing prediction
is wrong (or skipped, if the rules say so) and counted, an unreadable one is wrong and counted, an unknown
gold state is not scored and counted. Inputs are not changed. What it comes to is in
`hushbot.evaluation.state_rates`.

What voids comparability: rules. Ignoring don't-care moves published systems by up to 5.5 points of joint goal
accuracy, so the rules belong beside every number (`ScoringRules.protocol`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from hushbot.errors import DataError
from hushbot.types import DialogueState

States: TypeAlias = Mapping[str, Sequence[DialogueState | None]]
"""Dialogue id -> the state of each user turn."""
Outcome: TypeAlias = Literal["scored", "unparsed", "missing", "unknown"]

DONTCARE = "dontcare"
DONTCARE_SPELLINGS = frozenset(
    ["dontcare", "dont care", "don't care", "do n't care", "do not care", "does not care", "doesn't care"]
)
ABSENT_SPELLINGS = frozenset(["", "none", "not mentioned", "not men"])

_Slot: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringRules:
    """What counts as right; every choice that is known to move published numbers."""

    dontcare: Literal["strict", "ignore"] = "strict"
    """`strict`: don't-care is a value like any other. `ignore`: slots whose gold or predicted value it is are
    left out, as some published scores do."""
    missing: Literal["wrong", "skip"] = "wrong"
    """What a gold turn without any prediction is: a wrong turn, or one that is not scored."""
    drop_none: bool = False
    """Treat `none`, `not mentioned` and empty values as an absent slot (the MultiWOZ convention). Off by
    default: in schema-guided corpora `None` is a real value."""

    def __post_init__(self) -> None:
        for name, choices in (("dontcare", ("strict", "ignore")), ("missing", ("wrong", "skip"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}={getattr(self, name)!r} must be one of {', '.join(choices)}")

    @property
    def ignored(self) -> frozenset[str]:
        """Return the normalised values that do not count."""
        values = ABSENT_SPELLINGS if self.drop_none else frozenset[str]()
        return values | {DONTCARE} if self.dontcare == "ignore" else values

    def protocol(self) -> dict[str, Any]:
        """Return the rules in words, to stand beside the numbers."""
        return asdict(self) | {
            "values": "trimmed, case folded, blanks collapsed, don't-care spellings unified; exact otherwise",
            "alternatives": "any value listed by the gold state counts as right",
            "averaging": "joint goal accuracy per turn; precision, recall and F1 micro over triplets",
        }


STRICT = ScoringRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScore:
    """The outcome of one gold turn."""

    dialogue_id: str
    turn: int
    outcome: Outcome
    """`unparsed`: the prediction is None; `missing`: there is none; `unknown`: the gold state is None."""
    counts: bool
    """Whether the turn is in the denominator."""
    is_correct: bool = False
    """Whether the predicted set of triplets is exactly the gold one."""
    matched: int = 0
    spurious: int = 0
    missed: int = 0
    is_empty: bool = False
    """Whether the gold state has no triplet."""


def score_turns(predicted: States, gold: States, rules: ScoringRules = STRICT) -> list[TurnScore]:
    """Return the outcome of every gold turn, in the order of the gold."""
    unknown = [name for name in predicted if name not in gold]
    if unknown:
        raise DataError(
            f"predictions for {len(unknown)} dialogues that the gold lacks, such as {unknown[0]!r}; "
            "use one corpus and one spelling of ids"
        )
    scores = []
    for name, states in gold.items():
        guesses = predicted.get(name, ())
        if len(guesses) > len(states):
            raise DataError(f"dialogue {name}: {len(guesses)} predicted turns for {len(states)} gold turns")
        for i, state in enumerate(states):
            scores.append(_score(name, i, guesses[i : i + 1], state, rules))
    return scores


def counts(scores: Sequence[TurnScore]) -> dict[str, int]:
    """Return how many turns had each outcome, and over how many turns a rate is taken."""
    found = {f"turns_{name}": sum(s.outcome == name for s in scores) for name in ("unparsed", "missing", "unknown")}
    return {"turns_counted": sum(score.counts for score in scores), **found}


def _score(
    name: str,
    turn: int,
    guess: Sequence[DialogueState | None],
    gold: DialogueState | None,
    rules: ScoringRules,
) -> TurnScore:
    if gold is None:
        return TurnScore(dialogue_id=name, turn=turn, outcome="unknown", counts=False)
    accepted = _accepted(name, turn, gold, rules.ignored)
    if not guess or guess[0] is None:
        is_missing = not guess
        return TurnScore(
            dialogue_id=name,
            turn=turn,
            outcome="missing" if is_missing else "unparsed",
            counts=not (is_missing and rules.missing == "skip"),
            missed=len(accepted),
            is_empty=not accepted,
        )
    found = _predicted(guess[0], accepted, rules.ignored)
    matched = sum(any((slot, value) in found for value in values) for slot, values in accepted.items())
    return TurnScore(
        dialogue_id=name,
        turn=turn,
        outcome="scored",
        counts=True,
        is_correct=matched == len(found) == len(accepted),
        matched=matched,
        spurious=len(found) - matched,
        missed=len(accepted) - matched,
        is_empty=not accepted,
    )


def _accepted(name: str, turn: int, state: DialogueState, ignored: frozenset[str]) -> dict[_Slot, frozenset[str]]:
    """Return the right values of each gold slot; a slot of which every value is ignored is left out."""
    accepted: dict[_Slot, frozenset[str]] = {}
    for triplet in state:
        slot = (normalised(triplet.domain), normalised(triplet.slot))
        if slot in accepted:
            raise DataError(f"dialogue {name}, turn {turn}: the gold state has two values for {'-'.join(slot)}")
        accepted[slot] = frozenset(_value(value) for value in triplet.values)
    return {slot: values for slot, values in accepted.items() if not values <= ignored}


def _predicted(
    state: DialogueState, accepted: Mapping[_Slot, frozenset[str]], ignored: frozenset[str]
) -> set[tuple[_Slot, str]]:
    """Return the predicted triplets that count; an ignored value does if the gold lists it beside others."""
    found = set()
    for triplet in state:
        slot, value = (normalised(triplet.domain), normalised(triplet.slot)), _value(triplet.value)
        if value not in ignored or value in accepted.get(slot, ()):
            found.add((slot, value))
    return found


@lru_cache(maxsize=65536)
def normalised(text: str) -> str:
    """Return a text as names of domains and slots are compared: case folded, blanks collapsed."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=65536)
def _value(text: str) -> str:
    value = normalised(text)
    return DONTCARE if value in DONTCARE_SPELLINGS else value
