"""Fixtures shared by all tests: where the real data lies, a small made-up corpus, and the fakes.

`Memoriser` knows its members by heart and nothing else; `Stranger` knows what people in general ask for;
`FailingTarget` answers nothing. An attack that cannot tell the first two apart measures nothing. Tokens are
words with the blanks before them, so that every score can be worked out by hand.
"""

from __future__ import annotations

import gc
import hashlib
import random
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hushbot.errors import AuditError
from hushbot.prompts import (
    ACTIONS_MARKER,
    RESPONSE_MARKER,
    STATE_MARKER,
    database_line,
    history_lines,
    read_state,
    render_state,
    state_line,
    text_line,
)
from hushbot.schema import Schema, Slot
from hushbot.types import AuditSplit, Decoding, Dialogue, DialogueState, SlotValue, Turn

if TYPE_CHECKING:
    from torch import Tensor

    from hushbot.protocols import Target

ROOT = Path(__file__).resolve().parents[1]
KNOWN, UNKNOWN = -0.01, -4.0
N_PER_SIDE = 125

Pools = Mapping[tuple[str, str], Sequence[str]]

POPULATION: Pools = {
    ("restaurant", "name"): (
        *("golden wok", "pizza hut", "la mimosa", "curry garden", "cotto", "the gandhi", "meze bar", "hakka"),
        *("saint johns", "rice boat", "yippee", "fitzbillies"),
    ),
    ("restaurant", "area"): ("north", "south", "east", "west", "centre"),
    ("restaurant", "book people"): tuple("12345678"),
    ("restaurant", "book time"): tuple(f"{h:02}:{m:02}" for h in range(24) for m in range(0, 60, 5)),
    ("train", "destination"): ("london", "ely", "norwich", "stevenage", "leicester", "broxbourne"),
    ("train", "day"): ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
}
"""What people ask for; a table time is asked for by at most one person, everything else by many."""


def pytest_sessionstart() -> None:
    """Look for no rubbish while thousands of tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for rubbish from now on, but never among what was collected and imported, which stays."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    """Let Ctrl-C through to what tests start: a shell makes what it starts in the background deaf to it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first, so that no process is left with one of them at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Return the folder of real data packs, or skip: a user's clone has none."""
    path = ROOT.parent / "shared"
    if not (path / "data" / "facts.json").exists():
        pytest.skip("needs the real data packs in ../shared, which this clone does not have")
    return path


def synthetic_dialogue(number: int, rng: random.Random, time: str) -> Dialogue:
    """Make a dialogue of two or three turns whose state grows from 2 to 4, and perhaps to 6 triplets."""
    name, area, people, destination, day = (
        rng.choice(POPULATION[key])
        for key in (
            ("restaurant", "name"),
            ("restaurant", "area"),
            ("restaurant", "book people"),
            ("train", "destination"),
            ("train", "day"),
        )
    )
    search = frozenset({SlotValue("restaurant", "name", name), SlotValue("restaurant", "area", area)})
    booking = frozenset({SlotValue("restaurant", "book people", people), SlotValue("restaurant", "book time", time)})
    journey = frozenset({SlotValue("train", "destination", destination), SlotValue("train", "day", day)})
    reference = SlotValue("restaurant", "reference", f"r{number:05}")
    turns = [
        Turn(f"is there a {name} in the {area}?", search, "restaurant 1 found", "", "Yes, shall I book it?"),
        Turn(
            f"yes, for {people} people at {time}",
            search | booking,
            "restaurant booked",
            f"restaurant-book(reference={reference.value})",
            f"Booked, your reference is {reference.value}.",
            (reference,),
        ),
        Turn(
            f"i also need a train to {destination} on {day}",
            search | booking | journey,
            "train 3 found",
            "train-inform(choice=3)",
            "There are three trains.",
            (reference,),
        ),
    ]
    domains = ("restaurant", "train") if number % 2 else ("restaurant",)
    return Dialogue(f"d{number:03}", tuple(turns if number % 2 else turns[:2]), domains, {"number": number})


@pytest.fixture(scope="session")
def synthetic_split() -> AuditSplit:
    """Return 125 members and 125 non-members, all drawn from the same population."""
    rng = random.Random(0)
    times = rng.sample(POPULATION["restaurant", "book time"], 2 * N_PER_SIDE)
    dialogues = [synthetic_dialogue(number, rng, time) for number, time in enumerate(times)]
    rng.shuffle(dialogues)
    return AuditSplit(tuple(dialogues[:N_PER_SIDE]), tuple(dialogues[N_PER_SIDE:]))


@pytest.fixture(scope="session")
def synthetic_schema() -> Schema:
    return Schema.of(Slot(domain, slot) for domain, slot in POPULATION)


def training_texts(dialogue: Dialogue) -> list[str]:
    """Return what a turn-level bot reads of a dialogue: one text per turn."""
    return [
        "".join(history_lines(dialogue, i))
        + STATE_MARKER
        + state_line(turn.state or frozenset())
        + database_line(turn.database)
        + ACTIONS_MARKER
        + text_line(turn.actions)
        + RESPONSE_MARKER
        + text_line(turn.response or "")
        for i, turn in enumerate(dialogue.turns)
    ]


