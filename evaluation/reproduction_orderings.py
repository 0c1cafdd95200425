"""Do the paper's orderings hold here? Each by a difference with an interval, never by eye.

Guarantees: a difference is positive in the paper's direction; it *holds* if its interval lies above zero, *does not
hold* if it lies below, and otherwise, or where a number is missing, one *cannot tell*. The level is corrected for the
number of cases of a claim (Bonferroni), except for differences of two published intervals, which keep their 95%. Each
case is measured twice where the records allow it: as the paper counts (members), and beyond the chance line (members
minus as many non-members), since whatever is merely likely is found on both sides.

How: targeted completions are paired by resampling dialogues together; untargeted states of two decoders are two
samples, and two rankings of the same states are compared on their two lists, all with the dialogues taken as given;
counts of distinct correct states by the exact interval of one's share; estimates without records by the square-and-add
interval for a difference of two independent ones.

What voids it: one trained bot is one draw; how orderings vary over seeds is not in any interval. Records name no
state, so a completed state that several prefixes gave counts here once per prefix, in the report's precision once.

Source: Extracting Training Dialogue Data from Large Language Model based Task Bots, section V.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import pandas as pd

from hushbot.evaluation.reproduction import PROBE, TARGETED, UNTARGETED, best_k, lengths_of
from hushbot.evaluation.reproduction_comparisons import (
    TURNING_POINT,
    best_rows,
    difference_of,
    fall_of,
    hits_of,
    paired_counts,
    paired_precision,
    rows_of,
    two_lists,
)
from hushbot.intervals import Bootstrap, clopper_pearson, unmeasured
from hushbot.stats import mean_difference
from hushbot.types import AttackResult, AuditReport, Estimate

Outcome: TypeAlias = Literal["holds", "does not hold", "cannot tell"]
Records: TypeAlias = Mapping[str, pd.DataFrame]
MEMBERS, BEYOND = "members", "beyond chance"
N_DRAWS = 1000


class Ordering(NamedTuple):
    """One case of one claim of the paper."""

    claim: str
    case: str
    difference: Estimate
    """Positive in the paper's direction."""

    @property
    def outcome(self) -> Outcome:
        """Return whether the claim holds in this case."""
        low, high = self.difference.low, self.difference.high
        if self.difference.value is None or low is None or high is None or low <= 0 <= high:
            return "cannot tell"
        return "holds" if low > 0 else "does not hold"


Case: TypeAlias = tuple[str, Callable[[float], Estimate]]
"""What is compared, and the comparison at a level."""


def orderings(report: AuditReport, records: Records) -> list[Ordering]:
    """Return every case of every claim of the paper that a run can speak to."""
    bench = Bench(report, records)
    claims: dict[str, list[Case]] = {
        "schema-guided sampling extracts more than vanilla sampling (Fig. 6)": [
            *bench.decoders(TARGETED, "schema_guided", "vanilla"),
            *bench.decoders(UNTARGETED, "schema_guided", "vanilla"),
        ],
        "DC-PPL ranks better than PPL (Table IV, Fig. 10)": [
            *bench.rankings(UNTARGETED, "dc_ppl", "ppl", ("vanilla", "temperature", "beam_sampling", "schema_guided")),
            *bench.rankings(TARGETED, "dc_ppl", "ppl", ("greedy", "vanilla", "schema_guided")),
        ],
        "ranking by PPL is better than none (Table II)": bench.rankings(
            UNTARGETED, "ppl", "none", ("vanilla", "temperature", "beam_sampling")
        ),
        f"a longer prefix lowers precision, up to {TURNING_POINT} triplets (Fig. 6)": bench.prefixes(
            ("greedy", "vanilla", "schema_guided")
        ),
        "greedy decoding is a strong baseline (Fig. 6)": [
            *bench.decoders(TARGETED, "greedy", "beam_search"),
            *bench.decoders(TARGETED, "greedy", "decaying_temperature"),
        ],
        "beam search is precise but finds few (Table III)": [
            case
            for decoder in ("beam_search", "group_beam_search")
            for case in (bench.precision(UNTARGETED, decoder, "vanilla")[0], bench.fewer(decoder, "vanilla"))
        ],
    }
    found = []
    for claim, cases in claims.items():
        level = 1 - 0.05 / len(cases)
        found += [Ordering(claim, case, compare(level)) for case, compare in cases]
    return [*found, *_of_estimates(report)]


