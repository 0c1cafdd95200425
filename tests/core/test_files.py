"""Corpus files: what is wrong with one is a DataError that names it; malformed dialogues are collected."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hushbot.corpora import files
from hushbot.corpora.files import (
    FREE_BYTES,
    MOST_BRACKETS,
    MOST_BYTES,
    MOST_RATIO,
    Notes,
    Problems,
    find,
    locate,
    members,
    read_json,
    read_text,
    require,
)
from hushbot.errors import ConfigError, DataError


def zipped(path: Path, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def test_plain_gzip_and_zip_give_the_same(tmp_path: Path) -> None:
    data = {"a": ["café", 1, None]}
    text = json.dumps(data, ensure_ascii=False)
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    (tmp_path / "bom.json").write_text(text, encoding="utf-8-sig")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(text.encode()))
    zipped(tmp_path / "a.zip", {"folder/a.json": text, "readme": "not JSON"})
    for name in ("a.json", "bom.json", "a.json.gz", "a.zip"):
        assert read_json(tmp_path / name) == data, name
    assert read_json(tmp_path / "a.zip", "a.json") == data
    assert read_json(tmp_path / "a.zip", "folder/a.json") == data


def test_several_members_need_a_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "two.zip", {"a.json": "1", "b.json": "2", "deep/b.json": "3", "__MACOSX/c.json": "4"})
    assert read_json(path, "a.json") == 1
    assert read_json(path, "b.json") == 2, "a whole name comes before a last part"
    with pytest.raises(DataError, match=r"two\.zip: expected one \.json file.* found a\.json, b\.json, deep/b\.json;"):
        read_json(path)
    with pytest.raises(DataError, match=r"no members named 'd.json'"):
        read_json(path, "d.json")


def test_a_member_name_with_dots_touches_nothing_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with zipfile.ZipFile(inside / "evil.zip", "w") as archive:
        archive.writestr("../evil.json", "[1]")
    assert read_json(inside / "evil.zip") == [1]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["evil.zip", "inside"]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("latin1.json", b'{"a": "caf\xe9"}', "byte 0xe9 at offset 10 is not UTF-8"),
        ("latin1bom.json", b'\xef\xbb\xbf"\xe9"', "offset 4"),
        ("cut.json", b'{"a": "hello', "the file is cut"),
        ("cut2.json", b'{"a": [1, ', "the file is cut"),
        ("empty.json", b"", "the file is cut"),
        ("wrong.json", b"{'a': 1}", "not JSON"),
        ("deep.json", b"[" * 100_000, "not usable|cut"),
        ("long.json", b"1" * 5_000, "not usable"),
        (
            "pointer.json",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "Git LFS pointer",
        ),
        (
            "pointer.zip",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "Git LFS pointer",
        ),
        ("text.zip", b"hello", "not a readable zip archive"),
        ("text.json.gz", b"hello", "cannot be read"),
        ("cut.json.gz", gzip.compress(b"[1, 2, 3]", mtime=0)[:-9], "cannot be read"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as caught:
        read_json(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file; set data.path"):
        read_json(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot be read"):
        read_json(tmp_path)
    with pytest.raises(DataError, match=r"no such file or folder; set data.path"):
        find(tmp_path / "none", ["*"])


def test_find_is_sorted_and_unique(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).write_text("1")
    assert [path.name for path in find(tmp_path, ["b*", "*.json"])] == ["a.json", "b.json"]
    assert find(tmp_path / "c.txt", ["*.json"]) == [tmp_path / "c.txt"], "a file is what the user asked for"


def test_locate_prefers_the_top_of_an_archive(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", {"examples/data.json": "1", "data.json": "2", "lists": "3"})
    found = locate(path)
    assert sorted(found) == ["data.json", "lists"]
    assert read_json(*found["data.json"]) == 2


@pytest.mark.parametrize("value", [None, True, 1, [], "a"])
def test_require_says_what_is_wrong(value: object) -> None:
    with pytest.raises(DataError, match=r"log of x is .*, not an object"):
        require(value, dict, "log of x")


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert require("naïve 😀", str, "text") == "naïve 😀"
    with pytest.raises(DataError, match="surrogate"):
        require(json.loads(r'"\ud83d"'), str, "text")


def test_problems_raise_once_with_all_of_them() -> None:
    problems = Problems("raise")
    for i in range(23):
        problems.add(Path(f"file{i % 2}.json"), f"D{i}", "it has no log")
    with pytest.raises(DataError) as caught:
        problems.finish()
    lines = str(caught.value).splitlines()
    assert lines[0] == "file0.json: dialogue 'D0': it has no log"
    assert lines[19] == "file1.json: dialogue 'D19': it has no log"
    assert lines[20] == "and 3 more"
    assert lines[21].startswith("23 malformed dialogues")
    assert len(lines) == 22


def test_problems_skip_with_a_note() -> None:
    problems = Problems("skip")
    assert problems.finish() == ()
    for name in "abcdefg":
        problems.add(Path("x.json"), name, "phone is '01223351880', not a list")
    # A note stands in the manifest and the report: ids and a count, never what a problem quotes.
    assert problems.finish() == ("skipped 7 dialogues: a, b, c, d, e, and 2 more; data.on_error=raise says why",)


def test_on_error_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"on_error='ignore' is not raise or skip; set data.on_error"):
        Problems("ignore")


def test_notes_count_by_kind() -> None:
    notes = Notes()
    for i in range(7):
        notes.add("no state", f"turn {i}")
    notes.add("other", "here")
    assert notes.finish() == (
        "no state (7): turn 0, turn 1, turn 2, turn 3, turn 4, and 2 more",
        "other (1): here",
    )


def test_case_24(shared_dir: Path) -> None:
    cases = shared_dir / "cases"
    assert read_json(cases / "24_bom.json") == {"CASE0024.json": {"goal": {}, "log": []}}
    for name, says in (("latin1", "offset 56"), ("truncated", "cut"), ("lfs_pointer", "Git LFS pointer")):
        with pytest.raises(DataError, match=rf"24_{name}\.json.*{says}"):
            read_json(cases / f"24_{name}.json")


# What would fill memory

PACKED: dict[str, Callable[[Path, bytes], Path]] = {
    "bomb.zip": lambda path, content: deflated(path, {"data/dialogues.json": content}),
    "bomb.json.gz": lambda path, content: path.write_bytes(gzip.compress(content, mtime=0)) and path,
}


def deflated(path: Path, contents: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("name", PACKED)
def test_what_is_packed_more_tightly_than_text_is_refused_before_it_is_unpacked(name: str, tmp_path: Path) -> None:
    path = PACKED[name](tmp_path / name, b'["' + b" " * (64 * 2**20) + b'"]')  # to a 1000th
    tracemalloc.start()
    with pytest.raises(DataError, match=rf"{path}.*holds more than {FREE_BYTES} bytes, from \d+ packed ones"):
        read_json(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * FREE_BYTES


@pytest.mark.parametrize("name", PACKED)
def test_small_files_may_be_packed_tightly(name: str, tmp_path: Path) -> None:
    text = " " * (FREE_BYTES // 4)
    assert read_json(PACKED[name](tmp_path / name, json.dumps([text]).encode())) == [text]


@pytest.mark.parametrize("name", [*PACKED, "bomb.json"])
def test_a_file_larger_than_any_corpus_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10_000)
    pack = PACKED.get(name, lambda path, content: path.write_bytes(content) and path)
    rng = random.Random(0)
    path = pack(tmp_path / name, json.dumps([rng.random() for _ in range(1000)]).encode())
    with pytest.raises(DataError, match=rf"{path}.*holds more than 10000 bytes"):
        read_json(path)


def test_a_member_that_says_it_is_packed_in_more_than_the_archive_has_is_not_believed(tmp_path: Path) -> None:
    path = deflated(tmp_path / "a.zip", {"a.json": b"[" + b" " * (20 * 2**20) + b"]"})
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 20  # the packed size in the archive's directory
    content[at : at + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=str(path)):
        read_json(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(method: int, tmp_path: Path) -> None:
    path = deflated(tmp_path / "a.zip", {"a.json": b"[1]"}, method)
    with pytest.raises(DataError, match=r"'a\.json' is packed with method \d+.*pack it anew"):
        read_json(path)


def test_brackets_alone_are_no_corpus(tmp_path: Path) -> None:
    """An empty list takes three characters in a file and 56 bytes in memory."""
    path = tmp_path / "a.json"
    path.write_text("[" + "[]," * (FREE_BYTES // 3) + "[]]", encoding="utf-8")
    with pytest.raises(DataError, match=rf"{path}: more than a bracket in 16 characters"):
        read_json(path)


@pytest.mark.shared
def test_real_corpora_are_far_from_every_limit(shared_dir: Path) -> None:
    """The limits are for bombs: the real files stay below an eighth of each of them."""
    packed = [*shared_dir.glob("data/**/*.zip"), *shared_dir.glob("data/**/*.json.gz")]
    assert len(packed) > 10
    for path in packed:
        for member in members(path) if path.suffix == ".zip" else [None]:
            if member is not None and not member.endswith(".json"):
                continue
            text = read_text(path, member)
            if len(text) < 10**6:
                continue
            with zipfile.ZipFile(path) if member else contextlib.nullcontext() as archive:
                size = path.stat().st_size if archive is None else archive.getinfo(str(member)).compress_size
            assert len(text) / size < MOST_RATIO / 8, path
            assert len(text) < MOST_BYTES / 8, path
            assert text.count("[") + text.count("{") < MOST_BRACKETS * len(text) / 3, path
