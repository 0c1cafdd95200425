"""What becomes of each value of one dialogue in one epoch, and the dialogue that comes of it.

Guarantees: draws depend on the stream's name, the dialogue's id and its own text. A value is exchanged everywhere or
stays and is counted: what would still stand somewhere afterwards, whole or by a word that gives it away, is left, and
the plan is made anew without it. Options of one closed list are permuted, so that no two become one; times and days of
one dialogue keep their order; one word of a name becomes one word wherever it stands.

Void for what `reading` does not know of.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hushbot.types import Dialogue
from hushbot.values.clock import respell
from hushbot.values.counts import last_word
from hushbot.values.dates import dated
from hushbot.values.finder import apart, squash
from hushbot.values.inflection import forms
from hushbot.values.reading import Reading, is_plain
from hushbot.values.shapes import in_case_of, like
from hushbot.values.substitution import Exchange, Substitution, contents
from hushbot.values.value import Value, is_void
from hushbot.values.value_lists import ValueLists
from hushbot.values.words import NewWords, fold

NO_ALTERNATIVE = "no other value of its type"
STILL_THERE = "would still stand somewhere"
AS_SET = "categorical, kept as set"
_N_TRIES = 24
_FIRST_CELL, _LAST_CELL, _CELL = 7 * 4, 22 * 4, 15
"""Times are drawn from quarters of an hour between 7:00 and 22:00."""
_N_DAYS = 28
"""Every month has as many days."""


@dataclass(frozen=True, kw_only=True)
class Odds:
    """How much is exchanged."""

    rate: float
    removal: float
    categorical: bool


class Outcome(NamedTuple):
    """One dialogue's rewrite."""

    dialogue: Dialogue
    substitution: Substitution
    reading: Reading
    replaced: frozenset[str]
    """Keys of the values that were replaced."""
    removed: frozenset[str]
    left: Mapping[str, str]
    """Key of each value that was drawn and stayed -> why."""


def outcome_of(reading: Reading, lists: ValueLists, odds: Odds, stream: str) -> Outcome:
    """Return what becomes of a dialogue in one epoch."""
    left: dict[str, str] = {}
    while True:
        plan = _Plan(reading, lists, odds, f"{stream}/{reading.dialogue.id}", left)
        substitution = Substitution(reading.finder, reading.owners, plan.exchanges, reading.numbers)
        rewritten = substitution.dialogue(reading.dialogue) if plan.exchanges else reading.dialogue
        remaining = _remaining(reading, plan.exchanges, rewritten)
        if not remaining:
            made = {key: exchange for key, exchange in plan.exchanges.items() if key in reading.values}
            removed = frozenset(key for key, exchange in made.items() if exchange.new is None)
            return Outcome(rewritten, substitution, reading, frozenset(made) - removed, removed, plan.left)
        left = left | dict.fromkeys(remaining, STILL_THERE)


