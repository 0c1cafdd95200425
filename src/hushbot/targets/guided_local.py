"""Guided sampling from a model in this process: each distinct text is read once, all phrases of all texts in one pass.

Guarantees: the law of `guided`. The phrases that may follow a text are read as one tree behind the keys and values of
that text, many texts at a time; the keys and values of the chosen phrases are kept, so nothing is read twice but the
last token of a text. Draws that share a text are counted, not repeated, inside free pieces too. The texts that are
waiting go last in, first out, and what is remembered of them is bounded: the oldest are forgotten and read again.
Phrase tokens are those that the tokenizer gives text and phrase together; where one of them straddles the end of the
text, or the text was not sampled in the tokenizer's own spelling, the text is read anew in that spelling
(`GuidedSampler.n_respelled` counts how often). Random numbers belong to the way a text was drawn, so no two
lots of draws share any, not even those that reach the same text in different spellings.

Voids it: a model that cannot read trees behind a memory (`CausalLM.supports_branches` measures this).

Source: prefix sharing as in speculative decoding with token trees (Miao et al., ASPLOS 2024); the count splitting of
independent draws is the chain rule of the multinomial distribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hushbot.errors import AuditError
from hushbot.intervals import FloatArray
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
from hushbot.targets.phrase_trees import Phrases, PhraseTrees
from hushbot.targets.row_cache import KeysValues
from hushbot.targets.sampler import TokenFilter, decode, decode_after
from hushbot.targets.scorer import log_probabilities
from hushbot.targets.token_tree import pack
from hushbot.tokens import encode, start_token
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
    key: bytes = b""
    """Names what was drawn so far; random numbers hang on it."""
    n_free: int = 0
    """How many of the tokens belong to the free piece in the making, which `node.text` does not hold yet."""


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
    """How many texts were read anew because their tokens were not the tokenizer's own."""
    _prompts: Sequence[str] = ()
    _choices: list[_Row] = field(default_factory=list)
    _free: list[_Row] = field(default_factory=list)
    _harvest: Harvest = field(default_factory=lambda: Harvest(0))
    _filters: dict[str, TokenFilter] = field(default_factory=dict)
    _trees: PhraseTrees = field(init=False)

    def __post_init__(self) -> None:
        self._trees = PhraseTrees(self.tokenizer)

    def run(self, prompts: Sequence[str], n: int) -> list[list[Guided]]:
        """Return the distinct texts of n draws per prompt.

        Raises:
            AuditError: A text exceeds the model's context, or a score is not finite.
        """
        self._prompts, self._harvest = prompts, Harvest(len(prompts))
        for position in reversed(range(len(prompts))):
            self._begin(Node(position, "", n), self._encode(prompts[position]), None, b"")
        while self._choices or self._free:
            if len(self._choices) >= len(self._free):
                self._choose(self._take(self._choices))
            else:
                self._write(self._take(self._free))
            self._forget()
        return self._harvest.texts()

    def _encode(self, text: str) -> list[int]:
        return [start_token(self.tokenizer), *encode(self.tokenizer, text)]

    def _begin(self, node: Node, ids: list[int], memory: KeysValues | None, key: bytes) -> None:
        """Let a text wait for its next piece, or take it in if it is at its end."""
        rule = self.grammar.next(self._prompts[node.position] + node.text)
        if rule is None:
            self._harvest.add(node, is_complete=True)
        elif isinstance(rule, Choice):
            self._choices.append(_Row(node, rule, ids, memory, key))
        else:
            # The last new token is never read back.
            self._check_length(node, len(ids) + max(0, rule.max_new_tokens - 1))
            self._free.append(_Row(node, rule, ids, memory, key))

    def _check_length(self, node: Node, longest: int) -> None:
        limit = self.model.context_length
        if limit is not None and longest > limit:
            raise AuditError(
                f"prompt {node.position}: {longest} tokens of a guided text exceed the model's context of {limit}; "
                "allow shorter texts"
            )

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
        for batch in self._batches(rows, plans):
            self._choose_batch([rows[i] for i in batch], [plans[i] for i in batch])

    def _plan(self, row: _Row) -> Phrases:
        """Return the tree of phrases behind a row's tokens, changing those tokens where they do not fit."""
        if not isinstance(row.rule, Choice):
            raise TypeError("only choices have phrases")
        ids, plan = self._trees.after(self._prompts[row.node.position] + row.node.text, row.ids, row.rule.phrases)
        if ids is not row.ids:
            row.ids, row.memory = ids, None
            self.n_respelled += 1
        self._check_length(row.node, len(ids) + max(map(len, plan.paths)))
        return plan

    def _batches(self, rows: Sequence[_Row], plans: Sequence[Phrases]) -> Iterator[list[int]]:
        """Yield which rows to read together, so that texts and trees, padding included, fit a batch."""
        batch: list[int] = []
        text, tree = 0, 0
        for i, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            text, tree = max(text, len(row.ids)), max(tree, len(plan.tree.ids))
            if batch and (text + tree) * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch, text, tree = [], len(row.ids), len(plan.tree.ids)
            batch.append(i)
        yield batch

    def _choose_batch(self, rows: Sequence[_Row], plans: Sequence[Phrases]) -> None:
        last = [row.ids[-1] for row in rows]
        scores, fresh = phrase_scores(self.model, self._remember(rows), last, plans)
        for i, (row, plan) in enumerate(zip(rows, plans, strict=True)):
            self._go_on(row, plan, scores[i], [(keys[i], values[i]) for keys, values in fresh])

    def _go_on(self, row: _Row, plan: Phrases, scores: Sequence[FloatArray], fresh: KeysValues) -> None:
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
            node = replace(row.node, text=row.node.text + phrases[phrase], count=count, mass=mass)
            memory = extended(row.memory, fresh, places[phrase])
            self._begin(node, row.ids + plan.paths[phrase], memory, _key(row, f"phrase {phrase}"))

    def _write(self, rows: Sequence[_Row]) -> None:
        """Let texts whose next piece is free go on by a token."""
        memories = self._remember(rows)
        features, fresh = self.model.branch_features(memories, [pack([row.ids[-1:]]) for row in rows])
        generated = [row.ids[len(row.ids) - row.n_free :] for row in rows]
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
            node = replace(row.node, count=count)
            if token == self.tokenizer.eos_token_id:
                self._harvest.add(replace(node, text=node.text + self._piece(row, row.ids)), is_complete=False)
                continue
            ids, key = [*row.ids, token], _key(row, f"token {token}")
            grown = replace(row, node=node, ids=ids, memory=memory, key=key, n_free=row.n_free + 1)
            is_full = grown.n_free >= rule.max_new_tokens
            if not is_full and not self._filter(rule).may_hold(token):
                self._free.append(grown)
                continue
            piece = self._piece(grown, grown.ids)
            end = end_of_piece(piece, rule.delimiters)
            if end and piece[end] != END_OF_TEXT:
                cut = (piece[:end], piece[:end] == self._piece(row, row.ids))
                ended[cut] = ended.get(cut, 0) + count
            elif end is not None or is_full:
                self._harvest.add(replace(node, text=node.text + piece[:end]), is_complete=False)
            else:
                self._free.append(grown)
        for (piece, is_before_token), count in ended.items():
            node = replace(row.node, text=row.node.text + piece, count=count)
            self._end_piece(row, node, is_before_token=is_before_token)

    def _end_piece(self, row: _Row, node: Node, *, is_before_token: bool) -> None:
        """Let a text go on behind its finished free piece, in the tokenizer's own spelling.

        Args:
            row: What wrote the piece; it holds neither the delimiter nor the token that brought it.
            node: The text up to the delimiter.
            is_before_token: Whether the row's tokens are the whole of that text.
        """
        text = self._prompts[node.position] + node.text
        ids = self._trees.respelled(text, row.ids) if is_before_token else self._encode(text)
        is_kept = ids is row.ids
        self.n_respelled += not is_kept
        key = _key(row, f"{'piece' if is_before_token else 'cut piece'} {node.text}")
        self._begin(node, ids, row.memory if is_kept else None, key)

    def _piece(self, row: _Row, ids: Sequence[int]) -> str:
        """Return the free piece so far."""
        head = decode(self.tokenizer, row.ids[1 : len(row.ids) - row.n_free])
        return decode_after(self.tokenizer, head, ids[1:], where=f"prompt {row.node.position}")

    def _filter(self, rule: Free) -> TokenFilter:
        if rule.delimiters not in self._filters:
            self._filters[rule.delimiters] = TokenFilter(self.tokenizer, {*rule.delimiters, END_OF_TEXT})
        return self._filters[rule.delimiters]

    def _rng(self, row: _Row) -> np.random.Generator:
        return generator(self.seed, row.node.position, row.key)


