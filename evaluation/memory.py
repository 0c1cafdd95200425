"""How much memory a phase of a run held at most.

Guarantees: of the GPU where the phase used one: the most that tensors held at once, counted anew in each phase, of the
fullest GPU. Otherwise the process's peak resident set, code and libraries included. One MB is 1,000,000 bytes. Where
neither can be told there is no number, never 0.

What voids it: a resident set is the peak up to then, so that a phase has at least what an earlier one of the same
process had; processes that load data count for themselves; memory of Apple GPUs is not seen.
"""

from __future__ import annotations

import sys
from typing import Any

from hushbot.types import RunInfo

_MB = 1_000_000


def start_phase() -> None:
    """Forget what GPUs held before."""
    torch = _cuda()
    if torch is not None:
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)


def peak_mb() -> float | None:
    """Return the most memory that was held since the phase started; None where it cannot be told."""
    torch = _cuda()
    if torch is not None:
        held = max(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))
        if held > 0:
            return float(held / _MB)
    return _resident_mb()


def with_peak(run: RunInfo, phase: str) -> RunInfo:
    """Return a run that knows what a phase held; a phase that was interrupted keeps its largest."""
    found = peak_mb()
    if found is None:
        return run
    largest = max(found, run.peak_memory_mb.get(phase, 0.0))
    return run.model_copy(update={"peak_memory_mb": {**run.peak_memory_mb, phase: largest}})


def _cuda() -> Any:
    """Return torch where it has used a GPU in this process, else None."""
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _resident_mb() -> float | None:
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts blocks of 1024 bytes, macOS bytes.
    size = peak if sys.platform == "darwin" else peak * 1024
    return size / _MB if size > 0 else None
