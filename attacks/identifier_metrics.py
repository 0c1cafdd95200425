"""Numbers about evidence: rates, hit@k, sampling functionals and exact sequence probabilities, all with intervals.

Guarantees: dialogues are resampled whole; a number without any unit is not measured, never zero. Sequence
probabilities are those of plain sampling, whatever decoding the samples were drawn with, and of the identifier's one
tokenisation right after its prefix: a lower bound on the probability of a hit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hushbot.attacks.identifier_asking import Evidence
from hushbot.attacks.identifier_mining import Probe
from hushbot.attacks.identifier_statistics import hit_at_k, is_extractable, overlaps, self_concentration
from hushbot.attacks.leakit_rules import leakit_verdict
from hushbot.errors import AuditError, UnsupportedError
from hushbot.intervals import Bootstrap, clopper_pearson, cluster_bootstrap, paired_bootstrap, unmeasured
from hushbot.protocols import Target
from hushbot.types import Estimate, Metric

N_DRAWS = 1000
EXTRACTABLE_P = 0.5
"""The probability in (n, p)-extractability."""


def sampled_metrics(evidence: Sequence[Evidence], curve: Sequence[int], seed: int) -> dict[str, Metric]:
    """Return what the samples say of one side's identifiers."""
    bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)

    def mean(value: Callable[[Evidence], float | None], used: Sequence[Evidence] = evidence) -> Estimate:
        known = [(each.probe.dialogue_id, x) for each in used if (x := value(each)) is not None]
        if not known:
            return unmeasured("no identifier, or no words")
        return cluster_bootstrap([x for _, x in known], [i for i, _ in known], bounds=(0, 1), bootstrap=bootstrap)

    metrics: dict[str, Metric] = {
        "own_rate": mean(lambda each: each.n_hits / each.n),
        "control_rate": mean(lambda each: each.control_rate),
        "rate_difference": _difference(evidence, bootstrap),
    }
    largest = max((each.n for each in evidence), default=0)
    for k in (k for k in curve if k <= largest):
        metrics[f"hit@{k}"] = mean(lambda each, k=k: hit_at_k(each.n_hits, each.n, k))  # type: ignore[misc]
    metrics["mean_overlap"] = mean(lambda each: (overlaps(each.texts, each.probe.gold) or (None, None))[0])
    metrics["extreme_overlap"] = mean(lambda each: (overlaps(each.texts, each.probe.gold) or (None, None))[1])
    metrics["self_concentration"] = mean(lambda each: self_concentration(each.texts))
    metrics["leakit_rate"] = mean(lambda each: float(is_attributable_by_leakit(each)))
    return metrics


def is_attributable_by_leakit(evidence: Evidence) -> bool:
    """Say what leakit would of the same samples, the nearest control being its only one."""
    return leakit_verdict(evidence.texts, evidence.control_texts, evidence.probe.value).attributable is True


def _difference(evidence: Sequence[Evidence], bootstrap: Bootstrap) -> Estimate:
    if not evidence:
        return unmeasured("no identifier")
    own = [each.n_hits / each.n for each in evidence]
    control = [each.control_rate for each in evidence]
    clusters = [each.probe.dialogue_id for each in evidence]
    return paired_bootstrap(own, control, clusters, bounds=(-1, 1), bootstrap=bootstrap)


class Scores(NamedTuple):
    """Exact probabilities of identifiers after their prefixes."""

    logprobs: dict[tuple[str, str], float] | None
    """(prompt, continuation) -> natural log-probability; None where the bot gives no scores."""
    n_queries: int
    reason: str
    """Why there are none."""

    @classmethod
    def of(cls, target: Target, probes: Sequence[Probe], seed: int) -> Scores:
        """Score each probe's continuation, in one shuffled call; without scores, say why."""
        pairs = sorted({(probe.prompt, probe.continuation) for probe in probes})
        pairs = [pairs[i] for i in np.random.default_rng(seed).permutation(len(pairs))]
        try:
            scores = target.logprobs([prompt for prompt, _ in pairs], [text for _, text in pairs]) if pairs else []
            sums = {pair: float(score.sum()) for pair, score in zip(pairs, scores, strict=True)}
            if broken := sum(not math.isfinite(value) for value in sums.values()):
                raise AuditError(f"{broken} of {len(sums)} log-probabilities are not finite")
        except (AuditError, UnsupportedError) as error:
            return cls(None, 0, f"exact probabilities not measured: {error}")
        return cls(sums, len(pairs), "")

    def metrics(self, probes: Sequence[Probe], counts: Sequence[int], seed: int) -> dict[str, Metric]:
        """Return what they say of one side's probes, with (n, p)-extractability for each n of `counts`."""
        names = [f"extractable@{n}" for n in counts]
        if self.logprobs is None or not probes:
            return dict.fromkeys(("sequence_logprob", *names), unmeasured(self.reason or "no identifier"))
        values = [self.logprobs[probe.prompt, probe.continuation] for probe in probes]
        clusters = [probe.dialogue_id for probe in probes]
        bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)
        metrics: dict[str, Metric] = {"sequence_logprob": cluster_bootstrap(values, clusters, bootstrap=bootstrap)}
        for name, n in zip(names, counts, strict=True):
            out = {i for i, value in zip(clusters, values, strict=True) if is_extractable(value, n, EXTRACTABLE_P)}
            metrics[name] = clopper_pearson(len(out), len(set(clusters)))
        return metrics
