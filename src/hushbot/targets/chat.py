"""An endpoint that is told a text and answers with one: the chat interface that most model servers speak.

Guarantees: nothing is sent before `complete` is called; the key is read from the environment at each request, is in
no field, message or log, and goes neither to a redirected address nor over plain HTTP to another machine; no answer is
made up: whoever asks gets the endpoint's text or an `AuditError`. Errors name the status, never the answer's body,
which may repeat the key or the prompt.

What voids it: an endpoint keeps what it is asked. Answers may differ from one call to the next, whatever the seed says.

Source: the request and answer of `POST /chat/completions`, as OpenAI's API reference describes them.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from hushbot.errors import AuditError, ConfigError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_MOST_BYTES = 4_000_000
_LONGEST_PAUSE = 60.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Takes no other address than the one that was configured."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse, which makes the redirect an HTTP error."""
        return


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
        parts = urlsplit(self.url)
        rules = (
            ("url", parts.scheme in ("http", "https") and bool(parts.hostname), "an address with http:// or https://"),
            ("model", bool(self.model.strip()), "the name of a model"),
            ("temperature", 0 <= self.temperature < math.inf, "finite and at least 0"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("timeout", 0 < self.timeout < math.inf, "finite and above 0"),
            ("n_tries", self.n_tries >= 1, "at least 1"),
            ("pause", 0 <= self.pause < math.inf, "finite and at least 0"),
        )
        problems = [
            f"endpoint.{name} must be {rule}; it is {getattr(self, name)!r}" for name, ok, rule in rules if not ok
        ]
        if parts.username or parts.password:
            # Not shown, for it holds a password.
            problems = ["endpoint.url holds a user name or password; put the key into an environment variable"]
        if self.key_variable is not None:
            problems += self._key_problems(parts.scheme, parts.hostname)
        if problems:
            raise ConfigError(*problems)

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
        return _text_of(self._post(json.dumps(body).encode()))

    def _key_problems(self, scheme: str, host: str | None) -> list[str]:
        problems = []
        if not os.environ.get(self.key_variable or ""):
            # Somebody may have put the key itself here, so the name is not repeated.
            problems.append("endpoint.key_variable names an environment variable that is not set; set it to the key")
        if scheme == "http" and host not in _LOOPBACK:
            problems.append("endpoint.url would carry the key over plain http to another machine; use https")
        return problems

    def _request(self, body: bytes) -> urllib.request.Request:
        request = urllib.request.Request(
            f"{self.url.rstrip('/')}/chat/completions", data=body, headers={"Content-Type": "application/json"}
        )
        if self.key_variable is not None:
            request.add_unredirected_header("Authorization", f"Bearer {os.environ.get(self.key_variable, '').strip()}")
        return request

    def _post(self, body: bytes) -> bytes:
        opener = urllib.request.build_opener(_NoRedirects)
        failure = ""
        for number in range(self.n_tries):
            pause = min(self.pause * 2**number, _LONGEST_PAUSE)
            try:
                with opener.open(self._request(body), timeout=self.timeout) as answer:
                    return bytes(answer.read(_MOST_BYTES))
            except urllib.error.HTTPError as error:
                with error:
                    failure = f"answered {error.code}"
                    if error.code not in _RETRIED:
                        break
                    pause = _asked_pause(error.headers.get("Retry-After"), pause)
            except (OSError, http.client.HTTPException) as error:
                failure = f"was not reached ({type(error).__name__})"
            if number + 1 < self.n_tries:
                time.sleep(pause)
        raise AuditError(f"the endpoint at {self._place} {failure}; see that it runs and serves {self.model!r}")

    @property
    def _place(self) -> str:
        """Return where it is, without what a query may hold."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)


def _asked_pause(header: str | None, otherwise: float) -> float:
    """Return how many seconds an endpoint asks to wait, within reason; a date is not looked at."""
    return min(float(header), _LONGEST_PAUSE) if header and header.strip().isdigit() else otherwise


def _text_of(answer: bytes) -> str:
    try:
        text = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise AuditError(
            f"the endpoint's answer is no chat completion ({type(error).__name__}); see its url"
        ) from error
    if not isinstance(text, str):
        raise AuditError("the endpoint's answer holds no text; choose a model that answers with text")
    return text
