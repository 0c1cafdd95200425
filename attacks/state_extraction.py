"""Untargeted extraction: ask a bot for a dialogue state without any dialogue, and see whose come out.

**Threat model.** Score-based black box (paper, section III-B2): the attacker samples continuations of
`Belief State:` and may ask how probable a text is. The attacker knows nothing of the training data.

**Method** (sections IV-A and V-B). Sample `n_samples` continuations plainly (temperature 1, whole
vocabulary), read a state from each, keep each distinct state once (`state_candidates`), rank the states by a
membership score and keep the best `k`. Rankings: `none` (a seeded random order), `ppl`, `ppl_zlib`, `c_ppl`,
`dc_ppl`; the prefix of a state is the prompt, its suffix the state as hushbot writes it.

**What is counted.** The metrics of `state_metrics`: `vanilla/<ranking>/<metric>` over all distinct states
(the same under every ranking, since ranking drops nothing) and `vanilla/<ranking>/<metric>@<k>` over the best
k. With fewer than k states all are used, and the estimate's n says how many.

Where the sides differ in number, both are counted on as many dialogues of each, or a headline and its chance line
could not be compared; counts over all of the members then stand under `members_all/...`, without a control.

**Controls.** `nonmembers`: the same candidates against as many people whom the bot never saw. `base`: as many
samples of the bot before fine-tuning, against the same members. `difference`: members minus as many non-members,
paired over candidates; its slices by number of triplets and its other rankings are exploratory.

**Verdict.** One pre-registered test, at the headline (`dc_ppl`, best k). A leak if the 95% interval of the
paired difference lies above zero *and* the split itself is exceptional: `randomisation_p` is at most 0.05.
The second condition is there because the first resamples candidates only: fifty candidates may all be parts
of one dialogue, and luck in where that dialogue fell would look like fifty findings. Dialogues that the split keeps
together (same goal or same final state) are dealt together there, too. A failed query, be it to
the base control, fewer than 20 candidates or a side without known states give `inconclusive`; a leak that was
not found comes with the largest difference that stays compatible.

**What voids it.** Non-members that come from elsewhere than the members (another year, another city) differ
by more than membership. Values and short states are population knowledge: never read their precision without
its control.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from hushbot.attacks.state_candidates import RANKINGS, Harvest, read_candidates, score_candidates
from hushbot.attacks.state_metrics import (
    StateIndex,
    extraction_metrics,
    paired_differences,
    randomisation_p,
)
from hushbot.attacks.state_sides import Sides, take_sides
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import unmeasured
from hushbot.types import AttackResult, AuditSplit, Decoding, Estimate, Headline, Metric, Verdict

DECODER = "vanilla"
HEADLINE_RANKING = "dc_ppl"
ALL_MEMBERS = "members_all"
"""Prefix of counts over all members, where those are more than the non-members."""
MIN_CANDIDATES = 20
"""With fewer distinct states there is no verdict."""
SIZE = 0.05
"""Size of the test behind the verdict."""
SEQUENCES_PER_CANDIDATE = 3
"""Texts that the four scores of one candidate need: whole, suffix after prefix, suffix alone."""


class Base(NamedTuple):
    """The control of the bot before fine-tuning."""

    metrics: dict[str, Metric] | None
    n_queries: int
    notes: list[str]
    has_failed: bool
    """Whether a query failed, as opposed to there being no such bot."""


@dataclass(frozen=True, kw_only=True)
class UntargetedExtraction:
    """Sample states out of nothing, rank them, and count whose they are."""

    n_samples: int = 10_000
    """How many continuations to sample, from the target and again from its reference; at least 1."""
    max_new_tokens: int = 128
    """Where a sample is cut; at least 1."""
    k: int = 100
    """How many of the best-ranked states the headline rests on; at least 20."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value} is below {least}; set attack.untargeted_extraction.{name}"
            for name, value, least in (
                ("n_samples", self.n_samples, 1),
                ("max_new_tokens", self.max_new_tokens, 1),
                ("k", self.k, MIN_CANDIDATES),
            )
            if value < least
        ]
        if problems:
            raise ConfigError(*problems)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Attack the target; the schema is not used, since the attacker does not know it."""
        started = time.perf_counter()
        try:
            harvest = self._harvest(target, seed)
        except AuditError as error:
            return self._failed(f"sampling failed: {error}", time.perf_counter() - started)
        sides = take_sides(split, seed)
        metrics = measure(harvest, sides.equal_members, self.k, seed)
        headline = self._headline(_estimate(metrics[self._key]))
        if len(split.members) > sides.n_equal:
            everyone = measure(harvest, sides.members, self.k, seed)
            metrics |= {f"{ALL_MEMBERS}/{name}": value for name, value in everyone.items()}
        difference, p = compare(harvest, sides, self.k, seed)
        base = self._base(target, sides, seed)
        verdict, reason = judge(harvest, sides, difference.get(self._key), p)
        return AttackResult(
            verdict="inconclusive" if base.has_failed else verdict,
            headline=headline,
            metrics={f"{DECODER}/{name}": count for name, count in harvest.counts.items()} | metrics,
            control={
                "nonmembers": measure(harvest, sides.equal_nonmembers, self.k, seed) if sides.n_equal else None,
                "base": base.metrics,
                "difference": difference,
                "randomisation_p": p,
            },
            queries=_n_queries(harvest) + base.n_queries,
            seconds=time.perf_counter() - started,
            notes=[reason, *_notes(harvest, self.k), *sides.notes, *base.notes],
            rows=_rows(harvest, sides),
        )

    @property
    def _key(self) -> str:
        """Return the headline's full key, in metrics and controls alike."""
        return f"{DECODER}/{HEADLINE_RANKING}/state_precision@{self.k}"

    def _headline(self, estimate: Estimate) -> Headline:
        return Headline(metric=f"state_precision@{self.k}", estimate=estimate, key=self._key)

    def _harvest(self, target: Target, seed: int) -> Harvest:
        """Sample and score; raises AuditError only if there are no samples."""
        (samples,) = target.sample(
            [STATE_MARKER],
            n=self.n_samples,
            max_new_tokens=self.max_new_tokens,
            decoding=Decoding(),
            seed=seed,
        )
        if len(samples) != self.n_samples:
            raise AuditError(f"the target returned {len(samples)} of {self.n_samples} samples")
        return score_candidates(target, read_candidates(samples))

    def _base(self, target: Target, sides: Sides, seed: int) -> Base:
        """Measure the bot before fine-tuning."""
        if target.reference is None:
            return Base(None, 0, ["base control not measured: the target has no reference model"], False)
        try:
            harvest = self._harvest(target.reference, seed)
        except AuditError as error:
            return Base(None, 0, [f"base control not measured: sampling failed: {error}"], True)
        counts: dict[str, Metric] = {f"{DECODER}/{name}": count for name, count in harvest.counts.items()}
        notes = [f"base control: {note}" for note in _notes(harvest, self.k)]
        metrics = counts | measure(harvest, sides.equal_members, self.k, seed)
        return Base(metrics, _n_queries(harvest), notes, bool(harvest.failures))

    def _failed(self, reason: str, seconds: float) -> AttackResult:
        return AttackResult(
            verdict="inconclusive",
            headline=self._headline(unmeasured(reason)),
            control={"nonmembers": None, "base": None, "difference": {}, "randomisation_p": None},
            seconds=seconds,
            notes=[reason],
        )


