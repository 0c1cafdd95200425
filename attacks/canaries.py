"""Canaries: does the bot tell the made-up dialogues that it was trained on from those that a coin left out?

Threat model: a score-based black box; the attacker knows the canaries and not their coins. This is the auditor's own
experiment: the canaries went into the training for its sake (`canaries.m`), and nobody's data are in them.

The scores stand in `hushbot.attacks.canary_scores`, the guesses and the bound in `hushbot.attacks.canary_guesses`.

Guarantees: `epsilon_lower` is exceeded by the true epsilon of the training, at the delta that is named, with the
confidence that is named, whatever the bot; so where it lies above the epsilon that is claimed, the claim is refuted.
The score behind it and the numbers of guesses are fixed in the configuration. The ceiling beside it says what so many
guesses could show at best. A failed query, in the bot or in its base, makes the result inconclusive.

Voids the guarantee: coins that were known to the training in another way; a bot that was trained on these canaries
before. And never a certificate: a bound of 0 says that these guesses were no better than chance.

Source: Carlini et al., USENIX Security 2019 (exposure); Steinke, Nasr and Jagielski, NeurIPS 2023 (bound).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushbot.attacks.canary_guesses import Audit, audit
from hushbot.attacks.canary_scores import SCORES, SIGNS, CanaryScores, raw_scores, score_canaries
from hushbot.errors import AuditError, ConfigError
from hushbot.intervals import Bootstrap, FloatArray, cluster_bootstrap, unmeasured
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditSplit, Canary, Estimate, Headline, Metric, PrivacyInfo, Tier, Verdict

UNIT = "dialogue"
"""What a canary is; a claim about another unit is not put to the test."""


class _Scored(NamedTuple):
    """What the bot and its base say of the canaries."""

    bot: CanaryScores
    base: CanaryScores | None = None


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """Guess from the bot's scores which canaries it was trained on, and bound epsilon by the right guesses."""

    needs: ClassVar[Tier] = "full"
    headline_metric: ClassVar[str] = "epsilon_lower"

    score: str = "contrast"
    """The pre-registered score behind the headline: `contrast`, `loss` or `ratio`; never chosen by its result."""
    scores: Sequence[str] = ("contrast", "loss", "ratio")
    """The scores to report."""
    guesses: Sequence[float] = (0.25, 0.75)
    """Parts of the canaries to guess, half of each in and half out; the bound is corrected for trying several. Coins
    seldom come out even, so that guessing all costs some wrong guesses whatever the bot tells."""
    n_alternatives: int = 127
    """Random identifiers that each canary's is compared with, at least 1; exposure is at most log2 of one more."""
    level: float = 0.95
    """Confidence of the bound and coverage of the intervals."""
    n_draws: int = 2000
    """Bootstrap draws of the exposure's interval, at least 100."""
    claimed_epsilon: float | None = None
    """What the training claims; of a run of hushbot's own the report knows."""
    claimed_delta: float = 0.0
    """The delta of that claim."""

    def __post_init__(self) -> None:
        epsilon = self.claimed_epsilon
        checks = (
            ("scores", bool(self.scores) and set(self.scores) <= set(SCORES), f"some of {', '.join(SCORES)}"),
            ("score", self.score in self.scores, f"one of scores={list(self.scores)}"),
            ("guesses", bool(self.guesses) and all(0 < share <= 1 for share in self.guesses), "parts in (0, 1]"),
            ("n_alternatives", 1 <= self.n_alternatives <= 100_000, "from 1 to 100000"),
            ("level", 0 < self.level < 1, "in (0, 1)"),
            ("n_draws", self.n_draws >= 100, "at least 100"),
            ("claimed_epsilon", epsilon is None or 0 <= epsilon < math.inf, "at least 0 and finite, or null"),
            ("claimed_delta", 0 <= self.claimed_delta < 1, "in [0, 1)"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set attack.canaries.{name}"
            for name, is_right, rule in checks
            if not is_right
        ]
        if problems:
            raise ConfigError(*problems)
        object.__setattr__(self, "scores", tuple(self.scores))
        object.__setattr__(self, "guesses", tuple(sorted(set(self.guesses))))

    def confronted(self, privacy: PrivacyInfo) -> Canaries:
        """Return the attack with what the bot's training claims, unless it claims nothing about dialogues."""
        if self.claimed_epsilon is not None or privacy.unit != UNIT or not math.isfinite(privacy.epsilon):
            return self
        return replace(self, claimed_epsilon=privacy.epsilon, claimed_delta=privacy.delta)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Score every canary under the target and, as control, under its base model."""
        started = time.perf_counter()
        canaries = sorted(split.canaries, key=lambda canary: canary.dialogue.id)
        result = self._measure(target, canaries, seed)
        return result.model_copy(update={"seconds": time.perf_counter() - started})

    def _measure(self, target: Target, canaries: Sequence[Canary], seed: int) -> AttackResult:
        if not canaries:
            return self._unanswered("not_measured", "no canaries were drawn before training; set canaries.m and train")
        attack = self if all(canary.repetitions == 1 for canary in canaries) else replace(self, claimed_epsilon=None)
        bots = [target] if target.reference is None else [target, target.reference]
        try:
            found = [score_canaries(bot, canaries, n_alternatives=self.n_alternatives, seed=seed) for bot in bots]
        except AuditError as error:
            return self._unanswered("inconclusive", f"a query to the target or its base failed: {error}")
        return attack._judged(_Scored(*found), canaries, seed)

    def _judged(self, scored: _Scored, canaries: Sequence[Canary], seed: int) -> AttackResult:
        """Measure what the scores tell, beside the base model, and judge it."""
        raw = raw_scores(scored.bot, scored.base)
        audits = {name: self._audit(name, raw[name], canaries, seed) for name in self.scores if name in raw}
        if self.score not in audits:
            return self._unanswered("inconclusive", f"{self.score} needs a base model, and the target has none")
        found, base = audits[self.score], None
        if scored.base is not None:
            # The base has no base: it is judged by what it says itself.
            theirs = raw_scores(scored.base, None)
            name = self.score if self.score in theirs else "loss"
            base = self._audit(name, theirs[name], canaries, seed)
        verdict, reasons = self._verdict(found, base, canaries)
        coins = np.array([canary.is_inserted for canary in canaries])
        control: dict[str, Any] = {
            "nonmembers": {"exposure": self._exposure(scored.bot, ~coins, seed)},
            "base": None,
        }
        if scored.base is not None and base is not None:
            control["base"] = {"epsilon_lower": base.epsilon, "exposure": self._exposure(scored.base, coins, seed)}
        metrics = self._metrics(found, canaries) | {"exposure": self._exposure(scored.bot, coins, seed)}
        for name in self.scores:
            missing = unmeasured("there is no base model to compare with", level=self.level)
            metrics[f"{name}/epsilon_lower"] = audits[name].epsilon if name in audits else missing
        n_bots = 1 if scored.base is None else 2
        return AttackResult(
            verdict=verdict,
            headline=Headline(metric="epsilon_lower", estimate=found.epsilon, key="epsilon_lower"),
            metrics=metrics,
            control=control,
            queries=n_bots * len(canaries) * (self.n_alternatives + 1),
            notes=[*self._notes(scored), *reasons],
            rows=_rows(canaries, raw, scored.bot, found),
        )

    def _audit(self, name: str, raw: FloatArray, canaries: Sequence[Canary], seed: int) -> Audit:
        return audit(
            SIGNS[name] * raw,
            [canary.is_inserted for canary in canaries],
            self.guesses,
            delta=self.claimed_delta if self.claimed_epsilon is not None else 0.0,
            level=self.level,
            seed=seed,
        )

    def _exposure(self, scores: CanaryScores, chosen: Any, seed: int) -> Estimate:
        """Return the mean exposure of some of the canaries."""
        bounds = (0.0, math.log2(self.n_alternatives + 1))
        bootstrap = Bootstrap(level=self.level, n_draws=self.n_draws, seed=seed)
        return cluster_bootstrap(scores.exposure[chosen], None, bounds=bounds, bootstrap=bootstrap)

    def _metrics(self, found: Audit, canaries: Sequence[Canary]) -> dict[str, Metric]:
        claim: Metric = self.claimed_epsilon
        if claim is None:
            claim = unmeasured("no epsilon per dialogue is claimed of this bot", level=self.level)
        if any(canary.repetitions > 1 for canary in canaries):
            claim = unmeasured("a canary that goes in several times is no unit of a claim", level=self.level)
        return {
            "epsilon_lower": found.epsilon,
            "correct": found.correct,
            "guesses": found.guesses,
            "ceiling": found.ceiling,
            "claimed_epsilon": claim,
            "canaries": len(canaries),
            "inserted": sum(canary.is_inserted for canary in canaries),
        }

    def _verdict(self, found: Audit, base: Audit | None, canaries: Sequence[Canary]) -> tuple[Verdict, list[str]]:
        """Return the verdict and its reasons."""
        bound, claim = found.epsilon.value, self.claimed_epsilon
        counted = f"{found.correct} of {found.guesses} guesses are right"
        if bound is None or found.ceiling == 0:
            return "inconclusive", [f"{len(canaries)} canaries are too few: no number of right guesses shows anything"]
        if base is not None and base.epsilon.value is not None and 0 < bound <= base.epsilon.value:
            return "inconclusive", ["the base model, which saw no canary, tells them apart as well"]
        if claim is not None and bound > claim:
            return "leak", [
                f"{counted}: epsilon is at least {bound:.3f}, so the claim of {claim:.4g} at delta "
                f"{self.claimed_delta:.3g} is refuted; look for what breaks it before anybody relies on it"
            ]
        if claim is None and bound > 0:
            return "leak", [f"{counted}: the training has an epsilon of at least {bound:.3f}"]
        if found.mirrored > 0:
            reason = "canaries that went in stand out, though on the unexpected side: the bot rates them lower"
            return "inconclusive", [f"{counted}: {reason}"]
        reach = f"the most that these guesses could have shown is {found.ceiling:.3f}"
        if claim is None:
            return "no_leak_detected", [f"{counted}, which chance gives as well; {reach}"]
        if bound == 0:
            return "no_leak_detected", [f"{counted}, which chance gives as well; {reach}, the claim is {claim:.4g}"]
        if found.ceiling <= claim:
            return "inconclusive", [
                f"{counted}: epsilon is at least {bound:.3f}; the claim of {claim:.4g} cannot be tested, for {reach}; "
                "raise canaries.m"
            ]
        return "no_leak_detected", [f"{counted}: epsilon is at least {bound:.3f}, within the claim of {claim:.4g}"]

    def _notes(self, scored: _Scored) -> list[str]:
        shares = ", ".join(f"{share:.0%}" for share in self.guesses)
        notes = [f"pre-registered score: {self.score}; guessed are {shares} of the canaries, half of them in, half out"]
        if scored.base is None:
            notes.append("no base model to compare with: the control is missing")
        return notes

    def _unanswered(self, verdict: Verdict, reason: str) -> AttackResult:
        headline = Headline(metric="epsilon_lower", estimate=unmeasured(reason, level=self.level), key="epsilon_lower")
        return AttackResult(verdict=verdict, headline=headline, notes=[reason])


def _rows(
    canaries: Sequence[Canary], raw: dict[str, FloatArray], scores: CanaryScores, found: Audit
) -> list[dict[str, Any]]:
    """Return one record per canary."""
    words = {1: "guessed in", -1: "guessed out", 0: "not guessed"}
    return [
        {
            "dialogue_id": canary.dialogue.id,
            "kind": canary.kind,
            "identifier": canary.identifier,
            "is_member": canary.is_inserted,
            "outcome": words[int(found.guessed[i])],
            "exposure": float(scores.exposure[i]),
            **{name: float(values[i]) for name, values in raw.items()},
        }
        for i, canary in enumerate(canaries)
    ]
