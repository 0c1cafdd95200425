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
    decode,
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


class OwnWay(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Encodes and decodes in a way of its own."""

    def _encode_plus(self, *given: Any, **named: Any) -> Any:
        found = super()._encode_plus(*given, **named)
        found["input_ids"] = [[*ids, 7] for ids in found["input_ids"]]
        return found

    def _decode(self, *given: Any, **named: Any) -> str:
        return super()._decode(*given, **named) + "!"


@given(st.lists(LINES.map("".join), min_size=1, max_size=40))
def test_the_library_tokenizer_is_asked_alike(texts: list[str]) -> None:
    wanted = TOKENIZER(texts, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert encode_pieces(TOKENIZER, texts) == wanted
    for piece in (piece for cut in encode_all_pieces(TOKENIZER, texts) for piece in cut):
        asked = TOKENIZER(piece.text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
        assert piece.ids == asked["input_ids"]
        assert piece.spans == [tuple(span) for span in asked["offset_mapping"]]
    for ids in wanted:
        said = TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert decode(TOKENIZER, ids) == said


def test_nothing_that_a_tokenizer_was_set_to_counts() -> None:
    texts = ["User: a cheap place\n", "<|endoftext|>"]
    wanted = encode_pieces(TOKENIZER, texts)
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    tokenizer.backend_tokenizer.encode_special_tokens = False
    assert encode_pieces(tokenizer, texts) == wanted
    assert encode_pieces(tokenizer, texts) == wanted  # now past transformers


def test_a_class_with_ways_of_its_own_is_left_to_them() -> None:
    make: Any = OwnWay
    tokenizer = make(tokenizer_object=TOKENIZER.backend_tokenizer, eos_token="<|endoftext|>")
    ids = encode(TOKENIZER, "User: north\n")
    assert encode(tokenizer, "User: north\n") == [*ids, 7]
    assert decode(tokenizer, ids) == "User: north\n!"


def test_a_plain_tokenizer_is_asked_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer()
    ids = encode(tokenizer, "User: north\n")  # which sets it for text
    asked: list[str] = []
    monkeypatch.setattr(PreTrainedTokenizerFast, "set_truncation_and_padding", lambda *_, **__: asked.append("set"))
    assert encode(tokenizer, "User: north\n") == ids
    assert asked == []


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
