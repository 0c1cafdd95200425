"""Endings of words."""

from __future__ import annotations

import pytest

from hushbot.values.inflection import forms, inflected


def test_the_forms_of_a_word() -> None:
    assert forms("cheap") == {
        "cheaper": "degree",
        "cheapest": "degree",
        "cheapern": "degree",
        "cheaps": "plural",
        "cheapes": "plural",
        "cheaply": "adverb",
    }
    assert forms("church")["churches"] == "plural"
    assert forms("north")["northern"] == "degree"
    assert forms("swimming pool") == forms("b&b") == forms("of") == {}


@pytest.mark.parametrize(
    ("text", "plural", "adverb"),
    [("church", "churches", "churchly"), ("city", "cities", "cityly"), ("swimming pool", "swimming pools", None)],
)
def test_a_word_is_written_in_a_form(text: str, plural: str, adverb: str | None) -> None:
    assert inflected(text, "plural") == plural
    assert adverb is None or inflected(text, "adverb") == adverb
    assert inflected(text, "degree") is None
    assert inflected(f"{text} 4", "plural") is None
