"""What membership inference measures of scores: per state, and per dialogue over the states that it holds.

A dialogue's score is the mean of its states' scores, or that of its state most like a member's: the lowest of a score
that members have low values of, the highest of the others.

Guarantees: everything is measured on the same units under every score, so that differences are paired; what could not
be scored is an estimate without a value and with the reason, never a number.

What voids it: a state that several dialogues hold is judged once, as the first one's (by id); the others are judged by
what else they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from hushbot.attacks.blind_baseline import BlindBaseline, BlindText, blind_baseline
from hushbot.attacks.document_units import score_units
from hushbot.attacks.membership_scores import Scored
from hushbot.attacks.state_population import Population
from hushbot.intervals import Bootstrap, FloatArray
from hushbot.permutation import auc_p
from hushbot.stats import ORIENTATION, auc, auc_difference, orient, tpr_at_fpr, unmeasured
from hushbot.types import Metric, Units

FPR = 0.01
"""The operating point of the headline; part of its name."""
Aggregate: TypeAlias = Literal["mean", "min"]


class Judged(NamedTuple):
    """A unit: a state, or a dialogue."""

    places: list[int]
    """Where its states stand in the population."""
    dialogue: str
    text: BlindText


class Level(NamedTuple):
    """The units of one level, states or dialogues."""

    prefix: str
    """What the names of its metrics begin with."""
    members: list[Judged]
    nonmembers: list[Judged]
    pool: list[Judged]
    """What chooses the threshold; empty where there is too little of it, and non-members do."""
    aggregate: Aggregate

    @classmethod
    def of_states(cls, population: Population) -> Level:
        """Make each state a unit."""
        return cls("", *_judged(population, together=False), aggregate="mean")

    @classmethod
    def of_dialogues(cls, population: Population, aggregate: Aggregate) -> Level:
        """Make the states of each dialogue a unit."""
        return cls("dialogue/", *_judged(population, together=True), aggregate=aggregate)

    @property
    def clusters(self) -> tuple[list[str], list[str], list[str]]:
        """Return the dialogue of each member, non-member and reference unit, for resampling."""
        members, nonmembers, pool = (
            [unit.dialogue for unit in side] for side in (self.members, self.nonmembers, self.pool or self.nonmembers)
        )
        return members, nonmembers, pool

    @property
    def related(self) -> tuple[list[str], list[str]]:
        """Return what the split dealt out together with each member and non-member, for dealing anew."""
        members, nonmembers = ([unit.text.cluster for unit in side] for side in (self.members, self.nonmembers))
        return members, nonmembers

    def divide(self, values: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return one value per unit of each side from one per state, higher = more like a member."""
        fold = np.max if self.aggregate == "min" else np.mean
        members, nonmembers, pool = (
            np.array([fold(values[unit.places]) for unit in side], dtype=np.float64)
            for side in (self.members, self.nonmembers, self.pool)
        )
        return members, nonmembers, pool


def _judged(population: Population, *, together: bool) -> tuple[list[Judged], list[Judged], list[Judged]]:
    sides: list[list[Judged]] = []
    place = 0
    for number, side in enumerate(population.sides):
        held: dict[object, list[int]] = {}
        for at, unit in enumerate(side, start=place):
            held.setdefault(unit.dialogue_id if together else at, []).append(at)
        judged = []
        for places in held.values():
            states = [side[at - place] for at in places]
            text = BlindText(
                text="\n".join(state.text for state in states),
                is_member=number == 0,
                cluster=population.related.get(states[0].dialogue_id, states[0].dialogue_id),
                domains=tuple(sorted({domain for state in states for domain in state.domains})),
            )
            judged.append(Judged(places, states[0].dialogue_id, text))
        sides.append(judged)
        place += len(side)
    return sides[0], sides[1], sides[2] if population.has_pool else []


def measure_scores(level: Level, scored: Scored, names: Sequence[str], bootstrap: Bootstrap) -> dict[str, Metric]:
    """Return what each score achieves (`ppl/auc`, ...); thresholds are in the raw score's units."""
    metrics: dict[str, Metric] = {}
    for name in names:
        if name in scored.missing:
            nothing = unmeasured(scored.missing[name], level=bootstrap.level)
            found: dict[str, Metric] = dict.fromkeys(("auc", "tpr_at_1pct_fpr", "realised_fpr"), nothing)
            found |= {"auc_p": None, "threshold": None}
        else:
            found = _measure(level, orient(name, scored.raw[name]), ORIENTATION[name], bootstrap)
        metrics |= {f"{level.prefix}{name}/{key}": value for key, value in found.items()}
    return metrics


def _measure(level: Level, oriented: FloatArray, sign: int, bootstrap: Bootstrap) -> dict[str, Metric]:
    members, nonmembers, pool = level.divide(oriented)
    point = tpr_at_fpr(
        members,
        nonmembers,
        fpr=FPR,
        calibration=pool if len(pool) else None,
        clusters=level.clusters,
        bootstrap=bootstrap,
    )
    return {
        "auc": auc(members, nonmembers, clusters=level.clusters[:2], bootstrap=bootstrap),
        "auc_p": auc_p(members, nonmembers, clusters=level.related, n_deals=bootstrap.n_draws, seed=bootstrap.seed),
        "tpr_at_1pct_fpr": point.tpr,
        "realised_fpr": point.realised_fpr,
        "threshold": None if point.threshold is None else sign * point.threshold,
    }


def headline_units(level: Level, scored: Scored, name: str) -> Units | None:
    """Return what `tpr_at_1pct_fpr` of a score is made of; None where the score could not be had.

    Without enough calibration dialogues no unit is one: the threshold is the non-members' own, as in the headline.
    """
    if name in scored.missing:
        return None
    members, nonmembers, pool = level.divide(orient(name, scored.raw[name]))
    return score_units(
        "tpr_at_1pct_fpr",
        {
            "member": (members, [unit.dialogue for unit in level.members]),
            "nonmember": (nonmembers, [unit.dialogue for unit in level.nonmembers]),
            "calibration": (pool, [unit.dialogue for unit in level.pool]),
        },
    )


def measure_blind(level: Level, bootstrap: Bootstrap, n_permutations: int) -> BlindBaseline:
    """Return what the units' texts say of membership without any bot."""
    texts = [unit.text for unit in (*level.members, *level.nonmembers)]
    return blind_baseline(texts, bootstrap=bootstrap, n_permutations=n_permutations)


def measure_increments(
    level: Level, scored: Scored, names: Sequence[str], blind: BlindBaseline, bootstrap: Bootstrap
) -> dict[str, Metric]:
    """Return how much better each score is than the strongest blind feature, paired over the same units."""
    n = len(level.members)
    baseline = (blind.strongest[:n], blind.strongest[n:])
    metrics: dict[str, Metric] = {}
    for name in names:
        key = f"{level.prefix}{name}/delta_auc_over_blind"
        if name in scored.missing:
            metrics[key] = unmeasured(scored.missing[name], level=bootstrap.level)
            continue
        sides = level.divide(orient(name, scored.raw[name]))[:2]
        metrics[key] = auc_difference(sides, baseline, clusters=level.clusters[:2], bootstrap=bootstrap)
    return metrics
