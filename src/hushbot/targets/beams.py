"""Beam search, its diverse kind in groups, and beam sampling, over many searches at a time.

Guarantees: a search keeps the hypotheses of highest summed log-probability under the law of `choosing` (renormalised
after temperature and filters), ends a hypothesis at a stop string, at EOS or after `max_new_tokens`, and compares
finished ones by their sum divided by their number of tokens to the power of `length_penalty`. It ends when no running
hypothesis can, at its present length, beat the worst of `num_beams` finished ones. With groups, each group is a search
of its own whose candidates lose `diversity_penalty` for every beam of an earlier group that takes the same token at the
same step; sums stay log-probabilities. When beams are sampled, twice as many candidates as there are beams are drawn
without replacement from the softmax of the sums, and the best of them go on. Draws depend on (seed, prompt position,
number of the search, step) only.

transformers has the first and the third of these, and plain beam search gives its results (tested). Its beam sampling
draws from torch's global generator, so that texts would depend on what else is in the batch; and groups have left the
library for code on a hub, which hushbot never runs. Hence our own.

Source: Vijayakumar et al. (2018) for groups; Kool et al. (2019) for drawing without replacement through Gumbel noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.choosing import law_logits
from hushbot.targets.guided import generator
from hushbot.targets.guided_local import extended
from hushbot.targets.row_cache import KeysValues
from hushbot.targets.sampler import TokenFilter, cut_at_stop, decode, decode_after
from hushbot.targets.token_tree import pack
from hushbot.types import Decoding


class _Beam(NamedTuple):
    """A hypothesis that goes on."""

    tokens: tuple[int, ...]
    score: float
    """Sum of its log-probabilities."""
    memory: KeysValues | None
    """Of the prompt and all its tokens but the last; None before the first step."""


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
                _Search(position, number, ids, text, [[_Beam((), 0.0, None)] for _ in range(n_groups)])
                for position in same
                for number in range(n_searches)
            ]
        at_once = max(1, self.batch_rows // n_beams)
        found: dict[tuple[int, int], list[str]] = {}
        for start in range(0, len(searches), at_once):
            batch = searches[start : start + at_once]
            self._search(batch)
            found |= {(search.position, search.number): self._result(search) for search in batch}
            for search in batch:  # what they remember is large
                search.groups = []
        owners = {p: same[0] if self.decoding.is_deterministic else p for same in distinct.values() for p in same}
        return [
            [found[owners[position], draw // n_beams % n_searches][draw % n_beams] for draw in range(n)]
            for position in range(len(prompts))
        ]

    def _search(self, searches: Sequence[_Search]) -> None:
        for search in searches:
            search.finished = [[] for _ in search.groups]
        for search, read in zip(searches, self.model.prefill([search.ids for search in searches]), strict=True):
            self._grow(search, read.logits[None].expand(len(search.groups), -1), [read.memory] * len(search.groups), 0)
        for step in range(1, self.max_new_tokens):
            going = [search for search in searches if search.beams]
            if not going:
                return
            beams = [beam for search in going for beam in search.beams]
            memories = [beam.memory for beam in beams if beam.memory is not None]
            features, fresh = self.model.branch_features(memories, [pack([[beam.tokens[-1]]]) for beam in beams])
            logits = self.model.logits(features[:, 0])
            grown = [
                extended(beam.memory, [(keys[i], values[i]) for keys, values in fresh], [0])
                for i, beam in enumerate(beams)
            ]
            at = 0
            for search in going:
                n = len(search.beams)
                self._grow(search, logits[at : at + n], grown[at : at + n], step)
                at += n

    def _grow(self, search: _Search, logits: Tensor, memories: Sequence[KeysValues], step: int) -> None:
        """Let the hypotheses of a search become longer by a token."""
        generated = [beam.tokens for beam in search.beams]
        scores = torch.log_softmax(law_logits(logits.float(), self.decoding, generated).double(), dim=-1)
        taken = torch.zeros(scores.shape[1], dtype=torch.float64, device=scores.device)
        at = 0
        for i, beams in enumerate(search.groups):
            rows = scores[at : at + len(beams)]
            mine = memories[at : at + len(beams)]
            at += len(beams)
            if not beams:
                continue
            candidates = self._candidates(search, i, rows, taken, step)
            going = self._sort_out(search, i, candidates, step)
            search.groups[i] = [_Beam((*beams[c.beam].tokens, c.token), c.score, mine[c.beam]) for c in going]
            for candidate in going:
                taken[candidate.token] += 1

    def _candidates(self, search: _Search, group: int, rows: Tensor, taken: Tensor, step: int) -> list[_Candidate]:
        """Return the best candidates of a group, or those drawn, best first."""
        beams = search.groups[group]
        sums = rows + torch.tensor([beam.score for beam in beams], dtype=torch.float64, device=rows.device)[:, None]
        keys = sums - self.decoding.diversity_penalty * taken
        if self.decoding.samples_beams:
            rng = generator(self.seed, search.position, f"{search.number}/{group}/{step}".encode())
            noise = torch.from_numpy(rng.gumbel(size=tuple(keys.shape))).to(keys.device)
            keys = torch.where(torch.isfinite(keys), keys + noise, keys)
        n = min(2 * self._group_size, keys.numel())
        values, places = keys.flatten().topk(n)
        found = [
            _Candidate(place // rows.shape[1], place % rows.shape[1], float(sums.flatten()[place]))
            for value, place in zip(values.tolist(), places.tolist(), strict=True)
            if value > -np.inf
        ]
        if not found:
            raise AuditError("no token can follow a hypothesis: the law leaves none; loosen the filters")
        if self.decoding.samples_beams:
            found.sort(key=lambda candidate: -candidate.score)
        return found

    def _sort_out(self, search: _Search, group: int, candidates: Sequence[_Candidate], step: int) -> list[_Candidate]:
        """Take in what has ended, and return what goes on; nothing once the group is at its end."""
        beams, finished = search.groups[group], search.finished[group]
        going: list[_Candidate] = []
        is_last = step + 1 >= self.max_new_tokens
        for rank, candidate in enumerate(candidates):
            tokens = (*beams[candidate.beam].tokens, candidate.token)
            text = self._ended(search, tokens)
            if text is None and not is_last:
                if len(going) < self._group_size:
                    going.append(candidate)
            elif rank < self._group_size:  # what ends further down was not among the best
                text = self._text(search, tokens) if text is None else text
                finished.append((candidate.score / len(tokens) ** self.decoding.length_penalty, text))
        finished.sort(key=lambda item: -item[0])
        del finished[self._group_size :]
        if is_last or not going or self._is_done(finished, going[0].score, step + 1):
            return []
        return going

    def _is_done(self, finished: Sequence[tuple[float, str]], best: float, n_tokens: int) -> bool:
        """Return whether the best running hypothesis, at its present length, is no better than all finished ones."""
        return len(finished) == self._group_size and finished[-1][0] >= best / n_tokens**self.decoding.length_penalty

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
