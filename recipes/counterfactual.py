"""Counterfactual values: in each epoch the bot sees every dialogue with other values in the same places.

Guarantees: each distinct value of a dialogue is drawn with probability `rate`, anew in each epoch; a drawn value is
replaced, or taken out, everywhere at once: in what the user says, states, database lines, actions, bookings and
responses. What a dialogue becomes depends on (seed, epoch, its id, its own text) and, with `pool=public`, on published
lists of values and invented words only: the rewrite is then a function of one dialogue, as a guarantee per dialogue
needs it. A replacement keeps the type: a categorical slot takes another of its possible values, a time a time.

No value is left half exchanged. One that cannot be exchanged safely stays as it was and is counted in the notes:
"yes" and "no", categorical values and small numbers that the user gave in other words, values without an alternative.
A value that stands inside another (a city in a hotel's name, a name in an e-mail address) takes that one with it.
Values that nobody said, or that a tap on a button stands for, are exchanged: the bot cannot have them from the text, so
it would have to learn them by heart.

What voids it: `rate` below 1 leaves the true value in some epochs; venues that only the unsupervised database line
names stay; `pool=members` draws from other members' states, which voids a guarantee per dialogue.

Source: counterfactual data augmentation for dialogue states (CoCo, arXiv 2010.12850), used here against memorisation.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from hushbot.dialogue_values import Value, finder_of, is_void, values_of
from hushbot.mentions import squash
from hushbot.prompts import render_state
from hushbot.protocols import Recipe
from hushbot.schema import Schema
from hushbot.shapes import in_case_of, like, number_of
from hushbot.substitution import Exchange, Substitution, contents, last_word
from hushbot.types import Dialogue, Turn
from hushbot.value_lists import ValueLists

YES_OR_NO = "yes or no"
IN_OTHER_WORDS = "said in other words"
NO_ALTERNATIVE = "no other value of its type"
STILL_THERE = "would still stand somewhere"
AS_SET = "categorical, kept as set"
_PLAIN_WORDS = frozenset({"yes", "no", "true", "false", "free", "any", "other"})
_N_TRIES = 24


class Changed(NamedTuple):
    """What one epoch's rewrite did: counts only."""

    values: int
    """Distinct values, summed over dialogues."""
    replaced: int
    removed: int
    left: Mapping[str, int]
    """Drawn values that stayed, by reason."""
    open_values: int
    """Distinct values that no categorical slot holds, drawn or not."""
    open_left: int
    """Those of them that were drawn and stayed."""
    characters: int
    """Characters of states, actions and responses, the text that a bot is trained to write."""
    changed: int
    """Those of them that belong to a value which was replaced or removed."""


