"""Single draws of a call of `sample`, for targets that can be asked for some of them alone.

Guarantees: a target's promise that draws depend on prompt, prompt position, draw number and seed only makes each draw a
question of its own; who may choose the position freely can ask for draws from many prompts at once that are the same
whatever else is asked for.

Voids it: nothing here; whether draws keep that promise is up to the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from hushbot.types import Decoding


class Place(NamedTuple):
    """One draw of a call of `sample`."""

    prompt: str
    position: int
    """Of the prompt in the call."""
    draw: int
    """Number of the draw, counted from 0."""


@runtime_checkable
class SamplesPlaces(Protocol):
    """A target that can be asked for some draws of a call alone."""

    def sample_places(
        self, places: Sequence[Place], *, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[str]:
        """Return one text per place: the one that `sample` returns there."""
        ...
