"""Processes that do one thing together: this one and others beside it, each with a rank.

>>> with Ranks(function, request, 3) as others:              # doctest: +SKIP
...     mine = function(request, 0)
...     parts = [mine, *others.results()]                    # function(request, 1), function(request, 2)

Guarantees: all succeed or the whole fails, with what the first to fail had to say; no process outlives the block, nor
the death of the one that started it (on Linux). What crosses over goes through pipes, to and from processes that this
one started: no file, no port. The others say nothing by themselves, and Ctrl-C is this one's to answer.

What voids it: a function or an argument that another process cannot import, such as a class of a script.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, BinaryIO

from hushbot.errors import ConfigError, HushbotError, MachineError
from hushbot.heavy_imports import heavy_imports
from hushbot.launching.worker import end_with, signal_name, stop_process
from hushbot.machine_faults import machine_faults
from hushbot.quiet_libraries import quieten_deepspeed

_GRACE_SECONDS = 20.0
"""How long to wait for what the others have to say, once a connection broke here: who broke it off ends soon."""
_BROKEN_OFF = re.compile(r"gloo|nccl|broken pipe|connection (closed|reset|refused)|by peer", re.IGNORECASE)
"""How torch says that another process left: never a reason, always a consequence."""


def is_broken_off(error: BaseException) -> bool:
    """Return whether an error says that another process has left, so that whatever made it leave is the reason."""
    return not isinstance(error, HushbotError) and bool(_BROKEN_OFF.search(str(error)))


class RankError(HushbotError):
    """Another process of this run failed for a reason that nobody foresaw; its traceback is in the notes."""


class Ranks:
    """Start processes that each call a function with the request and their rank, from 1 up; rank 0 is the caller.

    Args:
        function: A function of a module that can be imported.
        request: What it gets; copied.
        n_ranks: All processes, this one included.
        environment: Of each of the others, beside this process's own.

    Raises:
        ConfigError: The request cannot be handed over.
    """

    def __init__(
        self,
        function: Callable[[Any, int], object],
        request: object,
        n_ranks: int,
        environment: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.n_ranks = n_ranks
        try:
            content = pickle.dumps((function, request))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{n_ranks} processes cannot share this run: {error}; use classes of modules that can be imported, or "
                "one process"
            ) from error
        self._others: list[_Other] = []
        try:
            for rank in range(1, n_ranks):
                more = environment[rank - 1] if environment else {}
                self._others.append(_Other(rank, more))
            for other in self._others:
                other.hand_over(content)
        except BaseException:
            self._stop()
            raise

    def results(self) -> list[Any]:
        """Wait for the others and return what each came to, in the order of their ranks.

        Raises:
            HushbotError: One of them failed.
        """
        for other in self._others:
            other.wait(None)
        if problem := self._problem():
            raise problem
        return [other.result for other in self._others]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            # A connection that broke is no reason: whoever left it has one.
            if isinstance(error, Exception) and is_broken_off(error):
                self._raise_cause(error)
        finally:
            self._stop()

    def _raise_cause(self, error: Exception) -> None:
        """Raise what made another process leave, if one did."""
        for other in self._others:
            other.wait(_GRACE_SECONDS / len(self._others))
        if problem := self._problem():
            raise problem from error

    def _problem(self) -> HushbotError | None:
        """Return the error of the process that failed for a reason of its own, or else of any that failed."""
        found = [(other.is_own_reason, error) for other in self._others if (error := other.error(self.n_ranks))]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def _stop(self) -> None:
        for other in self._others:
            stop_process(other.process)


class _Other:
    """One of the other processes."""

    def __init__(self, rank: int, environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.result: Any = None
        self._said: tuple[str, Any] | None = None
        reading, writing = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "hushbot.launching.ranks", str(rank), str(writing), str(os.getpid())],
                stdin=subprocess.PIPE,
                pass_fds=(writing,),
                env=os.environ | environment,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        # Read from the start: a pipe that is full would hold the other process up.
        self._listener = threading.Thread(target=self._listen, args=(reading,), daemon=True)
        self._listener.start()

    @property
    def is_own_reason(self) -> bool:
        """Return whether why it failed is a reason, and not that another one had left."""
        if self._said is not None:
            return self._said[0] == "error" or (self._said[0] == "bug" and not _BROKEN_OFF.search(self._said[1][0]))
        return True

    def hand_over(self, content: bytes) -> None:
        """Send it what to do."""
        pipe = self.process.stdin
        if pipe is None:  # only without stdin=PIPE
            return
        try:
            with pipe:
                pipe.write(pickle.dumps(sys.path))  # before what must be imported from there
                pipe.write(content)
        except BrokenPipeError:
            pass  # it has ended; `results` says why

    def wait(self, seconds: float | None) -> None:
        """Wait for its answer and its end."""
        self._listener.join(seconds)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return
        if self._said is not None and self._said[0] == "result":
            self.result = self._said[1]

    def error(self, n_ranks: int) -> HushbotError | None:
        """Return why it failed; None while it runs, and where it did not."""
        code = self.process.poll()
        who = f"process {self.rank} of {n_ranks} (counted from 0)"
        if self._said is not None and self._said[0] == "error":
            found: HushbotError = self._said[1]
            return found
        if self._said is not None and self._said[0] == "bug":
            summary, trace = self._said[1]
            failure = RankError(f"{who} failed: {summary}; the same command continues where it stopped")
            failure.add_note(trace)
            return failure
        if code is None or (code == 0 and self._said is not None):
            return None
        if code < 0:
            return MachineError(
                f"{who} was killed by {signal_name(-code)}, as by the system when memory runs out; the same command "
                "continues where it stopped"
            )
        return RankError(f"{who} ended with code {code} and said nothing; the same command continues")

    def _listen(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        if content:
            try:
                self._said = pickle.loads(content)
            except Exception as error:  # what it sent may be cut, or a class that only it knows
                self._said = ("bug", (f"its answer cannot be read ({type(error).__name__})", ""))


def _work(rank: int, answer: BinaryIO) -> None:
    """Do what was asked through the standard input, and answer."""
    sys.path[:] = pickle.load(sys.stdin.buffer)
    said: tuple[str, Any]
    try:
        with machine_faults():
            function, request = _take()
            said = ("result", function(request, rank))
    except HushbotError as error:
        error.__cause__ = error.__context__ = None
        said = ("error", error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__}: {error} ({os.path.basename(last.filename)}, line {last.lineno})"
        said = ("bug", (summary, "".join(traceback.format_tb(error.__traceback__))))
    with answer:
        pickle.dump(said, answer)


def _take() -> tuple[Callable[[Any, int], object], object]:
    """Return what is to be done."""
    try:
        with heavy_imports():
            function, request = pickle.load(sys.stdin.buffer)
    except (AttributeError, ImportError) as error:
        raise ConfigError(
            f"another process of this run cannot import what it is to work with: {error}; put it into a module, or use "
            "one process"
        ) from error
    return function, request


def _main() -> None:
    rank, answer, parent = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
    quieten_deepspeed()
    _work(rank, os.fdopen(answer, "wb"))


def threads_each(n_threads: int, n_ranks: int) -> int:
    """Return how many of a machine's threads each of so many processes gets."""
    return max(1, n_threads // n_ranks)


def own_devices(n_ranks: int, n_gpus: int) -> list[dict[str, str]]:
    """Return an environment for each rank but the first in which it sees one GPU, in turn; none without GPUs."""
    if n_gpus == 0:
        return [{} for _ in range(1, n_ranks)]
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",")[:n_gpus] if named else [str(i) for i in range(n_gpus)]
    return [{"CUDA_VISIBLE_DEVICES": gpus[rank % len(gpus)]} for rank in range(1, n_ranks)]


if __name__ == "__main__":
    # Under its own name: what is pickled elsewhere as a class of this module is then the same class here.
    from hushbot.launching import ranks

    ranks._main()
