"""Why a state comes out: how often it was repeated in training, and how sure the bot is of what comes next.

* Repetitions (Fig. 8): in how many training turns an extracted state stands, by prefix length: a turn-level bot reads
  the state of an early turn again in every later one.
* Ranks (Fig. 9): after a true prefix, the rank of the true next slot among all slots that are still unused, of the true
  value among known values of that slot, and of the pair, by the probability of the whole phrase. Slots are certain,
  values are not, where many people begin alike and go on differently.

Guarantees: phrases are scored by the bot as they would be written there; ties count against the true one.

Source: Task-oriented dialogue state extraction, section V-D4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hushbot.attacks.completions import Completion
from hushbot.attacks.state_metrics import StateIndex, normalise_state
from hushbot.attacks.targeted_prefixes import Prefix
from hushbot.errors import AuditError
from hushbot.prompts import domain_opening, render_state, render_state_prefix, slot_opening
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, clopper_pearson, cluster_bootstrap, unmeasured
from hushbot.types import Dialogue, DialogueState, Metric, SlotValue

TOP = 5
"""Ranks up to here enter the mean rank, as in the paper."""
LEVEL = 0.99
"""Of the intervals of repetitions, as in the paper."""
MAX_VALUES = 50
"""Most values that the true one is ranked among, itself included."""


class Ranked(NamedTuple):
    """What ranking gave."""

    metrics: dict[str, Metric]
    n_queries: int


class _Next(NamedTuple):
    """A true prefix, and the triplet that follows it."""

    prefix: Prefix
    state: DialogueState
    triplet: SlotValue
    same_domain: bool


def repetition_causes(
    completions: Sequence[Completion], truth: StateIndex, dialogues: Sequence[Dialogue]
) -> dict[str, Metric]:
    """Return `causes/repetitions/l=K`: in how many turns a correct completed state stands, by prefix length."""
    turns: dict[SlotValue, set[tuple[int, int]]] = defaultdict(set)
    for i, dialogue in enumerate(dialogues):
        for j, turn in enumerate(dialogue.turns):
            for triplet in normalise_state(turn.state or frozenset()):
                turns[triplet].add((i, j))
    counts: dict[int, list[float]] = defaultdict(list)
    clusters: dict[int, list[str]] = defaultdict(list)
    for completion in completions:
        if completion.is_hit and truth.owners:
            places = set[tuple[int, int]].intersection(*(turns[t] for t in completion.completed.state))
            counts[completion.prefix.length].append(float(len(places)))
            clusters[completion.prefix.length].append(completion.dialogue_id)
    return {
        f"causes/repetitions/l={length}": cluster_bootstrap(
            values, clusters[length], bootstrap=Bootstrap(level=LEVEL, n_draws=4000)
        )
        for length, values in sorted(counts.items())
    }


def rank_causes(
    target: Target,
    dialogues: Sequence[Dialogue],
    prefixes: Sequence[Prefix],
    schema: Schema,
    *,
    n_ranked: int,
    seed: int,
) -> Ranked:
    """Return `causes/{slot,value,pair}/{rank1,beyond5,mean_rank}/l=K`, for some prefixes of each length.

    A failed query makes all of them not measured.
    """
    if not n_ranked:
        return Ranked({}, 0)
    asked = _next_triplets(dialogues, prefixes, n_ranked, seed)
    values = _known_values(dialogues, schema)
    rng = np.random.default_rng(seed)
    questions = [_questions(each, schema, values, rng) for each in asked]
    try:
        answers = target.logprobs(
            [each.prefix.prompt for each, phrases in zip(asked, questions, strict=True) for _ in phrases],
            [phrase for phrases in questions for phrase in phrases],
        )
    except AuditError as error:
        return Ranked({"causes/slot/rank1": unmeasured(f"a query failed: {error}")}, 0)
    sums = iter([float(answer.double().sum()) for answer in answers])
    ranks: dict[tuple[str, int], list[int]] = defaultdict(list)
    for each, phrases in zip(asked, questions, strict=True):
        scores = {phrase: next(sums) for phrase in phrases}
        for name, rank in _ranks(each, scores).items():
            ranks[name, each.prefix.length].append(rank)
    metrics: dict[str, Metric] = {}
    for (name, length), found in sorted(ranks.items()):
        metrics |= _summary(f"causes/{name}", length, found)
    return Ranked(metrics, len({(e.prefix.prompt, p) for e, q in zip(asked, questions, strict=True) for p in q}))


def _summary(name: str, length: int, ranks: Sequence[int]) -> dict[str, Metric]:
    n = len(ranks)
    top = [float(rank) for rank in ranks if rank <= TOP]
    return {
        f"{name}/rank1/l={length}": clopper_pearson(sum(rank == 1 for rank in ranks), n),
        f"{name}/beyond5/l={length}": clopper_pearson(sum(rank > TOP for rank in ranks), n),
        f"{name}/mean_rank/l={length}": cluster_bootstrap(top, None, bootstrap=Bootstrap(n_draws=1000))
        if top
        else unmeasured(f"no true one is among the first {TOP}"),
    }


def _next_triplets(dialogues: Sequence[Dialogue], prefixes: Sequence[Prefix], n_ranked: int, seed: int) -> list[_Next]:
    """Return, for some prefixes of each length, the first state that begins so and its next triplet."""
    states = sorted({turn.state for dialogue in dialogues for turn in dialogue.turns if turn.state}, key=render_state)
    following: dict[tuple[int, str], DialogueState] = {}
    lengths = sorted({prefix.length for prefix in prefixes})
    for state in states:
        for length in lengths:
            if length < len(state):
                following.setdefault((length, render_state_prefix(state, length)), state)
    asked = []
    for length in lengths:
        mine = [prefix for prefix in prefixes if prefix.length == length and (length, prefix.text) in following]
        order = np.random.default_rng([seed, length]).permutation(len(mine))[:n_ranked]
        for i in sorted(order):
            state = following[length, mine[i].text]
            ordered = sorted(state)
            asked.append(_Next(mine[i], state, ordered[length], ordered[length].domain == ordered[length - 1].domain))
    return asked


def _known_values(dialogues: Sequence[Dialogue], schema: Schema) -> dict[tuple[str, str], list[str]]:
    """Return the values of each slot that the schema or a dialogue names."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for slot in schema.slots:
        values[slot.domain, slot.name] |= set(slot.possible_values)
    for dialogue in dialogues:
        for turn in dialogue.turns:
            for triplet in turn.state or ():
                values[triplet.domain, triplet.slot].add(triplet.value)
    return {key: sorted(found) for key, found in values.items()}


