"""`hushbot serve`: a run's bot as an OpenAI-compatible endpoint on this machine, until it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hushbot.commands.train import say
from hushbot.composition import compose, plain_problems
from hushbot.errors import ConfigError
from hushbot.run import RunDirectory
from hushbot.serving.server import LOOPBACK


def main(overrides: Sequence[str], *, trust: Sequence[str] = (), config_dir: Path | None = None) -> None:
    """Load the bot, say where it is, and answer until Ctrl-C."""
    from hushbot.serving.faults import faults_of

    check(config := compose("serve", overrides, config_dir=config_dir))
    faults_of(config["faults"])
    audited = RunDirectory.open(config["run"])
    from hushbot.evaluation.chatting import load_chat
    from hushbot.evaluation.suite import quieten
    from hushbot.serving import serving

    quieten()
    chat, found = load_chat(audited, config["inference"], trust)
    name = config["model"] or found
    for fault in config["faults"]:
        say(f"warning: fault {fault} is on; the answers are wrong on purpose")
    if threading.current_thread() is threading.main_thread():  # a service manager's way to end it counts as Ctrl-C
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if config["host"] not in LOOPBACK:
        say(f"warning: host={config['host']} lets every machine that reaches it ask this bot, without a password")
    with (
        serving(
            chat.target,
            name=name,
            base_name=config["base"],
            faults=config["faults"],
            host=config["host"],
            port=config["port"],
            prompt_of=chat.prompt_of,
            say=say,
        ) as url,
        contextlib.suppress(KeyboardInterrupt),
    ):
        base = f" reference_model={config['base']}" if config["base"] else ""
        print(f"serving {name} at {url} (Ctrl-C ends)", flush=True)
        print(f"audit it: hushbot audit target=http url={url} model={name}{base} run={config['run']}", flush=True)
        threading.Event().wait()
    say("ended")


def check(config: dict[str, Any]) -> None:
    """Check every setting.

    Raises:
        ConfigError: Holds all problems.
    """
    problems = plain_problems(config)
    faults, port = config["faults"], config["port"]
    if not config["run"]:
        problems.append("run is empty; give run=DIR, the run directory whose bot is served")
    if not isinstance(faults, list) or not all(isinstance(fault, str) for fault in faults):
        problems.append(f"faults={faults!r} must be a list of names, such as faults=[drip]")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 2**16:
        problems.append(f"port={port!r} must be a whole number from 0 to 65535")
    if not isinstance(config["base"], str | None):
        problems.append(f"base={config['base']!r} must be a name or null")
    if not isinstance(config["host"], str) or not isinstance(config["allow_remote"], bool):
        problems.append("host must be an address and allow_remote true or false")
    elif config["host"] not in LOOPBACK and not config["allow_remote"]:
        problems.append(f"host={config['host']} is reached by other machines; set allow_remote=true if that is wanted")
    if problems:
        raise ConfigError(*problems)
