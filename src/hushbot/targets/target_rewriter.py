"""A rewriter that asks another model to say the same in other words.

Guarantees: every spoken line of a text (responses, and text without a marker) is rephrased greedily, each distinct
one once; machine-readable lines (states, actions, lookups) would be broken by other words and go through
`MaskIdentifiers` instead. A model that fails or does not answer every request raises, so nothing is let through.

Voids it: a model that repeats what it is told to rephrase. How well it rephrases is its own affair; measure utility and
leakage behind it.

Source: the filter-based defence of the multiple-choice membership paper, appendix G, which sends texts to a larger
model to be rephrased. Our wording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from hushbot.errors import AuditError
from hushbot.prompts import ACTIONS_MARKER, DATABASE_MARKER, STATE_MARKER, one_line
from hushbot.protocols import Target
from hushbot.targets.filter_guard import Line, cut_lines
from hushbot.targets.mask_identifiers import MaskIdentifiers
from hushbot.types import Decoding

REQUEST = (
    "Rewrite the sentence below in your own words. Keep what it means and change how it is put; "
    "leave out any name, number or code that the meaning can do without."
)
_MACHINE_READ = frozenset([STATE_MARKER, ACTIONS_MARKER, DATABASE_MARKER])


@dataclass(frozen=True, kw_only=True)
class PretrainedTarget:
    """A model that is loaded when it is first needed, so that a configuration can be checked without it."""

    path: str
    """A model folder or hub id."""
    adapter: str | None = None
    """An adapter folder to put on top."""

    def __call__(self) -> Target:
        """Load the model.

        Raises:
            ConfigError: It cannot be loaded.
        """
        from hushbot.targets.local import LocalTarget

        return LocalTarget.from_pretrained(self.path, adapter=self.adapter)


def loaded_target(component: Any) -> Target:
    """Return a target as it is, or what a component that returns one gives when it is called."""
    return cast("Target", component if hasattr(component, "sample") else component())


@dataclass(frozen=True, kw_only=True)
class TargetRewriter:
    """Rephrase with a model."""

    target: Any
    """A target, or a component that returns one when it is called, such as `PretrainedTarget`."""
    request: str = REQUEST
    """What the model is asked to do with each sentence."""
    max_new_tokens: int = 128
    """Longest rephrased sentence in tokens."""
    machine_read: MaskIdentifiers = field(default_factory=MaskIdentifiers)
    """What states, actions and lookups go through."""

    def __post_init__(self) -> None:
        if not (hasattr(self.target, "sample") or callable(self.target)):
            raise ValueError(f"target={self.target!r} is neither a target nor a component that returns one")
        if not one_line(self.request):
            raise ValueError(f"request={self.request!r} is empty; say what to do with each sentence")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be at least 1")

    def rewrite(self, texts: Sequence[str], prompts: Sequence[str]) -> list[str]:
        """Return each text in other words.

        Raises:
            AuditError: The model failed, or did not answer each request with one text.
        """
        cut = [cut_lines(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
        spoken = dict.fromkeys(one_line(line.body) for lines in cut for line in lines if _is_spoken(line))
        rephrased = self._rephrase(list(spoken))
        masked = self.machine_read.rewrite(texts, prompts)
        return [
            "".join(
                _replace(line, rephrased) if _is_spoken(line) else other.head + other.body
                for line, other in zip(lines, cut_lines(text, prompt), strict=True)
            )
            for lines, text, prompt in zip(cut, masked, prompts, strict=True)
        ]

    @cached_property
    def _model(self) -> Target:
        return loaded_target(self.target)

    def _rephrase(self, sentences: Sequence[str]) -> dict[str, str]:
        if not sentences:
            return {}
        answers = self._model.sample(
            [f"{one_line(self.request)}\nSentence: {sentence}\nRewritten:" for sentence in sentences],
            n=1,
            max_new_tokens=self.max_new_tokens,
            decoding=Decoding(temperature=0),
            seed=0,
        )
        if [len(drawn) for drawn in answers] != [1] * len(sentences):
            raise AuditError(f"the rephrasing model did not answer each of {len(sentences)} requests with one text")
        return {sentence: one_line(drawn[0]) for sentence, drawn in zip(sentences, answers, strict=True)}


def _is_spoken(line: Line) -> bool:
    return line.marker not in _MACHINE_READ and bool(line.body.strip())


def _replace(line: Line, rephrased: dict[str, str]) -> str:
    """Return a line with its sentence rephrased; blanks around it and its line break stay."""
    body = line.body
    lead, trail = body[: len(body) - len(body.lstrip())], body[len(body.rstrip()) :]
    return line.head + lead + rephrased[one_line(body)] + trail
