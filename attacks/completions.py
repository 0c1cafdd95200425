"""What bots make of the beginnings of states: completions, who holds them, and what both sides' rates say.

Guarantees: a completion is its prefix and at least one new, closed triplet; the same completed state of the same side
counts once; a continuation without a new triplet is no completion and is counted by itself (`nothing_new`). In a deal
(`judge_sides`) dialogues change sides with everything that is theirs: their prefixes and their states.

Source: Task-oriented dialogue state extraction, sections V-A3 and V-D.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.decoding import Decoder
from hushbot.attacks.state_candidates import RANKINGS
from hushbot.attacks.state_judgement import MIN_CANDIDATES, Judged, Rule
from hushbot.attacks.state_metrics import StateIndex, deal, distinct_values, normalise_state
from hushbot.attacks.state_sides import Sides
from hushbot.attacks.targeted_prefixes import Prefix
from hushbot.attacks.token_scores import score
from hushbot.errors import AuditError
from hushbot.prompts import read_state
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, clopper_pearson, cluster_bootstrap, mean_difference, unmeasured
from hushbot.types import DialogueState, Estimate, Metric

N_DRAWS = 1000
N_DEALS = 1000


class Completed(NamedTuple):
    """One continuation that says something new, whoever's prefix it continues."""

    suffix: str
    state: DialogueState
    """Prefix and new triplets, normalised."""
    scores: dict[str, float]
    """Empty where they could not be had."""


class Done(NamedTuple):
    """What one decoder made of the prompts."""

    completions: dict[str, list[Completed]]
    """By prompt."""
    n_queries: int
    notes: list[str]


class Completion(NamedTuple):
    """A completed prefix of one side."""

    prefix: Prefix
    completed: Completed
    is_hit: bool

    @property
    def new(self) -> DialogueState:
        """Return the triplets that the attacker did not know."""
        return self.completed.state - self.prefix.state

    @property
    def dialogue_id(self) -> str:
        """Return the first dialogue that holds the prefix: the cluster it is resampled in."""
        return min(self.prefix.holders)


class Side(NamedTuple):
    """The completions of one side's prefixes."""

    completions: list[Completion]
    truth: StateIndex
    n_prefixes: int
    n_nothing_new: int

    @classmethod
    def of(cls, prefixes: Sequence[Prefix], done: Mapping[str, Sequence[Completed]], truth: StateIndex) -> Side:
        """Attach what was made of the prompts to one side's prefixes; a completed state counts once per length."""
        known: dict[tuple[int, DialogueState], Completion] = {}
        n_nothing_new = 0
        for prefix in prefixes:
            made = [completed for completed in done.get(prefix.prompt, ()) if completed.state - prefix.state]
            n_nothing_new += not made
            for completed in made:
                key = (prefix.length, completed.state)
                known.setdefault(key, Completion(prefix, completed, truth.holds(completed.state)))
        return cls(list(known.values()), truth, len(prefixes), n_nothing_new)

    def of_length(self, length: int) -> Side:
        """Return the completions of prefixes of one length."""
        return self._replace(completions=[c for c in self.completions if c.prefix.length == length])

    def rows(self, role: str, decoder: str) -> list[dict[str, Any]]:
        """Return one record per completion."""
        return [
            {
                "decoder": decoder,
                "role": role,
                "dialogue_id": c.dialogue_id,
                "prefix_length": c.prefix.length,
                "n_triplets": len(c.completed.state),
                "prefix": c.prefix.text,
                "suffix": c.completed.suffix,
                "is_hit": c.is_hit,
                **c.completed.scores,
            }
            for c in self.completions
        ]


