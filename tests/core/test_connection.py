"""Requests to a server that is busy, slow, rude or gone; time passes on a clock of the tests' own where it can."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.connection import Connection, EndpointError, Pace, Waits, address_problems, read_retry_after

KEY, SECRET = "sk-very-secret", "the caller lives in Mill Road"


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Scripted(Connection):
    """A connection whose server is a list of answers: a status with a `Retry-After`, or what came back."""

    def __init__(self, *answers: Any, clock: Clock | None = None, **pace: Any) -> None:
        self.clock = clock or Clock()
        super().__init__("http://localhost:1/v1", pace=Pace(**pace), clock=self.clock, sleep=self.clock.sleep)
        self.answers, self.asked_at = list(answers), []

    def _once(self, method: str, path: str, body: bytes | None) -> Any:
        from hushbot.targets.connection import _Refusal

        self.asked_at.append(self.clock.now)
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            raise _Refusal(*answer)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_server_that_names_a_pause_is_left_alone_for_exactly_so_long() -> None:
    connection = Scripted((429, "7"), (503, "2"), {"ok": 1}, pause=0.5)
    assert connection.post("/x", {}) == {"ok": 1}
    assert connection.asked_at == [1000.0, 1007.0, 1009.0]
    assert connection.waits == Waits(2, 9.0)


def test_without_a_named_pause_each_is_twice_the_one_before() -> None:
    connection = Scripted((500, None), (502, None), (429, None), {}, pause=0.5)
    connection.post("/x", {})
    assert connection.asked_at == [1000.0, 1000.5, 1001.5, 1003.5]
    assert connection.waits.n == 1, "only 429 and 503 say that a server is busy"


def test_what_one_request_was_told_to_wait_all_wait() -> None:
    connection = Scripted((429, "30"), {}, n_tries=1)
    with pytest.raises(EndpointError, match="answered 429"):
        connection.post("/x", {})
    connection.post("/y", {})
    assert connection.asked_at == [1000.0, 1030.0]


def test_more_patience_than_we_have_is_an_error_and_not_an_early_request() -> None:
    connection = Scripted((429, "3600"), {}, longest_wait=60.0)
    with pytest.raises(EndpointError, match=r"3600 s, more than pace\.longest_wait=60") as caught:
        connection.post("/x", {})
    assert (caught.value.failure, len(connection.asked_at)) == ("busy", 1)


@pytest.mark.parametrize(
    ("status", "n_requests"), [(400, 1), (401, 1), (404, 1), (307, 1), (500, 3), (503, 3), (429, 3)]
)
def test_only_what_may_pass_is_tried_again(status: int, n_requests: int) -> None:
    connection = Scripted(*[(status, None)] * 3, n_tries=3, pause=0.0)
    with pytest.raises(EndpointError, match=f"answered {status}"):
        connection.post("/x", {})
    assert len(connection.asked_at) == n_requests


def test_an_impatient_question_is_repeated_only_to_who_is_busy() -> None:
    connection = Scripted((429, "1"), (500, None), n_tries=5)
    with pytest.raises(EndpointError, match="answered 500"):
        connection.post("/x", {}, is_patient=False)
    assert len(connection.asked_at) == 2


def test_no_more_requests_start_than_allowed() -> None:
    connection = Scripted({}, {}, {}, requests_per_second=2.0)
    for _ in range(3):
        connection.post("/x", {})
    assert connection.asked_at == [1000.0, 1000.5, 1001.0]


def test_threads_share_the_limit() -> None:
    times: list[float] = []

    class Timed(Connection):
        def _once(self, method: str, path: str, body: bytes | None) -> Any:
            times.append(time.monotonic())
            return {}

    connection = Timed("http://localhost:1/v1", pace=Pace(requests_per_second=50.0))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: connection.post("/x", {}), range(6)))
    assert max(times) - min(times) >= 5 / 50 - 0.005


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(None, None), ("", None), ("soon", None), ("0", 0.0), ("12", 12.0), ("1.5", 1.5), ("-3", None), ("\u0667", None)],
)
def test_seconds_to_wait(header: str | None, seconds: float | None) -> None:
    assert read_retry_after(header) == seconds


def test_dates_to_wait_for() -> None:
    at = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
    header = format_datetime(at, usegmt=True)
    assert read_retry_after(header, now=(at - timedelta(seconds=90)).timestamp) == 90.0
    assert read_retry_after(header, now=(at + timedelta(seconds=90)).timestamp) == 0.0


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://somewhere", "http://"),
        ("http://", "http://"),
        ("http://localhost:99999/v1", "no address"),
        (f"https://me:{KEY}@example.org/v1", "password"),
        (f"https://example.org/v1?key={KEY}", "query"),
    ],
)
def test_addresses_that_are_refused_and_not_shown(url: str, told: str) -> None:
    (problem,) = address_problems(url, None)
    assert told in problem
    assert KEY not in problem


def test_keys_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    assert "not set" in address_problems("https://example.org", "SOME_KEY")[0]
    monkeypatch.setenv("SOME_KEY", f"{KEY}\nX-Other: 1")
    (problem,) = address_problems("https://example.org", "SOME_KEY")
    assert "no header" in problem
    assert KEY not in problem
    monkeypatch.setenv("SOME_KEY", KEY)
    assert "plain http" in address_problems("http://example.org", "SOME_KEY")[0]
    assert address_problems("http://127.0.0.1:8000/v1", "SOME_KEY") == []


def test_wrong_paces_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Pace(timeout=0, n_tries=0, pause=-1, longest_wait=-1, n_workers=0, requests_per_second=0)
    assert len(caught.value.problems) == 6


# Over a socket

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}/v1"
        running.shutdown()


def says(status: int, body: bytes, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def test_the_key_and_what_is_asked_are_in_no_log_error_or_repr(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    sent = []

    def refuse(handler: BaseHTTPRequestHandler) -> None:
        sent.append(handler.headers["Authorization"])
        says(401, f"wrong key {KEY} for {SECRET}".encode())(handler)

    with server(refuse) as url:
        connection = Connection(url, key_variable="SOME_KEY")
        with pytest.raises(EndpointError) as caught:
            connection.post("/completions", {"prompt": SECRET})
    assert sent == [f"Bearer {KEY}"]
    assert caught.value.status == 401
    assert caught.value.__cause__ is None
    for text in (str(caught.value), repr(caught.value), repr(connection), caplog.text):
        assert KEY not in text
        assert SECRET not in text


def test_a_redirect_is_not_followed() -> None:
    elsewhere: list[str] = []

    def note(handler: BaseHTTPRequestHandler) -> None:
        elsewhere.append(handler.path)
        says(200, b"{}")(handler)

    with (
        server(note) as other,
        server(says(307, b"", Location=f"{other}/completions")) as url,
        pytest.raises(EndpointError, match="answered 307"),
    ):
        Connection(url).post("/completions", {})
    assert elsewhere == []


def test_bytes_that_drip_in_do_not_last_longer_than_the_timeout() -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "400")
        handler.end_headers()
        for _ in range(400):
            try:
                handler.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.02)

    with server(drip) as url:
        started = time.monotonic()
        with pytest.raises(EndpointError, match=r"began to answer and did not end within 0\.3 s") as caught:
            Connection(url, pace=Pace(timeout=0.3, n_tries=1)).post("/completions", {})
        assert time.monotonic() - started < 2
    assert caught.value.failure == "slow"


def test_silence_is_slow_too() -> None:
    with server(lambda _: time.sleep(1.0)) as url, pytest.raises(EndpointError, match=r"did not answer within 0\.2 s"):
        Connection(url, pace=Pace(timeout=0.2, n_tries=1)).post("/completions", {})


def test_an_answer_that_breaks_off_is_none() -> None:
    with server(says(200, b'{"a":', Content_Length="50")) as url, pytest.raises(EndpointError, match="not reached"):
        Connection(url, pace=Pace(n_tries=1)).post("/completions", {})


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff\xfe\xff", b"[" * 100_000])
def test_what_is_no_json_is_an_error(body: bytes) -> None:
    with server(says(200, body)) as url, pytest.raises(EndpointError, match="JSON"):
        Connection(url).post("/completions", {})


def test_nobody_there_is_an_audit_error() -> None:
    with pytest.raises(AuditError, match="was not reached"):
        Connection("http://127.0.0.1:1/v1", pace=Pace(n_tries=1)).post("/completions", {})


def test_this_machine_is_reached_past_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    with server(says(200, json.dumps({"a": 1}).encode())) as url:
        assert Connection(url).post("/completions", {}) == {"a": 1}
