"""A cheap audit of a bot in training: how far a membership score parts members from others, and a few states.

Threat model: as of `hushbot.attacks.membership`, on the model itself: a guard that a recipe puts around the bot is not
there yet. The score is named in the configuration, hence before the run.

Guarantees: members are compared with calibration and control dialogues, which training never reads; non-members are not
looked at, so that nothing the final audit judges by has decided anything. The states compared are drawn once, with the
seed, and are the same in every look. Intervals resample dialogues. What could not be measured says why, and counts as
over the budget.

What voids them: calibration and control dialogues that differ from members in more than membership; the look before
the first step tells, where the number should be about 0.5. A budget judges numbers that are noisy: many looks stop a
training by chance more often than one would, never less often.

Torch is imported when a bot is looked at: a configuration can be checked without it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hushbot.attacks.membership_scores import score_population
from hushbot.attacks.state_population import Population
from hushbot.attacks.token_scores import FROM_LOGPROBS
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation import running, tracking
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.state_rates import estimates
from hushbot.evaluation.state_scoring import ScoringRules, score_turns
from hushbot.evaluation.tracking import Asker, Limit
from hushbot.protocols import Database
from hushbot.stats import Bootstrap, auc, orient, tpr_at_fpr, unmeasured
from hushbot.types import AuditSplit, Dialogue, DialogueState, Estimate

if TYPE_CHECKING:
    from torch import nn

    from hushbot.targets.local import LocalTarget

AUC, TPR, JGA = "membership/auc", "membership/tpr_at_1pct_fpr", "joint_goal_accuracy"
BUDGETS = {"membership_auc": AUC}
"""What training can be stopped by, and the metric that is meant."""
FEWEST = 20
"""States on each side without which no training is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """Whether, how often and by what a bot is looked at while it trains."""

    every: int | None = None
    """Epochs from one look to the next; there is one before the first step and one after the last. Null never looks."""
    documents: int = 100
    """Most states of members, and of calibration and control dialogues, that are compared; drawn with the seed."""
    dialogues: int = 8
    """Most calibration and control dialogues in which the bot tracks its state; 0 leaves that out."""
    score: str = "ppl"
    """The membership score, as in `attack.membership`; chosen before the run."""
    max_new_tokens: int = 128
    """Longest state in tokens; a cut one is wrong. Fewer than the utility's make a look cheaper."""
    budget: Mapping[str, float | None] = field(default_factory=dict)
    """What may leak at most: `membership_auc`. Null or nothing never stops training."""
    stop_when: Literal["low", "value"] = "low"
    """What must lie above the budget: the lower end of the interval, or already the value."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.budget) - set(BUDGETS))
        limits = [limit for limit in self.budget.values() if limit is not None]
        rules = (
            ("every", self.every is None or self.every >= 1, "at least 1 or null"),
            ("every", self.every is not None or not limits, "a number of epochs where there is a budget"),
            ("documents", self.documents >= 2, "at least 2"),
            ("documents", not limits or self.documents >= FEWEST, f"at least {FEWEST} where there is a budget"),
            ("dialogues", self.dialogues >= 0, "at least 0"),
            ("score", self.score in FROM_LOGPROBS, f"one of {', '.join(FROM_LOGPROBS)}"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("budget", not unknown, f"of {', '.join(BUDGETS)} only"),
            ("budget", all(0.5 <= limit < 1 for limit in limits), "in [0.5, 1): 0.5 is what guessing gives"),
            ("stop_when", self.stop_when in ("low", "value"), "'low' or 'value'"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set watch.{name}" for name, ok, rule in rules if not ok
        ]
        if problems:
            raise ConfigError(*problems)

    @property
    def limits(self) -> dict[str, float]:
        """Return the budget by the metric's name in the report."""
        return {BUDGETS[name]: limit for name, limit in self.budget.items() if limit is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheapAudit:
    """The look at a bot: what `hushbot.training.watching.Watch` asks for."""

    settings: WatchSettings
    population: Population
    """Members, and as non-members the states of calibration and control dialogues."""
    dialogues: tuple[Dialogue, ...]
    """In which the bot tracks its state."""
    database: Database | None
    rules: ScoringRules
    tokenizer: Any
    max_length: int
    """Longest example in training, in tokens."""
    learns_changes: bool
    seed: int

    @property
    def every(self) -> int:
        """Return the epochs from one look to the next."""
        return self.settings.every or 1

    @property
    def stops(self) -> bool:
        """Return whether training ends when too much leaks."""
        return bool(self.settings.limits)

    @property
    def fingerprint(self) -> str:
        """Return everything that decides when training ends."""
        members, others, _ = self.population.sides
        return json.dumps([asdict(self.settings), [unit.text for unit in (*members, *others)]], sort_keys=True)

    @property
    def description(self) -> str:
        """Return what is measured, for the report."""
        members, others, _ = self.population.sides
        states = f"; {JGA} on {len(self.dialogues)} of the latter" if self.dialogues else ""
        return (
            f"looked at before training and after every {self.every} epochs: {AUC} is of score {self.settings.score} "
            f"on {len(members)} states of members against {len(others)} of calibration and control dialogues{states}; "
            "the bot had no guard, and no non-member was looked at"
        )

    def look(self, model: nn.Module) -> dict[str, Estimate]:
        """Return what the model leaks and is worth now."""
        from hushbot.targets.local import LocalTarget

        target = LocalTarget(model, self.tokenizer, name="in training")
        found = self._membership(target)
        if self.dialogues:
            found[JGA] = self._states(target)
        return found

    def excess(self, measured: Mapping[str, Estimate]) -> str | None:
        """Return what is over the budget, or not known to be within it."""
        for name, limit in self.settings.limits.items():
            estimate = measured.get(name) or unmeasured("nobody looked")
            found = estimate.low if self.settings.stop_when == "low" else estimate.value
            if found is None or estimate.value is None:
                return f"{name} could not be held against the budget of {limit:g} ({estimate.method})"
            if found > limit:
                what = "the lower end of its interval " if self.settings.stop_when == "low" else ""
                ends = "" if estimate.low is None else f" [{estimate.low:.3f}, {estimate.high:.3f}]"
                return f"{name} is {estimate.value:.3f}{ends}, {what}over the budget of {limit:g}"
        return None

    def _membership(self, target: LocalTarget) -> dict[str, Estimate]:
        """Return how far the score parts the two sides."""
        members, others, _ = self.population.sides
        name, bootstrap = self.settings.score, Bootstrap(seed=self.seed)
        try:
            values = orient(name, score_population(target, self.population, (name,), self.seed).raw[name])
            first, second = values[: len(members)], values[len(members) :]
            clusters = [unit.dialogue_id for unit in members], [unit.dialogue_id for unit in others]
            found = {AUC: auc(first, second, clusters=clusters, bootstrap=bootstrap)}
            point = tpr_at_fpr(first, second, clusters=(*clusters, None), bootstrap=bootstrap)
        except AuditError as error:
            return {AUC: unmeasured(str(error))}
        return found | ({} if point.tpr.value is None else {TPR: point.tpr})

    def _states(self, target: LocalTarget) -> Estimate:
        """Return in how many turns the bot has the whole state right."""
        asker = Asker(
            target=target, max_new_tokens=self.settings.max_new_tokens, seed=self.seed, limit=self._limit(target)
        )
        try:
            if self.learns_changes:
                turns = running.run_states(asker, self.dialogues, self.database, is_answering=False)
            else:
                turns = tracking.track_states(asker, self.dialogues)
        except AuditError as error:
            return unmeasured(str(error))
        predicted: dict[str, list[DialogueState | None]] = {dialogue.id: [] for dialogue in self.dialogues}
        for turn in turns:
            predicted[turn.dialogue.id].append(turn.state)
        gold = {dialogue.id: [turn.state for turn in dialogue.turns] for dialogue in self.dialogues}
        return estimates(score_turns(predicted, gold, self.rules), seed=self.seed)[JGA]

    def _limit(self, target: LocalTarget) -> Limit:
        """Return what the bot can read, by the rule of its utility."""
        from hushbot.evaluation.history_limit import HistoryLimit, PieceCounter, answer_lengths, gold_turns

        count = PieceCounter(self.tokenizer)
        turns = (turn for one in self.dialogues for turn in gold_turns(one, learns_changes=self.learns_changes))
        return HistoryLimit(
            count=count,
            max_length=self.max_length,
            max_new_tokens=self.settings.max_new_tokens,
            context_length=target.causal_lm.context_length,
            answers=answer_lengths(turns, count),
        )


def watch_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return how a configuration says that a bot is looked at in training; None where it is not."""
    watch = config.get("watch") or {}
    return watch if watch.get("every") is not None else None


def make_watch(
    settings: WatchSettings,
    experiment: Experiment,
    tokenizer: Any,
    *,
    rules: ScoringRules,
    max_length: int,
    learns_changes: bool,
) -> CheapAudit | None:
    """Return what looks at a bot in training; None where nothing does.

    Args:
        settings: Whether, how often and by what.
        experiment: Whose members, calibration and control dialogues are looked at.
        tokenizer: The bot's.
        rules: What counts as a right state.
        max_length: Longest example in training, in tokens.
        learns_changes: Whether the bot writes what each turn changed.

    Raises:
        ConfigError: There is too little to compare members with.
    """
    if settings.every is None:
        return None
    split, seed = experiment.split, experiment.seed
    heldout = (*split.calibration, *split.controls)
    population = Population.of(
        AuditSplit(split.members, heldout), states="final", max_states=settings.documents, seed=seed
    )
    fewest = min(len(population.members), len(population.nonmembers))
    needed = FEWEST if settings.limits else 2
    if fewest < needed:
        raise ConfigError(
            f"watch.every={settings.every}: {len(population.members)} states of members and "
            f"{len(population.nonmembers)} of calibration and control dialogues can be compared, {needed} of each are "
            "needed; set split.calibration and split.controls higher, or watch.every=null"
        )
    known = sorted((one for one in heldout if one.final_state is not None), key=lambda one: one.id)
    chosen = random.Random(seed).sample(known, min(settings.dialogues, len(known)))
    return CheapAudit(
        settings=settings,
        population=population,
        dialogues=tuple(chosen),
        database=experiment.corpus.database,
        rules=rules,
        tokenizer=tokenizer,
        max_length=max_length,
        learns_changes=learns_changes,
        seed=seed,
    )
