"""One hash over what a report found, to tell whether two runs came to the same.

Guarantees: two reports of the same seed, data, configuration and software on one machine's CPU have the same hash,
however long they took, in whatever folder they lie, and however often they were interrupted. The order of keys does
not matter; every other text and number does, to the last bit.

Left out is what a clock or a machine decides: dates, seconds, memory, device, versions and threads, and what `doctor`
wrote of an endpoint's speed.

What voids it: noise that must not repeat (`dp_sgd` without `insecure_seed`), a GPU, another number of threads, an
endpoint that answers otherwise the second time. See docs/reproducing.md.

>>> report_sha256({"run": {"seed": 0, "seconds": {"audit": 1.0}}}) == report_sha256({"run": {"seed": 0}})
True
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from hushbot.types import AuditReport

OF_THE_MACHINE = (
    "run.created",
    "run.seconds",
    "run.seconds_per_turn",
    "run.peak_memory_mb",
    "run.device",
    "run.trained_on",
    "run.versions",
    "attacks.*.seconds",
    "endpoint.findings",
)
"""Keys of report.json that a clock or a machine decides; `*` stands for any name."""


def report_sha256(report: AuditReport | Mapping[str, Any]) -> str:
    """Return the hash of what a report found.

    Args:
        report: The report, or the content of a report.json.
    """
    content = report.model_dump(mode="json") if isinstance(report, AuditReport) else report
    kept = _without(content, [key.split(".") for key in OF_THE_MACHINE])
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _without(value: Any, paths: list[list[str]]) -> Any:
    """Return a value without what lies at some paths."""
    if not isinstance(value, Mapping) or not paths:
        return value
    kept = {}
    for name, inner in value.items():
        ours = [path[1:] for path in paths if path[0] in (name, "*")]
        if [] not in ours:
            kept[name] = _without(inner, ours)
    return kept
