"""Answers to requests, whoever carries them: routes to bots, errors and faults.

Guarantees: one request at a time reaches the models, which may share weights. A path or model that does not exist is an
error with status 404.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hushbot.serving.answers import Choice, chat_body, completion_body, models_body
from hushbot.serving.faults import Fault
from hushbot.serving.requests import CompletionRequest, RequestError, read_chat, read_completion

if TYPE_CHECKING:
    from hushbot.serving.bot import Bot

ROUTES = {"/v1/models": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST"}
"""What there is, and how it is asked for."""


class Endpoint:
    """Answers requests, whoever carries them.

    Args:
        bots: Who is asked, by the name of the model.
        faults: What goes wrong; for tests.
    """

    def __init__(self, bots: Mapping[str, Bot], faults: Sequence[Fault] = ()) -> None:
        self.faults = tuple(faults)
        self._bots = {name: self._faulty_bot(bot) for name, bot in bots.items()}
        self._created = int(time.time())
        self._lock = threading.Lock()

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Return the answer to a request that has come to the right route.

        Raises:
            RequestError: It cannot be answered.
            AuditError: The bot failed.
        """
        for fault in self.faults:
            fault.check()
        if path == "/v1/models":
            return models_body(list(self._bots), self._created)
        return self._chat(body) if path == "/v1/chat/completions" else self._complete(body)

    def _complete(self, body: bytes) -> dict[str, Any]:
        model, request = read_completion(body)
        bot, request = self._bot(model), self._faulty(request)
        with self._lock:
            choices = bot.complete(request)
        return completion_body(model, choices, n=request.n, n_top=request.n_top)

    def _chat(self, body: bytes) -> dict[str, Any]:
        model, chat = read_chat(body)
        bot, asked = self._bot(model), self._faulty(chat.completion)
        with self._lock:
            prompt = bot.prompt_of(chat.messages)
            room = bot.room(prompt)
            most = asked.max_tokens if room is None else min(asked.max_tokens, room)
            choices: list[Choice] = []
            if most > 0:
                choices = bot.complete(replace(asked, prompts=(prompt,), max_tokens=most))
        if not choices:
            raise RequestError(
                "the chat leaves no room for an answer; shorten it", param="messages", code="context_length_exceeded"
            )
        return chat_body(model, choices, n_top=asked.n_top)

    def _bot(self, model: str) -> Bot:
        if model not in self._bots:
            raise RequestError(
                f"there is no such model; this server has {', '.join(self._bots)}",
                status=404,
                param="model",
                code="model_not_found",
            )
        return self._bots[model]

    def _faulty_bot(self, bot: Bot) -> Bot:
        for fault in self.faults:
            bot = fault.bot(bot)
        return bot

    def _faulty(self, request: CompletionRequest) -> CompletionRequest:
        for fault in self.faults:
            request = fault.request(request)
        return request
