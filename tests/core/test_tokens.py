"""Text to tokens: piece by piece, nothing special, nothing added."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hushbot.errors import ConfigError
from hushbot.tokens import (
    Encoded,
    encode,
    encode_all_pieces,
    encode_pieces,
    encode_with_spans,
    n_tokens_within,
    start_token,
)


def make_tokenizer(**special: str) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = ["User: a cheap place in the north\nBelief State: Restaurant(area=north)\nResponse: yes\n"] * 9
    bpe.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=bpe, **(special or {"eos_token": "<|endoftext|>", "pad_token": "<|im_end|>"}))


TOKENIZER = make_tokenizer()
LINES = st.lists(
    st.sampled_from(["User: north\n", "Belief State:", " x\n", "<|endoftext|>", "<|im_end|>", "é😀 ", "\n", "a"])
)


@given(st.one_of(st.text(), LINES.map("".join)))
def test_every_text_comes_back_and_holds_no_control_token(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids = encode(TOKENIZER, text)
    assert TOKENIZER.decode(ids) == text
    assert not {0, 1} & set(ids)


@given(st.lists(LINES.map("".join), max_size=5))
def test_many_texts_are_encoded_like_each_alone(texts: list[str]) -> None:
    found = list(encode_all_pieces(TOKENIZER, texts))
    assert ["".join(piece.text for piece in cut) for cut in found] == texts
    assert [[token for piece in cut for token in piece.ids] for cut in found] == [
        encode(TOKENIZER, text) for text in texts
    ]


@given(LINES.map("".join), st.integers(0, 60))
def test_the_tokens_within_some_characters_are_those_that_end_there(text: str, n_characters: int) -> None:
    (cut,) = encode_all_pieces(TOKENIZER, [text])
    spans = encode_with_spans(TOKENIZER, text).spans
    expected = next((i for i, (_, end) in enumerate(spans) if end > n_characters), len(spans))
    assert n_tokens_within(cut, n_characters) == expected


def test_a_piece_of_many_texts_is_encoded_once() -> None:
    asked: list[list[str]] = []

    def tokenizer(texts: list[str], **settings: Any) -> Any:
        asked.append(texts)
        return TOKENIZER(texts, **settings)

    texts = [f"User: north\nBelief State: {i % 3}" for i in range(300)]
    assert len(list(encode_all_pieces(tokenizer, texts))) == 300
    # So many texts at a time.
    assert [sorted(pieces) for pieces in asked] == [[" 0", " 1", " 2", "Belief State:", "User: north\n"]] * 2


@given(LINES)
def test_tokens_do_not_depend_on_what_follows(lines: list[str]) -> None:
    history = "User: a cheap place\nBelief State:"
    ids = encode(TOKENIZER, history)
    assert encode(TOKENIZER, history + "".join(lines))[: len(ids)] == ids


@given(st.one_of(st.text(), LINES.map("".join)))
def test_spans_cover_the_text_and_agree_with_encode(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    ids, spans = encode_with_spans(TOKENIZER, text)
    assert ids == encode(TOKENIZER, text)
    covered = {i for low, high in spans for i in range(low, high)}
    assert covered == set(range(len(text)))
    assert spans == sorted(spans)


def test_spans_of_a_marker_and_what_the_bot_says() -> None:
    text = "Belief State: north\n"
    ids, spans = encode_with_spans(TOKENIZER, text)
    marker = len(encode(TOKENIZER, "Belief State:"))
    assert spans[marker - 1][1] == spans[marker][0] == 13
    assert [text[low:high] for low, high in spans] == [TOKENIZER.decode([token]) for token in ids]


def test_encoding_ordinary_calls_first_does_not_matter() -> None:
    """The tokenizer keeps the way it last treated control tokens as state; ours must not depend on it."""
    expected = encode(TOKENIZER, "<|endoftext|>")
    assert TOKENIZER("<|endoftext|>").input_ids == [0]
    assert encode(TOKENIZER, "<|endoftext|>") == expected
    assert len(expected) > 1


def test_nothing_is_nothing() -> None:
    assert encode(TOKENIZER, "") == []
    assert encode_pieces(TOKENIZER, []) == []
    assert encode_with_spans(TOKENIZER, "") == Encoded([], [])


def test_pieces_are_tokenised_one_by_one() -> None:
    assert encode_pieces(TOKENIZER, ["a\n", "b\n"]) == [encode(TOKENIZER, "a\n"), encode(TOKENIZER, "b\n")]


@pytest.mark.parametrize(
    ("special", "expected"),
    [
        ({"bos_token": "<|im_end|>", "eos_token": "<|endoftext|>"}, 1),
        ({"eos_token": "<|endoftext|>"}, 0),
        ({"bos_token": "<|endoftext|>"}, 0),
    ],
)
def test_start_token_is_bos_or_else_eos(special: dict[str, str], expected: int) -> None:
    assert start_token(make_tokenizer(**special)) == expected


def test_a_tokenizer_that_adds_a_start_token_by_itself_adds_none_here() -> None:
    """Else every text would start twice, as in lm-evaluation-harness #3333."""
    adds = make_tokenizer(bos_token="<|im_end|>", eos_token="<|endoftext|>")
    adds.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_end|> $A", special_tokens=[("<|im_end|>", 1)]
    )
    assert adds("User: north").input_ids == [1, *encode(TOKENIZER, "User: north")]
    assert encode(adds, "User: north") == encode(TOKENIZER, "User: north")
    assert encode_with_spans(adds, "User: north") == encode_with_spans(TOKENIZER, "User: north")


def test_a_tokenizer_without_either_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"neither a BOS nor an EOS.*tokenizer_config\.json"):
        start_token(make_tokenizer(pad_token="<|im_end|>"))
