"""Draw continuations and keep their tokens: what `LocalTarget.sample` draws, with more said about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hushbot.serving.requests import CompletionRequest
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.local import LocalTarget
from hushbot.targets.sampler import Sampler, cut_at_stop
from hushbot.types import Decoding


class Drawn(NamedTuple):
    """A continuation in tokens."""

    text: str
    tokens: list[int]
    """All that were drawn, an end-of-text token left out, what a stop string cut off included."""
    is_ended: bool
    """Whether it came to an end of its own: the end-of-text token or a stop string."""
    last: int
    """The last token that was drawn, an end-of-text token included."""


def draw_tokens(target: LocalTarget, ids: Sequence[list[int]], request: CompletionRequest) -> list[list[Drawn]]:
    """Return the draws of `LocalTarget.sample`, with their tokens."""
    sampler = _RecordingSampler(
        target.causal_lm,
        target.tokenizer,
        decoding=request.decoding,
        max_new_tokens=request.max_tokens,
        seed=request.seed,
    )
    with target.causal_lm.reading():
        texts = sampler.run(ids, n=request.n, batch_rows=target.batch_rows, batch_tokens=target.batch_tokens)
    return [
        [sampler.drawn[position, 0 if request.decoding.is_deterministic else draw] for draw in range(len(row))]
        for position, row in enumerate(texts)
    ]


class _RecordingSampler(Sampler):
    """Remembers the tokens of each draw."""

    def __init__(self, model: CausalLM, tokenizer: Any, *, decoding: Decoding, max_new_tokens: int, seed: int) -> None:
        super().__init__(model, tokenizer, decoding=decoding, max_new_tokens=max_new_tokens, seed=seed)
        self.drawn: dict[tuple[int, int], Drawn] = {}

    def _ended(self, draw: Any, token: int) -> str | None:
        text = super()._ended(draw, token)
        if text is not None:
            is_ended = token == self._end_token or cut_at_stop(self._text(draw), self._decoding.stop) is not None
            self.drawn[draw.position, draw.number] = Drawn(text, list(draw.tokens), is_ended, token)
        return text
