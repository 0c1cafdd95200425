"""Which identifiers a bot learnt to write, each with the text that stood before it in training.

A *probe* is one identifier of one dialogue with its true prefix: the training text, in hushbot's layout, up to the
first place where the bot learns to write it (state, actions or response) and the text before does not show it.
Candidates are the issued bookings (`Turn.booked`), values of slots that name an identifier, and what looks like one.

Guarantees: left out, and counted, are identifiers that the prefix shows (copying is no memory), that the database or
the configuration publishes, that stand anywhere in a second dialogue of any side, and that are easy to guess. The
result depends on no order of dialogues.

What voids it: prefixes are those of one `layout`; asked in the other one, a bot says less than it knows. An identifier
that two dialogues of one person share is taken for a public one.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from hushbot.attacks.identifier_candidates import Candidate, Issued, cue_of, find_candidates
from hushbot.attacks.identifier_patterns import bits_of, find_identifiers, holds, key_of, kind_of_slot, words_of
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    answer_segments,
    history_lines,
    opening_lines,
    running_turns,
    state_line,
)
from hushbot.types import Dialogue, Segment

Layout: TypeAlias = Literal["turn_level", "dialogue_level"]
_LINES = {STATE_MARKER: "state", ACTIONS_MARKER: "actions", RESPONSE_MARKER: "response"}


@dataclass(frozen=True, slots=True)
class Probe:
    """One identifier and the text after which the bot learnt to write it."""

    dialogue_id: str
    value: str
    """As it is written in training."""
    kind: str
    domain: str
    line: str
    """Which line of the layout holds it: `state`, `actions` or `response`."""
    cue: str
    """What stands right before it: the slot's name, or the last word."""
    prefix: str
    """Everything before it in its training example, cut to the length that was asked for."""
    gold: str
    """The rest of its line, itself included."""
    repetitions: int
    """How many places of the dialogue's training examples teach it."""

    @property
    def key(self) -> str:
        """Return what all spellings share."""
        return key_of(self.value)

    @property
    def prompt(self) -> str:
        """Return the prefix without its last blank, which belongs to the first token of what follows."""
        return self.prefix.rstrip(" ")

    @property
    def continuation(self) -> str:
        """Return what follows the prompt, up to the end of the identifier."""
        return self.prefix[len(self.prompt) :] + self.value


class Mined(NamedTuple):
    """The probes of one side, and what was left out."""

    documents: dict[str, tuple[Probe, ...]]
    """Dialogue id -> its probes, for dialogues that have any."""
    refused: Counter[str]
    """Reason -> identifiers left out: `visible`, `public`, `shared`, `short`, or `not_written` (issued, never said)."""

    @property
    def probes(self) -> list[Probe]:
        """Return all probes, by dialogue."""
        return [probe for probes in self.documents.values() for probe in probes]


class Commonness:
    """What is nobody's alone: built once over all sides of a split.

    Args:
        dialogues: Those of every side.
        published: Entries of a database, and whatever else is known to everybody.
    """

    def __init__(self, dialogues: Iterable[Dialogue], published: Iterable[str] = ()) -> None:
        self._texts = {dialogue.id: _everything(dialogue) for dialogue in dialogues}
        self._holders: dict[str, set[str]] = defaultdict(set)
        self._with_word: dict[str, set[str]] = defaultdict(set)
        for name, text in self._texts.items():
            for found in find_identifiers(text):
                self._holders[key_of(text[found.start : found.end])].add(name)
            for word in set(words_of(text)):
                self._with_word[word].add(name)
        self._published: set[str] = set()
        for entry in published:
            self._published.add(key_of(entry))
            self._published |= {key_of(entry[found.start : found.end]) for found in find_identifiers(entry)}

    def is_public(self, probe: Probe) -> bool:
        """Say whether the identifier is published."""
        return probe.key in self._published

    def is_shared(self, probe: Probe) -> bool:
        """Say whether another dialogue of any side holds the identifier, whoever says it there."""
        others = self._holders.get(probe.key, set()) - {probe.dialogue_id}
        if others:
            return True
        places = [self._with_word.get(word, set()) for word in words_of(probe.value)]
        others = set.intersection(*places) - {probe.dialogue_id} if places else set()
        return any(holds(self._texts[name], probe.key) for name in others)


class _Place(NamedTuple):
    """Where an identifier is learnt."""

    text: str
    """The supervised segment."""
    candidate: Candidate
    line: str
    prefix: str