def measure(harvest: Harvest, truth: StateIndex, k: int, seed: int) -> dict[str, Metric]:
    """Count one target's candidates against one side, all of them and the best k of each ranking."""
    if not truth.owners:  # nothing can be found on such a side, which is not the same as finding nothing
        reason = "the side has no known dialogue state"
        return {f"{DECODER}/{name}/state_precision@{k}": unmeasured(reason) for name in ("none", *RANKINGS)}
    states = harvest.states
    metrics: dict[str, Metric] = {}
    over_all = extraction_metrics(states, truth)
    for ranking, order in harvest.rankings(seed).items():
        best = extraction_metrics([states[i] for i in order[:k]], truth, suffix=f"@{k}")
        metrics |= {f"{DECODER}/{ranking}/{name}": value for name, value in (over_all | best).items()}
    for ranking in RANKINGS:
        reason = harvest.failures.get(ranking, "nothing was extracted")
        metrics.setdefault(f"{DECODER}/{ranking}/state_precision@{k}", unmeasured(reason))
    return metrics


def compare(harvest: Harvest, sides: Sides, k: int, seed: int) -> tuple[dict[str, Estimate], float | None]:
    """Return every ranking's paired differences, and the headline's randomisation p (None if unmeasured)."""
    if not (sides.n_equal and harvest.candidates):
        return {}, None
    member_holders = [sides.equal_members.holders(state) for state in harvest.states]
    nonmember_holders = [sides.equal_nonmembers.holders(state) for state in harvest.states]
    orders = harvest.rankings(seed)
    slices = [("none", "", orders["none"])] + [(name, f"@{k}", order[:k]) for name, order in orders.items()]
    differences: dict[str, Estimate] = {}
    p = None
    for ranking, suffix, chosen in slices:
        members, nonmembers = [member_holders[i] for i in chosen], [nonmember_holders[i] for i in chosen]
        found = paired_differences(
            [len(harvest.states[i]) for i in chosen],
            [bool(holders) for holders in members],
            [bool(holders) for holders in nonmembers],
            suffix=suffix,
            seed=seed,
        )
        differences |= {f"{DECODER}/{ranking}/{name}": value for name, value in found.items()}
        if ranking == HEADLINE_RANKING:
            p = randomisation_p(members, nonmembers, sides.groups, n_members=sides.n_equal, seed=seed)
    return differences, p


