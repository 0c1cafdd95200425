"""Which format a folder or file of dialogues is in, by its names first and by its first dialogue second.

Guarantees: a format is named only if its own marks are there; anything else is a `ConfigError` that says how
to name the format. MultiWOZ 2.0, 2.1 and 2.4 look alike, so 2.1 is taken; name the version to be exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hushbot.corpora.files import find, members, read_json
from hushbot.corpora.schema_guided import PATTERNS
from hushbot.errors import ConfigError

_SCHEMA_GUIDED = (*PATTERNS, *(f"*/{pattern}" for pattern in PATTERNS))
_UNIFIED = ("data.zip", "dialogues.json", "data/dialogues.json")
_MULTIWOZ = ("*ListFile*", "data.json", "data.json.gz", "data.json.zip")
_FILES = ("*.json", "*.json.gz", "*.zip")


def recognise(path: Path) -> tuple[str, Path]:
    """Return the corpus name whose reader fits, and what to read: the path, or the only file in it.

    The name is `schema_guided`, `unified`, `multiwoz21` or `hr_multiwoz`.

    Raises:
        ConfigError: The format is not recognised.
        DataError: A file cannot be read.
    """
    if path.is_file():
        return _of_file(path), path
    for name, patterns in (
        ("schema_guided", _SCHEMA_GUIDED),
        ("unified", _UNIFIED),
        ("multiwoz21", _MULTIWOZ),
    ):
        if find(path, patterns):
            return name, path
    files = find(path, _FILES)
    if len(files) != 1:
        raise _unknown(path, f"it holds {len(files)} .json, .json.gz and .zip files of no known names, not one")
    return _of_file(files[0]), files[0]


def _of_file(path: Path) -> str:
    if path.suffix == ".zip" and any(name.endswith("dialogues.json") for name in members(path)):
        return "unified"
    content = read_json(path)
    if isinstance(content, dict):
        first = next(iter(content.values()), None)
        if isinstance(first, dict) and "log" in first:
            return "multiwoz21"
        raise _unknown(path, "it holds an object whose entries have no `log`")
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict):
        raise _unknown(path, "it holds no list of dialogues")
    return _of_dialogue(path, first)


def _of_dialogue(path: Path, first: Mapping[str, object]) -> str:
    if "turns" in first:
        return "unified" if "data_split" in first or "original_id" in first else "schema_guided"
    if {"speaker", "utterance", "state"} <= first.keys():
        return "hr_multiwoz"
    raise _unknown(path, f"its first dialogue has the keys {sorted(map(str, first))[:8]}")


def _unknown(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"data={str(path)!r}: format not recognised, {reason}; name it, such as data=sgd data.path={path}"
    )
