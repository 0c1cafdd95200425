"""Targeted extraction: give a bot the beginning of somebody's dialogue state, and see whether it gives the rest.

**Threat model.** Score-based black box with side knowledge: the attacker knows some triplets of a state (part of a
travel plan) and no dialogue.

**Method** (paper, sections IV-B1, V-D, V-E2). The prefixes of `targeted_prefixes` of members, and as the control those
of as many non-members, are continued `n_per_prefix` times with each decoder, both sides' in one shuffled call. A
completion is the prefix with at least one new triplet; it is correct if one state of a dialogue *of the prefix's own
side* contains it. Its scores take the prompt with the prefix as the prefix, the rest as the suffix.

**What is counted** (`completions`), as `<decoder>/none/<metric>` over distinct completed states: `state_precision`,
`states`, `extracted_states`, `triplets` (new ones of a correct completion), `values`, `extracted_values` and
`value_precision` (of new triplets), over all prefixes and per prefix length (`.../l=3`);
`<decoder>/<ranking>/<metric>@k` of the best k under each ranking, and `hit_auc`. `prefixes/l=3` says how many prefixes
there were, `prefixes_shared/l=3` how many of them both sides hold: those count in all of these numbers, on either side.
`<decoder>/causes/repetitions/l=3` and, with `n_ranked`, `causes/...` are those of `causes`. Of the new triplets of all
completions behind the headline, `domain=<domain>/triplet_precision` and `slot=<domain>-<slot>/triplet_precision` say
how many the prefix's own side has (`triplet_precision`; exploratory), for members and non-members.

**Controls.** `nonmembers`: the same for the non-members' prefixes, judged against the non-members: what the bot infers
from what people usually want, without having seen these. `base`: the bot before fine-tuning on the members' prefixes.
`difference`: members minus non-members, with dialogues resampled on both sides; per decoder and length, exploratory.
`judged`: the registered test of each decoder.

**Verdict.** The rule of `targeted_judgement`, corrected for the number of decoders. A failed query of target or base is
inconclusive; one that only ranks causes leaves the verdict as it is, and is noted.

**What voids it.** Members and non-members that differ by more than membership. Precision without its control says
mostly what people usually want.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hushbot.attacks.causes import rank_causes, repetition_causes
from hushbot.attacks.completions import Side, complete, completion_metrics, precision_difference
from hushbot.attacks.decoding import decoder_problems, needs_of, parse_decoder, resolved, usable
from hushbot.attacks.document_units import completion_units
from hushbot.attacks.schema_guide import find_schema
from hushbot.attacks.state_extraction import Base
from hushbot.attacks.state_judgement import MIN_CANDIDATES, Rule, overall, shown
from hushbot.attacks.state_sides import Sides, take_sides
from hushbot.attacks.targeted_judgement import judge_sides
from hushbot.attacks.targeted_prefixes import Prefix, collect_prefixes
from hushbot.attacks.triplet_precision import triplet_precisions
from hushbot.errors import AuditError, ConfigError, UnsupportedError
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import as_estimate, unmeasured
from hushbot.types import AttackResult, AuditSplit, Estimate, Headline, Metric, Tier


class _Prefixes(NamedTuple):
    """What is asked."""

    members: list[Prefix]
    nonmembers: list[Prefix]

    def counts(self, role: Literal["members", "nonmembers"]) -> dict[str, Metric]:
        """Return how many prefixes of each length one side has."""
        mine = self.members if role == "members" else self.nonmembers
        lengths = sorted({prefix.length for prefix in (*self.members, *self.nonmembers)})
        all_, shared = "prefixes", "prefixes_shared"
        metrics: dict[str, Metric] = {f"{all_}/l={n}": sum(p.length == n for p in mine) for n in lengths}
        return metrics | {f"{shared}/l={n}": sum(p.length == n and bool(p.others) for p in mine) for n in lengths}


class _Asked(NamedTuple):
    """Everything that both sides' prefixes gave, by decoder."""

    members: dict[str, Side]
    nonmembers: dict[str, Side]
    n_queries: int
    notes: list[str]

    def rows(self) -> list[dict[str, Any]]:
        """Return one record per decoder, prefix and draw."""
        return [
            row
            for role, parts in (("member", self.members), ("nonmember", self.nonmembers))
            for spec, side in parts.items()
            for row in side.rows(role, spec)
        ]


