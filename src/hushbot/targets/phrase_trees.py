"""How phrases follow a text in a tokenizer's own spelling, as a tree of tokens to be read behind that text.

Guarantees: the tokens of text and phrase are those that `tokens.encode` gives the two together, so a phrase scores what
`Target.logprobs` says of it. Where the tokens that a text was sampled with are not its own spelling, or one of them
would straddle text and phrase, the text gets new tokens, and whoever remembers it must read it anew.

Voids it: a tokenizer whose spelling of a line depends on other lines (`tokens.encode` rules that out).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hushbot.intervals import FloatArray, IntArray
from hushbot.prompts import pieces
from hushbot.targets.token_tree import Packed, pack
from hushbot.targets.tree_parts import TreeParts
from hushbot.tokens import encode, encode_pieces, encode_with_spans

_MOST_KNOWN = 4096
"""Trees and words that are kept: values differ from text to text, so there is no end of them."""
_BLANK_WITHIN = re.compile(r"[^ \u0120\u2581][ \u0120\u2581]")
"""A blank behind something else, in the ways in which vocabularies write blanks."""


class Phrases(NamedTuple):
    """How phrases follow a text: a tree behind its tokens."""

    paths: list[list[int]]
    """The tokens of each phrase; they may begin with some that hold only the end of the text."""
    firsts: list[int]
    """The first token of each path that counts as the phrase's."""
    places: list[list[int]]
    """Per phrase, where in the tree the tokens stand behind which those of its path are read."""
    tree: Packed
    """Of a token that stands for the last of the text, and each path without its last token."""
    edges: Edges
    """The tokens that are scored in it."""
    lasts: IntArray
    """Per phrase, where in the tree the last token stands that must be read to score all of it."""
    parts: TreeParts
    """The tree, cut so that it can be read part by part."""

    def by_path(self, scores: FloatArray) -> list[FloatArray]:
        """Return the scores of each path's tokens from those of the edges."""
        return np.split(scores[self.edges.of_paths], np.cumsum([len(path) for path in self.paths])[:-1])

    def totals(self, scores: FloatArray) -> FloatArray:
        """Return the score of each phrase, the sum of its tokens', from those of the edges; the last axis is theirs."""
        return np.asarray(np.add.reduceat(scores[..., self.edges.of_phrases], self.edges.starts, axis=-1))


class Edges(NamedTuple):
    """The tokens that follow another in a tree; what phrases share is one edge."""

    places: IntArray
    """Where in the tree the token before each edge's own stands, in ascending order."""
    tokens: IntArray
    """The token of each."""
    of_paths: IntArray
    """The edges of all paths, path after path."""
    of_phrases: IntArray
    """The same without those that do not count as the phrase's."""
    starts: IntArray
    """Where in `of_phrases` each phrase starts."""
    n_firsts: int
    """How many of the edges, the first ones, leave the token that stands for the last of the text."""


