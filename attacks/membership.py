"""Membership inference on dialogue states: can scores tell the states that were trained on from those that
were not?

Threat model: a score-based black box. The attacker prompts with `Belief State:` and reads token
log-probabilities.

The scores and their formulas stand in `hushbot.attacks.token_scores`, the choice of states in
`hushbot.attacks.state_population`, what is measured of them in `hushbot.attacks.membership_levels`, the blind baseline
in `hushbot.attacks.blind_baseline`, and the rule of the verdict in `hushbot.attacks.membership_judgement`.

Guarantees: members and non-members are scored in one shuffled call; the score and the unit (state or dialogue) behind
the headline are named in the configuration, hence before the run; states known to both sides decide nothing; a failed
query, in the target or in its base model, makes the result inconclusive; a score that a target cannot give is not
measured and says why. `leak` is said only of sides that the blind baseline does not tell apart.

Voids the guarantee: members that were not drawn at random, near-copies of members among the non-members.

Source: Task-oriented dialogue state extraction, sections IV-A2 and IV-C (PPL, PPL-zlib, C-PPL, DC-PPL);
Carlini et al., USENIX Security 2021 (zlib, reference); Carlini et al., IEEE S&P 2022 (low false-positive rates); Shi
et al., ICLR 2024 (Min-K%); Zhang et al., ICLR 2025 (Min-K%++).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from hushbot.attacks.blind_baseline import N_PERMUTATIONS, BlindBaseline
from hushbot.attacks.membership_judgement import judge
from hushbot.attacks.membership_levels import (
    Aggregate,
    Level,
    headline_units,
    measure_blind,
    measure_increments,
    measure_scores,
)
from hushbot.attacks.membership_scores import Scored, score_population, with_ratio
from hushbot.attacks.state_population import Population
from hushbot.attacks.token_scores import SCORES, score
from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, Estimate, Headline, Metric, Tier, Verdict

__all__ = ["Membership", "score"]

ALL_SCORES = (*SCORES, "ref_ratio")


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Score the distinct states of members and non-members and see how far the scores part them."""

    needs: ClassVar[Tier] = "full"
    headline_metric: ClassVar[str] = "tpr_at_1pct_fpr"

    score: str = "dc_ppl"
    """The pre-registered score behind the headline; chosen before the run, never by its result."""
    scores: Sequence[str] = ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "min_k", "min_k_pp", "ref_ratio")
    """The scores to report (`loss` orders texts exactly as `ppl` does). `min_k_pp` needs a model on this machine,
    `ref_ratio` a bot with a reference."""
    states: Literal["final", "all"] = "final"
    """Judge each dialogue's last known state, or the states of all its turns."""
    unit: Literal["state", "dialogue"] = "state"
    """What the headline counts: states, or dialogues by the states they hold; the latter needs `states=all`."""
    aggregate: Aggregate = "mean"
    """A dialogue's score: the mean of its states' scores, or `min`, that of its state most like a member's."""
    max_states: int | None = None
    """Largest number of states per side, drawn at random; None takes all."""
    level: float = 0.95
    """Coverage of the intervals."""
    n_draws: int = 2000
    """Bootstrap draws per interval, and deals per p-value, at least 100."""
    n_permutations: int = N_PERMUTATIONS
    """Splits dealt anew to calibrate the blind baseline, at least 99."""

    def __post_init__(self) -> None:
        known = bool(self.scores) and set(self.scores) <= set(ALL_SCORES)
        checks = (
            ("scores", known, f"some of {', '.join(ALL_SCORES)}"),
            ("score", self.score in self.scores, f"one of scores={list(self.scores)}"),
            ("states", self.states in ("final", "all"), "'final' or 'all'"),
            ("unit", self.unit in ("state", "dialogue"), "'state' or 'dialogue'"),
            ("unit", self.unit != "dialogue" or self.states == "all", "'state' unless states='all'"),
            ("aggregate", self.aggregate in ("mean", "min"), "'mean' or 'min'"),
            ("max_states", self.max_states is None or self.max_states > 0, "positive or null"),
            ("level", 0 < self.level < 1, "in (0, 1)"),
            ("n_draws", self.n_draws >= 100, "at least 100"),
            ("n_permutations", self.n_permutations >= 99, "at least 99"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set attack.membership.{name}"
            for name, is_right, rule in checks
            if not is_right
        ]
        if problems:
            raise ConfigError(*problems)
        object.__setattr__(self, "scores", tuple(self.scores))  # a YAML list makes the same attack

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Score every state under the target and, as control, under its base model."""
        started = time.perf_counter()
        population = Population.of(split, states=self.states, max_states=self.max_states, seed=seed)
        result = self._measure(target, population, seed)
        return result.model_copy(update={"seconds": time.perf_counter() - started})

    def _measure(self, target: Target, population: Population, seed: int) -> AttackResult:
        """Score the target; whatever cannot be scored or measured gives no verdict."""
        notes = [f"pre-registered score: {self._key}", *population.notes]
        if not (population.members and population.nonmembers):
            return self._unanswered("not_measured", "members or non-members have no state of their own", notes)
        try:
            ours = score_population(target, population, self.scores, seed)
        except AuditError as error:
            return self._unanswered("inconclusive", f"a query to the target failed: {error}", notes)
        try:
            return self._judged(target, population, ours, notes, seed)
        except AuditError as error:
            return self._unanswered("inconclusive", f"the scores allow no measurement: {error}", notes)

    def _judged(
        self, target: Target, population: Population, ours: Scored, notes: list[str], seed: int
    ) -> AttackResult:
        """Measure what the scores tell, beside the base model and the blind baseline, and judge it."""
        base, failures = self._score_base(target, population, seed)
        ours = with_ratio(ours, base, "the bot has no reference, or it could not be asked")
        bootstrap = Bootstrap(level=self.level, n_draws=self.n_draws, seed=seed)
        levels = [Level.of_states(population)]
        if self.states == "all":
            levels.append(Level.of_dialogues(population, self.aggregate))
        blinds = {level.prefix: measure_blind(level, bootstrap, self.n_permutations) for level in levels}
        metrics: dict[str, Metric] = {}
        for level in levels:
            metrics |= measure_scores(level, ours, self.scores, bootstrap)
            metrics |= measure_increments(level, ours, self.scores, blinds[level.prefix], bootstrap)
        metrics |= population.counts
        control = (
            None
            if base is None
            else {
                key: value
                for level in levels
                for key, value in measure_scores(level, base, self.scores, bootstrap).items()
            }
        )
        verdict, reasons = self._verdict(metrics, control, blinds, ours, n_dialogues=len(set(levels[0].clusters[0])))
        return AttackResult(
            verdict="inconclusive" if failures else verdict,
            headline=self._headline(as_estimate(metrics[f"{self._key}/tpr_at_1pct_fpr"])),
            metrics=metrics,
            control={"base": control},
            blind={
                f"{prefix}{name}": value for prefix, blind in blinds.items() for name, value in blind.shown().items()
            },
            queries=ours.queries + (base.queries if base is not None else 0),
            notes=[*notes, *_missing_notes(ours, target), *reasons, *failures],
            units=headline_units(levels[-1 if self.unit == "dialogue" else 0], ours, self.score),
            rows=population.rows(ours.raw),
        )

    def _score_base(self, target: Target, population: Population, seed: int) -> tuple[Scored | None, list[str]]:
        """Return the scores under the base model; None without one, and with what failed where that is why."""
        if target.reference is None:
            return None, []
        try:
            return score_population(target.reference, population, self.scores, seed), []
        except AuditError as error:
            return None, [f"a query to the base model failed: {error}"]

    def _verdict(
        self,
        metrics: Mapping[str, Metric],
        control: Mapping[str, Metric] | None,
        blinds: Mapping[str, BlindBaseline],
        ours: Scored,
        *,
        n_dialogues: int,
    ) -> tuple[Verdict, list[str]]:
        if self.score in ours.missing:
            return "not_measured", [f"the registered score could not be had: {ours.missing[self.score]}"]
        return judge(self._key, metrics, control, blinds[self._prefix].confounds, n_dialogues=n_dialogues)

    @property
    def _prefix(self) -> str:
        return "dialogue/" if self.unit == "dialogue" else ""

    @property
    def _key(self) -> str:
        """What the names of the headline's metrics begin with."""
        return f"{self._prefix}{self.score}"

    def _headline(self, estimate: Estimate) -> Headline:
        return Headline(metric="tpr_at_1pct_fpr", estimate=estimate, key=f"{self._key}/tpr_at_1pct_fpr")

    def _unanswered(self, verdict: Verdict, reason: str, notes: Sequence[str]) -> AttackResult:
        return AttackResult(verdict=verdict, headline=self._headline(unmeasured(reason)), notes=[*notes, reason])


def _missing_notes(ours: Scored, target: Target) -> list[str]:
    """Return what was not measured and why."""
    notes = [f"{name} is not measured: {reason}" for name, reason in ours.missing.items()]
    if target.reference is None:
        notes.append("no base model to compare with: the control is missing")
    return notes
