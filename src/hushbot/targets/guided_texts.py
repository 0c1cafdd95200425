"""What guided sampling makes: what may follow a text, the texts that were drawn, and how much was asked for them.

Guarantees: the counts of a prompt's texts are those of its draws; two texts of one prompt differ in what they say or in
whether they came to their end. Queries are counted alike whoever draws: a phrase once for each distinct text that it
was scored behind, prompt included, however many draws share that text; a free piece once for each draw that wrote it.

Voids it: a grammar that answers the same text differently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

END_OF_TEXT = "\n"
"""What ends a free piece as well, and with it the whole text."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The next piece is one of some phrases."""

    phrases: tuple[str, ...]
    """Distinct, not empty, none the beginning of another."""


@dataclass(frozen=True, slots=True)
class Free:
    """The next piece is any text up to a delimiter, which is not part of it; an empty one ends its text."""

    delimiters: str
    """Characters that end the piece; a backslash before one takes that meaning away."""
    max_new_tokens: int
    """Longest piece in tokens; a longer one is cut there, and so is its text. A line break ends a text, too."""


class Grammar(Protocol):
    """What may follow a text."""

    def next(self, text: str) -> Choice | Free | None:
        """Return how a text goes on; None where it is at its end.

        Args:
            text: The prompt and everything that was written after it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Guided:
    """One distinct text among n draws."""

    text: str
    """What was written after the prompt."""
    count: int
    """In how many of the draws."""
    is_complete: bool
    """Whether it came to its end; one whose free piece found no delimiter did not."""
    mass: tuple[float, ...]
    """Per choice, the bot's probability of all its phrases together: how little the grammar had to force."""


class GuidedDraws(NamedTuple):
    """All draws from some prompts, and what they cost."""

    texts: list[list[Guided]]
    """Per prompt its distinct texts, sorted; their counts add up to the number of draws."""
    n_phrases: int
    """Phrases that were scored, each once per distinct text before it."""
    n_pieces: int
    """Free pieces that were drawn, one per draw."""

    @property
    def n_queries(self) -> int:
        """Return how many phrases and free pieces the bot was asked for."""
        return self.n_phrases + self.n_pieces


@dataclass(frozen=True, slots=True)
class Node:
    """Some of the draws from one prompt, so far alike."""

    position: int
    text: str
    count: int
    mass: tuple[float, ...] = ()

    def longer(self, text: str, count: int) -> Node:
        """Return some of them, which go on with a text."""
        return Node(self.position, self.text + text, count, self.mass)


class Harvest:
    """The finished texts of each prompt, counted, and what was asked on the way to them."""

    def __init__(self, prompts: Sequence[str]) -> None:
        self._prompts = prompts
        self._counts: list[Counter[tuple[str, bool]]] = [Counter() for _ in prompts]
        self._masses: list[dict[tuple[str, bool], tuple[float, ...]]] = [{} for _ in prompts]
        self._n_phrases: dict[str, int] = {}
        self._n_pieces = 0

    def add(self, node: Node, *, is_complete: bool) -> None:
        """Take in a text that is at its end."""
        key = (node.text, is_complete)
        self._counts[node.position][key] += node.count
        self._masses[node.position].setdefault(key, node.mass)

    def note_question(self, node: Node, rule: Choice | Free) -> None:
        """Count what a text asks for to go on: nothing if its phrases were scored already."""
        if isinstance(rule, Choice):
            self._n_phrases[self._prompts[node.position] + node.text] = len(rule.phrases)
        else:
            self._n_pieces += node.count

    def draws(self) -> GuidedDraws:
        """Return the distinct texts of each prompt, sorted, and the number of questions."""
        texts = [
            [
                Guided(text, count, complete, masses[text, complete])
                for (text, complete), count in sorted(counts.items())
            ]
            for counts, masses in zip(self._counts, self._masses, strict=True)
        ]
        return GuidedDraws(texts, sum(self._n_phrases.values()), self._n_pieces)


def end_of_piece(text: str, delimiters: str) -> int | None:
    """Return where the first delimiter that no backslash escapes, or the first line break stands; None without one."""
    escaped = False
    for i, character in enumerate(text):
        # A line break ends a text even behind a backslash: the layout has none inside a value, and bots stop there.
        if character == END_OF_TEXT or (not escaped and character in delimiters):
            return i
        escaped = character == "\\" and not escaped
    return None


def merged(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes of which no two have the same text of the same prompt."""
    known: dict[tuple[int, str], Node] = {}
    for node in nodes:
        same = known.get((node.position, node.text))
        known[node.position, node.text] = node if same is None else replace(same, count=same.count + node.count)
    return list(known.values())