class PhraseTrees:
    """Spells phrases behind texts; what depends on the last word of a text only is worked out once.

    Args:
        tokenizer: A fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._words: dict[str, list[int]] = {}
        self._known: dict[tuple[str, tuple[str, ...]], tuple[list[int], Phrases | None]] = {}
        self._trees: dict[tuple[tuple[str, ...], tuple[tuple[int, ...], ...]], Phrases] = {}
        self._rests: dict[tuple[str, int], list[int] | None] = {}

    def respelled(self, text: str, ids: list[int], since: int = 0) -> list[int]:
        """Return a text's own tokens: the very same list if it holds them already.

        Args:
            text: The whole text; all lines but its last are known to be spelled well.
            ids: A start token and the tokens that it was sampled with.
            since: How much of the text is known to be spelled well as a text of its own.
        """
        last = _last_piece(text)
        if self._is_cut_at_blanks:
            last = last[_blank_before(last, max(0, since - (len(text) - len(last)))) :]
        own = self._spelled(last)
        if ids[len(ids) - len(own) :] == own:
            return ids
        return [*ids[:1], *encode(self._tokenizer, text)]

    def _spelled(self, word: str) -> list[int]:
        """Return the tokens of the end of a text."""
        if len(self._words) >= _MOST_KNOWN:
            self._words.clear()
        if word not in self._words:
            self._words[word] = encode(self._tokenizer, word)
        return self._words[word]

    def after(self, text: str, ids: list[int], phrases: tuple[str, ...]) -> tuple[list[int], Phrases]:
        """Return the tokens of a text behind which phrases can be read, and those of the phrases.

        Args:
            text: The whole text.
            ids: A start token and the tokens of the text.
            phrases: What may follow it.

        Returns:
            The very same tokens where phrases can follow them, else new ones, the start token first.
        """
        last = _last_piece(text)
        # Words are spelled alone where no token reaches over a blank: all texts with the same last word share a tree.
        tail = last[max(0, last.rfind(" ")) :] if self._is_cut_at_blanks else last
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
            self._trees.clear()
        if (tail, phrases) not in self._known:
            self._known[tail, phrases] = self._behind(tail, phrases)
        own, found = self._known[tail, phrases]
        if found is not None and ids[len(ids) - len(own) :] == own:
            return ids, found
        return self._straddled(ids[:1], text[: len(text) - len(last)], last, phrases)

    @cached_property
    def _is_cut_at_blanks(self) -> bool:
        return not any(_BLANK_WITHIN.search(token) for token in self._tokenizer.get_vocab())

    def _behind(self, tail: str, phrases: tuple[str, ...]) -> tuple[list[int], Phrases | None]:
        """Return the tokens of the end of a text and how phrases follow; None where a token of theirs straddles it."""
        cuts = [self._cut(tail, phrase) for phrase in phrases]
        heads = [phrase[:cut] for phrase, cut in zip(phrases, cuts, strict=True)]
        own, *spelled = self._encoded([tail, *(tail + head for head in heads)])
        n_own = len(own)
        if any(ids[:n_own] != own or (head and len(ids) == n_own) for head, ids in zip(heads, spelled, strict=True)):
            return own, None
        # What stands before the blank differs little from text to text, and what stands behind it not at all.
        beginnings = tuple(tuple(ids[n_own:]) for ids in spelled)
        if (phrases, beginnings) not in self._trees:
            rests = [self._rest(tail, phrase, cut) for phrase, cut in zip(phrases, cuts, strict=True)]
            paths = [[*beginning, *(rest or ())] for beginning, rest in zip(beginnings, rests, strict=True)]
            self._trees[phrases, beginnings] = _as_tree(paths, [0] * len(paths))
        return own, self._trees[phrases, beginnings]

    def _cut(self, tail: str, phrase: str) -> int:
        """Return where a phrase can be cut, so that the rest is spelled alike behind any text; its end if nowhere."""
        if not self._is_cut_at_blanks:
            return len(phrase)
        before = f"{tail[-1:]}{phrase}"
        at = next((i for i in range(1, len(before)) if before[i] == " " != before[i - 1]), len(before))
        cut = at - len(tail[-1:])
        return len(phrase) if self._rest(tail, phrase, cut) is None else cut

    def _rest(self, tail: str, phrase: str, cut: int) -> list[int] | None:
        """Return the tokens of a phrase behind its cut; None if it cannot be cut there."""
        if cut == len(phrase):
            return []
        if (phrase, cut) not in self._rests:
            whole, head = self._encoded([tail + phrase, tail + phrase[:cut]])
            self._rests[phrase, cut] = whole[len(head) :] if whole[: len(head)] == head else None
        return self._rests[phrase, cut]

    def _encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts; the tokenizer is called once, for a call costs more than a short text."""
        cut = [pieces(text) for text in texts]
        distinct = list(dict.fromkeys(piece for text in cut for piece in text))
        known = dict(zip(distinct, encode_pieces(self._tokenizer, distinct), strict=True))
        return [[token for piece in text for token in known[piece]] for text in cut]

    def _straddled(self, start: list[int], before: str, last: str, phrases: Sequence[str]) -> tuple[list[int], Phrases]:
        """Return a text's own tokens up to the first that holds something of a phrase, and the rest as phrases."""
        encoded = [encode_with_spans(self._tokenizer, last + phrase) for phrase in phrases]
        firsts = [next(i for i, (_, end) in enumerate(spans) if end > len(last)) for _, spans in encoded]
        shared = 0
        while shared < min(firsts) and len({ids[shared] for ids, _ in encoded}) == 1:
            shared += 1
        head = [*start, *encode(self._tokenizer, before), *encoded[0].ids[:shared]]
        return head, _as_tree([ids[shared:] for ids, _ in encoded], [first - shared for first in firsts])


def _last_piece(text: str) -> str:
    """Return the piece that more text would lengthen; empty where more would begin one."""
    line = text[text.rfind("\n") + 1 :]
    return pieces(f"{line}x")[-1][:-1]


def _blank_before(text: str, end: int) -> int:
    """Return where the last run of blanks behind something else starts before a place; 0 without one."""
    at = text.rfind(" ", 0, end + 1)
    while at > 0 and text[at - 1] == " ":
        at -= 1
    return max(0, at)


def _as_tree(paths: list[list[int]], firsts: list[int]) -> Phrases:
    order = sorted(range(len(paths)), key=lambda i: paths[i])
    tree = pack([[0, *paths[i][:-1]] for i in order])
    places = [places for _, places in sorted(zip(order, tree.paths, strict=True))]
    edges = _edges(paths, firsts, places)
    lasts = np.array([path[-1] for path in places])
    return Phrases(paths, firsts, places, tree, edges, lasts, TreeParts(tree, places, edges.places, edges.tokens))


def _edges(paths: list[list[int]], firsts: list[int], places: list[list[int]]) -> Edges:
    walked = [list(zip(at, path, strict=True)) for at, path in zip(places, paths, strict=True)]
    edges = sorted({edge for path in walked for edge in path})
    number = {edge: i for i, edge in enumerate(edges)}
    counted = [path[first:] for path, first in zip(walked, firsts, strict=True)]
    return Edges(
        np.array([place for place, _ in edges]),
        np.array([token for _, token in edges]),
        np.array([number[edge] for path in walked for edge in path]),
        np.array([number[edge] for path in counted for edge in path]),
        np.cumsum([0, *(len(path) for path in counted[:-1])]),
        sum(place == 0 for place, _ in edges),
    )
