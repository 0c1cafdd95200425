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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushbot.attacks.questioner import OfflineQuestioner, guessed_schema
from hushbot.errors import AuditError, ConfigError
from hushbot.intervals import DEFAULT_BOOTSTRAP, from_draws
from hushbot.prompts import STATE_MARKER, one_line, read_state, user_lines
from hushbot.protocols import Target
from hushbot.schema import Schema, Slot
from hushbot.stats import as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, Decoding, DialogueState, Estimate, Headline, Metric, Tier, Verdict

METHODS = ("temperature", "model_against_model", "inter_temperature")
Pair = tuple[str, str]
Rows = list[tuple[float, float]]
"""Numerator and denominator of each name."""


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """How a schema is probed before guided sampling."""

    method: str = "inter_temperature"
    """One of temperature, model_against_model, inter_temperature."""
    temperature: float = 1.0
    """Of the exploring answers."""
    n_questions: int = 400
    """Questions, or samples for the method that asks none."""
    n_per_round: int = 20
    """Questions between two looks at the schema."""
    max_new_tokens: int = 64
    """Where an answer is cut."""
    min_count: int = 1
    """How often a slot must have been seen to be kept; 1 keeps all."""
    questioner: Any = field(default_factory=OfflineQuestioner)
    """Who asks."""
    repeats_questions: bool = True
    """Whether inter_temperature also puts each question itself again greedily, which confirms what a state turned into
    a question does not; the paper's does not."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method={self.method!r} must be one of {', '.join(METHODS)}")
        for name in ("n_questions", "n_per_round", "max_new_tokens", "min_count"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")


class Probed(NamedTuple):
    """A schema as a bot gave it away."""

    schema: Schema
    n_queries: int
    notes: list[str]


class Trace(NamedTuple):
    """One probe of one bot."""

    seen: list[frozenset[Pair]]
    """The (domain, slot) pairs of each answer that counted, in the order of the questions."""
    n_queries: int

    def pairs(self, n: int | None = None, min_count: int = 1) -> set[Pair]:
        """Return what the first n questions found."""
        counts = Counter(pair for pairs in self.seen[:n] for pair in pairs)
        return {pair for pair, count in counts.items() if count >= min_count}


def probe(target: Target, *, seed: int, settings: ProbeSettings) -> Probed:
    """Return the schema that asking a bot reveals, as it spells names.

    Raises:
        AuditError: A query failed, or nothing was found.
    """
    trace = trace_probe(target, settings, seed)
    pairs = trace.pairs(min_count=settings.min_count)
    if not pairs:
        often = "" if settings.min_count == 1 else f" {settings.min_count} times"
        raise AuditError(
            f"probing found no slot{often} in {settings.n_questions} questions; ask more, or use schema=gold"
        )
    note = f"schema probed by {settings.method}, {settings.n_questions} questions, temperature {settings.temperature:g}"
    return Probed(Schema.of(Slot(domain, slot) for domain, slot in pairs), trace.n_queries, [note])


def trace_probe(target: Target, settings: ProbeSettings, seed: int) -> Trace:
    """Probe a bot once.

    Raises:
        AuditError: A query failed.
    """
    if settings.method == "temperature":
        texts = _sample(target, [STATE_MARKER], settings.n_questions, settings, settings.temperature, seed)[0]
        return Trace([_pairs(_state(text)) for text in texts], len(texts))
    seen: list[frozenset[Pair]] = []
    explored, confirmed = frozenset[Pair](), frozenset[Pair]()
    n_queries = 0
    while len(seen) < settings.n_questions:
        n = min(settings.n_per_round, settings.n_questions - len(seen))
        known = Schema.of(Slot(domain, slot) for pairs in seen for domain, slot in pairs)
        round_seed = int(np.random.default_rng([seed, len(seen)]).integers(2**31))
        said = settings.questioner.questions(known, n=n, seed=round_seed)
        states = _answers(target, said, settings, settings.temperature, round_seed)
        found = [_pairs(state) for state in states]
        n_queries += n
        if settings.method == "inter_temperature":
            again = [
                *settings.questioner.questions_on(states, seed=round_seed),
                *(said if settings.repeats_questions else ()),
            ]
            sure = _answers(target, again, settings, 0.0, round_seed)
            n_queries += len(again)
            explored |= frozenset[Pair]().union(*found)
            confirmed |= frozenset[Pair]().union(*map(_pairs, sure))
            found = [pairs & confirmed for pairs in found]
            found[-1] |= explored & confirmed  # what an earlier round found and this one confirms
        seen += found
    return Trace(seen, n_queries)


def _answers(
    target: Target, said: Sequence[str], settings: ProbeSettings, temperature: float, seed: int
) -> list[DialogueState]:
    """Return the state that the bot writes in answer to each utterance of a new dialogue."""
    prompts = ["".join(user_lines(one_line(text))) + STATE_MARKER for text in said]
    return [_state(texts[0]) for texts in _sample(target, prompts, 1, settings, temperature, seed)]


def _sample(
    target: Target, prompts: Sequence[str], n: int, settings: ProbeSettings, temperature: float, seed: int
) -> list[list[str]]:
    drawn = target.sample(
        prompts,
        n=n,
        max_new_tokens=settings.max_new_tokens,
        decoding=Decoding(temperature=temperature),
        seed=seed,
    )
    if [len(texts) for texts in drawn] != [n] * len(prompts):
        raise AuditError(f"the target did not return {n} samples for each of {len(prompts)} questions")
    return drawn


def _state(text: str) -> DialogueState:
    return read_state(STATE_MARKER + text).state or frozenset()


def _pairs(state: DialogueState) -> frozenset[Pair]:
    return frozenset((triplet.domain, triplet.slot) for triplet in state)


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
        true = _names(schema)
        try:
            metrics, n_queries = self._measure(target, true, seed)
        except AuditError as error:
            return self._result("inconclusive", unmeasured(f"a query failed: {error}"), [str(error)], started)
        headline = as_estimate(metrics[f"{self._name}/slot_f1"])
        blind = _rates([_names(guessed_schema())], true)
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
                found = _counted(traces, true, self.curve)
                metrics |= {f"{method}/t={temperature:g}/{name}": value for name, value in found.items()}
        return metrics, n_queries


def _counted(traces: Sequence[Trace], true: set[Pair], curve: Sequence[int]) -> dict[str, Metric]:
    """Return what all runs of one method found, and how fast."""
    folded = [
        trace._replace(seen=[frozenset(_fold(*pair) for pair in pairs) for pairs in trace.seen]) for trace in traces
    ]
    found = [trace.pairs() for trace in folded]
    metrics: dict[str, Metric] = {**_rates(found, true)}
    metrics["slot_f1_best"] = _best([_ratio(_f1_rows([pairs], true), "names") for pairs in found])
    needed = [_n_needed(trace, true) for trace in folded]
    if any(n is None for n in needed):
        metrics |= {"questions": None, "asked": None}
    else:
        asked = [(n or 0) * trace.n_queries / len(trace.seen) for n, trace in zip(needed, folded, strict=True)]
        metrics["questions"] = float(np.mean([n or 0 for n in needed]))
        metrics["asked"] = float(np.mean(asked))
    for n in curve:
        if n <= min(len(trace.seen) for trace in folded):
            metrics[f"slot_recall@{n}"] = _ratio(_recall_rows([t.pairs(n) for t in folded], true), "true names")
    return metrics


def _rates(found: Sequence[set[Pair]], true: set[Pair]) -> dict[str, Estimate]:
    """Return precision and recall of domains and slots, and slot F1, of all runs together."""
    domains, true_domains = [{domain for domain, _ in pairs} for pairs in found], {domain for domain, _ in true}
    return {
        "domain_precision": _ratio(_precision_rows(domains, true_domains), "names found"),
        "domain_recall": _ratio(_recall_rows(domains, true_domains), "true names"),
        "slot_precision": _ratio(_precision_rows(found, true), "names found"),
        "slot_recall": _ratio(_recall_rows(found, true), "true names"),
        "slot_f1": _ratio(_f1_rows(found, true), "names") if any(found) else unmeasured("no slot was found"),
    }


def _precision_rows(found: Sequence[set[Any]], true: set[Any]) -> Rows:
    counts = Counter(name for names in found for name in names)
    return [(count * (name in true), count) for name, count in counts.items()]


def _recall_rows(found: Sequence[set[Any]], true: set[Any]) -> Rows:
    return [(sum(name in names for names in found), len(found)) for name in true]


def _f1_rows(found: Sequence[set[Pair]], true: set[Pair]) -> Rows:
    counts = Counter(pair for pairs in found for pair in pairs)
    return [
        (2 * counts[pair] * (pair in true), counts[pair] + len(found) * (pair in true)) for pair in true | counts.keys()
    ]


def _ratio(rows: Rows, of: str) -> Estimate:
    """Return the sum of the first entries over that of the second; the interval resamples rows, one per name."""
    if not rows:
        return unmeasured(f"there are no {of}")
    # Names of which the runs made the same are alike to the bootstrap: it draws how many of each kind there are.
    kinds, counts = np.unique(np.array(rows, dtype=np.float64), axis=0, return_counts=True)
    rng = np.random.default_rng(DEFAULT_BOOTSTRAP.seed)
    drawn = rng.multinomial(len(rows), counts / len(rows), size=DEFAULT_BOOTSTRAP.n_draws) @ kinds
    top, bottom = counts @ kinds
    estimate = from_draws(
        float(top / bottom),
        drawn[:, 0] / drawn[:, 1],
        n=len(rows),
        n_clusters=len(rows),
        level=DEFAULT_BOOTSTRAP.level,
        bounds=(0.0, 1.0),
    )
    return estimate.model_copy(update={"method": f"{estimate.method} over {of}"})


def _best(runs: Sequence[Estimate]) -> Estimate:
    values = [run.value for run in runs if run.value is not None]
    if not values:
        return unmeasured("no slot was found")
    return Estimate(value=max(values), n=len(runs), method=f"best of {len(runs)} runs, so without an interval")


def _n_needed(trace: Trace, true: set[Pair]) -> int | None:
    """Return after how many questions F1 was first as high as it ever was; None where it was never above 0."""
    best, needed = 0.0, None
    pairs: set[Pair] = set()
    for n, found in enumerate(trace.seen, start=1):
        if found <= pairs:
            continue
        pairs |= found
        f1 = 2 * len(pairs & true) / (len(pairs) + len(true))
        if f1 > best:
            best, needed = f1, n
    return needed


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


def _names(schema: Schema) -> set[Pair]:
    return {_fold(slot.domain, slot.name) for slot in schema.slots}


def _fold(domain: str, slot: str) -> Pair:
    return domain.strip().casefold(), slot.strip().casefold()


__all__ = ["METHODS", "ProbeSettings", "Probed", "SchemaProbe", "probe"]
