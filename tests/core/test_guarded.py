"""A guard that changes nothing is not noticed; one that does stands around the reference, too, and can be peeled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from hushbot.errors import AuditError
from hushbot.protocols import Target
from hushbot.targets.guarded import GuardedTarget, guard_names, unguarded
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor


class Loud(GuardedTarget):
    """Says everything in capitals."""

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        drawn = super().sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)
        return [[text.upper() for text in texts] for texts in drawn]


class Echo:
    """Repeats how it was asked; is named, and runs somewhere."""

    name = "echo"
    device = "cpu"
    tokenizer = "private"

    def __init__(self, reference: Target | None = None) -> None:
        self.reference = reference

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        return [[f"{prompt} {n} {max_new_tokens} {decoding.temperature:g} {seed}"] * n for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        return [torch.tensor([-float(len(text))]) for text in continuations]


def say(target: Target) -> list[list[str]]:
    return target.sample(["a", "b"], n=1, max_new_tokens=5, decoding=Decoding(temperature=0.5), seed=7)


def test_by_default_everything_passes_through() -> None:
    guard = GuardedTarget(Echo())
    assert isinstance(guard, Target)
    assert say(guard) == [["a 1 5 0.5 7"], ["b 1 5 0.5 7"]]
    assert [score.tolist() for score in guard.logprobs([""], ["abc"])] == [[-3.0]]
    assert (guard.name, guard.device, guard.reference) == ("echo", "cpu", None)


def test_the_bot_is_not_asked_around_its_guard_by_accident() -> None:
    assert not hasattr(GuardedTarget(Echo()), "tokenizer")


def test_what_the_bot_does_not_say_is_not_made_up(failing_target: Any) -> None:
    guard = GuardedTarget(failing_target)
    assert guard.name == ""
    with pytest.raises(AttributeError, match="device"):
        _ = guard.device


def test_the_reference_stands_behind_the_same_guard() -> None:
    base = Echo()
    reference = Loud(Echo(base)).reference
    assert isinstance(reference, Loud)
    assert reference.inner is base
    assert say(reference)[0] == ["A 1 5 0.5 7"]
    assert reference.reference is None


def test_unguarded_peels_all_guards_off() -> None:
    bot = Echo()
    assert unguarded(bot) is bot
    assert unguarded(Loud(GuardedTarget(bot))) is bot
    assert guard_names(bot) == ()
    assert guard_names(Loud(GuardedTarget(bot))) == ("guarded", "loud")


def test_an_error_of_the_bot_passes_through(failing_target: Any) -> None:
    guard = Loud(failing_target)
    with pytest.raises(AuditError, match="503"):
        say(guard)
    with pytest.raises(AuditError, match="no log-probabilities"):
        guard.logprobs([""], ["a"])
