"""The split: disjoint, random yet repeatable, balanced, and no two related dialogues on two sides."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.groups import group_related
from hushbot.corpora.near_duplicates import NearDuplicate, find_near_duplicates, shingles
from hushbot.corpora.split import (
    SIDES,
    SplitSettings,
    annotation_sha256,
    check_manifest,
    data_sha256,
    make_split,
    manifest,
    split,
    stratum,
)
from hushbot.errors import ConfigError, DataError
from hushbot.schema import Schema, Slot
from hushbot.types import AuditSplit, Dialogue, DialogueState, SlotValue, Span, Turn


def state(*values: str) -> DialogueState:
    return frozenset(SlotValue("hotel", f"slot{i}", value) for i, value in enumerate(values))


def make(
    name: object,
    *,
    user: str = "",
    values: Iterable[str] = (),
    domains: tuple[str, ...] = ("hotel",),
    goal: dict[str, Any] | None = None,
    n_turns: int = 1,
) -> Dialogue:
    turns = tuple(Turn(user or f"text of {name}", state(*values)) for _ in range(n_turns))
    return Dialogue(f"d{name}", turns, domains, goal)


def corpus(dialogues: Iterable[Dialogue]) -> Corpus:
    return Corpus(tuple(dialogues), Schema(()), "test")


def ids(dialogues: Iterable[Dialogue]) -> list[str]:
    return [dialogue.id for dialogue in dialogues]


def sides_of(drawn: AuditSplit) -> dict[str, str]:
    return {dialogue.id: side for side in SIDES for dialogue in getattr(drawn, side)}


corpora = st.builds(
    lambda rows: [
        make(
            i,
            values=[f"v{v}"] if v else [],
            goal={"info": g} if g else None,
            domains=("hotel",) * d,
            n_turns=n,
        )
        for i, (v, g, d, n) in enumerate(rows)
    ],
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 1), st.sampled_from([1, 5, 8, 12])),
        min_size=3,
        max_size=40,
    ),
)


@settings(max_examples=150, deadline=None)
@given(corpora, st.integers(0, 3), st.randoms(use_true_random=False))
def test_split_properties(dialogues: list[Dialogue], seed: int, shuffler: random.Random) -> None:
    report = make_split(corpus(dialogues), SplitSettings(), seed)
    placed = [*(d for side in SIDES for d in getattr(report.split, side)), *report.unused]
    assert sorted(ids(placed)) == sorted(ids(dialogues))
    assert len(report.split.members) == len(report.split.nonmembers) > 0
    shuffled = list(dialogues)
    shuffler.shuffle(shuffled)
    assert make_split(corpus(shuffled), SplitSettings(), seed) == report
    # Naively: who shares a goal or a state is on one side, unless a note says that the group was too large.
    if not any("broken up" in note for note in report.notes):
        side = sides_of(report.split)
        for a in dialogues:
            for b in dialogues:
                related = (a.goal and a.goal == b.goal) or (a.final_state and a.final_state == b.final_state)
                if related and a.id in side and b.id in side:
                    assert side[a.id] == side[b.id]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 5, 12])), min_size=10, max_size=80))
def test_strata_are_dealt_out_in_proportion(rows: list[tuple[str, int]]) -> None:
    dialogues = [make(i, domains=(domain,), n_turns=n) for i, (domain, n) in enumerate(rows)]
    drawn = split(corpus(dialogues), 0)
    sizes = Counter(map(stratum, dialogues))
    for side, part in (("members", 0.4), ("nonmembers", 0.4)):
        found = Counter(map(stratum, getattr(drawn, side)))
        for key, size in sizes.items():
            assert abs(found[key] - part * size) <= 3


def test_large_strata_are_balanced() -> None:
    dialogues = [make(i, domains=("ab"[i % 2],), n_turns=1 + 4 * (i % 3)) for i in range(600)]
    drawn = split(corpus(dialogues), 1)
    assert [len(getattr(drawn, side)) for side in SIDES] == [240, 240, 60, 60]
    members, nonmembers = (Counter(map(stratum, side)) for side in (drawn.members, drawn.nonmembers))
    assert max(abs(members[key] - nonmembers[key]) for key in members) <= 4


def test_every_dialogue_is_a_member_equally_often() -> None:
    """A stratum of one must not always fall on the same side."""
    dialogues = [make(i, domains=("hotel",) if i else ("police",)) for i in range(10)]
    times = Counter(d.id for seed in range(400) for d in split(corpus(dialogues), seed).members)
    # 400 draws at 0.4: mean 160, standard deviation 9.8; five of them on either side.
    assert all(110 < times[dialogue.id] < 210 for dialogue in dialogues)


def test_counts_and_parts() -> None:
    dialogues = [make(i) for i in range(20)]
    drawn = split(corpus(dialogues), 0, members=5, nonmembers=5, calibration=0, controls=0.1)
    assert [len(getattr(drawn, side)) for side in SIDES] == [5, 5, 0, 2]
    assert SplitSettings(members=0.29, nonmembers=0.29).counts(100)["members"] == 29


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"members": -1}, "members=-1"),
        ({"members": 1.5}, r"members=1.5 is outside \[0, 1\]"),
        ({"members": float("nan")}, "members=nan"),
        ({"members": True}, "members=True"),
        ({"members": 0.7}, "add up to more than 1"),
        ({"largest_group": 0}, r"largest_group=0 is outside \(0, 1\]"),
        ({"near_duplicate": 2.0}, "near_duplicate=2.0"),
    ],
)
def test_sizes_out_of_range(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SplitSettings(**sizes)


@pytest.mark.parametrize(
    ("n_dialogues", "sizes", "message"),
    [
        (2, {}, "members=0.4 of 2 dialogues is none"),
        (0, {}, "of 0 dialogues"),
        (10, {"members": 8, "nonmembers": 8}, "more than the corpus' 10"),
        (10, {"nonmembers": 0}, "nonmembers=0 of 10"),
    ],
)
def test_corpora_too_small(n_dialogues: int, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(corpus(make(i) for i in range(n_dialogues)), 0, **sizes)


def test_repeated_ids_are_refused() -> None:
    with pytest.raises(DataError, match="twice: d1"):
        split(corpus([make(1), make(1), make(2)]), 0)


def test_groups_follow_goals_and_states_through_others() -> None:
    a, b, c = make(1, goal={"x": 1}), make(2, goal={"x": 1}, values=["n"]), make(3, values=["n"])
    d, e = make(4, goal={"info": {"x": ""}}), make(5, goal={"info": {"x": ""}})  # goals that say nothing
    assert group_related([a, b, c, d, e], 3) == ([(a, b, c), (d,), (e,)], [])


def test_a_huge_group_is_broken_up_with_a_note() -> None:
    same_goal = [make(i, goal={"x": 1}, values=[f"v{i // 2}"]) for i in range(40)]
    report = make_split(corpus(same_goal), SplitSettings(), 0)
    assert len(report.split.members) == len(report.split.nonmembers) == 16
    side = sides_of(report.split)
    pairs = [(side.get(f"d{i}"), side.get(f"d{i + 1}")) for i in range(0, 40, 2)]
    assert all(a == b for a, b in pairs if a and b)
    assert report.notes[0].startswith("40 dialogues (such as d0) hang together")
    assert "20 sets of equal states kept together" in report.notes[0]
    unconnected = make_split(corpus(same_goal), SplitSettings(deduplicate=False), 0)
    assert not [note for note in unconnected.notes if "broken up" in note]
    assert {duplicate.reason for duplicate in unconnected.near_duplicates} == {"same final state"}


def test_one_state_for_all_still_splits() -> None:
    report = make_split(corpus(make(i, values=["x"]) for i in range(20)), SplitSettings(), 0)
    assert len(report.split.members) == len(report.split.nonmembers) == 8
    assert len(report.near_duplicates) == 8


def test_near_duplicates_by_hand() -> None:
    five = ["a", "b", "c", "d", "e"]
    members = [
        make("m1", values=five, user="one"),
        make("m2", user="book a table for two at nine", values=["z"]),
    ]
    nonmembers = [
        make("n1", values=five),
        make("n2", values=[*five[:4], "x"]),
        make("n3", values=[*five, "f"]),
        make("n4", values=["y"]),  # differs by one triplet, but so do all small states
        make("n5", user="Book a table for two at nine"),
        make("n6", user="book a table for two at ten"),
    ]
    assert find_near_duplicates(members, nonmembers) == (
        NearDuplicate("dn1", "dm1", "same final state", 1.0),
        NearDuplicate("dn2", "dm1", "final state differs by one triplet", 4 / 6),
        NearDuplicate("dn3", "dm1", "final state differs by one triplet", 5 / 6),
        NearDuplicate("dn5", "dm2", "user text", 1.0),
    )
    # 4 of 6 word triples are shared.
    assert find_near_duplicates(members, nonmembers[-1:], 0.6)[0].similarity == 4 / 6


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("ab"), max_size=7), max_size=6),
    st.lists(st.lists(st.sampled_from("ab"), max_size=7), max_size=6),
    st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_text_duplicates_match_a_naive_search(left: list[list[str]], right: list[list[str]], threshold: float) -> None:
    members = [make(f"m{i}", user=" ".join(words) or ".") for i, words in enumerate(left)]
    nonmembers = [make(f"n{i}", user=" ".join(words) or ".") for i, words in enumerate(right)]
    expected = {}
    for n in nonmembers:
        similar = [len(shingles(n) & shingles(m)) / len(shingles(n) | shingles(m)) for m in members]
        if similar and max(similar) >= threshold:
            expected[n.id] = max(similar)
    found = find_near_duplicates(members, nonmembers, threshold)
    assert {duplicate.nonmember: duplicate.similarity for duplicate in found} == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("ab"), min_size=4, max_size=6), max_size=6),
    st.lists(st.lists(st.sampled_from("ab"), min_size=4, max_size=6), max_size=6),
)
def test_state_duplicates_match_a_naive_search(left: list[list[str]], right: list[list[str]]) -> None:
    members = [make(f"m{i}", values=values) for i, values in enumerate(left)]
    nonmembers = [make(f"n{i}", values=values) for i, values in enumerate(right)]

    def differs_by_one(a: DialogueState, b: DialogueState) -> bool:
        extra, lacking = len(a - b), len(b - a)
        is_large = max(len(a), len(b)) >= 5 and len(a) + lacking >= 5
        return is_large and max(extra, lacking) <= 1

    expected = {
        n.id for n in nonmembers for m in members if differs_by_one(n.final_state or state(), m.final_state or state())
    }
    found = find_near_duplicates(members, nonmembers, 1.0)
    large = {d.nonmember for d in found if d.reason != "user text"}
    small = {n.id for n in nonmembers for m in members if n.final_state == m.final_state}
    assert large == expected | small


def test_the_hash_follows_the_content_only() -> None:
    a, b = make(1, values=["x"], goal={"p": 1, "q": 2}), make(2)
    assert data_sha256([a, b]) == data_sha256([b, a])
    assert data_sha256([replace(a, goal={"q": 2, "p": 1}), b]) == data_sha256([a, b])
    turn = a.turns[0]
    (triplet,) = state("x")
    changed = [
        replace(a, id="d3"),
        replace(a, opening="hi"),
        replace(a, domains=()),
        replace(a, goal=None),
        *(
            replace(a, turns=(one,))
            for one in (
                replace(turn, user="?"),
                replace(turn, state=None),
                replace(turn, state=frozenset()),
                replace(turn, state=frozenset([replace(triplet, alternatives=("y",))])),
                replace(turn, database="?"),
                replace(turn, actions="?"),
                replace(turn, response=None),
                replace(turn, booked=(triplet,)),
            )
        ),
    ]
    assert len({data_sha256([one, b]) for one in [a, *changed]}) == len(changed) + 1
    # Spans are annotation of a text that is hashed already.
    spans = (Span("hotel", "name", "x", 0, 1),)
    annotated = replace(a, turns=(replace(turn, user_spans=spans, response_spans=spans), *a.turns[1:]))
    assert data_sha256([annotated, b]) == data_sha256([a, b])
    with pytest.raises(DataError, match="dialogue d1: its content is not JSON"):
        data_sha256([replace(a, goal={"x": object()})])


def test_schema_and_spans_have_a_hash_of_their_own() -> None:
    a, b = make("a", user="x"), make("b")
    span = Span("hotel", "name", "x", 0, 1)
    marked = replace(a, turns=(replace(a.turns[0], user_spans=(span,)),))
    answered = replace(a, turns=(replace(a.turns[0], response_spans=(span,)),))
    plain = corpus([a, b])
    slots = (Slot("hotel", "name"), Slot("hotel", "name", possible_values=("x",)), Slot("hotel", "area"))
    different = [
        corpus([marked, b]),
        corpus([answered, b]),
        *(replace(plain, schema=Schema((slot,))) for slot in slots),
    ]
    assert len({annotation_sha256(one) for one in (plain, *different)}) == 1 + len(different)
    assert annotation_sha256(corpus([b, a])) == annotation_sha256(plain)


def test_manifest_holds_who_is_where_and_is_json() -> None:
    data = corpus(make(i) for i in range(10))
    report = make_split(data, SplitSettings(), 3)
    written = manifest(report, replace(data, notes=("a note",)), 3)
    assert json.loads(json.dumps(written)) == written
    assert written == {
        "version": 1,
        "seed": 3,
        "data_sha256": data_sha256(data.dialogues),
        **{side: ids(getattr(report.split, side)) for side in SIDES},
        "near_duplicates": [duplicate._asdict() for duplicate in report.near_duplicates],
        "notes": ["a note"],
    }
    assert manifest(report.split, data, 3)["members"] == written["members"]


def test_an_earlier_manifest_must_agree() -> None:
    data = corpus(make(i) for i in range(10))
    expected = manifest(split(data, 0), data, 0)
    found = json.loads(json.dumps(expected))
    check_manifest({**found, "notes": ["other"], "coins": [1]}, expected)
    with pytest.raises(DataError, match="seed is 1, now 0"):
        check_manifest({**found, "seed": 1}, expected)
    with pytest.raises(DataError, match=r"members: 1 only there \(dz\), 1 only now"):
        check_manifest({**found, "members": ["dz", *found["members"][1:]]}, expected)
    with pytest.raises(DataError, match="controls is 'missing'"):
        check_manifest({key: value for key, value in found.items() if key != "controls"}, expected)
    with pytest.raises(DataError, match="another order"):
        check_manifest({**found, "members": found["members"][::-1]}, expected)


@pytest.mark.shared
def test_real_corpora_split_evenly(shared_dir: Path) -> None:
    from hushbot.corpora import load

    data = load("hr_multiwoz", path=shared_dir / "data" / "hr_multiwoz")
    report = make_split(data, SplitSettings(), 0)
    assert [len(getattr(report.split, side)) for side in SIDES] == [220, 220, 55, 55]
    assert report.notes == ()
    states = [{d.final_state for d in side} for side in (report.split.members, report.split.nonmembers)]
    assert not states[0] & states[1]
