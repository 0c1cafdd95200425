"""The server over real sockets: routes, statuses, faults, and what it must not tell."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

from hushbot.errors import AuditError, ConfigError
from hushbot.serving import FAULTS, serving
from hushbot.serving.answers import Choice
from hushbot.serving.endpoint import Endpoint
from hushbot.serving.faults import Drip, MaxTokens0RunsOn, faults_of
from hushbot.serving.requests import CompletionRequest, Prompt
from hushbot.serving.server import MOST_BYTES, running
from hushbot.targets.local import LocalTarget
from hushbot.types import Decoding

Ask = Callable[..., Any]
SECRET = "ZXCVBNM1"


@pytest.fixture(scope="module")
def url(local: LocalTarget) -> Iterator[str]:
    with serving(local) as address:
        yield address


class Silly:
    """A bot of one answer; with an error it fails."""

    def __init__(self, error: Exception | None = None, pause: float = 0.0) -> None:
        self.error = error
        self.pause = pause
        self.n_inside = self.most_inside = 0

    def complete(self, request: CompletionRequest) -> list[Choice]:
        self.n_inside += 1
        self.most_inside = max(self.most_inside, self.n_inside)
        time.sleep(self.pause)
        self.n_inside -= 1
        if self.error:
            raise self.error
        return [Choice("silly", "stop", 1, 1)] * (request.n * len(request.prompts))

    def room(self, prompt: Prompt) -> int | None:
        return 9

    def prompt_of(self, messages: Any) -> str:
        return "Response:"


def test_the_model_is_listed(url: str) -> None:
    with urllib.request.urlopen(f"{url}/models") as answer:
        assert [model["id"] for model in json.load(answer)["data"]] == ["bot"]


def test_scores_arrive_as_they_are(url: str, local: LocalTarget, ask: Ask) -> None:
    prompt, continuation = "User: caf", "é, 你好\n"
    answer = ask(url, "/completions", prompt=prompt + continuation, echo=True, max_tokens=0, logprobs=1)
    found = answer.body["choices"][0]["logprobs"]
    assert "".join(found["tokens"]) == prompt + continuation
    assert found["text_offset"][0] == 0
    assert all(
        after == before + len(token)
        for before, after, token in zip(found["text_offset"], found["text_offset"][1:], found["tokens"], strict=False)
    )
    scores = [
        score
        for token, at, score in zip(found["tokens"], found["text_offset"], found["token_logprobs"], strict=True)
        if at + len(token) > len(prompt)
    ]
    assert scores == pytest.approx(local.logprobs([prompt], [continuation])[0].tolist(), abs=1e-5)
    assert found["top_logprobs"][0] is None
    assert all(
        best[token] == score
        for best, token, score in zip(
            found["top_logprobs"][1:], found["tokens"][1:], found["token_logprobs"][1:], strict=True
        )
        if token.isascii() and token
    )


def test_logprobs_0_names_no_other_tokens(url: str, ask: Ask) -> None:
    found = ask(url, "/completions", prompt="a", logprobs=0, max_tokens=2).body["choices"][0]["logprobs"]
    assert found["top_logprobs"] is None
    assert len(found["token_logprobs"]) == 2


def test_one_request_with_a_seed_is_one_local_call(url: str, local: LocalTarget, ask: Ask) -> None:
    prompts = ["User: is", "x"]
    answer = ask(url, "/completions", prompt=prompts, n=3, max_tokens=6, seed=11, top_k=40, temperature=1.3)
    decoding = Decoding(temperature=1.3, top_k=40, stop=())
    expected = local.sample(prompts, n=3, max_new_tokens=6, decoding=decoding, seed=11)
    assert [choice["text"] for choice in answer.body["choices"]] == [text for row in expected for text in row]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/completions", {"prompt": "a", "model": "other"}, 404),
        ("/nope", {"prompt": "a"}, 404),
        ("/models", {}, 405),
        ("/completions", {"prompt": 3}, 400),
        ("/completions", {"prompt": "x" * 2000}, 400),
        ("/completions", {"prompt": "x" * MOST_BYTES}, 413),
        ("/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, 404),
    ],
)
def test_errors_have_openais_shape(url: str, path: str, body: dict[str, Any], status: int, ask: Ask) -> None:
    try:
        answer = ask(url, path, **body)
    except urllib.error.URLError:  # the server may hang up before a body that is too large has been sent
        assert status == 413
        return
    assert answer.status == status
    assert set(answer.body["error"]) == {"message", "type", "param", "code"}


def test_a_get_of_a_post_route_is_refused(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="405") as refused:
        urllib.request.urlopen(f"{url}/completions")
    refused.value.close()


def connection(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)


def test_a_connection_serves_many_requests(url: str) -> None:
    line = connection(url)
    for text in ("a", "b"):
        body = json.dumps({"model": "bot", "prompt": text, "max_tokens": 1})
        line.request("POST", "/v1/completions", body)
        answer = line.getresponse()
        assert json.load(answer)["object"] == "text_completion"
        assert answer.getheader("Connection") is None
    line.close()


def test_a_body_without_a_length_is_refused(url: str) -> None:
    line = connection(url)
    line.request("POST", "/v1/completions", iter([b"{}"]), encode_chunked=True)
    assert line.getresponse().status == 411
    line.close()


def test_another_host_name_is_refused(url: str, ask: Ask) -> None:
    answer = ask(url, "/completions", prompt="a", headers={"Host": "evil.example"})
    assert answer.status == 403


def test_nothing_of_what_is_asked_is_logged(local: LocalTarget, ask: Ask) -> None:
    lines: list[str] = []
    with serving(local, say=lines.append) as url:
        ask(url, "/completions", prompt=SECRET, max_tokens=2)
        ask(url, f"/{SECRET}", prompt="a")
        ask(url, "/completions", prompt=[SECRET, 1])
    assert len(lines) == 3
    assert lines[0].startswith("POST /v1/completions 200 ")
    assert lines[0].endswith(" 1 choices")
    assert SECRET not in " ".join(lines)


@pytest.mark.parametrize("error", [AuditError("the bot failed"), RuntimeError(SECRET)])
def test_a_bot_that_fails_is_an_error_and_shows_nothing(error: Exception, ask: Ask, capfd: Any) -> None:
    with running(Endpoint({"bot": Silly(error)})) as server:
        answer = ask(server.url, "/completions", prompt=SECRET)
    assert answer.status == 500
    assert answer.body["error"]["type"] == "server_error"
    assert SECRET not in json.dumps(answer.body)
    assert SECRET not in "".join(capfd.readouterr())


def test_a_client_that_leaves_does_not_end_the_server(ask: Ask, capfd: Any) -> None:
    with running(Endpoint({"bot": Silly()})) as server:
        parts = urlsplit(server.url)
        with socket.create_connection((parts.hostname or "", parts.port or 0)) as line:
            line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        assert ask(server.url, "/completions", prompt="a").status == 200
    assert "Traceback" not in "".join(capfd.readouterr())


def test_the_end_waits_for_the_answer_that_is_being_made(ask: Ask) -> None:
    bot, answers = Silly(pause=0.5), list[Any]()
    with running(Endpoint({"bot": bot})) as server:
        thread = threading.Thread(target=lambda: answers.append(ask(server.url, "/completions", prompt="a")))
        thread.start()
        while not bot.n_inside:
            time.sleep(0.001)
    assert bot.n_inside == 0
    thread.join()
    assert [answer.status for answer in answers] == [200]


def test_the_end_does_not_wait_for_a_request_that_never_comes() -> None:
    with running(Endpoint({"bot": Silly()})) as server:
        parts = urlsplit(server.url)
        line = socket.create_connection((parts.hostname or "", parts.port or 0))
        line.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
        started = time.monotonic()
    assert time.monotonic() - started < 10
    line.close()


def test_one_request_at_a_time_reaches_the_model(ask: Ask) -> None:
    bot = Silly(pause=0.02)
    with running(Endpoint({"bot": bot})) as server:
        threads = [threading.Thread(target=ask, args=(server.url, "/completions"), kwargs={"prompt": "a"})] * 1
        threads += [
            threading.Thread(target=ask, args=(server.url, "/completions"), kwargs={"prompt": "a"}) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert bot.most_inside == 1


def test_a_chat_is_answered_within_its_room(ask: Ask) -> None:
    bot = Silly()
    with running(Endpoint({"bot": bot})) as server:
        answer = ask(server.url, "/chat/completions", messages=[{"role": "user", "content": "hi"}], n=2)
    assert [choice["message"]["content"] for choice in answer.body["choices"]] == ["silly", "silly"]
    assert answer.body["choices"][0]["message"]["role"] == "assistant"


def test_a_port_that_is_taken_is_a_configuration_error(url: str, local: LocalTarget) -> None:
    with (
        pytest.raises(ConfigError, match="choose another"),
        serving(local, port=urlsplit(url).port or 0),
    ):
        pass


def test_unknown_faults_are_refused() -> None:
    with pytest.raises(ConfigError, match="drop_logprobs"):
        faults_of(["dorp_logprobs"])
    assert len(FAULTS) == 7


ECHO = {"prompt": "User: is", "echo": True, "max_tokens": 0, "logprobs": 1}


def test_drop_logprobs_says_yes_and_does_not(local: LocalTarget, ask: Ask) -> None:
    with serving(local, faults=["drop_logprobs"]) as url:
        answer = ask(url, "/completions", **ECHO)
        assert answer.status == 200
        assert answer.body["choices"][0]["logprobs"] is None
        assert not answer.body["choices"][0]["text"].startswith("User: is")


def test_off_by_one_is_plausible(local: LocalTarget, url: str, ask: Ask) -> None:
    with serving(local, faults=["off_by_one"]) as faulty:
        wrong = ask(faulty, "/completions", **ECHO).body["choices"][0]["logprobs"]
    right = ask(url, "/completions", **ECHO).body["choices"][0]["logprobs"]
    assert wrong["tokens"] == right["tokens"][1:]
    assert wrong["token_logprobs"][0] is None
    assert all(score < 0 for score in wrong["token_logprobs"][1:])
    assert wrong["token_logprobs"][1:] != pytest.approx(right["token_logprobs"][2:], abs=1e-3)


def test_no_echo_400_still_scores_what_it_writes(local: LocalTarget, ask: Ask) -> None:
    with serving(local, faults=["no_echo_400"]) as url:
        assert ask(url, "/completions", **ECHO).status == 400
        answer = ask(url, "/completions", prompt="a", logprobs=1, max_tokens=1)
        assert answer.body["choices"][0]["logprobs"]["top_logprobs"]


def test_429_asks_for_patience_twice(local: LocalTarget, ask: Ask) -> None:
    with serving(local, faults=["429_retry_after"]) as url:
        answers = [ask(url, "/completions", prompt="a", max_tokens=1) for _ in range(6)]
    assert [answer.status for answer in answers] == [429, 429, 200, 429, 429, 200]
    assert answers[0].headers["Retry-After"] == "1"
    assert answers[2].headers["Retry-After"] is None


def test_drip_sends_byte_by_byte(local: LocalTarget, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drip, "pause", 0.001)
    with serving(local, faults=["drip"]) as url:
        started = time.perf_counter()
        answer = ask(url, "/completions", prompt="a", max_tokens=1)
        assert answer.status == 200
        assert time.perf_counter() - started > 0.001 * int(answer.headers["Content-Length"])


def test_max_tokens_0_runs_on(local: LocalTarget, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaxTokens0RunsOn, "most", 7)
    with serving(local, faults=["max_tokens0_runs_on"]) as url:
        choice = ask(url, "/completions", **ECHO).body["choices"][0]
    assert len(choice["text"]) > len("User: is")
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]


def test_batch_500_breaks_on_a_list(local: LocalTarget, ask: Ask) -> None:
    with serving(local, faults=["batch_500"]) as url:
        assert ask(url, "/completions", prompt=["a", "b"]).status == 500
        assert ask(url, "/completions", prompt=["a"]).status == 200


def test_the_bot_before_fine_tuning_is_served_beside_it(local: LocalTarget, ask: Ask) -> None:
    other = LocalTarget(another_like(local), local.tokenizer)
    target = LocalTarget(local.causal_lm, local.tokenizer, reference=other)
    text = "User: is"
    with serving(target, base_name="base") as url:
        bot, base = (ask(url, "/completions", model=name, **ECHO).body for name in ("bot", "base"))
        with urllib.request.urlopen(f"{url}/models") as answer:
            assert [model["id"] for model in json.load(answer)["data"]] == ["bot", "base"]
    assert (bot["model"], base["model"]) == ("bot", "base")
    scores = base["choices"][0]["logprobs"]["token_logprobs"][1:]
    assert scores == pytest.approx(other.logprobs([""], [text])[0].tolist(), abs=1e-5)
    assert scores != pytest.approx(bot["choices"][0]["logprobs"]["token_logprobs"][1:], abs=1e-3)


def test_a_base_that_is_not_there_is_a_configuration_error(local: LocalTarget) -> None:
    with pytest.raises(ConfigError, match="base=before"), serving(local, base_name="before"):
        pass


def another_like(target: LocalTarget) -> Any:
    """Return a model like a target's with other weights."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return type(target.causal_lm.core)(target.causal_lm.core.config)