class Bench(NamedTuple):
    """A run's report and records, with what can be compared in them."""

    report: AuditReport
    records: Records

    def decoders(self, attack: str, first: str, second: str) -> list[Case]:
        """Return whether one decoder is more precise than another and finds more."""
        if attack == TARGETED:
            case = (
                f"targeted: {first} against {second}, states per dialogue",
                lambda level: paired_counts(self._targeted(), first, second, self._draws(level)),
            )
            return [*self.precision(attack, first, second), case]
        case = (
            f"untargeted: {first} against {second}, distinct states",
            lambda level: self._share(first, second, level),
        )
        return [*self.precision(attack, first, second), case]

    def precision(self, attack: str, first: str, second: str) -> list[Case]:
        """Return whether one decoder is more precise than another, on members and beyond chance."""
        kind = attack.partition("_")[0]

        def compare(level: float, beyond: bool) -> Estimate:
            bootstrap = self._draws(level)
            if attack == TARGETED:
                return paired_precision(self._targeted(), (first, second), beyond, bootstrap)
            bounds = (-2.0, 2.0) if beyond else (-1.0, 1.0)
            values = [hits_of(self._untargeted(name), beyond) for name in (first, second)]
            if values[0] is None or values[1] is None:
                return unmeasured(f"{first} or {second} found nothing that was compared", level=level)
            return mean_difference(values[0], values[1], bounds=bounds, bootstrap=bootstrap)

        return [
            (f"{kind}: {first} against {second}, precision, {MEMBERS}", lambda level: compare(level, False)),
            (f"{kind}: {first} against {second}, precision, {BEYOND}", lambda level: compare(level, True)),
        ]

    def fewer(self, first: str, second: str) -> Case:
        """Return whether the first decoder finds fewer distinct states than the second."""
        return (
            f"untargeted: fewer distinct states by {first} than by {second}",
            lambda level: self._share(second, first, level),
        )

    def rankings(self, attack: str, better: str, worse: str, decoders: Sequence[str]) -> list[Case]:
        """Return whether the best k under one ranking are more often right than under another."""
        kind = attack.partition("_")[0]
        k, seed = best_k(self.report.attacks.get(attack)), self.report.run.seed

        def compare(decoder: str, beyond: bool, level: float) -> Estimate:
            if attack == TARGETED:
                frame = self._targeted()
                rows = rows_of(frame, decoder, "member") if frame is not None else None
            else:
                rows = self._untargeted(decoder)
            hits = hits_of(rows, beyond)
            if rows is None or hits is None or k is None:
                return unmeasured(f"{decoder}: nothing was ranked", level=level)
            chosen = [best_rows(rows, ranking, k, seed) for ranking in (better, worse)]
            return two_lists(hits, chosen[0], chosen[1], self._draws(level))

        sides = (False,) if attack == TARGETED else (False, True)  # a completion is judged against its own side only
        return [
            (
                f"{kind}: {decoder}, best {k or 'k'} by {better} against {worse}, {BEYOND if beyond else MEMBERS}",
                lambda level, decoder=decoder, beyond=beyond: compare(decoder, beyond, level),  # type: ignore[misc]
            )
            for decoder in decoders
            for beyond in sides
        ]

    def prefixes(self, decoders: Sequence[str]) -> list[Case]:
        """Return whether precision falls with the length of the prefix: minus its slope per triplet."""
        return [
            (
                f"targeted: {decoder}, fall of precision per triplet, {BEYOND if beyond else MEMBERS}",
                lambda level, decoder=decoder, beyond=beyond: fall_of(  # type: ignore[misc]
                    self._targeted(), decoder, beyond, self._draws(level)
                ),
            )
            for decoder in decoders
            for beyond in (False, True)
        ]

    def _share(self, more: str, less: str, level: float) -> Estimate:
        """Return by how much more distinct correct states one decoder found, relative to both together."""
        attack = self.report.attacks.get(UNTARGETED)
        counts = [attack.metrics.get(f"{name}/none/states") if attack else None for name in (more, less)]
        if not all(isinstance(count, int) for count in counts):
            return unmeasured(f"{more} or {less} was not measured", level=level)
        first, both = int(counts[0]), int(counts[0]) + int(counts[1])  # type: ignore[arg-type]  # checked above
        share = clopper_pearson(first, both, level)
        if share.value is None or share.low is None or share.high is None:
            return unmeasured("neither found a correct state", level=level)
        ends = {name: 2 * end - 1 for name, end in (("value", share.value), ("low", share.low), ("high", share.high))}
        return share.model_copy(update=ends | {"method": "(first - second) / both, from the exact interval of a share"})

    def _targeted(self) -> pd.DataFrame | None:
        return self.records.get(TARGETED)

    def _untargeted(self, decoder: str) -> pd.DataFrame | None:
        frame = self.records.get(UNTARGETED)
        return None if frame is None else frame[frame["decoder"] == decoder]

    def _draws(self, level: float) -> Bootstrap:
        """Return the settings of a bootstrap with some twenty draws beyond each end of the interval."""
        return Bootstrap(level=level, n_draws=max(N_DRAWS, math.ceil(40 / (1 - level))), seed=self.report.run.seed)


