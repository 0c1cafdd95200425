"""How numbers, guarantees and runs are put into words, the same on pages, in terminals and in cards' tables.

Guarantees: a number without a measurement reads "not measured", never 0; an arm without a formal guarantee reads
"none" where others have their epsilon, and "unknown" of a bot that others trained.
"""

from __future__ import annotations

import math

from hushbot.evaluation.tradeoff import NO_GUARANTEE, UNKNOWN_GUARANTEE, arm_name, is_foreign
from hushbot.types import AuditReport, Estimate, Metric

NOT_MEASURED = "not measured"


def show(number: Metric) -> str:
    """Write an estimate with its interval and n, a plain number, or that there is none."""
    if isinstance(number, Estimate):
        if number.value is None:
            return NOT_MEASURED
        interval = "" if number.low is None else f" [{_end(number.low)}, {_end(number.high)}]"
        return f"{number.value:.3f}{interval} (n={number.n})"
    if number is None:
        return NOT_MEASURED
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def _end(value: float | None) -> str:
    return "?" if value is None else f"{value:.3f}"


def guarantee(report: AuditReport) -> str:
    """Write a run's differential privacy guarantee with its unit and delta, and at 1e-5, or that none is known."""
    privacy = report.recipe.privacy
    if privacy is None:
        return UNKNOWN_GUARANTEE if is_foreign(report) else NO_GUARANTEE
    if not math.isfinite(privacy.epsilon):
        return f"{NO_GUARANTEE} (epsilon is not finite)"
    also = "" if privacy.epsilon_at_1e5 is None else f" (epsilon {privacy.epsilon_at_1e5:.4g} at delta 1e-05)"
    return f"epsilon {privacy.epsilon:.4g} per {privacy.unit}, delta {privacy.delta:.4g}{also}"


def summary(report: AuditReport) -> str:
    """Say in words what a run found."""
    accuracy = report.utility.get("joint_goal_accuracy")
    parts = [f"{arm_name(report)} (seed {report.run.seed}) is {report.status}"]
    if accuracy is not None and accuracy.value is not None:
        parts.append(f"it gets {accuracy.value:.0%} of dialogue states wholly right")
    formal = guarantee(report)
    has_none = formal.startswith(NO_GUARANTEE)
    parts.append("it has no formal guarantee" if has_none else f"its formal guarantee is {formal}")
    words = {
        "leak": "leaks",
        "no_leak_detected": "shows no leak",
        "inconclusive": "gives no conclusion",
        "not_measured": "was not measured",
    }
    parts += [f"{words[attack.verdict]} under {name.replace('_', ' ')}" for name, attack in report.attacks.items()]
    return "; ".join(parts) + "."
