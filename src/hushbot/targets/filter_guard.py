"""A bot whose texts are rewritten before anyone sees them, and how a sampled text is cut into lines.

Guarantees: no sampled text leaves unless the rewriter returned one text for each that it was given. A rewriter that
fails, answers with another number of texts or with something that is no text, or turns a readable dialogue state into
an unreadable one, is an `AuditError`, whose message holds none of the texts. Stop strings end the rewritten text:
whether the bot's own words held one does not show, save for the line break that ends a line of our layout. An empty
answer is an answer: the bot then says nothing.

Voids it: reading probabilities. `logprobs` passes through as it is, so an attacker who scores texts sees the bot
without its filter; only an endpoint that returns no log-probabilities closes that way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import (
    ACTIONS_MARKER,
    DATABASE_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    SYSTEM_MARKER,
    USER_MARKER,
    read_state,
    render_state,
)
from hushbot.protocols import Target
from hushbot.targets.guarded import GuardedTarget, before_stop, with_layout_stops
from hushbot.types import Decoding

MARKERS = (USER_MARKER, SYSTEM_MARKER, STATE_MARKER, DATABASE_MARKER, ACTIONS_MARKER, RESPONSE_MARKER)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@runtime_checkable
class Rewriter(Protocol):
    """Says the same with other words."""

    def rewrite(self, texts: Sequence[str], prompts: Sequence[str]) -> list[str]:
        """Return one text for each text, given the prompt that it continues.

        A state must stay readable.
        """
        ...


class Line(NamedTuple):
    """One line of a sampled text; `head + body` is what the text holds of it."""

    marker: str
    """The marker at the line's start; empty where it has none. A bare state counts as marked."""
    before: str
    """What the prompt already holds of the line."""
    head: str
    """What the text holds of the marker."""
    body: str
    """The rest, its line break included."""

    @property
    def is_state(self) -> bool:
        """Return whether the line writes a dialogue state."""
        return self.marker == STATE_MARKER


def cut_lines(text: str, prompt: str) -> list[Line]:
    """Cut a sampled text into lines; the first goes on where the prompt ends."""
    lines = []
    before = prompt.rpartition("\n")[2]
    for part in _LINE.findall(text):
        whole = before + part
        marker = next((marker for marker in MARKERS if whole.startswith(marker)), "")
        n_head = min(len(part), max(0, len(marker) - len(before)))
        if not marker and _is_bare_state(whole):
            marker = STATE_MARKER
        lines.append(Line(marker, before, part[:n_head], part[n_head:]))
        before = ""
    return lines


def _is_bare_state(text: str) -> bool:
    state = read_state(text).state
    return bool(state) and render_state(state or frozenset()) == text.strip()


class FilterGuardTarget(GuardedTarget):
    """A target whose samples pass a rewriter.

    Args:
        inner: The bot.
        rewriter: What every sampled text goes through.
    """

    def __init__(self, inner: Target, *, rewriter: Rewriter) -> None:
        super().__init__(inner)
        self.rewriter = rewriter

    def guarded(self, inner: Target) -> FilterGuardTarget:
        """Return another target behind the same rewriter."""
        return FilterGuardTarget(inner, rewriter=self.rewriter)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        """Return n rewritten continuations per prompt.

        Raises:
            AuditError: The bot or the rewriter failed; the message holds no text of the bot.
        """
        asked_for = with_layout_stops(decoding)
        drawn = super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=asked_for, seed=seed)
        if len(drawn) != len(prompts):
            raise AuditError(f"the bot answered {len(drawn)} of {len(prompts)} prompts; the filter needs all")
        texts = [text for row in drawn for text in row]
        asked = [prompt for prompt, row in zip(prompts, drawn, strict=True) for _ in row]
        rewritten = iter(rewrite_all(self.rewriter, texts, asked, stop=decoding.stop))
        return [[next(rewritten) for _ in row] for row in drawn]


def rewrite_all(rewriter: Rewriter, texts: Sequence[str], prompts: Sequence[str], *, stop: Sequence[str]) -> list[str]:
    """Return what a rewriter makes of texts, cut before the first stop string; all of it or an error.

    Raises:
        AuditError: The rewriter failed, or broke what it promises.
        ConfigError: The rewriter cannot be loaded.
    """
    if not texts:
        return []
    name = type(rewriter).__name__
    try:
        answer = rewriter.rewrite(texts, prompts)
    except (AuditError, ConfigError):
        raise
    except (
        Exception
    ) as error:  # any other failure, whatever it is: its message may quote a text, so only its type shows
        raise AuditError(
            f"rewriter {name} failed with {type(error).__name__}; no unfiltered text was let out"
        ) from error
    if not isinstance(answer, list | tuple) or not all(isinstance(text, str) for text in answer):
        raise AuditError(
            f"rewriter {name} returned something other than a list of texts; no unfiltered text was let out"
        )
    if len(answer) != len(texts):
        raise AuditError(
            f"rewriter {name} returned {len(answer)} texts for {len(texts)}; it must return one for each, "
            "and no unfiltered text was let out"
        )
    n_broken = sum(
        _n_states(new, prompt) < _n_states(old, prompt) for old, new, prompt in zip(texts, answer, prompts, strict=True)
    )
    if n_broken:
        raise AuditError(
            f"rewriter {name} made {n_broken} of {len(texts)} texts lose a readable dialogue state; "
            "it must leave states readable"
        )
    return [before_stop(text, stop) for text in answer]


def _n_states(text: str, prompt: str) -> int:
    """Return how many lines of a text hold a state that can be read."""
    return sum(
        read_state(line.before + line.head + line.body).state is not None
        for line in cut_lines(text, prompt)
        if line.is_state
    )
