"""Guided sampling from a model in this process: each distinct text is read once, the phrases of many texts in one pass.

Guarantees: the law of `guided`. The phrases that may follow a text are read as one tree behind the keys and values of
that text, many texts at a time; the keys and values of the chosen phrases are kept
(`TokenStore`: once, however many texts go on from them), so nothing is read twice but the last token of a text. Draws
that share a text are counted, not repeated, inside free pieces too.
The texts that are waiting go last in, first out, and what is remembered of them is bounded: the oldest are forgotten
and read again.
Under the phrase law, phrases that cannot have together a ten-thousandth of the probability of the best one behind their
text are not read to their end (`phrase_scores`). They are drawn by an upper bound of their probability; draws that do
fall on one are sifted once the rest of it is read (rejection sampling), so the law is the same. The mass that is told
of a choice counts their bounds: too much by at most a ten-thousandth.
Phrase tokens are those that the tokenizer gives text and phrase together; where one of them straddles the end of the
text, or the text was not sampled in the tokenizer's own spelling, it is read anew in that spelling from where the two
part (`GuidedSampler.n_respelled` counts how often). Random numbers belong to the way a text was drawn, so no two
lots of draws share any, not even those that reach the same text in different spellings.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).

Source: prefix sharing as in speculative decoding with token trees (Miao et al., ASPLOS 2024); the count splitting of
independent draws is the chain rule of the multinomial distribution.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.choosing import law_logits, pick_each
from hushbot.targets.guided_law import Law, Lot, accepted, phrase_law, split_counts, token_law
from hushbot.targets.guided_rows import Row, Waiting, remembered
from hushbot.targets.guided_texts import (
    END_OF_TEXT,
    Choice,
    Free,
    Grammar,
    GuidedDraws,
    Harvest,
    Node,
    end_of_piece,
)
from hushbot.targets.phrase_scores import Reading, begin, read_on
from hushbot.targets.phrase_trees import Phrases, PhraseTrees
from hushbot.targets.sampler import TokenFilter, decode_after
from hushbot.targets.token_store import TokenStore
from hushbot.targets.token_tree import behind, leaf
from hushbot.tokens import decode, encode, start_token
from hushbot.types import Decoding

MARGIN = math.log(1e4)
"""How far below the best phrase, in log-probability, all that are left unread must lie together: a ten-thousandth of it
shows in no mass that is told. Where a temperature above 1 lifts them, they must lie lower by as much."""


@dataclass(slots=True, eq=False)
class GuidedSampler:
    """Draws guided texts from one model.

    Args as for `guided.sample_guided`, and how many rows and tokens are read at once.
    """

    model: CausalLM
    tokenizer: Any
    grammar: Grammar
    decoding: Decoding
    seed: int
    law: Law
    batch_rows: int
    batch_tokens: int
    n_respelled: int = 0
    """How many texts were read anew at their end because their tokens were not the tokenizer's own."""
    _prompts: Sequence[str] = ()
    _waiting: Waiting = field(init=False)
    _harvest: Harvest = field(init=False)
    _filters: dict[str, TokenFilter] = field(default_factory=dict)
    _trees: PhraseTrees = field(init=False)
    _store: TokenStore = field(default_factory=TokenStore)
    _end_token: int | None = field(init=False)
    _limit: int | None = field(init=False)

    def __post_init__(self) -> None:
        self._trees = PhraseTrees(self.tokenizer)
        # Both are asked for at every text, and slow to look up.
        self._limit, self._end_token = self.model.context_length, self.tokenizer.eos_token_id
        self._waiting = Waiting(self.batch_rows, self.batch_tokens)
        self._harvest = Harvest(())

    def run(self, prompts: Sequence[str], n: int) -> GuidedDraws:
        """Return n draws per prompt.

        Raises:
            AuditError: A text exceeds the model's context, or a score is not finite.
        """
        self._prompts, self._harvest = prompts, Harvest(prompts)
        for position in reversed(range(len(prompts))):
            self._begin(Node(position, "", n), self._encode(prompts[position]), None, b"")
        while self._waiting:
            rows = self._waiting.take()
            if isinstance(rows[0].rule, Choice):
                self._choose(rows)
            else:
                self._write(rows)
            self._waiting.forget()
            self._store.tidy(self._waiting.remembered())
        return self._harvest.draws()

    def _encode(self, text: str) -> list[int]:
        return [start_token(self.tokenizer), *encode(self.tokenizer, text)]

    def _begin(
        self, node: Node, ids: list[int], slots: list[int] | None, key: bytes, feature: Tensor | None = None
    ) -> None:
        """Let a text wait for its next piece, or take it in if it is at its end."""
        rule = self.grammar.next(self._prompts[node.position] + node.text)
        if rule is None:
            self._harvest.add(node, is_complete=True)
            return
        if isinstance(rule, Free):
            # The last new token is never read back.
            self._check_length(node, len(ids) + max(0, rule.max_new_tokens - 1))
        self._harvest.note_question(node, rule)
        self._waiting.add(Row(node, rule, ids, slots, key, feature=feature))

    def _check_length(self, node: Node, longest: int) -> None:
        limit = self._limit
        if limit is not None and longest > limit:
            raise AuditError(
                f"prompt {node.position}: {longest} tokens of a guided text exceed the model's context of {limit}; "
                "allow shorter texts"
            )

    def _choose(self, rows: Sequence[Row]) -> None:
        """Let texts with a choice to make go on."""
        plans = [self._plan(row) for row in rows]
        texts = remembered(self.model, self._store, rows)
        readings = begin(self.model, texts, [row.end for row in rows], plans)
        self._read_on(readings, self._margin)
        for reading in readings:
            self._choose_alike([rows[number] for number in reading.members], reading)

    def _read_on(self, readings: Sequence[Reading], margin: float) -> None:
        read_on(self.model, self._store, readings, margin=margin, batch_tokens=self.batch_tokens)

    @property
    def _margin(self) -> float:
        # The token law asks for the tokens of every phrase.
        return MARGIN * max(1.0, self.decoding.temperature) if self.law == "phrase" else math.inf

    def _plan(self, row: Row) -> Phrases:
        """Return the tree of phrases behind a row's tokens, changing those tokens where they do not fit."""
        if not isinstance(row.rule, Choice):
            raise TypeError("only choices have phrases")
        ids, plan = self._trees.after(self._prompts[row.node.position] + row.node.text, row.ids, row.rule.phrases)
        if ids is not row.ids:
            row.slots = row.read_of(ids)
            row.ids, row.feature = ids, None
            self.n_respelled += 1
        self._check_length(row.node, len(ids) + max(map(len, plan.paths)))
        return plan

    def _choose_alike(self, rows: Sequence[Row], reading: Reading) -> None:
        """Let texts go on that have the same phrases."""
        bounds, is_whole, chances = reading.bounds, reading.is_whole.tolist(), self._chances(reading)
        lots = [self._lot(row) for row in rows]
        drawn = split_counts(chances, [row.node.count for row in rows], lots)
        for at, counts in enumerate(drawn):
            if not all(is_whole[at][phrase] for phrase in counts):
                alone = reading.alone(at)
                self._read_on([alone], math.inf)
                rng = lots[at].generator("sifting")
                drawn[at] = accepted(counts, bounds[at], alone.bounds[0], self.decoding.temperature, rng)
        masses = np.exp(reading.bounds).sum(axis=1).tolist()
        for at, (row, counts, mass) in enumerate(zip(rows, drawn, masses, strict=True)):
            self._go_on(row, reading, at, counts, mass)

    def _chances(self, reading: Reading) -> FloatArray:
        """Return per text the probability of each phrase."""
        plan, temperature = reading.plan, self.decoding.temperature
        if self.law == "phrase":
            return phrase_law(reading.bounds, temperature)
        by_path = [[values.tolist() for values in plan.by_path(scores)] for scores in reading.scores]
        return np.array([token_law(plan.paths, values, temperature) for values in by_path])

    def _go_on(self, row: Row, reading: Reading, at: int, counts: dict[int, int], mass: float) -> None:
        """Let a row's draws, text `at` of a reading, go on with their phrases."""
        if not isinstance(row.rule, Choice):
            raise TypeError("only choices have phrases")
        masses, plan, before = (*row.node.mass, mass), reading.plan, reading.texts[at]
        slots = reading.slots[at].tolist()
        for phrase, count in counts.items():
            node = Node(row.node.position, row.node.text + row.rule.phrases[phrase], count, masses)
            read = [*before, *(slots[place] for place in plan.places[phrase])]
            self._begin(node, row.ids + plan.paths[phrase], read, row.key_of(f"phrase {phrase}"))

    def _write(self, rows: Sequence[Row]) -> None:
        """Let texts whose next piece is free go on by a token."""
        texts = remembered(self.model, self._store, rows)
        unread = [row.ids[len(read) :] for row, read in zip(rows, texts.slots, strict=True)]
        features, slots = self.model.branch_features(texts, [behind(some[:-1], leaf(some[-1])) for some in unread])
        ends = list(accumulate(map(len, unread)))
        features = features[[end - 1 for end in ends]]
        generated = [row.ids[len(row.ids) - row.n_free :] for row in rows]
        scores = law_logits(self.model.logits(features), self.decoding, generated)
        drawn = pick_each(scores, [self._lot(row).uniforms(row.node.count) for row in rows])
        for row, tokens, read, some, end, feature in zip(rows, drawn, texts.slots, unread, ends, features, strict=True):
            row.slots, row.feature = [*read, *slots[end - len(some) : end]], feature
            self._extend(row, dict(sorted(Counter(tokens).items())) if len(tokens) > 1 else {tokens[0]: 1})

    def _extend(self, row: Row, drawn: dict[int, int]) -> None:
        """Let a row, all of which was read, go on with each token that was drawn, or end its piece."""
        rule = row.rule
        if not isinstance(rule, Free):
            raise TypeError("only free pieces are written token by token")
        ended: dict[str, int] = {}
        for token, count in drawn.items():
            if token == self._end_token:
                self._harvest.add(row.node.longer(self._piece(row, row.ids), count), is_complete=False)
                continue
            ids, n_free = [*row.ids, token], row.n_free + 1
            is_full = n_free >= rule.max_new_tokens
            if is_full or self._filter(rule).may_hold(token):
                piece = self._piece(row, ids)
                end = end_of_piece(piece, rule.delimiters)
                if end and piece[end] != END_OF_TEXT:
                    ended[piece[:end]] = ended.get(piece[:end], 0) + count
                    continue
                if end is not None or is_full:
                    self._harvest.add(row.node.longer(piece[:end], count), is_complete=False)
                    continue
            key = row.key_of(f"token {token}")
            self._waiting.add(Row(row.node.longer("", count), rule, ids, row.slots, key, n_free, row.head))
        before = self._piece(row, row.ids) if ended else ""
        for piece, count in ended.items():
            self._end_piece(row, row.node.longer(piece, count), is_before_token=piece == before)

    def _end_piece(self, row: Row, node: Node, *, is_before_token: bool) -> None:
        """Let a text go on behind its finished free piece, in the tokenizer's own spelling.

        Args:
            row: What wrote the piece; it holds neither the delimiter nor the token that brought it.
            node: The text up to the delimiter.
            is_before_token: Whether the row's tokens are the whole of that text.
        """
        text = self._prompts[node.position] + node.text
        n_new = len(node.text) - len(row.node.text)
        ids = self._trees.respelled(text, row.ids, len(text) - n_new) if is_before_token else self._encode(text)
        is_kept = ids is row.ids
        self.n_respelled += not is_kept
        key = row.key_of(f"{'piece' if is_before_token else 'cut piece'} {node.text}")
        # A copy of what the model made of the last token: the batch that it is part of may go.
        feature = row.feature.clone() if is_kept and row.feature is not None else None
        self._begin(node, ids, row.read_of(ids), key, feature)

    def _piece(self, row: Row, ids: Sequence[int]) -> str:
        """Return the free piece so far."""
        if row.head is None:
            row.head = decode(self.tokenizer, row.ids[1 : len(row.ids) - row.n_free])
        return decode_after(self.tokenizer, row.head, ids[1:], where=f"prompt {row.node.position}")

    def _filter(self, rule: Free) -> TokenFilter:
        if rule.delimiters not in self._filters:
            self._filters[rule.delimiters] = TokenFilter(self.tokenizer, {*rule.delimiters, END_OF_TEXT})
        return self._filters[rule.delimiters]

    def _lot(self, row: Row) -> Lot:
        return Lot(self.seed, row.node.position, row.key)