@dataclass(frozen=True, kw_only=True)
class Counterfactual(Recipe):
    """Replace or remove values consistently, anew in each epoch."""

    rate: float = 0.5
    """The probability with which a distinct value of a dialogue is exchanged in an epoch."""
    removal: float = 0.1
    """The share of these that is taken out instead of replaced; never small numbers nor what only the system says."""
    pool: Literal["public", "members"] = "public"
    """Where replacements come from: `public` lists and invented words, or also other `members`' states (refused under
    differential privacy)."""
    categorical: bool = True
    """Whether values of categorical slots are exchanged, too."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={value!r} must be in [0, 1]; set recipe.counterfactual.{name}"
            for name, value in (("rate", self.rate), ("removal", self.removal))
            if not (math.isfinite(value) and 0 <= value <= 1)
        ]
        if self.pool not in ("public", "members"):
            problems.append(f"pool={self.pool!r} is neither public nor members; set recipe.counterfactual.pool")
        if problems:
            raise ValueError("; ".join(problems))
        object.__setattr__(self, "reads_other_dialogues", self.pool == "members")

    def rewrite(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int, seed: int) -> Sequence[Dialogue]:
        """Return each dialogue with this epoch's values; one in which nothing changes is the same object."""
        lists = self._lists(dialogues, schema)
        return tuple(self._outcome(dialogue, lists, f"{seed}/{epoch}").dialogue for dialogue in dialogues)

    def measure(self, dialogues: Sequence[Dialogue], schema: Schema, *, epoch: int = 0, seed: int) -> Changed:
        """Return how much the rewrite of one epoch changes."""
        lists = self._lists(dialogues, schema)
        outcomes = [self._outcome(dialogue, lists, f"{seed}/{epoch}") for dialogue in dialogues]
        left: Counter[str] = Counter()
        for outcome in outcomes:
            left.update(outcome.left.values())
        new = [exchange.new for outcome in outcomes for exchange in outcome.substitution.exchanges.values()]
        sizes = [_sizes(old, outcome.substitution) for old, outcome in zip(dialogues, outcomes, strict=True)]
        return Changed(
            values=sum(len(outcome.values) for outcome in outcomes),
            replaced=sum(text is not None for text in new),
            removed=sum(text is None for text in new),
            left=dict(left.most_common()),
            open_values=sum(not lists.is_categorical(v) for outcome in outcomes for v in outcome.values),
            open_left=sum(not lists.is_categorical(v) for o in outcomes for v in o.values if v.key in o.left),
            characters=sum(total for total, _ in sizes),
            changed=sum(changed for _, changed in sizes),
        )

    def notes(self, dialogues: Sequence[Dialogue], schema: Schema, *, seed: int) -> Sequence[str]:
        """Say what the first epoch's rewrite changes, and what it leaves and why."""
        seen = self.measure(dialogues, schema, epoch=0, seed=seed)
        share = f"{seen.changed / seen.characters:.1%}" if seen.characters else "not measured: none"
        reasons = ", ".join(f"{n} {reason}" for reason, n in seen.left.items()) or "none"
        return (
            f"of {seen.values} distinct values in {len(dialogues)} dialogues, epoch 0 replaces {seen.replaced} and "
            f"removes {seen.removed}; drawn but left: {sum(seen.left.values())} ({reasons})",
            f"share of supervised text (states, actions, responses) that epoch 0 changes: {share}",
            f"replacements come from {'public lists and invented words' if self.pool == 'public' else 'members, too'}",
        )

    def _lists(self, dialogues: Sequence[Dialogue], schema: Schema) -> ValueLists:
        return ValueLists.of(schema, dialogues if self.pool == "members" else ())

    def _outcome(self, dialogue: Dialogue, lists: ValueLists, stream: str) -> _Outcome:
        values = values_of(dialogue) if self.rate > 0 else []
        plan = _Plan(self, dialogue, values, lists, stream)
        left = plan.draw()
        owners = {text: value.key for value in values for text in value.texts}
        while True:
            substitution = Substitution(plan.finder, owners, dict(plan.exchanges))
            rewritten = substitution.dialogue(dialogue) if plan.exchanges else dialogue
            remaining = plan.remaining(rewritten)
            if not remaining:
                return _Outcome(rewritten, substitution, values, left)
            # Whatever would stay somewhere stays everywhere; what is inside it may then remain, hence the loop.
            for key in remaining:
                del plan.exchanges[key]
                left[key] = STILL_THERE


class _Outcome(NamedTuple):
    """One dialogue's rewrite."""

    dialogue: Dialogue
    substitution: Substitution
    values: list[Value]
    left: dict[str, str]
    """Key of each value that was drawn and stayed -> why."""


