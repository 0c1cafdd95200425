"""Answers on disk: whole, private, never wrong."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hushbot.errors import DataError
from hushbot.targets.answer_store import FILE_NAME, AnswerStore

A, B = b"a" * 32, b"b" * 32


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def damage(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / FILE_NAME) as connection:
        connection.execute(statement)
    connection.close()


def test_what_was_put_is_there_in_another_process_too(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "cache")
    store.put({A: b"one", B: b""})
    assert store.get([A, B, b"c", A]) == {A: b"one", B: b""}
    store.close()
    assert AnswerStore(tmp_path / "cache").get([B]) == {B: b""}


def test_more_keys_than_one_statement_takes(tmp_path: Path) -> None:
    answers = {i.to_bytes(32, "big"): str(i).encode() for i in range(1203)}
    store = AnswerStore(tmp_path)
    store.put(answers)
    assert store.get(list(answers)) == answers


def test_the_first_answer_stays(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.put({A: b"first"})
    store.put({A: b"second", B: b"other"})
    assert store.get([A, B]) == {A: b"first", B: b"other"}


def test_nobody_else_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    (folder / FILE_NAME).touch(0o644)
    store = AnswerStore(folder)
    store.put({A: b"one"})
    files = sorted(folder.iterdir())
    assert mode(folder) == 0o700
    assert len(files) > 1  # the log of what was written last lies beside the file
    assert {mode(path) for path in files} == {0o600}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE answers SET payload = x'00' WHERE key = x'%s'",
        "UPDATE answers SET payload = 'text' WHERE key = x'%s'",
        "UPDATE answers SET digest = x'00' WHERE key = x'%s'",
        "UPDATE answers SET payload = (SELECT payload FROM answers WHERE payload = x'74776f'), "
        "digest = (SELECT digest FROM answers WHERE payload = x'74776f') WHERE key = x'%s'",
    ],
    ids=["bytes", "type", "digest", "another entry's"],
)
def test_a_damaged_entry_is_dropped_with_a_warning_and_never_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    store = AnswerStore(tmp_path)
    store.put({A: b"one", B: b"two"})
    store.close()
    damage(tmp_path, statement % A.hex())
    store = AnswerStore(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert store.get([A, B]) == {B: b"two"}
    assert "1 damaged entries are dropped" in caplog.text
    caplog.clear()
    store.put({A: b"again"})
    assert store.get([A]) == {A: b"again"}
    assert caplog.text == ""


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 4000])
def test_a_file_that_is_none_is_named_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{FILE_NAME} cannot be used.*delete it"):
        AnswerStore(tmp_path)
    assert path.read_bytes() == content


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    AnswerStore(tmp_path).close()
    damage(tmp_path, "PRAGMA user_version=99")
    with pytest.raises(DataError, match="has format 99, this version writes 1; delete it"):
        AnswerStore(tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from hushbot.targets.answer_store import AnswerStore

store = AnswerStore(Path(sys.argv[1]))
store.put({b"%03d" % i: b"kept" for i in range(100)})
rows = store._connection.executemany

class Dying:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name): return getattr(self.inner, name)
    def executemany(self, statement, given):
        self.inner.executemany(statement, given[:50])
        os.kill(os.getpid(), signal.SIGKILL)

store._connection = Dying(store._connection)
store.put({b"%03d" % i: b"lost" for i in range(100, 200)})
"""


def test_kill_9_keeps_all_of_a_call_or_none_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, env=dict(os.environ), capture_output=True, check=False, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    found = AnswerStore(tmp_path).get([b"%03d" % i for i in range(200)])
    assert found == {b"%03d" % i: b"kept" for i in range(100)}


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.put({b"kept": b"mine"})
    store._connection.execute("PRAGMA max_page_count=8")  # as much as the disk holds
    many = {bytes([i]) * 32: b"x" * 5000 for i in range(60)}
    with pytest.raises(DataError, match=rf"{store.path} cannot be used: database or disk is full; make room"):
        store.put(many)
    assert store.get([b"kept", *many]) == {b"kept": b"mine"}  # all of a call, or none of it
    store._connection.execute("PRAGMA max_page_count=100000")
    store.put(many)
    assert store.get([b"kept", *many]) == {b"kept": b"mine"} | many
    store.close()
