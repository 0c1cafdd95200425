"""How well a bot predicts the gold text that it was trained to write.

Guarantees: exp of minus the mean natural log-probability per token, over all tokens of all dialogues; the interval
resamples dialogues. A bot that cannot score has no number.

What voids comparability: another tokenizer; bots that write whole states beside bots that write changes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hushbot.errors import AuditError
from hushbot.evaluation.bot import Bot
from hushbot.stats import Bootstrap, cluster_bootstrap, unmeasured
from hushbot.types import Dialogue, Estimate


def measure_perplexity(bot: Bot, dialogues: Sequence[Dialogue]) -> Estimate:
    """Return the perplexity of a bot on the gold text of dialogues."""
    try:
        return perplexity(bot.score_gold(dialogues), seed=bot.asker.seed)
    except AuditError as error:
        return unmeasured(str(error))


def perplexity(sums: Sequence[tuple[float, int]], *, seed: int) -> Estimate:
    """Return exp of minus the mean log-probability per token, from each dialogue's sum and token count."""
    rows = np.array([row for row in sums if row[1] > 0], dtype=np.float64)
    if not len(rows):
        return unmeasured("no dialogue has a known gold state")
    with np.errstate(over="ignore"):
        found = cluster_bootstrap(
            rows,
            None,
            lambda drawn: float(np.exp(-drawn[:, 0].sum() / drawn[:, 1].sum())),
            bootstrap=Bootstrap(seed=seed),
        )
    return found.model_copy(update={"n": int(rows[:, 1].sum())})