class _Plan:
    """Decides what becomes of each value of one dialogue in one epoch."""

    def __init__(
        self, recipe: Counterfactual, dialogue: Dialogue, values: list[Value], lists: ValueLists, stream: str
    ) -> None:
        self.recipe = recipe
        self.turns = dialogue.turns
        self.values = {value.key: value for value in values}
        self.lists = lists
        self.finder = finder_of(values)
        self.said = [self.finder.keys(turn.user) for turn in dialogue.turns]
        self.heard = [self.finder.keys(turn.response or "", by_system=True) for turn in dialogue.turns]
        self.opening = self.finder.keys(dialogue.opening, by_system=True)
        self.streams = {key: random.Random(f"{stream}/{dialogue.id}/{key}") for key in self.values}
        self.exchanges: dict[str, Exchange] = {}

    def draw(self) -> dict[str, str]:
        """Fill in the exchanges; return why drawn values stay."""
        left: dict[str, str] = {}
        drawn: dict[str, bool] = {}
        for key, value in self.values.items():
            stream = self.streams[key]
            is_drawn, is_removed = stream.random() < self.recipe.rate, stream.random() < self.recipe.removal
            if is_drawn and (obstacle := self._obstacle(value)):
                left[key] = obstacle
            elif is_drawn:
                drawn[key] = is_removed and bool(value.entries) and number_of(value.text) is None
        pending = list(drawn)
        while pending:
            for key in self._holders(self.values[pending.pop()]) - drawn.keys() - left.keys():
                if obstacle := self._obstacle(self.values[key]):
                    left[key] = obstacle
                else:
                    drawn[key] = False
                    pending.append(key)
        for key in sorted(drawn):
            value = self.values[key]
            choices = self.lists.choices(value) if self.lists.is_categorical(value) else ()
            new = None if drawn[key] else self._replacement(value, choices, drawn)
            if new is None and not drawn[key]:
                left[key] = NO_ALTERNATIVE
            else:
                names = frozenset(last_word(slot) for _, slot in value.slots)
                self.exchanges[key] = Exchange(value.text, new, choices, names)
        return left

    def remaining(self, dialogue: Dialogue) -> set[str]:
        """Return the exchanged values that still stand somewhere in the rewritten dialogue."""
        if not self.exchanges:
            return set()
        search = finder_of((self.values[key] for key in self.exchanges), sure=True)
        texts = set(contents(dialogue))
        return {m.key for text, by_system in texts for m in search.find_all(text, by_system=by_system)}

    def _obstacle(self, value: Value) -> str | None:
        """Return why a value cannot be exchanged safely, or None."""
        is_closed = self.lists.is_categorical(value)
        if is_closed and not self.recipe.categorical:
            return AS_SET
        if any(map(_is_plain, value.texts)):
            is_silent = not any(self._has_words(entry.turn) for entry in value.entries)
            is_unheard = not any(value.key in keys for keys in (*self.said, *self.heard, self.opening))
            return None if is_closed and is_silent and is_unheard else YES_OR_NO
        if is_closed or number_of(value.text) is not None:
            return None if self._is_given(value) else IN_OTHER_WORDS
        return None

    def _is_given(self, value: Value) -> bool:
        """Say whether each of its entries has the value in plain words, or no words at all."""
        is_number = number_of(value.text) is not None
        given: set[str] = set()
        for turn, (_, slot) in value.entries:
            # A number must be said where it enters: the same digit before may have counted something else.
            texts = [self.said[turn]] if is_number else [*self.said[: turn + 1], *self.heard[:turn], self.opening]
            if not self._has_words(turn) or any(value.key in keys for keys in texts):
                given.add(slot)
            elif not is_number or slot not in given:
                return False
        return True

    def _has_words(self, turn: int) -> bool:
        return bool(squash(self.turns[turn].user))

    def _holders(self, value: Value) -> set[str]:
        """Return the values that hold this one: `cambridge` in a hotel's name, a name in an e-mail address."""
        search = finder_of([value], sure=True)
        names = [word for text in value.texts for word in text.casefold().split() if len(word) > 2 and word.isalpha()]
        return {
            other.key
            for other in self.values.values()
            if other.key != value.key and any(search.find_all(text) or _mail_name(text, names) for text in other.texts)
        }

    def _replacement(self, value: Value, choices: Sequence[str], drawn: Mapping[str, bool]) -> str | None:
        """Return a value of the same type that names nothing else in the dialogue, or None."""
        is_closed = self.lists.is_categorical(value)
        listed = choices if is_closed else self.lists.candidates(value)
        used = {squash(exchange.new) for exchange in self.exchanges.values() if exchange.new is not None}
        second_best = None
        for candidate in self._proposals(value, listed, is_closed=is_closed):
            form = squash(candidate)
            if not form or is_void(candidate) or _is_plain(candidate) != _is_plain(value.text):
                continue
            named = {mention.key for mention in self.finder.find_all(candidate)}
            if not named and form not in used:
                return candidate
            if second_best is None and not named & drawn.keys() and value.key not in named:
                second_best = candidate
        return second_best

    def _proposals(self, value: Value, listed: Sequence[str], *, is_closed: bool) -> Iterator[str]:
        stream = self.streams[value.key]
        some = stream.sample(listed, min(_N_TRIES, len(listed)))
        if is_closed:
            yield from some
        else:
            yield from (in_case_of(value.text, text) for text in some)
            yield from (like(value.text, value.slot, stream) for _ in range(_N_TRIES))


def _is_plain(text: str) -> bool:
    """Say whether a value is a word that stands in texts without meaning the value."""
    return text.strip().casefold() in _PLAIN_WORDS


def _mail_name(text: str, names: list[str]) -> bool:
    local, at, _ = text.casefold().partition("@")
    return bool(at) and any(name in local for name in names)


def _sizes(dialogue: Dialogue, substitution: Substitution) -> tuple[int, int]:
    """Return the characters of a dialogue's supervised text, and those of them that are exchanged."""
    total = changed = 0
    for turn in dialogue.turns:
        total += len(turn.actions) + len(turn.response or "") + len(render_state(turn.state or frozenset()))
        changed += _changed_characters(turn, substitution) if substitution.exchanges else 0
    return total, changed


def _changed_characters(turn: Turn, substitution: Substitution) -> int:
    """Return how many characters of a turn's supervised text stand for an exchanged value."""
    held = [t.value for t in turn.state or () if substitution.owners.get(t.value) in substitution.exchanges]
    mentions = [
        mention
        for text, by_system in contents(Dialogue("", (replace(turn, user="", database="", booked=(), state=None),)))
        for mention in substitution.finder.find(text, by_system=by_system)
        if mention.key in substitution.exchanges
    ]
    return sum(map(len, held)) + sum(mention.end - mention.start for mention in mentions)
