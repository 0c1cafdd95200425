"""What a bot makes of the beginnings of states, and what of it is counted.

Guarantees: a completion is its prefix and at least one new, closed triplet; a continuation without one is no
completion and is counted by itself (`nothing_new`). A continuation that gives a slot of the prefix another value
contradicts what the attacker knows: both values stay in the completed state, which nobody's state then contains. Among
the prefixes of one length, and again among all, a completed state counts once: from its shortest prefix, the first in
the alphabet. A completion is scored as the bot wrote it, blanks at the end aside.

Source: Task-oriented dialogue state extraction, sections V-A3, V-D and V-E2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hushbot.attacks.decoding import Decoder
from hushbot.attacks.state_candidates import RANKINGS
from hushbot.attacks.state_metrics import N_DRAWS, StateIndex, distinct_values, normalise_state
from hushbot.attacks.targeted_prefixes import Prefix
from hushbot.attacks.token_scores import score
from hushbot.errors import AuditError
from hushbot.prompts import read_state
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, auc, clopper_pearson, cluster_bootstrap, mean_difference, orient, unmeasured
from hushbot.types import DialogueState, Estimate, Metric


class Completed(NamedTuple):
    """One continuation, whoever's prefix it continues."""

    suffix: str
    state: DialogueState
    """The triplets of prefix and suffix, normalised."""
    scores: Mapping[str, float]
    """Of a suffix that says something new; else empty."""


class Done(NamedTuple):
    """What one decoder made of the prompts."""

    draws: dict[str, list[Completed]]
    """By prompt, in the order of the draws."""
    n_queries: int
    notes: list[str]


class Completion(NamedTuple):
    """A continued prefix of one side."""

    prefix: Prefix
    completed: Completed
    is_hit: bool
    """Whether it says something new, and all of it is part of one state of the prefix's own side."""

    @property
    def state(self) -> DialogueState:
        """Return prefix and suffix together, normalised."""
        return self.completed.state

    @property
    def new(self) -> DialogueState:
        """Return the triplets that the attacker did not know."""
        return self.completed.state - self.prefix.state


class Side(NamedTuple):
    """The continued prefixes of one side."""

    prefixes: list[Prefix]
    draws: list[Completion]
    """One per prefix and draw, those that say nothing new included."""
    truth: StateIndex

    @classmethod
    def of(cls, prefixes: Sequence[Prefix], done: Mapping[str, Sequence[Completed]], truth: StateIndex) -> Side:
        """Attach what was made of the prompts to one side's prefixes."""
        draws = []
        for prefix in prefixes:
            for completed in done[prefix.prompt]:
                is_hit = bool(completed.state - prefix.state) and truth.holds(completed.state)
                draws.append(Completion(prefix, completed, is_hit))
        return cls(list(prefixes), draws, truth)

    @property
    def completions(self) -> list[Completion]:
        """Return every completed state once, from its first prefix."""
        return _distinct(self.draws)

    def of_length(self, length: int) -> list[Completion]:
        """Return every completed state once among the prefixes of one length."""
        return _distinct(draw for draw in self.draws if draw.prefix.length == length)

    @property
    def lengths(self) -> list[int]:
        """Return the prefix lengths that there are."""
        return sorted({prefix.length for prefix in self.prefixes})

    def rows(self, role: str, decoder: str) -> list[dict[str, Any]]:
        """Return one record per prefix and draw."""
        return [
            {
                "decoder": decoder,
                "role": role,
                "dialogue_id": draw.prefix.dialogue_id,
                "is_shared": bool(draw.prefix.others),
                "prefix_length": draw.prefix.length,
                "n_triplets": len(draw.state),
                "n_new": len(draw.new),
                "prefix": draw.prefix.text,
                "suffix": draw.completed.suffix,
                "is_hit": draw.is_hit,
                **{name: draw.completed.scores.get(name) for name in RANKINGS},
            }
            for draw in self.draws
        ]


def _distinct(draws: Iterable[Completion]) -> list[Completion]:
    distinct: dict[DialogueState, Completion] = {}
    for draw in draws:
        if draw.new:
            distinct.setdefault(draw.state, draw)
    return list(distinct.values())


def complete(
    target: Target,
    decoder: Decoder,
    prefixes: Sequence[Prefix],
    *,
    n: int,
    max_new_tokens: int,
    schema: Schema | None,
    seed: int,
) -> Done:
    """Continue every prefix n times, and score what says something new; each distinct prompt is asked once.

    Raises:
        AuditError: Sampling or scoring failed.
    """
    known = {prefix.prompt: prefix.state for prefix in prefixes}
    # In random order, for a target may treat the first prompts unlike the last ones, and members must not be either.
    prompts = sorted(known)
    prompts = [prompts[i] for i in np.random.default_rng(seed).permutation(len(prompts))]
    texts = decoder.write(target, prompts, n=n, max_new_tokens=max_new_tokens, schema=schema, seed=seed)
    draws: list[tuple[str, str, DialogueState]] = []
    for prompt, continuations in zip(prompts, texts.continuations, strict=True):
        for suffix in (text.rstrip() for text in continuations):
            read = read_state(prompt + suffix).state or frozenset()
            draws.append((prompt, suffix, known[prompt] | normalise_state(read)))
    asked = list(dict.fromkeys((prompt, suffix) for prompt, suffix, state in draws if state != known[prompt]))
    scores = _scores(target, asked)
    made: dict[str, list[Completed]] = {prompt: [] for prompt in prompts}
    for prompt, suffix, state in draws:
        made[prompt].append(Completed(suffix, state, scores.get((prompt, suffix), {})))
    notes = [] if texts.mass is None else [f"the bot gave what the schema allows {texts.mass:.3f} on average"]
    return Done(made, texts.n_queries + _n_scored(asked), notes)


