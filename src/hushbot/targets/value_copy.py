"""Value copy at decoding time: a dialogue state holds what was said, and nothing that the bot remembers.

Guarantees: every value that `sample` adds to a state, and every `slot=value` that it writes anywhere else
(`state_values`), is lawful (`value_law`) or blank (`name=`); a state's entry that is made blank is left out altogether,
because a bot that writes changes would say by it that the slot was dropped. Acts and responses may also name what the
`Database:` lines of the prompt hold. This is checked on what leaves, by the readers of `prompts`; a text that fails is
withheld. A text without an unlawful value is exactly the inner target's. Values in the prompt are the asker's and
stay; prose passes through. What follows an unlawful value is sampled anew after its replacement. The inner target ends
at line breaks at most; stop strings are applied to what leaves, so that they tell nothing about what was hidden.

The replacement is the most probable candidate under the inner target where decoding draws nothing (greedy, beams that
are not sampled), or one drawn in proportion to probability at the decoding's temperature; a candidate's probability is
that of value and delimiter after the text so far. Below `min_probability`, or where nothing was said, the value is
blank. Blanked where they stand, with nothing sampled anew, are values without a delimiter and, after `max_copies`
replacements, all unlawful ones that remain.

Draws depend on (prompt position, draw number, seed) only. A replacement takes its own uniform of that key. A text is
continued in one call per prompt position and allowance of tokens, whose seed is derived from seed, position, round and
allowance; its place in that call is decided by the earlier draws of the same prompt alone. Greedy continuations, which
draw nothing, share their calls. The allowance is what is left of `max_new_tokens`, rounded down to eighths. A falling
temperature goes on falling behind a replacement. With beams, a text is a hypothesis of the bot's own search, and goes
on after a replacement with the best one of a new search.

`logprobs` scores what the guard lets through: unlawful values are taken out of the continuation first, so a score is
over the remaining tokens and does not depend on the values taken out; here what the continuation says before a state
counts as said, too, since the asker wrote both. The perplexity of a guarded bot is therefore meaningless.

Depends on hidden values all the same: that one was hidden; the delimiter after a replacement or a blank; which spans
are weighed, by their likeness to it; whether it ended within `max_new_tokens`, hence its length; and, after
`max_copies` replacements, whatever follows.

Voids it: what `state_values` and `value_law` name; prose (`Response: it is ...`), which is not read. An asker who puts
a guess into the history is not hindered: the guess is then lawful, the bot may confirm it, and its log-probability is
the bare bot's.

Source: Task-oriented dialogue state extraction, section VI, "value copy mechanism", here enforced instead of trained.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from hushbot.errors import AuditError
from hushbot.prompts import ACTIONS_MARKER, RESPONSE_MARKER, STATE_MARKER, read_changes, render_state
from hushbot.protocols import Target
from hushbot.targets.choosing import draw_uniforms
from hushbot.targets.filter_guard import MARKERS
from hushbot.targets.guarded import GuardedTarget, before_stop, with_layout_stops
from hushbot.targets.sampler import SamplesUntil, Until
from hushbot.targets.state_values import leave_out, written_values
from hushbot.targets.value_law import History, ValueLaw, read_history
from hushbot.types import Decoding, SlotValue

if TYPE_CHECKING:
    from torch import Tensor

_ALLOWANCES = 8
_FRAME = "A(b="


class _Unlawful(NamedTuple):
    """A value that must not leave."""

    domain: str
    slot: str
    value: str
    start: int
    """Where its first new character stands in the continuation."""
    end: int
    stop: str
    is_whole: bool
    """Whether it starts in the continuation; the asker may have written its first letters."""
    section: str
    """As in `Written`."""

    @property
    def can_be_left_out(self) -> bool:
        """Whether it is an entry of a state, of which nothing needs to stay."""
        return bool(self.slot and self.stop) and self.is_whole and not self.section


@dataclass(slots=True, eq=False)
class _Row:
    """One continuation in the making."""

    prompt: str
    position: int
    draw: int
    text: str
    n_copies: int = 0
    n_left: int = 0
    """How many tokens may still follow."""
    blank: set[tuple[str, str]] = field(default_factory=set)
    """Domain and slot for which nothing that was said was probable enough."""
    hidden: set[int] = field(default_factory=set)
    """Where the delimiters of entries stand whose values were made blank."""

    def end_with(self, value: _Unlawful, chosen: str, *, is_blank: bool) -> None:
        """Let a text end with something instead of a value and all that follows it."""
        self.text = self.text[: value.start] + chosen
        self.hidden = {place for place in self.hidden if place < value.start}
        if is_blank and value.can_be_left_out:
            self.hidden.add(value.start)

    def hide(self, value: _Unlawful) -> None:
        """Make a value blank and keep what follows it."""
        self.text = self.text[: value.start] + self.text[value.end :]
        n = value.end - value.start
        kept = self.hidden.difference(range(value.start, value.end))
        self.hidden = {place if place < value.start else place - n for place in kept}
        if value.can_be_left_out:
            self.hidden.add(value.start)


class _Call(NamedTuple):
    """What a caller asked for."""

    max_new_tokens: int
    decoding: Decoding
    seed: int

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn: the best candidate replaces a value."""
        return self.decoding.is_deterministic

    @property
    def can_end_early(self) -> bool:
        """Whether what a bot says does not depend on what it would say later, as it does in a search."""
        return self.decoding.num_beams == 1


