"""Guided sampling from a model in this process: each distinct text is read once, all phrases of all texts in one pass.

Guarantees: the law of `guided`. The phrases that may follow a text are read as one tree behind the keys and values of
that text, many texts at a time; the keys and values of the chosen phrases are kept, so nothing is read twice but the
last token of a text. Draws that share a text are counted, not repeated, inside free pieces too. The texts that are
waiting go last in, first out, and what is remembered of them is bounded: the oldest are forgotten and read again.
Phrase tokens are those that the tokenizer gives text and phrase together; where one of them straddles the end of the
text, or the text was not sampled in the tokenizer's own spelling, the text is read anew in that spelling.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).

Source: prefix sharing as in speculative decoding with token trees (Miao et al., ASPLOS 2024); the count splitting of
independent draws is the chain rule of the multinomial distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.prompts import pieces
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.choosing import law_logits, pick_many
from hushbot.targets.guided import (
    END_OF_TEXT,
    Choice,
    Free,
    Grammar,
    Guided,
    Harvest,
    Law,
    Node,
    end_of_piece,
    generator,
    phrase_law,
    split_count,
    token_law,
)
from hushbot.targets.row_cache import KeysValues
from hushbot.targets.sampler import TokenFilter, decode
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_tree import Packed, pack
from hushbot.tokens import encode, encode_with_spans, start_token
from hushbot.types import Decoding

_PREFILL_TOKENS = 2048
_REMEMBERED = 2
"""How many times `batch_tokens` the waiting texts may remember."""


@dataclass(slots=True, eq=False)
class _Row:
    """Some draws that share a text, and what the model remembers of it."""

    node: Node
    rule: Choice | Free
    ids: list[int]
    """All tokens, start token and those of an unfinished free piece included."""
    memory: KeysValues | None = None
    """Keys and values of all tokens but the last; None is read when needed."""
    n_free: int = 0
    """How many of the tokens belong to the free piece in the making, which `node.text` does not hold yet."""


class _Phrases(NamedTuple):
    """How phrases follow a text: a tree behind its tokens."""

    paths: list[list[int]]
    """The tokens of each phrase, after `n_again` tokens of the text that are read again."""
    firsts: list[int]
    """The first token of each path that counts as the phrase's."""
    order: list[int]
    """The phrases as they stand in the tree."""
    tree: Packed
    """Of a token that stands for the last of the text, and each path without its last token."""


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
    _prompts: Sequence[str] = ()
    _n_prompt: list[int] = field(default_factory=list)
    _choices: list[_Row] = field(default_factory=list)
    _free: list[_Row] = field(default_factory=list)
    _harvest: Harvest = field(default_factory=lambda: Harvest(0))
    _known: dict[tuple[str, tuple[str, ...]], _Phrases | None] = field(default_factory=dict)
    _filters: dict[str, TokenFilter] = field(default_factory=dict)

    def run(self, prompts: Sequence[str], n: int) -> list[list[Guided]]:
        """Return the distinct texts of n draws per prompt.

        Raises:
            AuditError: A text exceeds the model's context, or a score is not finite.
        """
        self._prompts, self._harvest = prompts, Harvest(len(prompts))
        encoded = [self._encode(prompt) for prompt in prompts]
        self._n_prompt = [len(ids) for ids in encoded]
        for position in reversed(range(len(prompts))):
            self._begin(Node(position, "", n), encoded[position], None)
        while self._choices or self._free:
            if len(self._choices) >= len(self._free):
                self._choose(self._take(self._choices))
            else:
                self._write(self._take(self._free))
            self._forget()
        return self._harvest.texts()

    def _encode(self, text: str) -> list[int]:
        return [start_token(self.tokenizer), *encode(self.tokenizer, text)]

    def _begin(self, node: Node, ids: list[int], memory: KeysValues | None) -> None:
        """Let a text wait for its next piece, or take it in if it is at its end."""
        rule = self.grammar.next(self._prompts[node.position] + node.text)
        if rule is None:
            self._harvest.add(node, is_complete=True)
            return
        limit = self.model.context_length
        longest = len(ids) + (rule.max_new_tokens if isinstance(rule, Free) else 0)
        if limit is not None and longest > limit:
            raise AuditError(
                f"prompt {node.position}: {longest} tokens of a guided text exceed the model's context of {limit}; "
                "allow shorter texts"
            )
        (self._choices if isinstance(rule, Choice) else self._free).append(_Row(node, rule, ids, memory))

    def _take(self, waiting: list[_Row]) -> list[_Row]:
        """Return the newest rows that fit a batch, each with its memory."""
        rows: list[_Row] = []
        longest = 0
        while waiting and len(rows) < self.batch_rows:
            longest = max(longest, len(waiting[-1].ids))
            if rows and longest * (len(rows) + 1) > self.batch_tokens:
                break
            rows.append(waiting.pop())
        return rows

    def _remember(self, rows: Sequence[_Row]) -> list[KeysValues]:
        """Return the memories of rows, those without one read now."""
        unread = [row for row in rows if row.memory is None]
        while unread:
            n = max(1, _PREFILL_TOKENS // max(len(row.ids) for row in unread))
            batch, unread = unread[:n], unread[n:]
            for row, read in zip(batch, self.model.prefill([row.ids for row in batch]), strict=True):
                # Copies: a slice would keep the whole batch's memory alive.
                row.memory = [(keys[:, :-1].clone(), values[:, :-1].clone()) for keys, values in read.memory]
        return [row.memory for row in rows if row.memory is not None]

    def _forget(self) -> None:
        """Drop what is remembered of the oldest waiting rows, if it is too much."""
        held = {id(row.memory): len(row.ids) for row in (*self._choices, *self._free) if row.memory is not None}
        excess = sum(held.values()) - _REMEMBERED * self.batch_tokens
        if excess <= 0:
            return
        for row in (*self._choices, *self._free):
            if excess <= 0:
                return
            if row.memory is not None:
                excess -= held.pop(id(row.memory), 0)
                row.memory = None

    def _choose(self, rows: Sequence[_Row]) -> None:
        """Let texts with a choice to make go on."""
        plans = [self._plan(row) for row in rows]
        memories = self._remember(rows)
        trees = [
            plan.tree._replace(ids=[row.ids[-1], *plan.tree.ids[1:]]) for row, plan in zip(rows, plans, strict=True)
        ]
        features, fresh = self.model.branch_features(memories, trees)
        width = features.shape[1]
        places: list[int] = []
        tokens: list[int] = []
        for at, (plan, tree) in enumerate(zip(plans, trees, strict=True)):
            for i, path in zip(plan.order, tree.paths, strict=True):
                places += [at * width + place for place in path]
                tokens += plan.paths[i]
        values = log_probabilities(self.model, features.flatten(0, 1), places, tokens).double().cpu().numpy()
        at = 0
        for i, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            scores: list[np.ndarray[Any, np.dtype[np.float64]]] = [np.empty(0)] * len(plan.paths)
            for phrase in plan.order:
                n = len(plan.paths[phrase])
                scores[phrase] = values[at : at + n]
                at += n
            self._go_on(row, plan, scores, [(keys[i], values_[i]) for keys, values_ in fresh])

    def _go_on(self, row: _Row, plan: _Phrases, scores: Sequence[Any], fresh: KeysValues) -> None:
        """Split a row's draws over its phrases."""
        counted = [values[first:] for values, first in zip(scores, plan.firsts, strict=True)]
        whole = np.array([values.sum() for values in counted])
        if self.law == "phrase":
            chances = phrase_law(whole, self.decoding.temperature)
        else:
            chances = token_law(plan.paths, [values.tolist() for values in scores], self.decoding.temperature)
        mass = (*row.node.mass, float(np.exp(whole).sum()))
        places = dict(zip(plan.order, plan.tree.paths, strict=True))
        phrases = row.rule.phrases if isinstance(row.rule, Choice) else ()
        for phrase, count in split_count(chances, row.node.count, self._rng(row)).items():
            node = row.node._replace(text=row.node.text + phrases[phrase], count=count, mass=mass)
            self._begin(node, row.ids + plan.paths[phrase], extended(row.memory, fresh, places[phrase]))

    def _write(self, rows: Sequence[_Row]) -> None:
        """Let texts whose next piece is free go on by a token."""
        memories = self._remember(rows)
        features, fresh = self.model.branch_features(memories, [pack([row.ids[-1:]]) for row in rows])
        generated = [row.ids[self._n_prompt[row.node.position] :] for row in rows]
        scores = law_logits(self.model.logits(features[:, 0]), self.decoding, generated)
        for i, (row, drawn) in enumerate(zip(rows, self._draw(rows, scores), strict=True)):
            memory = extended(row.memory, [(keys[i], values[i]) for keys, values in fresh], [0])
            self._extend(row, drawn, memory)

    def _draw(self, rows: Sequence[_Row], scores: Tensor) -> list[dict[int, int]]:
        """Return how many of each row's draws take which token."""
        drawn: list[dict[int, int]] = [{} for _ in rows]
        for count in sorted({row.node.count for row in rows}):
            which = [i for i, row in enumerate(rows) if row.node.count == count]
            uniforms = torch.tensor(np.stack([self._rng(rows[i]).random(count) for i in which]))
            for i, tokens in zip(which, pick_many(scores[which], uniforms).cpu(), strict=True):
                distinct, counts = tokens.unique(return_counts=True)
                drawn[i] = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
        return drawn

    def _extend(self, row: _Row, drawn: dict[int, int], memory: KeysValues) -> None:
        """Let a row go on with each token that was drawn, or end its piece."""
        rule = row.rule
        if not isinstance(rule, Free):
            raise TypeError("only free pieces are written token by token")
        ended: dict[tuple[str, bool], int] = {}
        for token, count in drawn.items():
            node = row.node._replace(count=count)
            if token == self.tokenizer.eos_token_id:
                self._harvest.add(node._replace(text=node.text + self._piece(row, row.ids)), is_complete=False)
                continue
            grown = replace(row, node=node, ids=[*row.ids, token], memory=memory, n_free=row.n_free + 1)
            is_full = grown.n_free >= rule.max_new_tokens
            if not is_full and not self._filter(rule).may_hold(token):
                self._free.append(grown)
                continue
            piece = self._piece(grown, grown.ids)
            end = end_of_piece(piece, rule.delimiters)
            if end and piece[end] != END_OF_TEXT:
                key = (piece[:end], piece[:end] == self._piece(row, row.ids))
                ended[key] = ended.get(key, 0) + count
            elif end is not None or is_full:
                self._harvest.add(node._replace(text=node.text + piece[:end]), is_complete=False)
            else:
                self._free.append(grown)
        for (piece, is_before_token), count in ended.items():
            node = row.node._replace(text=row.node.text + piece, count=count)
            if is_before_token:
                self._begin(node, row.ids, row.memory)
            else:  # the delimiter came within a token
                self._begin(node, self._encode(self._prompts[node.position] + node.text), None)

    def _piece(self, row: _Row, ids: Sequence[int]) -> str:
        """Return the free piece so far."""
        head = decode(self.tokenizer, row.ids[1 : len(row.ids) - row.n_free])
        whole = decode(self.tokenizer, ids[1:])
        if not whole.startswith(head):
            raise AuditError(
                f"prompt {row.node.position}: the tokenizer decodes a text differently once more follows; "
                "its free pieces cannot be told apart"
            )
        return whole[len(head) :]

    def _filter(self, rule: Free) -> TokenFilter:
        if rule.delimiters not in self._filters:
            self._filters[rule.delimiters] = TokenFilter(self.tokenizer, {*rule.delimiters, END_OF_TEXT})
        return self._filters[rule.delimiters]

    def _plan(self, row: _Row) -> _Phrases:
        """Return the tree of phrases behind a row's tokens, changing those tokens where they do not fit."""
        if not isinstance(row.rule, Choice):
            raise TypeError("only choices have phrases")
        text = self._prompts[row.node.position] + row.node.text
        last = (pieces(text) or [""])[-1]
        last = "" if pieces(text + "x")[-1] == "x" else last
        tail = last[max(0, last.rfind(" ")) :]
        tail_ids = encode(self.tokenizer, tail)
        key = (tail, row.rule.phrases)
        if key not in self._known:
            self._known[key] = self._tree(tail, tail_ids, row.rule.phrases)
        plan = self._known[key]
        if plan is not None and row.ids[len(row.ids) - len(tail_ids) :] == tail_ids:
            return plan
        return self._respelled(row, text[: len(text) - len(last)], last, row.rule.phrases)

    def _tree(self, tail: str, tail_ids: list[int], phrases: Sequence[str]) -> _Phrases | None:
        """Return how phrases follow the end of a text; None where a token of theirs straddles it."""
        paths = [encode(self.tokenizer, tail + phrase) for phrase in phrases]
        n = len(tail_ids)
        if any(path[:n] != tail_ids or len(path) == n for path in paths):
            return None
        return _as_tree([path[n:] for path in paths], [0] * len(paths))

    def _respelled(self, row: _Row, before: str, last: str, phrases: Sequence[str]) -> _Phrases:
        """Give a row its tokens in the tokenizer's own spelling, as far as they hold nothing of any phrase."""
        encoded = [encode_with_spans(self.tokenizer, last + phrase) for phrase in phrases]
        firsts = [next(i for i, (_, end) in enumerate(spans) if end > len(last)) for _, spans in encoded]
        shared = 0
        while shared < min(firsts) and len({ids[shared] for ids, _ in encoded}) == 1:
            shared += 1
        row.ids = [*self._encode(before), *encoded[0].ids[:shared]]
        row.memory = None
        return _as_tree([ids[shared:] for ids, _ in encoded], [first - shared for first in firsts])

    def _rng(self, row: _Row) -> np.random.Generator:
        return generator(self.seed, row.node.position, np.array(row.ids, dtype=np.int64).tobytes())


def _as_tree(paths: list[list[int]], firsts: list[int]) -> _Phrases:
    order = sorted(range(len(paths)), key=lambda i: paths[i])
    return _Phrases(paths, firsts, order, pack([[0, *paths[i][:-1]] for i in order]))


def extended(memory: KeysValues | None, fresh: KeysValues, places: Sequence[int]) -> KeysValues:
    """Return a memory with the keys and values of some of the tokens that were read behind it."""
    if memory is None:
        raise TypeError("a row is read before it goes on")
    at = torch.tensor(places, device=fresh[0][0].device)
    return [
        (torch.cat([keys, new_keys[:, at]], dim=1), torch.cat([values, new_values[:, at]], dim=1))
        for (keys, values), (new_keys, new_values) in zip(memory, fresh, strict=True)
    ]
