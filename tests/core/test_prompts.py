"""Dialogue text and back: the round trip, the canonical order, and what is no state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot import prompts
from hushbot.errors import DataError, StateParseError
from hushbot.prompts import (
    STATE_MARKER,
    Changes,
    apply_changes,
    changes_between,
    changes_line,
    read_changes,
    render_changes,
    render_state,
)
from hushbot.types import Dialogue, DialogueState, SlotValue, Turn

AWKWARD = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("\\(),=|\"'\n\r\t :<>aZ0_")),
    min_size=1,
    max_size=12,
)


@st.composite
def states(draw: st.DrawFn) -> DialogueState:
    slots = draw(st.sets(st.tuples(AWKWARD, AWKWARD), max_size=6))
    return frozenset(SlotValue(domain, slot, draw(AWKWARD)) for domain, slot in slots)


def state(*triplets: tuple[str, str, str]) -> DialogueState:
    return frozenset(SlotValue(*triplet) for triplet in triplets)


TRIP = state(("train", "day", "friday"), ("restaurant", "name", "pizza hut"), ("restaurant", "area", "centre"))


def test_layout_is_the_papers() -> None:
    assert prompts.render_state(TRIP) == "Restaurant(area=centre, name=pizza hut) Train(day=friday)"
    assert prompts.render_state(frozenset()) == "None"


@given(states())
def test_any_state_comes_back(original: DialogueState) -> None:
    text = prompts.render_state(original)
    assert "\n" not in text
    assert prompts.parse_state(text) == original
    assert prompts.parse_state(f"User: hi\n{prompts.STATE_MARKER} {text}\nDatabase: 3 found\n") == original


@given(states())
def test_a_prefix_of_k_triplets_is_a_prefix_of_the_text(original: DialogueState) -> None:
    text = prompts.render_state(original)
    in_order = sorted(original)
    for k in range(len(original) + 1):
        prefix = prompts.render_state_prefix(original, k)
        assert text.startswith(prefix)
        if k:
            assert prompts.parse_state(prefix) == frozenset(in_order[:k])


def test_prefix_ends_with_its_delimiter() -> None:
    assert prompts.render_state_prefix(TRIP, 1) == "Restaurant(area=centre,"
    assert prompts.render_state_prefix(TRIP, 2) == "Restaurant(area=centre, name=pizza hut)"
    with pytest.raises(DataError, match="n_triplets=4 is outside"):
        prompts.render_state_prefix(TRIP, 4)


@given(st.text(max_size=200))
def test_pieces_join_to_the_text(text: str) -> None:
    assert "".join(prompts.pieces(text)) == text


def test_pieces_end_at_lines_and_after_what_the_bot_continues() -> None:
    text = "User: a\nBelief State: X(a=b)\nDatabase: 3\nActions: q\nResponse:"
    assert prompts.pieces(text) == [
        "User: a\n", "Belief State:", " X(a=b)\n", "Database: 3\n", "Actions:", " q\n", "Response:",
    ]  # fmt: skip


@given(st.text(max_size=80))
def test_reading_never_raises(text: str) -> None:
    prompts.read_state(text)


@pytest.mark.parametrize(
    "text", ["", "I would love to help.", "Belief State: well, (maybe", "Belief State: Restaurant(name=piz"]
)
def test_what_is_no_state_is_an_error_not_an_empty_state(text: str) -> None:
    if text:
        with pytest.raises(StateParseError):
            prompts.parse_state(text)
    else:
        assert prompts.read_state(text).state is None


@pytest.mark.parametrize(
    ("text", "is_complete"),
    [
        ("Restaurant(area=north)", True),
        ("Restaurant(area=north) ", True),
        ("Restaurant(area=north)\nsomething else", True),
        ("Restaurant(area=north) DB: 3 found", True),
        ("Restaurant(area=north) Tr", False),
        ("Restaurant(area=north) Train(", False),
        ("Restaurant(area=north, name=", False),
    ],
)
def test_a_cut_state_is_known_as_cut_and_keeps_what_was_closed(text: str, is_complete: bool) -> None:
    parsed = prompts.read_state(text)
    assert parsed.state == state(("restaurant", "area", "north"))
    assert parsed.is_complete == is_complete


def test_a_state_cannot_hold_two_values_or_an_empty_one() -> None:
    with pytest.raises(DataError, match="restaurant-area has two values"):
        prompts.render_state(state(("restaurant", "area", "north"), ("restaurant", "area", "south")))
    with pytest.raises(DataError, match="empty"):
        prompts.render_state(state(("restaurant", "area", "")))


def test_history_holds_utterances_only_and_one_line_each() -> None:
    turns = (
        Turn("hello\n there", TRIP, response="Hi.\tName?"),
        Turn("Kim", TRIP, response=None),
        Turn("still there?", None, response=""),
    )
    dialogue = Dialogue("d", turns, opening="Welcome")
    assert prompts.history_lines(dialogue, 2) == (
        "System: Welcome\n", "User: hello there\n", "System: Hi. Name?\n", "User: Kim\n", "User: still there?\n",
    )  # fmt: skip


def test_who_says_nothing_leaves_no_line() -> None:
    dialogue = Dialogue("d", (Turn(" ", TRIP, response="When?"), Turn("at 9", TRIP, response=None)))
    assert prompts.history_lines(dialogue, 0) == ()
    assert prompts.state_prompt(prompts.history_lines(dialogue, 0)) == prompts.STATE_MARKER
    assert prompts.history_lines(dialogue, 1) == ("System: When?\n", "User: at 9\n")


def as_state(domains: dict[str, dict[str, str]]) -> DialogueState:
    return state(*((d, s, v) for d, slots in domains.items() for s, v in slots.items()))


def test_case_round_trips(shared_dir: Path) -> None:
    case = json.loads((shared_dir / "cases" / "14_linearise_roundtrip.json").read_text(encoding="utf-8"))
    for entry in case["must_roundtrip"]:
        assert prompts.parse_state(prompts.render_state(as_state(entry))) == as_state(entry)
    for left, right in case["equal_after_parse"]:
        assert prompts.render_state(as_state(left)) == prompts.render_state(as_state(right))


def test_case_generated_texts(shared_dir: Path) -> None:
    for entry in json.loads((shared_dir / "cases" / "15_generated_state_text.json").read_text(encoding="utf-8")):
        parsed = prompts.read_state(entry["text"])
        expected = None if entry["expected"] is None else as_state(entry["expected"])
        assert (parsed.state, parsed.is_complete) == (expected, entry["complete"]), entry["text"]


@pytest.mark.parametrize("triplet", [SlotValue("hotel", "", "acorn house"), SlotValue("", "name", "acorn house")])
def test_an_empty_name_is_told_without_the_value(triplet: SlotValue) -> None:
    with pytest.raises(DataError, match=r"triplet 1 of 1: .* and 11 characters; none may be empty") as caught:
        render_state(frozenset({triplet}))
    assert "acorn" not in str(caught.value)


def test_changes_hold_what_a_turn_added_replaced_and_dropped() -> None:
    before = frozenset({SlotValue("hotel", "area", "north"), SlotValue("hotel", "stars", "4")})
    after = frozenset({SlotValue("hotel", "stars", "5"), SlotValue("taxi", "to", "station")})
    changes = changes_between(before, after)
    assert changes.dropped == {("hotel", "area")}
    assert render_changes(changes) == "Hotel(area=, stars=5) Taxi(to=station)"
    assert changes_line(after, after) == " None\n"
    assert apply_changes(before, changes) == after


@given(states(), states())
def test_any_changes_come_back(before: DialogueState, after: DialogueState) -> None:
    parsed = read_changes(f"{STATE_MARKER}{changes_line(before, after)}")
    assert parsed.is_complete
    assert parsed.format_errors == 0
    assert parsed.changes is not None
    assert apply_changes(before, parsed.changes) == after


@pytest.mark.parametrize(
    ("text", "said", "dropped", "is_complete", "errors"),
    [
        ("Hotel(area=, stars=5)", 1, 1, True, 0),
        ("Hotel(area=, area=, stars=5)", 1, 1, True, 1),  # said twice
        ("Hotel(area=, area=north)", 1, 0, True, 0),  # a value beats its absence
        ("Hotel(area=, sta", 0, 1, False, 1),
        ("None", 0, 0, True, 0),
    ],
)
def test_changes_are_read_as_far_as_they_go(text: str, said: int, dropped: int, is_complete: bool, errors: int) -> None:
    parsed = read_changes(text)
    assert parsed.changes is not None
    assert (len(parsed.changes.said), len(parsed.changes.dropped)) == (said, dropped)
    assert (parsed.is_complete, parsed.format_errors) == (is_complete, errors)


def test_a_text_without_changes_is_none_and_dropping_nothing_changes_nothing() -> None:
    assert read_changes("how can i help?").changes is None
    state = frozenset({SlotValue("hotel", "stars", "4")})
    assert apply_changes(state, Changes(frozenset(), frozenset({("hotel", "area")}))) == state
    with pytest.raises(DataError, match="empty value"):
        render_changes(Changes(frozenset({SlotValue("hotel", "stars", "")})))
