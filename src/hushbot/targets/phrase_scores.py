"""How probable phrases are behind texts, all phrases of all texts in one pass.

Guarantees: a phrase's tokens have the log-probabilities that the model gives them behind the whole text; what phrases
share is read once.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hushbot.intervals import FloatArray
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.phrase_trees import Phrases
from hushbot.targets.row_cache import KeysValues
from hushbot.targets.scorer import log_probabilities


def phrase_scores(
    model: CausalLM, memories: Sequence[KeysValues], last: Sequence[int], plans: Sequence[Phrases]
) -> tuple[list[list[FloatArray]], KeysValues]:
    """Score all phrases behind all texts in one pass.

    Args:
        model: What to score with.
        memories: Keys and values of each text but for its last token.
        last: That token.
        plans: The phrases behind each text.

    Returns:
        Per text and phrase the log-probabilities of its path's tokens, and the keys and values of all trees.
    """
    trees = [plan.tree._replace(ids=[token, *plan.tree.ids[1:]]) for token, plan in zip(last, plans, strict=True)]
    features, fresh = model.branch_features(memories, trees)
    width = features.shape[1]
    places: list[int] = []
    tokens: list[int] = []
    for at, (plan, tree) in enumerate(zip(plans, trees, strict=True)):
        for i, path in zip(plan.order, tree.paths, strict=True):
            places += [at * width + place for place in path]
            tokens += plan.paths[i]
    values = log_probabilities(model, features.flatten(0, 1), places, tokens).double().cpu().numpy()
    scores: list[list[FloatArray]] = []
    at = 0
    for plan in plans:
        of_text: list[FloatArray] = [np.empty(0)] * len(plan.paths)
        for i in plan.order:
            of_text[i] = values[at : at + len(plan.paths[i])]
            at += len(plan.paths[i])
        scores.append(of_text)
    return scores, fresh
