"""A small random bot, and how to ask a server as any client would."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from torch import nn

from hushbot.targets.local import LocalTarget

PROMPTS = ("User: a cheap café\nBelief State:", "", "x", "Belief State: 你好", "User: is there a golden wok?\n")


class Answered(NamedTuple):
    status: int
    body: Any
    headers: Any


@pytest.fixture(scope="session")
def local(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    return LocalTarget(make_small_model(), small_tokenizer, name="small")


@pytest.fixture(scope="session")
def ask() -> Callable[..., Answered]:
    """Return a function that sends JSON and returns status and answer; `raw` sends bytes as they are."""

    def send(url: str, path: str, raw: bytes | None = None, headers: dict[str, str] | None = None, **body: Any) -> Any:
        data = raw if raw is not None else json.dumps({"model": "bot", **body}).encode()
        request = urllib.request.Request(url + path, data=data, headers=headers or {})
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return Answered(answer.status, json.load(answer), answer.headers)
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, json.load(error), error.headers)

    return send
