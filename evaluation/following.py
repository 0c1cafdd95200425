"""What trackers that keep something open are told besides the report: which run they follow, and that it has ended.

Guarantees: a tracker is closed however the audit ends; what it logged of a run is on disk beside the run, so a resumed
run keeps its name and is not logged twice. What a kill leaves unwritten is logged again, never left out.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hushbot.errors import ConfigError, DataError
from hushbot.evaluation.experiment import Say
from hushbot.protocols import RunTracker, Tracker
from hushbot.storage import read_json, write_atomically

FOLDER = "trackers"
"""Where in a run directory the notes of trackers lie."""


@contextlib.contextmanager
def following(trackers: Iterable[Tracker], folder: Path, config: Mapping[str, Any], say: Say) -> Iterator[None]:
    """Tell trackers which run they follow, and close them afterwards."""
    with contextlib.ExitStack() as closing:
        for tracker in trackers:
            if isinstance(tracker, RunTracker):
                closing.callback(tracker.close)
                tracker.follow(folder, config, say)
        yield


def check_installed(trackers: Iterable[Tracker]) -> None:
    """Let every tracker say what it lacks, before anything is trained.

    Raises:
        ConfigError: One lacks a package, or cannot keep its promises here.
    """
    for tracker in trackers:
        if isinstance(tracker, RunTracker):
            tracker.check()


def need(module: str, install: str) -> None:
    """Refuse to go on without an optional package.

    Raises:
        ConfigError: The module is not there.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"the tracker needs {module}; `pip install '{install}'`, or set tracker=none")


class Progress:
    """What a tracker calls a run, and which parts of its report it has logged.

    Args:
        path: Where it is kept.
        prefix: What a new run's name begins with.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self.path = path
        found = read_json(path) if path.exists() else {}
        if not isinstance(found.get("logged", []), list):
            raise DataError(f"{path}: logged is no list; delete the file, and everything is logged once more")
        self.id = str(found.get("id") or f"{prefix}-{secrets.token_hex(4)}")
        """The run's name on the dashboard: of this run directory alone, and the same when it is resumed."""
        self.is_resumed = bool(found)
        self._logged = [str(name) for name in found.get("logged", [])]
        if not found:
            self.keep()

    @property
    def n_logged(self) -> int:
        """Return how many parts are noted."""
        return len(self._logged)

    def is_new(self, section: str) -> bool:
        """Return whether a part of the report was not logged yet, and note that it is now."""
        if section in self._logged:
            return False
        self._logged.append(section)
        return True

    def keep(self) -> None:
        """Write it down: everything noted so far is safe with the tracker."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {"id": self.id, "logged": self._logged}
        write_atomically(self.path, (json.dumps(content, indent=1) + "\n").encode())
