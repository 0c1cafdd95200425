"""What SECURITY.md promises: no code from files, no path out of a folder, no key in a log, clear text behind 0700."""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import io
import json
import os
import pickle
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from hushbot.cli import main
from hushbot.composition import compose, find_problems, locate_trusted
from hushbot.corpora import load
from hushbot.corpora.split import SplitSettings, make_split, manifest
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.evaluation.audited import chosen, setting_of
from hushbot.evaluation.chatting import load_chat
from hushbot.evaluation.gate import read_budget
from hushbot.evaluation.tracker_rows import shown_records
from hushbot.run import RunDirectory
from hushbot.targets.connection import Connection, EndpointError, Pace
from hushbot.training.callbacks import AtomicCheckpointIO
from hushbot.training.model_folder import load_model, tiny_dir
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
        # Ranks talk to processes that they have started, through pipes of their own: no file, no address.
        if not (
            path.match("launching/ranks.py") and name in {"pickle.dumps", "pickle.loads", "pickle.dump", "pickle.load"}
        ):
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


TRAP = """
from pathlib import Path
Path({mark!r}).touch()
def spring(*_, **__):
    Path({mark!r}).touch()
"""


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put a module where it can be imported, and return the mark that it leaves when it is."""
    mark, folder = tmp_path / "sprung", tmp_path / "importable"
    folder.mkdir()
    (folder / "hushbot_trap.py").write_text(TRAP.format(mark=str(mark)), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield mark
    sys.modules.pop("hushbot_trap", None)


def blocks(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where in a configuration a mapping stands."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from blocks(inner, (*path, key))


def with_target(config: dict[str, Any], path: tuple[str, ...], key: str) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    block = changed
    for name in path:
        block = block[name]
    block[key] = "hushbot_trap.spring"
    return changed


def test_the_trap_springs(trap: Path) -> None:
    with pytest.raises(ConfigError, match="--trust hushbot_trap"):
        locate_trusted("hushbot_trap.spring")
    assert not trap.exists()
    locate_trusted("hushbot_trap.spring", ["hushbot_trap"])
    assert trap.exists()


def test_no_target_in_the_run_directory_of_somebody_else_is_built(trap: Path, tmp_path: Path) -> None:
    config = compose("train", ["recipe=turn_level+value_copy", "attack=[membership]", "tracker=csv", "data=bookings"])
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.manifest_path.write_text("{}", encoding="utf-8")
    places = list(blocks(config))
    assert len(places) > 15
    n_refused = 0
    for path in places:
        text = yaml.safe_dump(with_target(config, path, "_target_"))
        run.config_path.write_text(text, encoding="utf-8")
        for read in (
            lambda: setting_of(run, ()),
            lambda: load_chat(run, {"batch_rows": 16, "batch_tokens": 4096}, ()),
            lambda: chosen(
                compose("audit", ["target=http", "url=http://localhost:1", "model=m", f"run={run.path}"]), ()
            ),
        ):
            try:
                read()
            except HushbotError:
                n_refused += 1
    assert n_refused > len(places)
    assert not trap.exists()
    assert "hushbot_trap" not in sys.modules


@pytest.mark.parametrize("key", ["_target_", "_recursive_", "_partial_", "_args_", "defaults", "hydra"])
def test_a_data_set_is_no_configuration(key: str, trap: Path, tmp_path: Path) -> None:
    """Whatever stands in a data set's goals, states and tables is a text."""
    evil = {key: "hushbot_trap.spring"}
    turn = {"speaker": "user", "utterance": "${oc.env:HOME} hello", "utt_idx": 0, "state": {"hotel": evil}, **evil}
    dialogues = [
        {"dialogue_id": f"d{i}", "data_split": "train", "goal": evil, "turns": [turn], **evil} for i in range(4)
    ]
    (tmp_path / "dialogues.json").write_text(json.dumps(dialogues), encoding="utf-8")
    ontology = {"domains": {"hotel": {"slots": {key: {}}, **evil}} if key == "_target_" else {}, **evil}
    with contextlib.suppress(HushbotError):
        (tmp_path / "ontology.json").write_text(json.dumps(ontology), encoding="utf-8")
        load(tmp_path)
    (tmp_path / "ontology.json").unlink()
    corpus = load("unified", path=tmp_path)
    drawn = make_split(corpus, SplitSettings(members=2, nonmembers=2, calibration=0, controls=0), 0)
    with RunDirectory(tmp_path / "run").create({"seed": 0}, manifest(drawn, corpus, 0)) as run:
        assert run.manifest["members"]
    assert all(dialogue.turns[0].user == "${oc.env:HOME} hello" for dialogue in corpus.dialogues)
    assert not trap.exists()


def test_a_report_is_no_configuration(trap: Path, tmp_path: Path) -> None:
    evil = {"_target_": "hushbot_trap.spring"}
    estimate = Estimate(value=0.5, low=0.25, high=0.75, level=0.95, n=8, method="by hand").model_dump()
    attack = {
        "verdict": "leak",
        "headline": {"metric": "auc", "estimate": estimate},
        "control": evil | {"nonmembers": evil},
        "blind": evil,
        "examples": [evil],
    }
    content = {
        "version": 1,
        "status": "complete",
        "run": {"id": "a-s0-00000000", "created": "2026-01-01T00:00:00+00:00", "seed": 0}
        | {"config_sha256": "a", "data_sha256": "b", "versions": {"_target_": "hushbot_trap.spring"}},
        "recipe": {"stack": ["turn_level"]},
        "data": {"name": "x"} | dict.fromkeys(DATA_KEYS, 1),
        "attacks": {"mine": attack},
        "notes": ["_target_: hushbot_trap.spring"],
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report.json").write_text(json.dumps(content), encoding="utf-8")
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "report.html").is_file()
    assert not trap.exists()


