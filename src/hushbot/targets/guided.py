"""Guided sampling: some pieces of a text are chosen among whole phrases, the others are free up to a delimiter.

Guarantees: a phrase is drawn in proportion to the probability of the *whole* phrase after the text so far, at a
temperature if asked for; a free piece follows the bot's own law and ends before the first delimiter that no backslash
escapes. The n draws from a prompt are made as counts: a multinomial splits the draws that share a text over the ways
it goes on, which is the joint law of n independent draws, while each distinct text is asked about once. The same
prompts, n and seed give the same texts, however a target batches.

Choosing token by token among the tokens that lead to some phrase (`law="token"`) is a different law: Q(c) is the
product of p(t_i) / Z_i, Z_i the mass of the tokens allowed at step i, where the phrase law is the product of p(t_i)
over its sum. The two agree only where the products of the Z_i do. It is here to be compared with, for targets that
show their tokens; its steps begin where the spellings of text and phrase part, which is before the end of the text if a
token straddles it.

Voids it: a target whose draws depend on more than prompt position, draw number and seed; free pieces whose bot never
writes a delimiter (they are cut, and marked so).

Source: Task-oriented dialogue state extraction, section IV-B2 (w = Sample(P(w' | prefix), w' in C)).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from hushbot.errors import AuditError, ConfigError
from hushbot.intervals import FloatArray
from hushbot.protocols import Target
from hushbot.types import Decoding

Law = Literal["phrase", "token"]
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


@runtime_checkable
class SamplesGuided(Protocol):
    """A target that samples guided texts itself, faster than through single questions."""

    def sample_guided(
        self, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law = "phrase"
    ) -> list[list[Guided]]:
        """Return what the function of this name returns."""
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """Some of the draws from one prompt, so far alike."""

    position: int
    text: str
    count: int
    mass: tuple[float, ...] = ()


def sample_guided(
    target: Target,
    prompts: Sequence[str],
    grammar: Grammar,
    *,
    n: int,
    decoding: Decoding,
    seed: int,
    law: Law = "phrase",
) -> list[list[Guided]]:
    """Return the distinct texts of n draws per prompt, sorted; their counts add up to n.

    Args:
        target: The bot; one that offers `sample_guided` itself is asked so.
        prompts: What the texts follow.
        grammar: What may come next.
        n: Draws per prompt.
        decoding: Its temperature holds for choices and free pieces, what filters tokens for free pieces only, where the
            repetition penalty looks at the tokens of the piece itself; its stop strings are not looked at.
        seed: Of the draws.
        law: `phrase`, or `token` for comparison.

    Raises:
        AuditError: A query failed.
        ConfigError: A setting has no meaning here, or the target does not show the tokens that the token law needs.
    """
    check_settings(n, decoding, law)
    if isinstance(target, SamplesGuided):
        return target.sample_guided(prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)
    return ask_for_guided(target, prompts, grammar, n=n, decoding=decoding, seed=seed, law=law)


def ask_for_guided(
    target: Target, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law
) -> list[list[Guided]]:
    """Return the same through single questions to any target.

    Raises:
        AuditError: A query failed.
        ConfigError: The token law was asked for.
    """
    if law == "token":
        raise ConfigError("law='token' needs a target that shows its tokens, such as a local model; use law='phrase'")
    return _Questions(target, prompts, grammar, decoding, seed).run(n)


def check_settings(n: int, decoding: Decoding, law: str) -> None:
    """Check what does not depend on a target.

    Raises:
        ConfigError: A setting is out of range or has no meaning for guided sampling.
    """
    if n < 1:
        raise ConfigError(f"n={n} must be at least 1")
    if law not in ("phrase", "token"):
        raise ConfigError(f"law={law!r} must be 'phrase' or 'token'")
    if decoding.num_beams > 1 or decoding.start_temperature is not None:
        raise ConfigError(
            "guided sampling knows neither beams nor a falling temperature; use a temperature, or filters"
        )


def phrase_law(scores: FloatArray, temperature: float) -> FloatArray:
    """Return the probability of each phrase from its log-probability as a whole; temperature 0 takes the best."""
    if not np.all(np.isfinite(scores)):
        raise AuditError("a phrase has a log-probability that is not finite; doubt the target")
    if temperature == 0:
        return np.asarray(np.arange(len(scores)) == int(np.argmax(scores)), dtype=np.float64)
    weights = np.exp((scores - scores.max()) / temperature)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def token_law(paths: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], temperature: float) -> FloatArray:
    """Return the probability of each phrase when every token is drawn among those that lead to some phrase.

    Args:
        paths: The tokens of each phrase; no path is the beginning of another.
        scores: The log-probability of each of those tokens after the ones before it.
        temperature: Of each token's draw; 0 takes the best at each step.
    """
    children: dict[tuple[int, ...], dict[int, float]] = defaultdict(dict)
    for path, values in zip(paths, scores, strict=True):
        for i, (token, value) in enumerate(zip(path, values, strict=True)):
            children[tuple(path[:i])][token] = value
    steps: dict[tuple[int, ...], dict[int, float]] = {}
    for node, options in children.items():
        chances = phrase_law(np.array(list(options.values())), temperature)
        steps[node] = dict(zip(options, chances.tolist(), strict=True))
    return np.array(
        [np.prod([steps[tuple(path[:i])][token] for i, token in enumerate(path)]) for path in paths], dtype=np.float64
    )


def split_count(chances: FloatArray, count: int, rng: np.random.Generator) -> dict[int, int]:
    """Return how many of some draws fall on each option, options without a draw left out."""
    drawn = rng.multinomial(count, chances / chances.sum())
    return {int(i): int(drawn[i]) for i in np.flatnonzero(drawn)}


def generator(seed: int, position: int, key: bytes) -> np.random.Generator:
    """Return the random numbers that belong to one text of one prompt."""
    digest = hashlib.blake2b(f"{seed}/{position}/".encode() + key, digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def end_of_piece(text: str, delimiters: str) -> int | None:
    """Return where the first delimiter that no backslash escapes, or the first line break stands; None without one."""
    escaped = False
    for i, character in enumerate(text):
        # A line break ends a text even behind a backslash: the layout has none inside a value, and bots stop there.
        if character == END_OF_TEXT or (not escaped and character in delimiters):
            return i
        escaped = character == "\\" and not escaped
    return None


class Harvest:
    """The finished texts of each prompt, counted."""

    def __init__(self, n_prompts: int) -> None:
        self._counts: list[Counter[tuple[str, bool]]] = [Counter() for _ in range(n_prompts)]
        self._masses: list[dict[tuple[str, bool], tuple[float, ...]]] = [{} for _ in range(n_prompts)]

    def add(self, node: Node, *, is_complete: bool) -> None:
        """Take in a text that is at its end."""
        key = (node.text, is_complete)
        self._counts[node.position][key] += node.count
        self._masses[node.position].setdefault(key, node.mass)

    def texts(self) -> list[list[Guided]]:
        """Return the distinct texts of each prompt, sorted."""
        return [
            [
                Guided(text, count, complete, masses[text, complete])
                for (text, complete), count in sorted(counts.items())
            ]
            for counts, masses in zip(self._counts, self._masses, strict=True)
        ]


class _Questions:
    """Guided sampling through `sample` and `logprobs` alone."""

    def __init__(self, target: Target, prompts: Sequence[str], grammar: Grammar, decoding: Decoding, seed: int) -> None:
        self._target = target
        self._prompts = prompts
        self._grammar = grammar
        self._decoding = decoding
        self._seed = seed
        self._harvest = Harvest(len(prompts))

    def run(self, n: int) -> list[list[Guided]]:
        nodes = [Node(position, "", n) for position in range(len(self._prompts))]
        n_rounds = 0
        while nodes:
            choices: list[tuple[Node, Choice]] = []
            free: list[tuple[Node, Free]] = []
            for node in sorted(nodes, key=lambda node: (node.position, node.text)):
                rule = self._grammar.next(self._prompts[node.position] + node.text)
                if rule is None:
                    self._harvest.add(node, is_complete=True)
                elif isinstance(rule, Choice):
                    choices.append((node, rule))
                else:
                    free.append((node, rule))
            nodes = merged([*self._choose(choices), *self._write(free, n_rounds)])
            n_rounds += 1
        return self._harvest.texts()

    def _choose(self, asked: Sequence[tuple[Node, Choice]]) -> list[Node]:
        """Let every text that has a choice to make go on; all phrases of all texts are one question."""
        pairs = [(self._prompts[node.position] + node.text, phrase) for node, rule in asked for phrase in rule.phrases]
        if not pairs:
            return []
        answers = self._target.logprobs([text for text, _ in pairs], [phrase for _, phrase in pairs])
        if len(answers) != len(pairs):
            raise AuditError(f"the target answered {len(answers)} of {len(pairs)} scoring queries; rerun the audit")
        scores = iter([float(answer.double().sum()) for answer in answers])
        children = []
        for node, rule in asked:
            of_phrases = np.array([next(scores) for _ in rule.phrases])
            chances = phrase_law(of_phrases, self._decoding.temperature)
            children += chosen(node, rule.phrases, of_phrases, chances, self._rng(node))
        return children

    def _write(self, asked: Sequence[tuple[Node, Free]], n_rounds: int) -> list[Node]:
        """Let every text whose next piece is free go on; one question per number of draws and length."""
        groups: dict[tuple[int, int], list[tuple[Node, Free]]] = defaultdict(list)
        for node, rule in asked:
            groups[node.count, rule.max_new_tokens].append((node, rule))
        children = []
        for (count, limit), members in sorted(groups.items(), key=lambda item: item[0]):
            drawn = self._target.sample(
                [self._prompts[node.position] + node.text for node, _ in members],
                n=count,
                max_new_tokens=limit,
                decoding=with_line_stop(self._decoding),
                seed=int(generator(self._seed, n_rounds, f"{count}/{limit}".encode()).integers(2**62)),
            )
            if [len(texts) for texts in drawn] != [count] * len(members):
                raise AuditError(f"the target did not return {count} samples for each of {len(members)} prompts")
            for (node, rule), texts in zip(members, drawn, strict=True):
                children += self._cut(node, rule, texts)
        return children

    def _cut(self, node: Node, rule: Free, texts: Sequence[str]) -> list[Node]:
        """Return how a text goes on after the free pieces that were drawn for it."""
        children = []
        for text, count in sorted(Counter(texts).items()):
            end = end_of_piece(text, rule.delimiters)
            child = replace(node, text=node.text + text[:end], count=count)
            if not end or text[end] == END_OF_TEXT:  # none, or at once: an empty piece is none
                self._harvest.add(child, is_complete=False)
            else:
                children.append(child)
        return children

    def _rng(self, node: Node) -> np.random.Generator:
        return generator(self._seed, node.position, node.text.encode())


def chosen(
    node: Node, phrases: Sequence[str], scores: FloatArray, chances: FloatArray, rng: np.random.Generator
) -> list[Node]:
    """Split a node's draws over phrases."""
    mass = (*node.mass, float(np.exp(scores).sum()))
    return [
        Node(node.position, node.text + phrases[i], count, mass)
        for i, count in split_count(chances, node.count, rng).items()
    ]


def merged(nodes: Sequence[Node]) -> list[Node]:
    """Return nodes of which no two have the same text of the same prompt."""
    known: dict[tuple[int, str], Node] = {}
    for node in nodes:
        same = known.get((node.position, node.text))
        known[node.position, node.text] = node if same is None else replace(same, count=same.count + node.count)
    return list(known.values())


def with_line_stop(decoding: Decoding) -> Decoding:
    """Return a decoding whose texts end at a line break and nowhere else."""
    return replace(decoding, stop=(END_OF_TEXT,))
