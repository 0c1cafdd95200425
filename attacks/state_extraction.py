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
Of the headline's k states, `domain=<domain>/triplet_precision@<k>` and `slot=<domain>-<slot>/triplet_precision@<k>` say
what came out (`triplet_precision`; exploratory), for members and non-members.

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
from typing import Literal, NamedTuple

from hushbot.attacks.decoding import decoder_problems, needs_of, parse_decoder, usable
from hushbot.attacks.document_units import extraction_units
from hushbot.attacks.found_states import (
    SEQUENCES_PER_CANDIDATE,
    Found,
    best_states,
    differences,
    found_notes,
    hit_aucs,
    measured,
    rows,
    sample_counts,
)
from hushbot.attacks.schema_guide import find_schema
from hushbot.attacks.state_candidates import read_candidates, score_candidates
from hushbot.attacks.state_judgement import MIN_CANDIDATES, RANKING, Rule, judge, overall, shown
from hushbot.attacks.state_metrics import StateIndex
from hushbot.attacks.state_sides import Sides, take_sides
from hushbot.attacks.triplet_precision import triplet_precisions
from hushbot.errors import AuditError, ConfigError, UnsupportedError
from hushbot.prompts import STATE_MARKER
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, DialogueState, Estimate, Headline, Metric, Tier

ALL_MEMBERS = "members_all"
"""Prefix of counts over all members, where those are more than the non-members."""


class Base(NamedTuple):
    """The control of the bot before fine-tuning."""

    metrics: dict[str, Metric] | None
    n_queries: int
    notes: list[str]
    has_failed: bool
    """Whether a query failed, as opposed to there being no such bot."""


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

    @property
    def needs(self) -> Tier:
        """What a target must tell for the headline; other decoders that it cannot do are not measured."""
        return needs_of(self.decoder)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Attack the target; the true schema names domains and slots, and guides where `schema=gold` asks for it."""
        started = time.perf_counter()
        try:
            specs, lost = usable(target, self.decoders, self.decoder)
            guide = find_schema([parse_decoder(spec) for spec in specs], self.schema, target, schema, seed)
            found = self._harvests(target, specs, guide.schema, seed, lost)
        except AuditError as error:
            return self._failed(f"sampling failed: {error}", time.perf_counter() - started)
        sides = take_sides(split, seed)
        headline, metrics = self._metrics(found, split, sides, seed)
        judged = {spec: judge(each.harvest, sides, self._rule, seed) for spec, each in found.items()}
        base = self._base(target, list(found), sides, guide.schema, seed)
        verdict, reasons = overall(judged, self.decoder)
        best = best_states(found[self.decoder].harvest, self.k, seed)
        return AttackResult(
            verdict="inconclusive" if base.has_failed else verdict,
            headline=headline,
            metrics=metrics | self._by_slot(best, sides.equal_members, schema),
            control={
                "nonmembers": self._measured(found, sides.equal_nonmembers, seed)
                | self._by_slot(best, sides.equal_nonmembers, schema)
                if sides.n_equal
                else None,
                "base": base.metrics,
                "difference": differences(found, sides, self.k, seed),
                "randomisation_p": judged[self.decoder].p,
                "judged": shown(judged),
            },
            queries=guide.n_queries + sum(each.n_queries for each in found.values()) + base.n_queries,
            seconds=time.perf_counter() - started,
            notes=[*reasons, *lost, *guide.notes, *found_notes(found, self.k), *sides.notes, *base.notes],
            units=extraction_units(best, sides.equal_members, sides.member_dialogues),
            rows=[row for each in found.values() for row in rows(each, sides)],
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

    def _harvests(
        self, target: Target, specs: Sequence[str], schema: Schema | None, seed: int, lost: list[str]
    ) -> dict[str, Found]:
        """Ask with each decoder; those that the target cannot do join what is lost, but for the registered one."""
        found = {}
        for spec in specs:
            try:
                found[spec] = self._harvest(target, spec, schema, seed)
            except UnsupportedError as error:
                if spec == self.decoder:
                    raise
                lost.append(f"{spec} not measured: {error}")
        return found

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
            notes.append(f"{spec}: the bot gave what the schema allows {texts.mass:.3f} on average")
        harvest = score_candidates(target, read_candidates(texts.continuations[0]))
        n_queries = texts.n_queries + SEQUENCES_PER_CANDIDATE * len(harvest.candidates)
        return Found(decoder, harvest, n_queries, notes)

    def _metrics(
        self, found: Mapping[str, Found], split: AuditSplit, sides: Sides, seed: int
    ) -> tuple[Headline, dict[str, Metric]]:
        """Return the headline, and everything that is counted against the members."""
        metrics = self._measured(found, sides.equal_members, seed)
        headline = self._headline(as_estimate(metrics[self._key]))
        if len(split.members) > sides.n_equal:
            everyone = self._measured(found, sides.members, seed)
            metrics |= {f"{ALL_MEMBERS}/{name}": value for name, value in everyone.items()}
        return headline, sample_counts(found) | hit_aucs(found, sides.equal_members, seed) | metrics

    def _measured(self, found: Mapping[str, Found], truth: StateIndex, seed: int) -> dict[str, Metric]:
        return measured(found, truth, self._rule, self.curve, seed)

    def _by_slot(self, best: Sequence[DialogueState], truth: StateIndex, schema: Schema) -> dict[str, Metric]:
        return triplet_precisions((t for state in best for t in state), truth, schema, suffix=f"@{self.k}")

    def _base(self, target: Target, specs: Sequence[str], sides: Sides, schema: Schema | None, seed: int) -> Base:
        """Measure the bot before fine-tuning, guided by the same schema."""
        if target.reference is None:
            return Base(None, 0, ["base control not measured: the target has no reference model"], False)
        try:
            found = self._harvests(target.reference, specs, schema, seed, [])
        except AuditError as error:
            return Base(None, 0, [f"base control not measured: sampling failed: {error}"], True)
        notes = [f"base control: {note}" for note in found_notes(found, self.k, settings=False)]
        metrics = sample_counts(found) | self._measured(found, sides.equal_members, seed)
        has_failed = any(each.harvest.failures for each in found.values())
        return Base(metrics, sum(each.n_queries for each in found.values()), notes, has_failed)

    def _failed(self, reason: str, seconds: float) -> AttackResult:
        return AttackResult(
            verdict="inconclusive",
            headline=self._headline(unmeasured(reason)),
            control={"nonmembers": None, "base": None, "difference": {}, "randomisation_p": None, "judged": {}},
            seconds=seconds,
            notes=[reason],
        )
