"""One dialogue as a rewrite needs it: its values, where they stand, and why some of them have to stay.

Guarantees: depends on the dialogue and the schema alone, so that it can be kept from epoch to epoch (`read` keeps a
bounded number). What would be half exchanged is named an obstacle here, before anything is drawn: values that were
given in other words, small numbers of which it cannot be told what they count, forms that no other word has.

Void for mentions that no spelling, ending or distinctive word gives away.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from functools import cached_property

from hushbot.types import Dialogue, Span
from hushbot.values.clock import minutes_of
from hushbot.values.counts import Number, Verdict, last_word, numbers_in, verdict
from hushbot.values.dates import day_of
from hushbot.values.finder import Finder, Mention, squash
from hushbot.values.inflection import forms
from hushbot.values.shapes import number_of
from hushbot.values.substitution import contents
from hushbot.values.value import Value, action_values, finder_of, forms_of, values_of
from hushbot.values.value_lists import ValueLists
from hushbot.values.words import COMMON, KINDS, STOP, distinctive, fold

YES_OR_NO = "yes or no"
IN_OTHER_WORDS = "said in other words"
OTHER_COUNT = "a number that may count something else"
OTHER_FORM = "stands in a form that other values lack"
FREE_TEXT = "free text"
_NAMED = {"name", "words", "address"}
_MOST_WORDS = 5
_PLAIN_WORDS = frozenset({"yes", "no", "true", "false", "free", "any", "other"})
_CHOICE_BEFORE = re.compile(r"\b(?:or|and)\s+(?:the\s+|an?\s+)?$", flags=re.IGNORECASE)
_CHOICE_AFTER = re.compile(r"\s*,?\s*(?:or|and)\b", flags=re.IGNORECASE)
_N_KEPT = 4096


class Reading:
    """What is known of one dialogue before anything is drawn."""

    def __init__(self, dialogue: Dialogue, lists: ValueLists) -> None:
        self.dialogue = dialogue
        self.lists = lists
        values = values_of(dialogue)
        self.forms = {value.key: tuple(forms_of(value)) for value in values}
        """Under what each value surely stands in a text, squashed."""
        self.values: dict[str, Value] = {value.key: value for value in values}
        self.owners: dict[str, str] = {text: value.key for value in values for text in value.texts}
        self.closed = {value.key: lists.choices(value) for value in values if lists.is_categorical(value)}
        self.options = self._standing_options()
        """Listed options that stand in the dialogue and are no values of it, by key."""
        self._words_of = {key: distinctive_words(value) for key, value in self.values.items() if self._is_named(value)}
        self.aliases = self._standing_words()
        """Distinctive words that stand alone -> the values that they may stand for."""
        self.finder = self._finder(self.aliases)
        self.numbers, self.unclear = self._numbers()
        self.said = [self._keys(i, turn.user, by_system=False) for i, turn in enumerate(dialogue.turns)]
        self.heard = [self._keys(i, turn.response or "", by_system=True) for i, turn in enumerate(dialogue.turns)]

    @cached_property
    def obstacles(self) -> dict[str, str]:
        """Why values cannot be exchanged safely, by key."""
        found = {key: self._obstacle(value) for key, value in self.values.items()}
        return {key: reason for key, reason in found.items() if reason is not None}

    @cached_property
    def holders(self) -> dict[str, set[str]]:
        """The values that hold each value (`cambridge` in a hotel's name) or share a distinctive word with it."""
        found: dict[str, set[str]] = {key: set() for key in self.values}
        sure = {form: key for key, known in self.forms.items() for form in known}
        search = Finder(sure, self.owners)
        names = {key: _name_words(value) for key, value in self.values.items()}
        for other in self.values.values():
            for text in other.texts:
                for mention in search.find_all(text):
                    found[mention.key].add(other.key)
                for key in names if "@" in text else ():
                    if any(name in text.casefold().partition("@")[0] for name in names[key]):
                        found[key].add(other.key)
        for keys in self._sharing().values():
            for key in keys:
                found[key] |= keys
        for key, holders in found.items():
            holders.discard(key)
        return found

    @cached_property
    def clans(self) -> dict[str, str]:
        """What is drawn together, so that it keeps its order: key -> the first key of its clan."""
        found = {key: key for key in self.values}
        for ordered in (self.times, self.days):
            for key in ordered:
                found[key] = min(ordered)
        return found

    @cached_property
    def times(self) -> dict[str, tuple[str, int]]:
        """The times of day: key -> (a spelling, its minutes)."""
        return {
            key: next((text, m) for text in value.texts if (m := minutes_of(text)) is not None)
            for key, value in self.values.items()
            if key not in self.closed and any(minutes_of(text) is not None for text in value.texts)
        }

    @cached_property
    def days(self) -> dict[str, tuple[str, tuple[int, int]]]:
        """The days of a year: key -> (a spelling, its month and day)."""
        return {
            key: next((text, day) for text in value.texts if (day := day_of(text)) is not None)
            for key, value in self.values.items()
            if key not in self.closed and key not in self.times and any(map(day_of, value.texts))
        }

    @cached_property
    def removable(self) -> set[str]:
        """The values that can be taken out: the user brings them up, and no text offers them beside others."""
        offered: set[str] = set()
        for turn in self.dialogue.turns:
            for text in (turn.user, turn.response or ""):
                offered |= {m.key for m in self.finder.find(text) if _is_beside(text, m)}
        named = {key for owners in self.aliases.values() for key in owners}
        ordered = {key for key in (*self.times, *self.days) if len(self.times) + len(self.days) > 1}
        kept = offered | named | {key for key in self.values if number_of(self.values[key].text) is not None}
        known = set(self.finder.keys(self.dialogue.opening))
        found: set[str] = set()
        for turn, said, heard in zip(self.dialogue.turns, self.said, self.heard, strict=True):
            found |= said - known
            given = {self.owners.get(text) for _, text in action_values(turn.actions)}
            known |= said | heard | self.finder.keys(turn.database) | {key for key in given if key is not None}
        return {key for key in found - kept - ordered if key in self.values and self.values[key].entries}

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word of the dialogue, folded."""
        texts = " ".join(contents(self.dialogue))
        return frozenset(re.findall(r"[^\W\d_]+", fold(texts)))

    @cached_property
    def keeps(self) -> frozenset[str]:
        """The words that stay in invented names: those that name nothing else here."""
        forms = {form for form, key in self.finder.forms.items() if key in self.closed or key in self.options}
        texts = [*self.options, *(text for key in self.closed for text in self.values[key].texts)]
        parts = {word for text in texts for word in fold(text).split()}
        # `guest house` names the option `guesthouse`.
        heads = {word for word in KINDS for form in forms if form.startswith(word) and form[len(word) :] in KINDS}
        return (STOP | KINDS) - self.finder.forms.keys() - ((parts | heads) - STOP)

    @cached_property
    def traces(self) -> Finder:
        """Finds what must be gone where a value was exchanged: its sure forms, and `~word` for distinctive words."""
        sure = {form: key for key, known in self.forms.items() for form in known}
        return Finder({word: f"~{word}" for word in self._sharing()} | sure, self.owners)

    @cached_property
    def owners_of_words(self) -> dict[str, set[str]]:
        """Which values each distinctive word may stand for."""
        return self._sharing()

    def is_tied(self, key: str) -> bool:
        """Say whether a value shares a distinctive word with the text or another value, so it has to be invented."""
        return any(
            key in keys and (word in self.aliases or len(keys) > 1) for word, keys in self.owners_of_words.items()
        )

    def _is_named(self, value: Value) -> bool:
        return value.key not in self.closed and value.shape in _NAMED

    def _sharing(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = defaultdict(set)
        for key, words in self._words_of.items():
            for word in words:
                found[word].add(key)
        for key, value in self.values.items():
            # A first name that is a value itself belongs to the full name.
            if self._is_named(value) and value.key in found:
                found[value.key].add(key)
        return found

    def _finder(self, aliases: Iterable[str]) -> Finder:
        more = {word: f"~{word}" for word in aliases}
        for key, value in (*self.options.items(), *self.values.items()):
            if key in self.closed or key in self.options:
                for text in value.texts:
                    more |= {form: key for form, kind in forms(fold(text)).items() if kind != "degree"}
        return finder_of([*self.options.values(), *self.values.values()], more=more)

    def _standing_options(self) -> dict[str, Value]:
        options = {}
        for choices in sorted(set(self.closed.values())):
            for text in choices:
                form = squash(text)
                if form and form not in self.values and number_of(text) is None and not is_plain(text):
                    options[form] = Value(form, text, "", {text: None})
        if not options:
            return {}
        known = {form for known in self.forms.values() for form in known}
        self.options = {key: value for key, value in options.items() if key not in known}
        finder = self._finder(())
        standing = {key for text in contents(self.dialogue) for key in finder.keys(text)}
        return {key: value for key, value in self.options.items() if key in standing}

    def _standing_words(self) -> dict[str, set[str]]:
        sharing = self._sharing()
        if not sharing:
            return {}
        words = Finder({word: word for word in sharing})
        finder = self._finder(())
        alone = set()
        for text in contents(self.dialogue):
            if hits := words.find_all(text):
                covered = finder.find(text)
                alone |= {h.key for h in hits if not any(m.start <= h.start and h.end <= m.end for m in covered)}
        return {word: sharing[word] for word in sorted(alone)}

    def _numbers(self) -> tuple[dict[tuple[int, bool], tuple[Mention, ...]], set[str]]:
        """Return the small numbers that are values, and the values of which it cannot be told where they stand."""
        numbers: dict[tuple[int, bool], tuple[Mention, ...]] = {}
        unclear: set[str] = set()
        counted = {key: value for key, value in self.values.items() if number_of(value.text) is not None}
        for index, turn in enumerate(self.dialogue.turns) if counted else ():
            for by_system, text in ((False, turn.user), (True, turn.response or "")):
                spans = turn.response_spans if by_system else turn.user_spans
                own = []
                for number in numbers_in(text):
                    if number.digits in counted and not self._is_inside(text, number):
                        said = self._judge(index, number, spans, by_system=by_system)
                        if said is Verdict.OWN:
                            own.append(Mention(number.start, number.end, number.digits))
                        elif said is Verdict.UNCLEAR:
                            unclear.add(number.digits)
                numbers[index, by_system] = tuple(own)
        return numbers, unclear

    def _judge(self, index: int, number: Number, spans: tuple[Span, ...], *, by_system: bool) -> Verdict:
        turn, value = self.dialogue.turns[index], self.values[number.digits]
        names = {last_word(slot) for _, slot in value.slots}
        text = (turn.response or "") if by_system else turn.user
        said = verdict(text, number, names, spans)
        if said is not Verdict.UNCLEAR:
            return said
        is_pronoun = text[number.start : number.end].casefold() == "one"
        if not by_system:
            return Verdict.OTHER if is_pronoun else Verdict.OWN
        given = {last_word(slot) for slot, other in action_values(turn.actions) if number_of(other) == number.digits}
        if given:
            n_same = sum(other.digits == number.digits for other in numbers_in(text))
            if not given & names:
                return Verdict.OTHER
            return Verdict.OWN if given <= names and n_same == 1 else Verdict.UNCLEAR
        is_count = is_pronoun or re.search(rf"\b{number.digits} found\b", turn.database)
        return Verdict.OTHER if is_count or all(index < entry.turn for entry in value.entries) else Verdict.UNCLEAR

    def _is_inside(self, text: str, number: Number) -> bool:
        return any(m.start <= number.start and number.end <= m.end for m in self.finder.find(text))

    def _keys(self, index: int, text: str, *, by_system: bool) -> frozenset[str]:
        return self.finder.keys(text) | {mention.key for mention in self.numbers.get((index, by_system), ())}

    def _obstacle(self, value: Value) -> str | None:
        is_closed, is_number = value.key in self.closed, number_of(value.text) is not None
        if any(map(is_plain, value.texts)):
            is_silent = not any(self._has_words(entry.turn) for entry in value.entries)
            is_unheard = not any(value.key in keys for keys in (*self.said, *self.heard, self._opening))
            return None if is_closed and is_silent and is_unheard else YES_OR_NO
        if is_number:
            if any(number_of(text) is None for text in value.texts):
                return IN_OTHER_WORDS
            if value.key in self.unclear:
                return OTHER_COUNT
        if is_closed or is_number:
            if any(self.words & _degrees(text) for text in value.texts):
                return OTHER_FORM
            return None if self._is_given(value) else IN_OTHER_WORDS
        return FREE_TEXT if _is_free(value) else None

    def _is_given(self, value: Value) -> bool:
        """Say whether each of its entries has the value in plain words, or no words at all."""
        is_number = number_of(value.text) is not None
        given: set[str] = set()
        for turn, (domain, slot) in value.entries:
            # A number must be said where it enters: the same digit before may have counted something else.
            texts = self.said[turn : turn + 1] if is_number else self.said[: turn + 1]
            is_said = any(value.key in keys for keys in texts)
            if not self._has_words(turn) or is_said or self._is_taken_up(value, turn, domain, slot):
                given.add(slot)
            elif not is_number or slot not in given:
                return False
        return True

    def _is_taken_up(self, value: Value, turn: int, domain: str, slot: str) -> bool:
        """Say whether the user may have agreed to this one value that the system had just named."""
        if number_of(value.text) is not None:
            return False
        before = self.heard[turn - 1] if turn else self._opening
        text = (self.dialogue.turns[turn - 1].response or "") if turn else self.dialogue.opening
        named = Finder({squash(choice): choice for choice in self.closed[value.key]}).keys(text)
        is_marked = any((span.domain, span.slot) == (domain, slot) for span in self.dialogue.turns[turn].user_spans)
        return value.key in before and len(named) <= 1 and not is_marked

    @cached_property
    def _opening(self) -> frozenset[str]:
        return self.finder.keys(self.dialogue.opening)

    def _has_words(self, turn: int) -> bool:
        return bool(squash(self.dialogue.turns[turn].user))


_READINGS: OrderedDict[int, Reading] = OrderedDict()


def read(dialogue: Dialogue, lists: ValueLists) -> Reading:
    """Return the reading of a dialogue, the one that was made before where there is one."""
    known = _READINGS.get(id(dialogue))
    # The reading keeps its dialogue alive, so that no other object can have its id.
    if known is not None and known.dialogue is dialogue and known.lists.slots is lists.slots:
        return known
    _READINGS[id(dialogue)] = made = Reading(dialogue, lists)
    if len(_READINGS) > _N_KEPT:
        _READINGS.popitem(last=False)
    return made


def is_plain(text: str) -> bool:
    """Say whether a value is a word that stands in texts without meaning the value."""
    return text.strip().casefold() in _PLAIN_WORDS


def distinctive_words(value: Value) -> set[str]:
    """Return the words that may stand for a value of several words."""
    return {word for text in value.texts for word in distinctive(text)}


def _name_words(value: Value) -> list[str]:
    return [word for text in value.texts for word in text.casefold().split() if len(word) > 2 and word.isalpha()]


def _degrees(text: str) -> set[str]:
    return {form for form, kind in forms(fold(text)).items() if kind == "degree"}


def _is_free(value: Value) -> bool:
    """Say whether a value is running text, or one everyday word that other sentences use as well."""
    words = [fold(word) for word in re.findall(r"[^\W\d_]+", value.text)]
    if value.shape not in _NAMED or any(c.isdigit() for c in value.text):
        return False
    if len(words) == 1:
        return words[0] in STOP or words[0] in COMMON
    return value.shape == "words" and (len(words) > _MOST_WORDS or all(word in STOP for word in words))


def _is_beside(text: str, mention: Mention) -> bool:
    """Say whether a mention is one of several that `or` or `and` join."""
    before = _CHOICE_BEFORE.search(text, max(0, mention.start - 12), mention.start)
    return bool(before or _CHOICE_AFTER.match(text, mention.end))
