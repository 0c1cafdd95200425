"""What the machine and the network refuse, as a user meets it: a message, an exit code, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hushbot.cli import main
from hushbot.evaluation.chatting import load_chat
from hushbot.machine_faults import told
from hushbot.report_hash import report_sha256
from hushbot.run import RunDirectory
from hushbot.serving import serving
from hushbot.targets.connection import Connection

SMALL = (
    "data=bookings",
    "backbone=tiny",
    "split.members=4",
    "split.nonmembers=4",
    "split.calibration=1",
    "split.controls=1",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=4",
    "utility.responses=false",
    "trainer.max_epochs=1",
    "trainer.batch_size=2",
    "trainer.num_threads=1",
    "trainer.progress_bar=false",
    "attack=[]",
)
Arguments = tuple[str, ...]


def base(folder: Path) -> Arguments:
    """Return the command that measures the bot as it is, which nobody has to wait for."""
    return ("train", *SMALL, "recipe=base", f"run={folder / 'run'}")


def report_of(folder: Path) -> Any:
    return json.loads((folder / "run" / "report.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "a/b: No space left on device; make room"),
        (OSError(errno.EROFS, "Read-only file system", "a"), "a: Read-only file system; make it writable"),
        (MemoryError(), "memory is not enough; ask for less"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory is not enough"),
        (RuntimeError("SafetensorError: I/O error: File too large (os error 27)"), "make room"),
        (RuntimeError("shapes do not fit"), None),
        (ConnectionResetError(errno.ECONNRESET, "reset"), None),
    ],
)
def test_what_a_machine_refuses_is_told_and_nothing_else(error: Exception, said: str | None) -> None:
    found = told(error)
    assert found is None if said is None else found is not None and said in found


# Disk full


@pytest.mark.slow
def test_a_disk_that_is_full_at_any_write_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, left = os.fsync, [0]

    def sync(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    sound = tmp_path / "sound"
    assert main(list(base(sound))) == 0
    monkeypatch.setattr(os, "fsync", sync)
    folder, n_failures, known = tmp_path / "full", 0, 0
    for room in (0, 3, 8, 10**6):  # writes before the disk is full; each start goes on where the last one stopped
        left[0] = room
        capsys.readouterr()
        code = main(list(base(folder)))
        if code == 0:
            break
        n_failures += 1
        assert code == 1
        assert "No space left on device; make room, then give the same command again" in capsys.readouterr().err
        if (folder / "run" / "report.json").exists():
            found = report_of(folder)
            assert len(found["utility"]) >= known  # what was finished stays
            known = len(found["utility"])
    assert code == 0
    assert n_failures == 3
    assert report_sha256(report_of(folder)) == report_sha256(report_of(sound))


@pytest.mark.slow
@pytest.mark.parametrize("most_bytes", [3_000, pytest.param(700_000, marks=pytest.mark.long)])
def test_a_training_that_may_write_no_large_file_says_so(tmp_path: Path, most_bytes: int) -> None:
    command = [sys.executable, "-m", "hushbot.cli", "train", *SMALL, "recipe=turn_level", f"run={tmp_path / 'run'}"]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),
        timeout=300,
    )
    assert process.returncode == 1, process.stderr[-2000:]
    assert "File too large" in process.stderr
    assert "make room" in process.stderr
    assert "Traceback" not in process.stderr
    assert not list((tmp_path / "run").rglob("*.tmp")), "a part of a file was left behind"


# No permission


@pytest.mark.parametrize("verb", ["train", "report"])
def test_a_folder_that_may_not_be_written_is_named(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed, real = tmp_path / "closed", Path.mkdir

    def mkdir(path: Path, *given: Any, **named: Any) -> None:  # for root no folder is closed
        if path.is_relative_to(closed):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        real(path, *given, **named)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.json").write_text("{}", encoding="utf-8")
    command = base(closed) if verb == "train" else ("report", str(tmp_path / "mine"), "--out", str(closed))
    assert main(list(command)) == 1
    assert f"error: {closed}" in (said := capsys.readouterr().err)
    assert "Permission denied; make it writable, or choose another folder" in said


def test_a_run_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert main(list(base(tmp_path / "file"))) == 1
    assert "Not a directory" in capsys.readouterr().err
    assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"


# Out of memory on one arm

HUNGRY = '''
from dataclasses import dataclass

import torch

from hushbot.protocols import Recipe


@dataclass(frozen=True, kw_only=True)
class Hungry(Recipe):
    """Needs more memory than there is."""

    def guard(self, target, schema):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
'''


@pytest.mark.long
def test_an_arm_without_memory_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own" / "recipe").mkdir(parents=True)
    (tmp_path / "hungry.py").write_text(HUNGRY, encoding="utf-8")
    (tmp_path / "own" / "recipe" / "hungry.yaml").write_text(
        "# @package recipe.hungry\n_target_: hungry.Hungry\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "hushbot.cli", "compare", *SMALL, "arms=[base+hungry,base]", "seeds=[0]"]
    command += [f"runs_dir={tmp_path / 'runs'}", f"comparison={tmp_path / 'comparison'}", "launcher.workers=1"]
    command += ["--trust", "hungry", "--config-dir", str(tmp_path / "own")]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)},
        timeout=500,
    )
    assert process.returncode == 1
    assert "memory is not enough (CUDA out of memory. Tried to allocate 20.00 GiB.)" in process.stderr
    assert "Traceback" not in process.stderr
    reports = {
        path.parent.name.split("-s0-")[0]: json.loads(path.read_text()) for path in tmp_path.rglob("report.json")
    }
    assert {arm: report["status"] for arm, report in reports.items()} == {"base": "complete", "base+hungry": "failed"}
    assert "memory is not enough" in reports["base+hungry"]["error"]
    assert (tmp_path / "comparison" / "report.html").is_file()


# A loss that is no number


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("recipe=turn_level", "trainer.learning_rate=1e20", "trainer.max_grad_norm=null")
    assert main(["train", *SMALL, *settings, f"run={tmp_path / 'run'}"]) == 1
    said = capsys.readouterr().err
    assert "must be finite" in said or "not finite" in said
    assert "lower trainer.learning_rate" in said
    found = report_of(tmp_path)
    assert found["status"] == "failed"
    assert "trainer.learning_rate" in found["error"]
    assert found["utility"] == {}


# An endpoint that goes away


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Callable[[range], None]:
    """Return what cuts the line for some of the requests to come, by their numbers."""
    real, state = Connection._once, {"n": 0, "cut": range(0)}

    def once(connection: Connection, method: str, path: str, body: bytes | None) -> Any:
        state["n"] += 1
        if state["n"] in state["cut"]:
            raise connection._error("was not reached (ConnectError)", "unreached")
        return real(connection, method, path, body)

    def cut(numbers: range) -> None:
        state.update(n=0, cut=numbers)

    monkeypatch.setattr(Connection, "_once", once)
    return cut


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Serve a bot that nobody trained."""
    assert main(list(base(tmp_path))) == 0
    chat, _ = load_chat(RunDirectory.open(tmp_path / "run"), {"batch_rows": 16, "batch_tokens": 4096}, ())
    with serving(chat.target, prompt_of=chat.prompt_of) as url:
        yield url, tmp_path / "run"


