"""Text to token ids, the same way in training, sampling and scoring.

Guarantees: a text is cut by `prompts.pieces` and each piece is tokenised alone, so the tokens of a history are the
same whatever follows it; control tokens spelled out in user text (`<|endoftext|>`) become ordinary characters; no
token is added. A sequence that a model reads starts with `start_token`, in training and in scoring alike, so the first
token of a text has a defined probability (the "first token" rule behind PPL and the suffix-alone pass of DC-PPL).

No torch here: a tokenizer is anything that transformers' fast tokenizers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hushbot.errors import ConfigError
from hushbot.prompts import pieces

_TEXTS_AT_ONCE = 256  # bounds the memory of what is known of pieces; texts that share pieces mostly stand together


class Encoded(NamedTuple):
    """Token ids with the character span of each."""

    ids: list[int]
    spans: list[tuple[int, int]]


class Piece(NamedTuple):
    """What is tokenised alone: a line, or a marker the bot continues."""

    text: str
    ids: list[int]
    spans: list[tuple[int, int]]
    """The (start, end) characters of each token, counted from the start of the piece."""


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text, without any special token."""
    return [token for piece in encode_pieces(tokenizer, pieces(text)) for token in piece]


def encode_pieces(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each piece; the caller promises that each is one piece."""
    if not texts:
        return []
    batch = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [list(ids) for ids in batch["input_ids"]]


def encode_with_spans(tokenizer: Any, text: str) -> Encoded:
    """Return the token ids of a text with the (start, end) characters that each token covers."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for piece in next(encode_all_pieces(tokenizer, [text])):
        ids += piece.ids
        spans += [(at + low, at + high) for low, high in piece.spans]
        at += len(piece.text)
    return Encoded(ids, spans)


def encode_all_pieces(tokenizer: Any, texts: Sequence[str]) -> Iterator[list[Piece]]:
    """Yield the pieces of each text; one that many of them hold is encoded once and handed out to each."""
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        cut = [pieces(text) for text in texts[start : start + _TEXTS_AT_ONCE]]
        known = _encode_distinct(tokenizer, list(dict.fromkeys(piece for text in cut for piece in text)))
        for text in cut:
            yield [known[piece] for piece in text]


def n_tokens_within(cut: Sequence[Piece], n_characters: int) -> int:
    """Return how many tokens of a text lie wholly within its first characters."""
    n_tokens = at = 0
    for piece in cut:
        at += len(piece.text)
        if at > n_characters:
            end = n_characters - at + len(piece.text)
            return n_tokens + next((i for i, span in enumerate(piece.spans) if span[1] > end), len(piece.ids))
        n_tokens += len(piece.ids)
    return n_tokens


def _encode_distinct(tokenizer: Any, cut: list[str]) -> dict[str, Piece]:
    if not cut:
        return {}
    batch = tokenizer(
        cut, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    found = zip(cut, batch["input_ids"], batch["offset_mapping"], strict=True)
    return {text: Piece(text, ids, offsets) for text, ids, offsets in found}


def start_token(tokenizer: Any) -> int:
    """Return the token that every sequence starts with: BOS, or EOS where the tokenizer has no BOS.

    Raises:
        ConfigError: The tokenizer has neither.
    """
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise ConfigError(
        "backbone: the tokenizer has neither a BOS nor an EOS token; set one in its tokenizer_config.json"
    )
