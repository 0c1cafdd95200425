"""Rows of hub data sets: columns read as rows do, and an unreachable hub is an error that says what to do."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.corpora.files import read_json
from hushbot.corpora.frames import read_dialogue
from hushbot.corpora.hub import load_hub
from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.corpora.unified import load_unified
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.types import Dialogue, SlotValue, Span

ROW: dict[str, Any] = {
    "dialogue_id": "A.json",
    "services": ["hotel"],
    "turns": [
        {
            "turn_id": "0",
            "speaker": "USER",
            "utterance": "North.",
            "frames": [
                {
                    "service": "hotel",
                    "state": {"active_intent": "find", "slot_values": {"hotel-area": ["north", "the north"]}},
                    "slots": [{"slot": "hotel-area", "value": "north", "start": 0, "exclusive_end": 5}],
                }
            ],
        },
        {"turn_id": "1", "speaker": "SYSTEM", "utterance": "Elm Inn?", "frames": []},
    ],
}


def spans_in_columns(slots: list[dict[str, Any]], *, swap: bool) -> dict[str, Any]:
    """Write a frame's spans as multi_woz_v22 stores them: -1 where a value is copied from elsewhere."""
    start, end = ("exclusive_end", "start") if swap else ("start", "exclusive_end")
    return {
        "slot": [slot["slot"] for slot in slots],
        "value": ["" if "copy_from" in slot else slot["value"] for slot in slots],
        "start": [slot.get(start, -1) for slot in slots],
        "exclusive_end": [slot.get(end, -1) for slot in slots],
        "copy_from": [slot.get("copy_from", "") for slot in slots],
        "copy_from_value": [slot["value"] if "copy_from" in slot else [] for slot in slots],
    }


def to_columns(raw: dict[str, Any], *, swap_acts: bool = False, swap_spans: bool = False) -> dict[str, Any]:
    """Write a MultiWOZ 2.2 dialogue as multi_woz_v22 stores it; the acts of system turns say Elm Inn."""

    def frames(turn: dict[str, Any]) -> dict[str, Any]:
        states = []
        for frame in turn["frames"]:
            state = frame.get("state", {"active_intent": "", "slot_values": {}})
            values = {
                "slots_values_name": list(state["slot_values"]),
                "slots_values_list": list(state["slot_values"].values()),
            }
            states.append({"active_intent": state["active_intent"], "slots_values": values})
        spans = [spans_in_columns(frame.get("slots", []), swap=swap_spans) for frame in turn["frames"]]
        return {"service": [frame["service"] for frame in turn["frames"]], "state": states, "slots": spans}

    def acts(turn: dict[str, Any]) -> dict[str, Any]:
        if turn["speaker"] == "USER":
            return {"dialog_act": {"act_type": [], "act_slots": []}}
        slots = {"slot_name": ["name"], "slot_value": ["Elm Inn"]}
        if swap_acts:
            slots = {"slot_name": slots["slot_value"], "slot_value": slots["slot_name"]}
        return {"dialog_act": {"act_type": ["Hotel-Inform"], "act_slots": [slots]}}

    turns = {
        "turn_id": [turn.get("turn_id", str(i)) for i, turn in enumerate(raw["turns"])],
        "speaker": [0 if turn["speaker"] == "USER" else 1 for turn in raw["turns"]],
        "utterance": [turn["utterance"] for turn in raw["turns"]],
        "frames": [frames(turn) for turn in raw["turns"]],
        "dialogue_acts": [acts(turn) for turn in raw["turns"]],
    }
    return {"dialogue_id": raw["dialogue_id"], "services": raw["services"], "turns": turns}


def listed(found: Dialogue) -> list[list[list[Any]]]:
    return [sorted([t.domain, t.slot, list(t.values)] for t in turn.state or ()) for turn in found.turns]


