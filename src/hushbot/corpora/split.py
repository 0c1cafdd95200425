"""Who is a member: dialogues to members, non-members, calibration and controls, at random, before training.

Guarantees:

* Random by dialogue and never the official split, whose sides differ in more than membership. The same
  dialogues and seed give the same split, whatever the order in which they are given.
* Sides are alike: within each stratum (set of domains, length) dialogues are dealt out in proportion.
* With `deduplicate`, dialogues that have the same goal or the same final state are never on two sides. A
  group so large that it would dominate a side is broken up (see `groups`), and the report says so.
* Members and non-members get equal numbers when equal numbers are asked for.
* What still resembles a member is reported, not hidden (`near_duplicates`).

Void if a corpus holds copies under other wordings: they are told apart by goal, final state and words only.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.files import listing
from hushbot.corpora.groups import Group, canonical_json, group_related
from hushbot.corpora.near_duplicates import NearDuplicate, find_near_duplicates
from hushbot.errors import ConfigError, DataError
from hushbot.types import AuditSplit, Canary, Dialogue, SlotValue

SIDES = ("members", "nonmembers", "calibration", "controls")
MANIFEST_VERSION = 1
_LENGTH_EDGES = (4, 7, 10)
_UNUSED = "unused"
# Groups up to this size stay together even where they are a large part of a very small side.
_SMALL_GROUP = 3


@dataclass(frozen=True, kw_only=True)
class SplitSettings:
    """How many dialogues go where: a whole number is a count, a number with a point a part of the corpus."""

    members: int | float = 0.4
    """Dialogues to train on."""
    nonmembers: int | float = 0.4
    """Dialogues never trained on, to compare with."""
    calibration: int | float = 0.1
    """Held-out dialogues for early stopping and thresholds; may be 0."""
    controls: int | float = 0.1
    """Held-out dialogues for mismatched prefixes and impostor values; may be 0."""
    deduplicate: bool = True
    """Keep dialogues with the same goal or the same final state on one side."""
    largest_group: float = 0.25
    """The largest group kept together, as a part of the smaller of members and non-members; in (0, 1]."""
    near_duplicate: float = 0.8
    """Report non-members whose user text is at least this similar to a member's (Jaccard); in (0, 1]."""

    def __post_init__(self) -> None:
        problems = []
        for side in SIDES:
            size = getattr(self, side)
            if isinstance(size, bool) or not isinstance(size, (int, float)) or not size >= 0:
                problems.append(f"{side}={size!r} must be a count or a part in [0, 1]; set split.{side}")
            elif isinstance(size, float) and not size <= 1:
                problems.append(f"{side}={size} is outside [0, 1]; set split.{side} to a part, or to a whole number")
        for name in ("largest_group", "near_duplicate"):
            if not 0 < getattr(self, name) <= 1:
                problems.append(f"{name}={getattr(self, name)} is outside (0, 1]; set split.{name}")
        parts = [getattr(self, side) for side in SIDES if isinstance(getattr(self, side), float)]
        if not problems and sum(parts) > 1 + 1e-9:
            problems.append(f"split: the parts {parts} add up to more than 1; lower one of {SIDES}")
        if problems:
            raise ConfigError(*problems)

    def counts(self, n_dialogues: int) -> dict[str, int]:
        """Return how many dialogues each side gets of a corpus.

        Raises:
            DataError: The corpus is too small: more is asked for than it has, or there would be no member or
                no non-member.
        """
        sizes = {side: getattr(self, side) for side in SIDES}
        # 0.29 * 100 is a little below 29 in binary; the corpus has 29 all the same.
        counts = {
            side: int(size * n_dialogues + 1e-9) if isinstance(size, float) else size for side, size in sizes.items()
        }
        if sum(counts.values()) > n_dialogues:
            raise DataError(f"split: {counts} need more than the corpus' {n_dialogues} dialogues; ask for fewer")
        for side in ("members", "nonmembers"):
            if counts[side] == 0:
                raise DataError(
                    f"split: {side}={sizes[side]} of {n_dialogues} dialogues is none; an audit needs both, "
                    f"so raise split.{side} or load more data"
                )
        return counts


@dataclass(frozen=True, slots=True)
class SplitReport:
    """A split and what is to be known about it."""

    split: AuditSplit
    notes: tuple[str, ...] = ()
    """Groups that had to be broken up, sides that came out smaller than asked."""
    near_duplicates: tuple[NearDuplicate, ...] = ()
    """Non-members that resemble a member."""
    unused: tuple[Dialogue, ...] = ()
    """Dialogues on no side."""


