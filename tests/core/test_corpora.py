"""`load`: names, recognised paths, and options that are checked before anything is read."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hushbot import corpora
from hushbot.corpora.recognise import recognise
from hushbot.errors import ConfigError, DataError, HushbotError

FRAMED = [{"dialogue_id": "a", "services": [], "turns": [{"speaker": "USER", "utterance": "hi", "frames": []}]}]
DELTA = [{"dialogue_id": 1, "service": ["leave"], "speaker": [1], "utterance": ["hi"], "state": [{}]}]
UNIFIED = [
    {
        "dialogue_id": "a",
        "data_split": "train",
        "original_id": 0,
        "turns": [{"speaker": "user", "utterance": "hi", "utt_idx": 0, "state": {"hotel": {"area": "north"}}}],
    }
]
ORIGINAL = {
    "A.json": {
        "goal": {},
        "log": [
            {"text": "hi", "metadata": {}},
            {"text": "hello", "metadata": {"hotel": {"semi": {"area": "north"}, "book": {"booked": []}}}},
        ],
    }
}


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data/dialogues.json", json.dumps(content))
    else:
        path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("dialogues_001.json", FRAMED, "schema_guided"),
        ("train/dialogues_001.json", FRAMED, "schema_guided"),
        ("any.json", FRAMED, "schema_guided"),
        ("any.json", DELTA, "hr_multiwoz"),
        ("any.json", UNIFIED, "unified"),
        ("dialogues.json", UNIFIED, "unified"),
        ("data.zip", UNIFIED, "unified"),
        ("data.json", ORIGINAL, "multiwoz21"),
        ("any.json", ORIGINAL, "multiwoz21"),
    ],
)
def test_formats_are_recognised_in_folders_and_files(tmp_path: Path, file: str, content: Any, expected: str) -> None:
    path = write(tmp_path / file, content)
    assert recognise(tmp_path)[0] == expected
    assert recognise(path) == (expected, path)


@pytest.mark.parametrize("content", [[], {}, "text", [1], [{"text": "x"}], {"a": {"b": 1}}])
def test_other_content_is_not_guessed(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ConfigError, match="format not recognised"):
        recognise(write(tmp_path / "any.json", content))


def test_a_folder_of_no_known_names_must_hold_one_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds 0 "):
        corpora.load(tmp_path)
    one = write(tmp_path / "any.json", DELTA)
    assert recognise(tmp_path) == ("hr_multiwoz", one)
    write(tmp_path / "other.json", DELTA)
    with pytest.raises(ConfigError, match="holds 2 "):
        corpora.load(tmp_path)


def test_load_by_name_and_by_path(tmp_path: Path) -> None:
    write(tmp_path / "dialogues_001.json", FRAMED)
    by_name = corpora.load("sgd", path=tmp_path)
    assert (by_name.name, [d.id for d in by_name.dialogues]) == ("sgd", ["a"])
    assert corpora.load("multiwoz22", path=tmp_path).name == "multiwoz 2.2"
    assert corpora.load(tmp_path).dialogues == by_name.dialogues == corpora.load(str(tmp_path)).dialogues
    assert corpora.load("hub", rows_or_id=FRAMED).dialogues == by_name.dialogues
    hr = corpora.load(write(tmp_path / "hr" / "hr.json", DELTA), on_error="skip")
    assert (hr.name, len(hr.dialogues)) == ("hr_multiwoz", 1)


def test_wrong_options_are_listed_at_once_with_those_accepted() -> None:
    with pytest.raises(ConfigError) as caught:
        corpora.load("sgd", pth="x", version=2)
    assert caught.value.problems == (
        "data.pth: sgd takes no such option; it takes path, on_error, splits",
        "data.version: sgd takes no such option; it takes path, on_error, splits",
        "data.path is missing: sgd needs it",
    )
    with pytest.raises(ConfigError, match=r"data\.version: multiwoz21 takes no such option"):
        corpora.load("multiwoz21", path="x", version="2.4")


def test_unknown_names_and_missing_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'sgdd' is neither a corpus .*multiwoz24.* nor an existing path"):
        corpora.load("sgdd")
    with pytest.raises(DataError, match="no such file or folder"):
        corpora.load("sgd", path=tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "content", "corpus_name"),
    [
        ("multiwoz20", ORIGINAL, "multiwoz 2.0"),
        ("multiwoz21", ORIGINAL, "multiwoz 2.1"),
        ("multiwoz24", ORIGINAL, "multiwoz 2.4"),
        ("multiwoz22", FRAMED, "multiwoz 2.2"),
        ("schema_guided", FRAMED, "schema_guided"),
        ("sgd", FRAMED, "sgd"),
        ("unified", UNIFIED, "unified"),
        ("hr_multiwoz", DELTA, "hr_multiwoz"),
    ],
)
def test_every_name_reaches_its_reader(name: str, content: Any, corpus_name: str, tmp_path: Path) -> None:
    found = corpora.load(name, path=write(tmp_path / "dialogues.json", content))
    assert (found.name, [turn.user for turn in found.dialogues[0].turns]) == (corpus_name, ["hi"])


def test_the_bundled_corpus_loads_and_splits() -> None:
    bundled = corpora.load("bookings")
    drawn = corpora.split(bundled, 0)
    assert len(drawn.members) == len(drawn.nonmembers) > 0
    assert bundled.database is not None


def test_importing_the_package_loads_no_reader_and_no_heavy_library() -> None:
    code = (
        "import sys, hushbot.corpora\n"
        "heavy = {'torch', 'numpy', 'datasets', 'pandas', 'transformers'} & sys.modules.keys()\n"
        "readers = {m for m in sys.modules if m.startswith('hushbot.corpora.')} & "
        "{f'hushbot.corpora.{r}' for r in ('hub', 'delta', 'multiwoz', 'frames', 'unified', 'bookings')}\n"
        "print(sorted(heavy), sorted(readers))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


@pytest.mark.shared
@pytest.mark.parametrize(
    ("where", "name", "n_dialogues"),
    [
        ("data/sgd/test", "schema_guided", 384),
        ("data/multiwoz22", "schema_guided", 5),
        ("data/hr_multiwoz", "hr_multiwoz", 550),
        ("data/unified/woz", "unified woz", 1200),
        ("data/multiwoz21/raw_examples", "multiwoz 2.1", 5),
    ],
)
def test_real_packs_are_recognised(shared_dir: Path, where: str, name: str, n_dialogues: int) -> None:
    found = corpora.load(shared_dir / where)
    assert (found.name.startswith(name), len(found.dialogues)) == (True, n_dialogues)


EMPTY: dict[str, tuple[str, str, str]] = {
    # reader, file, content
    "unified": ("unified", "dialogues.json", "[]"),
    "unified without a user": (
        "unified",
        "dialogues.json",
        json.dumps([{"dialogue_id": "a", "turns": [{"speaker": "system", "utterance": "hello"}]}]),
    ),
    "multiwoz20": ("multiwoz20", "data.json", "{}"),
    "multiwoz21": ("multiwoz21", "data.json", "{}"),
    "multiwoz24": ("multiwoz24", "val.json", "{}"),
    "multiwoz22": ("multiwoz22", "dialogues_001.json", "[]"),
    "sgd": ("sgd", "dialogues_001.json", "[]"),
    "schema_guided": ("schema_guided", "dialogues_001.json", "[]"),
    "hr_multiwoz": ("hr_multiwoz", "hr.json", "[]"),
}


@pytest.mark.parametrize("case", EMPTY)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_corpus_without_dialogues_is_an_error_that_names_it(case: str, on_error: str, tmp_path: Path) -> None:
    reader, name, content = EMPTY[case]
    (tmp_path / name).write_text(content, encoding="utf-8")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match=str(path)):
            corpora.load(reader, path=path, on_error=on_error)


@pytest.mark.parametrize("rows", [[], {}, {"train": []}, {"train": [], "test": []}])
def test_no_rows_are_an_error(rows: object) -> None:
    with pytest.raises(DataError, match="no usable dialogue"):
        corpora.load("hub", rows_or_id=rows)


def test_a_part_without_dialogues_can_be_read_and_not_be_split(tmp_path: Path) -> None:
    """MultiWOZ's list files may leave a part nothing, which is no fault of the files."""
    write(tmp_path / "data.json", ORIGINAL)
    (tmp_path / "valListFile.txt").write_text("A.json", encoding="utf-8")
    (tmp_path / "testListFile.txt").write_text("", encoding="utf-8")
    corpus = corpora.load("multiwoz21", path=tmp_path, parts=["train"])
    assert corpus.dialogues == ()
    with pytest.raises(HushbotError):
        corpora.split(corpus, seed=0)


def test_every_reader_of_files_was_given_nothing() -> None:
    from hushbot.corpora import _READERS

    made = {"bookings", "medical_records", "hub"}  # bundled, invented, and above
    assert {reader for reader, _, _ in EMPTY.values()} == _READERS.keys() - made
