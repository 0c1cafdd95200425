"""Guided sampling through the single questions that any target answers: `sample` and `logprobs`.

Guarantees: all phrases of all texts that have a choice to make are one scoring question, and no phrase is scored twice
behind the same text. What a text goes on with hangs on the seed, its prompt's position and the text so far, whatever
other prompts and texts are asked about: the free pieces behind each text are drawn under a number of its own. A target
that can be asked for single draws (`SamplesPlaces`, as endpoints can) takes that number for the prompt's position, and
is asked for the pieces of many texts at once. Any other target takes it for the seed, and is asked for one text at a
time: slow where many texts have few draws each, as behind a guard.

Voids it: a target whose draws depend on more than prompt position, draw number and seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hushbot.errors import AuditError, ConfigError
from hushbot.intervals import FloatArray
from hushbot.protocols import Target
from hushbot.targets.guided_law import Law, Lot, phrase_law, split_count
from hushbot.targets.guided_texts import (
    END_OF_TEXT,
    Choice,
    Free,
    Grammar,
    GuidedDraws,
    Harvest,
    Node,
    end_of_piece,
    merged,
)
from hushbot.targets.places import Place, SamplesPlaces
from hushbot.types import Decoding


def ask_for_guided(
    target: Target, prompts: Sequence[str], grammar: Grammar, *, n: int, decoding: Decoding, seed: int, law: Law
) -> GuidedDraws:
    """Return what `guided.sample_guided` returns, through single questions to any target.

    Raises:
        AuditError: A query failed.
        ConfigError: The token law was asked for.
    """
    if law == "token":
        raise ConfigError("law='token' needs a target that shows its tokens, such as a local model; use law='phrase'")
    return _Questions(target, prompts, grammar, decoding, seed).run(n)


class _Questions:
    """All questions of one call."""

    def __init__(self, target: Target, prompts: Sequence[str], grammar: Grammar, decoding: Decoding, seed: int) -> None:
        self._target = target
        self._prompts = prompts
        self._grammar = grammar
        self._decoding = decoding
        self._seed = seed
        self._harvest = Harvest(prompts)
        self._scores: dict[str, FloatArray] = {}

    def run(self, n: int) -> GuidedDraws:
        nodes = [Node(position, "", n) for position in range(len(self._prompts))]
        while nodes:
            choices: list[tuple[Node, Choice]] = []
            free: list[tuple[Node, Free]] = []
            for node in sorted(nodes, key=lambda node: (node.position, node.text)):
                rule = self._grammar.next(self._text(node))
                if rule is None:
                    self._harvest.add(node, is_complete=True)
                    continue
                self._harvest.note_question(node, rule)
                if isinstance(rule, Choice):
                    choices.append((node, rule))
                else:
                    free.append((node, rule))
            nodes = merged([*self._choose(choices), *self._write(free)])
        return self._harvest.draws()

    def _text(self, node: Node) -> str:
        return self._prompts[node.position] + node.text

    def _choose(self, asked: Sequence[tuple[Node, Choice]]) -> list[Node]:
        """Let every text that has a choice to make go on."""
        self._score({self._text(node): rule for node, rule in asked})
        children = []
        for node, rule in asked:
            scores = self._scores[self._text(node)]
            chances = phrase_law(scores, self._decoding.temperature)
            children += _chosen(node, rule.phrases, scores, chances, self._rng(node))
        return children

    def _score(self, rules: dict[str, Choice]) -> None:
        """Ask for the phrases of all texts at once, but for texts that were asked about before."""
        rules = {text: rule for text, rule in rules.items() if text not in self._scores}
        pairs = [(text, phrase) for text, rule in rules.items() for phrase in rule.phrases]
        if not pairs:
            return
        answers = self._target.logprobs([text for text, _ in pairs], [phrase for _, phrase in pairs])
        if len(answers) != len(pairs):
            raise AuditError(f"the target answered {len(answers)} of {len(pairs)} scoring queries; rerun the audit")
        values = iter([float(answer.double().sum()) for answer in answers])
        for text, rule in rules.items():
            self._scores[text] = np.array([next(values) for _ in rule.phrases])

    def _write(self, asked: Sequence[tuple[Node, Free]]) -> list[Node]:
        """Let every text whose next piece is free go on."""
        by_limit: dict[int, list[tuple[Node, Free]]] = defaultdict(list)
        for node, rule in asked:
            by_limit[rule.max_new_tokens].append((node, rule))
        return [
            child
            for limit, members in sorted(by_limit.items())
            for (node, rule), texts in zip(members, self._drawn([node for node, _ in members], limit), strict=True)
            for child in self._cut(node, rule, texts)
        ]

    def _drawn(self, nodes: Sequence[Node], limit: int) -> list[list[str]]:
        """Return the free pieces of each text, one per draw."""
        decoding = replace(self._decoding, stop=(END_OF_TEXT,))
        numbers = [int(self._rng(node).integers(2**62)) for node in nodes]
        asked = list(zip(nodes, numbers, strict=True))
        if isinstance(self._target, SamplesPlaces):
            places = [Place(self._text(node), number, draw) for node, number in asked for draw in range(node.count)]
            texts = self._target.sample_places(places, max_new_tokens=limit, decoding=decoding, seed=self._seed)
            if len(texts) != len(places):
                raise AuditError(f"the target returned {len(texts)} of {len(places)} samples; rerun the audit")
            rest = iter(texts)
            return [[next(rest) for _ in range(node.count)] for node in nodes]
        drawn = []
        for node, number in asked:
            answer = self._target.sample(
                [self._text(node)], n=node.count, max_new_tokens=limit, decoding=decoding, seed=number
            )
            if [len(texts) for texts in answer] != [node.count]:
                raise AuditError(
                    f"the target did not return the {node.count} samples it was asked for; rerun the audit"
                )
            drawn += answer
        return drawn

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
        return Lot(self._seed, node.position, node.text.encode(errors="surrogatepass")).generator()


def _chosen(
    node: Node, phrases: Sequence[str], scores: FloatArray, chances: FloatArray, rng: np.random.Generator
) -> list[Node]:
    """Split a node's draws over phrases."""
    mass = (*node.mass, float(np.exp(scores).sum()))
    return [
        Node(node.position, node.text + phrases[i], count, mass)
        for i, count in split_count(chances, node.count, rng).items()
    ]
