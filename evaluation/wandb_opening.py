"""Open a Weights & Biases run in a folder: offline unless asked, and never with a question or a long wait.

Guarantees: nothing leaves this machine with `mode=offline`, whatever the environment says; with `mode=online` and no
credentials, or a server that does not answer, the user is told what to do and the run goes on offline. Host name,
program, git remote, console output and installed packages are not sent, and neither are W&B's own error reports.

What voids them: `wandb sync` and `mode=online` publish what the project's members may see.
"""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hushbot.evaluation.experiment import Say

if TYPE_CHECKING:
    import wandb

Mode: TypeAlias = Literal["offline", "online"]
_PATIENCE = 15.0
"""Seconds to wait for the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which run is wanted, and where."""

    folder: Path
    """Its files go into `wandb/` in here; its name is the run's."""
    id: str
    mode: Mode
    project: str
    entity: str | None
    group: str
    job_type: str
    config: Mapping[str, Any]
    """Settings that are shown."""


def own_environment(folder: Path) -> dict[str, str | None]:
    """Let W&B report errors to nobody and stage its files here, not in the home folder; return what was set before."""
    own = folder / "wandb"
    return exchange(
        {
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_DATA_DIR": str(own / "data"),
            "WANDB_CACHE_DIR": str(own / "cache"),
        }
    )


@contextlib.contextmanager
def private(folder: Path) -> Iterator[None]:
    """Keep W&B to its own environment for as long as this lasts."""
    before = own_environment(folder)
    try:
        yield
    finally:
        exchange(before)


def exchange(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, or remove those that are None; return what they were."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


def open_run(request: Request, say: Say) -> wandb.Run | None:
    """Return the run, offline where online is not possible; None where W&B opens none at all."""
    import wandb

    mode = possible_mode(request.mode, say)
    try:
        return _start(replace(request, mode=mode))
    except (wandb.Error, OSError) as error:
        if mode == "offline":
            say(f"W&B: {type(error).__name__}; {request.folder.name} is not followed")
            return None
        say(f"W&B: {type(error).__name__} on starting a run online; check `wandb login`. Going on offline")
        return open_run(replace(request, mode="offline"), say)


def possible_mode(mode: Mode, say: Say) -> Mode:
    """Return the mode that is possible, and say why where it is not the one asked for."""
    if mode == "offline":
        return "offline"
    import wandb

    address = os.environ.get("WANDB_BASE_URL") or str(wandb.setup().settings.base_url)
    if not has_credentials():
        say(f"W&B: no credentials for {address}; run `wandb login` or set WANDB_API_KEY. Going on offline")
        return "offline"
    if not answers(address):
        say(f"W&B: {address} does not answer; going on offline, `wandb sync` sends it later")
        return "offline"
    return "online"


def say_where(run: wandb.Run, folder: Path, say: Say) -> None:
    """Say where an offline run is kept, and how it is published."""
    if run.offline:
        where = folder / "wandb"
        say(f"W&B: kept in {where}; `wandb sync {where}/offline-*` publishes it")


def _start(request: Request) -> wandb.Run:
    import wandb

    return wandb.init(
        project=request.project,
        entity=request.entity,
        group=request.group,
        job_type=request.job_type,
        name=request.folder.name,
        id=request.id,
        resume="allow" if request.mode == "online" else None,
        dir=str(request.folder),
        config=dict(request.config),
        mode=request.mode,
        settings=_settings(),
    )


def _settings() -> wandb.Settings:
    """Return what W&B may do: no prompts, and nothing about this machine."""
    import wandb

    return wandb.Settings(
        init_timeout=_PATIENCE,
        login_timeout=_PATIENCE,
        silent=True,
        console="off",
        reinit="create_new",
        disable_git=True,
        disable_code=True,
        save_code=False,
        host="",
        program="",
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )


def has_credentials() -> bool:
    """Return whether somebody is logged in here; nobody is asked, and no server."""
    import wandb

    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.Error:  # a key that is none
        return False


def answers(address: str) -> bool:
    """Return whether a server can be connected to: W&B itself tries for minutes. Behind a proxy it is to find out."""
    parts = urllib.parse.urlsplit(address)
    if urllib.request.getproxies():
        return True
    port = parts.port or (80 if parts.scheme == "http" else 443)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=_PATIENCE):
            return True
    except OSError:
        return False