def test_rows_and_columns_are_the_same_dialogue() -> None:
    acts = {"A.json": {"1": {"dialog_act": {"Hotel-Inform": [["name", "Elm Inn"]]}}}}
    expected = read_dialogue(ROW, acts=acts)
    assert listed(expected) == [[["hotel", "area", ["north", "the north"]]]]
    for swap_acts in (False, True):
        corpus = load_hub([to_columns(ROW, swap_acts=swap_acts)])
        assert corpus.dialogues == (expected,)
        assert bool(corpus.notes) == swap_acts
    assert load_hub([ROW]).dialogues == (read_dialogue(ROW, acts={}),)
    assert load_hub(ROW).dialogues == load_hub([ROW]).dialogues


def test_swapped_spans_are_put_in_order_and_others_are_only_checked() -> None:
    expected = (Span("hotel", "area", "north", 0, 5),)
    for swap in (False, True):
        corpus = load_hub([to_columns(ROW, swap_spans=swap)])
        assert corpus.dialogues[0].turns[0].user_spans == expected
        assert [note.startswith("start and end of spans were swapped") for note in corpus.notes] == [True] * swap
    row = copy.deepcopy(ROW)
    row["turns"][0]["frames"][0]["slots"] = [
        {"slot": "hotel-area", "copy_from": "attraction-area", "value": ["north"]},
        {"slot": "hotel-area", "value": "north", "start": 1, "exclusive_end": 6},
    ]
    for form in (row, to_columns(row)):
        corpus = load_hub([form])
        assert corpus.dialogues[0].turns[0].user_spans == ()
        assert corpus.notes == ("span of a value dropped, the text there is not the value (1): A turn 0",)


UNIFIED_ROW: dict[str, Any] = {
    "dataset": "toy",
    "data_split": "train",
    "dialogue_id": "toy-train-0",
    "domains": ["hotel"],
    "turns": [
        {
            "speaker": "user",
            "utterance": "In the north.",
            "state": {"hotel": {"area": "north|northern", "name": ""}},
            "dialogue_acts": {
                "non-categorical": [
                    {"intent": "inform", "domain": "hotel", "slot": "area", "value": "north", "start": 7, "end": 12}
                ]
            },
        },
        {"speaker": "system", "utterance": "Done.", "booked": {"hotel": [{"reference": "K7Q2"}]}},
    ],
}


def test_rows_of_convlab3_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.json"
    path.write_text(json.dumps([UNIFIED_ROW]))
    expected = load_unified(path).dialogues
    (turn,) = expected[0].turns
    assert listed(expected[0]) == [[["hotel", "area", ["north", "northern"]]]]
    assert turn.booked == (SlotValue("hotel", "reference", "K7Q2"),)
    assert turn.user_spans == (Span("hotel", "area", "north", 7, 12),)
    assert load_hub([UNIFIED_ROW]).dialogues == expected
    assert load_hub({"train": [UNIFIED_ROW]}).dialogues == expected
    by_row = load_hub([UNIFIED_ROW, ROW, to_columns({**ROW, "dialogue_id": "B"})]).dialogues
    assert by_row[0] == expected[0]
    assert [listed(found) for found in by_row[1:]] == [[[["hotel", "area", ["north", "the north"]]]]] * 2


def test_a_dataset_fills_missing_keys_with_none() -> None:
    datasets = pytest.importorskip("datasets")
    other = {**UNIFIED_ROW, "dialogue_id": "toy-train-1", "goal": {"message": "x"}}
    other["turns"] = [{"speaker": "user", "utterance": "Bye.", "state": {"taxi": {"to": "ely"}}}]
    data = datasets.Dataset.from_list([other, UNIFIED_ROW])
    assert data[1]["turns"][0]["state"]["taxi"] is None
    assert data[1]["goal"] is None
    found = load_hub(data)
    assert found.dialogues == load_hub([other, UNIFIED_ROW]).dialogues
    assert found.notes == ()


def test_frames_decide_even_where_a_split_is_named() -> None:
    assert load_hub([{**ROW, "data_split": "train"}]).dialogues == load_hub([ROW]).dialogues