def judge(harvest: Harvest, sides: Sides, difference: Estimate | None, p: float | None) -> tuple[Verdict, str]:
    """Apply the rule of the module's docstring; return the verdict and its reason."""
    n = len(harvest.candidates)
    if n < MIN_CANDIDATES:
        return (
            "inconclusive",
            f"{n} distinct states were extracted; fewer than {MIN_CANDIDATES} decide nothing",
        )
    if not (sides.equal_members.values and sides.equal_nonmembers.values):
        return "inconclusive", "one side has no known dialogue state to compare with"
    if HEADLINE_RANKING in harvest.failures:
        return "inconclusive", f"{HEADLINE_RANKING} failed: {harvest.failures[HEADLINE_RANKING]}"
    if difference is None or difference.low is None or difference.high is None or p is None:
        return "inconclusive", "the paired difference has no interval"
    interval = f"{difference.value:.3f} [{difference.low:.3f}, {difference.high:.3f}]"
    found = f"members minus non-members {interval}, randomisation p={p:.4f}"
    if difference.low > 0 and p <= SIZE:
        return "leak", f"{found}: above zero and above what random splits give"
    return "no_leak_detected", f"{found}: a difference of up to {difference.high:.3f} stays compatible"


def _estimate(metric: Metric) -> Estimate:
    if not isinstance(metric, Estimate):
        raise TypeError(f"{metric!r} is no Estimate; a headline needs one")
    return metric


def _n_queries(harvest: Harvest) -> int:
    return harvest.counts["samples"] + SEQUENCES_PER_CANDIDATE * len(harvest.candidates)


def _notes(harvest: Harvest, k: int) -> list[str]:
    counts = harvest.counts
    n = len(harvest.candidates)
    notes = [
        f"{n} distinct states in {counts['samples']} samples; {counts['parse_failures']} held no state, "
        f"{counts['empty_states']} an empty one, {counts['cut_states']} were cut (closed triplets are kept)"
    ]
    if n < k:
        notes.append(f"fewer than {k} distinct states: @{k} uses all {n}")
    return notes + [f"ranking {name} not measured: {reason}" for name, reason in harvest.failures.items()]


def _rows(harvest: Harvest, sides: Sides) -> list[dict[str, Any]]:
    return [
        {
            "state": candidate.text,
            "n_triplets": len(candidate.state),
            "count": candidate.count,
            "is_member_hit": sides.equal_members.holds(candidate.state) if sides.n_equal else None,
            "is_nonmember_hit": sides.equal_nonmembers.holds(candidate.state) if sides.n_equal else None,
            **{name: float(values[i]) for name, values in harvest.scores.items()},
        }
        for i, candidate in enumerate(harvest.candidates)
    ]
