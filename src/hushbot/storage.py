"""Plain files, safely: written whole or not at all, read with errors that name the file, compared key by key.

Guarantees: after a crash at any moment a file holds its old content or its new one, never a part of either;
nothing that JSON lacks (NaN, infinity, half a surrogate pair) is accepted in either direction.

What voids it: file systems that do not honour fsync or an atomic rename.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError, DataError

_MISSING = object()
_SCRATCH = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
"""What `write_atomically` calls a file that is not yet in its place."""
_MOST_DIGITS = 300
"""Of a whole number: more than that is no count, and no float holds it."""


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place whole or not at all, surviving a crash at any moment."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            with contextlib.suppress(OSError):  # without locks it is never taken for a dead writer's
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
            os.chmod(name, 0o644)  # a temporary file is private by default, which would hide the report from the group
            os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_scratch(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder; what somebody is writing just now stays."""
    for path in folder.glob(".*.tmp"):
        if not _SCRATCH.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError), path.open("r+b") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def plain_json(value: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy in JSON's own types, so that what is compared with a file is what the file can hold.

    Raises:
        ConfigError: The value holds something that JSON cannot.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()  # refuses half a surrogate pair, which no file can hold
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{what} cannot be stored: {error}; use plain numbers, texts, lists and mappings") from error
    return plain


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        DataError: There is no such file, or it holds something else.
    """

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON number")

    def whole_number(digits: str) -> int:
        if len(digits) > _MOST_DIGITS:
            raise ValueError(f"a number of {len(digits)} digits")
        return int(digits)

    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse, parse_int=whole_number)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; the run has not come that far") from error
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}; restore it or start a new run") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object; restore it or start a new run")
    return content


def read_yaml(path: Path) -> Any:
    """Return what a YAML file holds, as far as it is plain data.

    Aliases are refused: a few lines of them stand for more than any memory holds, or for something that holds itself. A
    key that stands twice is refused, too: the last one would silently win.

    Raises:
        DataError: The file cannot be read, or is no plain YAML.
    """
    import yaml  # not at the top: most readers of this module need none

    from hushbot.plain_yaml import PlainLoader

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=PlainLoader)  # a SafeLoader
    except (OSError, ValueError, ArithmeticError, LookupError, RecursionError, yaml.YAMLError) as error:
        # PyYAML leaves it to Python to refuse numbers and dates that are none.
        raise DataError(f"{path} cannot be read: {error}; restore it or write it anew") from error


def differences(found: Any, wanted: Any, key: str = "") -> Iterator[str]:
    """Say of each key in which two values differ what it is there and now; 1 and true differ."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for name in dict.fromkeys((*found, *wanted)):
            inner = f"{key}.{name}" if key else str(name)
            yield from differences(found.get(name, _MISSING), wanted.get(name, _MISSING), inner)
    elif found != wanted or type(found) is not type(wanted):
        yield f"{key} is {_short(found)} there and {_short(wanted)} now"


def without_keys(config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return a mapping without some of its keys, which are dotted where they lie deeper (`recipe.dp_sgd.engine`)."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        if name in keys:
            continue
        inner = {key.partition(".")[2] for key in keys if key.startswith(f"{name}.")}
        kept[name] = without_keys(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def _short(value: Any) -> str:
    if value is _MISSING:
        return "absent"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def float_leaves(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Return every float inside a value with its dotted key."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from float_leaves(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for i, inner in enumerate(value):
            yield from float_leaves(inner, f"{key}.{i}")
    elif isinstance(value, float):
        yield key, value


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV file's text; None is an empty cell."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return sink.getvalue()