class _Plan:
    """The exchanges of one dialogue in one epoch."""

    def __init__(
        self, reading: Reading, lists: ValueLists, odds: Odds, stream: str, excluded: Mapping[str, str]
    ) -> None:
        self.reading, self.lists, self.odds, self.stream = reading, lists, odds, stream
        self.left: dict[str, str] = {}
        self.exchanges: dict[str, Exchange] = {}
        self._excluded = excluded
        self._drawn = self._draw()
        if self._drawn:
            self._permute_options()
            self._assign_times()
            self._assign_days()
            self._replace_others()

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.stream}/{name}")

    def _draw(self) -> dict[str, bool]:
        """Return the values to exchange, and whether each is taken out."""
        drawn: dict[str, bool] = {}
        fates = {clan: self._random(clan).random() for clan in set(self.reading.clans.values())}
        for key, clan in self.reading.clans.items():
            if fates[clan] < self.odds.rate and self._may_go(key):
                is_removable = key in self.reading.removable
                drawn[key] = is_removable and self._random(f"{key}/removal").random() < self.odds.removal
        pending = list(drawn)
        while pending:
            for key in sorted(self._company(pending.pop()) - drawn.keys() - self.left.keys()):
                if self._may_go(key):
                    drawn[key] = False
                    pending.append(key)
        return dict(sorted(drawn.items()))

    def _company(self, key: str) -> set[str]:
        clan = self.reading.clans[key]
        return self.reading.holders[key] | {other for other, its in self.reading.clans.items() if its == clan}

    def _may_go(self, key: str) -> bool:
        reason = self._excluded.get(key) or self.reading.obstacles.get(key)
        if key in self.reading.closed and not self.odds.categorical:
            reason = AS_SET
        if reason is not None:
            self.left[key] = reason
        return reason is None

    def _exchange(self, key: str, new: str | None, original: str | None = None) -> None:
        value = self.reading.values.get(key) or self.reading.options[key]
        names = frozenset(last_word(slot) for _, slot in value.slots)
        self.exchanges[key] = Exchange(original or value.text, new, self.reading.closed.get(key, ()), names)

    def _permute_options(self) -> None:
        groups: dict[tuple[tuple[str, ...], bool], list[str]] = defaultdict(list)
        for key, is_removed in self._drawn.items():
            if key in self.reading.closed and is_removed:
                self._exchange(key, None)
            elif key in self.reading.closed:
                groups[self.reading.closed[key], is_plain(self.reading.values[key].text)].append(key)
        for (choices, plain), keys in sorted(groups.items()):
            self._permute([choice for choice in choices if is_plain(choice) == plain], keys, choices)

    def _permute(self, choices: Sequence[str], keys: list[str], listed: tuple[str, ...]) -> None:
        """Send each option of a list to another, those of values that stay to themselves."""
        at = {squash(choice): choice for choice in choices}
        place = {key: next((form for form in (*self.reading.forms[key], key) if form in at), None) for key in keys}
        fixed = {form for key, known in self.reading.forms.items() if key not in keys for form in (*known, key)}
        free = [form for form in at if form not in fixed]
        images = self._derangement(free, [form for form in place.values() if form is not None])
        standing = {key for key in self.reading.options if key in images}
        taken = {images[form] for form in [*place.values(), *standing] if form is not None and form in images}
        for key in keys:
            form = place[key]
            spare = [other for other in free if other not in taken]
            if form is None and spare:
                new = self._random(key).choice(spare)
                taken.add(new)
            else:
                new = images.get(form or "", form or "")
            if not new or new == form or (self._is_inflected(key) and not at[new][-1:].isalpha()):
                self.left[key] = NO_ALTERNATIVE
            else:
                self._exchange(key, at[new])
        for key in sorted(standing):
            if images[key] != key:
                value = self.reading.options[key]
                self.exchanges[key] = Exchange(value.text, at[images[key]], listed)

    def _derangement(self, free: list[str], movers: list[str]) -> dict[str, str]:
        stream = self._random("/".join(free))
        images, second_best = list(free), None
        # Lists of two slots may share options, small numbers above all.
        used = {squash(exchange.new) for exchange in self.exchanges.values() if exchange.new is not None}
        for _ in range(_N_TRIES):
            stream.shuffle(images)
            made = dict(zip(free, images, strict=True))
            if all(made.get(form) != form for form in movers):
                if not any(made.get(form) in used for form in movers):
                    return made
                second_best = second_best or made
        if second_best is not None:
            return second_best
        # The next one in a ring moves everything, where there are two.
        return dict(zip(free, [*free[1:], *free[:1]], strict=True))

    def _is_inflected(self, key: str) -> bool:
        texts = self.reading.values[key].texts
        return any(form in self.reading.words for text in texts for form in forms(fold(text)))

    def _assign_times(self) -> None:
        times = {key: self.reading.times[key] for key in self.reading.times if key in self._drawn}
        if removed := [key for key in times if self._drawn[key]]:
            for key in removed:
                self._exchange(key, None)
        order = sorted((key for key in times if not self._drawn[key]), key=lambda key: (times[key][1], key))
        if len(order) > _LAST_CELL - _FIRST_CELL:
            self.left |= dict.fromkeys(order, NO_ALTERNATIVE)
            return
        stream, old = self._random("times"), {minutes for _, minutes in times.values()}
        for key, minutes in zip(order, self._times(stream, [times[key][1] for key in order], old), strict=True):
            self._exchange(key, respell(minutes, *times[key]), times[key][0])

    @staticmethod
    def _times(stream: random.Random, before: list[int], old: set[int]) -> list[int]:
        """Draw as many times, in the same order, each on its grid of minutes."""
        drawn: list[int] = []
        for _ in range(_N_TRIES):
            cells = sorted(stream.sample(range(_FIRST_CELL, _LAST_CELL), len(before)))
            steps = [next(step for step in (15, 5, 1) if minutes % step == 0) for minutes in before]
            drawn = [cell * _CELL + stream.randrange(0, _CELL, step) for cell, step in zip(cells, steps, strict=True)]
            if not old & set(drawn):
                break
        return drawn

    def _assign_days(self) -> None:
        days = {key: self.reading.days[key] for key in self.reading.days if key in self._drawn}
        order = sorted((key for key in days if not self._drawn[key]), key=lambda key: (days[key][1], key))
        stream, old = self._random("days"), {(month - 1) * _N_DAYS + day - 1 for _, (month, day) in days.values()}
        free = [n for n in range(12 * _N_DAYS) if n not in old]
        for key, number in zip(order, sorted(stream.sample(free, min(len(order), len(free)))), strict=True):
            text = days[key][0]
            self._exchange(key, dated(text, number // _N_DAYS + 1, number % _N_DAYS + 1, stream), text)
        for key in days.keys() - set(order):
            self._exchange(key, None)

    def _replace_others(self) -> None:
        words = NewWords(self._random("words"), self.reading.words)
        for key, is_removed in self._drawn.items():
            if key in self.exchanges or key in self.left:
                continue
            value = self.reading.values[key]
            new = None if is_removed else self._replacement(value, words)
            if new is None and not is_removed:
                self.left[key] = NO_ALTERNATIVE
            else:
                self._exchange(key, new)
        for word, owners in self.reading.aliases.items():
            if all(key in self.exchanges and self.exchanges[key].new is not None for key in owners):
                self.exchanges[f"~{word}"] = Exchange(word, words.word(word))

    def _replacement(self, value: Value, words: NewWords) -> str | None:
        """Return a value of the same type that names nothing else in the dialogue, or None."""
        used = {squash(exchange.new) for exchange in self.exchanges.values() if exchange.new is not None}
        second_best = None
        for candidate in self._proposals(value, words):
            form = squash(candidate)
            if not form or is_void(candidate) or is_plain(candidate) or form in used:
                continue
            named = {mention.key for mention in self.reading.finder.find_all(candidate)}
            if not named:
                return candidate
            if second_best is None and not named & self._drawn.keys() and value.key not in named:
                second_best = candidate
        return second_best

    def _proposals(self, value: Value, words: NewWords) -> Iterator[str]:
        stream = self._random(value.key)
        listed = () if self.reading.is_tied(value.key) else self.lists.candidates(value)
        for text in stream.sample(listed, min(_N_TRIES, len(listed))):
            if not self.reading.owners_of_words.keys() & set(fold(text).split()):
                yield in_case_of(value.text, text)
        for _ in range(_N_TRIES):
            yield like(value.text, value.slot, stream, words, keeps=self.reading.keeps)
        yield like(value.text, value.slot, stream, words, keeps=frozenset())


def _remaining(reading: Reading, exchanges: Mapping[str, Exchange], rewritten: Dialogue) -> set[str]:
    """Return the exchanged values of which something still stands in the rewritten dialogue."""
    if not exchanges:
        return set()
    put_in = {squash(exchange.new) for exchange in exchanges.values() if exchange.new is not None}
    found: set[str] = set()
    for text in set(contents(rewritten)):
        for mention in reading.traces.find_all(text):
            if mention.key in exchanges and squash(text[mention.start : mention.end]) not in put_in:
                found.add(mention.key)
            elif mention.key[0] == "~":
                owners = reading.owners_of_words[mention.key[1:]] & exchanges.keys()
                if owners and not _is_kept(reading, exchanges, text, mention.start):
                    found |= owners
    return found & reading.values.keys()


def _is_kept(reading: Reading, exchanges: Mapping[str, Exchange], text: str, start: int) -> bool:
    """Say whether a place in a text belongs to a value that stays."""
    mentions = apart(reading.finder.find_all(text))
    return any(m.start <= start < m.end and m.key in reading.values and m.key not in exchanges for m in mentions)
