"""The doctor: what does a served model tell, and is it true?

Guarantees: every finding rests on the server's own answers to harmless texts, none of them anybody's. Tier `full` is
said only where the log-probabilities of an echoed text agree, position by position, with those of the next token after
the text so far (asked without echo), and where reading them one position off, or as the probability of a token given
itself, would not agree as well. What could not be told apart is refused, like what is wrong: an attack on scores that
are shifted by one token reports chance and looks like a clean bill.

What voids it: a server that answers otherwise tomorrow; the fingerprint (of its greedy answers) says so.

Source: servers as they were found: llama-cpp-python's scores are shifted by one where the model adds no BOS,
transformers serve drops what it does not know, llama-server refuses to echo, all of them with plausible answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hushbot.errors import AuditError
from hushbot.targets.examination import PROMPTS, Examination, Finding
from hushbot.targets.http import HTTPTarget
from hushbot.types import Tier

__all__ = ["PROMPTS", "Diagnosis", "Finding", "examine"]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What an endpoint is good for."""

    tier: Tier | None
    """None where it answers nothing of use."""
    findings: tuple[Finding, ...]
    fingerprint: str | None = None
    """Hash of its greedy answers; None where those change from one time to the next."""
    echo_tokens: Literal[0, 1] = 1
    """As `HTTPTarget`'s."""
    has_top_k: bool = False
    """As `HTTPTarget`'s."""
    is_random: bool = True
    """As `HTTPTarget`'s."""
    neutral: tuple[tuple[str, float], ...] = ()
    """As `HTTPTarget`'s."""

    def applied_to(self, target: HTTPTarget) -> HTTPTarget:
        """Return the target as one that was examined.

        Raises:
            AuditError: It is of no use.
        """
        if self.tier is None:
            raise AuditError(f"the endpoint cannot be audited: {self.findings[-1].detail}")
        return replace(
            target,
            tier=self.tier,
            echo_tokens=self.echo_tokens,
            has_top_k=self.has_top_k,
            is_random=self.is_random,
            neutral=self.neutral,
            fingerprint=self.fingerprint,
        )

    def finding(self, name: str) -> Finding | None:
        """Return what was found under a name; None where it was not looked at."""
        return next((finding for finding in self.findings if finding.name == name), None)


def examine(target: HTTPTarget) -> Diagnosis:
    """Ask an endpoint some forty short questions and say what it is good for; never raises for what it answers."""
    examination = Examination(target)
    if not examination.is_alive():
        return Diagnosis(tier=None, findings=tuple(examination.findings))
    tier: Tier = "text"
    is_deterministic = examination.is_deterministic()
    varies = examination.varies()
    neutral = examination.neutral()
    examination.check_seed(varies)
    examination.check_draws()
    examination.check_stop()
    examination.check_batch()
    has_top_k = examination.knows_top_k(varies)
    if examination.tells_next():
        tier = "next_token"
    if examination.echoes() and tier == "next_token" and examination.is_aligned():
        examination.check_first_token()
        examination.check_wide_characters()
        examination.check_score_noise()
        tier = "full"
    examination.check_waits()
    return Diagnosis(
        tier=tier,
        findings=tuple(examination.findings),
        fingerprint=examination.fingerprint() if is_deterministic else None,
        echo_tokens=examination.target.echo_tokens,
        has_top_k=has_top_k,
        is_random=varies,
        neutral=neutral,
    )
