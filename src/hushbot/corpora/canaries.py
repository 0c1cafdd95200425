"""Canaries: made-up dialogues with random identifiers, of which a fair coin chooses those that are trained on.

Guarantees: the same schema, settings and seed give the same canaries and coins, and those of a smaller number are the
first of a larger one; each coin is drawn from a random stream of its own, so that nothing about a canary tells its
coin; identifiers are uniform over all that have their shape; no word of the corpus is in a canary but the names of
domains and slots and the values that its schema publishes. The identifier stands in what the bot does and says, and
nowhere before: nothing in its prompt gives it away.

A canary has one turn, so that its training text is the same whether a bot learns whole states or changes.

What voids it: choosing canaries, or the seed, by looking at the result; a corpus that has seen them before.

Source: Carlini et al., USENIX Security 2019 (canaries); Steinke, Nasr and Jagielski, NeurIPS 2023 (coins).
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hushbot.corpora.split import SplitReport
from hushbot.errors import ConfigError, DataError
from hushbot.schema import Schema, Slot
from hushbot.types import Canary, Dialogue, SlotValue, Turn
from hushbot.values.words import invented

_MAX_TRIPLETS = 3
_CODE = string.ascii_uppercase + string.digits


def _some(letters: str, n: int, rng: random.Random) -> str:
    return "".join(rng.choice(letters) for _ in range(n))


def _postcode(rng: random.Random) -> str:
    area, unit = _some(string.ascii_lowercase, 2, rng), _some(string.ascii_lowercase, 2, rng)
    return f"{area}{_some(string.digits, 1, rng)} {_some(string.digits, 1, rng)}{unit}"


def _email(rng: random.Random) -> str:
    return f"{_some(string.ascii_lowercase, 8, rng)}{_some(string.digits, 2, rng)}@example.com"


_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "reference": lambda rng: _some(_CODE, 8, rng),
    "phone": lambda rng: f"07{_some(string.digits, 9, rng)}",
    "email": _email,
    "postcode": _postcode,
}
KINDS = tuple(_MAKERS)
"""Of identifiers; each is the name of its slot too."""


@dataclass(frozen=True, kw_only=True)
class CanarySettings:
    """How many canaries are drawn, and of what kind."""

    m: int = 0
    """How many are drawn, of which about half are trained on; 0 draws none."""
    kinds: Sequence[str] = ("reference", "phone", "email")
    """Kinds of identifiers, taken in turn: `reference`, `phone`, `email`, `postcode`."""
    repetitions: int = 1
    """How often a chosen canary is trained on. If several times, it is no unit of a guarantee per dialogue, and that
    guarantee is not put to the test."""

    def __post_init__(self) -> None:
        checks = (
            ("m", self.m >= 0, "at least 0"),
            ("kinds", bool(self.kinds) and set(self.kinds) <= set(KINDS), f"some of {', '.join(KINDS)}"),
            ("repetitions", self.repetitions >= 1, "at least 1"),
        )
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set canaries.{name}" for name, ok, rule in checks if not ok
        ]
        if problems:
            raise ConfigError(*problems)
        object.__setattr__(self, "kinds", tuple(self.kinds))


def draw_identifier(kind: str, rng: random.Random) -> str:
    """Return an identifier of a kind, uniform over all of its shape."""
    return _MAKERS[kind](rng)


def draw_canaries(schema: Schema, settings: CanarySettings, seed: int) -> tuple[Canary, ...]:
    """Return the canaries, each with its coin.

    Raises:
        ConfigError: Canaries are asked for and the schema has no slot.
    """
    if settings.m and not schema.slots:
        raise ConfigError(f"canaries.m={settings.m}: the corpus has no slots to make dialogues of; set canaries.m=0")
    canaries = []
    for number in range(settings.m):
        kind = settings.kinds[number % len(settings.kinds)]
        rng = random.Random(f"canary/{seed}/{number}")
        identifier = draw_identifier(kind, rng)
        is_inserted = random.Random(f"canary coin/{seed}/{number}").random() < 0.5
        dialogue = _dialogue(f"canary-{number:05}", schema, kind, identifier, rng)
        canaries.append(Canary(dialogue, identifier, kind, is_inserted, settings.repetitions))
    return tuple(canaries)


def with_canaries(drawn: SplitReport, schema: Schema, settings: CanarySettings, seed: int) -> SplitReport:
    """Return a split with canaries beside its sides, which stay as they are.

    Raises:
        ConfigError: As for `draw_canaries`.
        DataError: A dialogue of the corpus has the id of a canary.
    """
    canaries = draw_canaries(schema, settings, seed)
    if not canaries:
        return drawn
    split = drawn.split
    ids = {dialogue.id for canary in canaries for dialogue in replace(canary, is_inserted=True).copies}
    for dialogue in (*split.members, *split.nonmembers, *split.calibration, *split.controls, *drawn.unused):
        if dialogue.id in ids:
            raise DataError(f"dialogue {dialogue.id}: a canary has this id; give the dialogue another, or canaries.m=0")
    n_inserted = sum(canary.is_inserted for canary in canaries)
    times = "" if settings.repetitions == 1 else f", {settings.repetitions} times each"
    note = (
        f"canaries: coins chose {n_inserted} of {len(canaries)} made-up dialogues to be trained on beside the "
        f"members{times}"
    )
    return replace(drawn, split=replace(split, canaries=canaries), notes=(*drawn.notes, note))


def _dialogue(name: str, schema: Schema, kind: str, identifier: str, rng: random.Random) -> Dialogue:
    """Return a dialogue in which somebody asks for something and is told an identifier."""
    domain = rng.choice(sorted({slot.domain for slot in schema.slots if _published(slot)}) or schema.domains)
    slots = [slot for slot in schema.slots if slot.domain == domain]
    slots = [slot for slot in slots if _published(slot)] or slots
    chosen = rng.sample(slots, min(len(slots), rng.randint(1, _MAX_TRIPLETS)))
    state = [SlotValue(domain, slot.name, rng.choice(_published(slot) or [invented(rng)])) for slot in chosen]
    wishes = " and ".join(f"{triplet.slot} {triplet.value}" for triplet in state)
    what = domain.partition("_")[0].lower()
    is_booked = kind == "reference"
    turn = Turn(
        user=f"this is {invented(rng)} {invented(rng)}, i need a {what} with {wishes}",
        state=frozenset(state),
        database=f"{domain} booked" if is_booked else f"{domain} 1 found",
        actions=f"{domain}-{'book' if is_booked else 'inform'}({kind}={identifier})",
        response=f"{'it is booked' if is_booked else 'here it is'}. the {kind} is {identifier}.",
        booked=(SlotValue(domain, kind, identifier),),
    )
    return Dialogue(name, (turn,), (domain,))


def _published(slot: Slot) -> list[str]:
    """Return the values that a schema publishes for a slot; those gathered from dialogues are somebody's."""
    if slot.collected:
        return []
    return [value for value in slot.possible_values if value not in ("dontcare", "none", "")]
