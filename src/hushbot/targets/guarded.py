"""A bot behind a guard: the target as deployed, where a recipe changes what it says.

Guarantees: what a guard does not override passes through unchanged, errors of the bot included; the reference of a
guarded bot stands behind the same guard, so that a base control differs in training alone; beside the protocol only
the bot's `name` and `device` show, so that nobody asks the bot around its guard by accident. `unguarded` is the one
deliberate way around, for what is a property of the bot itself, such as its perplexity.

Voids it: reading `inner`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hushbot.errors import ConfigError
from hushbot.protocols import Target
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class GuardedTarget:
    """A target around another one; everything passes through unless a subclass overrides it.

    A subclass with settings of its own overrides `guarded`, and calls `super().__init__(inner)`.

    Args:
        inner: The bot, or a guarded bot: guards stack.
    """

    prompt_overhead: str = ""
    """What it adds to every prompt, at most: who fits prompts to the model's context leaves room for it."""

    def __init__(self, inner: Target) -> None:
        self.inner = inner

    def guarded(self, inner: Target) -> GuardedTarget:
        """Return the same guard, with the same settings, around another target."""
        return type(self)(inner)

    @property
    def reference(self) -> Target | None:
        """The bot before fine-tuning behind the same guard; None when there is no such thing."""
        reference = self.inner.reference
        return None if reference is None else self.guarded(reference)

    @property
    def name(self) -> str:
        """What reports call the bot: the inner target's name."""
        return str(getattr(self.inner, "name", ""))

    @property
    def device(self) -> str:
        """The kind of device the bot runs on.

        Raises:
            AttributeError: The inner target does not say.
        """
        inner: Any = self.inner
        return str(inner.device)

    def sample(
        self,
        prompts: Sequence[str],
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        """Return n continuations per prompt, as the target protocol asks."""
        return self.inner.sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the log-probability of each continuation token, as the target protocol asks."""
        return self.inner.logprobs(prompts, continuations)


def with_layout_stops(decoding: Decoding) -> Decoding:
    """Return a decoding for texts that are guarded afterwards: it ends at a line break if asked to, at nothing else.

    A stop string of the caller's choice would tell whether the text before its guard holds it, so whoever asks often
    enough would read that text letter by letter; `before_stop` applies it to what leaves.

    Raises:
        ConfigError: A stop string is empty.
    """
    if "" in decoding.stop:
        raise ConfigError(f"stop={decoding.stop!r} holds an empty string; remove it from decoding.stop")
    return replace(decoding, stop=tuple(stop for stop in decoding.stop if stop == "\n"))


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return what stands before the first of some stop strings."""
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]


def unguarded(target: Target) -> Target:
    """Return the bot itself, without any guard around it."""
    while isinstance(target, GuardedTarget):
        target = target.inner
    return target


def prompt_overhead(target: Target) -> str:
    """Return all that the guards around a bot add to a prompt."""
    added = ""
    while isinstance(target, GuardedTarget):
        added += target.prompt_overhead
        target = target.inner
    return added


def guard_names(target: Target) -> tuple[str, ...]:
    """Return the names of the guards around a bot, the innermost first: `ValueCopyTarget` is `value_copy`."""
    names: list[str] = []
    while isinstance(target, GuardedTarget):
        names.insert(0, _WORD_START.sub("_", type(target).__name__.removesuffix("Target")).lower())
        target = target.inner
    return tuple(names)
