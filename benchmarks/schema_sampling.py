"""How much faster schema-guided sampling is than asking for one phrase of one state at a time.

    python benchmarks/schema_sampling.py                   # the bundled backbone and MultiWOZ's schema, some minutes
    python benchmarks/schema_sampling.py --model smollm2   # SmolLM2-135M as it is, fewer states, about ten minutes

One decision: 16 states (SmolLM2-135M: 4) of real dialogues, cut after a value, and all phrases that may follow each.
Once with 32 phrases that open a domain and a slot, the size of decision for which the goals were set, and once with
those that the sampler's own layout offers there, which are fewer, for it chooses domain and slot one after the other.
For so small a decision no goal was set; it is shown.

* tree: all phrases of all states in one pass behind what is remembered of each state;
* as needed: the same as the sampler has it, which reads phrases that have together less than a ten-thousandth of the
  best one's probability only as far as it takes to know that, where there are so many tokens that this can pay;
* cached: one pass per phrase, all states at a time, behind the same memories;
* uncached: one padded pass per phrase, all states at a time, over whole texts, by the model's own forward.

Whole states after `Belief State:`, values included: with choices among all pairs of domain and slot at once (35 in
MultiWOZ), the kind of choice for which 150x was set; and with those of the sampler's own layout, where the naive way
has a third of the passes to make. The goal there is 150x times that ratio.

* guided: draws that share a text are counted, each distinct text is read once;
* every draw a row of its own: the same sampler, but the draws share nothing beyond their first phrase;
* naive: one state at a time, whole texts anew for every phrase and every token of a value. It is measured on some
  states of its own drawing, and scaled.

The floor is the arithmetic that reading the same tokens takes: their products with the weights, the output embedding's
included, for decisions also attention over what each text has read and its tree, and the softmax over the vocabulary;
each called bare, padding of smaller trees left out. A decision's goals are those of reading as needed, which is how the
sampler decides; the probabilities that it decides by are compared with those of passes per phrase.

Time is CPU time on one thread, the best of several rounds (the naive one and the one without counts are measured once,
on a part of the draws). Prints one line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ;
where its folder is absent, the bundled corpus and its smaller schema have to do.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from packing import Claim, draw, tell
from scipy.special import softmax
from scoring import load_corpus
from torch import Tensor

from hushbot.attacks.schema_sampling import StateGrammar
from hushbot.prompts import STATE_MARKER, domain_opening, render_state, slot_opening
from hushbot.targets.guided import Choice, Free, Grammar, end_of_piece, sample_guided
from hushbot.targets.guided_local import MARGIN
from hushbot.targets.local import LocalTarget
from hushbot.targets.phrase_scores import End, Reading, begin, read_on
from hushbot.targets.phrase_trees import Phrases, PhraseTrees
from hushbot.targets.products import multiply
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import Packed, pack
from hushbot.tokens import encode, start_token
from hushbot.training.backbone import SmolLM2Backbone, TinyBackbone
from hushbot.types import Decoding

N_PHRASES = 32
GOAL_CACHED, GOAL_UNCACHED = 5.0, 15.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured, and what whole states are to reach."""

    states: int
    draws: tuple[int, ...]
    naive: int
    """How many states of the layout's own choices are drawn in the naive way."""
    naive_pairs: int
    """The same with choices among all pairs; 0 leaves them out."""
    uncounted: int
    goal_naive: float
    """With choices among all pairs, if they are measured."""
    goal_uncounted: float


SIZES = {
    "tiny": Sizes(
        states=16,
        draws=(2000, 10_000),
        naive=200,
        naive_pairs=60,
        uncounted=2000,
        goal_naive=150.0,
        goal_uncounted=3.0,
    ),
    # The few draws of a model that was not trained here share little but their first phrases.
    "smollm2": Sizes(states=4, draws=(128,), naive=2, naive_pairs=0, uncounted=64, goal_naive=10.0, goal_uncounted=1.0),
}


@dataclass(frozen=True)
class Decision:
    """Texts and what may follow each."""

    ids: list[list[int]]
    """The tokens of each text, start token first."""
    texts: StoredTexts
    """What the model has read of each, its last token left out."""
    plans: list[Phrases]


@dataclass(frozen=True)
class SlotOpenings:
    """Offers the same phrases everywhere."""

    phrases: tuple[str, ...]

    def next(self, text: str) -> Choice:
        """Return at most 32 of them."""
        return Choice(self.phrases[:N_PHRASES])


