"""Untargeted extraction: ask a bot for a dialogue state without any dialogue, and see whose come out.

**Threat model.** Score-based black box (paper, section III-B2): the attacker samples continuations of
`Belief State:` and may ask how probable a text is. The attacker knows nothing of the training data.

**Method** (sections IV-A, IV-B2 and V-B). Sample `n_samples` continuations with each decoder (`decoding`), read a state
from each, keep each distinct state once (`state_candidates`), rank the states by a membership score and keep the best
`k`. Rankings: `none` (a seeded random order), `ppl`, `ppl_zlib`, `c_ppl`, `dc_ppl`; the prefix of a state is the
prompt, its suffix the state as hushbot writes it. Guided decoders take the schema that a probe of the same bot finds
(`schema_probe`), or the true one as the upper bound (`schema=gold`).

**What is counted.** The metrics of `state_metrics`: `<decoder>/<ranking>/<metric>` over all distinct states (the same
under every ranking, since ranking drops nothing), `<decoder>/<ranking>/<metric>@<k>` over the best k, both precisions
at every k of `curve`, and `<decoder>/<ranking>/hit_auc`: how well the score parts the candidates that are members'
from the rest. With fewer than k states all are used, and the estimate's n says how many.

Where the sides differ in number, both are counted on as many dialogues of each, or a headline and its chance line
could not be compared; counts over all of the members then stand under `members_all/...`, without a control.

**Controls.** `nonmembers`: the same candidates against as many people whom the bot never saw. `base`: as many
samples of the bot before fine-tuning, against the same members. `difference`: members minus as many non-members,
paired over candidates; its slices by number of triplets and its other rankings are exploratory. `judged`: the
registered test of each decoder.

**Verdict.** The rule of `state_judgement`: distinct states of `min_triplets` or more triplets, corrected for the number
of decoders; a leak by any of them is one. A failed query, be it to the base control, gives `inconclusive`.

**What voids it.** Non-members that come from elsewhere than the members (another year, another city) differ
by more than membership. Values and short states are population knowledge: never read their precision without
its control.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hushbot.attacks.decoding import Decoder, decoder_problems, parse_decoder, resolved
from hushbot.attacks.state_candidates import RANKINGS, Harvest, read_candidates, score_candidates
from hushbot.attacks.state_judgement import (
    MIN_CANDIDATES,
    RANKING,
    Rule,
    judge,
    judged_metrics,
    overall,
    shown,
)
from hushbot.attacks.state_metrics import (
    N_DRAWS,
    StateIndex,
    extraction_metrics,
    paired_differences,
    precision_curve,
)
from hushbot.attacks.state_sides import Sides, take_sides
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, as_estimate, auc, orient, unmeasured
from hushbot.types import AttackResult, AuditSplit, Estimate, Headline, Metric

ALL_MEMBERS = "members_all"
"""Prefix of counts over all members, where those are more than the non-members."""
SEQUENCES_PER_CANDIDATE = 3
"""Texts that the four scores of one candidate need: whole, suffix after prefix, suffix alone."""


class Found(NamedTuple):
    """What one decoder got out of one bot."""

    decoder: Decoder
    harvest: Harvest
    notes: list[str]


class Base(NamedTuple):
    """The control of the bot before fine-tuning."""

    metrics: dict[str, Metric] | None
    n_queries: int
    notes: list[str]
    has_failed: bool
    """Whether a query failed, as opposed to there being no such bot."""


class Guide(NamedTuple):
    """The schema of guided decoders."""

    schema: Schema | None
    n_queries: int
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class UntargetedExtraction:
    """Sample states out of nothing, rank them, and count whose they are."""

    n_samples: int = 10_000
    """How many continuations to sample with each decoder, from the target and again from its reference; at least 1."""
    max_new_tokens: int = 128
    """Where a sample is cut; at least 1."""
    k: int = 100
    """How many of the best-ranked states the headline and the verdict rest on; at least 20."""
    decoders: Sequence[str] = ("vanilla",)
    """Decoders to try: greedy, vanilla, temperature, decaying_temperature, beam_search, group_beam_search,
    beam_sampling, schema_guided, schema_masked, each with options, as in `vanilla:top_k=40`."""
    decoder: str = "vanilla"
    """The decoder behind the headline; chosen before the run, never by its result."""
    schema: Literal["probed", "gold"] = "probed"
    """Where guided decoders have the schema from: probed from the bot, or the true one (an upper bound)."""
    min_triplets: int = 5
    """The verdict rests on states of at least so many triplets: shorter ones are everybody's; at least 1."""
    curve: Sequence[int] = (10, 20, 50, 100, 200, 500)
    """Where the precision of each ranking is measured, as far as there are states."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value} is below {least}; set attack.untargeted_extraction.{name}"
            for name, value, least in (
                ("n_samples", self.n_samples, 1),
                ("max_new_tokens", self.max_new_tokens, 1),
                ("k", self.k, MIN_CANDIDATES),
                ("min_triplets", self.min_triplets, 1),
                ("curve", min(self.curve, default=1), 1),
            )
            if value < least
        ]
        problems += decoder_problems("untargeted_extraction", self.decoders, self.decoder)
        if self.schema not in ("probed", "gold"):
            problems.append(
                f"schema={self.schema!r} is not 'probed' or 'gold'; set attack.untargeted_extraction.schema"
            )
        if problems:
            raise ConfigError(*problems)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Attack the target; the true schema is used only where `schema=gold` asks for it."""
        started = time.perf_counter()
        try:
            guide = find_schema([parse_decoder(spec) for spec in self.decoders], self.schema, target, schema, seed)
            found = {spec: self._harvest(target, spec, guide.schema, seed) for spec in self.decoders}
        except AuditError as error:
            return self._failed(f"sampling failed: {error}", time.perf_counter() - started)
        sides = take_sides(split, seed)
        headline, metrics = self._metrics(found, split, sides, seed)
        judged = {spec: judge(each.harvest, sides, self._rule, seed) for spec, each in found.items()}
        base = self._base(target, sides, guide.schema, seed)
        verdict, reasons = overall(judged, self.decoder)
        return AttackResult(
            verdict="inconclusive" if base.has_failed else verdict,
            headline=headline,
            metrics=metrics,
            control={
                "nonmembers": self._measured(found, sides.equal_nonmembers, seed) if sides.n_equal else None,
                "base": base.metrics,
                "difference": self._differences(found, sides, seed),
                "randomisation_p": judged[self.decoder].p,
                "judged": shown(judged),
            },
            queries=guide.n_queries + sum(map(_n_queries, found.values())) + base.n_queries,
            seconds=time.perf_counter() - started,
            notes=[*reasons, *guide.notes, *self._notes(found), *sides.notes, *base.notes],
            rows=[row for each in found.values() for row in _rows(each, sides)],
        )

    @property
    def _key(self) -> str:
        """Return the headline's full key, in metrics and controls alike."""
        return f"{self.decoder}/{RANKING}/state_precision@{self.k}"

    @property
    def _rule(self) -> Rule:
        return Rule(self.k, self.min_triplets, len(self.decoders))

    def _headline(self, estimate: Estimate) -> Headline:
        return Headline(metric=f"state_precision@{self.k}", estimate=estimate, key=self._key)

    def _harvest(self, target: Target, spec: str, schema: Schema | None, seed: int) -> Found:
        """Sample and score with one decoder; raises AuditError only if there are no samples."""
        decoder = parse_decoder(spec)
        texts = decoder.write(
            target,
            [STATE_MARKER],
            n=decoder.n_useful(self.n_samples),
            max_new_tokens=self.max_new_tokens,
            schema=schema,
            seed=seed,
        )
        notes = []
        if decoder.n_useful(self.n_samples) < self.n_samples:
            notes.append(f"{spec} draws nothing: it has {decoder.n_useful(self.n_samples)} texts to give, not more")
        if texts.mass is not None:
            notes.append(
                f"{spec}: the bot gave what the schema allows {texts.mass:.3f} on average; "
                "queries count a guided text once, not its choices"
            )
        return Found(decoder, score_candidates(target, read_candidates(texts.continuations[0])), notes)

    def _metrics(
        self, found: Mapping[str, Found], split: AuditSplit, sides: Sides, seed: int
    ) -> tuple[Headline, dict[str, Metric]]:
        """Return the headline, and everything that is counted against the members."""
        metrics = self._measured(found, sides.equal_members, seed)
        headline = self._headline(as_estimate(metrics[self._key]))
        if len(split.members) > sides.n_equal:
            everyone = self._measured(found, sides.members, seed)
            metrics |= {f"{ALL_MEMBERS}/{name}": value for name, value in everyone.items()}
        return headline, _counts(found) | _aucs(found, sides.equal_members, seed) | metrics

    def _measured(self, found: Mapping[str, Found], truth: StateIndex, seed: int) -> dict[str, Metric]:
        """Count every decoder's candidates against one side, all of them and the best k of each ranking."""
        metrics: dict[str, Metric] = {}
        for spec, each in found.items():
            rankings = self._of_rankings(each.harvest, truth, seed)
            metrics |= {f"{spec}/{name}": value for name, value in rankings.items()}
        return metrics

    def _of_rankings(self, harvest: Harvest, truth: StateIndex, seed: int) -> dict[str, Metric]:
        if not truth.owners:  # nothing can be found on such a side, which is not the same as finding nothing
            reason = "the side has no known dialogue state"
            return {f"{name}/state_precision@{self.k}": unmeasured(reason) for name in ("none", *RANKINGS)}
        states = harvest.states
        metrics: dict[str, Metric] = {}
        over_all = extraction_metrics(states, truth)
        for ranking, order in harvest.rankings(seed).items():
            ranked = [states[i] for i in order]
            best = extraction_metrics(ranked[: self.k], truth, suffix=f"@{self.k}")
            values = precision_curve(ranked, truth, self.curve) | over_all | best
            metrics |= {f"{ranking}/{name}": value for name, value in values.items()}
        judged = judged_metrics(harvest, truth, self._rule, seed)
        metrics |= {f"{RANKING}/{name}": value for name, value in judged.items()}
        for ranking in RANKINGS:
            reason = harvest.failures.get(ranking, "nothing was extracted")
            metrics.setdefault(f"{ranking}/state_precision@{self.k}", unmeasured(reason))
        return metrics

    def _differences(self, found: Mapping[str, Found], sides: Sides, seed: int) -> dict[str, Estimate]:
        """Return every decoder's and ranking's paired differences."""
        differences: dict[str, Estimate] = {}
        for spec, each in found.items():
            harvest = each.harvest
            if not (sides.n_equal and harvest.candidates):
                continue
            hits = [
                [side.holds(state) for state in harvest.states]
                for side in (sides.equal_members, sides.equal_nonmembers)
            ]
            orders = harvest.rankings(seed)
            slices = [("none", "", orders["none"])]
            slices += [(name, f"@{self.k}", order[: self.k]) for name, order in orders.items()]
            for ranking, suffix, chosen in slices:
                parts = paired_differences(
                    [len(harvest.states[i]) for i in chosen],
                    *([side[i] for i in chosen] for side in hits),
                    suffix=suffix,
                    seed=seed,
                )
                differences |= {f"{spec}/{ranking}/{name}": value for name, value in parts.items()}
        return differences

    def _base(self, target: Target, sides: Sides, schema: Schema | None, seed: int) -> Base:
        """Measure the bot before fine-tuning, guided by the same schema."""
        if target.reference is None:
            return Base(None, 0, ["base control not measured: the target has no reference model"], False)
        try:
            found = {spec: self._harvest(target.reference, spec, schema, seed) for spec in self.decoders}
        except AuditError as error:
            return Base(None, 0, [f"base control not measured: sampling failed: {error}"], True)
        notes = [f"base control: {note}" for note in self._notes(found, settings=False)]
        metrics = _counts(found) | self._measured(found, sides.equal_members, seed)
        has_failed = any(each.harvest.failures for each in found.values())
        return Base(metrics, sum(map(_n_queries, found.values())), notes, has_failed)

    def _notes(self, found: Mapping[str, Found], *, settings: bool = True) -> list[str]:
        notes = []
        for spec, each in found.items():
            notes += [f"{spec}: {note}" for note in _of_harvest(each.harvest, self.k)]
            notes += [*each.notes, *([resolved(each.decoder)] if settings else [])]
        return notes

    def _failed(self, reason: str, seconds: float) -> AttackResult:
        return AttackResult(
            verdict="inconclusive",
            headline=self._headline(unmeasured(reason)),
            control={"nonmembers": None, "base": None, "difference": {}, "randomisation_p": None, "judged": {}},
            seconds=seconds,
            notes=[reason],
        )