def _scores(target: Target, asked: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, float]]:
    try:
        found = score(target, [prompt for prompt, _ in asked], [suffix for _, suffix in asked], names=RANKINGS)
    except AuditError as error:
        raise AuditError(f"completions could not be scored: {error}") from error
    for name in RANKINGS:
        if n_broken := int(np.count_nonzero(~np.isfinite(found[name]))):
            raise AuditError(f"completions could not be scored: {n_broken} of {len(asked)} {name} are not finite")
    return {pair: {name: float(found[name][i]) for name in RANKINGS} for i, pair in enumerate(asked)}


def _n_scored(asked: Sequence[tuple[str, str]]) -> int:
    """Return how many sequences the scores need: whole, suffix after prefix and suffix alone, each once."""
    return len({("", prompt + suffix) for prompt, suffix in asked} | set(asked) | {("", suffix) for _, suffix in asked})


def completion_metrics(side: Side, k: int, seed: int) -> dict[str, Metric]:
    """Return what the attack counts of one side, keys beginning with the ranking."""
    everything = side.completions
    metrics: dict[str, Metric] = {"nothing_new": sum(not draw.new for draw in side.draws)}
    metrics |= {f"none/{name}": value for name, value in _counted(side, everything, seed).items()}
    for length in side.lengths:
        part = _counted(side, side.of_length(length), seed)
        metrics |= {f"none/{name}/l={length}": value for name, value in part.items()}
    shuffled = [everything[i] for i in np.random.default_rng(seed).permutation(len(everything))]
    for ranking in ("none", *RANKINGS):
        best = _counted(side, _ranked(shuffled, ranking)[:k], seed)
        for name in ("states", "state_precision", "values", "value_precision"):
            metrics[f"{ranking}/{name}@{k}"] = best[name]
        if ranking != "none":
            metrics[f"{ranking}/hit_auc"] = _hit_auc(everything, ranking, seed)
    return metrics


def _ranked(completions: list[Completion], ranking: str) -> list[Completion]:
    if ranking == "none":
        return completions
    return sorted(completions, key=lambda completion: completion.completed.scores[ranking])


def _counted(side: Side, completions: Sequence[Completion], seed: int) -> dict[str, Metric]:
    if not completions:
        nothing = unmeasured("nothing was completed")
        rates: dict[str, Metric] = dict.fromkeys(("state_precision", "triplets", "value_precision"), nothing)
        return rates | {"states": None, "extracted_states": 0, "values": None, "extracted_values": 0}
    hits = [completion for completion in completions if completion.is_hit]
    values = distinct_values(completion.new for completion in completions)
    n_values = len(values & side.truth.values)
    bootstrap = Bootstrap(n_draws=N_DRAWS, seed=seed)
    return {
        "states": len(hits),
        "extracted_states": len(completions),
        "state_precision": cluster_bootstrap(_hits(completions), _clusters(completions), bootstrap=bootstrap),
        "triplets": cluster_bootstrap([float(len(c.new)) for c in hits], _clusters(hits), bootstrap=bootstrap)
        if hits
        else unmeasured("no completion is correct"),
        "values": n_values,
        "extracted_values": len(values),
        "value_precision": clopper_pearson(n_values, len(values)),
    }


def _hit_auc(completions: Sequence[Completion], ranking: str, seed: int) -> Estimate:
    """Return how well a score parts the correct completions from the others."""
    sides = [[c for c in completions if c.is_hit is wanted] for wanted in (True, False)]
    high = [orient(ranking, [c.completed.scores[ranking] for c in side]) for side in sides]
    clusters = (_clusters(sides[0]), _clusters(sides[1]))
    return auc(high[0], high[1], clusters=clusters, bootstrap=Bootstrap(n_draws=N_DRAWS, seed=seed))


def precision_difference(first: Sequence[Completion], second: Sequence[Completion], seed: int) -> Estimate:
    """Return one side's state precision minus the other's, dialogues resampled on both sides."""
    return mean_difference(
        _hits(first),
        _hits(second),
        clusters=(_clusters(first), _clusters(second)),
        bootstrap=Bootstrap(n_draws=N_DRAWS, seed=seed),
    )


def _hits(completions: Sequence[Completion]) -> list[float]:
    return [float(completion.is_hit) for completion in completions]


def _clusters(completions: Sequence[Completion]) -> list[str]:
    return [completion.prefix.dialogue_id for completion in completions]
