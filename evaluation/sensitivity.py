"""How private is what an attack got out: PII score, marginal privacy score, agreement of two assessors.

Of the correct extractions of an attack, with S an assessor's score of a state (0 to 5, `evaluation.assessors`):

* **PII score**: the mean over the triplets of a suffix, each scored by itself;
* **marginal privacy score**: (S(prefix + suffix) - S(prefix)) / S(prefix). A prefix that scores 0 gives no ratio and is
  counted (`zero_prefixes`); an attack without prefixes has no such score.

`sensitivity/<decoder>/<ranking>/pii_score` and `.../marginal_privacy_score` rest on the correct ones among the best k
of a ranking; the ranking `all` takes all of them. Each completed state counts once, from its shortest prefix. The same
keys among the controls are the non-members': what a bot infers that never saw these people.

Guarantees: **monotonicity is enforced**: the score of a state is at least that of each of its parts that was asked.
How often the assessor itself broke the rule is `sensitivity/violations`, a share of the nested pairs. An answer that
is missing, and everything that needs it, is not measured and counted (`unanswered`), never 0. Each distinct state is
asked once, in an order of its own. Intervals resample dialogues where rows name them. Notes hold counts, no values.

What voids it: the assessor's errors; where more is asked, enforcement may raise more.

Source: Task-oriented dialogue state extraction, section V-F and Figure 12.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.state_candidates import RANKINGS
from hushbot.attacks.state_metrics import normalise_state
from hushbot.errors import HushbotError
from hushbot.evaluation.assessor_checks import N_DRAWS, judge, order_of
from hushbot.evaluation.assessors import HIGHEST, Assessor, OfflineAssessor
from hushbot.intervals import Bootstrap, cluster_bootstrap
from hushbot.prompts import STATE_MARKER, read_state
from hushbot.stats import orient, unmeasured
from hushbot.types import AttackResult, DialogueState, Estimate, Metric

_COMPLETION = frozenset(["decoder", "role", "dialogue_id", "prefix", "suffix", "is_hit"])
_CANDIDATE = frozenset(["decoder", "state", "is_member_hit", "is_nonmember_hit"])


class Finding(NamedTuple):
    """One extracted state of one side."""

    decoder: str
    role: str
    """`member` or `nonmember`: whose states it was compared with."""
    prefix: DialogueState
    """What the attacker knew; empty in an untargeted attack."""
    state: DialogueState
    """Prefix and suffix together."""
    is_hit: bool
    dialogue_id: str | None
    """The cluster; None where the attack names no dialogue."""
    ranks: Mapping[str, float | None]
    """Raw scores by ranking."""

    @property
    def suffix(self) -> DialogueState:
        """Return the triplets that the attacker did not know."""
        return self.state - self.prefix


class Assessed(NamedTuple):
    """What an assessment adds to an attack's result."""

    metrics: dict[str, Metric]
    control: dict[str, Metric]
    """The same keys, of the non-members."""
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """Whether and how extractions are assessed."""

    enabled: bool = False
    """Whether they are assessed at all."""
    k: int = 100
    """How many of the best under each ranking; at least 1."""
    assessor: Any = field(default_factory=OfflineAssessor)
    """Who scores states; a component with `scores` and `note`."""

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k={self.k} must be at least 1")
        if not callable(getattr(self.assessor, "scores", None)):
            raise ValueError(f"assessor is a {type(self.assessor).__name__}, which has no scores(states)")

    def add_to(self, result: AttackResult, *, seed: int) -> AttackResult:
        """Return an attack's result with the metrics of its extractions; others are returned as they are.

        An assessor that fails leaves everything else of the result standing.
        """
        if not (self.enabled and holds_extractions(result.rows)):
            return result
        try:
            found = assess(result.rows, self.assessor, k=self.k, seed=seed)
        except HushbotError as error:
            # Its message is not repeated: it may quote what the assessor was asked.
            reason = f"the assessor failed with {type(error).__name__}; mend it, or set sensitivity.enabled=false"
            found = Assessed(
                {"sensitivity/violations": unmeasured(reason)}, {}, [f"sensitivity not measured: {reason}"]
            )
        control = dict(result.control)
        if found.control:
            control["nonmembers"] = {**(control.get("nonmembers") or {}), **found.control}
        return result.model_copy(
            update={
                "metrics": {**result.metrics, **found.metrics},
                "control": control,
                "notes": [*result.notes, *found.notes],
            }
        )


