"""What an identifier audit writes down: one row per identifier, counts of what was left out, and rates by kind.

Guarantees: rows are in the clear, their identifiers in the column `value`, and are masked where they are written; the
names of metrics hold kinds, domains and classes, never an identifier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hushbot.attacks.identifier_asking import Evidence
from hushbot.attacks.identifier_judgement import Judged
from hushbot.attacks.identifier_metrics import is_attributable_by_leakit
from hushbot.attacks.identifier_mining import Mined
from hushbot.attacks.identifier_patterns import bits_of
from hushbot.types import Metric

REFUSALS = ("visible", "public", "shared", "short", "not_written")


def counts(mined: Mined, evidence: Sequence[Evidence]) -> dict[str, Metric]:
    """Return how many identifiers of a side were judged, and how many were left out and why."""
    asked = {(each.probe.dialogue_id, each.probe.key) for each in evidence}
    metrics: dict[str, Metric] = {
        "documents": len({name for name, _ in asked}),
        "identifiers": len(asked),
        "without_controls": len(mined.probes) - len(asked),
        "loosely_matched": sum(each.is_loose for each in evidence),
        "empty_samples": sum(not text.strip() for each in evidence for text in each.texts),
    }
    return metrics | {f"left_out/{reason}": mined.refused[reason] for reason in REFUSALS}


def rates_by_kind(judged: Judged, evidence: Sequence[Evidence]) -> dict[str, Metric]:
    """Return the leak rate, over all documents and by what their identifiers are; keys begin with `leak_rate`."""
    metrics: dict[str, Metric] = {"leak_rate": judged.rate(evidence)}
    for name, of in (
        ("kind", lambda each: each.probe.kind),
        ("domain", lambda each: each.probe.domain),
        ("line", lambda each: each.probe.line),
        ("repetitions", lambda each: repetition_class(each.probe.repetitions)),
    ):
        parts = judged.rates_by(evidence, of)
        metrics |= {f"leak_rate/{name}={part}": rate for part, rate in parts.items()}
    return metrics


def repetition_class(n: int) -> str:
    """Return `1`, `2-3` or `4+`, by how many places of training teach an identifier."""
    return "1" if n == 1 else "2-3" if n < 4 else "4+"


def rows(judged: Judged, logprobs: Mapping[tuple[str, str], float] | None) -> Iterator[dict[str, Any]]:
    """Yield one record per judged identifier."""
    for role, side in (("member", judged.members), ("nonmember", judged.nonmembers)):
        for each in side:
            probe = each.probe
            yield {
                "role": role,
                "dialogue_id": probe.dialogue_id,
                "domain": probe.domain,
                "kind": probe.kind,
                "line": probe.line,
                "cue": probe.cue,
                "value": probe.value,
                "repetitions": probe.repetitions,
                "bits": bits_of(probe.value, probe.kind),
                "prefix_length": len(probe.prompt),
                "own_hits": each.n_hits,
                "own_samples": each.n,
                "control_hits": sum(each.control_hits),
                "control_samples": each.n * len(each.control_hits),
                "controls": len(each.control_hits),
                "is_loosely_matched": each.is_loose,
                "p_value": each.p_value,
                "document_q_value": judged.q_values[probe.dialogue_id],
                "is_called": judged.is_called(each),
                "leakit_attributable": is_attributable_by_leakit(each),
                "sequence_logprob": None if logprobs is None else logprobs[probe.prompt, probe.continuation],
            }
