"""The whole, as a user runs it: compare, again, audit, report, kill -9 and resume, on a corpus of twenty dialogues."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from hushbot.cli import main
from hushbot.corpora.bookings import load_bookings
from hushbot.masking import mask_text
from hushbot.prompts import parse_state
from hushbot.types import Dialogue

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
ATTACKS = ("untargeted_extraction", "membership")
MEMBERSHIP = ("attack=[membership]", "attack.membership.n_draws=200")
MICRO = (
    "data=bookings",
    "backbone=tiny",
    "split.members=8",
    "split.nonmembers=8",
    "split.calibration=2",
    "split.controls=2",
    "trainer.max_epochs=2",
    "trainer.batch_size=4",
    "trainer.checkpoint_every_n_steps=1",
    "attack.untargeted_extraction.n_samples=60",
    "attack.untargeted_extraction.k=20",
    "attack.untargeted_extraction.max_new_tokens=40",
    "attack.membership.n_draws=200",
    "utility.max_dialogues=3",
    "utility.max_new_tokens=40",
)
"""Every key that a run needs, as small as it still means something; one setting decides all of the module."""
PERSONAL_SLOTS = ("guest", "patient", "email", "phone", "from")


@dataclass(frozen=True)
class Compared:
    """What one `hushbot compare` left behind."""

    command: tuple[str, ...]
    process: subprocess.CompletedProcess[str]
    folder: Path

    @property
    def comparison(self) -> Path:
        return self.folder / "comparison"

    def run(self, arm: str) -> Path:
        (found,) = (self.folder / "runs").glob(f"{arm}-s0-*")
        return found


def command_line(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hushbot.cli", *arguments]


def environment() -> dict[str, str]:
    """Return one thread per process: sums depend on their number, and so do bit-identical weights."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def strings(cell: Any) -> Iterator[str]:
    """Yield every text inside a record's cell."""
    if isinstance(cell, str):
        yield cell
    elif isinstance(cell, Mapping):
        for key, inner in cell.items():
            yield from (str(key), *strings(inner))
    elif hasattr(cell, "__iter__"):
        for inner in cell:
            yield from strings(inner)


def text_of(path: Path) -> str:
    """Return all text in a file; compressed records are read back."""
    if path.suffix == ".parquet":
        return "\n".join(strings(pd.read_parquet(path).to_dict("records")))
    return path.read_bytes().decode("utf-8", errors="replace")


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return time and content of every file but the lock, which names the last process to look."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Run the comparison once, in its own process, from the command line."""
    folder = tmp_path_factory.mktemp("compared")
    command = (
        "compare",
        *MICRO,
        "arms=[base,turn_level]",
        f"runs_dir={folder / 'runs'}",
        f"comparison={folder / 'comparison'}",
    )
    process = subprocess.run(
        command_line(*command), capture_output=True, text=True, cwd=folder, env=environment(), timeout=400
    )
    return Compared(command, process, folder)


@pytest.fixture(scope="module")
def private_values(compared: Compared) -> frozenset[str]:
    """Return names, phones, e-mail and home addresses of everybody in the split, and what was booked for them."""
    manifest = read(compared.run("turn_level") / "manifest.json")
    used = {name for side in ("members", "nonmembers", "calibration", "controls") for name in manifest[side]}
    dialogues = [dialogue for dialogue in load_bookings("private").dialogues if dialogue.id in used]
    assert len(dialogues) == 20
    values = [frozenset(personal(dialogue)) for dialogue in dialogues]
    assert min(map(len, values)) >= 2  # somebody, and a booking
    return frozenset().union(*values)


def personal(dialogue: Dialogue) -> Iterator[str]:
    for turn in dialogue.turns:
        yield from (t.value for t in turn.state or () if t.slot in PERSONAL_SLOTS and len(t.value) > 6)
        for action in turn.actions.split("reference=")[1:]:
            yield action[:6]


@pytest.fixture(scope="module")
def audit(compared: Compared) -> Callable[..., Path]:
    """Return an audit of the trained run in this process, with as many threads as the run had."""
    import torch

    def attack(name: str, *overrides: str) -> Path:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        out = compared.folder / name
        try:
            code = main(["audit", "target=run", f"run={compared.run('turn_level')}", f"out={out}", *overrides])
        finally:
            torch.set_num_threads(before)
        assert code == 0
        return out

    return attack


@pytest.fixture(scope="module")
def masked_audit(audit: Callable[..., Path]) -> Path:
    return audit("audited", *MEMBERSHIP)


@pytest.fixture(scope="module")
def revealed_audit(audit: Callable[..., Path]) -> Path:
    extraction = [override for override in MICRO if override.startswith("attack.untargeted_extraction")]
    return audit("revealed", "reveal=true", "attack=[untargeted_extraction]", *extraction)