def test_original_multiwoz_is_understood_as_an_object_and_as_rows(tmp_path: Path) -> None:
    log = [
        {"text": "to ely", "metadata": {}, "span_info": [["Train-Inform", "Dest", "ely", 1, 1]]},
        {"text": "ok", "metadata": {"train": {"semi": {"destination": "ely"}}}, "dialog_act": {}},
    ]
    raw: dict[str, Any] = {"A.json": {"goal": {"train": {"info": {}}}, "log": log}, "B.json": {"log": log[:1]}}
    path = tmp_path / "data.json"
    path.write_text(json.dumps(raw))
    expected = load_multiwoz(path)
    assert listed(expected.dialogues[0]) == [[["train", "destination", ["ely"]]]]
    assert expected.dialogues[0].turns[0].user_spans == (Span("train", "destination", "ely", 3, 6),)
    rows = [{"dialogue_id": name, **dialogue} for name, dialogue in raw.items()]
    for form in (raw, rows, {"train": raw}):
        assert load_hub(form).dialogues == expected.dialogues
    assert load_hub(raw).notes == expected.notes


def test_a_datasets_dataset_reads_like_its_rows() -> None:
    datasets = pytest.importorskip("datasets")
    rows = [to_columns(ROW), to_columns({**ROW, "dialogue_id": "B.json"})]
    expected = load_hub(rows).dialogues
    data = datasets.Dataset.from_list(rows)
    assert load_hub(data).dialogues == expected
    both = datasets.DatasetDict({"train": data, "test": data.select([0])})
    assert [d.id for d in load_hub(both).dialogues] == ["train/A", "train/B", "test/A"]
    assert [d.id for d in load_hub(both, split="test").dialogues] == ["A"]


def test_incremental_rows_are_understood_too() -> None:
    row = {
        "dialogue_id": 7,
        "service": ["leave"],
        "speaker": [1],
        "utterance": ["Kim"],
        "state": [{"name": "Kim"}],
    }
    assert listed(load_hub([row]).dialogues[0]) == [[["leave", "name", ["Kim"]]]]


def test_inputs_stay_as_they_were() -> None:
    in_rows = copy.deepcopy(ROW)
    in_rows["turns"][1]["dialog_act"] = {"Hotel-Inform": [["Elm Inn", "name"]]}
    for row in (to_columns(ROW, swap_acts=True), in_rows):
        before = copy.deepcopy(row)
        assert load_hub([row]).dialogues[0].turns[0].actions == "hotel-inform(name=Elm Inn)"
        assert row == before


@pytest.mark.parametrize(
    ("rows", "options", "error", "message"),
    [
        ([ROW], {"split": "train"}, ConfigError, "no splits"),
        ({"train": [ROW]}, {"split": "dev"}, ConfigError, "'train'"),
        ({"train": "text"}, {}, DataError, "neither rows"),
        (7, {}, DataError, "neither rows"),
        ([], {}, DataError, "no usable dialogue"),
        ([ROW, ROW], {}, DataError, "twice"),
        ([{"text": "x"}], {}, DataError, "no known kind"),
        (
            [{"dialogue_id": "A", "data_split": "train", "turns": [{"speaker": "bot"}]}],
            {},
            DataError,
            r"turn 0 is \*\*\*\(3\), not user",
        ),
        ({"A": {"log": [{"text": 5}]}, "B": 7}, {}, DataError, "2 malformed"),
    ],
)
def test_wrong_rows(rows: Any, options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        load_hub(rows, **options)


def test_malformed_rows_can_be_skipped() -> None:
    bad = to_columns({**ROW, "dialogue_id": "B"})
    bad["turns"]["speaker"].pop()
    corpus = load_hub([bad, ROW], on_error="skip")
    assert [d.id for d in corpus.dialogues] == ["A"]
    assert corpus.notes[0].startswith("skipped 1 dialogue: B")


def test_hub_ids_ask_for_whole_states_and_explain_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(path: str, name: str | None) -> list[dict[str, Any]]:
        asked.append((path, name))
        if path == "nowhere/data":
            raise ConnectionError("could not reach\nthe hub")
        return [ROW]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_hub("pfb30/multi_woz_v22").name == "pfb30/multi_woz_v22"
    notes = load_hub("pfb30/multi_woz_v22", config="v2.2_active_only").notes
    load_hub("someone/schema_guided_dstc8")
    load_hub("someone/else")
    assert asked == [
        ("pfb30/multi_woz_v22", "v2.2"),
        ("pfb30/multi_woz_v22", "v2.2_active_only"),
        ("someone/schema_guided_dstc8", "dialogues"),
        ("someone/else", None),
    ]
    assert "drops the state" in notes[0]
    with pytest.raises(DataError, match=r"nowhere/data: cannot be loaded .*could not reach\);.*data\.path"):
        load_hub("nowhere/data")


LOG_ROW: dict[str, Any] = {
    "dialogue_id": "A",
    "log": [{"text": "to ely", "span_info": [["Train-Inform", "Dest", "ely", 1, 1]]}, {"text": "ok", "metadata": {}}],
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def damaged_rows(draw: st.DrawFn) -> Any:
    """Return a good row in which one part, however deep, is replaced by anything."""
    row = copy.deepcopy(draw(st.sampled_from([ROW, to_columns(ROW), UNIFIED_ROW, LOG_ROW])))
    place: Any = row
    for _ in range(draw(st.integers(1, 8))):
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], (dict, list)) or draw(st.booleans()):
            place[key] = draw(anything)
            break
        place = place[key]
    return row


