"""Peak memory: of the process without a GPU, of the GPU where one was used, and no number where none is known."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hushbot.evaluation import memory
from hushbot.evaluation.memory import peak_mb, start_phase, with_peak
from hushbot.types import RunInfo

RUN = RunInfo(id="r", created="now", seed=0, config_sha256="c", data_sha256="d")


class Cuda:
    """Two GPUs in small."""

    def __init__(self, held: list[int]) -> None:
        self.held = held

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return len(self.held)

    def max_memory_allocated(self, device: int) -> int:
        return self.held[device]

    def reset_peak_memory_stats(self, device: int) -> None:
        self.held[device] = 0


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_cuda", lambda: None)


@pytest.mark.usefixtures("no_gpu")
def test_a_process_has_held_at_least_what_it_just_held() -> None:
    pytest.importorskip("resource")
    before = peak_mb()
    assert before is not None
    block = bytearray(60_000_000)
    block[::4096] = b"x" * len(block[::4096])  # a page counts once it is written
    after = peak_mb()
    assert after is not None
    assert after >= before
    assert 60 < after < 1_000_000


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(("platform", "expected"), [("linux", 2.048), ("darwin", 0.002)])
def test_systems_count_in_different_units(monkeypatch: pytest.MonkeyPatch, platform: str, expected: float) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=2000))
    assert peak_mb() == pytest.approx(expected)


def test_of_gpus_the_fullest_counts_anew_in_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [3_000_000, 5_500_000]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(held)))
    assert peak_mb() == 5.5
    start_phase()
    assert held == [0, 0]
    held[0] = 1_000_000
    assert with_peak(RUN, "utility").peak_memory_mb == {"utility": 1.0}


def test_a_gpu_that_the_phase_did_not_use_is_not_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda([0])))
    monkeypatch.setattr(memory, "_resident_mb", lambda: 77.0)
    assert peak_mb() == 77.0


def test_what_cannot_be_told_is_absent_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_cuda", lambda: None)
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert peak_mb() is None
    assert with_peak(RUN, "train") == RUN


def test_an_interrupted_phase_keeps_its_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([9.0, 4.0, 12.0])
    monkeypatch.setattr(memory, "peak_mb", lambda: next(peaks))
    run = with_peak(RUN, "audit")
    assert run.peak_memory_mb == with_peak(run, "audit").peak_memory_mb == {"audit": 9.0}
    assert with_peak(run, "audit").peak_memory_mb == {"audit": 12.0}
    assert RUN.peak_memory_mb == {}
