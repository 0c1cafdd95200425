"""Requests to a model server: patient, polite, and silent about keys.

Guarantees: nothing is sent before `post` or `get` is called; the key is read from the environment at each request, is
in no field, message or log, and goes neither to a redirected address nor over plain HTTP to another machine. A busy
server is asked again after the pause that it names in `Retry-After` (seconds or a date), during which no other request
of the same connection starts either, or else after a pause that doubles. No more requests start in a second than
allowed. An answer is whole, JSON and there within `timeout`, however slowly its bytes drip in, or it is an
`EndpointError`; errors name the status, never an answer's body, which may repeat the key or the prompt.

What voids it: a server keeps what it is asked. A server whose header lines drip in may hold a request longer.

Source: RFC 9110, section 10.2.3 (`Retry-After`).
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from hushbot.errors import AuditError, ConfigError

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_BUSY = frozenset({429, 503})
"""What a server says that only wants to be asked later."""
_RETRIED = _BUSY | {408, 409, 425, 500, 502, 504}
_MOST_BYTES = 64_000_000
_LONGEST_PAUSE = 60.0
"""Of those that the server does not name."""
Failure = Literal["refused", "busy", "unreached", "slow", "garbled"]
_REMEDIES: Mapping[Failure, str] = {
    "refused": "see its address, the model's name, the key, and what it is able to do",
    "busy": "ask less often, or later",
    "unreached": "see that it runs, and its address",
    "slow": "give it more time, or see what keeps it",
    "garbled": "see that the address is that of a model server",
}


class EndpointError(AuditError):
    """A request had no usable answer.

    Args:
        message: What is shown.
        failure: In which way.
        status: Of the answer, if there was one.
    """

    def __init__(self, message: str, failure: Failure, status: int | None = None) -> None:
        super().__init__(message)
        self.failure = failure
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How hard a server is asked, and how long it is waited for; decides how fast an audit is, never its result."""

    timeout: float = 120.0
    """Seconds in which an answer must be whole."""
    n_tries: int = 5
    """Requests per question, where the server is busy or not reached; at least 1."""
    pause: float = 1.0
    """Seconds before the second try; doubled with each further one, unless the server says how long."""
    longest_wait: float = 300.0
    """Most seconds that a server may ask to wait; more is an error, since asking earlier would be rude."""
    n_workers: int = 8
    """Requests at a time; at least 1."""
    requests_per_second: float | None = None
    """Most requests that start in a second; None sets no limit."""

    def __post_init__(self) -> None:
        rate = self.requests_per_second
        rules = (
            ("timeout", 0 < self.timeout < math.inf, "finite and above 0"),
            ("n_tries", self.n_tries >= 1, "at least 1"),
            ("pause", 0 <= self.pause < math.inf, "finite and at least 0"),
            ("longest_wait", 0 <= self.longest_wait < math.inf, "finite and at least 0"),
            ("n_workers", self.n_workers >= 1, "at least 1"),
            ("requests_per_second", rate is None or 0 < rate < math.inf, "finite and above 0, or null"),
        )
        problems = [f"{name} must be {rule}; it is {getattr(self, name)!r}" for name, ok, rule in rules if not ok]
        if problems:
            raise ConfigError(*(f"pace.{problem}" for problem in problems))


class Waits(NamedTuple):
    """What a server has asked for so far."""

    n: int
    """How often it said that it is busy."""
    seconds: float
    """What it asked to wait, all in all."""


