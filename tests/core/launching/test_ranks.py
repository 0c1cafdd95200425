"""Processes of one run: all succeed or the whole fails with the reason of the first, and none is left over."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import ConfigError, DataError, HushbotError, MachineError
from hushbot.launching.ranks import RankError, Ranks, own_devices, threads_each

PARTS = """
    import os, signal, sys, time
    from hushbot.errors import ConfigError, DataError

    def where(request, rank):
        return {"request": request, "rank": rank, "pid": os.getpid(), "told": os.environ.get("HUSHBOT_TOLD")}

    def long_answer(request, rank):
        return bytes(request)

    def fail(request, rank):
        if rank == request:
            raise DataError(f"dialogue d{rank} is damaged; mend it")
        raise RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1")

    def misconfigure(request, rank):
        raise ConfigError("a is wrong", "b is wrong")

    def stumble(request, rank):
        return {}["missing"]

    def fill_up(request, rank):
        raise OSError(28, "No space left on device", "runs/x")

    def die(request, rank):
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(request, rank):
        os._exit(request)

    def wait(request, rank):
        time.sleep(60)

    def chatter(request, rank):
        print("a library prints")
        return rank
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module of functions that other processes can import."""
    (tmp_path / "rank_parts.py").write_text(textwrap.dedent(PARTS), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("rank_parts", None)
    import importlib

    return importlib.import_module("rank_parts")


def test_each_has_the_request_and_its_rank_in_a_process_of_its_own(parts: Any) -> None:
    with Ranks(parts.where, {"seed": 1}, 3, [{"HUSHBOT_TOLD": "one"}, {}]) as others:
        found = others.results()
    assert [(each["request"], each["rank"], each["told"]) for each in found] == [
        ({"seed": 1}, 1, "one"),
        ({"seed": 1}, 2, None),
    ]
    assert len({os.getpid(), *(each["pid"] for each in found)}) == 3
    assert not any(is_alive(each["pid"]) for each in found)


def test_more_than_a_pipe_holds_comes_back(parts: Any) -> None:
    with Ranks(parts.long_answer, 1 << 20, 2) as others:
        assert others.results() == [bytes(1 << 20)]


def test_what_a_library_prints_is_no_answer(parts: Any) -> None:
    with Ranks(parts.chatter, None, 2) as others:
        assert others.results() == [1]


def test_the_reason_of_the_first_to_fail_is_told_and_not_what_followed_from_it(parts: Any) -> None:
    with pytest.raises(DataError, match="dialogue d2 is damaged; mend it"), Ranks(parts.fail, 2, 4) as others:
        others.results()


def test_a_connection_that_breaks_here_is_blamed_on_who_broke_it(parts: Any) -> None:
    with pytest.raises(DataError, match="dialogue d1"), Ranks(parts.fail, 1, 2):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2")


def test_an_error_of_ones_own_stays_ones_own(parts: Any) -> None:
    with pytest.raises(ZeroDivisionError), Ranks(parts.fail, 1, 2):
        raise ZeroDivisionError
    with pytest.raises(HushbotError, match="mine"), Ranks(parts.fail, 1, 2):
        raise HushbotError("mine")


def test_configuration_errors_and_full_disks_stay_what_they_are(parts: Any) -> None:
    with pytest.raises(ConfigError) as wrong, Ranks(parts.misconfigure, None, 2) as others:
        others.results()
    assert wrong.value.exit_code == 2
    assert str(wrong.value) == "a is wrong\nb is wrong"
    with pytest.raises(MachineError, match="runs/x: No space left on device"), Ranks(parts.fill_up, None, 2) as others:
        others.results()


def test_a_bug_says_where_it_is(parts: Any) -> None:
    said = r"process 1 of 2 .* failed: KeyError: 'missing' \(rank_parts.py, line \d+\)"
    with pytest.raises(RankError, match=said), Ranks(parts.stumble, None, 2) as others:
        others.results()


def test_one_that_was_killed_is_said_to_have_been(parts: Any) -> None:
    said = r"process 1 of 2 \(counted from 0\) was killed by SIGKILL"
    with pytest.raises(MachineError, match=said), Ranks(parts.die, None, 2) as others:
        others.results()


@pytest.mark.parametrize("code", [0, 3])
def test_one_that_ends_without_an_answer_has_failed(parts: Any, code: int) -> None:
    with pytest.raises(RankError, match=f"ended with code {code} and said nothing"), Ranks(parts.leave, code, 2) as o:
        o.results()


def test_none_is_left_over(parts: Any) -> None:
    others = Ranks(parts.wait, None, 3)
    pids = [other.process.pid for other in others._others]
    assert all(map(is_alive, pids))
    with pytest.raises(KeyboardInterrupt), others:
        raise KeyboardInterrupt
    assert not any(map(is_alive, pids))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_the_others_die_with_the_first(parts: Any) -> None:
    code = (
        "import rank_parts; from hushbot.launching.ranks import Ranks\n"
        "with Ranks(rank_parts.wait, None, 2) as others:\n"
        "    print(others._others[0].process.pid, flush=True); others.results()"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(parts.__file__).parent)}
    first = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert first.stdout is not None
    with first.stdout as lines:
        pid = int(lines.readline())
    time.sleep(1)  # it has asked to be killed by then, or notices at its start that it is alone
    first.kill()
    first.wait()
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived the first one"
        time.sleep(0.05)


def test_what_no_other_process_can_import_is_refused() -> None:
    with pytest.raises(ConfigError, match="2 processes cannot share this run"):
        Ranks(lambda request, rank: None, None, 2)
    with pytest.raises(ConfigError, match="2 processes cannot share this run"):
        Ranks(time.sleep, threading.Lock(), 2)


def test_a_function_of_a_script_is_refused_with_a_remedy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from hushbot.launching.ranks import Ranks\n"
        "def work(request, rank): return rank\n"
        "with Ranks(work, None, 2) as others: others.results()\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert "put it into a module, or use one process" in done.stderr
    assert done.stderr.count("Traceback") <= 2  # the script ran once, not once a process


def test_threads_and_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [threads_each(8, n) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert own_devices(3, 0) == [{}, {}]
    assert own_devices(4, 2) == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "101"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert own_devices(3, 2) == [{"CUDA_VISIBLE_DEVICES": "7"}, {"CUDA_VISIBLE_DEVICES": "5"}]


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
