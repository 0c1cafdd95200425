"""Why a state comes out: how often it was repeated in training, and how sure the bot is of what comes next.

* Repetitions (Fig. 8), `causes/repetitions/l=3`: in how many training turns a correctly completed state stands, by
  prefix length: a turn-level bot reads the state of an early turn again in every later one.
* Ranks (Fig. 9), `causes/<what>/<number>/l=3`: after a true prefix, the rank of the true next `slot` among all slots
  that the layout allows there, of the true `value` among known values of that slot, and of the `pair` among all these
  slots with their known values. `rank1` and `beyond5` are shares, `mean_rank` is over ranks up to 5. Where slots are
  certain and values are not, many people begin alike and go on differently.

How they are scored. The prompt is the prefix without the delimiter after its last triplet, for the delimiter gives away
whether the domain goes on. A slot is the whole phrase that leads to its value (`, area=`, `) Train(day=`); a value
ends with either delimiter, the probabilities of both added; a pair is the sum of the log-probabilities of its slot and
of its value after that slot. Of a slot's known values (those of the schema and of the members) at most 50 compete, the
true one and a random choice. A pair is never more probable than its slot, so only slots at least as probable as the
true pair need their values scored: the rank is exact.

Guarantees: ties count against the true one; a prefix whose holders go on differently is asked once, with the next
triplet of one of their states drawn at random. A failed query makes every rank not measured.

Source: Task-oriented dialogue state extraction, section V-D4.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hushbot.attacks.completions import Side
from hushbot.attacks.state_metrics import normalise_state
from hushbot.attacks.targeted_prefixes import Prefix
from hushbot.errors import AuditError
from hushbot.prompts import STATE_MARKER, domain_opening, render_state, render_state_prefix, slot_opening
from hushbot.protocols import Target
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, cluster_bootstrap, unmeasured
from hushbot.types import Dialogue, DialogueState, Estimate, Metric, SlotValue

TOP = 5
"""Ranks up to here enter the mean rank, as in the paper."""
LEVEL = 0.99
"""Of the intervals of repetitions, as in the paper."""
MAX_VALUES = 50
"""Most values of one slot that compete, the true one included."""
NAMES = ("slot", "value", "pair")
_VALUE_ENDS = (",", ")")

Key = tuple[str, str]


class Ranked(NamedTuple):
    """What ranking gave."""

    metrics: dict[str, Metric]
    n_queries: int
    notes: list[str]


class Ranks(NamedTuple):
    """Where the truth stands after one prefix; 1 is the most probable."""

    slot: int
    value: int
    pair: int
    n_slots: int
    n_values: int


class Question(NamedTuple):
    """A true prefix with its true next triplet, and what competes with it."""

    prefix: Prefix
    prompt: str
    """Without the delimiter after the last triplet."""
    true: Key
    """Domain and slot of the next triplet."""
    value: str
    slots: Mapping[Key, str]
    """The phrase that leads to the value of each slot."""
    values: Mapping[Key, Sequence[str]]
    """The values that compete in each slot."""


def repetition_causes(side: Side, dialogues: Sequence[Dialogue]) -> dict[str, Metric]:
    """Return `causes/repetitions/l=K`: in how many of the side's turns a correct completed state stands."""
    turns: dict[SlotValue, set[tuple[int, int]]] = defaultdict(set)
    for i, dialogue in enumerate(dialogues):
        for j, turn in enumerate(dialogue.turns):
            for triplet in normalise_state(turn.state or frozenset()):
                turns[triplet].add((i, j))
    metrics: dict[str, Metric] = {}
    for length in side.lengths:
        hits = [completion for completion in side.of_length(length) if completion.is_hit]
        counts = [float(len(set[tuple[int, int]].intersection(*(turns[t] for t in hit.state)))) for hit in hits]
        metrics[f"causes/repetitions/l={length}"] = (
            cluster_bootstrap(
                counts, [hit.prefix.dialogue_id for hit in hits], bootstrap=Bootstrap(level=LEVEL, n_draws=4000)
            )
            if hits
            else unmeasured("no completion is correct", level=LEVEL)
        )
    return metrics


