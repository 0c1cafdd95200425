"""Filter guard: what the bot says is rewritten before it leaves.

Guarantees: training is untouched; every sampled text, of the bot and of its base control alike, passes the rewriter,
and when that fails nothing is let out. States stay readable. The default rewriter is a rule that works offline: phone
numbers, e-mail addresses, postcodes, codes and long numbers that the prompt did not give become placeholders. Another
model may rephrase instead (`hushbot.targets.target_rewriter.TargetRewriter`), as the paper does it.

What voids it: probabilities. An output filter does nothing against an attacker who reads log-probabilities: they pass
through as they are, and score-based attacks see the bot without its filter. Use it where the endpoint returns text
only, and read text-based attacks for what it is worth.

Source: the filter-based defence of the multiple-choice membership paper, section 5 and appendix G (mean AUC 0.87 to
0.73 there).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hushbot.protocols import Recipe, Target
from hushbot.schema import Schema
from hushbot.targets.filter_guard import FilterGuardTarget, Rewriter
from hushbot.targets.mask_identifiers import MaskIdentifiers
from hushbot.types import Dialogue


@dataclass(frozen=True, kw_only=True)
class FilterGuard(Recipe):
    """Rewrite every text before it leaves the bot."""

    rewriter: Rewriter = field(default_factory=MaskIdentifiers)
    """What rewrites: a component with `rewrite(texts, prompts)`."""

    def __post_init__(self) -> None:
        if not callable(getattr(self.rewriter, "rewrite", None)):
            raise ValueError(
                f"rewriter={self.rewriter!r} has no rewrite(texts, prompts); set recipe.filter_guard.rewriter"
            )

    def guard(self, target: Target, schema: Schema) -> Target:
        """Return the target whose texts pass the rewriter."""
        return FilterGuardTarget(target, rewriter=self.rewriter)

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Say what the guard is and is not."""
        return (
            f"every text passes {type(self.rewriter).__name__} before it leaves; no formal guarantee",
            "an output filter does nothing against an attacker who reads probabilities: log-probabilities pass "
            "unfiltered, and score-based attacks are measured on the bot without it",
        )
