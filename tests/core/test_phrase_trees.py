"""Phrases behind texts: the tokenizer's own spelling of both together, and sums over what phrases share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hushbot.targets.phrase_trees import PhraseTrees
from hushbot.tokens import encode

FastTokenizer: Any = PreTrainedTokenizerFast
PHRASES = (", a=", ", ab=", ")", " b(", ")\n")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a BPE that spells words alone, but pulls a comma to the `b` before it."""
    symbols = ["<end>", *"ab,=()\n ", "ab", " a", "b,"]
    merges = [("a", "b"), (" ", "a"), ("b", ",")]
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    bpe.decoder = decoders.Fuse()
    return FastTokenizer(tokenizer_object=bpe, eos_token="<end>")


@pytest.mark.parametrize("text", ["a", "b a", "ba a", "b", "a b", "a ", "a  a", "", "a\n", "a\nb a"])
def test_phrases_are_spelled_with_their_text_whatever_was_spelled_before(tokenizer: Any, text: str) -> None:
    trees = PhraseTrees(tokenizer)
    for known in ("aa", "b b"):  # what these are followed by must not decide for others
        trees.after(known, [0, *encode(tokenizer, known)], PHRASES)
    head, phrases = trees.after(text, [0, *encode(tokenizer, text)], PHRASES)
    for phrase, path in zip(PHRASES, phrases.paths, strict=True):
        assert [*head, *path] == [0, *encode(tokenizer, text + phrase)]


def test_texts_whose_last_words_are_continued_alike_share_a_tree(tokenizer: Any) -> None:
    trees = PhraseTrees(tokenizer)
    one, other = (trees.after(text, [0, *encode(tokenizer, text)], (", a=", ")"))[1] for text in ("b a", "b aa"))
    assert one is other
    straddled = trees.after("a b", [0, *encode(tokenizer, "a b")], (", a=", ")"))[1]
    assert straddled.firsts == [0, 1]  # `b,` is scored as the phrase's, the `b` before `)` is not
    assert straddled.paths[1][0] == tokenizer.get_vocab()["b"]


def test_totals_are_the_sums_of_what_counts_on_each_path(tokenizer: Any) -> None:
    for text in ("a a", "a b"):
        _, phrases = PhraseTrees(tokenizer).after(text, [0, *encode(tokenizer, text)], PHRASES)
        edges = list(zip(phrases.edges.places.tolist(), phrases.edges.tokens.tolist(), strict=True))
        assert edges == sorted(set(edges))
        scores = np.log(np.arange(2.0, 2 + len(edges)))
        by_hand = [
            [float(scores[edges.index(edge)]) for edge in zip(places, path, strict=True)]
            for places, path in zip(phrases.places, phrases.paths, strict=True)
        ]
        assert [values.tolist() for values in phrases.by_path(scores)] == by_hand
        counted = [sum(values[first:]) for values, first in zip(by_hand, phrases.firsts, strict=True)]
        assert phrases.totals(scores).tolist() == pytest.approx(counted, abs=1e-12)
        for places, path in zip(phrases.places, phrases.paths, strict=True):
            assert [phrases.tree.ids[place] for place in places[1:]] == path[:-1]


def test_a_word_is_looked_at_from_where_it_may_be_spelled_otherwise(tokenizer: Any) -> None:
    trees, vocabulary = PhraseTrees(tokenizer), tokenizer.get_vocab()
    own = [0, *encode(tokenizer, "b  a=ab b")]
    assert trees.respelled("b  a=ab b", own, since=5) is own
    assert trees.respelled("b  a=ab b", own) is own
    foreign = [*own[:-3], vocabulary["a"], vocabulary["b"], *own[-2:]]  # `ab` in two tokens, before the last word
    assert tokenizer.decode(foreign[1:]) == "b  a=ab b"
    assert trees.respelled("b  a=ab b", foreign, since=5) == own
