"""Utterances to turns: nothing said is lost, whoever speaks first, last or twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.corpora.exchanges import Utterance, pair_up
from hushbot.errors import DataError
from hushbot.types import Span


def said(script: str) -> list[Utterance]:
    """Turn `u:hi s:hello` into utterances, each annotated with its text."""
    pairs = [part.split(":") for part in script.split()]
    return [Utterance(speaker == "u", text, (text,)) for speaker, text in pairs]


@pytest.mark.parametrize(
    ("script", "opening", "turns"),
    [
        ("u:hi s:hello u:bye s:ciao", "", [("hi", "hello"), ("bye", "ciao")]),
        ("u:hi s:hello u:bye", "", [("hi", "hello"), ("bye", None)]),
        ("s:welcome u:hi s:hello", "welcome", [("hi", "hello")]),
        ("s:welcome u:hi", "welcome", [("hi", None)]),
        ("u:hi u:there s:hello s:you", "", [("hi there", "hello you")]),
    ],
)
def test_pairing(script: str, opening: str, turns: list[tuple[str, str | None]]) -> None:
    found_opening, exchanges = pair_up(said(script))
    assert found_opening == opening
    assert [(user.text, system.text if system else None) for user, system in exchanges] == turns


def test_joined_utterances_keep_their_annotations_in_order() -> None:
    _, exchanges = pair_up(said("u:a u:b s:c"))
    assert exchanges[0].user.annotations == ("a", "b")


def test_spans_move_with_the_text_that_is_joined() -> None:
    word = Span("bus", "to", "ely", 3, 6)
    parts = ["", "to ely", "", "to ely"]
    spans = [(word,) if part else () for part in parts]
    _, exchanges = pair_up(Utterance(True, part, (), at) for part, at in zip(parts, spans, strict=True))
    user = exchanges[0].user
    assert user.text == "to ely to ely"
    assert [user.text[span.start : span.end] for span in user.spans] == ["ely", "ely"]
    assert [span.start for span in user.spans] == [3, 10]


@pytest.mark.parametrize("script", ["", "s:hello"])
def test_a_dialogue_without_a_user_is_an_error(script: str) -> None:
    with pytest.raises(DataError, match="no user utterance"):
        pair_up(said(script))


@given(st.lists(st.booleans(), min_size=1).filter(any))
def test_nothing_said_is_lost(speakers: list[bool]) -> None:
    utterances = [Utterance(is_user, str(i), (i,)) for i, is_user in enumerate(speakers)]
    opening, exchanges = pair_up(utterances)
    texts = [opening] + [u.text if u else "" for exchange in exchanges for u in exchange]
    assert " ".join(texts).split() == [str(i) for i in range(len(speakers))]