def words(text: str) -> list[str]:
    """Cut a text into words, each with the blanks before it; blanks at the end join the last word."""
    return re.findall(r"\s*\S+(?:\s+$)?|^\s+$", text)


def noise(text: str) -> float:
    """Return a number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32


def draw_rng(seed: int, position: int, draw: int) -> random.Random:
    return random.Random(f"{seed}/{position}/{draw}")


def cut(text: str, max_new_tokens: int, decoding: Decoding) -> str:
    """End a continuation before its first stop string and after its last allowed word."""
    for stop in decoding.stop:
        text = text.split(stop, 1)[0]
    return "".join(words(text)[:max_new_tokens])


@dataclass
class CountingTarget:
    """A target that counts what it is asked."""

    n_sampled: int = field(default=0, init=False)
    n_scored: int = field(default=0, init=False)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.n_sampled += n * len(prompts)
        return [
            [cut(self.draw(prompt, draw_rng(seed, position, draw)), max_new_tokens, decoding) for draw in range(n)]
            for position, prompt in enumerate(prompts)
        ]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        self.n_scored += len(prompts)
        return [
            torch.tensor(self.token_scores(prompt, continuation))
            for prompt, continuation in zip(prompts, continuations, strict=True)
        ]

    def draw(self, prompt: str, rng: random.Random) -> str:
        raise NotImplementedError

    def token_scores(self, prompt: str, continuation: str) -> list[float]:
        raise NotImplementedError


@dataclass
class Stranger(CountingTarget):
    """Knows the schema and what people in general ask for; its scores are noise, the same for all."""

    schema: Schema
    pools: Pools
    reference: Target | None = None
    level: float = -2.0
    """Log-probability of a word, before noise."""

    def draw(self, prompt: str, rng: random.Random) -> str:
        begun = prompt.rpartition(STATE_MARKER)[2].strip()
        if begun:
            return self.more(begun, rng)
        slots = rng.sample(self.schema.slots, rng.randint(1, min(7, len(self.schema.slots))))
        return f" {render_state(self.wish(slots, rng))}\n"

    def more(self, begun: str, rng: random.Random) -> str:
        """Add a triplet to a state that has begun: in its open domain, or in another one."""
        known = read_state(begun).state or frozenset()
        used = {(t.domain, t.slot) for t in known}
        domain = sorted(known)[-1].domain if known else ""
        left = [s for s in self.schema.slots if (s.domain, s.name) not in used]
        mine = [s for s in left if (s.domain == domain) == begun.endswith(",")]
        if not mine:
            return ")\n"
        text = render_state(self.wish([rng.choice(mine)], rng))
        return f" {text.partition('(')[2] if begun.endswith(',') else text}\n"

    def wish(self, slots: Sequence[Slot], rng: random.Random) -> DialogueState:
        return frozenset(
            SlotValue(slot.domain, slot.name, rng.choice(self.pools[slot.domain, slot.name])) for slot in slots
        )

    def token_scores(self, prompt: str, continuation: str) -> list[float]:
        tokens = words(continuation)
        return [self.level - noise(prompt + "".join(tokens[: i + 1])) for i in range(len(tokens))]


@dataclass
class Memoriser(CountingTarget):
    """Goes on from the start of a member's line as that member did, and finds nothing else probable."""

    members: Sequence[Dialogue]
    reference: Target | None = None
    texts: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = ["\n" + text for dialogue in self.members for text in training_texts(dialogue)]
        self.library = "\n".join(self.texts)

    def draw(self, prompt: str, rng: random.Random) -> str:
        known = [text for text in self.texts if "\n" + prompt in text]
        return rng.choice(known).split("\n" + prompt, 1)[1] if known else ""

    def token_scores(self, prompt: str, continuation: str) -> list[float]:
        scores, so_far, is_known = [], prompt, True
        for word in words(continuation):
            so_far += word
            is_known = is_known and f"\n{so_far}" in self.library
            scores.append(KNOWN if is_known else UNKNOWN - noise(so_far))
        return scores


@dataclass
class FailingTarget:
    """Answers no question; with `can_sample` it still talks, as endpoints without scores do."""

    reference: Target | None = None
    can_sample: Target | None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if self.can_sample is None:
            raise AuditError("the endpoint answered 503 to every request; start it and audit again")
        return self.can_sample.sample(prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        raise AuditError("the endpoint returns no log-probabilities; use one that does")


@pytest.fixture
def stranger(synthetic_schema: Schema) -> Stranger:
    """Return a bot that knows the population and no person."""
    return Stranger(synthetic_schema, POPULATION)


@pytest.fixture
def memoriser(synthetic_split: AuditSplit, stranger: Stranger) -> Memoriser:
    """Return a bot that knows the members by heart and was a stranger before it was trained."""
    return Memoriser(synthetic_split.members, stranger)


@pytest.fixture
def failing_target() -> FailingTarget:
    """Return a bot that raises AuditError whatever it is asked."""
    return FailingTarget()


@pytest.fixture
def mute_target(stranger: Stranger) -> FailingTarget:
    """Return a bot that talks and refuses to score."""
    return FailingTarget(can_sample=stranger)
