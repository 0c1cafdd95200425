from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hushbot.errors import ConfigError, DataError
from hushbot.storage import (
    differences,
    float_leaves,
    plain_json,
    read_json,
    remove_scratch,
    without_keys,
    write_atomically,
)


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


HALF_WAY = """
import os, sys, time
from pathlib import Path
from hushbot.storage import write_atomically
os.fsync = lambda _: (print("half way", flush=True), time.sleep(60))
write_atomically(Path(sys.argv[1]), b"new")
"""


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_atomically(path, b"old")
    theirs = [tmp_path / name for name in (".lock", ".notes.tmp", ".report.json.markdown", "mine.12345678.tmp")]
    for file in theirs:
        file.write_text("theirs")
    writer = subprocess.Popen([sys.executable, "-c", HALF_WAY, str(path)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half way\n"
        remove_scratch(tmp_path)
        (scratch,) = set(tmp_path.iterdir()) - {path, *theirs}
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert scratch.exists()
    remove_scratch(tmp_path)
    assert set(tmp_path.iterdir()) == {path, *theirs}
    assert path.read_bytes() == b"old"


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
