"""Text to token ids, the same way in training, sampling and scoring.

Guarantees: a text is cut by `prompts.pieces` and each piece is tokenised alone, so the tokens of a history are the
same whatever follows it; control tokens spelled out in user text (`<|endoftext|>`) become ordinary characters; no
token is added. A sequence that a model reads starts with `start_token`, in training and in scoring alike, so the first
token of a text has a defined probability (the "first token" rule behind PPL and the suffix-alone pass of DC-PPL).
Where a transformers tokenizer only wraps one of the library tokenizers, that one is asked: the wrapping takes three
quarters of the time of a short text.

No torch here: a tokenizer is anything that transformers' fast tokenizers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hushbot.errors import ConfigError
from hushbot.prompts import pieces

_ENCODING, _DECODING = ("__call__", "_encode_plus"), ("decode", "_decode")
"""What a tokenizer class of transformers must not do in its own way for its library tokenizer to be asked instead."""
_known_classes: dict[tuple[type, tuple[str, ...]], bool] = {}
_LEAST_TO_SHARE = 16  # fewer texts are encoded one after the other
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
    backend = _backend(tokenizer, _ENCODING)
    if backend is not None and _is_set_for_text(backend):
        # Its threads do not pay for a few short texts: waking them takes longer.
        batches = [[text] for text in texts] if len(texts) < _LEAST_TO_SHARE else [list(texts)]
        return [one.ids for batch in batches for one in backend.encode_batch_fast(batch, add_special_tokens=False)]
    batch = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
    return [list(ids) for ids in batch["input_ids"]]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of some tokens as it is, nothing skipped and nothing cleaned up."""
    backend = _backend(tokenizer, _DECODING)
    if backend is not None:
        return str(backend.decode(list(ids), skip_special_tokens=False))
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


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
    backend = _backend(tokenizer, _ENCODING)
    if backend is not None and _is_set_for_text(backend):
        encoded = backend.encode_batch(cut, add_special_tokens=False)
        return {text: Piece(text, one.ids, one.offsets) for text, one in zip(cut, encoded, strict=True)}
    batch = tokenizer(
        cut, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    found = zip(cut, batch["input_ids"], batch["offset_mapping"], strict=True)
    return {text: Piece(text, ids, offsets) for text, ids, offsets in found}


def _backend(tokenizer: Any, methods: tuple[str, ...]) -> Any | None:
    """Return the library's tokenizer inside a transformers one; None where its class has methods of its own."""
    key = (type(tokenizer), methods)
    if key not in _known_classes:
        _known_classes[key] = _is_plain(*key)
    return tokenizer.backend_tokenizer if _known_classes[key] else None


def _is_plain(kind: type, methods: tuple[str, ...]) -> bool:
    from transformers import PreTrainedTokenizerFast as Plain

    return issubclass(kind, Plain) and all(
        hasattr(Plain, name) and getattr(kind, name) is getattr(Plain, name) for name in methods
    )


def _is_set_for_text(backend: Any) -> bool:
    """Return whether control tokens become characters and nothing is cut or filled up; transformers sees to it."""
    return backend.encode_special_tokens and backend.truncation is None and backend.padding is None


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
