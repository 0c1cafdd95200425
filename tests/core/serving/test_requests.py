"""Request bodies: what is asked is understood or refused by name, and never repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hushbot.serving.requests import Message, RequestError, read_chat, read_completion
from hushbot.types import Decoding

SECRET = "ZXCVBNM1"


def completion(**fields: Any) -> Any:
    return read_completion(json.dumps({"model": "bot", "prompt": "a", **fields}).encode())[1]


def chat(*messages: Any, **fields: Any) -> Any:
    return read_chat(json.dumps({"model": "bot", "messages": messages, **fields}).encode())[1]


def test_what_is_not_said_is_openais_default() -> None:
    request = completion()
    assert (request.prompts, request.n, request.max_tokens, request.echo, request.n_top) == (("a",), 1, 16, False, None)
    assert request.decoding == Decoding(temperature=1, top_p=1, top_k=0, stop=())
    assert completion(max_tokens=None, stop=None, logprobs=None, n=None).max_tokens == 16


def test_every_setting_arrives() -> None:
    request = completion(n=3, max_tokens=7, temperature=2, top_p=0.5, top_k=4, stop=["x", "y"], seed=-9, logprobs=0)
    assert request.decoding == Decoding(temperature=2, top_p=0.5, top_k=4, stop=("x", "y"))
    assert (request.n, request.max_tokens, request.seed, request.n_top) == (3, 7, -9, 0)
    assert completion(stop="x").decoding.stop == ("x",)
    assert completion(top_k=-1).decoding.top_k == 0


def test_without_a_seed_no_two_requests_draw_alike() -> None:
    assert completion().seed != completion().seed


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", ("",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts_come_in_four_forms(prompt: Any, expected: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", True),
        ("n", 5000),
        ("prompt", []),
        ("prompt", [SECRET, 1]),
        ("prompt", {SECRET: SECRET}),
        ("max_tokens", -1),
        ("max_tokens", 0),
        ("max_tokens", "3"),
        ("temperature", -0.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("logprobs", 21),
        ("logprobs", True),
        ("echo", "yes"),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("seed", 2**63),
        ("stream", True),
        ("best_of", 2),
        ("suffix", SECRET),
        ("logit_bias", {"50256": -100}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("min_p", 0.1),
        ("tools", [SECRET]),
    ],
)
def test_what_cannot_be_done_is_refused_by_name_and_not_repeated(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        completion(**{field: value})
    assert refused.value.param == field
    assert refused.value.status == 400
    assert field in str(refused.value)
    assert SECRET not in json.dumps(refused.value.body)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"a"', b"\xff{}", b'{"model": "bot", "prompt": "\\ud800"}'])
def test_bodies_that_are_no_json_object_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestError, match="JSON") as refused:
        read_completion(raw)
    assert refused.value.status == 400


def test_not_a_number_is_no_temperature() -> None:
    with pytest.raises(RequestError):
        read_completion(b'{"model": "bot", "prompt": "a", "temperature": NaN}')


def test_the_model_must_be_named() -> None:
    with pytest.raises(RequestError, match="model is missing"):
        read_completion(b'{"prompt": "a"}')


def test_a_chat_is_read() -> None:
    asked = chat(
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "yes"},
        logprobs=True,
        top_logprobs=3,
        max_completion_tokens=5,
        stop="x",
    )
    assert asked.messages == (Message("user", "hi"), Message("assistant", "ab"), Message("user", "yes"))
    assert (asked.completion.max_tokens, asked.completion.n_top) == (5, 3)
    assert asked.completion.decoding.stop == ("x", "\n")


@pytest.mark.parametrize(
    ("messages", "fields", "told"),
    [
        ([{"role": "system", "content": SECRET}, {"role": "user", "content": "a"}], {}, "system messages"),
        ([{"role": "assistant", "content": SECRET}], {}, "user"),
        ([], {}, "messages"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": SECRET}]}], {}, "parts of type text"),
        ([{"role": "user", "content": "a"}], {"top_logprobs": 1}, "logprobs=true"),
        ([{"role": "user", "content": "a"}], {"max_tokens": 0}, "max_tokens"),
    ],
)
def test_chats_that_cannot_be_answered_are_refused(messages: Any, fields: Any, told: str) -> None:
    with pytest.raises(RequestError, match=told) as refused:
        chat(*messages, **fields)
    assert SECRET not in str(refused.value)
