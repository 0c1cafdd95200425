"""Text to token ids, the same way in training, sampling and scoring.

Guarantees: a text is cut by `prompts.pieces` and each piece is tokenised alone, so the tokens of a history are the
same whatever follows it; control tokens spelled out in user text (`<|endoftext|>`) become ordinary characters; no
token is added. A sequence that a model reads starts with `start_token`, in training and in scoring alike, so the first
token of a text has a defined probability (the "first token" rule behind PPL and the suffix-alone pass of DC-PPL).

No torch here: a tokenizer is anything that transformers' fast tokenizers are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hushbot.errors import ConfigError
from hushbot.prompts import pieces


class Encoded(NamedTuple):
    """Token ids with the character span of each."""

    ids: list[int]
    spans: list[tuple[int, int]]


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
    cut = pieces(text)
    if not cut:
        return Encoded([], [])
    batch = tokenizer(
        cut, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for piece, piece_ids, offsets in zip(cut, batch["input_ids"], batch["offset_mapping"], strict=True):
        ids.extend(piece_ids)
        spans.extend((start + low, start + high) for low, high in offsets)
        start += len(piece)
    return Encoded(ids, spans)


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