def find_schema(decoders: Sequence[Decoder], source: str, target: Target, gold: Schema, seed: int) -> Guide:
    """Return the schema of guided decoders, if there are any: the true one, or what a probe of the bot finds.

    Raises:
        AuditError: The probe failed, or found nothing.
    """
    if not any(decoder.is_guided for decoder in decoders):
        return Guide(None, 0, [])
    if source == "gold":
        return Guide(gold, 0, [f"guided by the true schema ({len(gold.slots)} slots): an upper bound"])
    from hushbot.attacks.schema_probe import ProbeSettings, probe

    found = probe(target, seed=seed, settings=ProbeSettings())
    true = {(slot.domain, slot.name) for slot in gold.slots}
    n_true = sum((slot.domain, slot.name) in true for slot in found.schema.slots)
    note = f"guided by a probed schema: {len(found.schema.slots)} slots, {n_true} of the true {len(true)} among them"
    return Guide(found.schema, found.n_queries, [note, *found.notes])


def _counts(found: Mapping[str, Found]) -> dict[str, Metric]:
    return {f"{spec}/{name}": n for spec, each in found.items() for name, n in each.harvest.counts.items()}


def _aucs(found: Mapping[str, Found], truth: StateIndex, seed: int) -> dict[str, Metric]:
    """Return how well each score parts the candidates that are members' states from the others."""
    metrics: dict[str, Metric] = {}
    for spec, each in found.items():
        hits = [truth.holds(state) for state in each.harvest.states]
        for ranking, values in each.harvest.scores.items():
            high = orient(ranking, values)
            sides = [[float(v) for v, hit in zip(high, hits, strict=True) if hit is wanted] for wanted in (True, False)]
            bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)
            area = auc(sides[0], sides[1], bootstrap=bootstrap)
            if area.value is None:
                metrics[f"{spec}/{ranking}/hit_auc"] = unmeasured("all or none of the candidates are members' states")
                continue
            method = f"{area.method} over candidates, dialogues taken as given"
            metrics[f"{spec}/{ranking}/hit_auc"] = area.model_copy(update={"method": method})
    return metrics