# compare


def test_compare_ends_well_and_writes_what_the_contract_names(compared: Compared) -> None:
    assert compared.process.returncode == 0, compared.process.stderr
    assert str(compared.comparison / "report.html") in compared.process.stdout.replace("\n", "")
    for arm in ("base", "turn_level"):
        run = compared.run(arm)
        for name in ("config.yaml", "manifest.json", "report.json", "report.html", "model/config.json"):
            assert (run / name).is_file(), name
        assert list((run / "model").glob("*.safetensors"))
        assert {path.stem for path in (run / "records").glob("*.parquet")} >= set(ATTACKS)
        assert not (run / "checkpoints").exists()
    for name in ("tradeoff.csv", "tradeoff.png", "report.html"):
        assert (compared.comparison / name).stat().st_size > 0, name
    with (compared.comparison / "tradeoff.csv").open(encoding="utf-8") as source:
        rows = [(row["arm"], row["seed"], row["status"]) for row in csv.DictReader(source)]
    assert rows == [
        (arm, seed, "complete") for seed in ("0", "all") for arm in ("base", "turn_level")
    ]  # fmt: skip


@pytest.mark.parametrize("arm", ["base", "turn_level"])
def test_report_keeps_the_contract(compared: Compared, arm: str) -> None:
    report = read(compared.run(arm) / "report.json")
    jsonschema.validate(report, read(ROOT / "docs" / "report.schema.json"))
    assert report.keys() >= {"version", "status", "error", "run", "recipe", "data", "utility", "attacks"}
    assert (report["version"], report["status"], report["error"]) == (1, "complete", None)
    assert report["run"].keys() >= {
        "id", "created", "seed", "config_sha256", "data_sha256", "weights_sha256", "versions", "seconds",
        "tokens_trained", "device",
    }  # fmt: skip
    assert report["recipe"] == {"stack": [arm], "privacy": None}
    assert {side: report["data"][side] for side in ("members", "nonmembers", "calibration", "controls")} == {
        "members": 8, "nonmembers": 8, "calibration": 2, "controls": 2,
    }  # fmt: skip
    assert (report["run"]["tokens_trained"] > 0) == (arm == "turn_level")
    assert report["utility"].keys() >= {
        "joint_goal_accuracy", "state_precision", "state_recall", "state_f1", "bleu", "perplexity",
    }  # fmt: skip
    for estimate in report["utility"].values():
        assert estimate.keys() >= {"value", "low", "high", "level", "n", "method"}
    assert tuple(report["attacks"]) == ATTACKS
    for name, attack in report["attacks"].items():
        assert attack["verdict"] in ("leak", "no_leak_detected", "inconclusive", "not_measured")
        assert attack["headline"].keys() >= {"metric", "estimate"}
        assert attack.keys() >= {"metrics", "control", "blind", "threat_model", "queries", "seconds", "notes"}
        assert attack["records"] == f"records/{name}.parquet"
        assert attack["queries"] > 0
    assert report["attacks"]["untargeted_extraction"]["headline"]["metric"] == "state_precision@20"
    assert report["attacks"]["membership"]["headline"]["metric"] == "tpr_at_1pct_fpr"
    # Eight non-members cannot show a rate of one in a hundred: not measured, never zero.
    assert report["attacks"]["membership"]["headline"]["estimate"]["value"] is None


def test_members_are_named_before_training_and_are_nobody_elses(compared: Compared) -> None:
    for arm in ("base", "turn_level"):
        run = compared.run(arm)
        manifest = read(run / "manifest.json")
        sides = [manifest[side] for side in ("members", "nonmembers", "calibration", "controls")]
        assert [len(side) for side in sides] == [8, 8, 2, 2]
        assert len(set().union(*sides)) == 20
        first_of_model = min(path.stat().st_mtime_ns for path in (run / "model").iterdir())
        assert (run / "manifest.json").stat().st_mtime_ns <= first_of_model
    # Both arms are judged on the same people.
    assert read(compared.run("base") / "manifest.json") == manifest


def test_training_moved_the_weights_of_the_trained_arm_only(compared: Compared) -> None:
    hashes = {arm: read(compared.run(arm) / "report.json")["run"]["weights_sha256"] for arm in ("base", "turn_level")}
    assert hashes["base"] != hashes["turn_level"]


def test_the_same_command_again_repeats_no_arm(compared: Compared) -> None:
    before = snapshot(compared.folder / "runs")
    again = subprocess.run(command_line(*compared.command), capture_output=True, text=True, env=environment())
    assert again.returncode == 0, again.stderr
    assert "training" not in again.stderr
    assert snapshot(compared.folder / "runs") == before


