"""How useful a bot is: the states it tracks, its answers, how well it predicts the gold text, and how long it takes.

Guarantees: every number is an `Estimate` whose interval resamples dialogues; what could not be measured has
value None and says why in `method`, never 0; the protocol beside the numbers names every rule and every place
where gold text was shown to the bot. States are scored by `hushbot.evaluation.state_scoring`, the bot is run by
`hushbot.evaluation.bot`; answers are scored in `hushbot.evaluation.response_scoring` and, where the corpus has goals
and venues, `hushbot.evaluation.task_utility`; `hushbot.evaluation.domain_utility` says the same domain by domain.

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
from typing import Any

from hushbot.corpora.multiwoz_database import MultiwozDatabase
from hushbot.evaluation.bot import Bot, Played
from hushbot.evaluation.domain_utility import utility_by_domain
from hushbot.evaluation.latency import seconds_per_turn
from hushbot.evaluation.perplexity import measure_perplexity, perplexity
from hushbot.evaluation.response_scoring import bleu
from hushbot.evaluation.sharing import SharedBot, Team
from hushbot.evaluation.state_rates import STATE_METRICS, dialogue_state_metrics, estimates, parts, ratio_units
from hushbot.evaluation.state_scoring import ScoringRules, States, TurnScore, score_turns
from hushbot.evaluation.task_utility import TASK_METRICS, Tasks, has_tasks, measure_tasks, task_protocol
from hushbot.evaluation.tracking import Asker, Limit, TrackedTurn, track
from hushbot.evaluation.utility_protocol import bot_protocol, measuring_protocol, turn_counts
from hushbot.evaluation.utility_settings import UtilitySettings
from hushbot.prompts import render_state
from hushbot.protocols import Database, Target
from hushbot.stats import unmeasured
from hushbot.types import Dialogue, Estimate, Units

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilityResult:
    """The utility numbers, the rules behind them, and what the bot did turn by turn."""

    estimates: dict[str, Estimate]
    """The contract's keys and `joint_goal_accuracy_nonempty`, `coverage_dialogues`, `coverage_turns`; on MultiWOZ also
    those of `task_utility.TASK_METRICS`."""
    by_domain: dict[str, dict[str, Estimate]]
    """Domain -> metric -> number."""
    units: dict[str, Units]
    """Every metric that is a ratio, taken apart into dialogues by their ids."""
    seconds_per_turn: Estimate | None
    """How long one turn takes; None where it was not asked for."""
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
    team: Team | None = None,
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
        team: Processes that play a part of the dialogues each; None plays all here.

    Raises:
        HushbotError: A process of the team failed.
    """
    settings = settings or UtilitySettings()
    chosen = _choose(dialogues, settings.max_dialogues, seed)
    asker = Asker(target=target, max_new_tokens=settings.max_new_tokens, seed=seed, limit=limit)
    bot = Bot(asker, database, learns_changes) if team is None else SharedBot(asker, database, learns_changes, team)
    played = bot.play(chosen, is_answering=settings.responses)
    gold: States = {dialogue.id: [turn.state for turn in dialogue.turns] for dialogue in chosen}
    scores = score_turns(played.states, gold, settings.rules)
    tasks = _attempt_tasks(played, chosen, database, seed=seed)
    has_failed = "states" in played.failures
    found = _unmeasured(STATE_METRICS, played.failures["states"]) if has_failed else estimates(scores, seed=seed)
    completions = None if tasks is None or not tasks.completions else tasks.completions["state_change"]
    return UtilityResult(
        estimates={
            **found,
            "bleu": _attempt_bleu(played, seed=seed),
            "perplexity": measure_perplexity(bot, chosen),
            **({} if tasks is None else tasks.estimates),
        },
        by_domain=utility_by_domain(played, chosen, completions, rules=settings.rules, seed=seed),
        units={
            **{name: ratio_units(parts(scores, name)) for name in STATE_METRICS if found[name].value is not None},
            **({} if tasks is None else tasks.units),
        },
        seconds_per_turn=_attempt_latency(bot, played, settings),
        protocol={
            **measuring_protocol(settings, database, offered=len(dialogues), used=len(chosen)),
            **bot_protocol(bot),
            **({} if tasks is None else task_protocol(chosen)),
            **turn_counts(scores, played.turns, asker, is_failed=has_failed),
        },
        rows=_rows(played.turns, scores, learns_changes=learns_changes) if played.turns else [],
    )


def _choose(dialogues: Sequence[Dialogue], limit: int | None, seed: int) -> list[Dialogue]:
    if limit is None or limit >= len(dialogues):
        return list(dialogues)
    return [dialogues[i] for i in sorted(random.Random(seed).sample(range(len(dialogues)), limit))]


def _attempt_bleu(played: Played, *, seed: int) -> Estimate:
    failure = played.failures.get("responses")
    return bleu(played.turns, seed=seed) if failure is None else unmeasured(failure)


def _attempt_tasks(
    played: Played, dialogues: Sequence[Dialogue], database: Database | None, *, seed: int
) -> Tasks | None:
    """Return Inform, Success and the combined score; None where the corpus has no goals or no tables of venues."""
    if not isinstance(database, MultiwozDatabase) or not has_tasks(dialogues, database):
        return None
    failure = played.failures.get("responses")
    if failure is not None:
        return Tasks({}, _unmeasured(TASK_METRICS, failure), {})
    return measure_tasks(played.turns, database, seed=seed)


def _attempt_latency(bot: Bot, played: Played, settings: UtilitySettings) -> Estimate | None:
    if settings.latency_turns == 0:
        return None
    failure = played.failures.get("responses" if settings.responses else "states")
    if failure is not None:
        return unmeasured(failure)
    return seconds_per_turn(
        bot, played.turns, n_turns=settings.latency_turns, is_answering=settings.responses, seed=bot.asker.seed
    )


def _unmeasured(names: Sequence[str], reason: str) -> dict[str, Estimate]:
    return dict.fromkeys(names, unmeasured(reason))


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
