"""How useful a bot is: the states it tracks, its answers, and how well it predicts the gold text.

Guarantees: every number is an `Estimate` whose interval resamples dialogues; what could not be measured has
value None and says why in `method`, never 0; the protocol beside the numbers names every rule and every place
where gold text was shown to the bot. Scoring is in `hushbot.evaluation.state_scoring`, running the bot in
`hushbot.evaluation.tracking`, or in `hushbot.evaluation.running` for a bot that learns changes; answers are scored in
`hushbot.evaluation.response_scoring` and, where the corpus has goals and venues, `hushbot.evaluation.task_utility`.

What voids comparability with published numbers: a history that is too long loses its oldest lines, by the rule of
training (`hushbot.evaluation.history_limit`; `turns_truncated` in the protocol counts such turns, `answers_squeezed`
the answers that had less room than `max_new_tokens`); BLEU is taken on plain (not delexicalised) text
against the corpus' one response, on sacrebleu's scale of 0 to 100; perplexity is over the tokens of the target's own
tokenizer, lower is better for it alone, and a bot that learns changes has shorter gold lines than one that learns
whole states.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hushbot.corpora.multiwoz_database import MultiwozDatabase
from hushbot.errors import AuditError
from hushbot.evaluation import running, tracking
from hushbot.evaluation.response_scoring import bleu
from hushbot.evaluation.state_scoring import (
    ScoringRules,
    States,
    TurnScore,
    counts,
    dialogue_state_metrics,
    estimates,
    score_turns,
)
from hushbot.evaluation.task_utility import TASK_METRICS, has_tasks, task_estimates, task_protocol
from hushbot.evaluation.tracking import Asker, Limit, TrackedTurn, track
from hushbot.prompts import render_state
from hushbot.protocols import Database, Target
from hushbot.stats import Bootstrap, cluster_bootstrap
from hushbot.targets.guarded import guard_names, unguarded
from hushbot.types import Dialogue, DialogueState, Estimate

__all__ = [
    "ScoringRules",
    "States",
    "UtilityResult",
    "UtilitySettings",
    "bleu",
    "dialogue_state_metrics",
    "measure_utility",
    "perplexity",
    "track",
]

_PER_TOKEN = (
    "per token of the target's own; lower is better; over what the bot is trained to write, so not comparable between "
    "bots that write whole states and bots that write changes"
)
_WHOLE = {
    "layout": "a history of utterances, then the whole state",
    "history": "gold utterances",
    "state": "predicted; unreadable ones count as wrong, and the bot goes on with its last readable one",
    "perplexity": f"gold state lines after gold history, {_PER_TOKEN}",
}
_RUNNING = {
    "layout": "one running text per dialogue, in which each turn states what it changed",
    "history": "gold utterances, and the bot's own changes, database results and actions of earlier turns",
    "state": "accumulated from the bot's own changes; unreadable ones count as wrong and change nothing",
    "perplexity": f"gold lines of changes after the gold running text, {_PER_TOKEN}",
}
STATE_METRICS = ("joint_goal_accuracy", "state_precision", "state_recall", "state_f1")


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilitySettings:
    """How utility is measured."""

    max_dialogues: int | None = None
    """Use at most this many dialogues, drawn at random with the seed; null uses all."""
    responses: bool = True
    """Also let the bot look up, act and answer, for BLEU; two more generations per turn."""
    max_new_tokens: int = 128
    """Longest state, actions or response in tokens, fewer where the model's context ends; a cut state is wrong."""
    dontcare: Literal["strict", "ignore"] = "strict"
    """Whether don't-care is a value like any other, or slots that have it are left out."""
    drop_none: bool = False
    """Treat `none` and `not mentioned` as an absent slot; wrong where `None` is a real value, as in SGD."""

    def __post_init__(self) -> None:
        if self.max_dialogues is not None and self.max_dialogues < 1:
            raise ValueError(
                f"max_dialogues={self.max_dialogues} must be at least 1 or null; set utility.max_dialogues"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1; set utility.max_new_tokens")
        _ = self.rules  # its own checks

    @property
    def rules(self) -> ScoringRules:
        """Return the rules of scoring: every turn is asked for, so none is missing by design."""
        return ScoringRules(dontcare=self.dontcare, missing="wrong", drop_none=self.drop_none)


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityResult:
    """The utility numbers, the rules behind them, and what the bot did turn by turn."""

    estimates: dict[str, Estimate]
    """The contract's keys and `joint_goal_accuracy_nonempty`, `coverage_dialogues`, `coverage_turns`; on MultiWOZ also
    those of `task_utility.TASK_METRICS`."""
    protocol: dict[str, object]
    """Rules, coverage and oracle flags; stands in report.json as `utility_protocol`."""
    rows: list[dict[str, Any]]
    """One row per turn, with texts: for the records file, which masks them."""


def measure_utility(
    target: Target,
    dialogues: Sequence[Dialogue],
    database: Database | None,
    settings: UtilitySettings | None = None,
    *,
    seed: int,
    limit: Limit | None = None,
    learns_changes: bool = False,
) -> UtilityResult:
    """Run a bot over dialogues and measure its worth; a failing target gives no number, never a low one.

    Args:
        target: The bot.
        dialogues: What it is measured on, or drawn from.
        database: What it looks things up in.
        settings: How to measure.
        seed: Of the draw of dialogues and of the intervals.
        limit: What the bot can read; None never cuts.
        learns_changes: Whether the bot writes what each turn changed, in one running text per dialogue.
    """
    settings = settings or UtilitySettings()
    chosen = _choose(dialogues, settings.max_dialogues, seed)
    asker = Asker(target=target, max_new_tokens=settings.max_new_tokens, seed=seed, limit=limit)
    bot = _Bot(asker, database, learns_changes)
    tracked, failures = _run(bot, chosen, is_answering=settings.responses)
    by_dialogue: dict[str, list[DialogueState | None]] = {}
    for turn in tracked:
        by_dialogue.setdefault(turn.dialogue.id, []).append(turn.state)
    gold: States = {dialogue.id: [turn.state for turn in dialogue.turns] for dialogue in chosen}
    scores = score_turns(by_dialogue, gold, settings.rules)
    found = _unmeasured_states(failures["states"]) if "states" in failures else estimates(scores, seed=seed)
    if "responses" in failures:
        found["bleu"] = _not_measured(failures["responses"])
    else:
        found["bleu"] = bleu(tracked, seed=seed)
    found["perplexity"] = _attempt_perplexity(bot, chosen)
    found |= _attempt_tasks(tracked, chosen, database, failure=failures.get("responses"), seed=seed)
    return UtilityResult(
        estimates=found,
        protocol={
            **_protocol(settings, database, offered=len(dialogues), used=len(chosen)),
            **_bot_protocol(bot),
            **(task_protocol(chosen) if has_tasks(chosen, database) else {}),
            **_turn_counts(scores, tracked, asker, is_failed="states" in failures),
        },
        rows=_rows(tracked, scores, learns_changes=learns_changes) if tracked else [],
    )


def perplexity(sums: Sequence[tuple[float, int]], *, seed: int) -> Estimate:
    """Return exp of minus the mean log-probability per token, from each dialogue's sum and token count."""
    rows = np.array([row for row in sums if row[1] > 0], dtype=np.float64)
    if not len(rows):
        return _not_measured("no dialogue has a known gold state")
    with np.errstate(over="ignore"):
        found = cluster_bootstrap(
            rows,
            None,
            lambda drawn: float(np.exp(-drawn[:, 0].sum() / drawn[:, 1].sum())),
            bootstrap=Bootstrap(seed=seed),
        )
    return found.model_copy(update={"n": int(rows[:, 1].sum())})


def _choose(dialogues: Sequence[Dialogue], limit: int | None, seed: int) -> list[Dialogue]:
    if limit is None or limit >= len(dialogues):
        return list(dialogues)
    return [dialogues[i] for i in sorted(random.Random(seed).sample(range(len(dialogues)), limit))]


@dataclass(frozen=True, slots=True)
class _Bot:
    """A bot with everything it is run with."""

    asker: Asker
    database: Database | None
    learns_changes: bool

    def track(self, dialogues: Sequence[Dialogue], *, is_answering: bool) -> tuple[TrackedTurn, ...]:
        """Return the states it tracks."""
        if self.learns_changes:
            return running.run_states(self.asker, dialogues, self.database, is_answering=is_answering)
        return tracking.track_states(self.asker, dialogues)

    def answer(self, turns: Sequence[TrackedTurn]) -> tuple[TrackedTurn, ...]:
        """Return the turns with its answers."""
        if self.learns_changes:
            return running.run_responses(self.asker, turns)
        return tracking.track_responses(self.asker, turns, self.database)

    def score_gold(self, dialogues: Sequence[Dialogue]) -> list[tuple[float, int]]:
        """Return how probable it finds what it should have written."""
        score = running.gold_log_likelihood if self.learns_changes else tracking.gold_log_likelihood
        # A guard that hides values hides their probabilities, too; perplexity is a property of the bot behind it.
        return score(unguarded(self.asker.target), dialogues, self.asker.limit)


def _run(
    bot: _Bot, dialogues: Sequence[Dialogue], *, is_answering: bool
) -> tuple[tuple[TrackedTurn, ...], dict[str, str]]:
    """Run the bot as far as it goes; return its turns and, per stage that gave nothing, why."""
    try:
        tracked = bot.track(dialogues, is_answering=is_answering)
    except AuditError as error:
        return (), {"states": str(error), "responses": str(error)}
    if not is_answering:
        return tracked, {"responses": "responses are off (utility.responses=false)"}
    try:
        return bot.answer(tracked), {}
    except AuditError as error:
        return tracked, {"responses": str(error)}


def _attempt_perplexity(bot: _Bot, dialogues: Sequence[Dialogue]) -> Estimate:
    try:
        return perplexity(bot.score_gold(dialogues), seed=bot.asker.seed)
    except AuditError as error:
        return _not_measured(str(error))


def _attempt_tasks(
    tracked: Sequence[TrackedTurn],
    dialogues: Sequence[Dialogue],
    database: Database | None,
    *,
    failure: str | None,
    seed: int,
) -> dict[str, Estimate]:
    """Return Inform, Success and the combined score; nothing where the corpus has no goals or no tables of venues."""
    if not isinstance(database, MultiwozDatabase) or not has_tasks(dialogues, database):
        return {}
    if failure is not None:
        return {name: _not_measured(failure) for name in TASK_METRICS}
    return task_estimates(tracked, database, seed=seed)


def _not_measured(reason: str) -> Estimate:
    return Estimate(value=None, method=f"not measured: {reason}")


def _unmeasured_states(reason: str) -> dict[str, Estimate]:
    return {name: _not_measured(reason) for name in STATE_METRICS}


def _protocol(settings: UtilitySettings, database: Database | None, *, offered: int, used: int) -> dict[str, object]:
    return {
        **settings.rules.protocol(),
        "dialogues_offered": offered,
        "dialogues_used": used,
        "decoding": f"greedy, at most {settings.max_new_tokens} tokens",
        "database": "the recorded result of the gold dialogue, an oracle: the corpus has no database"
        if database is None
        else "asked with the predicted state",
        "previous_responses": "gold",
        "responses": settings.responses,
        "reference": "the corpus' own response, plain text, one reference",
        "bleu": "sacrebleu corpus score, 0 to 100, tokenizer 13a, case kept, exponential smoothing",
        "interval": "percentile bootstrap over dialogues",
    }


def _bot_protocol(bot: _Bot) -> dict[str, object]:
    """Return what depends on the bot: how it is asked, and what of it is measured."""
    found: dict[str, object] = dict(_RUNNING if bot.learns_changes else _WHOLE)
    guards = guard_names(bot.asker.target)
    if guards:
        found["perplexity"] = f"of the bot without its guards; {found['perplexity']}"
    limit = {} if bot.asker.limit is None else bot.asker.limit.protocol()
    return {**found, "guards": list(guards), **limit}


def _turn_counts(
    scores: Sequence[TurnScore], tracked: Sequence[TrackedTurn], asker: Asker, *, is_failed: bool
) -> dict[str, object]:
    """Return what happened in how many turns; nothing did where the states could not be had."""
    found = {
        **counts(scores),
        "turns_truncated": sum(turn.is_truncated for turn in tracked),
        "answers_squeezed": asker.n_squeezed,
    }
    return dict.fromkeys(found) if is_failed else dict(found)


def _rows(tracked: Sequence[TrackedTurn], scores: Sequence[TurnScore], *, learns_changes: bool) -> list[dict[str, Any]]:
    rows = []
    for turn, score in zip(tracked, scores, strict=True):
        gold = turn.dialogue.turns[turn.turn].state
        predicted: dict[str, str | None] = {"predicted_state": turn.text}
        if learns_changes:
            whole = None if turn.state is None else render_state(turn.state)
            predicted = {"predicted_state": whole, "predicted_changes": turn.text}
        rows.append(
            {
                "dialogue_id": score.dialogue_id,
                "turn": score.turn,
                "outcome": score.outcome,
                "is_correct": score.is_correct if score.counts else None,
                "matched": score.matched,
                "spurious": score.spurious,
                "missed": score.missed,
                **predicted,
                "gold_state": None if gold is None else render_state(gold),
                "response": turn.response,
                "reference": turn.reference,
            }
        )
    return rows
