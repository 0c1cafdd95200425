"""The rules behind the utility numbers, in words and counts: `utility_protocol` of the report.

Guarantees: names every rule that is known to move published numbers, and every place where gold text was shown to the
bot; counts stand beside them, None where the stage that they are of gave nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from hushbot.evaluation.bot import Bot
from hushbot.evaluation.state_scoring import TurnScore, counts
from hushbot.evaluation.tracking import Asker, TrackedTurn
from hushbot.evaluation.utility_settings import UtilitySettings
from hushbot.protocols import Database
from hushbot.targets.guarded import guard_names

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


def measuring_protocol(
    settings: UtilitySettings, database: Database | None, *, offered: int, used: int
) -> dict[str, object]:
    """Return how it was measured, whatever the bot."""
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
        "by_domain": "turns whose gold state holds something of the domain; of both states only that domain's slots "
        "are compared, so what a bot invents of domains that nobody talks about lowers the overall numbers alone",
    }


def bot_protocol(bot: Bot) -> dict[str, object]:
    """Return what depends on the bot: how it is asked, and what of it is measured."""
    found: dict[str, object] = dict(_RUNNING if bot.learns_changes else _WHOLE)
    guards = guard_names(bot.asker.target)
    if guards:
        found["perplexity"] = f"of the bot without its guards; {found['perplexity']}"
    limit = {} if bot.asker.limit is None else bot.asker.limit.protocol()
    return {**found, "guards": list(guards), **limit}


def turn_counts(
    scores: Sequence[TurnScore], tracked: Sequence[TrackedTurn], asker: Asker, *, is_failed: bool
) -> dict[str, object]:
    """Return what happened in how many turns; nothing did where the states could not be had."""
    found = {
        **counts(scores),
        "turns_truncated": sum(turn.is_truncated for turn in tracked),
        "answers_squeezed": asker.n_squeezed,
    }
    return dict.fromkeys(found) if is_failed else dict(found)
