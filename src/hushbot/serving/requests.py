"""What an endpoint is asked: OpenAI's request bodies, checked, as value objects.

Guarantees: nothing that was asked for is dropped without a word. A field that this server does not know, or knows and
cannot do (a penalty, a stream, tools), is an error that names it; a field that is null counts as absent. Messages say
the rule and never repeat a value, since values are texts of people.

Source: the bodies of `POST /v1/completions` and `POST /v1/chat/completions` in OpenAI's API reference; `top_k` is an
extension that several servers share.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushbot.types import Decoding

MOST_CHOICES = 4096
"""Texts that one request may ask for."""
_SEEDS = 2**63


class RequestError(Exception):
    """A request cannot be answered; becomes an error in OpenAI's shape.

    Args:
        message: What is wrong, the rule and the remedy; holds no text of the request.
        status: Of the HTTP answer.
        param: The field that is wrong.
        code: A word that programs can tell the error by.
        retry_after: Seconds that the client is asked to wait.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after

    @property
    def body(self) -> dict[str, Any]:
        """Return the error as clients expect it."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


Prompt: TypeAlias = str | tuple[int, ...]
"""A text, or token ids that spell one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Continue some prompts, or score them, or both."""

    prompts: tuple[Prompt, ...]
    n: int = 1
    """Continuations per prompt."""
    max_tokens: int = 16
    """Longest continuation; 0 only scores the prompt, which must then be echoed."""
    decoding: Decoding = field(default_factory=lambda: Decoding(stop=()))
    seed: int = 0
    echo: bool = False
    """Whether the prompt stands before its continuation in the answer."""
    n_top: int | None = None
    """Most probable tokens to name at each position; None gives no log-probabilities at all."""


@dataclass(frozen=True, slots=True)
class Message:
    """One utterance of a chat."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Answer a chat."""

    messages: tuple[Message, ...]
    completion: CompletionRequest
    """How the answer is drawn; its prompt is made of the messages."""


class _Body(BaseModel):
    """The fields that both interfaces share. Those that can only be neutral stand here to be refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: str
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1)] = 0
    stop: Annotated[str, Field(min_length=1)] | list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    seed: Annotated[int, Field(gt=-_SEEDS, lt=_SEEDS)] | None = None
    user: str = ""
    stream: Literal[False] = False
    presence_penalty: Annotated[float, Field(ge=0, le=0)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] = 0.0
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] = Field(default_factory=dict)

    def decoding(self, *stops: str) -> Decoding:
        """Return the law of the next token, and where a text ends."""
        asked = [self.stop] if isinstance(self.stop, str) else self.stop
        return Decoding(temperature=self.temperature, top_p=self.top_p, top_k=max(0, self.top_k), stop=(*asked, *stops))

    def seed_or_new(self) -> int:
        """Return the seed, or one that was never used before."""
        return secrets.randbelow(_SEEDS) if self.seed is None else self.seed


class _CompletionBody(_Body):
    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: Annotated[int, Field(ge=0)] = 16
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None
    suffix: Annotated[str, Field(max_length=0)] = ""


class _TextPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    type: Literal["text"]
    text: str


class _MessageBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["user", "assistant"]
    content: str | list[_TextPart]
    name: str | None = None
    refusal: None = None


class _ChatBody(_Body):
    messages: Annotated[list[_MessageBody], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0


_RULES = {
    "prompt": "must be a text, a list of texts, a list of token ids, or a list of such lists",
    "stop": "must be a text or a list of texts, none empty",
    "role": "must be user or assistant; this bot was not trained to follow instructions, so leave system messages out",
    "content": "must be a text, or a list of parts of type text",
    "stream": "must be false; this server answers in one piece",
    "logit_bias": "must be empty; this server changes no token's probability",
    "suffix": "must be absent; this server continues texts and fills no gaps",
    "presence_penalty": "must be 0; this server has no penalties",
    "frequency_penalty": "must be 0; this server has no penalties",
}
_BodyType = TypeVar("_BodyType", bound=_Body)
LONGEST_ANSWER = 128
"""Tokens of a chat's answer where the request does not say."""


