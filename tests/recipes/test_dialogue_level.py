"""Dialogue-level examples, held against text written out by hand and against the states of real corpora."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from hushbot.corpora import load
from hushbot.prompts import STATE_MARKER, apply_changes, pieces, read_changes, state_line
from hushbot.recipes.dialogue_level import DialogueLevel
from hushbot.types import Dialogue, DialogueState, Example, Segment, SlotValue, Turn


def state(**slots: str) -> DialogueState:
    return frozenset(SlotValue("restaurant", slot, value) for slot, value in slots.items())


DIALOGUE = Dialogue(
    "d1",
    (
        Turn("a cheap place,  thai", state(price="cheap", food="thai"), "2 found", "request(area)", "Which  area?"),
        Turn("north, make it dear", state(price="dear", food="thai", area="north"), "1 found", "", "Golden Wok."),
        Turn("any food, in the south", state(price="dear", area="south"), "", "nooffer()", "Nothing there."),
    ),
)


def state_texts(examples: Sequence[Example]) -> list[str]:
    """Return the supervised state texts in their order."""
    segments = [segment for example in examples for segment in example.segments]
    return [text.text for marker, text in pairwise(segments) if marker == Segment(STATE_MARKER, False)]


def accumulate(examples: Sequence[Example]) -> list[DialogueState]:
    states: list[DialogueState] = []
    for text in state_texts(examples):
        parsed = read_changes(text)
        assert parsed.changes is not None
        assert parsed.is_complete
        states.append(apply_changes(states[-1] if states else frozenset(), parsed.changes))
    return states


def test_a_dialogue_is_one_text_in_which_each_turn_states_what_it_changed() -> None:
    (example,) = DialogueLevel().examples(DIALOGUE)
    assert example.dialogue_id == "d1"
    assert example.text == (
        "User: a cheap place, thai\n"
        "Belief State: Restaurant(food=thai, price=cheap)\n"
        "Database: 2 found\n"
        "Actions: request(area)\n"
        "Response: Which area?\n"
        "User: north, make it dear\n"
        "Belief State: Restaurant(area=north, price=dear)\n"
        "Database: 1 found\n"
        "Actions: \n"
        "Response: Golden Wok.\n"
        "User: any food, in the south\n"
        "Belief State: Restaurant(area=south, food=)\n"
        "Database: \n"
        "Actions: nooffer()\n"
        "Response: Nothing there.\n"
    )


def test_the_loss_is_on_changes_actions_and_responses_only() -> None:
    (example,) = DialogueLevel().examples(DIALOGUE)
    assert [segment.text for segment in example.segments if segment.supervised] == [
        " Restaurant(food=thai, price=cheap)\n",
        " request(area)\n",
        " Which area?\n",
        " Restaurant(area=north, price=dear)\n",
        " \n",
        " Golden Wok.\n",
        " Restaurant(area=south, food=)\n",
        " nooffer()\n",
        " Nothing there.\n",
    ]


def test_a_turn_that_changes_nothing_learns_none() -> None:
    same = state(area="north")
    dialogue = Dialogue("d", (Turn("north", same, response="ok"), Turn("thanks", same, response="bye")))
    assert state_texts(DialogueLevel().examples(dialogue)) == [" Restaurant(area=north)\n", " None\n"]


def test_an_unknown_state_leaves_two_utterances_and_the_next_change_spans_it() -> None:
    dialogue = Dialogue(
        "d",
        (
            Turn("cheap", state(price="cheap"), response="Where?"),
            Turn("you say", None, "2 found", "inform()", "North  or south?"),
            Turn("south", state(price="cheap", area="south"), response=None),
        ),
    )
    (example,) = DialogueLevel().examples(dialogue)
    assert example.segments[-5:] == (
        Segment("User: you say\n", False),
        Segment("System: North or south?\n", False),
        Segment("User: south\n", False),
        Segment("Belief State:", False),
        Segment(" Restaurant(area=south)\n", True),
    )


def test_a_turn_without_a_response_ends_after_its_state_and_the_dialogue_goes_on() -> None:
    dialogue = Dialogue(
        "d", (Turn("cheap", state(price="cheap"), "2 found", "inform()", None), Turn("hello?", None, response=None))
    )
    (example,) = DialogueLevel().examples(dialogue)
    assert example.text == "User: cheap\nBelief State: Restaurant(price=cheap)\nUser: hello?\n"


def test_the_opening_stands_first_and_a_wordless_user_leaves_no_line() -> None:
    dialogue = Dialogue("d", (Turn(" ", state(), response="Hi."),), opening="How can\nI help?")
    (example,) = DialogueLevel().examples(dialogue)
    assert example.text == ("System: How can I help?\nBelief State: None\nDatabase: \nActions: \nResponse: Hi.\n")


def test_a_dialogue_without_any_known_state_gives_nothing() -> None:
    assert DialogueLevel().examples(Dialogue("d", (Turn("hi", None, response="hello"),))) == ()
    assert DialogueLevel().examples(Dialogue("d", ())) == ()


def assert_changes_tell_the_states(dialogues: Sequence[Dialogue]) -> None:
    """Check every dialogue's accumulated changes, where its segments end, and how much shorter its states are."""
    n_told = n_whole = 0
    for dialogue in dialogues:
        examples = DialogueLevel().examples(dialogue)
        known = [turn.state for turn in dialogue.turns if turn.state is not None]
        assert accumulate(examples) == known
        assert len(examples) == bool(known)
        for example in examples:
            assert [segment.text for segment in example.segments] == pieces(example.text)
        n_told += sum(map(len, state_texts(examples)))
        n_whole += sum(len(state_line(state)) for state in known)
    assert dialogues
    assert n_told < n_whole / 2


@pytest.mark.parametrize("half", ["private", "public"])
def test_accumulated_changes_are_the_states_of_the_bundled_corpus(half: str) -> None:
    assert_changes_tell_the_states(load("bookings", half=half).dialogues)


@pytest.mark.shared
@pytest.mark.parametrize("part", ["val", "test"])
def test_accumulated_changes_are_the_states_of_multiwoz(part: str, shared_dir: Path) -> None:
    dialogues = load("multiwoz21", path=shared_dir / f"data/multiwoz21/{part}.json.zip").dialogues
    assert len(dialogues) > 900
    assert_changes_tell_the_states(dialogues)


def test_a_value_of_the_first_turn_stands_in_one_state_text_however_many_turns_follow() -> None:
    first = state(name="golden wok")
    turns = (Turn("golden wok", first, response="ok"), *(Turn("and?", first, response="yes") for _ in range(9)))
    texts = state_texts(DialogueLevel().examples(Dialogue("d", turns)))
    assert sum("golden wok" in text for text in texts) == 1
    assert len(texts) == 10
