"""What a run says when something goes wrong, without what its dialogues say.

Guarantees: an error that leaves `discreet` quotes no dialogue of the corpus, whoever raised it: values, what looks like
a number or an address of one of the dialogues, names that only a few dialogues have, five words in a row of an
utterance, and every quoted text that holds any of these are masked (`hushbot.masking`); an error of another library
keeps its traceback, which shows code and no data, and loses what it was caused by. Domains, slots and dialogue ids stay
readable. Notes of attacks are told in the same way (`Veil.veiled`), since they may repeat an error.

What voids it: a text in another spelling than the corpus', such as base64; an ordinary word that is somebody's secret
but stands in many dialogues, outside quotation marks.

>>> from hushbot.types import Dialogue, SlotValue, Turn
>>> state = frozenset({SlotValue("taxi", "phone", "07700900461")})
>>> veil = Veil([Dialogue("d1", (Turn("my number is 07700900461", state),))], frozenset({"taxi", "phone"}))
>>> veil.mask("dialogue d1: no reading of taxi-phone '07700900461'; mend it")
"dialogue d1: no reading of taxi-phone '***(11)'; mend it"
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from hushbot.errors import ConfigError, HushbotError
from hushbot.masking import mask_text
from hushbot.schema import Schema
from hushbot.types import AttackResult, Dialogue, Estimate

_WORD = re.compile(r"\+?\w(?:[\w@.+'-]*\w)?")
# An apostrophe within or behind a word opens no quotation; the b of bytes does.
_QUOTED = re.compile(r"(?:(?<!\w)|(?<=\bb))'((?:[^'\\\n]|\\.)+)'|\"((?:[^\"\\\n]|\\.)+)\"")
_ESCAPE = re.compile(r"\\[uUx][0-9a-fA-F]{2}")
_DECIMAL = re.compile(r"\d{1,3}\.\d{1,4}")
"""A measured number, such as a rate; a price that happens to be the same tells nobody apart."""
_SHORTEST = 4
"""A value or number of fewer characters tells nobody apart, and stands in every message."""
_RUN = 5
"""So many words in a row of an utterance are a quotation."""
_FEW = 2
"""A word of a value that so many dialogues hold, or fewer, may be somebody's name."""
_COMMON = 20
_COMMON_PART = 0.1
"""A value made of words that at least so many dialogues hold, and such a part of them, is everybody's: `do not`."""


