"""Whether a bot did what its users came for: Inform and Success on MultiWOZ.

Guarantees: pure functions of answers, states, goals and tables; no chance is involved. A dialogue *informs* when, in
every domain of its goal, the venues offered last are some of those that match the goal. It *succeeds* when it also
told everything that was asked for, each in a turn about its domain; a reference counts only where the gold dialogue
has a booking. Goals that name the venue, and domains without venues, inform by themselves, and so does a train that
was never offered and whose id nobody asked for.

What a turn is about decides points of the result, so there are two rules, and the protocol names the one in use:
`state_change` (the domain whose state changed last) and `slot_names` (the domains that the answer's placeholders
name). Some systems state their active domains; these can be given instead.

What voids comparability with published numbers: gold annotation of another release, states of the corpus instead of
predicted ones, and answers without placeholders (see `placeholders`). Older scripts draw a venue by chance, or test
overlap instead of subset.
Source: as for `venue_search`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hushbot.evaluation.placeholders import DOMAINS, Answer
from hushbot.evaluation.venue_search import SEARCHED, VenueSearch, canonical, canonical_slot
from hushbot.types import Dialogue, DialogueState, Turn

ActiveDomainRule: TypeAlias = Literal["state_change", "slot_names"]
ACTIVE_DOMAIN_RULES: tuple[ActiveDomainRule, ...] = ("state_change", "slot_names")

PlainState: TypeAlias = Mapping[str, Mapping[str, str]]
"""Values by domain and slot, as systems' prediction files write states."""

_REQUESTABLE = {"phone": "PHONE", "address": "ADDRESS", "postcode": "POST", "reference": "REFERENCE"}
_OFFERS = {"train": "TRAINID"}


@dataclass(frozen=True, slots=True)
class DomainGoal:
    """What a user wants in one domain."""

    informable: Mapping[str, str]
    """What the venue must be like."""
    requestable: frozenset[str] = frozenset()
    """The kinds of what the user asks for; only those that can be told from a text."""


TaskGoal: TypeAlias = Mapping[str, DomainGoal]
"""What a user wants, by domain."""


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """One turn as far as the task is concerned."""

    answer: Answer
    state: PlainState
    """The bot's; slots and values in the tables' spelling."""
    booked: frozenset[str] = frozenset()
    """Domains in which the gold dialogue holds a booking by now."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What came of one dialogue."""

    informed: Mapping[str, bool]
    """For each domain of the goal."""
    told: Mapping[str, bool]
    """Whether all that was asked for was told, for each domain of the goal."""

    @property
    def inform(self) -> bool:
        """Return whether every domain's offer fits its goal."""
        return all(self.informed.values())

    @property
    def success(self) -> bool:
        """Return whether, moreover, everything was told."""
        return self.inform and all(self.told.values())

    def success_in(self, domain: str) -> bool:
        """Return whether the dialogue informs, and everything that was asked for in a domain was told.

        The published rates by domain ask for the offers of all domains, not of this one alone.
        """
        return self.inform and self.told[domain]


def read_goal(goal: Mapping[str, Any] | None) -> TaskGoal | None:
    """Return the goal of a MultiWOZ dialogue; None where it has none that can be checked.

    >>> read_goal({"hotel": {"info": {"area": "north"}, "reqt": ["phone"], "book": {"stay": "2"}}, "message": []})
    {'hotel': DomainGoal(informable={'area': 'north'}, requestable=frozenset({'PHONE', 'REFERENCE'}))}
    """
    parts = {domain: part for domain, part in (goal or {}).items() if domain in DOMAINS and isinstance(part, Mapping)}
    found = {domain: _domain_goal(domain, part) for domain, part in sorted(parts.items()) if part.get("info")}
    return found or None


