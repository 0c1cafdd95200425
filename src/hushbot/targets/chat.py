"""An endpoint that is told a text and answers with one: the chat interface that most model servers speak.

Guarantees: nothing is sent before `complete` is called; the key is read from the environment at each request, is in
no field, message or log, and goes neither to a redirected address nor over plain HTTP to another machine; no answer is
made up: whoever asks gets the endpoint's text or an `AuditError`. Errors name the status, never the answer's body,
which may repeat the key or the prompt.

What voids it: an endpoint keeps what it is asked. Answers may differ from one call to the next, whatever the seed says.

Source: the request and answer of `POST /chat/completions`, as OpenAI's API reference describes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.connection import Connection, Pace, address_problems


@dataclass(frozen=True, kw_only=True)
class ChatEndpoint:
    """Asks a model behind a chat interface, one request per text."""

    url: str
    """Where the interface begins, such as `http://localhost:8000/v1`; `/chat/completions` is added."""
    model: str
    """The model's name, as the endpoint knows it."""
    key_variable: str | None = None
    """Name of the environment variable that holds the key; None sends no key. Never the key itself."""
    temperature: float = 0.0
    """How freely it answers; 0 is the most probable text."""
    max_new_tokens: int = 256
    """Where an answer is cut."""
    timeout: float = 60.0
    """Seconds to wait for the endpoint each time."""
    n_tries: int = 5
    """Requests per text, where the endpoint is busy or not reached; at least 1."""
    pause: float = 1.0
    """Seconds before the second try; doubled with each further one, unless the endpoint says how long."""

    def __post_init__(self) -> None:
        rules = (
            ("model", bool(self.model.strip()), "the name of a model"),
            ("temperature", 0 <= self.temperature < math.inf, "finite and at least 0"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("timeout", 0 < self.timeout < math.inf, "finite and above 0"),
            ("n_tries", self.n_tries >= 1, "at least 1"),
            ("pause", 0 <= self.pause < math.inf, "finite and at least 0"),
        )
        problems = [f"{name} must be {rule}; it is {getattr(self, name)!r}" for name, ok, rule in rules if not ok]
        problems += address_problems(self.url, self.key_variable)
        if problems:
            raise ConfigError(*(f"endpoint.{problem}" for problem in problems))

    def complete(self, prompt: str, *, seed: int = 0) -> str:
        """Return the endpoint's answer to a prompt.

        Raises:
            AuditError: There was none after `n_tries` tries, or it is no text.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_new_tokens,
            "seed": seed,
        }
        return _text_of(self._connection.post("/chat/completions", body))

    @cached_property
    def _connection(self) -> Connection:
        pace = Pace(timeout=self.timeout, n_tries=self.n_tries, pause=self.pause)
        return Connection(self.url, key_variable=self.key_variable, pace=pace)


def _text_of(answer: Any) -> str:
    try:
        text = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise AuditError(
            f"the endpoint's answer is no chat completion ({type(error).__name__}); see its url"
        ) from error
    if not isinstance(text, str):
        raise AuditError("the endpoint's answer holds no text; choose a model that answers with text")
    return text
