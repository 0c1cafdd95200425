"""What SECURITY.md promises: no code from files, no path out of a folder, no key in a log, clear text behind 0700."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hushbot.cli import main
from hushbot.composition import compose, find_problems, locate_trusted
from hushbot.corpora import load
from hushbot.corpora.split import SplitSettings, make_split, manifest
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.evaluation.gate import read_budget
from hushbot.evaluation.tracker_rows import shown_records
from hushbot.run import RunDirectory
from hushbot.targets.connection import Connection, EndpointError, Pace
from hushbot.training.callbacks import AtomicCheckpointIO
from hushbot.training.model_folder import load_model
from hushbot.types import AttackResult, Estimate, Headline

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [path for folder in ("src", "recipes", "attacks", "evaluation") for path in (ROOT / folder).rglob("*.py")]


class Trap:
    """Leaves a mark where somebody unpickles it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def calls() -> Iterator[tuple[Path, str, ast.Call]]:
    """Yield every call in the sources, with how it is written."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                yield path, ast.unparse(node.func), node


# No code from files


def test_nothing_in_the_sources_can_run_what_a_file_holds() -> None:
    seen = set()
    for path, name, call in calls():
        assert name not in {"eval", "exec", "compile", "os.system", "yaml.load_all", "yaml.unsafe_load"}, (path, name)
        assert not re.match(r"(pickle|marshal|shelve|dill|joblib|cloudpickle)\.", name), (path, name)
        options = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert options.get("shell", "False") == "False", path
        assert options.get("trust_remote_code", "False") == "False", path
        assert options.get("allow_pickle", "False") == "False", path
        if name == "torch.load":
            assert options["weights_only"] == "True", path
        if name == "yaml.load":
            assert options["Loader"] == "PlainLoader", path
        seen.add(name)
    assert {"torch.load", "yaml.load"} <= seen, "this test looks at the wrong files"


def test_a_checkpoint_with_a_trap_is_refused(tmp_path: Path) -> None:
    path, mark = tmp_path / "last.ckpt", tmp_path / "sprung"
    torch.save({"weights": torch.zeros(2), "more": Trap(mark)}, path)
    with pytest.raises(HushbotError, match=re.escape(str(path))):
        AtomicCheckpointIO().load_checkpoint(path)
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists(), "the trap does not work, so the test above proves nothing"


def test_a_model_folder_with_pickles_alone_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "sprung"
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(mark)))
    with pytest.raises(DataError, match="pickles are never loaded"):
        load_model(tmp_path)
    assert not mark.exists()


# No code from configurations


@pytest.mark.parametrize(
    "target",
    [
        "os.mkdir",
        "builtins.eval",
        "subprocess.Popen",
        "hushbot.cli.main",
        "hushbot.composition.locate",
        "hushbot.storage.write_atomically",
        "hushbot.launching.subprocess.Popen",
        "hushbot.run.os.system",
        "hushbotevil.Attack",
    ],
)
def test_a_target_that_was_not_named_on_the_command_line_is_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="_target_"):
        locate_trusted(target)
    config = compose("train", []) | {"attack": {"mine": {"_target_": target, "path": str(tmp_path / "sprung")}}}
    assert any("_target_" in problem for problem in find_problems(config))
    assert not (tmp_path / "sprung").exists()


def test_trust_is_for_whole_packages() -> None:
    assert locate_trusted("json.JSONEncoder", ["json"]) is json.JSONEncoder
    with pytest.raises(ConfigError, match="--trust jsonx"):
        locate_trusted("jsonx.JSONEncoder", ["json"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("required: &a [*a, *a]", "alias"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]", "alias"),
        ("required: !!python/object/apply:os.mkdir [sprung]", "python/object"),
        ("version: 1\nversion: 1", "stands twice in line 2"),
        ("version: " + "9" * 5000, "cannot be read"),
        ("version: " + "[" * 3000, "cannot be read"),
        ("version: 2026-99-99", "cannot be read"),
    ],
)
def test_yaml_is_plain_data(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_budget(path)
    with pytest.raises(DataError, match=re.escape(str(path))):
        _ = RunDirectory(tmp_path).config


# No path out of a folder


OUTSIDE = (
    *("../outside", "../../outside.json", "/outside", "a/../../outside", "..\\outside", "C:outside", "a\0", ".", ".."),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_members_of_an_archive_reach_no_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "deeper"
    folder.mkdir(parents=True)
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as made:
        made.writestr("data.json", json.dumps({}))
        made.writestr(f"{name}/dialogues.json", "[]")
        made.writestr(f"{name}.json", "[]")
    (folder / "data.zip").write_bytes(sink.getvalue())
    with contextlib.suppress(HushbotError):  # whether it holds a corpus is not the point
        load(folder / "data.zip")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["data.zip"]


def test_dialogue_ids_reach_no_folder(tmp_path: Path) -> None:
    records = [
        {"dialogue_id": name or "x", "service": ["leave"], "speaker": [1], "utterance": [f"hello {i}"], "state": [{}]}
        for i, name in enumerate(OUTSIDE)
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "hr.json").write_text(json.dumps(records), encoding="utf-8")
    corpus = load("hr_multiwoz", path=tmp_path / "in")
    drawn = make_split(corpus, SplitSettings(members=4, nonmembers=4, calibration=0, controls=0), 0)
    with RunDirectory(tmp_path / "run").create({"seed": 0}, manifest(drawn, corpus, 0)) as run:
        rows = [{"dialogue_id": dialogue.id, "value": "x"} for dialogue in corpus.dialogues]
        run.write_records("mine", rows, reveal=False)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"in/hr.json", "run/.lock", "run/config.yaml", "run/manifest.json", "run/records/mine.parquet"}


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/b", "", ".hidden", "a\0b"])
def test_attack_names_reach_no_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="records name"):
        RunDirectory(tmp_path).write_records(name, [{"a": 1}], reveal=False)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("where", ["../secret.parquet", "records/../../secret.parquet", "{tmp}/secret.parquet"])
def test_a_report_names_no_file_outside_its_run(where: str, tmp_path: Path) -> None:
    inside = RunDirectory(tmp_path / "run")
    RunDirectory(tmp_path / "run").path.mkdir()
    inside.write_records("mine", [{"value": "fine"}], reveal=False)
    (tmp_path / "secret.parquet").write_bytes((inside.records / "mine.parquet").read_bytes())

    def result(records: str) -> AttackResult:
        headline = Headline(metric="auc", estimate=Estimate(value=None))
        return AttackResult(verdict="inconclusive", headline=headline, records=records)

    assert shown_records(inside.path, result("records/mine.parquet"), {"reveal": False}, 1)
    with pytest.raises(DataError, match="outside"):
        shown_records(inside.path, result(where.format(tmp=tmp_path)), {"reveal": False}, 1)


# No key in a log, clear text behind 0700


def test_a_key_is_in_no_message(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    import httpx2

    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("MY_KEY", key)
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(request.headers["Authorization"])
        return httpx2.Response(401, content=f"no such key: {key}".encode())

    connection = Connection("http://localhost:1/v1", key_variable="MY_KEY", pace=Pace(n_tries=1))
    monkeypatch.setattr(connection, "_client", httpx2.Client(transport=httpx2.MockTransport(answer)), raising=False)
    with pytest.raises(EndpointError) as caught:
        connection.post("/completions", {"prompt": "a"})
    assert seen == [f"Bearer {key}"]
    shown = [str(caught.value), repr(caught.value), repr(connection), str(vars(connection)), *capfd.readouterr()]
    link: BaseException | None = caught.value
    while link is not None:
        shown.append(repr(link))
        link = link.__cause__ or link.__context__
    assert all(key not in text for text in shown)
    assert main(["doctor", f"{key}", "url=http://localhost:1/v1"]) == 2
    assert key not in "".join(capfd.readouterr())


def test_clear_text_is_behind_a_closed_door(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir(mode=0o755)
    run.write_records("masked", [{"value": "maria rossi"}], reveal=False)
    assert run.path.stat().st_mode & 0o777 == 0o755
    run.write_records("revealed", [{"value": "maria rossi"}], reveal=True)
    assert run.path.stat().st_mode & 0o777 == 0o700


def test_every_file_that_security_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
