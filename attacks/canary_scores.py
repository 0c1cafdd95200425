"""How a bot rates each canary's identifier, alone and among random ones of its shape.

The prompt is all that a canary's training text says before its actions; the continuation is the line of actions, which
names the identifier. With S the summed log-probability of that line, S_i those with random identifiers of the same kind
in its place, and S' that of the bot before fine-tuning:

* `contrast = S - mean(S_i)`: how much better the bot rates this identifier than others;
* `loss = -S`;
* `ratio = -S + S'`: the loss above that before fine-tuning;
* `exposure = log2(n + 1) - log2(rank)`, with rank 1 for the best of the n + 1 identifiers, ties counting half.

Canaries that were trained on have HIGH contrast and exposure and LOW loss and ratio.

Guarantees: scores depend on no coin, on no order and on no batch; the random identifiers depend on the seed and the
canary alone; a score that is not finite is an `AuditError`.

Source: Carlini et al., The Secret Sharer, USENIX Security 2019 (exposure, here by sampling).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushbot.corpora.canaries import draw_identifier
from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.prompts import answer_segments, history_lines, state_line
from hushbot.protocols import Target
from hushbot.types import Canary

SCORES = ("contrast", "loss", "ratio")
"""What canaries can be told apart by."""
SIGNS = {"contrast": 1.0, "loss": -1.0, "ratio": -1.0}
"""1 where canaries that were trained on score high, -1 where low."""
_AT_ONCE = 4096


class CanaryScores(NamedTuple):
    """The ratings of all canaries by one bot, in the order of the canaries."""

    logprobs: FloatArray
    """Of the true identifier's line."""
    contrast: FloatArray
    exposure: FloatArray


def question(canary: Canary) -> tuple[str, str]:
    """Return what a bot reads before a canary's actions, and the line of actions.

    Raises:
        AuditError: The identifier is not where it belongs, and nowhere else.
    """
    turn = canary.dialogue.turns[0]
    segments = answer_segments(turn, state_line(turn.state or frozenset()))
    prompt = "".join((*history_lines(canary.dialogue, 0), *(segment.text for segment in segments[:4])))
    line = segments[4].text
    if canary.identifier in prompt or line.count(canary.identifier) != 1:
        raise AuditError(
            f"dialogue {canary.dialogue.id}: the identifier must stand once in its actions and not before; "
            "draw canaries with hushbot.corpora.canaries"
        )
    return prompt, line


def score_canaries(target: Target, canaries: Sequence[Canary], *, n_alternatives: int, seed: int) -> CanaryScores:
    """Rate every canary's identifier beside random ones.

    Args:
        target: The bot.
        canaries: In an order that depends on no coin.
        n_alternatives: Random identifiers per canary.
        seed: Of the random identifiers.

    Raises:
        AuditError: A query failed, or a score is not finite.
    """
    pairs = []
    for canary in canaries:
        prompt, line = question(canary)
        others = _alternatives(canary, n_alternatives, seed)
        pairs += [(prompt, line.replace(canary.identifier, name)) for name in (canary.identifier, *others)]
    sums = np.concatenate([_sums(target, pairs[start : start + _AT_ONCE]) for start in range(0, len(pairs), _AT_ONCE)])
    table = sums.reshape(len(canaries), n_alternatives + 1)
    own, random_ones = table[:, 0], table[:, 1:]
    n_better, n_equal = ((compare(random_ones, own[:, None])).sum(axis=1) for compare in (np.greater, np.equal))
    exposure = math.log2(n_alternatives + 1) - np.log2(1 + n_better + n_equal / 2)
    return CanaryScores(own, own - random_ones.mean(axis=1), exposure)


def raw_scores(scores: CanaryScores, base: CanaryScores | None) -> dict[str, FloatArray]:
    """Return each score by name, as this module's formulas define them; without a base there is no ratio."""
    raw = {"contrast": scores.contrast, "loss": -scores.logprobs}
    return raw if base is None else {**raw, "ratio": base.logprobs - scores.logprobs}


def _alternatives(canary: Canary, n: int, seed: int) -> list[str]:
    """Return random identifiers of the canary's kind, all different and none its own."""
    rng = random.Random(f"alternatives/{seed}/{canary.dialogue.id}")
    found: dict[str, None] = {}
    while len(found) < n:
        if (drawn := draw_identifier(canary.kind, rng)) != canary.identifier:
            found[drawn] = None
    return list(found)


def _sums(target: Target, pairs: Sequence[tuple[str, str]]) -> FloatArray:
    """Return the summed log-probability of each continuation."""
    answers = target.logprobs([prompt for prompt, _ in pairs], [line for _, line in pairs])
    if len(answers) != len(pairs):
        raise AuditError(f"the target answered {len(answers)} of {len(pairs)} scoring queries; rerun the audit")
    sums = np.array([float(answer.double().sum()) for answer in answers], dtype=np.float64)
    if not np.all(np.isfinite(sums)):
        n_broken = int(np.count_nonzero(~np.isfinite(sums)))
        raise AuditError(f"{n_broken} of {len(pairs)} canary texts have a log-probability that is not finite")
    return sums