@dataclass(frozen=True)
class Pairs:
    """Offers at once what a grammar offers one after another between two values: the same states, another law."""

    grammar: Grammar

    def next(self, text: str) -> Choice | Free | None:
        """Return what may follow."""
        rule = self.grammar.next(text)
        return Choice(tuple(self._whole(text, rule.phrases))) if isinstance(rule, Choice) else rule

    def _whole(self, text: str, phrases: Sequence[str]) -> Iterator[str]:
        for phrase in phrases:
            rule = self.grammar.next(text + phrase)
            if isinstance(rule, Choice):
                yield from (phrase + more for more in self._whole(text + phrase, rule.phrases))
            else:
                yield phrase


def cpu_seconds(step: Callable[[], object], rounds: int = 1) -> float:
    """Return the least CPU time of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        step()
        best = min(best, time.process_time() - started)
    return best


def cut_states(dialogues: Sequence[Any], n: int) -> list[str]:
    """Return state texts of two values or more, each cut before the delimiter of its second value."""
    texts = []
    for dialogue in dialogues:
        body = f" {render_state(dialogue.final_state or frozenset())}"
        first = end_of_piece(body, ",")
        second = None if first is None else end_of_piece(body[first + 1 :], ",)")
        if first is not None and second is not None and ")" not in body[: first + 1 + second]:
            texts.append(STATE_MARKER + body[: first + 1 + second])
    return texts[:n]


def make_decision(target: LocalTarget, grammar: Grammar, texts: Sequence[str]) -> Decision:
    trees, ids, plans = PhraseTrees(target.tokenizer), [], []
    for text in texts:
        rule = grammar.next(text)
        if not isinstance(rule, Choice):
            raise TypeError("a state that was cut behind a value has a choice to make")
        tokens, plan = trees.after(text, [start_token(target.tokenizer), *encode(target.tokenizer, text)], rule.phrases)
        ids.append(tokens)
        plans.append(plan)
    store, read = TokenStore(), target.causal_lm.prefill(ids)
    slots = [store.add_text(one.memory, len(tokens) - 1) for one, tokens in zip(read, ids, strict=True)]
    return Decision(ids, StoredTexts(store, slots), plans)


def by_tree(target: LocalTarget, decision: Decision, margin: float) -> list[Reading]:
    readings = begin(target.causal_lm, decision.texts, [End(ids[-1]) for ids in decision.ids], decision.plans)
    read_on(target.causal_lm, decision.texts.store, readings, margin=margin, batch_tokens=target.batch_tokens)
    return readings


def in_order(readings: Sequence[Reading]) -> list[list[float]]:
    """Return the scores of the phrases of each text, texts as they were asked for."""
    scores = {at: own for reading in readings for at, own in zip(reading.members, reading.bounds.tolist(), strict=True)}
    return [scores[at] for at in sorted(scores)]


def by_phrase(target: LocalTarget, decision: Decision, *, is_cached: bool) -> list[list[float]]:
    """Score the phrases one after another, each behind all texts that it may follow."""
    scores: list[list[float]] = [[] for _ in decision.plans]
    for phrase in range(max(len(plan.paths) for plan in decision.plans)):
        rows = [i for i, plan in enumerate(decision.plans) if phrase < len(plan.paths)]
        score = cached_scores if is_cached else uncached_scores
        for i, value in zip(rows, score(target, decision, rows, phrase), strict=True):
            scores[i].append(value)
    return scores


def cached_scores(target: LocalTarget, decision: Decision, rows: Sequence[int], phrase: int) -> list[float]:
    paths = [decision.plans[i].paths[phrase] for i in rows]
    packed = [pack([[decision.ids[i][-1], *path[:-1]]]) for i, path in zip(rows, paths, strict=True)]
    texts = StoredTexts(decision.texts.store, [decision.texts.slots[i] for i in rows])
    # Padded rows through the model's own forward pass, as whoever has the memories would read them.
    features, _ = target.causal_lm._branch_rows(texts, packed)
    tokens = [token for path in paths for token in path]
    values = log_probabilities(target.causal_lm, features, range(len(tokens)), tokens)
    return [float(part.sum()) for part in values.split([len(path) for path in paths])]


def uncached_scores(target: LocalTarget, decision: Decision, rows: Sequence[int], phrase: int) -> list[float]:
    texts = [[*decision.ids[i], *decision.plans[i].paths[phrase]] for i in rows]
    ids, mask = target.causal_lm.pad(texts)
    table = torch.log_softmax(target.causal_lm.outer(input_ids=ids, attention_mask=mask, use_cache=False).logits, -1)
    return [
        sum(float(table[at, place - 1, text[place]]) for place in range(len(decision.ids[i]), len(text)))
        for at, (i, text) in enumerate(zip(rows, texts, strict=True))
    ]


def bare_seconds(target: LocalTarget, n_tokens: int, rounds: int) -> float:
    """Return what multiplying tokens by all weights costs, the output embedding included."""
    layers = [module for module in target.causal_lm.core.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(min(n_tokens, 1024), layer.in_features) for layer in layers]

    def step() -> None:
        for layer, rows in zip(layers, inputs, strict=True):
            multiply(layer, rows)

    with torch.inference_mode():
        return cpu_seconds(step, rounds) * n_tokens / len(inputs[0])


def floor_seconds(target: LocalTarget, decision: Decision, rounds: int) -> float:
    """Return what the arithmetic of a decision costs: its tokens' products, attention, and softmax."""
    config = target.causal_lm.core.config
    n_tokens = sum(len(plan.tree.ids) for plan in decision.plans)
    table = torch.randn(min(n_tokens, 128), target.causal_lm.n_tokens)
    width = config.hidden_size // config.num_attention_heads
    shapes = [(len(plan.tree.ids), n) for plan, n in zip(decision.plans, decision.texts.lengths, strict=True)]
    # The texts at once, each as long as they are on average.
    n_new, n_read = (round(sum(column) / len(shapes)) for column in zip(*shapes, strict=True))
    query = torch.randn(len(shapes), config.num_attention_heads, n_new, width)
    keys = torch.randn(len(shapes), config.num_attention_heads, n_read + n_new, width)

    def attend() -> None:
        for _ in range(config.num_hidden_layers):
            F.scaled_dot_product_attention(query, keys, keys)

    softmax = cpu_seconds(lambda: torch.log_softmax(table, dim=-1), rounds) * n_tokens / len(table)
    return bare_seconds(target, n_tokens, rounds) + cpu_seconds(attend, rounds) + softmax