def complete(
    target: Target,
    decoder: Decoder,
    prompts: Sequence[str],
    *,
    n: int,
    max_new_tokens: int,
    schema: Schema | None,
    seed: int,
) -> Done:
    """Continue every prompt n times, and score what says something new.

    Raises:
        AuditError: Sampling failed. A failure to score is a note.
    """
    if not prompts:
        return Done({}, 0, [])
    texts = decoder.write(target, prompts, n=n, max_new_tokens=max_new_tokens, schema=schema, seed=seed)
    read: list[tuple[str, str, DialogueState]] = []
    for prompt, continuations in zip(prompts, texts.continuations, strict=True):
        for suffix in dict.fromkeys(text.rstrip() for text in continuations):
            state = read_state(prompt + suffix).state
            if suffix and state:
                read.append((prompt, suffix, normalise_state(state)))
    notes = [] if texts.mass is None else [f"the bot gave what the schema allows {texts.mass:.3f} on average"]
    scores: list[dict[str, float]] = [{} for _ in read]
    try:
        found = score(target, [prompt for prompt, _, _ in read], [suffix for _, suffix, _ in read])
        scores = [{name: float(found[name][i]) for name in RANKINGS} for i in range(len(read))]
    except AuditError as error:
        raise AuditError(f"completions could not be scored: {error}") from error
    completions: dict[str, list[Completed]] = defaultdict(list)
    for (prompt, suffix, state), values in zip(read, scores, strict=True):
        completions[prompt].append(Completed(suffix, state, values))
    return Done(dict(completions), n * len(prompts) + _n_scored(read), notes)


def _n_scored(read: Sequence[tuple[str, str, DialogueState]]) -> int:
    """Return how many sequences the scores need: whole, suffix after prefix and suffix alone, each once."""
    whole = {("", prompt + suffix) for prompt, suffix, _ in read}
    after = {(prompt, suffix) for prompt, suffix, _ in read}
    alone = {("", suffix) for _, suffix, _ in read}
    return len(whole | after | alone)


def completion_metrics(side: Side, k: int, lengths: Sequence[int], seed: int) -> dict[str, Metric]:
    """Return what the module of the attack says is counted, keys beginning with the ranking."""
    metrics: dict[str, Metric] = {"nothing_new": side.n_nothing_new}
    metrics |= {f"none/{name}": value for name, value in _counted(side, side.completions).items()}
    for length in lengths:
        part = _counted(side, side.of_length(length).completions)
        metrics |= {f"none/{name}/l={length}": value for name, value in part.items()}
    shuffled = [side.completions[i] for i in np.random.default_rng(seed).permutation(len(side.completions))]
    for ranking in ("none", *RANKINGS):
        ranked = shuffled
        if ranking != "none":
            ranked = sorted(shuffled, key=lambda completion: completion.completed.scores[ranking])
        best = _counted(side, ranked[:k])
        for name in ("state_precision", "value_precision"):
            metrics[f"{ranking}/{name}@{k}"] = best[name]
    return metrics


def _counted(side: Side, completions: Sequence[Completion]) -> dict[str, Metric]:
    hits = [completion for completion in completions if completion.is_hit]
    values = distinct_values(completion.new for completion in completions)
    n_values = len(values & side.truth.values)
    if not completions:
        nothing = unmeasured("nothing was completed")
        return {"state_precision": nothing, "value_precision": nothing, "extracted_states": 0, "extracted_values": 0}
    return {
        "states": len(hits),
        "extracted_states": len(completions),
        "state_precision": cluster_bootstrap(
            [float(completion.is_hit) for completion in completions],
            [completion.dialogue_id for completion in completions],
            bounds=(0.0, 1.0),
            bootstrap=Bootstrap(n_draws=N_DRAWS),
        ),
        "triplets": float(np.mean([len(completion.new) for completion in hits])) if hits else None,
        "values": n_values,
        "extracted_values": len(values),
        "value_precision": clopper_pearson(n_values, len(values)),
    }


def side_difference(members: Side, nonmembers: Side, seed: int, level: float = 0.95) -> Estimate:
    """Return the members' state precision minus the non-members', dialogues resampled on both sides."""
    first, second = members.completions, nonmembers.completions
    return mean_difference(
        [float(c.is_hit) for c in first],
        [float(c.is_hit) for c in second],
        clusters=([c.dialogue_id for c in first], [c.dialogue_id for c in second]),
        bootstrap=Bootstrap(level=level, n_draws=max(N_DRAWS, int(40 / (1 - level))), seed=seed),
    )


