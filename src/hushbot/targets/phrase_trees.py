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

from hushbot.prompts import pieces
from hushbot.targets.token_tree import Packed, pack
from hushbot.tokens import encode, encode_pieces, encode_with_spans

_MOST_KNOWN = 4096
"""Trees that are kept: values differ from text to text, so there is no end of them."""
_BLANK_WITHIN = re.compile(r"[^ \u0120\u2581][ \u0120\u2581]")
"""A blank behind something else, in the ways in which vocabularies write blanks."""


class Phrases(NamedTuple):
    """How phrases follow a text: a tree behind its tokens."""

    paths: list[list[int]]
    """The tokens of each phrase; they may begin with some that hold only the end of the text."""
    firsts: list[int]
    """The first token of each path that counts as the phrase's."""
    order: list[int]
    """The phrases as they stand in the tree."""
    tree: Packed
    """Of a token that stands for the last of the text, and each path without its last token."""


class PhraseTrees:
    """Spells phrases behind texts; what depends on the last word of a text only is worked out once.

    Args:
        tokenizer: A fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[str, tuple[str, ...]], tuple[list[int], Phrases | None]] = {}

    def respelled(self, text: str, ids: list[int]) -> list[int]:
        """Return a text's own tokens: the very same list if it holds them already.

        Args:
            text: The whole text; all lines but its last are known to be spelled well.
            ids: A start token and the tokens that it was sampled with.
        """
        own = encode(self._tokenizer, _last_piece(text))
        if ids[len(ids) - len(own) :] == own:
            return ids
        return [*ids[:1], *encode(self._tokenizer, text)]

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
        if (tail, phrases) not in self._known:
            self._known[tail, phrases] = self._behind(tail, phrases)
        own, found = self._known[tail, phrases]
        if found is not None and ids[len(ids) - len(own) :] == own:
            return ids, found
        return self._straddled(ids[:1], text[: len(text) - len(last)], last, phrases)

    @cached_property
    def _is_cut_at_blanks(self) -> bool:
        return not any(_BLANK_WITHIN.search(token) for token in self._tokenizer.get_vocab())

    def _behind(self, tail: str, phrases: Sequence[str]) -> tuple[list[int], Phrases | None]:
        """Return the tokens of the end of a text and how phrases follow; None where a token of theirs straddles it."""
        own, *paths = self._encoded([tail, *(tail + phrase for phrase in phrases)])
        if any(path[: len(own)] != own or len(path) == len(own) for path in paths):
            return own, None
        return own, _as_tree([path[len(own) :] for path in paths], [0] * len(paths))

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
    return "" if pieces(f"{line}x")[-1] == "x" else pieces(line)[-1]


def _as_tree(paths: list[list[int]], firsts: list[int]) -> Phrases:
    order = sorted(range(len(paths)), key=lambda i: paths[i])
    return Phrases(paths, firsts, order, pack([[0, *paths[i][:-1]] for i in order]))
