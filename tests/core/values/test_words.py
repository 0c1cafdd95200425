"""Words that tell nobody apart, and invented ones."""

from __future__ import annotations

import random

from hushbot.corpora.bookings_words import PRIVATE, PUBLIC
from hushbot.values.words import COMMON, KINDS, STOP, NewWords, distinctive, fold, invented


def test_distinctive_words_are_those_that_stand_for_a_name() -> None:
    assert distinctive("Sofia Marlow") == ["sofia", "marlow"]
    assert distinctive("The Old Mörk Arms Hotel of Li") == ["mork"]
    assert distinctive("sofia") == [], "one word is the value itself"


def test_new_words_are_one_for_one() -> None:
    words = NewWords(random.Random(1), avoid={invented(random.Random(n)) for n in range(50)})
    old = [f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    made = [words.word(word) for word in old]
    assert len(set(made)) == len(made)
    assert made == [words.word(word.upper()) for word in old]
    assert not set(made) & {invented(random.Random(n)) for n in range(50)}
    assert len(words.word("xy")) == 2


def test_no_function_word_is_ever_made() -> None:
    for seed in range(300):
        assert NewWords(random.Random(seed)).word("or") not in STOP | COMMON


def test_invented_words_stand_in_no_half_of_the_bundled_corpus() -> None:
    made = {invented(random.Random(seed)) for seed in range(3000)}
    assert len(made) > 1000
    for pool in (PUBLIC, PRIVATE):
        lists = (getattr(pool, name) for name in pool.__slots__)
        theirs = {word for texts in lists if isinstance(texts, tuple) for text in texts for word in text.split()}
        assert not theirs & made
    assert not made & (STOP | COMMON | KINDS)


def test_folding() -> None:
    assert fold("İSTANBUL") == "istanbul"
    assert fold("e\u0301") == fold("É") == "e"