class Veil:
    """Knows what dialogues say, and masks it in a text.

    Args:
        dialogues: Whose texts and values are to be kept.
        public: Words that name things and nobody: domains, slots.
    """

    def __init__(self, dialogues: Iterable[Dialogue], public: frozenset[str] = frozenset()) -> None:
        self._dialogues = tuple(dialogues)
        self._public = frozenset(_fold(word) for word in public) | frozenset(_fold(d.id) for d in self._dialogues)

    @classmethod
    def over(cls, everybody: Iterable[Dialogue], schema: Schema) -> Veil:
        """Return the veil over all dialogues of a corpus."""
        names = {name for slot in schema.slots for name in (slot.domain, slot.name)}
        words = {word for name in names for word in re.findall(r"\w+", name)}
        return cls(everybody, frozenset(names | words))

    def mask(self, text: str) -> str:
        """Return the text with everything masked that is somebody's."""
        folded = _fold(text)
        private = [*self._values_in(folded), *self._words_in(folded), *self._runs_in(folded)]
        private += [span for span in _quotes(text) if self._is_private_quote(text[slice(*span)], span, private)]
        shown, at = [], 0
        for start, end in _merged(private):
            shown += [text[at:start], mask_text(text[start:end])]
            at = end
        return "".join([*shown, text[at:]])

    def veiled(self, result: AttackResult) -> AttackResult:
        """Return an attack's result whose notes and reasons quote nobody; numbers stay."""
        headline = result.headline.model_copy(update={"estimate": self._reasons(result.headline.estimate)})
        parts = {name: self._reasons(getattr(result, name)) for name in ("metrics", "control", "blind")}
        notes = [self.mask(note) for note in result.notes]
        return result.model_copy(update={"notes": notes, "headline": headline, **parts})

    def _reasons(self, node: object) -> object:
        """Mask why a number could not be had, wherever in a block it stands."""
        if isinstance(node, Mapping):
            return {key: self._reasons(inner) for key, inner in node.items()}
        if not isinstance(node, Estimate) or node.value is not None or not node.method:
            return node
        return node.model_copy(update={"method": self.mask(node.method)})

    def _values_in(self, folded: str) -> Iterator[tuple[int, int]]:
        for value in self._values:
            at = folded.find(value)
            while at >= 0:
                end = at + len(value)
                if not folded[at - 1 : at].isalnum() and not folded[end : end + 1].isalnum():
                    yield at, end
                at = folded.find(value, end)

    def _words_in(self, folded: str) -> Iterator[tuple[int, int]]:
        for found in _WORD.finditer(folded):
            word = found[0]
            if _DECIMAL.fullmatch(word):
                continue
            if len(word) >= _SHORTEST and word not in self._public and (word in self._codes or word in self._names):
                yield found.span()

    def _runs_in(self, folded: str) -> Iterator[tuple[int, int]]:
        words = list(_WORD.finditer(folded))
        for i in range(len(words) - _RUN + 1):
            if f" {' '.join(word[0] for word in words[i : i + _RUN])} " in self._text:
                yield words[i].start(), words[i + _RUN - 1].end()

    def _is_private_quote(self, inner: str, span: tuple[int, int], private: list[tuple[int, int]]) -> bool:
        """Say whether a quoted text is a dialogue's: it holds something private, or stands there as it is."""
        if any(start < span[1] and span[0] < end for start, end in private) or _ESCAPE.search(inner):
            return True
        words = _WORD.findall(_fold(inner))
        is_public = " ".join(words) in self._public or all(word in self._public for word in words)
        return len(words) > 1 and not is_public and f" {' '.join(words)} " in self._text

    @cached_property
    def _values(self) -> list[str]:
        """Values of several words, as a message may spell them; of one word, see `_names` and `_codes`."""
        found = {_fold(value).strip() for dialogue in self._dialogues for value in _values_of(dialogue)}
        return [
            value
            for value in found
            if not value.isalnum()
            and len(value) >= _SHORTEST
            and value not in self._public
            and not self._is_everybodys(value)
        ]

    def _is_everybodys(self, value: str) -> bool:
        words, needed = _WORD.findall(value), max(_COMMON, _COMMON_PART * len(self._dialogues))
        return bool(words) and all(word.isalpha() and self._word_counts[word] >= needed for word in words)

    @cached_property
    def _names(self) -> frozenset[str]:
        """Words of values that only few dialogues hold."""
        return frozenset(word for word, n in self._word_counts.items() if n <= _FEW)

    @cached_property
    def _word_counts(self) -> Counter[str]:
        """How many dialogues hold each word of a value."""
        words = {w for d in self._dialogues for value in _values_of(d) for w in _WORD.findall(_fold(value))}
        return Counter(
            word
            for dialogue in self._dialogues
            for word in words & {w for text in _texts_of(dialogue) for w in _WORD.findall(_fold(text))}
        )

    @cached_property
    def _codes(self) -> frozenset[str]:
        """Words of any text that hold a digit or an `@`."""
        return frozenset(word for word in self._text.split() if any(c.isdigit() or c == "@" for c in word))

    @cached_property
    def _text(self) -> str:
        """Everything that is said, word by word with single blanks between."""
        texts = (text for dialogue in self._dialogues for text in _texts_of(dialogue))
        return " ".join(["", *(" ".join(_WORD.findall(_fold(text))) + " |" for text in texts), ""])


@contextlib.contextmanager
def discreet(everybody: Sequence[Dialogue], schema: Schema) -> Iterator[None]:
    """Let errors out only after everything that the dialogues say was masked in them.

    Raises:
        HushbotError: As it was raised, masked.
        RuntimeError: Stands for any other error, with its traceback.
    """
    try:
        yield
    except HushbotError as error:
        raise _masked(error, Veil.over(everybody, schema)) from None
    except Exception as error:
        said = Veil.over(everybody, schema).mask(str(error))
        raise RuntimeError(f"{type(error).__name__}: {said}").with_traceback(error.__traceback__) from None


def _masked(error: HushbotError, veil: Veil) -> HushbotError:
    """Return an error of the same kind; one whose class wants other arguments becomes its nearest known kind."""
    problems = error.problems if isinstance(error, ConfigError) else (str(error),)
    said = [veil.mask(problem) for problem in problems]
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ == HushbotError.__module__]
    masked: HushbotError = kinds[0](*said)
    return masked.with_traceback(error.__traceback__)


def _values_of(dialogue: Dialogue) -> Iterator[str]:
    for turn in dialogue.turns:
        for triplet in (*(turn.state or ()), *turn.booked):
            yield from triplet.values
        for span in (*turn.user_spans, *turn.response_spans):
            yield span.value


def _texts_of(dialogue: Dialogue) -> Iterator[str]:
    yield dialogue.opening
    for turn in dialogue.turns:
        yield from (turn.user, turn.response or "", turn.actions)
    yield from _values_of(dialogue)


def _quotes(text: str) -> Iterator[tuple[int, int]]:
    for found in _QUOTED.finditer(text):
        yield found.span(next(i for i in (1, 2) if found[i] is not None))


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _fold(text: str) -> str:
    """Return the text in small letters, character by character: every place stays where it is."""
    if text.isascii():  # nearly all texts; one by one is slow
        return text.lower()
    return "".join(small if len(small := c.lower()) == 1 else c for c in text)
