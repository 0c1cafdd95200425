"""Incremental states: accumulation by hand, the case file, the published counts of HR-MultiWOZ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbot.corpora.delta import load_delta, read_delta_dialogue
from hushbot.corpora.files import read_json
from hushbot.errors import DataError, HushbotError
from hushbot.prompts import parse_state, render_state
from hushbot.types import Dialogue, SlotValue

RAW: dict[str, Any] = {
    "dialogue_id": 1,
    "service": ["leave"],
    "speaker": [0, 1, 0, 1],
    "utterance": [
        "HR Assistant: Who?",
        "Employee: Kim, from May 2nd.",
        "HR Assistant: Until?",
        "May 3rd, I mean.",
    ],
    "state": [{"name": "Kim", "start": "May 2nd", "note": ""}, {"start": "May 3rd"}],
}


def listed(found: Dialogue) -> list[list[list[Any]]]:
    return [sorted([t.domain, t.slot, list(t.values)] for t in turn.state or ()) for turn in found.turns]


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_states_accumulate_and_the_later_value_wins() -> None:
    found = read_delta_dialogue(RAW)
    assert (found.id, found.domains, found.opening) == ("1", ("leave",), "Who?")
    assert [(turn.user, turn.response) for turn in found.turns] == [
        ("Kim, from May 2nd.", "Until?"),
        ("May 3rd, I mean.", None),
    ]
    assert listed(found) == [
        [["leave", "name", ["Kim"]], ["leave", "start", ["May 2nd"]]],
        [["leave", "name", ["Kim"]], ["leave", "start", ["May 3rd"]]],
    ]


def test_only_a_role_is_cut_off() -> None:
    texts = ["Plan A: one", "Employee: Plan B: two", "x", "HR Assistant: swapped"]
    found = read_delta_dialogue({**RAW, "utterance": texts})
    assert found.opening == "Plan A: one"
    assert [turn.user for turn in found.turns] == ["Plan B: two", "swapped"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"service": ["a", "b"]}, "exactly one"),
        ({"speaker": [0, 1, 0, 2]}, "0 .system. and 1"),
        ({"speaker": [0, 1, 0]}, "3 speakers, 4 utterances and 2 states"),
        ({"state": [{}]}, "1 states do not fit"),
        ({"state": [{"name": 7}, {}]}, "value of name is a number, not a string"),
        ({"utterance": None}, "utterance is None"),
        ({"dialogue_id": ""}, "dialogue_id is empty"),
    ],
)
def test_malformed_records_say_how(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "hr.json", [RAW, {**RAW, "dialogue_id": 2, **change}])
    with pytest.raises(DataError, match=message):
        load_delta(path)
    assert [d.id for d in load_delta(path, on_error="skip").dialogues] == ["1"]


def test_repeated_ids_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="twice"):
        load_delta(write(tmp_path / "hr.json", [RAW, RAW]))
    with pytest.raises(DataError, match="no usable dialogue"):
        load_delta(write(tmp_path / "hr.json", []))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
record = st.fixed_dictionaries(
    {},
    optional={
        "dialogue_id": anything,
        "service": st.just(["a"]) | anything,
        "speaker": st.lists(st.integers(0, 1), max_size=3) | anything,
        "utterance": st.lists(st.text(max_size=3), max_size=3) | anything,
        "state": st.lists(st.dictionaries(st.text(max_size=2), st.text(max_size=2)), max_size=2) | anything,
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(record, max_size=2) | anything)
def test_arbitrary_json_raises_our_errors_only(tmp_path: Path, content: Any) -> None:
    try:
        corpus = load_delta(write(tmp_path / "hr.json", content))
    except HushbotError:
        return
    for turn in [turn for found in corpus.dialogues for turn in found.turns]:
        assert turn.state is not None
        assert parse_state(render_state(turn.state)) == turn.state


@pytest.mark.shared
def test_case_file(shared_dir: Path) -> None:
    corpus = load_delta(shared_dir / "cases" / "13_delta_states_system_first.json")
    expected = read_json(shared_dir / "cases" / "13_delta_states_system_first.expected.json")
    assert {d.id: listed(d) for d in corpus.dialogues} == {
        name: case["accumulated_user_turns"] for name, case in expected.items()
    }
    assert corpus.dialogues[0].opening == "Who is asking, and from when?"
    said = " ".join(turn.user for turn in corpus.dialogues[0].turns)
    assert all(identifier in said for identifier in expected["1"]["identifiers"])


@pytest.mark.shared
def test_hr_multiwoz_counts_and_round_trips(shared_dir: Path) -> None:
    facts = read_json(shared_dir / "data" / "facts.json")["hr_multiwoz"]
    path = shared_dir / "data" / "hr_multiwoz" / "hr_multiwoz.json.gz"
    corpus = load_delta(path)
    assert len(corpus.dialogues) == facts["dialogues"]
    said = [d.opening for d in corpus.dialogues] + [
        text for d in corpus.dialogues for turn in d.turns for text in (turn.user, turn.response)
    ]
    assert len([text for text in said if text is not None]) == facts["utterances"]
    values = [value for raw in read_json(path) for delta in raw["state"] for value in delta.values()]
    assert len(values) == facts["delta_values"]
    states = {turn.state for d in corpus.dialogues for turn in d.turns if turn.state is not None}
    assert {t.value for state in states for t in state} <= {value for value in values if value}
    for value in {value for value in values if value}:
        alone = frozenset([SlotValue("leave", "note", value)])
        assert parse_state(render_state(alone)) == alone
    for final in {d.final_state for d in corpus.dialogues}:
        assert final is not None
        assert parse_state(render_state(final)) == final
