from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from hushbot.errors import ConfigError, DataError
from hushbot.storage import differences, float_leaves, plain_json, read_json, without_keys, write_atomically


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_differences_name_the_key_and_both_values() -> None:
    found = {"a": {"b": 1, "c": [1, 2]}, "gone": None, "same": "x"}
    wanted = {"a": {"b": True, "c": [1, 3]}, "same": "x", "long": "y" * 100}
    assert list(differences(found, wanted)) == [
        "a.b is 1 there and True now",
        "a.c is [1, 2] there and [1, 3] now",
        "gone is None there and absent now",
        f"long is absent there and '{'y' * 56}... now",
    ]
    assert list(differences(found, found)) == []


def test_plain_json_turns_tuples_into_lists_and_refuses_what_json_lacks() -> None:
    assert plain_json({"a": (1, 2.5)}, "this") == {"a": [1, 2.5]}
    with pytest.raises(ConfigError, match="this cannot be stored"):
        plain_json({"a": math.nan}, "this")


@pytest.mark.parametrize("text", ["", "[1]", '{"a": Infinity}', '{"a":'])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "thing.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"thing\.json"):
        read_json(path)
    with pytest.raises(DataError, match="does not exist"):
        read_json(tmp_path / "nothing.json")


def test_floats_are_found_at_any_depth() -> None:
    value = {"a": [1.0, {"b": math.inf}], "c": 2, "d": "3.0"}
    assert list(float_leaves(value)) == [("a.0", 1.0), ("a.1.b", math.inf)]


def test_keys_are_left_out_at_any_depth_and_what_is_not_there_is_no_error() -> None:
    value = {"a": 1, "b": {"c": {"d": 2, "e": 3}, "a": 4}, "b.c": 5, "f": 6}
    assert without_keys(value, {"a", "b.c.d", "b.x", "f.g", "no"}) == {"b": {"c": {"e": 3}, "a": 4}, "b.c": 5, "f": 6}
    assert value["b"] == {"c": {"d": 2, "e": 3}, "a": 4}
