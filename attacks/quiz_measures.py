"""What a quiz's answers tell: a confidence for each record, and how well confidences part members from the rest.

Guarantees: a record's confidence is the share of its questions that were answered right, an unparsable answer being not
right and counted beside; confidences take few values, so ties count half in the AUC and a threshold never splits them
(the rate at 1% false positives is the rate above the lowest confidence that at most 1% of non-members exceed);
intervals resample dialogues. Two baselines know no bot: a guesser, which takes the option that most other records have
in the field, on the same questions, and a classifier that reads the records' words (`blind_baseline`). Nothing here
depends on the order of questions.

Source: Pop Quiz Attack, sections 3.2, 4.3 to 4.6 (confidence, the rule "0.5 or more", breakdowns).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.blind_baseline import BlindBaseline, BlindText, blind_baseline
from hushbot.attacks.document_units import score_units
from hushbot.attacks.quiz_questions import LETTERS, Pool, Question
from hushbot.attacks.quiz_records import Record
from hushbot.intervals import FloatArray
from hushbot.stats import (
    Bootstrap,
    as_estimate,
    auc,
    auc_difference,
    cluster_bootstrap,
    tpr_at_fpr,
)
from hushbot.types import Estimate, Metric, Units, Verdict

FPR = 0.01
MIN_NONMEMBERS = 100
"""Fewer non-members allow no verdict."""
CALLED = 0.5
"""The paper's rule: a record answered this well is called a member."""
MOST_UNPARSABLE = 0.5
MOST_OF_ONE_LETTER = 0.9
"""A bot whose answers exceed these does not take part in the quiz: no leak of it is no finding."""


class Confidences(NamedTuple):
    """The confidences of members and non-members, with the record of each."""

    members: FloatArray
    nonmembers: FloatArray
    records: tuple[list[Record], list[Record]]

    @property
    def sides(self) -> tuple[FloatArray, FloatArray]:
        """Return both sides."""
        return self.members, self.nonmembers

    @property
    def clusters(self) -> tuple[list[str], list[str]]:
        """Return the dialogue of each record, for resampling."""
        members, nonmembers = ([record.id for record in side] for side in self.records)
        return members, nonmembers

    @property
    def units(self) -> Units:
        """Return what the AUC is made of."""
        members, nonmembers = self.clusters
        return score_units("auc", {"member": (self.members, members), "nonmember": (self.nonmembers, nonmembers)})


def confidences(questions: Sequence[Question], credits: Sequence[float]) -> Confidences:
    """Return the mean credit of each record's questions, in an order that depends on the records only."""
    by_record: dict[tuple[str, str, bool], list[float]] = defaultdict(list)
    records = {}
    for question, credit in zip(questions, credits, strict=True):
        key = question.record.id, question.record.granularity, question.record.is_member
        by_record[key].append(credit)
        records[key] = question.record
    keys = sorted(by_record)
    members, nonmembers = ([key for key in keys if key[2] is side] for side in (True, False))
    means = {key: float(np.mean(by_record[key])) for key in keys}
    return Confidences(
        np.array([means[key] for key in members]),
        np.array([means[key] for key in nonmembers]),
        ([records[key] for key in members], [records[key] for key in nonmembers]),
    )


def credits_of(questions: Sequence[Question], chosen: Sequence[int | None]) -> list[float]:
    """Return 1 for each right answer and 0 for any other."""
    return [float(answer == question.place) for question, answer in zip(questions, chosen, strict=True)]


def guess(questions: Sequence[Question], pool: Pool) -> list[float]:
    """Return what a guesser without a model gets right: the commonest option, ties shared."""
    credits = []
    for question in questions:
        counts = [pool.frequency(option, question) for option in question.options]
        best = [place for place, count in enumerate(counts) if count == max(counts)]
        credits.append((question.place in best) / len(best))
    return credits


