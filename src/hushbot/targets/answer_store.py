"""Answers on disk, each under a key that stands for the whole question: what survives when an audit is killed.

Guarantees: what `put` was given is there after the process was killed at any moment, all of one call or none of it; an
entry whose bytes are not those that were put is dropped with a warning and never handed out; the first answer under a
key stays. Nobody but the owner reads the file (0600, in a folder of mode 0700), since it holds what a bot said in the
clear; questions are not in it, only their hashes.

What voids it: network file systems without POSIX locks; a power failure may cost the last answers, never their truth.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hushbot.errors import DataError

FILE_NAME = "answers.sqlite"
_FORMAT = 1
_KEYS_AT_ONCE = 500
"""Fewer than the least number of parameters that an SQLite takes."""
_log = logging.getLogger(__name__)


class AnswerStore:
    """A file of answers.

    Args:
        folder: Where it lies; made if need be.

    Raises:
        DataError: What lies there is no such file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        # SQLite gives the files beside it the mode of this one, so it must be private before anything is in it.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        self.path.chmod(0o600)
        with self._naming_the_file():
            self._connection = sqlite3.connect(self.path, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._connection.close()
                raise

    def _open(self) -> None:
        found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, _FORMAT):
            raise DataError(f"{self.path} has format {found}, this version writes {_FORMAT}; delete it to ask again")
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")  # survives a killed process, if not a power failure
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, payload BLOB NOT NULL, digest BLOB NOT NULL)"
        )
        self._connection.execute(f"PRAGMA user_version={_FORMAT}")

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the answers that are there.

        Raises:
            DataError: The file cannot be read.
        """
        found: dict[bytes, bytes] = {}
        damaged: list[bytes] = []
        distinct = list(dict.fromkeys(keys))
        with self._naming_the_file():
            for start in range(0, len(distinct), _KEYS_AT_ONCE):
                asked = distinct[start : start + _KEYS_AT_ONCE]
                marks = ",".join("?" * len(asked))
                rows = self._connection.execute(
                    f"SELECT key, payload, digest FROM answers WHERE key IN ({marks})", asked
                )
                for key, payload, digest in rows:
                    if _is_whole(key, payload, digest):
                        found[key] = payload
                    else:
                        damaged.append(key)
            if damaged:
                self._drop(damaged)
        return found

    def put(self, answers: Mapping[bytes, bytes]) -> None:
        """Keep answers, all of them or none; what is there already stays.

        Raises:
            DataError: The file cannot be written.
        """
        rows = [(key, payload, _digest(key, payload)) for key, payload in answers.items()]
        with self._naming_the_file(), self._transaction():
            self._connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        self._connection.close()

    def _drop(self, keys: Sequence[bytes]) -> None:
        _log.warning("%s: %d damaged entries are dropped and asked for again", self.path, len(keys))
        with self._transaction():
            self._connection.executemany("DELETE FROM answers WHERE key = ?", [(key,) for key in keys])

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:  # on a full disk, SQLite has ended it already
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged file's own words may be no UTF-8
            is_full = "full" in str(error) or "disk I/O" in str(error)
            remedy = "make room, and" if is_full else "delete it, and"
            said = f"{self.path} cannot be used: {error}; {remedy} the same command asks the bot for what is missing"
            raise DataError(said) from error


def _digest(key: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(key + payload).digest()


def _is_whole(key: object, payload: object, digest: object) -> bool:
    return isinstance(key, bytes) and isinstance(payload, bytes) and _digest(key, payload) == digest
