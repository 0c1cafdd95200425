"""Nothing that somebody said is in what a run leaves behind, apart from records in the clear where they are asked for.

Secrets are planted in every dialogue, and the bot under audit is a parrot that repeats them all, so that they certainly
pass through the attacks; the same run with `reveal=true` shows that they did. Every file of the run directories, of the
trackers and of the comparison is searched, byte by byte and unpacked, and so are the standard streams.

No file is exempt. The weights are searched as bytes like everything else: what a model has learnt stands in no file as
a text, and is what the attacks are for. The tokenizer was made before the secrets were, and is searched too.
"""

from __future__ import annotations

import base64
import gzip
import html
import importlib.util
import io
import json
import os
import re
import sqlite3
import stat
import subprocess
import sys
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import hushbot.configs

TESTS = Path(__file__).resolve().parent
TRACKERS = {
    name: f"hushbot.evaluation.{name}_tracker.{name.capitalize()}Tracker"
    for name in ("csv", "wandb", "tensorboard", "trackio")
    if name == "csv" or importlib.util.find_spec(name)
}
ATTACKS = tuple(sorted(path.stem for path in Path(next(iter(hushbot.configs.__path__)), "attack").glob("*.yaml")))
PLANTED = (
    "~data.half",
    "~data.on_error",
    "data._target_=planting.load",
    "+recipe.parrot._target_=planting.Parrot",
    "split.members=12",
    "split.nonmembers=12",
    "split.calibration=6",
    "split.controls=6",
    "split.deduplicate=false",
    "canaries.m=8",
    "trainer.max_epochs=1",
    "trainer.batch_size=6",
    "utility.max_dialogues=4",
    "utility.max_new_tokens=48",
    "sensitivity.enabled=true",
    "cache.enabled=true",
)
"""A tiny run on planted dialogues, whose bot repeats them."""
SMALL = (
    f"attack=[{','.join(ATTACKS)}]",
    "+attack.telling._target_=planting.Telling",
    "attack.untargeted_extraction.n_samples=40",
    "attack.untargeted_extraction.k=20",
    "attack.targeted_extraction.max_prefixes=12",
    "attack.targeted_extraction.decoders=[greedy]",
    "attack.targeted_extraction.lengths=[1,2]",
    "attack.membership.n_draws=200",
    "attack.membership.n_permutations=99",
    "attack.blind.n_draws=200",
    "attack.blind.n_permutations=99",
    "attack.quiz.max_records=12",
    "attack.quiz.n_draws=200",
    "attack.quiz.n_permutations=99",
    "attack.identifier_leak.n_samples=4",
    "attack.identifier_leak.min_documents=2",
    "attack.identifier_leak.sweep_documents=4",
    "attack.schema_probe.n_questions=8",
    "attack.schema_probe.n_samples=8",
    "attack.schema_probe.n_runs=1",
    "attack.schema_probe.temperatures=[1.0]",
    "attack.identifier_leak.n_controls=8",
    "attack.canaries.n_alternatives=3",
    "attack.canaries.n_draws=200",
)
DRIVER = """
import json, sys, traceback
from hushbot.cli import main
codes = []
for command in json.loads(sys.argv[1]):
    try:
        codes.append(main(command))
    except Exception:  # as the interpreter would show it
        traceback.print_exc()
        codes.append("traceback")
print("codes", json.dumps(codes))
"""


