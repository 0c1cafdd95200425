"""Continue prompts: continuous batching over a cache whose rows are refilled one by one.

Guarantees: a prompt is read once, however many draws it has, and identical prompts once; a finished row is
replaced at once instead of waiting for its batch. The text of a prompt followed by its continuation is the
decoding of all their tokens together, so neither a character cut over two tokens nor a leading blank is
lost. Draws depend on (seed, prompt position, draw number) only (see `choosing`). Nothing is read from a
model's generation config. A draw ends before the first stop string, at the tokenizer's EOS, after
`max_new_tokens`, or where its caller has enough of it (`Until`), which changes nothing of what came before.

Voids it: a tokenizer whose decoding of a prompt changes with what follows it (such a prompt is an
`AuditError`). A character whose last bytes were not generated is shown as U+FFFD.

Models that cannot be decoded row by row (`CausalLM.supports_rows`) are decoded in left-padded batches: same
draws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.causal_lm import CausalLM, Prefilled
from hushbot.targets.choosing import choose_tokens, draw_uniforms
from hushbot.targets.row_cache import RowCache, SharedRowCache
from hushbot.targets.row_plan import PromptSize, RowPlan, plan_rows
from hushbot.tokens import decode, encode
from hushbot.types import Decoding

_PREFILL_TOKENS = 2048  # one batch of prompts; bounds the memory of prompts that wait for a row


class Until(NamedTuple):
    """Who needs no more of a draw than this ends it early; what it has said so far is what it would have said."""

    characters: str
    """A draw is looked at after a token that holds one of them."""
    is_enough: Callable[[int, str], bool]
    """Told the prompt's position and the text so far, says whether the draw may end there."""
    limits: Sequence[int] | None = None
    """Most new tokens after each prompt, beside `max_new_tokens`, which holds for all."""