def test_report_rebuilds_the_comparison_without_torch(compared: Compared, tmp_path: Path) -> None:
    runs = [str(compared.run(arm)) for arm in ("base", "turn_level")]
    code = (
        "import sys\nfrom hushbot.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "print(sorted({'torch', 'transformers', 'peft', 'pytorch_lightning'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    out = tmp_path / "rebuilt"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", *runs, "--out", str(out)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[]")
    assert (out / "tradeoff.csv").read_bytes() == (compared.comparison / "tradeoff.csv").read_bytes()
    sheets = {"tradeoff.csv", "comparisons.csv", "metrics.csv", "roc.csv"}
    assert {path.name for path in out.iterdir()} == {*sheets, "tradeoff.png", "report.html"}


# audit


def test_audit_of_a_run_attacks_the_same_people_and_finds_the_same(compared: Compared, masked_audit: Path) -> None:
    run = compared.run("turn_level")
    assert read(masked_audit / "manifest.json") == read(run / "manifest.json")
    assert not (masked_audit / "model").exists()
    trained, audited = read(run / "report.json"), read(masked_audit / "report.json")
    assert audited["status"] == "complete"
    assert audited["recipe"] == trained["recipe"]
    assert audited["utility"] == trained["utility"]
    assert audited["run"]["weights_sha256"] == trained["run"]["weights_sha256"]
    assert list(audited["attacks"]) == ["membership"]
    first, second = (report["attacks"]["membership"] for report in (trained, audited))
    assert second["metrics"]["dc_ppl/auc"]["value"] == pytest.approx(first["metrics"]["dc_ppl/auc"]["value"], abs=0.05)
    assert second["verdict"] == first["verdict"]


def test_an_audit_directory_is_of_one_bot_only(
    compared: Compared, masked_audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Base and trained bot share manifest and settings; the base's audit must not be answered with the other's.
    before = snapshot(masked_audit)
    code = main(["audit", "target=run", f"run={compared.run('base')}", f"out={masked_audit}", *MEMBERSHIP])
    assert code == 1
    assert "audited" in capsys.readouterr().err
    assert snapshot(masked_audit) == before


def test_audit_again_shows_what_is_there(
    compared: Compared, masked_audit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (masked_audit / "report.json").read_bytes()
    run = compared.run("turn_level")
    assert main(["audit", "target=run", f"run={run}", f"out={masked_audit}", *MEMBERSHIP]) == 0
    assert "attacking" not in capsys.readouterr().err
    assert (masked_audit / "report.json").read_bytes() == before


# privacy of the auditor's own files


def test_no_private_value_stands_in_any_file(
    compared: Compared, masked_audit: Path, private_values: frozenset[str]
) -> None:
    folders = [compared.folder / "runs", compared.comparison, masked_audit]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and "model" not in path.parts]
    assert {path.suffix for path in files} >= {".json", ".html", ".parquet", ".yaml", ".log", ".csv"}
    found = {(path.name, value) for path in files for value in private_values if value in text_of(path)}
    assert found == set()


def test_reveal_shows_what_is_masked_and_closes_the_directory(compared: Compared, revealed_audit: Path) -> None:
    run = compared.run("turn_level")
    hidden, shown = (
        pd.read_parquet(path / "records" / "untargeted_extraction.parquet") for path in (run, revealed_audit)
    )
    assert [mask_text(state) for state in shown["state"]] == list(hidden["state"])
    assert any(parse_state(state) for state in shown["state"])
    assert not shown["state"].str.contains("***", regex=False).any()
    assert revealed_audit.stat().st_mode & 0o777 == 0o700
    assert run.stat().st_mode & 0o077 != 0
    page = text_of(revealed_audit / "report.html") + text_of(revealed_audit / "report.json")
    assert not [state for state in shown["state"] if state in page]


def test_what_is_masked_is_somebodys(compared: Compared, private_values: frozenset[str]) -> None:
    # Utility is measured on non-members, whose gold states stand in the records: the search above can find something.
    text = text_of(compared.run("turn_level") / "records" / "utility.parquet")
    states = set(re.findall(r"(?:guest|patient)=([a-z]\*\*\*[a-z]\\\(\d+\\\))", text))
    masks = {f"{value[0]}***{value[-1]}\\({len(value)}\\)" for value in private_values}
    assert states & masks


# kill -9


def kill_when_there(path: Path, command: list[str], timeout: float = 200) -> None:
    """Start a command and kill it, without a chance to tidy up, as soon as a file is there."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    deadline = time.monotonic() + timeout
    try:
        while not path.exists():
            assert process.poll() is None, f"ended with code {process.returncode} before {path} was there"
            assert time.monotonic() < deadline, f"{path} did not appear within {timeout} s"
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL


@dataclass(frozen=True)
class Killed:
    """A run that was killed twice and then left to end."""

    command: tuple[str, ...]
    path: Path
    process: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def killed(compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Kill a training after its manifest, then after its first checkpoint; then let it end."""
    folder = tmp_path_factory.mktemp("killed")
    command = ("train", *MICRO, "recipe=turn_level", f"runs_dir={folder}")
    # `train` and `compare` agree on the name of a run, since they agree on what decides it.
    path = folder / compared.run("turn_level").name
    kill_when_there(path / "manifest.json", command_line(*command))
    assert not (path / "report.json").exists()
    kill_when_there(path / "checkpoints" / "last.ckpt", command_line(*command))
    assert not (path / "report.json").exists()
    assert not (path / "model").exists()
    process = subprocess.run(command_line(*command), capture_output=True, text=True, env=environment())
    return Killed(command, path, process)


def test_a_killed_run_ends_with_the_weights_of_one_that_was_not(killed: Killed, compared: Compared) -> None:
    assert killed.process.returncode == 0, killed.process.stderr
    assert [path.name for path in killed.path.parent.iterdir()] == [killed.path.name]
    resumed, whole = (read(path / "report.json") for path in (killed.path, compared.run("turn_level")))
    assert resumed["status"] == "complete"
    assert resumed["run"]["weights_sha256"] == whole["run"]["weights_sha256"]
    assert resumed["run"]["tokens_trained"] == whole["run"]["tokens_trained"]
    for name in ATTACKS:
        assert resumed["attacks"][name]["headline"] == whole["attacks"][name]["headline"]
    assert not (killed.path / "checkpoints").exists()


def test_nobody_becomes_a_member_after_the_fact(killed: Killed, capsys: pytest.CaptureFixture[str]) -> None:
    path = killed.path / "manifest.json"
    original = path.read_text(encoding="utf-8")
    manifest = json.loads(original)
    manifest["members"][0] = manifest["nonmembers"][0]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    before = (killed.path / "report.json").read_bytes()
    try:
        assert main(list(killed.command)) == 1
    finally:
        path.write_text(original, encoding="utf-8")
    message = capsys.readouterr().err
    assert "manifest.json" in message
    assert manifest["nonmembers"][0] in message
    assert (killed.path / "report.json").read_bytes() == before


# errors


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("report", "{tmp}/absent"), 1, "{tmp}/absent: it does not exist"),
        (("audit", "target=run", "run={tmp}/absent"), 1, "{tmp}/absent is no run directory"),
        (("audit", "target=run"), 2, "run is empty"),
        (("audit", "target=hf"), 2, "model=PATH"),
        (("audit", "target=hf", "model={tmp}/absent"), 2, "{tmp}/absent"),
        (("train", "data=sgd", "data.path={tmp}/absent"), 1, "{tmp}/absent"),
        (("train", "data.on_error=ignore"), 2, "data.on_error='ignore'"),
        (("train", "reveal=no"), 2, "reveal='no'"),
        (("train", "seed=first"), 2, "seed='first'"),
        (("train", "seed=-1"), 2, "seed=-1"),
        (("train", "inference.batch_rows=0"), 2, "inference.batch_rows=0"),
        (("train", "split.members=9000"), 1, "9000"),
        (("compare", "arms=base"), 2, "arms='base'"),
        (("compare", "seeds=3"), 2, "seeds=3"),
        (("compare", "launcher.workers=0"), 2, "launcher.workers=0"),
    ],
)
def test_mistakes_are_told_with_the_key_and_a_code(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    folders = {"train": ["runs_dir"], "audit": ["runs_dir"], "compare": ["runs_dir", "comparison"], "report": []}
    assert main([*filled, *(f"{key}={tmp_path}/{key}" for key in folders[filled[0]])]) == code
    message = capsys.readouterr().err
    assert said.format(tmp=tmp_path) in message
    assert "Traceback" not in message


def test_a_malformed_dialogue_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = ROOT / "src" / "hushbot" / "assets" / "bookings"
    dialogues = read(shipped / "private" / "dialogues_001.json")[:30]
    del dialogues[4]["turns"][0]["utterance"]
    (tmp_path / "dialogues_001.json").write_text(json.dumps(dialogues), encoding="utf-8")
    (tmp_path / "schema.json").write_bytes((shipped / "schema.json").read_bytes())
    assert main(["train", "data=sgd", f"data.path={tmp_path}", f"runs_dir={tmp_path}/runs"]) == 1
    message = capsys.readouterr().err
    assert dialogues[4]["dialogue_id"] in message
    assert "dialogues_001.json" in message
    assert not (tmp_path / "runs").exists()