def decision_claims(
    name: str, target: LocalTarget, grammar: Grammar, texts: Sequence[str], rounds: int, *, has_goals: bool
) -> list[Claim]:
    with target.causal_lm.reading():
        decision = make_decision(target, grammar, texts)
        n_held = decision.texts.store.n_tokens
        scores: dict[str, list[list[float]]] = {
            "tree": in_order(by_tree(target, decision, math.inf)),
            "cached": by_phrase(target, decision, is_cached=True),
            "uncached": by_phrase(target, decision, is_cached=False),
        }
        needed = by_tree(target, decision, MARGIN)
        n_needed = sum(int((reading.slots > 0).sum()) for reading in needed)
        variants: dict[str, Callable[[], object]] = {
            "tree": lambda: by_tree(target, decision, math.inf),
            "as needed": lambda: by_tree(target, decision, MARGIN),
            "cached": lambda: by_phrase(target, decision, is_cached=True),
            "uncached": lambda: by_phrase(target, decision, is_cached=False),
        }
        seconds = dict.fromkeys([*variants, "floor"], float("inf"))
        for _ in range(rounds):  # interleaved, for the load of a machine changes
            for variant, step in variants.items():
                seconds[variant] = min(seconds[variant], cpu_seconds(step))
                decision.texts.store.cut(n_held)
            seconds["floor"] = min(seconds["floor"], floor_seconds(target, decision, 3))
    n_phrases = sum(len(plan.paths) for plan in decision.plans)
    n_nodes = sum(len(plan.tree.ids) for plan in decision.plans)
    n_tokens = sum(len(path) for plan in decision.plans for path in plan.paths)
    print(
        f"{name}: {len(texts)} states, {n_phrases} phrases of {n_tokens} tokens, {n_nodes} tokens as trees "
        f"({n_tokens / n_nodes:.1f} times fewer), {n_needed} as needed"
    )
    for variant, best in seconds.items():
        at_most = "".join(f", {seconds[slow] / best:.1f}x against {slow}" for slow in ("cached", "uncached"))
        print(f"  {variant:10s} {1000 * best:8.1f} CPU ms{at_most if 'cached' not in variant else ''}")
    difference = max(
        abs(np.array(ours) - theirs).max()
        for other in ("cached", "uncached")
        for ours, theirs in zip(scores["tree"], scores[other], strict=True)
    )
    shares = max(
        np.abs(softmax(ours) - softmax(theirs)).max()
        for ours, theirs in zip(in_order(needed), scores["uncached"], strict=True)
    )
    claims = [
        Claim(f"{name}, greatest difference of scores", "passes per phrase", 1e-4, difference, is_ratio=False),
        Claim(f"{name}, as needed, of probabilities", "passes per phrase", 1e-4, float(shares), is_ratio=False),
    ]
    for slow, goal in (("cached", GOAL_CACHED), ("uncached", GOAL_UNCACHED)) if has_goals else ():
        claims.append(
            Claim(f"{name}, as needed", f"{slow} passes per phrase", goal, seconds[slow] / seconds["as needed"])
        )
    return claims


