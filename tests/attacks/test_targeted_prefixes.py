"""Prefixes of states, on dialogues that can be read at a glance."""

from __future__ import annotations

from hushbot.attacks.targeted_prefixes import Prefix, collect_prefixes
from hushbot.prompts import render_state
from hushbot.types import Dialogue, SlotValue, Turn


def dialogue(id: str, *states: dict[str, str]) -> Dialogue:
    turns = (
        frozenset(SlotValue(*key.split("-"), value) for key, value in state.items())  # type: ignore[call-arg]
        for state in states
    )
    return Dialogue(id, tuple(Turn("hello", state) for state in turns))


ANN = dialogue("ann", {"hotel-area": "north"}, {"hotel-area": "north", "hotel-name": "Ritz", "taxi-to": "ely"})
BOB = dialogue("bob", {"hotel-area": "north", "hotel-name": "ritz"})
EVE = dialogue("eve", {"hotel-area": "North", "taxi-to": "ely"}, {"hotel-stars": "4"})


def texts(prefixes: list[Prefix]) -> list[str]:
    return [prefix.text for prefix in prefixes]


def test_every_beginning_of_a_longer_state_is_a_prefix_once() -> None:
    members, nonmembers = collect_prefixes([ANN, BOB], [EVE], [1, 2], max_prefixes=10, seed=0)
    assert texts(members) == ["Hotel(area=north,", "Hotel(area=north, name=Ritz)"]
    assert [prefix.holders for prefix in members] == [{"ann", "bob"}, {"ann"}]
    assert [prefix.length for prefix in members] == [1, 2]
    assert members[1].state == {SlotValue("hotel", "area", "north"), SlotValue("hotel", "name", "ritz")}
    assert members[0].prompt == "Belief State: Hotel(area=north,"
    assert texts(nonmembers) == ["Hotel(area=North)"]  # the bracket says that the domain is closed: another prefix


def test_a_prefix_knows_its_holders_on_the_other_side_whatever_the_case() -> None:
    eve = dialogue("eve", {"hotel-area": "NORTH", "hotel-stars": "4"})
    members, nonmembers = collect_prefixes([ANN], [eve], [1], max_prefixes=10, seed=0)
    assert texts(members) == texts(nonmembers) == ["Hotel(area=NORTH,"]
    assert (members[0].holders, members[0].others) == ({"ann"}, {"eve"})
    assert (nonmembers[0].holders, nonmembers[0].others) == ({"eve"}, {"ann"})


def test_each_is_the_beginning_of_its_holders_state() -> None:
    by_id = {each.id: each for each in (ANN, BOB)}
    members, _ = collect_prefixes([ANN, BOB], [], [1, 2, 3], max_prefixes=10, seed=0)
    for prefix in members:
        for holder in prefix.holders:
            states = [render_state(turn.state or frozenset()) for turn in by_id[holder].turns]
            assert any(state.startswith(prefix.text) for state in states)


def test_too_many_are_drawn_at_random_and_alike_on_both_sides() -> None:
    crowd = [dialogue(f"d{i:02}", {"hotel-area": f"a{i:02}", "hotel-stars": "4"}) for i in range(50)]
    members, nonmembers = collect_prefixes(crowd, crowd[::-1], [1], max_prefixes=10, seed=0)
    assert len(members) == 10
    assert texts(members) == texts(nonmembers)  # the same crowd, in another order
    other, _ = collect_prefixes(crowd, crowd, [1], max_prefixes=10, seed=1)
    assert texts(other) != texts(members)


def test_a_prefix_of_the_other_side_is_known_even_if_it_was_not_drawn() -> None:
    shared = [dialogue(f"m{i:02}", {"hotel-area": f"a{i:02}", "hotel-stars": "4"}) for i in range(20)]
    others = [dialogue(f"n{i:02}", {"hotel-area": f"a{i:02}", "hotel-stars": "5"}) for i in range(20)]
    own = [dialogue(f"o{i:02}", {"hotel-area": f"b{i:02}", "hotel-stars": "5"}) for i in range(80)]
    members, nonmembers = collect_prefixes(shared, others + own, [1], max_prefixes=10, seed=0)
    assert all(prefix.others for prefix in members)
    assert not set(texts(members)) <= set(texts(nonmembers))