def _n_queries(found: Found) -> int:
    return found.harvest.counts["samples"] + SEQUENCES_PER_CANDIDATE * len(found.harvest.candidates)


def _of_harvest(harvest: Harvest, k: int) -> list[str]:
    counts = harvest.counts
    n = len(harvest.candidates)
    notes = [
        f"{n} distinct states in {counts['samples']} samples; {counts['parse_failures']} held no state, "
        f"{counts['empty_states']} an empty one, {counts['cut_states']} were cut (closed triplets are kept)"
    ]
    if n < k:
        notes.append(f"fewer than {k} distinct states: @{k} uses all {n}")
    return notes + [f"ranking {name} not measured: {reason}" for name, reason in harvest.failures.items()]


def _rows(found: Found, sides: Sides) -> list[dict[str, Any]]:
    harvest = found.harvest
    return [
        {
            "decoder": found.decoder.name,
            "state": candidate.text,
            "n_triplets": len(candidate.state),
            "count": candidate.count,
            "is_member_hit": sides.equal_members.holds(candidate.state) if sides.n_equal else None,
            "is_nonmember_hit": sides.equal_nonmembers.holds(candidate.state) if sides.n_equal else None,
            **{name: float(values[i]) for name, values in harvest.scores.items()},
        }
        for i, candidate in enumerate(harvest.candidates)
    ]
