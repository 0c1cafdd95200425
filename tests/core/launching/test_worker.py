"""The process of a cell: it dies with its starter, its endings are told apart, its machine is looked at first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hushbot.launching import worker
from hushbot.launching.worker import Ending, Job, attend, ending_of, stop_process, tail

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")


def ended(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", f"import os\n{code}"])
    process.wait()
    return process


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "cell.log"
    path.write_text("one\ntwo\nthree\nfour\nfive\nsix\n", encoding="utf-8")
    return str(path)


def test_endings_are_told_apart(log: str) -> None:
    last = "two | three | four | five | six"
    assert ending_of(ended("pass"), log) == Ending("", was_killed=False)
    assert ending_of(ended("os._exit(3)"), log) == Ending(f"ended with code 3: {last}", was_killed=False)
    assert ending_of(ended("os.kill(os.getpid(), 9)"), log) == Ending(f"killed by SIGKILL: {last}", was_killed=True)


def test_who_ends_a_cell_on_this_machine_wants_it_to_end_but_a_cluster_takes_its_machine_back(log: str) -> None:
    process = ended("os.kill(os.getpid(), 15)")
    assert not ending_of(process, log).was_killed
    assert ending_of(process, log, wanted=(signal.SIGINT,)).was_killed


def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n")
    assert tail(str(tmp_path / "log")) == "no output"


def job(tmp_path: Path, **changes: str) -> Job:
    request = tmp_path / "request.json"
    request.write_text('{"config": {"recipe": {}, "fit": true}, "path": "run", "trust": []}', encoding="utf-8")
    (tmp_path / "log").write_text("before\n", encoding="utf-8")
    fields = {"request": str(request), "log": str(tmp_path / "log"), "folder": str(tmp_path)} | changes
    return Job(request=fields["request"], log=fields["log"], folder=fields["folder"], threads=1)


def test_a_machine_that_does_not_see_the_files_says_so(tmp_path: Path) -> None:
    for key in ("request", "folder"):
        ending = attend(job(tmp_path, **{key: str(tmp_path / "absent")}))
        assert "does not see" in ending.problem
        assert str(tmp_path / "absent") in ending.problem
        assert not ending.was_killed


def test_a_machine_with_another_hushbot_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job(tmp_path)
    monkeypatch.setattr(worker.hushbot, "__version__", "0.0.7")
    assert "has hushbot 0.0.7" in attend(asked).problem


def test_an_attempt_adds_to_the_log_and_works_in_the_folder_of_the_command(tmp_path: Path) -> None:
    ending = attend(job(tmp_path))
    assert ending.problem.startswith("ended with code 1: ")
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "before"
    assert lines[1].endswith(f"process {os.getpid()}")


def test_what_ignores_a_polite_request_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_STOP_SECONDS", 0.2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    stop_process(process)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()


@needs_linux
def test_a_child_dies_with_the_process_that_started_it() -> None:
    child = (
        "import os, sys, time; from hushbot.launching.worker import end_with; "
        "end_with(int(sys.argv[1])); print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, str(os.getpid())])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 10
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its parent"
        time.sleep(0.01)


@needs_linux
def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from hushbot.launching.worker import end_with; end_with(1); print('went on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