def _domain_goal(domain: str, part: Mapping[str, Any]) -> DomainGoal:
    asked = {str(name).lower() for name in part.get("reqt") or ()}
    kinds = {kind for name, kind in _REQUESTABLE.items() if name in asked}
    if domain == "train":
        kinds = {"TRAINID"} if "trainid" in asked else set()
    if part.get("book"):
        kinds.add("REFERENCE")
    return DomainGoal(
        {canonical_slot(name): str(value) for name, value in part["info"].items()}, frozenset(sorted(kinds))
    )


def plain_state(state: DialogueState) -> PlainState:
    """Return a state by domain and slot, in the tables' spelling."""
    found: dict[str, dict[str, str]] = {}
    for triplet in sorted(state):
        found.setdefault(triplet.domain, {})[triplet.slot] = triplet.value
    return normalise_state(found)


def normalise_state(state: PlainState) -> PlainState:
    """Return a state as a prediction file has it, in the tables' spelling; the order of domains is kept."""
    return {
        domain: {(slot := canonical_slot(name)): canonical(slot, value) for name, value in slots.items()}
        for domain, slots in state.items()
    }


def booked_domains(turn: Turn) -> frozenset[str]:
    """Return the domains in which a gold turn holds a booking; a taxi is no booking."""
    return frozenset(triplet.domain for triplet in turn.booked) - {"taxi"}


def active_domains(turns: Sequence[TaskTurn], rule: ActiveDomainRule) -> list[frozenset[str]]:
    """Return what each turn is about."""
    if rule == "slot_names":
        return [turn.answer.domains for turn in turns]
    return _domains_by_change([turn.state for turn in turns])


def _domains_by_change(states: Sequence[PlainState]) -> list[frozenset[str]]:
    """Follow the domain whose state changed.

    Of several that changed at once, the one in force stays, or else that with the most slots takes over; a turn
    without a change then goes on to another of them.
    """
    current: str | None = None
    before: PlainState = {}
    together: list[str] = []
    found = []
    for state in states:
        changed = [name for name in state if set(state[name].items()) - set(before.get(name, {}).items())]
        if not changed and current is not None and len(together) > 1:
            current = next((name for name in together if name in state and name != current), current)
        elif changed and current not in changed:
            current = max(changed, key=lambda name: len(state[name]))
        if changed or current is not None:
            before, together = state, changed
        found.append(frozenset() if current is None else frozenset({current}))
    return found


def complete(goal: TaskGoal, turns: Sequence[TaskTurn], active: Sequence[Set[str]], search: VenueSearch) -> Completion:
    """Walk through a dialogue and check it against its goal.

    Args:
        goal: What the user wanted.
        turns: What the bot said and believed.
        active: What each turn is about.
        search: The tables.
    """
    offered: dict[str, frozenset[int]] = dict.fromkeys(goal, frozenset())
    told: dict[str, set[str]] = {domain: set() for domain in goal}
    for turn, domains in zip(turns, active, strict=True):
        for domain in domains & goal.keys():
            kinds = turn.answer.kinds
            if domain in SEARCHED and _OFFERS.get(domain, "NAME") in kinds:
                matching = search.find(domain, turn.state.get(domain, {})) if domain in turn.state else frozenset()
                # An offer stands while a later state still allows all of it.
                if not offered[domain] or not offered[domain] <= matching:
                    offered[domain] = matching
            told[domain] |= kinds if domain in turn.booked else kinds - {"REFERENCE"}
    return Completion(
        {domain: _is_informed(domain, wanted, offered[domain], search) for domain, wanted in goal.items()},
        {domain: wanted.requestable <= told[domain] for domain, wanted in goal.items()},
    )


def _is_informed(domain: str, wanted: DomainGoal, offered: frozenset[int], search: VenueSearch) -> bool:
    if domain not in SEARCHED or "name" in wanted.informable:
        return True
    if not offered:
        return domain == "train" and "TRAINID" not in wanted.requestable
    matching = search.find(domain, wanted.informable)
    return offered <= matching


def goals_of(dialogues: Sequence[Dialogue]) -> dict[str, TaskGoal]:
    """Return the goals that can be checked, by dialogue id."""
    return {d.id: goal for d in dialogues if (goal := read_goal(d.goal)) is not None}
