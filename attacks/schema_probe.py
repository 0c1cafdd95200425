"""Schema probing: which domains and slots does a bot serve, as far as asking it can tell?

**Threat model.** The attacker reads what the bot writes after `Belief State:`; no probabilities are needed.

**Methods** (paper, sections IV-B2 and V-C).

* `temperature`: read states from continuations of `Belief State:` at a high temperature.
* `model_against_model`: a questioner says things to the bot as a customer, on the strength of the schema found so far;
  the bot answers at the temperature of the row.
* `inter_temperature`: the same; each state found that way is turned into a question again and answered greedily, and
  only domains and slots that are among both kinds of answers are kept. `repeats_questions` asks the question itself
  greedily, too: on small bots rules turn states into questions that they understand less well.

**What is counted**, against the true schema, a slot being a (domain, slot) pair, names compared after trimming and
folding case: `<method>/t=<temperature>/{domain,slot}_{precision,recall}` and `slot_f1`, over `n_runs` runs with seeds
of their own, all runs' finds counted together: precision is over names that were found, recall over true names.
Intervals resample names, each with what all runs made of it, for runs that find the same name are no further evidence.
`slot_f1_best` is the best run's. `questions` is after how many questions slot F1 was as high as it ever was, `asked`
how often the bot was asked for that (inter-temperature asks twice or more); null where a run found nothing that is
true. `slot_recall@<n>` is the recall after n questions.

**Controls.** `base`: the bot before fine-tuning, asked the same. `blind`: a schema that one would guess without any
bot (`questioner.guessed_schema`). A schema is nobody's data: `leak` here says only that the bot gives its service's
scope away: slot F1 of the registered method and temperature lies above the intervals of both. A failed query, and a
bot of which no slot is learnt, are inconclusive.

**What voids it.** Names that mean the same and are spelled otherwise count as wrong, as in the paper.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hushbot.attacks.questioner import OfflineQuestioner, guessed_schema
from hushbot.attacks.schema_asking import METHODS, Pair, ProbeSettings, trace_probe
from hushbot.attacks.schema_counts import counted, names_of, rates
from hushbot.errors import AuditError, ConfigError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, Estimate, Headline, Metric, Tier, Verdict


@dataclass(frozen=True, kw_only=True)
class SchemaProbe:
    """Ask a bot until its domains and slots are known."""

    needs: ClassVar[Tier] = "text"
    methods: Sequence[str] = METHODS
    """Methods to compare."""
    method: str = "inter_temperature"
    """The one behind the headline; chosen before the run."""
    temperatures: Sequence[float] = (1.0, 2.0, 3.0, 4.0, 5.0)
    """Temperatures of exploring answers to compare."""
    temperature: float = 1.0
    """The one behind the headline; chosen before the run."""
    n_questions: int = 200
    """Questions per method, temperature and run."""
    n_samples: int = 2000
    """Samples of the method that asks no questions."""
    n_runs: int = 3
    """Runs with seeds of their own."""
    max_new_tokens: int = 64
    """Where an answer is cut."""
    curve: Sequence[int] = (10, 20, 50, 100, 200, 500, 1000, 2000)
    """After how many questions recall is reported."""
    questioner: Any = field(default_factory=OfflineQuestioner)
    """Who asks: OfflineQuestioner, TargetQuestioner around a model, EndpointQuestioner around a chat endpoint."""
    repeats_questions: bool = False
    """Whether inter_temperature also puts each question itself again greedily; the paper's does not, guided decoders'
    own probe does."""

    def __post_init__(self) -> None:
        where = "set attack.schema_probe"
        problems = [
            f"{name}={getattr(self, name)} must be at least 1; {where}.{name}"
            for name in ("n_questions", "n_samples", "n_runs", "max_new_tokens")
            if getattr(self, name) < 1
        ]
        if not set(self.methods) <= set(METHODS) or self.method not in self.methods:
            problems.append(
                f"methods={list(self.methods)} method={self.method!r}: some of {', '.join(METHODS)}; {where}"
            )
        if self.temperature not in self.temperatures or not all(0 <= t < math.inf for t in self.temperatures):
            problems.append(
                f"temperatures={list(self.temperatures)} must be at least 0 and hold "
                f"temperature={self.temperature}; {where}"
            )
        if problems:
            raise ConfigError(*problems)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Probe the target, and its base as the control; the true schema only counts what was found."""
        started = time.perf_counter()
        true = names_of(schema)
        try:
            metrics, n_queries = self._measure(target, true, seed)
        except AuditError as error:
            return self._result("inconclusive", unmeasured(f"a query failed: {error}"), [str(error)], started)
        headline = as_estimate(metrics[f"{self._name}/slot_f1"])
        blind = rates([names_of(guessed_schema())], true)
        base, failure = None, ""
        notes = ["base control not measured: the target has no reference model"]
        if target.reference is not None:
            try:
                base, n_base = self._measure(target.reference, true, seed)
                n_queries, notes = n_queries + n_base, []
            except AuditError as error:
                failure = f"base control not measured: a query failed: {error}"
                notes = []
        other = None if base is None else as_estimate(base[f"{self._name}/slot_f1"])
        verdict, reason = _judge(headline, blind["slot_f1"], other)
        if failure:
            verdict, reason = "inconclusive", failure
        result = self._result(verdict, headline, [reason, *notes], started)
        return result.model_copy(
            update={"metrics": metrics, "control": {"base": base}, "blind": blind, "queries": n_queries}
        )

    @property
    def _name(self) -> str:
        return f"{self.method}/t={self.temperature:g}"

    def _result(self, verdict: Verdict, headline: Estimate, notes: list[str], started: float) -> AttackResult:
        return AttackResult(
            verdict=verdict,
            headline=Headline(metric="slot_f1", estimate=headline, key=f"{self._name}/slot_f1"),
            control={"base": None},
            threat_model="text",
            seconds=time.perf_counter() - started,
            notes=notes,
        )

    def _measure(self, target: Target, true: set[Pair], seed: int) -> tuple[dict[str, Metric], int]:
        metrics: dict[str, Metric] = {}
        n_queries = 0
        for method in self.methods:
            for temperature in self.temperatures:
                settings = ProbeSettings(
                    method=method,
                    temperature=temperature,
                    n_questions=self.n_samples if method == "temperature" else self.n_questions,
                    max_new_tokens=self.max_new_tokens,
                    questioner=self.questioner,
                    repeats_questions=self.repeats_questions,
                )
                traces = [
                    trace_probe(target, settings, int(np.random.default_rng([seed, run]).integers(2**31)))
                    for run in range(self.n_runs)
                ]
                n_queries += sum(trace.n_queries for trace in traces)
                found = counted(traces, true, self.curve)
                metrics |= {f"{method}/t={temperature:g}/{name}": value for name, value in found.items()}
        return metrics, n_queries


def _judge(headline: Estimate, blind: Estimate, base: Estimate | None) -> tuple[Verdict, str]:
    if headline.value is None:
        return "inconclusive", "no slot was found, which says nothing of what other questions would find"
    bars = {"a blind guess": blind.high}
    if base is not None and base.value is not None:
        bars["the base model"] = base.high
    if headline.low is None or None in bars.values():
        return "inconclusive", "slot F1, or what it is compared with, has no interval: the schema has too few names"
    name, bar = max(((name, high) for name, high in bars.items() if high is not None), key=lambda entry: entry[1])
    if headline.low > bar:
        return "leak", f"the service's scope shows: slot F1 is at least {headline.low:.3f}, above {name} ({bar:.3f})"
    return "no_leak_detected", f"slot F1 {headline.value:.3f} does not lie above {name} (up to {bar:.3f})"