@runtime_checkable
class SamplesUntil(Protocol):
    """A target that can end draws early."""

    def sample_until(
        self,
        prompts: Sequence[str],
        until: Until,
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        """Return what `Target.sample` returns, each draw ended where `until` has enough of it."""
        ...


@dataclass(slots=True, eq=False)
class _Prompt:
    """One distinct prompt and everything known about it."""

    ids: list[int]
    """Start token included."""
    text: str
    """Its tokens decoded."""
    positions: list[int] = field(default_factory=list)
    """Where it stands in the caller's list."""
    read: Prefilled | None = None
    """What the model remembers of it, from its first draw to its last."""


@dataclass(slots=True, eq=False)
class _Draw:
    """One continuation in the making."""

    prompt: _Prompt
    position: int
    number: int
    uniforms: list[float]
    tokens: list[int] = field(default_factory=list)

    @property
    def uniform(self) -> float:
        """Return the random number of the next step."""
        return self.uniforms[len(self.tokens)] if self.uniforms else 0.0


class Sampler:
    """Draws continuations from one model under one decoding.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        decoding: The law of the next token, and the stop strings.
        max_new_tokens: The longest continuation, at least 1.
        seed: Of the random numbers.
        until: What ends a draw early; None lets each come to its end.

    Raises:
        ConfigError: A stop string is empty or `max_new_tokens` is below 1.
    """

    def __init__(
        self,
        model: CausalLM,
        tokenizer: Any,
        *,
        decoding: Decoding,
        max_new_tokens: int,
        seed: int,
        until: Until | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens={max_new_tokens} must be at least 1")
        if "" in decoding.stop:
            raise ConfigError(f"stop={decoding.stop!r} holds an empty string; remove it from decoding.stop")
        self._model = model
        self._tokenizer = tokenizer
        self._end_token = tokenizer.eos_token_id
        self._decoding = decoding
        self._max_new_tokens = max_new_tokens
        self._seed = seed
        self._until = until
        self._stops = TokenFilter(tokenizer, {stop[-1] for stop in decoding.stop})
        self._looks = TokenFilter(tokenizer, set(until.characters) if until else set())

    def run(self, prompts: Sequence[Sequence[int]], *, n: int, batch_rows: int, batch_tokens: int) -> list[list[str]]:
        """Return n continuations per prompt.

        Args:
            prompts: Token ids, each beginning with the start token.
            n: Draws per prompt; greedy decoding makes one and repeats it.
            batch_rows: Most rows decoded at once.
            batch_tokens: Most tokens that all rows of the cache may hold.
        """
        n_draws = 1 if self._decoding.is_deterministic else n
        texts = [[""] * n_draws for _ in prompts]
        distinct = self._distinct(prompts)
        plans = plan_rows(
            [PromptSize(len(prompt.ids), n_draws * len(prompt.positions)) for prompt in distinct],
            max_new_tokens=self._max_new_tokens,
            batch_rows=batch_rows,
            batch_tokens=batch_tokens,
            can_share=self._model.supports_sharing,
        )
        with self._model.attending_by_rows():
            for plan in plans:
                for draw, text in self._continue([distinct[number] for number in plan.members], n_draws, plan):
                    texts[draw.position][draw.number] = text
        return texts if n_draws == n else [row * n for row in texts]

    def _distinct(self, prompts: Sequence[Sequence[int]]) -> list[_Prompt]:
        """Return the distinct prompts."""
        distinct: dict[tuple[int, ...], _Prompt] = {}
        for position, ids in enumerate(prompts):
            prompt = distinct.setdefault(tuple(ids), _Prompt(list(ids), ""))
            prompt.positions.append(position)
        for prompt in distinct.values():
            prompt.text = self._decode(prompt.ids[1:])
        return list(distinct.values())

    def _draws(self, prompts: Sequence[_Prompt], n: int) -> Iterator[_Draw]:
        for prompt in prompts:
            for position in prompt.positions:
                for number in range(n):
                    yield _Draw(prompt, position, number, self._uniforms(position, number))

    def _uniforms(self, position: int, number: int) -> list[float]:
        if self._decoding.is_deterministic:
            return []
        return draw_uniforms(self._seed, position, number, self._max_new_tokens)

    def _continue(self, prompts: Sequence[_Prompt], n: int, plan: RowPlan) -> Iterator[tuple[_Draw, str]]:
        if self._model.supports_rows(len(prompts[0].ids) + self._max_new_tokens):
            return self._decode_rows(prompts, n, plan)
        return self._decode_padded(prompts, n, plan.n_rows)

    def _decode_rows(self, prompts: Sequence[_Prompt], n: int, plan: RowPlan) -> Iterator[tuple[_Draw, str]]:
        """Decode with one cache row per draw in progress."""
        kind = SharedRowCache if plan.is_shared else RowCache
        waiting = deque(self._draws(prompts, n))
        unread = deque(prompts)
        rows: list[_Draw] = []
        cache: RowCache | None = None
        while True:
            while admitted := _admit(waiting, rows, plan):
                logits = torch.stack([self._read(draw.prompt, unread).logits for draw in admitted])
                for draw, text in self._extend(admitted, logits):
                    if text is not None:
                        yield draw, text
                        continue
                    memory = self._read(draw.prompt, unread).memory
                    cache = cache or kind(memory, n_rows=plan.n_rows, capacity=plan.capacity)
                    cache.append(memory)
                    rows.append(draw)
                self._forget(admitted, waiting)
            if cache is None or not rows:
                return
            logits = self._model.step([draw.tokens[-1] for draw in rows], cache)
            # Backwards, because the last row takes the place of a removed one.
            for row, (draw, text) in reversed(list(enumerate(self._extend(rows, logits)))):
                if text is not None:
                    cache.remove(row)
                    rows[row] = rows[-1]
                    rows.pop()
                    yield draw, text

    def _read(self, prompt: _Prompt, unread: deque[_Prompt]) -> Prefilled:
        """Return what the model remembers of a prompt, reading it and its successors if need be."""
        if prompt.read is None:
            group = [unread.popleft()]
            while unread and len(group[0].ids) * (len(group) + 1) <= _PREFILL_TOKENS:
                group.append(unread.popleft())
            for member, read in zip(group, self._model.prefill([p.ids for p in group]), strict=True):
                member.read = read
        if prompt.read is None:
            raise RuntimeError("prompts must be read in the order in which they are drawn from")
        return prompt.read

    @staticmethod
    def _forget(admitted: Sequence[_Draw], waiting: deque[_Draw]) -> None:
        """Free the memory of prompts whose last draw has its row."""
        next_prompt = waiting[0].prompt if waiting else None
        for draw in admitted:
            if draw.prompt is not next_prompt:
                draw.prompt.read = None

    def _decode_padded(self, prompts: Sequence[_Prompt], n: int, n_rows: int) -> Iterator[tuple[_Draw, str]]:
        """Decode in fixed batches, padded on the left, with the model's own cache."""
        draws = list(self._draws(prompts, n))
        for start in range(0, len(draws), n_rows):
            batch = draws[start : start + n_rows]
            ids, mask = self._pad_left(batch)
            cache = self._model.new_cache()
            going = list(range(len(batch)))
            while True:
                logits = self._model.step_padded(ids, mask, cache)
                steps = self._extend([batch[row] for row in going], logits[going])
                yield from ((draw, text) for draw, text in steps if text is not None)
                going = [row for row, (_, text) in zip(going, steps, strict=True) if text is None]
                if not going:
                    break
                # Finished rows read their last token again and again; nobody looks at what follows.
                ids = torch.tensor([draw.tokens[-1:] or [0] for draw in batch], device=ids.device)
                mask = torch.cat([mask, mask.new_ones(len(batch), 1)], dim=1)

    def _pad_left(self, batch: Sequence[_Draw]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(len(draw.prompt.ids) for draw in batch)
        pads = [longest - len(draw.prompt.ids) for draw in batch]
        rows = [[0] * pad + draw.prompt.ids for pad, draw in zip(pads, batch, strict=True)]
        first = torch.tensor(pads, device=self._model.device)[:, None]
        mask = torch.arange(longest, device=self._model.device) >= first
        return torch.tensor(rows, device=self._model.device), mask.long()

    def _extend(self, draws: Sequence[_Draw], logits: torch.Tensor) -> list[tuple[_Draw, str | None]]:
        """Choose one more token per draw; return each draw with its text if that has ended it."""
        chosen = choose_tokens(
            logits, [draw.uniform for draw in draws], self._decoding, [draw.tokens for draw in draws]
        )
        return [(draw, self._ended(draw, token)) for draw, token in zip(draws, chosen, strict=True)]

    def _ended(self, draw: _Draw, token: int) -> str | None:
        if token == self._end_token:
            return self._text(draw)
        draw.tokens.append(token)
        is_full = len(draw.tokens) >= self._most(draw)
        is_watched = self._looks.may_hold(token)
        if not is_full and not is_watched and not self._stops.may_hold(token):
            return None
        text = self._text(draw)
        cut = cut_at_stop(text, self._decoding.stop)
        if cut is not None:
            return cut
        is_enough = is_watched and self._until is not None and self._until.is_enough(draw.position, text)
        return text if is_full or is_enough else None

    def _most(self, draw: _Draw) -> int:
        limits = self._until.limits if self._until else None
        return self._max_new_tokens if limits is None else min(limits[draw.position], self._max_new_tokens)

    def _text(self, draw: _Draw) -> str:
        return decode_after(
            self._tokenizer, draw.prompt.text, draw.prompt.ids[1:] + draw.tokens, where=f"prompt {draw.position}"
        )

    def _decode(self, ids: Sequence[int]) -> str:
        return decode(self._tokenizer, ids)


def _admit(waiting: deque[_Draw], rows: Sequence[_Draw], plan: RowPlan) -> list[_Draw]:
    """Take the next draws for which there is room, beside those that have their rows."""
    if not plan.is_shared:
        return [waiting.popleft() for _ in range(min(len(waiting), plan.n_rows - len(rows)))]
    admitted: list[_Draw] = []
    held = {draw.prompt: len(draw.prompt.ids) for draw in rows} if len(rows) < plan.n_rows else {}
    while waiting and len(rows) + len(admitted) < plan.n_rows:
        prompt = waiting[0].prompt
        if held and prompt not in held and sum(held.values()) + len(prompt.ids) > plan.most_shared:
            break
        held[prompt] = len(prompt.ids)
        admitted.append(waiting.popleft())
    return admitted


class TokenFilter:
    """Says which tokens can hold one of some characters, so that text is decoded only when it must be."""

    def __init__(self, tokenizer: Any, characters: set[str]) -> None:
        self._tokenizer = tokenizer
        self._characters = characters
        # A token is decoded behind another one, because some tokenizers drop a text's first blank.
        self._anchor = encode(tokenizer, "a")[-1:]
        self._head = decode(tokenizer, self._anchor)
        self._known: dict[int, bool] = {}

    def may_hold(self, token: int) -> bool:
        """Return False only if the token holds none of the characters, nor a part of one."""
        if not self._characters:
            return False
        if token not in self._known:
            self._known[token] = self._look(token)
        return self._known[token]

    def _look(self, token: int) -> bool:
        piece = decode(self._tokenizer, [*self._anchor, token])
        if not self._anchor or not piece.startswith(self._head):
            return True
        piece = piece[len(self._head) :]
        # A lone part of a character decodes to U+FFFD and may complete any character.
        return "\N{REPLACEMENT CHARACTER}" in piece or not self._characters.isdisjoint(piece)


def decode_after(tokenizer: Any, head: str, ids: Sequence[int], *, where: str) -> str:
    """Return what some tokens say behind a head that the first of them spell.

    Raises:
        AuditError: The tokenizer spells the head differently once text follows.
    """
    whole = decode(tokenizer, ids)
    if not whole.startswith(head):
        raise AuditError(
            f"{where}: the tokenizer decodes it differently once text follows, so its "
            "continuation cannot be told apart; end the prompt at a word boundary"
        )
    return whole[len(head) :]


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """Return what stands before the first of some stop strings; None where a text holds none."""
    cut = min((at for at in map(text.find, stops) if at >= 0), default=None)
    return None if cut is None else text[:cut]