def _planting() -> Any:
    spec = importlib.util.spec_from_file_location("planting", TESTS / "planting.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planting"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


planting = _planting()
SECRETS: tuple[str, ...] = planting.secret_texts()


# Searching


def unpacked(path: Path) -> Iterator[bytes]:
    """Yield what is in a file: its bytes, and what they hold where it is packed."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".parquet":
        yield "\n".join(_strings(pq.read_table(path).to_pylist())).encode()
    elif content[:2] == b"\x1f\x8b":
        yield gzip.decompress(content)
    elif content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif content[:15] == b"SQLite format 3":
        yield _rows_of_database(path).encode()
    elif path.suffix == ".wandb":
        yield _wandb_records(content)


def _strings(cell: Any) -> Iterator[str]:
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, dict):
        for key, inner in cell.items():
            yield from (str(key), *_strings(inner))
    elif isinstance(cell, (list, tuple)):
        for inner in cell:
            yield from _strings(inner)
    elif isinstance(cell, bytes):
        yield cell.decode("utf-8", errors="replace")


def _rows_of_database(path: Path) -> str:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        rows = [row for name in names for row in database.execute(f'select * from "{name}"')]
    return "\n".join(_strings([list(row) for row in rows]))


def _wandb_records(content: bytes) -> bytes:
    """Join the records of a W&B file: it is cut into blocks of 32 KiB, with 7 bytes before each part of a record."""
    found, at = [], 7
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        size = int.from_bytes(content[at + 4 : at + 6], "little")
        if left < 7 or (size == 0 and content[at + 6] == 0):
            at += left
            continue
        found.append(content[at + 7 : at + 7 + size])
        at += 7 + size
    return b"".join(found)


def readings(content: bytes) -> Iterator[bytes]:
    """Yield a content as it is and as what its escapes stand for, in small letters."""
    yield content.lower()
    for encoding in ("utf-16-le", "utf-16-be"):
        for start in (0, 1):
            if b"\0" in content:
                yield content[start:].decode(encoding, errors="replace").lower().encode("utf-8", "replace")
    if len(content) > 3_000_000 and b"\0" in content:
        return  # weights: no text that could be escaped
    text = content.decode("utf-8", errors="replace")
    escaped = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text.replace("\\\\u", "\\u"))
    for read in (text, escaped, html.unescape(text), urllib.parse.unquote_plus(text)):
        yield read.lower().encode("utf-8", "replace")


def base64_of(secret: str) -> Iterator[bytes]:
    """Yield what a text looks like inside base64, wherever in it it stands."""
    for shift in range(3):
        coded = base64.b64encode(b"x" * shift + secret.encode())
        inner = coded[(0, 2, 3)[shift] : (shift + len(secret.encode())) * 8 // 6]  # the rest mixes with neighbours
        if len(inner) >= 8:
            yield inner


def found_in(content: bytes) -> set[str]:
    """Return the secrets that stand in a content, in whatever spelling."""
    texts = list(dict.fromkeys(readings(content)))
    plain = {secret for secret in SECRETS if any(secret.lower().encode() in text for text in texts)}
    return plain | {secret for secret in SECRETS for coded in base64_of(secret) if coded in content}


def leaks(folders: Iterable[Path]) -> dict[str, set[str]]:
    """Return the secrets in each file below some folders, by the file's name."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            contents = [str(path.relative_to(folder)).encode(), *(unpacked(path) if path.is_file() else ())]
            if secrets := {secret for content in contents for secret in found_in(content)}:
                found[str(path.relative_to(folder))] = secrets
    return found


@pytest.mark.parametrize(
    "encoded",
    [
        "my name is Thaddeus Brzęczyk, call".encode(),
        b"THADDEUS",
        "\ufeffmy name is Brzęczyk".encode("utf-16-le"),
        b"x" + "my name is Brzęczyk".encode("utf-16-be"),
        json.dumps("Brzęczyk").encode(),
        json.dumps(json.dumps("Brzęczyk")).encode(),
        b"Ysolde O&#39;Quillvane",
        urllib.parse.quote("Brzęczyk").encode(),
        base64.b64encode(b"my name is Thaddeus Brz"),
        base64.b64encode(b"y name is Thaddeus Brz"),
        base64.b64encode(b" name is Thaddeus Brz"),
    ],
    ids=lambda content: repr(content)[:30],
)
def test_the_search_finds_every_spelling(encoded: bytes) -> None:
    assert found_in(encoded)
    assert not found_in(encoded[:3])


def test_the_search_opens_what_is_packed(tmp_path: Path) -> None:
    secret = "Oodnadatta wedding"
    pd.DataFrame({"row": [[{"text": secret * 50}]] * 50}).to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.gz").write_bytes(gzip.compress(secret.encode()))
    with zipfile.ZipFile(tmp_path / "c.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", secret)
    with sqlite3.connect(tmp_path / "d.db") as database:
        database.execute("create table t (c text)")
        database.execute("insert into t values (?)", ("x" * 5000 + secret,))
    (tmp_path / secret).mkdir()
    (tmp_path / secret / "e").touch()
    assert {Path(name).name[:1] for name in leaks([tmp_path])} == {"a", "b", "c", "d", "O", "e"}


# Running


@dataclass(frozen=True)
class Left:
    """What the commands left behind."""

    folder: Path
    codes: list[int | str]
    out: str
    err: str

    @property
    def masked(self) -> Path:
        return self.folder / "runs" / "masked"

    @property
    def revealed(self) -> Path:
        return self.folder / "runs" / "revealed"


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Run everything once, in a process of its own."""
    folder = tmp_path_factory.mktemp("planted")
    runs, trust = folder / "runs", ["--trust", "planting"]
    trackers = [f"+tracker.{name}._target_={tracker}" for name, tracker in TRACKERS.items()]
    train = ["train", *trust, *PLANTED]
    blurting = ["attack=[]", "+attack.blurting._target_=planting.Blurting"]
    commands = [
        [*train, *SMALL, *trackers, f"run={runs / 'masked'}"],
        [*train, *SMALL, *trackers, "reveal=true", f"run={runs / 'revealed'}"],
        [*train, *blurting, *trackers, f"run={runs / 'failed'}"],
        [*train, *blurting, "+attack.blurting.is_bug=true", f"run={runs / 'bug'}"],
        ["report", *(str(runs / name) for name in ("masked", "revealed", "failed")), "--out", str(folder / "all")],
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB_", "TRACKIO_"))}
    environment |= {"PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "HOME": str(folder / "home")}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=600,
    )
    assert "codes " in done.stdout, done.stderr[-3000:]
    codes = json.loads(done.stdout.rpartition("codes ")[2])
    return Left(folder, codes, done.stdout, done.stderr)


def report_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return content


def test_every_command_did_what_it_should(left: Left) -> None:
    told = [line for line in left.err.splitlines() if line.startswith(("error", "Traceback"))]
    assert left.codes == [0, 0, 1, "traceback", 0], told
    for run in (left.masked, left.revealed):
        report = report_of(run)
        assert report["status"] == "complete"
        assert set(report["attacks"]) == {*ATTACKS, "telling"}
    assert report_of(left.folder / "runs" / "failed")["status"] == "failed"
    assert (left.folder / "all" / "report.html").stat().st_size > 10_000


def test_the_secrets_passed_through_the_attacks(left: Left) -> None:
    """Else the search below would find nothing for another reason than masking."""
    found = leaks([left.revealed / "records"])
    for name in ("untargeted_extraction", "targeted_extraction", "quiz", "identifier_leak", "utility"):
        assert len(found.get(f"{name}.parquet", ())) >= 5, name
    everything = {part for person in planting.PEOPLE for value in person for part in value.split("#") if part}
    assert set().union(*found.values()) >= everything


def test_no_file_holds_a_secret_but_the_records_in_the_clear(left: Left) -> None:
    assert len([path for path in left.folder.rglob("*") if path.is_file()]) > 60
    found = leaks([left.folder])
    allowed = {name for name in found if name.startswith("runs/revealed/records/") and name.endswith(".parquet")}
    assert {name: sorted(found[name])[:3] for name in found.keys() - allowed} == {}


def test_nothing_that_is_printed_holds_a_secret(left: Left) -> None:
    assert found_in(left.out.encode()) == set()
    assert found_in(left.err.encode()) == set()


def test_an_error_says_what_to_mend_and_nobody_is_quoted(left: Left) -> None:
    error = report_of(left.folder / "runs" / "failed")["error"]
    assert error.startswith("no reading of 'Q***n(7) Z***")
    assert error.endswith("mend attack.blurting")
    assert f"error: {error}" in left.err
    bug = left.err[left.err.index("Traceback") :]
    assert "planting.py" in bug, "a bug keeps its traceback"
    assert "RuntimeError: ValueError: no reading of" in bug


def test_clear_records_are_closed_to_others(left: Left) -> None:
    assert stat.S_IMODE(left.revealed.stat().st_mode) == 0o700
    assert stat.S_IMODE(left.masked.stat().st_mode) != 0o700


def test_nothing_in_the_clear_outlives_the_audit(left: Left) -> None:
    for run in (left.masked, left.revealed):
        assert not (run / "cache").exists()
        assert not (run / "checkpoints").exists()


def test_no_dialogue_is_named_outside_manifest_and_records(left: Left) -> None:
    """Ids may say who somebody is: reports, pages and logs have hashes of them or none."""
    named = [
        path.relative_to(left.folder).as_posix()
        for path in left.folder.rglob("*")
        if path.suffix in {".html", ".md", ".csv"} or path.name == "report.json"
        if b"planted-dialogue-" in path.read_bytes()
    ]
    assert named == []
    assert "planted-dialogue-" not in left.out + left.err
    assert "planted-dialogue-" in (left.masked / "manifest.json").read_text(encoding="utf-8")


def test_every_tracker_was_there_to_be_searched(left: Left) -> None:
    wanted = {
        "csv": "runs/masked/metrics.csv",
        "wandb": "runs/masked/wandb/offline-run-*/*.wandb",
        "tensorboard": "runs/masked/tensorboard/events*",
        "trackio": "runs/trackio/*.db",
    }
    assert {name for name in TRACKERS if not list(left.folder.glob(wanted[name]))} == set()
