"""The front matter of a privacy card, in the form that the Hugging Face hub reads from model cards.

Guarantees: a number that was not measured has no entry, and neither has an empty list; what an attack found is a result
of a task of its own, whose name says that less is better; of data that lies in a folder only the folder's own name is
told. `huggingface_hub.ModelCard` reads every entry back.

What voids it: the licence of a bot is its owner's to state and is left out, and so is the language.
"""

from __future__ import annotations

import re
from typing import Any

from hushbot.evaluation.card_words import data_name
from hushbot.evaluation.tradeoff import is_foreign
from hushbot.types import AuditReport, Estimate

UTILITY_TASK = {"type": "text-generation", "name": "task-oriented dialogue"}
AUDIT_TASK = {"type": "text-generation", "name": "privacy audit (leakage: less is better)"}


def front_matter(report: AuditReport) -> dict[str, Any]:
    """Return the metadata of a Hugging Face model card."""
    recipes = [] if is_foreign(report) else report.recipe.stack
    tags = ["hushbot", "task-oriented-dialogue", "privacy", "memorisation", *recipes]
    tags += ["differential-privacy"] if report.recipe.privacy is not None else []
    front: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(tags)),
        "datasets": [_slug(report)],
    }
    if results := _results(report):
        front["metrics"] = list(dict.fromkeys(metric["type"] for result in results for metric in result["metrics"]))
        front["model-index"] = [{"name": report.run.id, "results": results}]
    return front


def _results(report: AuditReport) -> list[dict[str, Any]]:
    """Return what was measured: of the bot on dialogues it has not seen, and by each attack on both sides."""
    dataset = {"type": _slug(report), "name": data_name(report)}
    headlines = {
        f"{name}/{attack.headline.metric}": attack.headline.estimate for name, attack in report.attacks.items()
    }
    found = [
        {"task": UTILITY_TASK, "dataset": {**dataset, "split": "non-members"}, "metrics": _metrics(report.utility)},
        {
            "task": AUDIT_TASK,
            "dataset": {**dataset, "split": "members and non-members"},
            "metrics": _metrics(headlines),
        },
    ]
    return [result for result in found if result["metrics"]]


def _metrics(numbers: dict[str, Estimate]) -> list[dict[str, Any]]:
    return [
        {"type": name, "name": name.replace("_", " "), "value": round(estimate.value, 6)}
        for name, estimate in numbers.items()
        if estimate.value is not None
    ]


def _slug(report: AuditReport) -> str:
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", data_name(report)).strip("-./") or "unnamed"