def read_completion(body: bytes) -> tuple[str, CompletionRequest]:
    """Return the model's name and what is asked of it.

    Raises:
        RequestError: The body is no completion request that can be answered.
    """
    read = _read(_CompletionBody, body)
    prompts = _prompts(read.prompt)
    if read.best_of not in (None, read.n):
        raise RequestError("best_of must equal n; this server ranks no texts", param="best_of")
    if read.max_tokens == 0 and not read.echo:
        raise RequestError("max_tokens must be at least 1 without echo, or nothing is asked for", param="max_tokens")
    if read.n * len(prompts) > MOST_CHOICES:
        raise RequestError(f"n times the number of prompts must be at most {MOST_CHOICES}; ask in parts", param="n")
    return read.model, CompletionRequest(
        prompts=prompts,
        n=read.n,
        max_tokens=read.max_tokens,
        decoding=read.decoding(),
        seed=read.seed_or_new(),
        echo=read.echo,
        n_top=read.logprobs,
    )


def read_chat(body: bytes) -> tuple[str, ChatRequest]:
    """Return the model's name and what is asked of it.

    Raises:
        RequestError: The body is no chat request that can be answered.
    """
    read = _read(_ChatBody, body)
    if read.top_logprobs and not read.logprobs:
        raise RequestError("top_logprobs needs logprobs=true", param="top_logprobs")
    messages = tuple(Message(message.role, _content(message.content)) for message in read.messages)
    if messages[-1].role != "user":
        raise RequestError("the last message must be the user's, for the bot to answer", param="messages")
    return read.model, ChatRequest(
        messages=messages,
        completion=CompletionRequest(
            prompts=(),
            n=read.n,
            max_tokens=read.max_completion_tokens or read.max_tokens or LONGEST_ANSWER,
            # The answer is one line of the layout.
            decoding=read.decoding("\n"),
            seed=read.seed_or_new(),
            n_top=read.top_logprobs if read.logprobs else None,
        ),
    )


def _read(kind: type[_BodyType], body: bytes) -> _BodyType:
    try:
        raw = json.loads(body)
        body.decode("utf-8")
        json.dumps(raw, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no character
    except (ValueError, RecursionError) as error:
        raise RequestError("the body must be JSON in UTF-8") from error
    if not isinstance(raw, dict):
        raise RequestError("the body must be a JSON object")
    try:
        return kind.model_validate(_without_nulls(raw))
    except ValidationError as error:
        raise _explained(error) from None  # pydantic's own message holds values


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _explained(error: ValidationError) -> RequestError:
    """Put the first of pydantic's complaints in our words, without the value."""
    first = error.errors(include_input=False, include_context=False, include_url=False)[0]
    places = [place for place in first["loc"] if isinstance(place, str)]
    name = next((place for place in places if place in _RULES), places[0] if places else "body")
    if first["type"] == "extra_forbidden":
        return RequestError(
            f"{places[-1][:40]} is no field that this server knows, and it drops none; leave it out",
            param=places[-1][:40],
            code="unsupported_field",
        )
    rule = "is missing" if first["type"] == "missing" else _RULES.get(name, f"is wrong: {first['msg']}")
    return RequestError(f"{name} {rule}", param=name)


def _prompts(prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]) -> tuple[Prompt, ...]:
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise RequestError("prompt holds nothing; give a text or a list of texts", param="prompt")
    if isinstance(prompt[0], int):
        return (tuple(token for token in prompt if isinstance(token, int)),)
    return tuple(item if isinstance(item, str) else _ids(item) for item in prompt)


def _ids(item: object) -> tuple[int, ...]:
    return tuple(item) if isinstance(item, list) else ()


def _content(content: str | list[_TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