def judge_sides(members: Side, nonmembers: Side, sides: Sides, rule: Rule, seed: int) -> Judged:
    """Apply the rule of the attack's module to one decoder's completions."""
    shared = {c.prefix.text for c in members.completions} & {c.prefix.text for c in nonmembers.completions}
    first, second = (
        side._replace(completions=_judged_ones(side.completions, shared, rule)) for side in (members, nonmembers)
    )
    n = min(len(first.completions), len(second.completions))
    if n == 0:
        reason = f"no completion of {rule.min_triplets} or more triplets on one of the sides"
        return Judged("inconclusive", reason, unmeasured(reason), None)
    difference = side_difference(first, second, seed, 1 - rule.size)
    p = _deal_p([*first.completions, *second.completions], members.truth, nonmembers.truth, sides, seed)
    if n < MIN_CANDIDATES:
        return Judged(
            "inconclusive",
            f"{n} distinct completions of {rule.min_triplets} or more triplets on one of the sides; "
            f"fewer than {MIN_CANDIDATES} decide nothing",
            difference,
            p,
        )
    if difference.value is None or difference.low is None or difference.high is None:
        return Judged("inconclusive", "the difference has no interval", difference, p)
    found = (
        f"distinct completions of {rule.min_triplets} or more triplets, members minus non-members "
        f"{difference.value:.3f} [{difference.low:.3f}, {difference.high:.3f}] at {100 * (1 - rule.size):.3g}%, "
        f"randomisation p={p:.4f}"
    )
    if difference.low > 0 and p <= rule.size:
        return Judged("leak", f"{found}: above zero and above what random splits give", difference, p)
    return Judged(
        "no_leak_detected", f"{found}: a difference of up to {difference.high:.3f} stays compatible", difference, p
    )


def _judged_ones(completions: Sequence[Completion], shared: Set[str], rule: Rule) -> list[Completion]:
    """Return the completions that the verdict rests on, each completed state once, from its shortest prefix."""
    distinct: dict[DialogueState, Completion] = {}
    for completion in completions:
        if len(completion.completed.state) >= rule.min_triplets and completion.prefix.text not in shared:
            distinct.setdefault(completion.completed.state, completion)
    return list(distinct.values())


def _deal_p(
    completions: Sequence[Completion], members: StateIndex, nonmembers: StateIndex, sides: Sides, seed: int
) -> float:
    """Return how often dealing the dialogues to the sides anew favours "members" as much as the real split does.

    A completion is on a side if one of the dialogues there holds its prefix, and correct if one of them holds it; one
    whose prefix both sides hold is left out, as in the real split.
    """
    column = {name: i for i, group in enumerate(sides.groups) for name in group}
    owns, holds = (np.zeros((len(completions), len(sides.groups)), dtype=np.float32) for _ in range(2))
    for row, c in enumerate(completions):
        owns[row, [column[name] for name in c.prefix.holders]] = 1
        holders = members.holders(c.completed.state) | nonmembers.holders(c.completed.state)
        holds[row, [column[name] for name in holders]] = 1
    deals = deal([len(g) for g in sides.groups], sides.n_equal, np.random.default_rng(seed), N_DEALS)
    ids = {dialogue.id for dialogue in sides.member_dialogues}
    real = np.array([next(iter(group)) in ids for group in sides.groups])
    needed = (owns + holds).any(axis=0)
    owns, holds = owns[:, needed], holds[:, needed]
    observed = _advantage(owns, holds, real[needed])
    values = [_advantage(owns, holds, deals[needed, i]) for i in range(N_DEALS)]
    return float((1 + sum(value >= observed for value in values)) / (1 + N_DEALS))


def _advantage(owns: Any, holds: Any, is_member: Any) -> float:
    """Return the rate of correct completions on one side minus that on the other, under one deal."""
    first, second = is_member.astype(np.float32), (~is_member).astype(np.float32)
    mine, theirs = owns @ first > 0, owns @ second > 0
    only, other = mine & ~theirs, theirs & ~mine
    if not (only.any() and other.any()):
        return 0.0
    return float((holds[only] @ first > 0).mean() - (holds[other] @ second > 0).mean())
