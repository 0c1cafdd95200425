"""What a report does not tell: attacks that were not run, numbers that could not be had, people nobody asked about.

Guarantees: every number without a value stands with the reason that the report gives, numbers of one reason together;
every attack of the suite that the report lacks is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from hushbot.evaluation.card_words import NOT_MEASURED, plain
from hushbot.evaluation.tradeoff import control_of
from hushbot.types import AuditReport, Estimate

ATTACKS = (
    "untargeted_extraction",
    "targeted_extraction",
    "schema_probe",
    "membership",
    "blind",
    "quiz",
    "identifier_leak",
    "canaries",
)
"""Every attack of the suite; one that a report lacks was not run."""
UTILITY = ("joint_goal_accuracy", "state_precision", "state_recall", "state_f1", "bleu", "perplexity")
"""What is measured of every bot."""
VERDICTS = {
    "leak": "**leak**",
    "no_leak_detected": "no leak detected",
    "inconclusive": "inconclusive",
    "not_measured": "not measured",
}


def untested(report: AuditReport) -> Iterator[str]:
    """Yield what was not run, was not concluded, has no control, or has no value, with the reasons that are known."""
    absent = [f"`{name}`" for name in ATTACKS if name not in report.attacks]
    if absent:
        yield f"attacks that were not run: {', '.join(absent)}"
    for name, attack in report.attacks.items():
        if attack.verdict in ("inconclusive", "not_measured"):
            yield f"`{plain(name)}`: {VERDICTS[attack.verdict]}; its notes in report.json say why"
        if name == "membership" and attack.blind is None:
            yield "`membership`: what the split alone tells of who is a member (`blind`) was not measured beside it"
        if name != "blind" and control_of(name, attack)[1] is None:
            yield f"`{plain(name)}` has no control beside its headline"
        numbers = {attack.headline.metric: attack.headline.estimate} | {
            key: number for key, number in attack.metrics.items() if number is None or isinstance(number, Estimate)
        }
        yield from _missing(name, numbers)
    yield from _missing("utility", {name: report.utility.get(name) for name in UTILITY} | report.utility)
    unit = report.recipe.privacy.unit if report.recipe.privacy else "dialogue"
    if unit == "dialogue":
        yield (
            "people: everything here is counted per dialogue; what is said of one dialogue does not hold for "
            "somebody who had several (no user-level guarantee, no user-level test)"
        )
    yield "attackers who hold the weights, see gradients, or put dialogues into the training data"
    yield "attacks that nobody has thought of: only a formal guarantee speaks of those, within what it covers"


def _missing(owner: str, numbers: dict[str, Any]) -> Iterator[str]:
    """Yield one line per reason, naming the numbers that it cost."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, number in numbers.items():
        if number is None:
            by_reason["no value in the report"].append(name)
        elif isinstance(number, Estimate) and number.value is None:
            by_reason[number.method.removeprefix(f"{NOT_MEASURED}: ") or "no reason given"].append(name)
    for reason, names in by_reason.items():
        shown = ", ".join(f"`{plain(name)}`" for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"`{plain(owner)}`: {shown}{more}: {plain(reason)}"
