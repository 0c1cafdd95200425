"""Beam search, its diverse kind in groups, and beam sampling, over many searches at a time.

Guarantees: a search keeps the hypotheses of highest summed log-probability under the law of `choosing` (renormalised
after temperature and filters), ends a hypothesis at a stop string, at EOS or after `max_new_tokens`, and compares
finished ones by their sum divided by their number of tokens to the power of `length_penalty`. What ends counts only if
it is among the `num_beams` best of its step; as many hypotheses go on as there are beams, while the law leaves that
many. A search ends when no running hypothesis can, at its present length, beat the worst of `num_beams` finished ones.
With groups, each group is a search of its own whose candidates lose `diversity_penalty` for every beam of an earlier
group that takes the same token at the same step; sums stay log-probabilities. When beams are sampled, twice as many
candidates as there are beams are drawn without replacement from the softmax of the sums (more, one by one, where too
few of them go on), and the best of them go on. Draws depend on (seed, prompt position, number of the search, step)
only. At most `batch_rows` hypotheses are kept at once, and no more than `batch_tokens` tokens, prompts and room for
what follows included, unless a single search needs more; that changes no result.

transformers has the first and the third of these, and plain beam search gives its results (tested). Its beam sampling
draws from torch's global generator, so that texts would depend on what else is in the batch; and groups have left the
library for code on a hub, which hushbot never runs. Hence our own.

Voids it: a model whose logits depend on the batch by more than rounding, for beams that are nearly equal.

Source: Vijayakumar et al. (2018) for groups; Kool et al. (2019) for drawing without replacement through Gumbel noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.choosing import law_logits
from hushbot.targets.guided_law import Lot
from hushbot.targets.sampler import TokenFilter, cut_at_stop, decode_after
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import leaf
from hushbot.tokens import decode
from hushbot.types import Decoding


class _Beam(NamedTuple):
    """A hypothesis that goes on."""

    tokens: tuple[int, ...]
    score: float
    """Sum of its log-probabilities."""
    slots: list[int]
    """Where the prompt and all its tokens but the last are stored; none before the first step."""


class _Candidate(NamedTuple):
    """A hypothesis by one token longer."""

    beam: int
    token: int
    score: float


@dataclass(slots=True, eq=False)
class _Search:
    """One search: its running hypotheses by group, and what is finished."""

    position: int
    number: int
    ids: list[int]
    """Of the prompt, the start token first."""
    text: str
    """The prompt as its tokens spell it."""
    groups: list[list[_Beam]]
    finished: list[list[tuple[float, str]]] = field(default_factory=list)
    """Per group, (normalised score, text), best first."""

    @property
    def beams(self) -> list[_Beam]:
        """Return all running hypotheses, group after group."""
        return [beam for group in self.groups for beam in group]


@dataclass(slots=True, eq=False)
class BeamSearcher:
    """Searches continuations of prompts in one model."""

    model: CausalLM
    tokenizer: Any
    decoding: Decoding
    max_new_tokens: int
    seed: int
    batch_rows: int
    """Most hypotheses kept at once."""
    batch_tokens: int
    """Most tokens that all of them may come to."""
    _stops: TokenFilter = field(init=False)

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={self.max_new_tokens} must be at least 1")
        if "" in self.decoding.stop:
            raise ConfigError(f"stop={self.decoding.stop!r} holds an empty string; remove it from decoding.stop")
        self._stops = TokenFilter(self.tokenizer, {stop[-1] for stop in self.decoding.stop})

    @property
    def _group_size(self) -> int:
        return self.decoding.num_beams // self.decoding.beam_groups

    def run(self, prompts: Sequence[Sequence[int]], n: int) -> list[list[str]]:
        """Return n continuations per prompt: draw d is beam d % num_beams of search d // num_beams.

        Raises:
            AuditError: Logits are not finite.
        """
        n_beams, n_groups = self.decoding.num_beams, self.decoding.beam_groups
        n_searches = 1 if self.decoding.is_deterministic else -(-n // n_beams)
        distinct: dict[tuple[int, ...], list[int]] = {}
        for position, ids in enumerate(prompts):
            distinct.setdefault(tuple(ids), []).append(position)
        # Without draws, prompts that are alike need one search.
        positions = [same[:1] if self.decoding.is_deterministic else same for same in distinct.values()]
        searches = []
        for same in positions:
            ids = list(prompts[same[0]])
            text = decode(self.tokenizer, ids[1:])
            searches += [
                _Search(position, number, ids, text, [[_Beam((), 0.0, [])] for _ in range(n_groups)])
                for position in same
                for number in range(n_searches)
            ]
        found: dict[tuple[int, int], list[str]] = {}
        for batch in self._batches(searches):
            self._search(batch)
            found |= {(search.position, search.number): self._result(search) for search in batch}
            for search in batch:  # what they remember is large
                search.groups = []
        owners = {p: same[0] if self.decoding.is_deterministic else p for same in distinct.values() for p in same}
        return [
            [found[owners[position], draw // n_beams % n_searches][draw % n_beams] for draw in range(n)]
            for position in range(len(prompts))
        ]

    def _batches(self, searches: Sequence[_Search]) -> Iterator[Sequence[_Search]]:
        """Yield the searches that are made together, those from long prompts first."""
        order = sorted(searches, key=lambda search: -len(search.ids))
        at = 0
        while at < len(order):
            # All are padded to the longest, which is the first of them.
            rows = self.batch_tokens // (len(order[at].ids) + self.max_new_tokens)
            n = max(1, min(self.batch_rows, rows) // self.decoding.num_beams)
            yield order[at : at + n]
            at += n

    def _search(self, searches: Sequence[_Search]) -> None:
        for search in searches:
            search.finished = [[] for _ in search.groups]
        store = TokenStore()
        for search, read in zip(searches, self.model.prefill([search.ids for search in searches]), strict=True):
            slots = store.add_text(read.memory, len(search.ids))
            self._grow(search, read.logits[None].expand(len(search.groups), -1), [slots] * len(search.groups), 0)
        for step in range(1, self.max_new_tokens):
            going = [search for search in searches if search.beams]
            if not going:
                return
            beams = [beam for search in going for beam in search.beams]
            store.tidy(beam.slots for beam in beams)
            texts = StoredTexts(store, [beam.slots for beam in beams])
            features, slots = self.model.branch_features(texts, [leaf(beam.tokens[-1]) for beam in beams])
            logits = self.model.logits(features)
            grown = [[*beam.slots, slot] for beam, slot in zip(beams, slots, strict=True)]
            at = 0
            for search in going:
                n = len(search.beams)
                self._grow(search, logits[at : at + n], grown[at : at + n], step)
                at += n

    def _grow(self, search: _Search, logits: Tensor, slots: Sequence[list[int]], step: int) -> None:
        """Let the hypotheses of a search become longer by a token."""
        generated = [beam.tokens for beam in search.beams]
        scores = torch.log_softmax(law_logits(logits.float(), self.decoding, generated).double(), dim=-1)
        taken = torch.zeros(scores.shape[1], dtype=torch.float64, device=scores.device)
        at = 0
        for i, beams in enumerate(search.groups):
            rows = scores[at : at + len(beams)]
            mine = slots[at : at + len(beams)]
            at += len(beams)
            if not beams:
                continue
            before = torch.tensor([beam.score for beam in beams], dtype=torch.float64, device=rows.device)
            going = self._next(search, i, rows + before[:, None], taken, step)
            search.groups[i] = [_Beam((*beams[c.beam].tokens, c.token), c.score, mine[c.beam]) for c in going]
            for candidate in going:
                taken[candidate.token] += 1

    def _next(self, search: _Search, group: int, sums: Tensor, taken: Tensor, step: int) -> list[_Candidate]:
        """Take in what of a group has ended, and return what goes on; nothing once the group is at its end."""
        beams, is_last = search.groups[group], step + 1 >= self.max_new_tokens
        keys = (sums - self.decoding.diversity_penalty * taken).flatten()
        order = keys
        if self.decoding.samples_beams:
            rng = Lot(self.seed, search.position, f"{search.number}/{group}/{step}".encode()).generator()
            noise = torch.from_numpy(rng.gumbel(size=len(keys))).to(keys.device)
            order = torch.where(torch.isfinite(keys), keys + noise, keys)
        n = 2 * self._group_size
        while True:
            candidates = self._candidates(sums, keys, order, n)
            texts = [self._ended(search, (*beams[c.beam].tokens, c.token)) for c in candidates]
            # Where more than half of them end, what comes next takes their places.
            if is_last or texts.count(None) >= self._group_size or len(candidates) < n:
                return self._sort_out(search, group, candidates, texts)
            n *= 2

    def _candidates(self, sums: Tensor, keys: Tensor, order: Tensor, n: int) -> list[_Candidate]:
        """Return the first n in order, if there are so many; the best come first of those that are drawn at once."""
        values, places = order.topk(min(n, len(order)))
        kept = places[values > -math.inf]
        if not len(kept):
            raise AuditError("no token can follow a hypothesis: the law leaves none; loosen the filters")
        if self.decoding.samples_beams:
            drawn, rest = kept[: 2 * self._group_size], kept[2 * self._group_size :]
            kept = torch.cat([drawn[keys[drawn].argsort(descending=True, stable=True)], rest])
        return [
            _Candidate(place // sums.shape[1], place % sums.shape[1], score)
            for place, score in zip(kept.tolist(), sums.flatten()[kept].tolist(), strict=True)
        ]

    def _sort_out(
        self, search: _Search, group: int, candidates: Sequence[_Candidate], texts: Sequence[str | None]
    ) -> list[_Candidate]:
        """Keep what ended among the best candidates; return those that go on, unless none of them can still win."""
        beams, finished = search.groups[group], search.finished[group]
        n_tokens = len(beams[0].tokens) + 1
        length = n_tokens**self.decoding.length_penalty
        is_last = n_tokens >= self.max_new_tokens
        going: list[_Candidate] = []
        for rank, (candidate, text) in enumerate(zip(candidates, texts, strict=True)):
            if text is None and not is_last:
                going.append(candidate)
            elif rank < self._group_size:  # what ends further down was not among the best
                tokens = (*beams[candidate.beam].tokens, candidate.token)
                finished.append((candidate.score / length, self._text(search, tokens) if text is None else text))
        del going[self._group_size :]
        finished.sort(key=lambda item: -item[0])
        del finished[self._group_size :]
        # Where draws or penalties decide the order, the first one need not be the best.
        best = max((candidate.score for candidate in going), default=-math.inf)
        is_done = len(finished) == self._group_size and finished[-1][0] >= best / length
        return [] if is_done else going

    def _ended(self, search: _Search, tokens: Sequence[int]) -> str | None:
        """Return the text of a hypothesis that has ended, None of one that goes on."""
        if tokens[-1] == self.tokenizer.eos_token_id:
            return self._text(search, tokens[:-1])
        if not self._stops.may_hold(tokens[-1]):
            return None
        text = self._text(search, tokens)
        return cut_at_stop(text, self.decoding.stop)

    def _text(self, search: _Search, tokens: Sequence[int]) -> str:
        return decode_after(self.tokenizer, search.text, [*search.ids[1:], *tokens], where=f"prompt {search.position}")

    def _result(self, search: _Search) -> list[str]:
        """Return the texts of a search, best first; with groups, the best of each group first.

        A search over so few tokens that it has fewer hypotheses than beams repeats its last one.
        """
        ranked = sorted(
            ((score, text) for group in search.finished for score, text in group), key=lambda item: -item[0]
        )
        texts = [text for _, text in ranked]
        return [*texts, *[texts[-1]] * (self.decoding.num_beams - len(texts))]