def rank_causes(
    target: Target,
    dialogues: Sequence[Dialogue],
    prefixes: Sequence[Prefix],
    schema: Schema,
    *,
    n_ranked: int,
    seed: int,
) -> Ranked:
    """Return where the truth ranks after at most `n_ranked` of the members' prefixes of each length."""
    if not n_ranked:
        return Ranked({}, 0, [])
    questions = ask_next(dialogues, prefixes, schema, n_ranked=n_ranked, seed=seed)
    lengths = sorted({question.prefix.length for question in questions})
    scorer = _Scorer(target)
    try:
        ranks = rank_all(scorer, questions)
    except AuditError as error:
        missing = unmeasured(f"a query failed: {error}")
        keys = [
            f"{what}/{number}/l={n}" for what in NAMES for number in ("rank1", "beyond5", "mean_rank") for n in lengths
        ]
        return Ranked({f"causes/{key}": missing for key in keys}, scorer.n_queries, [f"ranks {missing.method}"])
    metrics: dict[str, Metric] = {}
    for what in NAMES:
        for n in lengths:
            mine = [(q, getattr(r, what)) for q, r in zip(questions, ranks, strict=True) if q.prefix.length == n]
            metrics |= {f"causes/{what}/{name}/l={n}": found for name, found in _summary(mine, seed).items()}
    n_slots, n_values = (float(np.mean([getattr(r, name) for r in ranks])) for name in ("n_slots", "n_values"))
    note = (
        f"true triplets after {len(ranks)} prefixes ranked among {n_slots:.1f} slots and {n_values:.1f} values a slot"
    )
    return Ranked(metrics, scorer.n_queries, [f"{note} on average"])


def _summary(ranks: Sequence[tuple[Question, int]], seed: int) -> dict[str, Estimate]:
    def mean(values: Sequence[tuple[str, float]], bounds: tuple[float, float]) -> Estimate:
        clusters, numbers = [cluster for cluster, _ in values], [number for _, number in values]
        return cluster_bootstrap(numbers, clusters, bounds=bounds, bootstrap=Bootstrap(n_draws=1000, seed=seed))

    named = [(question.prefix.dialogue_id, rank) for question, rank in ranks]
    top = [(name, float(rank)) for name, rank in named if rank <= TOP]
    return {
        "rank1": mean([(name, float(rank == 1)) for name, rank in named], (0.0, 1.0)),
        "beyond5": mean([(name, float(rank > TOP)) for name, rank in named], (0.0, 1.0)),
        "mean_rank": mean(top, (1.0, float(TOP))) if top else unmeasured(f"no true one is among the first {TOP}"),
    }


def ask_next(
    dialogues: Sequence[Dialogue], prefixes: Sequence[Prefix], schema: Schema, *, n_ranked: int, seed: int
) -> list[Question]:
    """Return a question for some prefixes of each length."""
    states = sorted({turn.state for dialogue in dialogues for turn in dialogue.turns if turn.state}, key=render_state)
    lengths = sorted({prefix.length for prefix in prefixes})
    following: dict[tuple[int, str], list[DialogueState]] = defaultdict(list)
    for state in states:
        for length in lengths:
            if length < len(state):
                following[length, render_state_prefix(state, length).casefold()].append(state)
    known = _known_values(states, schema)
    questions = []
    for length in lengths:
        rng = np.random.default_rng([seed, length])
        mine = [prefix for prefix in prefixes if prefix.length == length]
        for i in sorted(rng.permutation(len(mine))[:n_ranked]):
            choices = following[length, mine[i].text.casefold()]
            questions.append(_question(mine[i], choices[rng.integers(len(choices))], schema, known, rng))
    return questions


def _known_values(states: Sequence[DialogueState], schema: Schema) -> dict[Key, list[str]]:
    """Return the values of each slot that the schema or a state names."""
    values: dict[Key, set[str]] = defaultdict(set)
    for slot in schema.slots:
        values[slot.domain, slot.name] |= set(slot.possible_values)
    for state in states:
        for triplet in state:
            values[triplet.domain, triplet.slot].add(triplet.value)
    return {key: sorted(found) for key, found in values.items()}


