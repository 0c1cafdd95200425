"""How utility is measured: the settings under `utility`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hushbot.evaluation.latency import FEWEST_TURNS
from hushbot.evaluation.state_scoring import ScoringRules


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
    latency_turns: int = 20
    """Answer so many turns once more, one at a time, for the seconds per turn; 0 leaves them out."""

    def __post_init__(self) -> None:
        if self.max_dialogues is not None and self.max_dialogues < 1:
            raise ValueError(
                f"max_dialogues={self.max_dialogues} must be at least 1 or null; set utility.max_dialogues"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1; set utility.max_new_tokens")
        if self.latency_turns != 0 and self.latency_turns < FEWEST_TURNS:
            raise ValueError(
                f"latency_turns={self.latency_turns} must be at least {FEWEST_TURNS}, which an interval needs, or 0; "
                "set utility.latency_turns"
            )
        _ = self.rules  # its own checks

    @property
    def rules(self) -> ScoringRules:
        """Return the rules of scoring: every turn is asked for, so none is missing by design."""
        return ScoringRules(dontcare=self.dontcare, missing="wrong", drop_none=self.drop_none)
