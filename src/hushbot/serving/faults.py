"""Faults of real servers, to be switched on in tests: what a client must notice and never measure with.

Each is named after what it does and copies a server that was seen to do it: `drop_logprobs` transformers serve,
`no_echo_400` llama.cpp's llama-server, `off_by_one`, `max_tokens0_runs_on` and `batch_500` llama-cpp-python;
`429_retry_after` and `drip` any server behind a gateway. None is ever on unless it is asked for by name.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hushbot.errors import ConfigError
from hushbot.serving.requests import CompletionRequest, Message, Prompt, RequestError

if TYPE_CHECKING:
    from hushbot.serving.answers import Choice
    from hushbot.serving.bot import Bot


class Fault:
    """A sound server: each hook changes nothing."""

    name: ClassVar[str] = ""

    def bot(self, bot: Bot) -> Bot:
        """Return the bot that is served instead."""
        return bot

    def check(self) -> None:
        """Look at a request before it is read.

        Raises:
            RequestError: It is refused.
        """

    def request(self, request: CompletionRequest) -> CompletionRequest:
        """Return what is done instead of what was asked for.

        Raises:
            RequestError: It is refused.
        """
        return request

    def pieces(self, body: bytes) -> Iterator[bytes]:
        """Yield the answer as it is sent."""
        yield body


class DropLogprobs(Fault):
    """Answers with text alone and says nothing of what it left out: neither echo nor log-probabilities."""

    name = "drop_logprobs"

    def request(self, request: CompletionRequest) -> CompletionRequest:
        """Return the request without them; nothing but text is left, so there must be some."""
        return replace(request, echo=False, n_top=None, max_tokens=max(1, request.max_tokens))


class OffByOne(Fault):
    """Gives an echoed token the probability that it has after itself, where no start token stands before it."""

    name = "off_by_one"

    def bot(self, bot: Bot) -> Bot:
        """Return the same bot, misread."""
        from hushbot.serving.bot import LocalBot, OffByOneBot

        if not isinstance(bot, LocalBot):
            raise ConfigError(f"faults: {self.name} needs a local model to misread; leave it out")
        return OffByOneBot(bot.target, prompt_of=bot.layout)


class NoEcho400(Fault):
    """Refuses to score what it did not write itself."""

    name = "no_echo_400"

    def request(self, request: CompletionRequest) -> CompletionRequest:
        """Refuse an echo with log-probabilities."""
        if request.echo and request.n_top is not None:
            raise RequestError("log-probabilities are returned for generated tokens only", param="echo")
        return request


class TooMany429(Fault):
    """Answers every third request and asks for patience otherwise."""

    name = "429_retry_after"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def check(self) -> None:
        """Refuse two of three requests."""
        if next(self._numbers) % 3:
            raise RequestError("too many requests; try again", status=429, code="rate_limit_exceeded", retry_after=1)


class Drip(Fault):
    """Sends its answers byte by byte, so that none ever times out while it is read."""

    name = "drip"
    pause: ClassVar[float] = 0.05
    """Seconds before each byte."""

    def pieces(self, body: bytes) -> Iterator[bytes]:
        """Yield single bytes, slowly."""
        for byte in body:
            time.sleep(self.pause)
            yield bytes([byte])


class MaxTokens0RunsOn(Fault):
    """Takes `max_tokens=0` as no limit."""

    name = "max_tokens0_runs_on"
    most: ClassVar[int] = 127

    def bot(self, bot: Bot) -> Bot:
        """Return a bot that goes on to the end of its context, or to 127 tokens."""
        return _RunsOn(bot, self.most)


class _RunsOn:
    def __init__(self, inner: Bot, most: int) -> None:
        self._inner = inner
        self._most = most

    def complete(self, request: CompletionRequest) -> list[Choice]:
        if request.max_tokens == 0:
            rooms = [self._inner.room(prompt) for prompt in request.prompts]
            most = min([self._most, *(room for room in rooms if room is not None)])
            request = replace(request, max_tokens=max(1, most))
        return self._inner.complete(request)

    def room(self, prompt: Prompt) -> int | None:
        return self._inner.room(prompt)

    def prompt_of(self, messages: Sequence[Message]) -> str:
        return self._inner.prompt_of(messages)


class Batch500(Fault):
    """Breaks on more than one prompt."""

    name = "batch_500"

    def request(self, request: CompletionRequest) -> CompletionRequest:
        """Fail on a list of prompts."""
        if len(request.prompts) > 1:
            raise RequestError("internal server error", status=500)
        return request


FAULTS: dict[str, type[Fault]] = {
    kind.name: kind for kind in (DropLogprobs, OffByOne, NoEcho400, TooMany429, Drip, MaxTokens0RunsOn, Batch500)
}
"""Every fault by its name."""


def faults_of(names: Sequence[str]) -> tuple[Fault, ...]:
    """Return faults by name; `off_by_one` first, since it replaces the bot that others wrap.

    Raises:
        ConfigError: There is no such fault.
    """
    if unknown := [name for name in names if name not in FAULTS]:
        raise ConfigError(f"faults={unknown} are unknown; choose from {', '.join(FAULTS)}")
    return tuple(FAULTS[name]() for name in sorted(names, key=lambda name: name != OffByOne.name))