class ValueCopyTarget(GuardedTarget):
    """A bot that copies the values of its states from the dialogue.

    Args:
        inner: The bot.
        law: Which values may be written, and what may stand in for others.
        min_probability: A less probable replacement gives way to a blank.
        max_copies: Most values replaced one by one in a text.
    """

    def __init__(self, inner: Target, law: ValueLaw, *, min_probability: float, max_copies: int) -> None:
        super().__init__(inner)
        self.law = law
        self.min_probability = min_probability
        self.max_copies = max_copies

    def guarded(self, inner: Target) -> ValueCopyTarget:
        """Return the same guard around another target."""
        return ValueCopyTarget(inner, self.law, min_probability=self.min_probability, max_copies=self.max_copies)

    def sample(
        self,
        prompts: Sequence[str],
        *,
        n: int,
        max_new_tokens: int,
        decoding: Decoding,
        seed: int,
    ) -> list[list[str]]:
        """Return n continuations per prompt whose state values are lawful.

        Raises:
            AuditError: The inner target failed.
        """
        call = _Call(max_new_tokens, with_layout_stops(decoding), seed)
        drawn = self._ask([(prompt, "") for prompt in prompts], call, n=n, is_last=self.max_copies == 0)
        if len(drawn) != len(prompts):
            raise AuditError(f"the target answered {len(drawn)} of {len(prompts)} prompts")
        rows = [
            [_Row(prompt, position, draw, text) for draw, text in enumerate(texts)]
            for position, (prompt, texts) in enumerate(zip(prompts, drawn, strict=True))
        ]
        pending = [row for texts in rows for row in texts]
        for turn in range(self.max_copies):
            broken = [(row, first) for row in pending if (first := self._first(row)) is not None]
            if not broken:
                break
            self._replace(broken, call)
            pending = [row for row, _ in broken]
            self._continue(pending, call, is_last=turn == self.max_copies - 1)
        return [[before_stop(self._certified(row), decoding.stop) for row in texts] for texts in rows]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        """Return the log-probability of each token that remains of each continuation without its unlawful values.

        Raises:
            AuditError: Nothing remains of a continuation, or the inner target failed.
        """
        if len(prompts) != len(continuations):
            raise AuditError(f"{len(prompts)} prompts for {len(continuations)} continuations; give as many of each")
        kept = [self._without(prompt, text) for prompt, text in zip(prompts, continuations, strict=True)]
        for index, (before, after) in enumerate(zip(continuations, kept, strict=True)):
            if before != after and not after.strip():
                raise AuditError(
                    f"pair {index}: value_copy lets nothing of this continuation through, so it has no probability; "
                    "leave the pair out"
                )
        return self.inner.logprobs(prompts, kept)

    def _ask(
        self,
        heads: Sequence[tuple[str, str]],
        call: _Call,
        *,
        n: int = 1,
        is_last: bool,
        limits: Sequence[int] | None = None,
    ) -> list[list[str]]:
        """Let the bot go on after prompts and what it has said; unless it is the last time, no further than needed."""
        asked = [prompt + said for prompt, said in heads]
        tokens, decoding, seed = call
        if not (call.can_end_early and isinstance(self.inner, SamplesUntil)):
            return self.inner.sample(asked, n=n, max_new_tokens=tokens, decoding=decoding, seed=seed)
        until = Until("" if is_last else ",)", lambda i, text: self._is_broken(*heads[i], text), limits)
        return self.inner.sample_until(asked, until, n=n, max_new_tokens=tokens, decoding=decoding, seed=seed)

    def _is_broken(self, prompt: str, said: str, text: str) -> bool:
        """Return whether whatever follows a text will be sampled anew, because a value in it is to be replaced."""
        first = next(self._unlawful(prompt, said + text), None)
        if first is None or not first.stop:
            return False
        whole = prompt + (said + text)[: first.start]
        # Only after a marker is a line read the same whatever follows.
        return whole.startswith(MARKERS, _last_line(whole))

    def _unlawful(self, prompt: str, text: str, *, asked: bool = False) -> Iterator[_Unlawful]:
        """Yield the unlawful values of a continuation; `asked` says that it is the asker's, so what it says counts."""
        start = _last_line(prompt)
        offset = len(prompt) - start
        line = prompt[start:] + text
        for written in written_values(line):
            first = max(written.start, offset)
            if not line[first : written.end].strip():
                continue
            said = prompt + text[: text.rfind("\n", 0, first - offset) + 1] if asked else prompt
            history = _history(said, written.section)
            if not self.law.allows(written.domain, written.slot, written.value, history):
                place = (first - offset, written.end - offset, written.stop, written.start >= offset)
                yield _Unlawful(written.domain, written.slot, written.value, *place, written.section)

    def _without(self, prompt: str, text: str) -> str:
        """Return an asker's continuation without its unlawful values."""
        # One at a time: two ways of reading a line may find values that overlap.
        while (value := next(self._unlawful(prompt, text, asked=True), None)) is not None:
            text = text[: value.start] + text[value.end :]
        return text

    def _first(self, row: _Row) -> _Unlawful | None:
        """Return the first unlawful value that something follows; blank those before it, which nothing does."""
        while (value := next(self._unlawful(row.prompt, row.text), None)) is not None and not value.stop:
            row.hide(value)
        return value

    def _replace(self, broken: Sequence[tuple[_Row, _Unlawful]], call: _Call) -> None:
        """End each text with a lawful value instead of its first unlawful one."""
        options = [self._options(row, value) for row, value in broken]
        pairs: list[tuple[str, str]] = []
        for (row, value), texts in zip(broken, options, strict=True):
            head = row.text[: value.start]
            pairs += [(row.prompt, head)] if head else []
            pairs += [(row.prompt + head, text) for text in texts]
        scores = iter(self._scores(pairs))
        for (row, value), texts in zip(broken, options, strict=True):
            head = row.text[: value.start]
            n_used = len(next(scores)) if head else 0
            scored = [(text, next(scores)) for text in texts]
            temperature = 0.0 if call.is_greedy else call.decoding.temperature_at(n_used)
            copied = self._choose(row, scored, temperature, call.seed)
            if copied is None:
                row.blank.add((value.domain, value.slot))
            chosen, n_tokens = copied or (value.stop, 1)
            row.end_with(value, chosen, is_blank=copied is None)
            row.n_left = call.max_new_tokens - n_used - n_tokens
            row.n_copies += 1

    def _options(self, row: _Row, value: _Unlawful) -> list[str]:
        """Return what may be written instead of a value, each with its delimiter; nothing where it must be blank."""
        history = _history(row.prompt, value.section)
        is_blank = (value.domain, value.slot) in row.blank
        if is_blank or not value.slot or not value.is_whole or history.is_empty:
            return []
        candidates = self.law.candidates(value.domain, value.slot, value.value, history)
        return [_escaped(candidate) + value.stop for candidate in candidates]

    def _scores(self, pairs: Sequence[tuple[str, str]]) -> list[Tensor]:
        if not pairs:
            return []
        scores = self.inner.logprobs([prompt for prompt, _ in pairs], [text for _, text in pairs])
        if len(scores) != len(pairs):
            raise AuditError(f"the target scored {len(scores)} of {len(pairs)} texts; value_copy needs all")
        return scores

    def _choose(
        self, row: _Row, scored: Sequence[tuple[str, Tensor]], temperature: float, seed: int
    ) -> tuple[str, int] | None:
        """Return the text to go on with and its number of tokens, or None where none is probable enough."""
        if not scored:
            return None
        logs = [float(tokens.sum()) for _, tokens in scored]
        if any(math.isnan(log) for log in logs):
            raise AuditError(f"prompt {row.position}: a candidate's log-probability is NaN; check the model's weights")
        best = max(range(len(logs)), key=lambda i: logs[i])
        if temperature > 0 and math.isfinite(logs[best]):
            weights = [math.exp((log - logs[best]) / temperature) for log in logs]
            key = _derived(seed, "values")
            uniform = draw_uniforms(key, row.position, row.draw, row.n_copies + 1)[row.n_copies]
            best = _draw(weights, uniform)
        text, tokens = scored[best]
        return (text, len(tokens)) if math.exp(logs[best]) >= self.min_probability else None

    def _continue(self, rows: Sequence[_Row], call: _Call, *, is_last: bool) -> None:
        """Let the inner target go on where a value was replaced."""
        # Greedy texts draw nothing: they may share a call, and one limit for all if the target knows no other.
        has_limits = call.is_greedy and call.can_end_early and isinstance(self.inner, SamplesUntil)
        groups: dict[tuple[int, int, float], list[tuple[_Row, int]]] = defaultdict(list)
        for row in rows:
            if row.n_left > 0:
                step = max(1, call.max_new_tokens // _ALLOWANCES)
                allowance = row.n_left // step * step or row.n_left
                temperature = call.decoding.temperature_at(call.max_new_tokens - row.n_left)
                key = (0 if call.is_greedy else row.position, 0 if has_limits else allowance, temperature)
                groups[key].append((row, allowance))
        for (position, _, temperature), group in groups.items():
            limits = [allowance for _, allowance in group]
            decoding, what = call.decoding, f"{position}/{group[0][0].n_copies}/{limits[0]}"
            if decoding.start_temperature is not None:
                decoding, what = replace(decoding, start_temperature=temperature), f"{what}/{temperature}"
            heads = [(row.prompt, row.text) for row, _ in group]
            asked = _Call(max(limits), decoding, _derived(call.seed, what))
            texts = self._ask(heads, asked, is_last=is_last, limits=limits if has_limits else None)
            if [len(drawn) for drawn in texts] != [1] * len(group):
                raise AuditError(f"the target did not continue each of {len(group)} texts with one text")
            for (row, _), (text,) in zip(group, texts, strict=True):
                row.text += text

    def _certified(self, row: _Row) -> str:
        """Return a text as it leaves: without what is still unlawful, and read once more by the public reader."""
        line = row.prompt[_last_line(row.prompt) :]
        self._hide_rest(row)
        text = leave_out(line + row.text, {len(line) + place for place in row.hidden}, len(line))
        row.text = text[len(line) :]
        self._hide_rest(row)
        text = row.text
        _, marker, state = (line + text).partition(STATE_MARKER)
        changes = read_changes(marker + state).changes if marker else None
        if changes is None:
            return text
        history = read_history(row.prompt)
        asked = {written.value for written in written_values(line)}
        is_lawful = all(
            said.value in asked or self.law.allows(said.domain, said.slot, said.value, history) for said in changes.said
        )
        return text if is_lawful else ""

    def _hide_rest(self, row: _Row) -> None:
        # One at a time, as above.
        while (value := next(self._unlawful(row.prompt, row.text), None)) is not None:
            row.hide(value)


def _last_line(prompt: str) -> int:
    """Return where a prompt's last line starts; a line break after a backslash ends no state."""
    at = prompt.rfind("\n")
    while at > 0 and prompt[at - 1] == "\\":
        at = prompt.rfind("\n", 0, at)
    return at + 1


def _history(prompt: str, section: str) -> History:
    """Return what counts as said where a value stands: a bot acts and answers on what it looked up as well."""
    return read_history(prompt, with_lookups=section in (ACTIONS_MARKER, RESPONSE_MARKER))


def _escaped(value: str) -> str:
    """Return a value as it stands in a state text."""
    return render_state(frozenset([SlotValue("a", "b", value)]))[len(_FRAME) : -1]


def _derived(seed: int, what: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"value_copy/{seed}/{what}".encode(), digest_size=6).digest(), "big")


def _draw(weights: Sequence[float], uniform: float) -> int:
    """Return an index in proportion to its weight."""
    wanted = uniform * sum(weights)
    for index, weight in enumerate(weights):
        wanted -= weight
        if wanted < 0:
            return index
    return max(range(len(weights)), key=lambda i: weights[i])