def holds_extractions(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an attack's rows are extracted states that have been compared with somebody's."""
    if not rows:
        return False
    return rows[0].keys() >= _COMPLETION or (rows[0].keys() >= _CANDIDATE and rows[0]["is_member_hit"] is not None)


def assess(rows: Sequence[Mapping[str, Any]], assessor: Assessor, *, k: int = 100, seed: int) -> Assessed:
    """Score the correct extractions of both sides.

    Args:
        rows: Of an extraction attack: completions (`decoder`, `role`, `dialogue_id`, `prefix`, `suffix`, `is_hit`) or
            candidates (`decoder`, `state`, `is_member_hit`, `is_nonmember_hit`), with the raw scores of rankings.
        assessor: Who scores.
        k: How many of the best under each ranking.
        seed: Of the random ranking and of intervals.

    Raises:
        AuditError: The assessor failed, or a score of its is no number from 0 to 5.
    """
    findings = read_findings(rows)
    judged = judge([part for finding in findings if finding.is_hit for part in _parts(finding)], assessor, seed=seed)
    sides: dict[str, dict[str, Metric]] = {"member": {}, "nonmember": {}}
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.role, finding.decoder].append(finding)
    for (role, decoder), group in groups.items():
        measured = _measure(group, judged.scores, k, seed)
        sides[role] |= {f"sensitivity/{decoder}/{name}": metric for name, metric in measured.items()}
    n_unanswered = sum(score is None for score in judged.scores.values())
    notes = [
        f"sensitivity by {getattr(assessor, 'note', '') or type(assessor).__name__}: {len(judged.scores)} distinct "
        f"states asked, {n_unanswered} without an answer; the assessor broke monotonicity in {judged.n_violations} of "
        f"{judged.n_pairs} nested pairs, which is mended"
    ]
    return Assessed({**sides["member"], "sensitivity/violations": judged.violations}, sides["nonmember"], notes)


def read_findings(rows: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Read states from rows; each distinct one once per decoder and side, from its shortest prefix."""
    ordered = sorted(
        (finding for row in rows for finding in _findings_of(row) if finding.suffix),
        key=lambda f: (f.role, f.decoder, len(f.prefix), order_of(f.prefix), order_of(f.state)),
    )
    distinct: dict[tuple[str, str, DialogueState], Finding] = {}
    for finding in ordered:
        distinct.setdefault((finding.role, finding.decoder, finding.state), finding)
    return list(distinct.values())


def _findings_of(row: Mapping[str, Any]) -> list[Finding]:
    """Read a row: one finding of a completion, one per side of a candidate."""
    ranks = {name: row.get(name) for name in RANKINGS}
    if "suffix" in row:
        prefix = _state_of(str(row["prefix"]))
        state = prefix | _state_of(f"{row['prefix']}{row['suffix']}")
        return [Finding(row["decoder"], row["role"], prefix, state, bool(row["is_hit"]), row["dialogue_id"], ranks)]
    state, nothing = _state_of(str(row["state"])), DialogueState()
    return [
        Finding(row["decoder"], role, nothing, state, bool(row[f"is_{role}_hit"]), None, ranks)
        for role in ("member", "nonmember")
    ]


def _state_of(text: str) -> DialogueState:
    return normalise_state(read_state(f"{STATE_MARKER} {text}").state or DialogueState())


def _parts(finding: Finding) -> list[DialogueState]:
    """Return what is asked about a finding: each triplet, the prefix, everything."""
    return [*(DialogueState([triplet]) for triplet in finding.state), finding.prefix, finding.state]


def _measure(
    findings: Sequence[Finding], scores: Mapping[DialogueState, float | None], k: int, seed: int
) -> dict[str, Metric]:
    """Return the scores of one decoder on one side, by ranking."""
    hits = [finding for finding in findings if finding.is_hit]
    metrics: dict[str, Metric] = {
        "correct": len(hits),
        "unanswered": sum(any(scores.get(part, 0) is None for part in _parts(hit)) for hit in hits),
        "zero_prefixes": sum(bool(hit.prefix) and scores[hit.prefix] == 0 for hit in hits),
    }
    shuffled = [findings[i] for i in np.random.default_rng(seed).permutation(len(findings))]
    for ranking in ("all", "none", *RANKINGS):
        best = _best(shuffled, ranking, k)
        for name, values_of in (("pii_score", _pii_score), ("marginal_privacy_score", _marginal_score)):
            key = f"{ranking}/{name}"
            if best is None:
                metrics[key] = unmeasured(f"some extractions have no {ranking}")
            else:
                chosen = [finding for finding in best if finding.is_hit]
                metrics[key] = _mean(chosen, [values_of(finding, scores) for finding in chosen], name, seed)
    return metrics


def _best(findings: list[Finding], ranking: str, k: int) -> list[Finding] | None:
    """Return the best k under a ranking, ties in the order given; None where one of them cannot be ranked."""
    if ranking == "all":
        return findings
    if ranking == "none":
        return findings[:k]
    raw = [finding.ranks[ranking] for finding in findings]
    known = [value for value in raw if value is not None and math.isfinite(value)]
    if len(known) < len(raw):
        return None
    return [findings[i] for i in np.argsort(-orient(ranking, known), kind="stable")[:k]]


def _pii_score(finding: Finding, scores: Mapping[DialogueState, float | None]) -> float | None:
    """Return the mean over the suffix's triplets; None where one of them has no score."""
    each = [scores[DialogueState([triplet])] for triplet in finding.suffix]
    known = [score for score in each if score is not None]
    return sum(known) / len(known) if len(known) == len(each) else None


def _marginal_score(finding: Finding, scores: Mapping[DialogueState, float | None]) -> float | None:
    """Return the relative increase over the prefix; None without a prefix that scores more than 0."""
    before, after = scores.get(finding.prefix), scores[finding.state]
    return None if not before or after is None else (after - before) / before


def _mean(findings: Sequence[Finding], values: Sequence[float | None], name: str, seed: int) -> Estimate:
    known = [(finding, value) for finding, value in zip(findings, values, strict=True) if value is not None]
    if not known:
        reason = (
            "no correct extraction" if not findings else f"none of {len(findings)} correct extractions has a {name}"
        )
        return unmeasured(reason)
    clusters = [finding.dialogue_id or (i,) for i, (finding, _) in enumerate(known)]
    numbers = [value for _, value in known]
    # On the scale of whole numbers the least prefix above 0 scores 1 and may rise to 5.
    top = float(HIGHEST) if name == "pii_score" else max(float(HIGHEST - 1), *numbers)
    bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)
    estimate = cluster_bootstrap(numbers, clusters, bounds=(0.0, top), bootstrap=bootstrap)
    left_out = len(findings) - len(known)
    return estimate.model_copy(update={"method": f"{estimate.method}; {left_out} left out"}) if left_out else estimate