def mine(
    dialogues: Sequence[Dialogue],
    common: Commonness,
    *,
    layout: Layout,
    prefix_chars: int,
    min_bits: float,
    limit: int,
) -> Mined:
    """Collect the probes of dialogues, until so many of them have any.

    Args:
        dialogues: In the order that the result keeps.
        common: What is public or shared.
        layout: How the bot was trained.
        prefix_chars: Longest prefix; 0 takes all of it.
        min_bits: Identifiers that take fewer bits to guess are left out.
        limit: Most dialogues to collect; those after them are not looked at.
    """
    mined = Mined({}, Counter())
    for dialogue in dialogues:
        if len(mined.documents) == limit:
            break
        kept = []
        for probe in _probes(dialogue, layout, prefix_chars, mined.refused):
            reason = _refusal(probe, common, min_bits)
            if reason is None:
                kept.append(probe)
            else:
                mined.refused[reason] += 1
        if kept:
            mined.documents[dialogue.id] = tuple(kept)
    return mined


def cut_prefix(prefix: str, n_characters: int) -> str:
    """Return the end of a prefix, from the start of a word on where it holds one; 0 keeps everything."""
    if n_characters == 0 or len(prefix) <= n_characters:
        return prefix
    tail = prefix[-n_characters:]
    if prefix[-n_characters - 1].isspace():
        return tail
    word = re.search(r"\s(?=\S)", tail)
    return tail[word.end() :] if word else tail


def _refusal(probe: Probe, common: Commonness, min_bits: float) -> str | None:
    if common.is_public(probe):
        return "public"
    if bits_of(probe.value, probe.kind) < min_bits:
        return "short"
    return "shared" if common.is_shared(probe) else None


def _probes(dialogue: Dialogue, layout: Layout, prefix_chars: int, refused: Counter[str]) -> Iterator[Probe]:
    """Yield each identifier at the first place that its prefix does not give away."""
    issued = _issued(dialogue)
    first: dict[str, _Place] = {}
    n_places: Counter[str] = Counter()
    for segment, line, before in _supervised(dialogue, layout):
        for candidate in find_candidates(segment, line, issued, dialogue.domains):
            key = key_of(segment[candidate.start : candidate.end])
            n_places[key] += 1
            if key not in first:
                prefix = cut_prefix(before + segment[: candidate.start], prefix_chars)
                if not holds(prefix, key):
                    first[key] = _Place(segment, candidate, line, prefix)
    refused["visible"] += len(n_places) - len(first)
    refused["not_written"] += len(issued.keys() - n_places.keys())
    for key, place in first.items():
        yield _probe(dialogue, place, n_places[key])


def _probe(dialogue: Dialogue, place: _Place, n_places: int) -> Probe:
    start, end, kind, domain = place.candidate
    return Probe(
        dialogue_id=dialogue.id,
        value=place.text[start:end],
        kind=kind,
        domain=domain,
        line=place.line,
        cue=cue_of(place.text[:start]),
        prefix=place.prefix,
        gold=place.text[start:].rstrip("\n"),
        repetitions=n_places,
    )


def _supervised(dialogue: Dialogue, layout: Layout) -> Iterator[tuple[str, str, str]]:
    """Yield each text that the bot learns to write, the name of its line, and all that stands before it."""
    for example in _examples(dialogue, layout):
        before, line = "", ""
        for segment in example:
            line = _LINES.get(segment.text, line)
            if segment.supervised:
                yield segment.text, line, before
            before += segment.text


def _examples(dialogue: Dialogue, layout: Layout) -> Iterator[list[Segment]]:
    """Yield what the recipes `turn_level` and `dialogue_level` train on."""
    if layout == "dialogue_level":
        opening = [Segment(text, False) for text in opening_lines(dialogue)]
        yield opening + [segment for turn in running_turns(dialogue) for segment in turn]
        return
    for i, turn in enumerate(dialogue.turns):
        if turn.state is not None:
            history = [Segment(text, False) for text in history_lines(dialogue, i)]
            yield [*history, *answer_segments(turn, state_line(turn.state))]


def _issued(dialogue: Dialogue) -> Issued:
    """Return the kind and domain of each identifier that the system issued."""
    return {
        key_of(triplet.value): (kind, triplet.domain)
        for turn in dialogue.turns
        for triplet in turn.booked
        if (kind := kind_of_slot(triplet.slot)) is not None and key_of(triplet.value)
    }


def _everything(dialogue: Dialogue) -> str:
    """Return all that a dialogue says, shows and knows, for whoever looks for an identifier in it."""
    parts = [dialogue.opening]
    triplets = set()
    for turn in dialogue.turns:
        parts += [turn.user, turn.database, turn.actions, turn.response or ""]
        triplets |= {*(turn.state or ()), *turn.booked}
    return "\n".join([*parts, *(value for triplet in sorted(triplets) for value in triplet.values)])