DATA_KEYS = ("members", "nonmembers", "calibration", "controls", "domains", "slots", "turns", "supervised_tokens")


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


KEY = "sk-very-secret-9876543210"
SMALL = (
    *("data=bookings", "backbone=tiny", "split.members=4", "split.nonmembers=4", "split.calibration=1"),
    *("split.controls=1", "utility.max_dialogues=1", "utility.max_new_tokens=4", "utility.responses=false"),
    *("trainer.num_threads=1", "trainer.progress_bar=false"),
)
ATTACK = (
    "attack=[untargeted_extraction]",
    "attack.untargeted_extraction.decoders=[vanilla]",
    *("attack.untargeted_extraction.n_samples=20", "attack.untargeted_extraction.k=20"),
    "attack.untargeted_extraction.max_new_tokens=6",
)
TRACKERS = "tracker=[csv,wandb]" if importlib.util.find_spec("wandb") else "tracker=csv"


def bytes_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}


@pytest.mark.slow
def test_an_audit_with_a_key_leaves_it_nowhere_and_one_in_the_clear_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from hushbot.serving import serving

    monkeypatch.setenv("MY_KEY", KEY)
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.setenv(name, f"{KEY}-{name}".ljust(40, "0"))
    before = os.umask(0)  # as open as it gets
    try:
        run = tmp_path / "run"
        assert main(["train", *SMALL, "recipe=base", "attack=[]", f"run={run}"]) == 0
        chat, _ = load_chat(RunDirectory.open(run), {"batch_rows": 16, "batch_tokens": 4096}, ())
        asked: list[str] = []
        real = Connection._once
        seen: list[str] = []

        def once(connection: Connection, method: str, path: str, body: bytes | None) -> Any:
            asked.append(str(connection.key_variable))
            folder = tmp_path / "audit" / "cache"
            if folder.is_dir():
                seen.extend(f"{name} {mode:o}" for name, mode in modes(folder).items())
            return real(connection, method, path, body)

        monkeypatch.setattr(Connection, "_once", once)
        with serving(chat.target, prompt_of=chat.prompt_of) as url:
            common = ("audit", "target=http", "model=bot", f"run={run}", "key_variable=MY_KEY", *ATTACK, TRACKERS)
            audit = (*common, f"url={url}", f"out={tmp_path / 'audit'}", "reveal=true")
            assert main(list(audit)) == 0
        assert set(asked) == {"MY_KEY"}
        # And with an endpoint that is no more.
        assert main([*common, f"url={url}", f"out={tmp_path / 'gone'}", "pace.n_tries=1"]) == 1
    finally:
        os.umask(before)
    said = "".join(capfd.readouterr())
    assert "Traceback" not in said
    assert KEY not in said
    written = bytes_below(tmp_path)
    assert len(written) > 10
    assert [str(path) for path, content in written.items() if KEY.encode() in content] == []
    assert (tmp_path / "audit" / "config.yaml") in written
    # Records in the clear.
    assert modes(tmp_path / "audit")["."] == 0o700
    assert {line for line in seen if line.startswith(". ")} == {". 700"}
    assert {line.split()[1] for line in seen if not line.startswith(". ")} == {"600"}
    assert not (tmp_path / "audit" / "cache").exists()
    # Masked, so open to whom the user lets in.
    assert modes(run)["."] == 0o777


@pytest.mark.parametrize("command", ["model", "backbone"])
def test_a_bot_that_is_not_all_there_gets_no_verdict(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With random numbers for what is missing it would know nobody, and be called safe."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_dir(), folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(max(name for name in tensors if "mlp" in name))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    split = [setting for setting in SMALL if setting.startswith(("data", "split"))]
    if command == "model":
        arguments = ["audit", *split, "target=hf", f"model={folder}", *ATTACK, f"out={tmp_path / 'out'}"]
    else:
        small = [setting for setting in SMALL if not setting.startswith("backbone")]
        backbone = ("backbone=hf", f"backbone.name_or_path={folder}", "backbone.max_length=64")
        arguments = ["train", *small, "recipe=base", *ATTACK, *backbone, f"run={tmp_path / 'out'}"]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert f"error: {folder}: the weights are not those that config.json describes: 1 tensors are missing" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert report["status"] == "failed"
    assert report["attacks"] == {}


def test_a_checkpoint_is_its_owners(tmp_path: Path) -> None:
    """Its moments are gradients of the last few dialogues, so it tells more of them than the bot does."""
    path, before = tmp_path / "run" / "checkpoints" / "last.ckpt", os.umask(0)
    try:
        AtomicCheckpointIO().save_checkpoint({"weights": torch.zeros(2)}, path)
    finally:
        os.umask(before)
    assert modes(path.parent) == {".": 0o700, "last.ckpt": 0o600}


def test_every_file_that_security_names_is_there() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []
