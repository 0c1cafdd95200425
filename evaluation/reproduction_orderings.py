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

What voids it: one trained bot is one draw; how orderings vary over seeds is not in any interval.

Source: Extracting Training Dialogue Data from Large Language Model based Task Bots, section V; Zou and Donner,
Statistics in Medicine 2008 (difference of two estimates from their intervals).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from hushbot.evaluation.reproduction import PROBE, TARGETED, UNTARGETED, best_k, lengths_of
from hushbot.intervals import (
    Bootstrap,
    FloatArray,
    clopper_pearson,
    cluster_bootstrap,
    paired_bootstrap,
    unmeasured,
)
from hushbot.stats import mean_difference
from hushbot.types import AttackResult, AuditReport, Estimate

Outcome: TypeAlias = Literal["holds", "does not hold", "cannot tell"]
Records: TypeAlias = Mapping[str, pd.DataFrame]
MEMBERS, BEYOND = "members", "beyond chance"
TURNING_POINT = 6
"""The paper's precision falls with the prefix up to so many triplets."""
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
                lambda level: _paired_counts(self._targeted(), first, second, self._draws(level)),
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
                return _paired_precision(self._targeted(), (first, second), beyond, bootstrap)
            bounds = (-2.0, 2.0) if beyond else (-1.0, 1.0)
            values = [_hits(self._untargeted(name), beyond) for name in (first, second)]
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
                rows = _of(frame, decoder, "member") if frame is not None else None
            else:
                rows = self._untargeted(decoder)
            hits = _hits(rows, beyond)
            if rows is None or hits is None or k is None:
                return unmeasured(f"{decoder}: nothing was ranked", level=level)
            chosen = [_chosen(rows, ranking, k, seed) for ranking in (better, worse)]
            return _two_lists(hits, chosen[0], chosen[1], self._draws(level))

        sides = (False,) if attack == TARGETED else (False, True)  # a completion is judged against its own side only
        return [
            (
                f"{kind}: {decoder}, best {k} by {better} against {worse}, {BEYOND if beyond else MEMBERS}",
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
                lambda level, decoder=decoder, beyond=beyond: _fall(  # type: ignore[misc]
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


def _of(frame: pd.DataFrame, decoder: str, role: str) -> pd.DataFrame:
    return frame[(frame["decoder"] == decoder) & (frame["role"] == role)]


def _hits(rows: pd.DataFrame | None, beyond: bool) -> FloatArray | None:
    """Return 1 per correct row, minus 1 where the non-members hold it too if asked; None where that is not known."""
    if rows is None or not len(rows):
        return None
    columns = ["is_hit"] if "is_hit" in rows else ["is_member_hit", *(["is_nonmember_hit"] if beyond else [])]
    if rows[columns].isna().any(axis=None):
        return None
    values = [rows[name].to_numpy(dtype=np.float64) for name in columns]
    return values[0] - values[1] if len(values) == 2 else values[0]


def _chosen(rows: pd.DataFrame, ranking: str, k: int, seed: int) -> FloatArray | None:
    """Return 1 for the rows that a ranking puts first, as the attack ranks them; `none` keeps all."""
    if ranking == "none":
        return np.ones(len(rows))
    scores = rows[ranking].to_numpy(dtype=np.float64) if ranking in rows else np.full(len(rows), np.nan)
    if not np.isfinite(scores).all():
        return None
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    order = shuffled[np.argsort(scores[shuffled], kind="stable")]
    mask = np.zeros(len(rows))
    mask[order[:k]] = 1
    return mask


def _two_lists(hits: FloatArray, first: FloatArray | None, second: FloatArray | None, bootstrap: Bootstrap) -> Estimate:
    """Return the precision of one list minus that of another, both of the same candidates, which are resampled."""
    if first is None or second is None:
        return unmeasured("a score could not be had for every candidate", level=bootstrap.level)
    if np.array_equal(first, second):
        return unmeasured(f"both rankings keep the same {int(first.sum())}", level=bootstrap.level, n=len(hits))
    table = np.stack([hits * first, first, hits * second, second], axis=1)
    table = table[table[:, 1] + table[:, 3] > 0]
    return cluster_bootstrap(table, None, _ratio_difference, bounds=(-2.0, 2.0), bootstrap=bootstrap)


def _ratio_difference(table: FloatArray) -> float:
    a, n, b, m = table.sum(axis=0)
    return float(a / n - b / m)


def _paired_precision(
    frame: pd.DataFrame | None, decoders: tuple[str, str], beyond: bool, bootstrap: Bootstrap
) -> Estimate:
    """Return one decoder's precision minus another's on the same dialogues, which are resampled together.

    Beyond chance, each decoder's precision on the non-members' prefixes is taken off first.
    """
    if frame is None:
        return unmeasured("targeted extraction left no records", level=bootstrap.level)
    roles = ("member", "nonmember") if beyond else ("member",)
    table = _by_dialogue(frame, [(decoder, role) for role in roles for decoder in decoders])

    def difference(rows: FloatArray) -> float:
        parts = [_ratio_difference(rows[:, 4 * i : 4 * i + 4]) for i in range(len(roles))]
        return parts[0] - sum(parts[1:])

    bound = float(len(roles))
    return cluster_bootstrap(table, None, difference, bounds=(-bound, bound), bootstrap=bootstrap)


def _paired_counts(frame: pd.DataFrame | None, first: str, second: str, bootstrap: Bootstrap) -> Estimate:
    """Return how many more correct states per dialogue one decoder gives than another."""
    if frame is None or not {first, second} <= set(frame["decoder"]):
        return unmeasured(f"{first} or {second} left no records", level=bootstrap.level)
    table = _by_dialogue(frame, [(first, "member"), (second, "member")])
    return paired_bootstrap(table[:, 0], table[:, 2], bootstrap=bootstrap)


def _by_dialogue(frame: pd.DataFrame, parts: Sequence[tuple[str, str]]) -> FloatArray:
    """Return one row per dialogue: of each (decoder, role), its correct completions and all of them."""
    columns = []
    for decoder, role in parts:
        grouped = _of(frame, decoder, role).groupby("dialogue_id")["is_hit"]
        columns += [grouped.sum().astype(float), grouped.count().astype(float)]
    return pd.concat(columns, axis=1).fillna(0.0).sort_index().to_numpy(dtype=np.float64)


def _fall(frame: pd.DataFrame | None, decoder: str, beyond: bool, bootstrap: Bootstrap) -> Estimate:
    """Return minus the least-squares slope of being right on the prefix length, dialogues resampled."""
    if frame is None:
        return unmeasured("targeted extraction left no records", level=bootstrap.level)
    rows = frame[(frame["decoder"] == decoder) & (frame["prefix_length"] <= TURNING_POINT)]
    if not beyond:
        rows = rows[rows["role"] == "member"]
    table = np.stack(
        [
            rows["prefix_length"].to_numpy(dtype=np.float64),
            rows["is_hit"].to_numpy(dtype=np.float64),
            (rows["role"] == "member").to_numpy(dtype=np.float64),
        ],
        axis=1,
    )

    def fall(drawn: FloatArray) -> float:
        members = _slope(drawn[drawn[:, 2] == 1])
        return _slope(drawn[drawn[:, 2] == 0]) - members if beyond else -members

    return cluster_bootstrap(table, rows["dialogue_id"].tolist(), fall, bounds=(-2.0, 2.0), bootstrap=bootstrap)


def _slope(table: FloatArray) -> float:
    if not len(table):
        return math.nan
    x = table[:, 0] - table[:, 0].mean()
    spread = float(x @ x)
    return float(x @ table[:, 1]) / spread if spread > 0 else math.nan


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


def difference_of(first: Estimate, second: Estimate) -> Estimate:
    """Return one estimate minus an independent other from their intervals, each end from the ends that move it."""
    ends = (first.value, first.low, first.high, second.value, second.low, second.high)
    if any(end is None for end in ends):
        return unmeasured("; ".join(each.method for each in (first, second) if each.low is None or each.high is None))
    if first.level != second.level:
        raise ValueError(f"intervals at {first.level} and {second.level} do not make one; measure both at one level")
    a, a_low, a_high, b, b_low, b_high = (float(end) for end in ends if end is not None)
    return Estimate(
        value=a - b,
        low=a - b - math.hypot(a - a_low, b_high - b),
        high=a - b + math.hypot(a_high - a, b - b_low),
        level=first.level,
        n=min(first.n, second.n),
        method="square and add, of two independent estimates",
    )