@pytest.mark.slow
def test_an_endpoint_may_go_away_for_a_while_or_for_good(
    endpoint: tuple[str, Path],
    line: Callable[[range], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url, run = endpoint

    def audit(out: str, n_tries: int) -> int:
        return main(
            [
                *("audit", "target=http", f"url={url}", "model=bot", f"run={run}", f"out={tmp_path / out}"),
                *("attack=[blind,untargeted_extraction]", "attack.blind.n_draws=200", "attack.blind.n_permutations=99"),
                "attack.untargeted_extraction.decoders=[vanilla]",
                *("attack.untargeted_extraction.n_samples=20", "attack.untargeted_extraction.k=20"),
                "attack.untargeted_extraction.max_new_tokens=6",
                *(f"pace.n_tries={n_tries}", "pace.pause=0", "pace.n_workers=1"),
            ]
        )

    line(range(0))
    assert audit("sound", 1) == 0
    sound = json.loads((tmp_path / "sound" / "report.json").read_text(encoding="utf-8"))
    line(range(70, 75))
    assert audit("while", 9) == 0  # it is asked again until it is back
    line(range(70, 10**9))
    capsys.readouterr()
    assert audit("good", 2) == 1
    said = capsys.readouterr().err
    assert "was not reached" in said
    assert "what is finished is kept" in said
    assert "Traceback" not in said
    kept = json.loads((tmp_path / "good" / "report.json").read_text(encoding="utf-8"))
    assert kept["status"] == "failed"
    assert list(kept["attacks"]) == ["blind"]  # what was finished
    line(range(0))
    assert audit("good", 2) == 0
    for out in ("while", "good"):
        found = json.loads((tmp_path / out / "report.json").read_text(encoding="utf-8"))
        assert (
            found["attacks"]["untargeted_extraction"]["metrics"] == sound["attacks"]["untargeted_extraction"]["metrics"]
        )
        assert report_sha256(found) == report_sha256(sound), out