def _questions(
    each: _Next, schema: Schema, values: Mapping[tuple[str, str], Sequence[str]], rng: np.random.Generator
) -> list[str]:
    """Return the phrases to score after a prefix: every slot that is left, and the true slot with known values."""
    # The prefix ends with the mark that follows its last triplet: a comma inside a domain, a bracket at its end.
    inside = each.prefix.text.endswith(",")
    used = {(t.domain, t.slot) for t in each.prefix.state}
    last = sorted(each.state)[each.prefix.length - 1].domain
    slots = [
        _opening(d, s, last)
        for d, names in schema.by_domain.items()
        for s in names
        if (d.casefold(), s.casefold()) not in used and (d == last) == inside
    ]
    true = _opening(each.triplet.domain, each.triplet.slot, last)
    others = [
        value for value in values.get((each.triplet.domain, each.triplet.slot), ()) if value != each.triplet.value
    ]
    if len(others) > MAX_VALUES - 1:
        others = [others[i] for i in sorted(rng.choice(len(others), MAX_VALUES - 1, replace=False))]
    return list(dict.fromkeys([*slots, true, *(true + _value(value) for value in [each.triplet.value, *others])]))


def _opening(domain: str, slot: str, last: str) -> str:
    return f" {slot_opening(slot)}" if domain == last else f" {domain_opening(domain)}{slot_opening(slot)}"


def _value(value: str) -> str:
    """Return a value as a state writes it, with the mark that may follow it."""
    return render_state(frozenset([SlotValue("x", "y", value)])).removeprefix("X(y=")


def _ranks(each: _Next, scores: Mapping[str, float]) -> dict[str, int]:
    """Return the ranks of the true slot, value and pair; what is as probable as the true one stands before it."""
    last = sorted(each.state)[each.prefix.length - 1].domain
    true = _opening(each.triplet.domain, each.triplet.slot, last)
    pair = true + _value(each.triplet.value)
    slots = {phrase: value for phrase, value in scores.items() if phrase.endswith("=")}
    pairs = {phrase: value for phrase, value in scores.items() if phrase.startswith(true) and phrase != true}
    # A pair competes with other values of its slot, and with every other slot as a whole.
    rivals = [value for phrase, value in slots.items() if phrase != true]
    return {
        "slot": sum(value >= slots[true] for value in slots.values()),
        "value": sum(value >= pairs[pair] for value in pairs.values()),
        "pair": sum(value >= pairs[pair] for value in pairs.values()) + sum(value >= pairs[pair] for value in rivals),
    }