def _of_estimates(report: AuditReport) -> list[Ordering]:
    """Return the orderings of numbers whose records are not kept."""
    probe, targeted = report.attacks.get(PROBE), report.attacks.get(TARGETED)
    found = []
    at = (probe.headline.key or "").split("/")[1:2] if probe else []
    for name in ("domain_precision", "slot_precision"):
        first, second = (
            _estimate(probe, f"{method}/{at[0]}/{name}" if at else "")
            for method in ("model_against_model", "temperature")
        )
        found.append(
            Ordering(
                "asking finds the schema more precisely than sampling (Fig. 4)",
                f"schema: model against model against temperature, {' '.join([name.replace('_', ' '), *at])}",
                difference_of(first, second),
            )
        )
    lengths = [n for n in lengths_of(targeted) if n <= TURNING_POINT]
    if len(lengths) < 2:
        return found
    short, long = lengths[0], lengths[-1]
    decoder = (targeted.headline.key or "").split("/")[0] if targeted else ""
    for claim, case, keys in (
        (
            "repetitions fall with the prefix (Fig. 8)",
            f"targeted: {decoder}, {short} against {long} triplets",
            (f"{decoder}/causes/repetitions/l={short}", f"{decoder}/causes/repetitions/l={long}"),
        ),
        (
            "the slot grows certain with the prefix (Fig. 9)",
            f"true slot first, {long} against {short} triplets",
            (f"causes/slot/rank1/l={long}", f"causes/slot/rank1/l={short}"),
        ),
        (
            "slots are more certain than values (Fig. 9)",
            f"true slot against true value first, {long} triplets",
            (f"causes/slot/rank1/l={long}", f"causes/value/rank1/l={long}"),
        ),
    ):
        first, second = (_estimate(targeted, key) for key in keys)
        found.append(Ordering(claim, case, difference_of(first, second)))
    return found


def _estimate(attack: AttackResult | None, key: str) -> Estimate:
    found = attack.metrics.get(key) if attack else None
    return found if isinstance(found, Estimate) else unmeasured(f"{key or 'its registered number'} was not measured")
