"""The sides that extracted states are counted against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hushbot.attacks.state_sides import take_sides
from hushbot.types import AuditSplit, Dialogue, SlotValue, Turn


def guest(id: str, name: str | None = None, goal: dict[str, Any] | None = None) -> Dialogue:
    triplets = frozenset({SlotValue("hotel", "name", name or id)})
    return Dialogue(id, (Turn("hello", triplets),), goal=goal)


def groups_of(split: AuditSplit) -> set[frozenset[str]]:
    return set(take_sides(split, seed=0).groups)


def test_uneven_sides_are_cut_at_random_to_equal_shares() -> None:
    split = AuditSplit(tuple(guest(f"m{i}") for i in range(30)), tuple(guest(f"n{i}") for i in range(10)))
    sides = take_sides(split, seed=5)
    assert sides.n_equal == 10
    assert len(sides.members.owners) == 30
    assert len(sides.equal_members.owners) == len(sides.equal_nonmembers.owners) == 10
    assert sides.notes == [
        "30 members and 10 non-members: compared on 10 of each, drawn at random from the larger side"
    ]
    backwards = take_sides(replace(split, members=split.members[::-1]), seed=5)
    assert (backwards.equal_members, backwards.groups) == (sides.equal_members, sides.groups)
    drawn = {name for ids in sides.equal_members.owners for name in ids}
    assert {name for group in sides.groups for name in group} == drawn | {f"n{i}" for i in range(10)}


def test_same_goal_or_same_final_state_on_one_side_is_one_group() -> None:
    goal = {"hotel": "any"}
    split = AuditSplit(
        (guest("m0", "a", goal), guest("m1", "b", goal), guest("m2", "b"), guest("m3")),
        (guest("n0", "x"), guest("n1", "x"), guest("n2"), guest("n3")),
    )
    assert groups_of(split) == {
        frozenset({"m0", "m1", "m2"}), frozenset({"m3"}),
        frozenset({"n0", "n1"}), frozenset({"n2"}), frozenset({"n3"}),
    }  # fmt: skip


def test_a_group_that_the_split_broke_up_is_broken_up_into_equal_states_and_dialogues() -> None:
    goal = {"hotel": "any"}
    split = AuditSplit(
        (guest("m0", "a", goal), guest("m1", "a", goal), guest("m2", "b", goal)),
        (guest("n0", "c", goal), guest("n1", "b", goal), guest("n2")),
    )
    assert groups_of(split) == {
        frozenset({"m0", "m1"}), frozenset({"m2"}), frozenset({"n0"}), frozenset({"n1"}), frozenset({"n2"}),
    }  # fmt: skip


def test_dialogues_hang_together_through_one_that_was_not_drawn() -> None:
    chain = (guest("m0", "a", {"x": 1}), guest("m1", "b", {"x": 1}), guest("m2", "b"))
    together = {seed: take_sides(AuditSplit(chain, (guest("n0"), guest("n1"))), seed).groups for seed in range(12)}
    assert {len(groups) for groups in together.values()} == {3}
    assert any(frozenset({"m0", "m2"}) in groups for groups in together.values())