def _key(row: _Row, drawn: str) -> bytes:
    """Return the name of what some of a row's draws became."""
    return hashlib.blake2b(row.key + drawn.encode(errors="surrogatepass"), digest_size=16).digest()


def phrase_scores(
    model: CausalLM, memories: Sequence[KeysValues], last: Sequence[int], plans: Sequence[Phrases]
) -> tuple[list[list[FloatArray]], KeysValues]:
    """Score all phrases behind all texts in one pass.

    Args:
        model: What to score with.
        memories: Keys and values of each text but for its last token.
        last: That token.
        plans: The phrases behind each text.

    Returns:
        Per text and phrase the log-probabilities of its path's tokens, and the keys and values of all trees.
    """
    trees = [plan.tree._replace(ids=[token, *plan.tree.ids[1:]]) for token, plan in zip(last, plans, strict=True)]
    features, fresh = model.branch_features(memories, trees)
    width = features.shape[1]
    places: list[int] = []
    tokens: list[int] = []
    for at, (plan, tree) in enumerate(zip(plans, trees, strict=True)):
        for i, path in zip(plan.order, tree.paths, strict=True):
            places += [at * width + place for place in path]
            tokens += plan.paths[i]
    values = log_probabilities(model, features.flatten(0, 1), places, tokens).double().cpu().numpy()
    scores: list[list[FloatArray]] = []
    at = 0
    for plan in plans:
        of_text: list[FloatArray] = [np.empty(0)] * len(plan.paths)
        for i in plan.order:
            of_text[i] = values[at : at + len(plan.paths[i])]
            at += len(plan.paths[i])
        scores.append(of_text)
    return scores, fresh


def extended(memory: KeysValues | None, fresh: KeysValues, places: Sequence[int]) -> KeysValues:
    """Return a memory with the keys and values of some of the tokens that were read behind it."""
    if memory is None:
        raise TypeError("a row is read before it goes on")
    at = torch.tensor(places, device=fresh[0][0].device)
    return [
        (torch.cat([keys, new_keys[:, at]], dim=1), torch.cat([values, new_values[:, at]], dim=1))
        for (keys, values), (new_keys, new_values) in zip(memory, fresh, strict=True)
    ]