@dataclass(frozen=True, kw_only=True)
class TargetedExtraction:
    """Continue the beginnings of states, and count whose they become."""

    lengths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    """Numbers of triplets that the attacker knows; each at least 1."""
    max_prefixes: int = 200
    """Most prefixes per length and side, drawn at random; at least 1."""
    n_per_prefix: int = 1
    """Continuations of each prefix; at least 1."""
    max_new_tokens: int = 96
    """Where a continuation is cut; at least 1."""
    k: int = 100
    """How many of the best-ranked completed states the ranked precisions and the verdict rest on; at least 20."""
    decoders: Sequence[str] = ("greedy", "schema_guided")
    """Decoders to try, as for untargeted extraction."""
    decoder: str = "greedy"
    """The decoder behind the headline; chosen before the run. The definition of a memorised state is greedy."""
    schema: Literal["probed", "gold"] = "probed"
    """Where guided decoders have the schema from: probed from the bot, or the true one (an upper bound)."""
    min_triplets: int = 5
    """The verdict rests on completions of at least so many triplets; at least 1."""
    n_ranked: int = 0
    """Prefixes per length for which the ranks of the true next slot, value and pair are measured; 0 measures none."""

    def __post_init__(self) -> None:
        where = "set attack.targeted_extraction"
        problems = [
            f"{name}={value} is below {least}; {where}.{name}"
            for name, value, least in (
                ("lengths", min(self.lengths, default=0), 1),
                ("max_prefixes", self.max_prefixes, 1),
                ("n_per_prefix", self.n_per_prefix, 1),
                ("max_new_tokens", self.max_new_tokens, 1),
                ("k", self.k, MIN_CANDIDATES),
                ("min_triplets", self.min_triplets, 1),
                ("n_ranked", self.n_ranked, 0),
            )
            if value < least
        ]
        problems += decoder_problems("targeted_extraction", self.decoders, self.decoder)
        if self.schema not in ("probed", "gold"):
            problems.append(f"schema={self.schema!r} is not 'probed' or 'gold'; {where}.schema")
        if problems:
            raise ConfigError(*problems)

    @property
    def needs(self) -> Tier:
        """What a target must tell for the headline; other decoders that it cannot do are not measured."""
        return needs_of(self.decoder)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        """Attack the target; the true schema is used by `schema=gold`, to rank causes and to name slots."""
        started = time.perf_counter()
        sides = take_sides(split, seed)
        prefixes = _Prefixes(
            *collect_prefixes(
                sides.member_dialogues,
                sides.nonmember_dialogues,
                self.lengths,
                max_prefixes=self.max_prefixes,
                seed=seed,
            )
        )
        if not all(prefixes):
            return self._failed("one side has no state that is longer than a prefix", started, "not_measured")
        try:
            specs, lost = usable(target, self.decoders, self.decoder)
            guide = find_schema([parse_decoder(spec) for spec in specs], self.schema, target, schema, seed)
            able = replace(self, decoders=tuple(specs))
            asked = able._ask(target, sides, prefixes, guide.schema, seed)
        except AuditError as error:
            return self._failed(f"a query to the target failed: {error}", started)
        able = replace(self, decoders=tuple(asked.members))
        base = able._base(target, sides, prefixes, guide.schema, seed)
        rule = Rule(self.k, self.min_triplets, len(self.decoders))
        judged = {
            spec: judge_sides(asked.members[spec], asked.nonmembers[spec], sides, rule, seed) for spec in able.decoders
        }
        verdict, reasons = overall(judged, self.decoder)
        metrics = self._of_side(asked.members, prefixes.counts("members"), schema, seed)
        for spec, side in asked.members.items():
            causes = repetition_causes(side, sides.member_dialogues)
            metrics |= {f"{spec}/{name}": value for name, value in causes.items()}
        ranked = rank_causes(
            target, sides.member_dialogues, prefixes.members, schema, n_ranked=self.n_ranked, seed=seed
        )
        return AttackResult(
            verdict="inconclusive" if base.has_failed else verdict,
            headline=self._headline(metrics[f"{self.decoder}/none/state_precision"]),
            metrics=metrics | ranked.metrics,
            control={
                "nonmembers": self._of_side(asked.nonmembers, prefixes.counts("nonmembers"), schema, seed),
                "base": base.metrics,
                "difference": able._differences(asked, seed),
                "judged": shown(judged),
            },
            queries=guide.n_queries + asked.n_queries + base.n_queries + ranked.n_queries,
            seconds=time.perf_counter() - started,
            notes=[*reasons, *lost, *guide.notes, *asked.notes, *sides.notes, *base.notes, *ranked.notes],
            units=completion_units(asked.members[self.decoder]),
            rows=asked.rows(),
        )

    def _ask(self, target: Target, sides: Sides, prefixes: _Prefixes, schema: Schema | None, seed: int) -> _Asked:
        """Continue both sides' prefixes with every decoder that the target can do; it must do the registered one."""
        asked = _Asked({}, {}, 0, [])
        for spec in self.decoders:
            decoder = parse_decoder(spec)
            try:
                done = complete(
                    target,
                    decoder,
                    [*prefixes.members, *prefixes.nonmembers],
                    n=decoder.n_useful(self.n_per_prefix),
                    max_new_tokens=self.max_new_tokens,
                    schema=schema,
                    seed=seed,
                )
            except UnsupportedError as error:
                if spec == self.decoder:
                    raise
                asked.notes.append(f"{spec} not measured: {error}")
                continue
            asked.members[spec] = Side.of(prefixes.members, done.draws, sides.equal_members)
            asked.nonmembers[spec] = Side.of(prefixes.nonmembers, done.draws, sides.equal_nonmembers)
            notes = [*(f"{spec}: {note}" for note in done.notes), resolved(decoder)]
            asked = asked._replace(n_queries=asked.n_queries + done.n_queries, notes=[*asked.notes, *notes])
        return asked

    def _base(self, target: Target, sides: Sides, prefixes: _Prefixes, schema: Schema | None, seed: int) -> Base:
        """Measure the bot before fine-tuning on the members' prefixes, guided by the same schema."""
        if target.reference is None:
            return Base(None, 0, ["base control not measured: the target has no reference model"], False)
        try:
            asked = self._ask(target.reference, sides, prefixes._replace(nonmembers=[]), schema, seed)
        except AuditError as error:
            return Base(None, 0, [f"base control not measured: a query failed: {error}"], True)
        return Base(self._measured(asked.members, seed), asked.n_queries, [], False)

    def _measured(self, sides: Mapping[str, Side], seed: int) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {}
        for spec, side in sides.items():
            found = completion_metrics(side, self.k, seed)
            metrics |= {f"{spec}/{name}": value for name, value in found.items()}
        return metrics

    def _of_side(
        self, sides: Mapping[str, Side], counts: dict[str, Metric], schema: Schema, seed: int
    ) -> dict[str, Metric]:
        """Return all that is measured of one side, with the registered decoder's triplets by domain and slot."""
        registered = sides[self.decoder]
        new = (triplet for completion in registered.completions for triplet in completion.new)
        return self._measured(sides, seed) | counts | triplet_precisions(new, registered.truth, schema)

    def _differences(self, asked: _Asked, seed: int) -> dict[str, Estimate]:
        differences: dict[str, Estimate] = {}
        for spec in self.decoders:
            members, nonmembers = asked.members[spec], asked.nonmembers[spec]
            key = f"{spec}/none/state_precision"
            differences[key] = precision_difference(members.completions, nonmembers.completions, seed)
            for length in sorted({*members.lengths, *nonmembers.lengths}):
                differences[f"{key}/l={length}"] = precision_difference(
                    members.of_length(length), nonmembers.of_length(length), seed
                )
        return differences

    def _headline(self, metric: Metric) -> Headline:
        return Headline(
            metric="state_precision", estimate=as_estimate(metric), key=f"{self.decoder}/none/state_precision"
        )

    def _failed(
        self, reason: str, started: float, verdict: Literal["inconclusive", "not_measured"] = "inconclusive"
    ) -> AttackResult:
        return AttackResult(
            verdict=verdict,
            headline=self._headline(unmeasured(reason)),
            control={"nonmembers": None, "base": None, "difference": {}, "judged": {}},
            seconds=time.perf_counter() - started,
            notes=[reason],
        )