class _Gate:
    """Lets requests start one after the other, none before the time that the server named."""

    def __init__(self, interval: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._interval, self._clock, self._sleep = interval, clock, sleep
        self._lock = threading.Lock()
        self._opens = -math.inf

    def enter(self) -> None:
        """Wait until the next request may start."""
        while True:
            with self._lock:
                now = self._clock()
                if now >= self._opens:
                    self._opens = now + self._interval
                    return
                left = self._opens - now
            self._sleep(left)

    def postpone(self, seconds: float) -> None:
        """Let nothing start for so long."""
        with self._lock:
            self._opens = max(self._opens, self._clock() + seconds)


class Connection:
    """A server's interface at one address; threads may share it.

    Args:
        url: Where the interface begins, such as `http://localhost:8000/v1`.
        key_variable: Name of the environment variable that holds the key; None sends no key.
        pace: How hard to ask.
        clock: Seconds that never go back.
        sleep: What waits.
    """

    def __init__(
        self,
        url: str,
        *,
        key_variable: str | None = None,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self.key_variable = key_variable
        self.pace = pace or Pace()
        self._clock = clock
        rate = self.pace.requests_per_second
        self._gate = _Gate(0.0 if rate is None else 1 / rate, clock, sleep)
        self._waits: list[float] = []

    @property
    def place(self) -> str:
        """Return where it is, without what the rest of an address may hold."""
        parts = urlsplit(self.url)
        return f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)

    @property
    def waits(self) -> Waits:
        """Return how often the server said that it is busy, and how long it asked to wait."""
        return Waits(len(self._waits), sum(self._waits))

    def get(self, path: str) -> Any:
        """Return the JSON behind a path.

        Raises:
            EndpointError: There is none.
        """
        return self._asked("GET", path, None, is_patient=False)

    def post(self, path: str, body: Mapping[str, Any], *, is_patient: bool = True) -> Any:
        """Return the JSON that answers a JSON body.

        Args:
            path: Added to the address, such as `/completions`.
            body: What is asked.
            is_patient: Whether failures other than being busy are worth another try.

        Raises:
            EndpointError: There was no whole answer after `n_tries` tries.
        """
        return self._asked("POST", path, json.dumps(body).encode(), is_patient=is_patient)

    def _asked(self, method: str, path: str, body: bytes | None, *, is_patient: bool) -> Any:
        failure = EndpointError("never asked", "unreached")
        for number in range(self.pace.n_tries):
            self._gate.enter()
            try:
                return self._once(method, path, body)
            except _Refusal as refusal:
                failure = self._error(f"answered {refusal.status}", "refused", refusal.status)
                is_busy, pause = refusal.status in _BUSY, self._pause(number, refusal.retry_after)
                if is_busy:
                    failure.failure = "busy"
                    self._waits.append(pause)
                if refusal.status not in _RETRIED or not (is_busy or is_patient):
                    break
            except EndpointError as error:
                failure, pause = error, self._pause(number, None)
                if error.failure == "garbled" or not is_patient:
                    break
            if pause > self.pace.longest_wait:
                text = f"asks to wait {pause:.0f} s, more than pace.longest_wait={self.pace.longest_wait:g}"
                failure = self._error(text, "busy", failure.status)
                break
            if failure.failure == "busy" or number + 1 < self.pace.n_tries:
                self._gate.postpone(pause)
        raise failure

    def _once(self, method: str, path: str, body: bytes | None) -> Any:
        """Send one request and return its JSON."""
        import httpx2

        ends = self._clock() + self.pace.timeout
        began = False
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key_variable is not None:
            headers["Authorization"] = f"Bearer {os.environ.get(self.key_variable, '').strip()}"
        received = bytearray()
        try:
            with self._client.stream(method, self.url.rstrip("/") + path, content=body, headers=headers) as response:
                if response.status_code != 200:
                    raise _Refusal(response.status_code, response.headers.get("Retry-After"))
                for part in response.iter_bytes():
                    began = True
                    received += part
                    if self._clock() > ends:
                        raise self._slow(began)
                    if len(received) > _MOST_BYTES:
                        raise self._error(f"answered with more than {_MOST_BYTES} bytes", "garbled", 200)
        except httpx2.TimeoutException:
            raise self._slow(began) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            # Not chained: a request's headers hold the key.
            raise self._error(f"was not reached ({type(error).__name__})", "unreached") from None
        try:
            return json.loads(bytes(received))
        except (ValueError, RecursionError):
            raise self._error("did not answer with JSON", "garbled", 200) from None

    @cached_property
    def _client(self) -> Any:
        import httpx2

        # A proxy of this environment cannot reach this machine's own addresses.
        return httpx2.Client(
            timeout=self.pace.timeout,
            follow_redirects=False,
            trust_env=urlsplit(self.url).hostname not in _LOOPBACK,
            limits=httpx2.Limits(max_connections=self.pace.n_workers),
        )

    def _pause(self, number: int, retry_after: str | None) -> float:
        asked = read_retry_after(retry_after)
        return min(self.pace.pause * 2**number, _LONGEST_PAUSE) if asked is None else asked

    def _slow(self, began: bool) -> EndpointError:
        how = "began to answer and did not end" if began else "did not answer"
        return self._error(f"{how} within {self.pace.timeout:g} s", "slow")

    def _error(self, text: str, failure: Failure, status: int | None = None) -> EndpointError:
        return EndpointError(f"the endpoint at {self.place} {text}; {_REMEDIES[failure]}", failure, status)


class _Refusal(Exception):
    """A status other than 200."""

    def __init__(self, status: int, retry_after: str | None) -> None:
        super().__init__(status)
        self.status = status
        self.retry_after = retry_after


def address_problems(url: str, key_variable: str | None) -> list[str]:
    """Return what is wrong with an address and where its key comes from, one message each, none with a secret in it."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return ["url is no address; give one with http:// or https://"]
    if parts.username or parts.password or parts.query:
        # Not shown, for it holds a password.
        return ["url holds a user name, a password or a query; put the key into an environment variable"]
    problems = [] if is_right else [f"url must be an address with http:// or https://; it is {url!r}"]
    if key_variable is None:
        return problems
    if not os.environ.get(key_variable):
        # Somebody may have put the key itself here, so the name is not repeated.
        problems.append("key_variable names an environment variable that is not set; set it to the key")
    elif not os.environ[key_variable].strip().isprintable() or not os.environ[key_variable].isascii():
        problems.append("key_variable names an environment variable that holds no key: it has characters no header has")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        problems.append("url would carry the key over plain http to another machine; use https")
    return problems


def read_retry_after(header: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Return how many seconds a `Retry-After` header asks to wait, or None where it says nothing one can obey.

    >>> read_retry_after("7"), read_retry_after("soon")
    (7.0, None)
    """
    text = (header or "").strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        # RFC 9110's dates are in GMT, which parsing leaves without a zone where it is written -0000.
        seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds)