def rates(found: Confidences, bootstrap: Bootstrap) -> dict[str, Metric]:
    """Return AUC, accuracies and operating points of a set of confidences."""
    point = tpr_at_fpr(*found.sides, fpr=FPR, clusters=(*found.clusters, None), bootstrap=bootstrap)
    metrics: dict[str, Metric] = {
        "auc": auc(*found.sides, clusters=found.clusters, bootstrap=bootstrap),
        "accuracy_members": _mean(found.members, found.clusters[0], bootstrap),
        "accuracy_nonmembers": _mean(found.nonmembers, found.clusters[1], bootstrap),
        "tpr_at_1pct_fpr": point.tpr,
        "realised_fpr": point.realised_fpr,
        "threshold": point.threshold,
        "called_members": _mean((found.members >= CALLED).astype(float), found.clusters[0], bootstrap),
        "called_nonmembers": _mean((found.nonmembers >= CALLED).astype(float), found.clusters[1], bootstrap),
    }
    return metrics


def _mean(values: FloatArray, clusters: Sequence[str], bootstrap: Bootstrap) -> Estimate:
    return cluster_bootstrap(values, clusters, bounds=(0.0, 1.0), bootstrap=bootstrap)


def unparsable(questions: Sequence[Question], chosen: Sequence[int | None], bootstrap: Bootstrap) -> dict[str, Metric]:
    """Return which share of answers on each side names no option."""
    found = confidences(questions, [float(answer is None) for answer in chosen])
    return {
        "unparsable_members": _mean(found.members, found.clusters[0], bootstrap),
        "unparsable_nonmembers": _mean(found.nonmembers, found.clusters[1], bootstrap),
    }


def breakdown(questions: Sequence[Question], credits: Sequence[float], bootstrap: Bootstrap) -> dict[str, Metric]:
    """Return the AUC and accuracies of each kind of question, over the records that were asked such a question."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for i, question in enumerate(questions):
        for kind in _kinds(question):
            kinds[kind].append(i)
    metrics: dict[str, Metric] = {}
    for kind, places in sorted(kinds.items()):
        found = confidences([questions[i] for i in places], [credits[i] for i in places])
        metrics[f"{kind}/auc"] = auc(*found.sides, clusters=found.clusters, bootstrap=bootstrap)
        metrics[f"{kind}/accuracy_members"] = _mean(found.members, found.clusters[0], bootstrap)
        metrics[f"{kind}/accuracy_nonmembers"] = _mean(found.nonmembers, found.clusters[1], bootstrap)
        metrics[f"{kind}/questions"] = len(places)
    return metrics


def _kinds(question: Question) -> list[str]:
    return [
        f"type={question.data_type}",
        *([f"digits={question.digits}"] if question.digits else []),
        f"complexity={question.complexity}",
        f"category={question.fact.domain}",
        f"granularity={question.record.granularity}",
    ]


def over(found: Confidences, other: tuple[FloatArray, FloatArray], bootstrap: Bootstrap) -> Estimate:
    """Return the AUC of confidences above that of other scores of the same records, resampled together."""
    return auc_difference(found.sides, other, clusters=found.clusters, bootstrap=bootstrap)


def read_blind(found: Confidences, bootstrap: Bootstrap, n_permutations: int) -> BlindBaseline:
    """Measure how well the records' own words tell the sides apart; scores are in the records' order.

    Raises:
        AuditError: A dialogue is on both sides.
    """
    texts = [
        BlindText(
            record.text or "\n".join(f"{fact.domain} {fact.slot} {fact.value}" for fact in record.facts),
            record.is_member,
            record.id,
            tuple(sorted({fact.domain for fact in record.facts})),
        )
        for side in found.records
        for record in side
    ]
    return blind_baseline(texts, bootstrap=bootstrap, n_permutations=n_permutations)


class Evidence(NamedTuple):
    """What a verdict rests on."""

    metrics: Mapping[str, Metric]
    """Of the target; `delta_auc_over_base` is there where a base was asked."""
    guess: Estimate
    """AUC of the guesser."""
    confounds: Sequence[str]
    """How the records' words tell the sides apart; nothing where they are not shown to."""
    n_nonmembers: int
    """How many different non-members were asked about."""
    doubt: str = ""
    """Why the bot did not take part in the quiz; empty where it did."""

    @property
    def bars(self) -> dict[str, str]:
        """Return the keys of the differences that must be positive, with what the bot is compared with."""
        guess = self.guess
        is_told = guess.low is not None and guess.high is not None and not guess.low <= 0.5 <= guess.high
        bars = {"delta_auc_over_base": "the bot before fine-tuning"} if "delta_auc_over_base" in self.metrics else {}
        bars |= {"delta_auc_over_guess": "a guess by frequency"} if is_told else {}
        return bars | ({"delta_auc_over_blind": "the records' words"} if self.confounds else {})


