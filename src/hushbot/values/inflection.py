"""The forms of one word that English makes by endings.

Guarantees: `forms` lists the plural and the adverb of a word, and the degrees of which another word has no like;
`inflected` writes another word or phrase in one of the first two.

>>> forms("museum")["museums"], forms("moderate")["moderately"], inflected("swimming pool", "plural")
('plural', 'adverb', 'swimming pools')
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

Kind = Literal["plural", "adverb", "degree"]


@lru_cache(maxsize=4096)
def forms(word: str) -> dict[str, Kind]:
    """Return the other forms of a word in small letters; empty for what is not one word of three letters or more."""
    if not (word.isalpha() and len(word) > 2):
        return {}
    stem = word[:-1] if word[-1] == "e" else word
    found: dict[str, Kind] = {f"{stem}er": "degree", f"{stem}est": "degree", f"{word}ern": "degree"}
    found |= {_plural(word): "plural", f"{word}es": "plural", _adverb(word): "adverb"}
    found.pop(word, None)
    return found


def inflected(text: str, kind: Kind) -> str | None:
    """Write a word or phrase in a form; None where it has none."""
    if kind == "degree" or not text[-1:].isalpha():
        return None
    return _plural(text) if kind == "plural" else _adverb(text)


def _plural(text: str) -> str:
    if text.endswith(("s", "x", "z", "ch", "sh")):
        return f"{text}es"
    return f"{text[:-1]}ies" if text[-1] == "y" and text[-2:-1] not in "aeiou" else f"{text}s"


def _adverb(text: str) -> str:
    return f"{text[:-1]}y" if text.endswith("le") else f"{text}ly"