@settings(max_examples=200, deadline=None)
@given(st.lists(damaged_rows() | anything, max_size=2) | anything)
def test_arbitrary_rows_raise_our_errors_only(rows: Any) -> None:
    # A text would be a hub id, and asking the hub is not what is tested here.
    if isinstance(rows, str):
        return
    try:
        corpus = load_hub(rows)
    except HushbotError:
        return
    assert corpus.dialogues


@pytest.mark.shared
def test_case_file(shared_dir: Path) -> None:
    row = read_json(shared_dir / "cases" / "09_hf_columnar_mw22.json")
    expected = read_json(shared_dir / "cases" / "09_hf_columnar_mw22.expected.json")["CASE0009"]
    corpus = load_hub([row])
    (found,) = corpus.dialogues
    assert found.id == "CASE0009"
    assert listed(found) == expected["user_turns"]
    assert (found.opening, len(found.turns), found.turns[0].response) == ("", 1, "Blue Lantern?")
    assert [note.split(" were ")[1].split()[0] for note in corpus.notes] == ["reversed", "swapped"]
    spans = [[f"{span.domain}-{span.slot}", span.start, span.end] for span in found.turns[0].user_spans]
    assert spans == expected["spans"]
    assert found.turns[0].response_spans == ()


@pytest.mark.shared
def test_real_dialogues_in_columns_are_the_same(shared_dir: Path) -> None:
    raws = read_json(shared_dir / "data" / "multiwoz22" / "dialogues_5_examples.json")
    in_rows, in_columns = load_hub(raws), load_hub([to_columns(raw) for raw in raws])
    assert [listed(d) for d in in_rows.dialogues] == [listed(d) for d in in_columns.dialogues]
    assert in_rows.schema == in_columns.schema
    spans = [[(turn.user_spans, turn.response_spans) for turn in d.turns] for d in in_rows.dialogues]
    assert sum(map(len, itertools.chain(*itertools.chain(*spans)))) == 9
    swapped = load_hub([to_columns(raw, swap_spans=True) for raw in raws])
    for other in (in_columns, swapped):
        assert [[(turn.user_spans, turn.response_spans) for turn in d.turns] for d in other.dialogues] == spans


@pytest.mark.shared
@pytest.mark.parametrize("name", ["camrest", "multiwoz21", "sgd", "tm1", "woz"])
def test_real_rows_of_convlab3_read_as_their_file(shared_dir: Path, name: str) -> None:
    path = shared_dir / "data" / "unified" / "dummy" / f"{name}.dummy_data.json"
    expected = load_unified(path)
    found = load_hub(read_json(path))
    assert (found.dialogues, found.schema, found.notes) == (expected.dialogues, expected.schema, ())