def _question(
    prefix: Prefix, state: DialogueState, schema: Schema, known: Mapping[Key, Sequence[str]], rng: np.random.Generator
) -> Question:
    ordered = sorted(state)
    said, following = ordered[: prefix.length], ordered[prefix.length]
    last = said[-1].domain
    used = {(triplet.domain, triplet.slot) for triplet in said}
    # The layout opens a domain once, so those that are closed are not opened again.
    closed = {triplet.domain for triplet in said} - {last}
    true = (following.domain, following.slot)
    keys = [(slot.domain, slot.name) for slot in schema.slots]
    slots = {
        (domain, name): f", {slot_opening(name)}"
        if domain == last
        else f") {domain_opening(domain)}{slot_opening(name)}"
        for domain, name in dict.fromkeys([*keys, true])
        if (domain, name) not in used and domain not in closed
    }
    values = {}
    for key in slots:
        others = [value for value in known.get(key, ()) if key != true or value != following.value]
        n = MAX_VALUES - (key == true)
        if len(others) > n:
            others = [others[i] for i in sorted(rng.choice(len(others), n, replace=False))]
        values[key] = [following.value, *others] if key == true else others
    prompt = f"{STATE_MARKER} {prefix.text[:-1]}"
    return Question(prefix, prompt, true, following.value, slots, values)


def rank_all(scorer: _Scorer, questions: Sequence[Question]) -> list[Ranks]:
    """Return the ranks of every question's truth, in two rounds of queries.

    Raises:
        AuditError: A query failed.
    """
    scorer.ask([pair for q in questions for pair in (*_slot_pairs(q), *_value_pairs(q, q.true))])
    rivals = [
        [key for key in q.slots if key != q.true and scorer.slot(q, key) >= scorer.pair(q, q.true, q.value)]
        for q in questions
    ]
    scorer.ask(
        [pair for q, keys in zip(questions, rivals, strict=True) for key in keys for pair in _value_pairs(q, key)]
    )
    return [_ranks(scorer, q, keys) for q, keys in zip(questions, rivals, strict=True)]


def _ranks(scorer: _Scorer, question: Question, rivals: Sequence[Key]) -> Ranks:
    """Return the ranks after one prefix; what is as probable as the truth stands before it."""
    true = question.true
    slot = sum(scorer.slot(question, key) >= scorer.slot(question, true) for key in question.slots)
    pair = scorer.pair(question, true, question.value)
    value = sum(scorer.pair(question, true, each) >= pair for each in question.values[true])
    others = sum(scorer.pair(question, key, each) >= pair for key in rivals for each in question.values[key])
    return Ranks(slot, value, value + others, len(question.slots), len(question.values[true]))


def _slot_pairs(question: Question) -> list[tuple[str, str]]:
    return [(question.prompt, phrase) for phrase in question.slots.values()]


def _value_pairs(question: Question, key: Key) -> list[tuple[str, str]]:
    prompt = question.prompt + question.slots[key]
    return [(prompt, _written(value) + end) for value in question.values[key] for end in _VALUE_ENDS]


def _written(value: str) -> str:
    """Return a value as a state writes it."""
    return render_state(frozenset([SlotValue("x", "y", value)])).removeprefix("X(y=").removesuffix(")")


@dataclass
class _Scorer:
    """Asks for each phrase once."""

    target: Target
    known: dict[tuple[str, str], float] = field(default_factory=dict)
    """Log-probability of each phrase after its prompt."""
    n_queries: int = 0

    def ask(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Score what is not known yet.

        Raises:
            AuditError: A query failed.
        """
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self.known]
        if not new:
            return
        answers = self.target.logprobs([prompt for prompt, _ in new], [phrase for _, phrase in new])
        self.n_queries += len(new)
        sums = [float(answer.double().sum()) for answer in answers]
        if len(sums) != len(new) or not all(map(math.isfinite, sums)):
            raise AuditError(f"{len(sums)} of {len(new)} phrases were scored, or not all of them finite")
        self.known |= dict(zip(new, sums, strict=True))

    def slot(self, question: Question, key: Key) -> float:
        """Return the log-probability of a slot's phrase."""
        return self.known[question.prompt, question.slots[key]]

    def pair(self, question: Question, key: Key, value: str) -> float:
        """Return the log-probability of a slot with one of its values, ended either way."""
        prompt = question.prompt + question.slots[key]
        return self.slot(question, key) + float(
            np.logaddexp.reduce([self.known[prompt, _written(value) + end] for end in _VALUE_ENDS])
        )
