"""What an endpoint answers: choices with their token scores, in OpenAI's two shapes.

Guarantees, per choice: the texts of its tokens joined are its text; offsets count characters; every token of the text
has a number, and the one null is the start token's, which stands first where the prompt is echoed. A chat's message has
no blanks around it; its tokens do.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One token of an answer."""

    text: str
    """Its part of the text; empty for the start token and for the later parts of a character cut in several."""
    logprob: float | None
    """Natural log-probability under the model itself, whatever the decoding; None for the start token."""
    top: tuple[tuple[str, float], ...] = ()
    """The most probable tokens at its place, best first."""
    spelled: str | None = None
    """What it is called where it is no part of the text, as an end-of-text token."""

    @property
    def name(self) -> str:
        """Return what clients see."""
        return self.text if self.spelled is None else self.spelled


@dataclass(frozen=True, slots=True)
class Choice:
    """One text of an answer."""

    text: str
    finish_reason: Literal["stop", "length"]
    n_prompt_tokens: int
    n_tokens: int
    """New tokens."""
    scores: tuple[TokenScore, ...] | None = None
    """None where no log-probabilities were asked for."""


def completion_body(model: str, choices: Sequence[Choice], *, n: int, n_top: int | None) -> dict[str, Any]:
    """Return the answer to a completion request; `n` choices belong to each prompt."""
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "text": choice.text,
                "finish_reason": choice.finish_reason,
                "logprobs": None if choice.scores is None else _legacy_logprobs(choice.scores, n_top or 0),
            }
            for index, choice in enumerate(choices)
        ],
        "usage": _usage(choices, n),
    }


def chat_body(model: str, choices: Sequence[Choice], *, n_top: int | None) -> dict[str, Any]:
    """Return the answer to a chat request."""
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text.strip(" "), "refusal": None},
                "finish_reason": choice.finish_reason,
                "logprobs": None if choice.scores is None else {"content": _chat_logprobs(choice.scores, n_top or 0)},
            }
            for index, choice in enumerate(choices)
        ],
        "usage": _usage(choices, len(choices)),
    }


def models_body(models: Sequence[str], created: int) -> dict[str, Any]:
    """Return the list of models."""
    return {
        "object": "list",
        "data": [{"id": model, "object": "model", "created": created, "owned_by": "hushbot"} for model in models],
    }


def _usage(choices: Sequence[Choice], n: int) -> dict[str, int]:
    # A prompt is read once, however many texts it gets.
    asked = sum(choice.n_prompt_tokens for choice in choices[::n])
    written = sum(choice.n_tokens for choice in choices)
    return {"prompt_tokens": asked, "completion_tokens": written, "total_tokens": asked + written}


def _legacy_logprobs(scores: Sequence[TokenScore], n_top: int) -> dict[str, Any]:
    ends = list(accumulate((len(score.text) for score in scores), initial=0))
    return {
        "tokens": [score.name for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_named(score) for score in scores] if n_top else None,
        "text_offset": ends[:-1],
    }


def _named(score: TokenScore) -> dict[str, float] | None:
    """Return the best tokens and the chosen one by name; of two with one name, the better counts."""
    if score.logprob is None:
        return None
    named: dict[str, float] = {}
    for name, value in (*score.top, (score.name, score.logprob)):
        named.setdefault(name, value)
    return named


def _chat_logprobs(scores: Sequence[TokenScore], n_top: int) -> list[dict[str, Any]]:
    return [
        {
            **_chat_token(score.name, score.logprob),
            "top_logprobs": [_chat_token(name, value) for name, value in score.top[:n_top]],
        }
        for score in scores
    ]


def _chat_token(name: str, value: float | None) -> dict[str, Any]:
    return {"token": name, "logprob": value, "bytes": list(name.encode("utf-8"))}
