"""The same question with shorter prefixes and other decodings: exploratory, without a verdict.

Guarantees: a sweep asks about the same members each time, so that its settings can be compared with one another; each
has controls of its own, cut and sampled in the same way, few of them because they serve no verdict. A failed query
leaves that setting not measured, with a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hushbot.attacks.identifier_asking import Setting, ask, cut_probes
from hushbot.attacks.identifier_controls import ControlPool, Controls
from hushbot.attacks.identifier_judgement import Judged
from hushbot.attacks.identifier_metrics import sampled_metrics
from hushbot.attacks.identifier_mining import Probe
from hushbot.errors import AuditError
from hushbot.intervals import unmeasured
from hushbot.protocols import Target
from hushbot.types import Metric

RATES = ("leak_rate", "own_rate", "control_rate")
"""What is reported per setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Settings to try besides the registered one."""

    settings: dict[str, Setting]
    """Name, such as `temperature=0.7`, -> setting."""
    n_controls: tuple[int, int]
    """Least and greatest number of mismatched prefixes per identifier."""
    alpha: float


class Swept(NamedTuple):
    """What the settings gave."""

    metrics: dict[str, Metric]
    n_queries: int
    notes: list[str]


def match_controls(
    probes: Sequence[Probe], pool: Sequence[Probe], n_controls: tuple[int, int]
) -> list[tuple[Probe, Controls]]:
    """Return the probes that have enough mismatched prefixes, with those."""
    sources = ControlPool(pool)
    found = ((probe, sources.choose(probe, *n_controls)) for probe in probes)
    return [(probe, controls) for probe, controls in found if controls is not None]


def sweep(target: Target, probes: Sequence[Probe], pool: Sequence[Probe], settings: Sweep, seed: int) -> Swept:
    """Ask about the same probes under each setting."""
    swept = Swept({}, 0, [])
    pool = _thinned(pool, 2 * settings.n_controls[0])
    for name, setting in settings.settings.items():
        cut, sources = cut_probes(probes, setting.prefix_chars), cut_probes(pool, setting.prefix_chars)
        try:
            evidence, n_queries = ask(target, match_controls(cut, sources, settings.n_controls), setting, seed)
        except AuditError as error:
            reason = f"{name} not measured: a query failed: {error}"
            swept.metrics.update({f"{rate}/{name}": unmeasured(reason) for rate in RATES})
            swept.notes.append(reason)
            continue
        if not evidence:
            reason = f"no identifier has {settings.n_controls[0]} different mismatched prefixes"
            swept.metrics.update({f"{rate}/{name}": unmeasured(reason) for rate in RATES})
            continue
        measured = sampled_metrics(evidence, (), seed)
        measured["leak_rate"] = Judged.of(evidence, [], settings.alpha).rate(evidence)
        swept.metrics.update({f"{rate}/{name}": measured[rate] for rate in RATES})
        swept = swept._replace(n_queries=swept.n_queries + n_queries)
    return swept


def _thinned(pool: Sequence[Probe], n: int) -> list[Probe]:
    """Return the first n probes of each kind, line and cue."""
    seen: Counter[tuple[str, str, str]] = Counter()
    kept = []
    for probe in pool:
        sort = (probe.kind, probe.line, probe.cue)
        seen[sort] += 1
        if seen[sort] <= n:
            kept.append(probe)
    return kept
