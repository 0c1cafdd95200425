"""Turn-level examples, held against text written out by hand."""

from __future__ import annotations

from hushbot.prompts import pieces
from hushbot.recipes.turn_level import TurnLevel
from hushbot.types import Dialogue, Segment, SlotValue, Turn

CHEAP = SlotValue("restaurant", "pricerange", "cheap")
NORTH = SlotValue("restaurant", "area", "north")
DIALOGUE = Dialogue(
    "d1",
    (
        Turn("a cheap place", frozenset({CHEAP}), "restaurant 2 found", "request(area)", "Which  area?"),
        Turn("where is it", None, "", "", "I do not know."),
        Turn("in the north", frozenset({CHEAP, NORTH}), "", "", "Golden Wok."),
        Turn("thanks, bye", frozenset(), response=None),
    ),
)


def test_a_turn_is_its_history_then_state_database_actions_and_response() -> None:
    first, *_ = TurnLevel().examples(DIALOGUE)
    assert first.dialogue_id == "d1"
    assert first.segments == (
        Segment("User: a cheap place\n", False),
        Segment("Belief State:", False),
        Segment(" Restaurant(pricerange=cheap)\n", True),
        Segment("Database: restaurant 2 found\n", False),
        Segment("Actions:", False),
        Segment(" request(area)\n", True),
        Segment("Response:", False),
        Segment(" Which area?\n", True),
    )


def test_a_turn_with_an_unknown_state_gives_no_example_and_stays_in_the_history() -> None:
    examples = TurnLevel().examples(DIALOGUE)
    assert len(examples) == 3
    assert examples[1].text == (
        "User: a cheap place\n"
        "System: Which area?\n"
        "User: where is it\n"
        "System: I do not know.\n"
        "User: in the north\n"
        "Belief State: Restaurant(area=north, pricerange=cheap)\n"
        "Database: \n"
        "Actions: \n"
        "Response: Golden Wok.\n"
    )


def test_an_empty_state_is_learnt_and_a_missing_response_ends_the_example() -> None:
    last = TurnLevel().examples(DIALOGUE)[-1]
    assert last.segments[-3:] == (
        Segment("User: thanks, bye\n", False),
        Segment("Belief State:", False),
        Segment(" None\n", True),
    )


def test_a_system_that_speaks_first_is_part_of_the_history() -> None:
    example, *_ = TurnLevel().examples(Dialogue("d2", DIALOGUE.turns[:1], opening="Hello, how can I help?"))
    assert example.segments[:2] == (
        Segment("System: Hello, how can I help?\n", False),
        Segment("User: a cheap place\n", False),
    )


def test_segments_end_where_tokens_may_not_straddle() -> None:
    for example in TurnLevel().examples(DIALOGUE):
        assert [segment.text for segment in example.segments] == pieces(example.text)


def test_a_dialogue_without_any_known_state_gives_nothing() -> None:
    assert TurnLevel().examples(Dialogue("d3", (Turn("hi", None, response="hello"),))) == ()