class Naive:
    """Draws states one at a time and reads every text anew."""

    def __init__(self, target: LocalTarget, grammar: Grammar) -> None:
        self.target = target
        self.grammar = grammar
        self.n_passes = 0
        self.rng = np.random.default_rng(0)

    def __call__(self) -> str:
        """Draw one state."""
        text = STATE_MARKER
        while (rule := self.grammar.next(text)) is not None:
            if isinstance(rule, Choice):
                scores = np.array([self.score(text, phrase) for phrase in rule.phrases])
                chances = np.exp(scores - scores.max())
                text += rule.phrases[self.rng.choice(len(chances), p=chances / chances.sum())]
                continue
            value, is_whole = self.write(text, rule)
            text += value
            if not is_whole:
                break
        return text

    def score(self, text: str, phrase: str) -> float:
        """Return the log-probability of a phrase after a text."""
        head, whole = self.read(text), self.read(text + phrase)
        table = torch.log_softmax(self.logits(whole), dim=-1)
        return sum(float(table[place - 1, whole[place]]) for place in range(len(head), len(whole)))

    def write(self, text: str, rule: Free) -> tuple[str, bool]:
        """Draw a value token by token; return it and whether a delimiter ended it."""
        head, ids = self.read(text), list[int]()
        for _ in range(rule.max_new_tokens):
            chances = torch.softmax(self.logits([*head, *ids])[-1].double(), dim=-1).numpy()
            ids.append(int(self.rng.choice(len(chances), p=chances)))
            value = self.target.tokenizer.decode(ids)
            if (end := end_of_piece(value, rule.delimiters)) is not None:
                return value[:end], end > 0 and value[end] != "\n"
        return self.target.tokenizer.decode(ids), False

    def read(self, text: str) -> list[int]:
        """Return the tokens of a whole text."""
        return [start_token(self.target.tokenizer), *encode(self.target.tokenizer, text)]

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return the model's logits of every position."""
        self.n_passes += 1
        return self.target.causal_lm.outer(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def count_tokens(target: LocalTarget, draw_states: Callable[[], list[list[Any]]]) -> tuple[int, list[list[Any]]]:
    """Return how many tokens are read behind texts, padding left out, and what was drawn."""
    n_read, read = 0, target.causal_lm.branch_features

    def counted(texts: StoredTexts, rows: Sequence[Packed]) -> tuple[Tensor, Any]:
        nonlocal n_read
        n_read += sum(len(row.ids) for row in rows)
        return read(texts, rows)

    with mock.patch.object(target.causal_lm, "branch_features", counted):
        drawn = draw_states()
    return n_read, drawn


@dataclass(frozen=True)
class Rates:
    """States per CPU second."""

    guided: dict[int, float]
    """By the number of draws."""
    naive: float
    n_passes: float
    """Of a state, in the naive way."""


def sampling_rates(name: str, target: LocalTarget, grammar: Grammar, sizes: Sizes, n_naive: int, rounds: int) -> Rates:
    rates, floors = {}, {}
    for n in sizes.draws:
        rates[n] = n / cpu_seconds(lambda n=n: guided(target, grammar, [STATE_MARKER], n), rounds)
        n_read, drawn = count_tokens(target, lambda n=n: guided(target, grammar, [STATE_MARKER], n))
        floors[n] = n / bare_seconds(target, n_read, 5)
        print(f"{name}: guided, N = {n:6d} {rates[n]:8.1f} states per CPU second, {len(drawn[0])} distinct")
        print(f"    floor            {floors[n]:8.1f}, {n_read} tokens")
    naive = Naive(target, grammar)
    with target.causal_lm.reading():
        slow = n_naive / cpu_seconds(lambda: [naive() for _ in range(n_naive)])
    times = ", ".join(f"{rates[n] / slow:.0f}x at {n} (floor {floors[n] / slow:.0f}x)" for n in sizes.draws)
    print(f"    naive            {slow:8.2f}, {naive.n_passes / n_naive:.0f} passes a state; {times}")
    return Rates(rates, slow, naive.n_passes / n_naive)


def guided(target: LocalTarget, grammar: Grammar, prompts: Sequence[str], n: int) -> list[list[Any]]:
    return sample_guided(target, prompts, grammar, n=n, decoding=Decoding(), seed=0).texts


def sampling_claims(target: LocalTarget, grammar: StateGrammar, sizes: Sizes, rounds: int) -> list[Claim]:
    own = sampling_rates("choices of the layout", target, grammar, sizes, sizes.naive, rounds)
    found = {"choices of the layout": (own, sizes.goal_naive)}
    if sizes.naive_pairs:
        pairs = Pairs(grammar)
        n_pairs = len(pairs.next(STATE_MARKER).phrases)  # type: ignore[union-attr]
        name = f"choices among {n_pairs}"
        wide = sampling_rates(name, target, pairs, sizes, sizes.naive_pairs, rounds)
        found = {
            name: (wide, sizes.goal_naive),
            "choices of the layout": (own, round(sizes.goal_naive * own.n_passes / wide.n_passes, 1)),
        }
    # The first phrases are given to the draws without counts, for any sampler reads a prompt once.
    drawn = guided(target, grammar, [STATE_MARKER], sizes.uncounted)[0]
    first = [text.text[: text.text.find("(") + 1] for text in drawn]
    prompts = [STATE_MARKER + one for one, text in zip(first, drawn, strict=True) for _ in range(text.count)]
    most = max(sizes.draws)
    alone = sizes.uncounted / cpu_seconds(lambda: guided(target, grammar, prompts, 1))
    print(f"choices of the layout, rows of their own: {alone:.1f} states per CPU second")
    return [
        *(
            Claim(f"schema-guided sampling, {name}, N = {n:,}", "a pass per phrase and token", goal, rate / rates.naive)
            for name, (rates, goal) in found.items()
            for n, rate in rates.guided.items()
        ),
        Claim(f"counted draws, N = {most:,}", "every draw a row", sizes.goal_uncounted, own.guided[most] / alone),
    ]


def measure(model: str, rounds: int) -> list[Claim]:
    corpus, sizes = load_corpus(), SIZES[model]
    loaded: Any = (TinyBackbone(max_length=1024) if model == "tiny" else SmolLM2Backbone(lora=None)).load()
    target = LocalTarget(loaded.model, loaded.tokenizer)
    grammar = StateGrammar(schema=corpus.schema)
    print(f"{model}: schema of {corpus.name}, {len(corpus.schema.slots)} slots, one thread")
    texts = cut_states(draw(corpus.dialogues, min(400, len(corpus.dialogues))), sizes.states)
    guided = sample_guided(target, [STATE_MARKER], grammar, n=1, decoding=Decoding(), seed=0)  # pays for set-up
    if not guided.texts[0]:
        raise RuntimeError("one draw gave no text")
    openings = SlotOpenings(
        tuple(f") {domain_opening(slot.domain)}{slot_opening(slot.name)}" for slot in corpus.schema.slots)
    )
    many = 4 * rounds if model == "tiny" else rounds  # one takes milliseconds
    return [
        *decision_claims("one decision among 32", target, openings, texts, many, has_goals=True),
        *decision_claims("one decision of the layout", target, grammar, texts, many, has_goals=False),
        *sampling_claims(target, grammar, sizes, rounds),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(SIZES), default="tiny")
    parser.add_argument("--rounds", type=int, help="default: 3, or 1 with smollm2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    return tell(measure(arguments.model, arguments.rounds or (3 if arguments.model == "tiny" else 1)))


if __name__ == "__main__":
    sys.exit(main())
