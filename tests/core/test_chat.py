"""A chat endpoint on the loopback address: what is sent, what is tried again, and what is never shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.chat import ChatEndpoint

KEY = "sk-very-secret"


def completion(text: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@dataclass
class Server:
    """Answers with what it is told to, one entry per request; the last one again and again."""

    url: str
    answers: list[tuple[int, bytes, dict[str, str]]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.requests.append((self.path, dict(self.headers), json.loads(body)))
            status, answer, headers = told.answers.pop(0) if len(told.answers) > 1 else told.answers[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        told = Server(f"http://127.0.0.1:{running.server_address[1]}/v1")
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield told
        running.shutdown()


def endpoint(server: Server, **settings: Any) -> ChatEndpoint:
    return ChatEndpoint(**({"url": server.url, "model": "m", "pause": 0.0, "timeout": 5.0} | settings))


def test_a_text_goes_out_and_one_comes_back(server: Server) -> None:
    server.answers = [(200, completion("good day"), {})]
    assert endpoint(server, temperature=0.5, max_new_tokens=7).complete("say hello", seed=3) == "good day"
    ((path, headers, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert "Authorization" not in headers
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "say hello"}],
        "temperature": 0.5,
        "max_tokens": 7,
        "seed": 3,
    }


def test_the_key_comes_from_the_environment_and_is_in_no_field(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    server.answers = [(200, completion("x"), {})]
    asked = endpoint(server, key_variable="SOME_KEY")
    asked.complete("hello")
    assert server.requests[0][1]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(asked)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_endpoint_is_asked_again(server: Server, status: int) -> None:
    server.answers = [(status, b"", {}), (status, b"", {"Retry-After": "0"}), (200, completion("at last"), {})]
    assert endpoint(server).complete("hello") == "at last"
    assert len(server.requests) == 3


def test_it_is_asked_no_more_than_it_was_told(server: Server) -> None:
    server.answers = [(503, b"", {})]
    with pytest.raises(AuditError, match="answered 503"):
        endpoint(server, n_tries=2).complete("hello")
    assert len(server.requests) == 2


def test_a_refusal_is_not_tried_again_and_its_body_is_not_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    server.answers = [(401, f"wrong key {KEY}".encode(), {})]
    with pytest.raises(AuditError) as caught:
        endpoint(server, key_variable="SOME_KEY").complete("hello")
    assert "401" in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


def test_a_redirect_is_refused(server: Server) -> None:
    server.answers = [(307, b"", {"Location": f"{server.url}/elsewhere"})]
    with pytest.raises(AuditError, match="answered 307"):
        endpoint(server).complete("hello")
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [b"no json", b"{}", b'{"choices": []}', b"[]", completion(None), completion([])])
def test_an_answer_without_a_text_is_an_error(server: Server, answer: bytes) -> None:
    server.answers = [(200, answer, {})]
    with pytest.raises(AuditError, match=r"endpoint's answer|did not answer with JSON"):
        endpoint(server).complete("hello")


def test_nobody_there_is_an_error(server: Server) -> None:
    with pytest.raises(AuditError, match="was not reached"):
        endpoint(server, url="http://127.0.0.1:1/v1", n_tries=1).complete("hello")


def test_wrong_settings_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        ChatEndpoint(url="ftp://somewhere", model=" ", timeout=0, n_tries=0, temperature=float("nan"))
    assert len(caught.value.problems) == 5


@pytest.mark.parametrize("value", [None, ""])
def test_a_key_that_is_not_set_is_a_configuration_error(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match="not set"):
        ChatEndpoint(url="https://example.org/v1", model="m", key_variable="SOME_KEY")


def test_a_key_goes_over_plain_http_to_this_machine_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    ChatEndpoint(url="http://localhost:8000/v1", model="m", key_variable="SOME_KEY")
    with pytest.raises(ConfigError, match="plain http"):
        ChatEndpoint(url="http://example.org/v1", model="m", key_variable="SOME_KEY")


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        ChatEndpoint(url=f"https://me:{KEY}@example.org/v1", model="m")
    assert KEY not in str(caught.value)