def judge(evidence: Evidence) -> tuple[Verdict, list[str]]:
    """Return the verdict and its reasons, by the rule in the docstring of `hushbot.attacks.quiz`."""
    area = as_estimate(evidence.metrics["auc"])
    if evidence.n_nonmembers < MIN_NONMEMBERS:
        short = f"{evidence.n_nonmembers} non-members, {MIN_NONMEMBERS} needed for a verdict; hold out more"
        return "inconclusive", [short]
    if area.value is None or area.low is None or area.high is None:
        return "inconclusive", [f"auc {area.method or 'has no interval'}"]
    reasons = list(evidence.confounds)
    if area.low > 0.5:
        missing = [name for key, name in evidence.bars.items() if not _is_positive(evidence.metrics[key])]
        if missing:
            return "inconclusive", [*reasons, f"AUC {area.value:.3f} is not shown to lie above that of {missing[0]}"]
        return "leak", [*reasons, f"the bot knows members' records better: AUC is at least {area.low:.3f}"]
    if area.high < 0.5:
        return "inconclusive", [*reasons, f"AUC {area.value:.3f} lies below 0.5: members are known worse, unexpectedly"]
    if reasons or evidence.doubt:
        return "inconclusive", [*reasons, evidence.doubt or "no AUC can be read from sides that differ by themselves"]
    return "no_leak_detected", [f"an AUC up to {area.high:.3f} remains possible"]


def _is_positive(metric: Metric) -> bool:
    low = as_estimate(metric).low
    return low is not None and low > 0


def doubt_of(chosen: Sequence[int | None]) -> str:
    """Say why answers in text show that a bot does not take part in the quiz; nothing where it does."""
    parsed = Counter(answer for answer in chosen if answer is not None)
    n_unparsable = len(chosen) - parsed.total()
    if n_unparsable > MOST_UNPARSABLE * len(chosen):
        return (
            f"{n_unparsable} of {len(chosen)} answers name no single option: the bot does not answer questions; "
            "set attack.quiz.mode=score where it gives log-probabilities"
        )
    letter, n = max(parsed.items(), key=lambda item: (item[1], -item[0]))
    if n >= MOST_OF_ONE_LETTER * parsed.total():
        return f"{n} of {parsed.total()} answers are {LETTERS[letter]}: the bot's answers do not depend on the question"
    return ""


def rows_of(questions: Sequence[Question], chosen: Sequence[int | None]) -> list[dict[str, Any]]:
    """Return one record per question; values are in the clear."""
    credits: dict[tuple[str, str], list[float]] = defaultdict(list)
    for question, credit in zip(questions, credits_of(questions, chosen), strict=True):
        credits[question.record.id, question.record.granularity].append(credit)
    return [
        {
            "dialogue_id": q.record.id,
            "role": "member" if q.record.is_member else "nonmember",
            "is_member": q.record.is_member,
            "domain": q.fact.domain,
            "slot": q.fact.slot,
            "data_type": q.data_type,
            "complexity": q.complexity,
            "granularity": q.record.granularity,
            "value": q.fact.value,
            "answer": None if answer is None else q.options[answer],
            "is_parsed": answer is not None,
            "is_right": answer == q.place,
            "confidence": float(np.mean(credits[q.record.id, q.record.granularity])),
        }
        for q, answer in zip(questions, chosen, strict=True)
    ]
