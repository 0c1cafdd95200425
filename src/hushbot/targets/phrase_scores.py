"""How probable phrases are behind texts, all phrases of all texts in one pass.

Guarantees: a phrase's tokens have the log-probabilities that the model gives them behind the whole text; what phrases
share is read once.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hushbot.intervals import FloatArray
from hushbot.targets.branch_rows import starts_of
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.phrase_trees import Phrases
from hushbot.targets.row_cache import KeysValues
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_store import StoredTexts


def phrase_scores(
    model: CausalLM, texts: StoredTexts, last: Sequence[int], plans: Sequence[Phrases]
) -> tuple[list[FloatArray], KeysValues]:
    """Score all phrases behind all texts in one pass.

    Args:
        model: What to score with.
        texts: What the model has read of each text, its last token left out.
        last: That token.
        plans: The phrases behind each text.

    Returns:
        Per text the log-probabilities of its edges (`Phrases.totals` adds them up), and the keys and values of all
        trees, tree after tree, of shape (tokens, heads, width).
    """
    trees = [plan.tree._replace(ids=[token, *plan.tree.ids[1:]]) for token, plan in zip(last, plans, strict=True)]
    features, fresh = model.branch_features(texts, trees)
    places = np.concatenate([plan.edges.places + at for at, plan in zip(starts_of(trees), plans, strict=True)])
    tokens = np.concatenate([plan.edges.tokens for plan in plans])
    values = log_probabilities(model, features, places, tokens).double().cpu().numpy()
    return np.split(values, np.cumsum([len(plan.edges.tokens) for plan in plans])[:-1]), fresh
