"""Nested columns to rows, on values that a reader can check."""

from __future__ import annotations

from typing import Any

import pytest

from hushbot.corpora.columns import records, row_form, straighten_acts, straighten_spans
from hushbot.errors import DataError


def test_records_from_columns_and_from_records() -> None:
    expected = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert records({"a": [1, 2], "b": ["x", "y"]}, "t") == expected
    assert records(expected, "t") == expected
    assert records({}, "t") == []
    assert records({"a": []}, "t") == []


@pytest.mark.parametrize("value", [None, "x", [1], {"a": 1}, {"a": [1], "b": []}])
def test_what_is_no_list_of_records_is_an_error(value: object) -> None:
    with pytest.raises(DataError, match="turns"):
        records(value, "turns")


def test_unequal_columns_are_never_cut_to_the_shorter() -> None:
    with pytest.raises(DataError, match=r"unequal length \{'a': 2, 'b': 1\}"):
        records({"a": [1, 2], "b": [1]}, "turns")


def sgd_frame(intent: str, names: list[str], values: list[list[str]], **more: Any) -> dict[str, Any]:
    state = {"active_intent": intent, "slot_values": {"slot_name": names, "slot_value_list": values}}
    return {"service": "Hotels_1", "state": state, **more}


def test_sgd_frames() -> None:
    call = {"method": "Find", "parameters": {"parameter_slot_name": [], "parameter_canonical_value": []}}
    result = {"service_slot_name": ["city"], "service_canonical_value": ["Oakham"]}
    system = sgd_frame("", [], [], service_call=call, service_results={"service_results_list": [result]})
    system["actions"] = {"act": [11, 4], "slot": ["city", ""], "values": [["Oakham"], []]}
    user = sgd_frame("NONE", ["city"], [["Oakham", "oakham"]], service_call={"method": "", "parameters": {}})
    frames = [{key: [value] for key, value in frame.items()} for frame in (user, system)]
    found = row_form({"turns": {"speaker": [0, 1], "utterance": ["a", "b"], "frames": frames}})
    first, second = (turn["frames"][0] for turn in found["turns"])
    assert [turn["speaker"] for turn in found["turns"]] == ["USER", "SYSTEM"]
    assert first["state"]["slot_values"] == {"city": ["Oakham", "oakham"]}
    assert "service_call" not in first
    assert "state" not in second  # an empty intent stands for a missing state
    assert [action["act"] for action in second["actions"]] == ["OFFER", "INFORM"]
    assert second["service_results"] == [{"city": "Oakham"}]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_class_index_out_of_range_is_an_error(index: int) -> None:
    with pytest.raises(DataError, match="speaker is class"):
        row_form({"turns": [{"speaker": index, "utterance": "x", "frames": []}]})


def acts(*pairs: list[str]) -> dict[str, Any]:
    return {"turns": [{"frames": [], "dialog_act": {"Hotel-Inform": [list(pair) for pair in pairs]}}]}


def test_reversed_acts_are_put_in_order_by_vote() -> None:
    rows = [acts(["Elm Inn", "name"], ["name", "name"], ["01223", "phone"])]
    assert straighten_acts(rows)
    assert rows == [acts(["name", "Elm Inn"], ["name", "name"], ["phone", "01223"])]
    assert not straighten_acts(rows)
    assert rows == [acts(["name", "Elm Inn"], ["name", "name"], ["phone", "01223"])]
    assert not straighten_acts([acts(["none", "none"])])


def spans(*places: tuple[Any, Any]) -> dict[str, Any]:
    marked = [{"start": start, "exclusive_end": end} for start, end in places]
    return {"turns": [{"frames": [{"slots": marked}]}]}


def test_spans_that_end_before_they_start_are_put_in_order() -> None:
    rows = [spans((4, 0), (0, 4), (None, 2)), spans((2, 2))]
    assert straighten_spans(rows)
    assert rows == [spans((0, 4), (0, 4), (None, 2)), spans((2, 2))]
    assert not straighten_spans(rows)


def test_copied_values_have_no_place() -> None:
    columns = {
        "slot": ["a", "b", "c"],
        "value": ["x", "", "z"],
        "start": [0, 3, -1],
        "exclusive_end": [1, 4, -1],
        "copy_from": ["", "d", ""],
        "copy_from_value": [[], ["y"], []],
    }
    frame = {"service": "hotel", "slots": columns}
    found = row_form({"turns": [{"speaker": "USER", "utterance": "x", "frames": [frame]}]})
    marked = [{"slot": "a", "value": "x", "start": 0, "exclusive_end": 1}, {"slot": "b"}, {"slot": "c"}]
    assert found["turns"][0]["frames"][0]["slots"] == marked