def split(
    corpus: Corpus,
    seed: int,
    *,
    members: int | float = 0.4,
    nonmembers: int | float = 0.4,
    calibration: int | float = 0.1,
    controls: int | float = 0.1,
    deduplicate: bool = True,
) -> AuditSplit:
    """Split a corpus at random; a whole number is a count, a number with a point a part of the corpus.

    Raises:
        ConfigError: A size is out of range.
        DataError: The corpus is too small.
    """
    settings = SplitSettings(
        members=members,
        nonmembers=nonmembers,
        calibration=calibration,
        controls=controls,
        deduplicate=deduplicate,
    )
    return make_split(corpus, settings, seed).split


def make_split(corpus: Corpus, settings: SplitSettings, seed: int) -> SplitReport:
    """Split a corpus and report what was repaired and what resembles what.

    Raises:
        DataError: The corpus is too small, or an id occurs twice.
    """
    dialogues = sorted(corpus.dialogues, key=lambda dialogue: dialogue.id)
    repeated = [name for name, n in Counter(dialogue.id for dialogue in dialogues).items() if n > 1]
    if repeated:
        raise DataError(f"split: ids occur twice: {listing(repeated)}; give each dialogue its own")
    quotas = settings.counts(len(dialogues))
    smaller = min(quotas["members"], quotas["nonmembers"])
    groups: list[Group] = [(dialogue,) for dialogue in dialogues]
    notes: list[str] = []
    if settings.deduplicate:
        limit = max(int(settings.largest_group * smaller), min(_SMALL_GROUP, smaller))
        groups, notes = group_related(dialogues, limit)
    rng = random.Random(seed)
    sides = _deal(groups, quotas, rng)
    if settings.members == settings.nonmembers:
        _equalise(sides, rng)
    for side, asked in quotas.items():
        if len(sides[side]) < asked:
            notes.append(f"{side}: {len(sides[side])} of the {asked} dialogues asked for; groups stay together")
    chosen = {side: tuple(sorted(placed, key=lambda dialogue: dialogue.id)) for side, placed in sides.items()}
    drawn = AuditSplit(chosen["members"], chosen["nonmembers"], chosen["calibration"], chosen["controls"])
    duplicates = find_near_duplicates(drawn.members, drawn.nonmembers, settings.near_duplicate)
    return SplitReport(drawn, tuple(notes), duplicates, chosen[_UNUSED])


def stratum(dialogue: Dialogue) -> tuple[tuple[str, ...], int]:
    """Return what sides are balanced for: the set of domains and the length, in four classes."""
    domains = set(dialogue.domains) or {triplet.domain for triplet in dialogue.final_state or ()}
    return tuple(sorted(domains)), sum(len(dialogue.turns) > edge for edge in _LENGTH_EDGES)


def _deal(groups: Sequence[Group], quotas: Mapping[str, int], rng: random.Random) -> dict[str, list[Dialogue]]:
    """Deal groups out: large ones first, each to a side that its strata still owe dialogues."""
    sizes = Counter(stratum(dialogue) for group in groups for dialogue in group)
    n_dialogues = sizes.total()
    room = {**quotas, _UNUSED: n_dialogues - sum(quotas.values())}
    owed = {key: {side: size * room[side] / n_dialogues for side in room} for key, size in sizes.items()}
    sides: dict[str, list[Dialogue]] = {side: [] for side in room}
    order = list(groups)
    rng.shuffle(order)
    order.sort(key=len, reverse=True)
    for group in order:
        debts = [owed[stratum(dialogue)] for dialogue in group]
        side = _choose(debts, room, rng)
        kept = group[: room[side]]
        sides[side] += kept
        sides[_UNUSED] += group[len(kept) :]
        room[side] -= len(kept)
        for debt in debts:
            debt[side] -= 1
    return sides


def _choose(debts: Sequence[Mapping[str, float]], room: Mapping[str, int], rng: random.Random) -> str:
    """Draw a side that a group fits on, in proportion to what the strata of its dialogues owe the side."""
    fitting = [side for side in room if room[side] >= len(debts)]
    if not fitting:
        return max(room, key=lambda side: room[side])
    weights = [max(sum(debt[side] for debt in debts), 0.0) for side in fitting]
    if not any(weights):
        weights = [float(room[side]) for side in fitting]
    return rng.choices(fitting, weights)[0]


