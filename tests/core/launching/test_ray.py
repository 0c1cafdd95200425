"""Cells as Ray tasks, on a real cluster of one machine: requests, rooms, losses, and nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import ConfigError, HushbotError
from hushbot.launching.ray import RayLauncher, _check_room, _connected, _Tasks
from hushbot.launching.worker import Job


def test_what_each_task_asks_for() -> None:
    assert RayLauncher().request == {"num_cpus": 1, "num_gpus": 0}
    assert RayLauncher(threads=4, gpus=0.5, memory_gb=1.5).request == {
        "num_cpus": 4, "num_gpus": 0.5, "memory": 1_500_000_000,
    }  # fmt: skip
    assert RayLauncher(threads=4, cpus=0.5).request["num_cpus"] == 0.5


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        RayLauncher(threads=0, workers=0, retries=-1)
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        "launcher.threads=0", "launcher.workers=0", "launcher.retries=-1",
    ]  # fmt: skip
    for gpus in (-1.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"launcher\.gpus="):
            RayLauncher(gpus=gpus)
    for cpus in (0.0, float("inf")):
        with pytest.raises(ConfigError, match=r"launcher\.cpus="):
            RayLauncher(cpus=cpus)
    with pytest.raises(ConfigError, match=r"launcher\.address"):
        RayLauncher(address="")


def node(*, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


def test_no_machine_with_room_is_an_error_here_and_a_wait_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    request = {"num_cpus": 2, "num_gpus": 1}
    _check_room([node(CPU=1), node(CPU=2, GPU=1)], request, None)
    # Two machines that have it together do not have it.
    for nodes in ([node(CPU=2), node(CPU=1, GPU=8)], [node(CPU=2, GPU=1, alive=False)], []):
        with pytest.raises(HushbotError, match=r"CPU 2, GPU 1.*lower launcher\.cpus"):
            _check_room(nodes, request, None)
        _check_room(nodes, request, "auto")
        assert "waiting for one that has" in capsys.readouterr().err


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HushbotError, match=r"pip install 'hushbot\[ray\]'"):
        RayLauncher().launch([], tmp_path / "cells")


# A cluster of one machine

needs_ray = pytest.mark.integration


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray", reason="needs Ray: pip install 'hushbot[ray]'")
    before = dict(os.environ)
    with _connected(None) as connected:
        assert os.environ == before
        yield connected


def job(tmp_path: Path) -> Job:
    """Return a cell that fails after it has started."""
    request = tmp_path / "request.json"
    request.write_text('{"config": {"recipe": {}, "fit": true}, "path": "run", "trust": []}', encoding="utf-8")
    (tmp_path / "log").touch()
    return Job(request=str(request), log=str(tmp_path / "log"), folder=str(tmp_path), threads=1)


def sleeping_job(tmp_path: Path) -> Job:
    """Return a cell that waits for its configuration until somebody ends it."""
    asked = job(tmp_path)
    Path(asked.request).unlink()
    os.mkfifo(asked.request)
    return asked


def pids_of(tmp_path: Path) -> tuple[int, int] | None:
    """Return the worker's process and the cell's, once there are both."""
    found = re.search(r"process (\d+)", (tmp_path / "log").read_text(encoding="utf-8"))
    if found is None:
        return None
    children = Path(f"/proc/{found[1]}/task/{found[1]}/children").read_text(encoding="utf-8").split()
    return (int(found[1]), int(children[0])) if children else None


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]


def wait_for(ask: Any, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.05)
    return answer


@needs_ray
def test_a_failing_cell_says_what_it_said(ray: Any, tmp_path: Path) -> None:
    attempt = _Tasks(ray, RayLauncher(cpus=0.5).request).start(job(tmp_path), "one")
    ending = wait_for(attempt.ending)
    assert ending.problem.startswith("ended with code 1: ")
    assert not ending.was_killed
    assert "running on" in (tmp_path / "log").read_text(encoding="utf-8")


@needs_ray
def test_a_lost_worker_takes_its_cell_with_it_and_is_told_apart(ray: Any, tmp_path: Path) -> None:
    attempt = _Tasks(ray, RayLauncher().request).start(sleeping_job(tmp_path), "one")
    worker, cell = wait_for(lambda: pids_of(tmp_path))
    os.kill(worker, signal.SIGKILL)
    ending = wait_for(attempt.ending)
    assert ending.was_killed
    assert ending.problem == "lost its worker (WorkerCrashedError)"
    wait_for(lambda: not is_alive(cell))


@needs_ray
def test_stopping_ends_worker_and_cell(ray: Any, tmp_path: Path) -> None:
    attempt = _Tasks(ray, RayLauncher().request).start(sleeping_job(tmp_path), "one")
    _, cell = wait_for(lambda: pids_of(tmp_path))
    attempt.stop()
    wait_for(lambda: not is_alive(cell))
    assert attempt.ending() is not None


@needs_ray
def test_nobody_without_the_token_gets_in(ray: Any) -> None:
    address = ray.get_runtime_context().gcs_address
    code = f"import ray; ray.init(address={address!r}, logging_level='critical')"
    stranger = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=stranger | {"RAY_AUTH_MODE": "disabled"}
    )
    assert done.returncode != 0
    assert "ConnectionError" in done.stderr


@needs_ray
def test_no_dashboard_no_statistics(ray: Any) -> None:
    from ray._private.worker import global_worker

    assert not global_worker.node.webui_url
    gcs = global_worker.node.all_processes["gcs_server"][0].process.pid
    assert b"RAY_USAGE_STATS_ENABLED=0" in Path(f"/proc/{gcs}/environ").read_bytes().split(b"\0")


@needs_ray
def test_a_cluster_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs Ray: pip install 'hushbot[ray]'")
    code = (
        "import sys\nfrom pathlib import Path\nfrom hushbot.errors import HushbotError\n"
        "from hushbot.launching.ray import RayLauncher\n"
        "try:\n    RayLauncher(address='auto').launch([], Path(sys.argv[1]))\n"
        "except HushbotError as error:\n    print(error)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # A process of its own, which knows of no cluster: where Ray keeps its sessions is named after nobody.
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, env=clean | {"RAY_TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert "launcher.address=auto: no Ray cluster was reached" in done.stdout, done.stderr