def _equalise(sides: dict[str, list[Dialogue]], rng: random.Random) -> None:
    """Take random dialogues off the larger of members and non-members."""
    smaller, larger = sorted(("members", "nonmembers"), key=lambda side: len(sides[side]))
    while len(sides[larger]) > len(sides[smaller]):
        sides[_UNUSED].append(sides[larger].pop(rng.randrange(len(sides[larger]))))


def data_sha256(dialogues: Sequence[Dialogue]) -> str:
    """Return a hash of everything dialogues say, whatever their order.

    Left out are spans: they only mark places in texts that are hashed, and a corpus is the same data with or
    without that annotation.

    Raises:
        DataError: A goal holds what JSON cannot.
    """
    digest = sha256()
    for dialogue in sorted(dialogues, key=lambda dialogue: dialogue.id):
        turns = [
            [turn.user, _listed(turn.state), turn.database, turn.actions, turn.response, _listed(turn.booked)]
            for turn in dialogue.turns
        ]
        content = [dialogue.id, dialogue.opening, turns, dialogue.domains, dialogue.goal]
        digest.update(canonical_json(content, dialogue.id).encode() + b"\n")
    return digest.hexdigest()


def annotation_sha256(corpus: Corpus) -> str:
    """Return a hash of what `data_sha256` leaves out and recipes read all the same: the schema, and marked spans."""
    spans = [
        [dialogue.id, [[*map(repr, turn.user_spans), "|", *map(repr, turn.response_spans)] for turn in dialogue.turns]]
        for dialogue in sorted(corpus.dialogues, key=lambda dialogue: dialogue.id)
    ]
    return sha256(canonical_json([repr(corpus.schema.slots), spans], "spans").encode()).hexdigest()


def _listed(triplets: Collection[SlotValue] | None) -> list[list[str]] | None:
    if triplets is None:
        return None
    return [[triplet.domain, triplet.slot, *triplet.values] for triplet in sorted(triplets)]


def manifest(drawn: AuditSplit | SplitReport, corpus: Corpus, seed: int) -> dict[str, object]:
    """Return what is written down before training: who is where, and of which data.

    Args:
        drawn: A split, or the report on one, which keeps its notes and near-duplicates.
        corpus: The corpus that was split.
        seed: The seed of the split.
    """
    if isinstance(drawn, AuditSplit):
        duplicates = find_near_duplicates(drawn.members, drawn.nonmembers)
        drawn = SplitReport(drawn, near_duplicates=duplicates)
    ids = {side: [dialogue.id for dialogue in getattr(drawn.split, side)] for side in SIDES}
    return {
        "version": MANIFEST_VERSION,
        "seed": seed,
        "data_sha256": data_sha256(corpus.dialogues),
        **ids,
        **_coins(drawn.split.canaries),
        "near_duplicates": [duplicate._asdict() for duplicate in drawn.near_duplicates],
        "notes": [*corpus.notes, *drawn.notes],
    }


def _coins(canaries: Sequence[Canary]) -> dict[str, object]:
    """Return who the canaries are, what they say and which were chosen; nothing where there are none."""
    if not canaries:
        return {}
    return {
        "canaries_sha256": data_sha256([canary.dialogue for canary in canaries]),
        "canary_coins": {canary.dialogue.id: canary.is_inserted for canary in canaries},
    }


def check_manifest(found: Mapping[str, object], expected: Mapping[str, object]) -> None:
    """Compare the manifest of an earlier run with the one that this run would write.

    Notes and near-duplicates follow from the rest and are not compared.

    Raises:
        DataError: They differ; the message says in what.
    """
    problems = []
    for key, wanted in expected.items():
        if key in ("notes", "near_duplicates") or found.get(key) == wanted:
            continue
        problems.append(_difference(key, found.get(key, "missing"), wanted))
    if problems:
        raise DataError(
            "manifest.json is of another run: "
            + "; ".join(problems)
            + ". Resume with the same data, split and seed, or choose a new run directory"
        )


def _difference(key: str, found: object, expected: object) -> str:
    if isinstance(found, (list, tuple)) and isinstance(expected, (list, tuple)):
        then, now = set(map(str, found)), set(map(str, expected))
        if then != now:
            gone = listing(sorted(then - now)) or "none"
            return f"{key}: {len(then - now)} only there ({gone}), {len(now - then)} only now"
        return f"{key}: the same entries in another order or number"
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        n_other = sum(found.get(name) != expected.get(name) for name in {*found, *expected})
        return f"{key}: {n_other} of its {len(found)} entries are others now"
    return f"{key} is {found!r}, now {expected!r}"
