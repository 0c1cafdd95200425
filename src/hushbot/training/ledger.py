"""What a private training has spent, on disk before it is spent: `privacy_ledger.jsonl`.

One JSON object a line: a header each time a process opens the ledger, then one line per noisy step.

Guarantees:

* A step's line is synced to disk when `spend` returns, so a process killed at any moment can only have written
  too much: the ledger never counts fewer steps than were taken.
* Nothing is ever taken back. Steps that a resumed run repeats from an older checkpoint count twice, since what the
  first attempt made of them may have been seen.
* A line that was cut by a kill is a step of unknown cost: it counts with the least noise and the highest rate that
  the ledger knows or that are asked for now.
* Anything else that is not understood, other data, and a ledger that a checkpoint knows to have been longer or
  another one are a `PrivacyError`; a refused ledger is left as it was.
* A second writer, or a file deleted under a running process, is noticed before the next step.

What voids it: file systems that do not honour fsync; deleting the ledger together with every checkpoint; taking a
noisy step without `spend`.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from hushbot.errors import PrivacyError
from hushbot.training.privacy import Spending, merge

NEW_RUN = "start a new run in another directory"
_OPENINGS = ('{"step": ', '{"ledger": ')


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHeader:
    """What the steps of one process have in common."""

    data_fingerprint: str
    """Changes with the training data; a ledger is about one data set."""
    noise_multiplier: float
    """Standard deviation of the noise over the clipping norm; 0 is no noise and no privacy."""
    sample_rate: float
    """Probability with which each dialogue takes part in a step."""
    max_grad_norm: float
    """The clipping norm."""
    n_dialogues: int
    is_insecure: bool = False
    """Whether the noise is known to whoever knows `insecure_seed`, so that the steps have no epsilon."""

    def __post_init__(self) -> None:
        merge([self.spending(0)])
        if not (0 < self.max_grad_norm < math.inf and self.n_dialogues >= 1):
            raise PrivacyError(
                f"max_grad_norm={self.max_grad_norm!r} and n_dialogues={self.n_dialogues!r} must be positive; "
                "set recipe.dp_sgd.max_grad_norm and split.members"
            )

    def spending(self, steps: int) -> Spending:
        """Return so many steps of this kind."""
        return Spending(self.noise_multiplier, self.sample_rate, steps)


@dataclass
class _Content:
    """What is in a ledger file."""

    ledger_id: str | None = None
    headers: list[LedgerHeader] = field(default_factory=list)
    steps: list[Spending] = field(default_factory=list)
    n_torn: int = 0
    size: int = 0
    is_terminated: bool = True

    @property
    def n_steps(self) -> int:
        return len(self.steps) + self.n_torn

    def history(self) -> tuple[Spending, ...]:
        """Return all steps, torn lines at the worst that the headers and steps know."""
        if not self.n_torn:
            return merge(self.steps)
        known = [*(header.spending(1) for header in self.headers), *self.steps]
        noise, rate = min(k.noise_multiplier for k in known), max(k.sample_rate for k in known)
        return merge([*self.steps, Spending(noise, rate, self.n_torn)])


class PrivacyLedger:
    """An open ledger; make one with `PrivacyLedger.open`."""

    def __init__(self, path: Path, header: LedgerHeader, content: _Content, file: FileIO) -> None:
        self._path = path
        self._header = header
        self._content = content
        self._file = file

    @classmethod
    def open(
        cls, path: Path, header: LedgerHeader, *, expected_id: str | None = None, at_least: int = 0
    ) -> PrivacyLedger:
        """Open a ledger to write to, a new one where there is none, and write a header.

        Args:
            path: The file; its folder exists.
            header: What the steps to come have in common.
            expected_id: The id of the ledger that a checkpoint belongs to; None without a checkpoint.
            at_least: How many steps that checkpoint knows of.

        Raises:
            PrivacyError: The ledger is missing, another one, shorter than expected, about other data, or damaged.
        """
        content = _read(path) if path.exists() else _Content()
        _check_expected(path, content, expected_id, at_least)
        for known in content.headers:
            if known.data_fingerprint != header.data_fingerprint:
                raise PrivacyError(
                    f"{path} is about data {known.data_fingerprint[:12]}, this run's are "
                    f"{header.data_fingerprint[:12]}; restore the data or {NEW_RUN}"
                )
            if known.is_insecure != header.is_insecure:
                raise PrivacyError(
                    f"{path} was begun with is_insecure={known.is_insecure}, this run has {header.is_insecure}; set "
                    f"recipe.dp_sgd.insecure_seed as it was or {NEW_RUN}"
                )
        is_new = content.size == 0
        content.ledger_id = content.ledger_id or secrets.token_hex(16)
        content.headers.append(header)
        try:
            file = FileIO(path, "ab")
        except OSError as error:
            raise PrivacyError(f"{path} cannot be written: {error}; make it writable or {NEW_RUN}") from error
        ledger = cls(path, header, content, file)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        ledger._append({"ledger": content.ledger_id, **asdict(header), "started": started})
        if is_new:
            _sync_folder(path.parent)
        return ledger

    @property
    def ledger_id(self) -> str:
        """Return the random id that the ledger keeps over restarts."""
        return str(self._content.ledger_id)

    @property
    def n_steps(self) -> int:
        """Return how many steps were spent, those of earlier processes and cut lines included."""
        return self._content.n_steps

    def history(self) -> tuple[Spending, ...]:
        """Return everything that was spent."""
        return self._content.history()

    def spend(self, step: int) -> None:
        """Write down one noisy step, before it is taken.

        Args:
            step: The optimiser step, for whoever reads the file; a repeated number counts again.

        Raises:
            PrivacyError: The line is not safely on disk, so the step must not be taken.
        """
        kind = self._header.spending(1)
        self._append({"step": step, "noise_multiplier": kind.noise_multiplier, "sample_rate": kind.sample_rate})
        self._content.steps.append(kind)

    def close(self) -> None:
        """Close the file; nothing can be spent afterwards."""
        self._file.close()

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False) + "\n"
        data = (line if self._content.is_terminated else f"\n{line}").encode()
        try:
            status = os.fstat(self._file.fileno())
            if status.st_nlink == 0 or status.st_size != self._content.size:
                raise PrivacyError(
                    f"{self._path} was deleted or has {status.st_size} bytes where this process left "
                    f"{self._content.size}; run one training per directory, restore the file or {NEW_RUN}"
                )
            n_written = self._file.write(data)
            os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:  # ValueError: the file is closed
            raise PrivacyError(f"{self._path} cannot be written: {error}; make room for it and resume") from error
        if n_written != len(data):
            raise PrivacyError(f"{self._path} took {n_written} of {len(data)} bytes; make room for it and resume")
        self._content.size += len(data)
        self._content.is_terminated = True


def read_history(path: Path) -> tuple[Spending, ...]:
    """Return everything that a ledger file says was spent, without writing to it.

    Raises:
        PrivacyError: The file is missing or damaged, or has no header, so that its cost is unknown; or its noise
            is known, so that no epsilon may be computed from it.
    """
    content = _read(path)
    if not content.headers:
        raise PrivacyError(f"{path} has no header, so what was spent is unknown; restore it or {NEW_RUN}")
    if any(header.is_insecure for header in content.headers):
        raise PrivacyError(
            f"{path} is of a run whose noise is known (insecure_seed), so there is no epsilon; set "
            f"recipe.dp_sgd.insecure_seed=null and {NEW_RUN}"
        )
    return content.history()


def _check_expected(path: Path, content: _Content, expected_id: str | None, at_least: int) -> None:
    if expected_id is not None and content.ledger_id != expected_id:
        found = "is missing or empty" if content.ledger_id is None else f"has the id {content.ledger_id}"
        raise PrivacyError(
            f"{path} {found}, the checkpoint belongs to ledger {expected_id}: what was spent is unknown; restore the "
            f"ledger or {NEW_RUN}"
        )
    if content.n_steps < at_least:
        raise PrivacyError(
            f"{path} has {content.n_steps} steps, the checkpoint knows of {at_least}: lines were lost; restore the "
            f"ledger or {NEW_RUN}"
        )


def _read(path: Path) -> _Content:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise PrivacyError(
            f"{path} cannot be read ({error}), so what was spent is unknown; restore it or {NEW_RUN}"
        ) from error
    content = _Content(size=len(raw), is_terminated=raw.endswith(b"\n") or not raw)
    # A process writes its header first, and only its death can cut a line: steps follow a header or a step.
    is_after_header = False
    for number, line in enumerate(raw.decode(errors="replace").removesuffix("\n").split("\n") if raw else (), 1):
        where = f"{path}, line {number}"
        entry = _parse(line)
        if entry is None and _is_torn(line):
            content.n_torn += 1
            is_after_header = False
        elif entry is not None and "ledger" in entry:
            _add_header(content, entry, where)
            is_after_header = True
        elif entry is not None and "step" in entry and is_after_header:
            content.steps.append(_step(entry, where))
        else:
            raise PrivacyError(
                f"{where} is neither a header nor a step that follows one nor a line that was cut: {line[:80]!r}; "
                f"restore the ledger or {NEW_RUN}"
            )
    return content


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_torn(line: str) -> bool:
    """Return whether a text is the beginning of one line of ours, perhaps filled up with zeros by a file system.

    Two lines run together are not: they would be two steps.
    """
    start = line.rstrip("\0")
    return bool(line) and "}" not in start and any(o.startswith(start) or start.startswith(o) for o in _OPENINGS)


def _add_header(content: _Content, entry: Mapping[str, Any], where: str) -> None:
    # Whole numbers are fine where floats stand, but not the other way round.
    kinds = {"data_fingerprint": str, "n_dialogues": int, "is_insecure": bool}
    values = {f.name: _value(entry, f.name, kinds.get(f.name, float), where) for f in fields(LedgerHeader)}
    ledger_id = _value(entry, "ledger", str, where)
    if content.ledger_id not in (None, ledger_id):
        raise PrivacyError(
            f"{where} belongs to ledger {ledger_id}, the lines before to {content.ledger_id}; restore the ledger or "
            f"{NEW_RUN}"
        )
    content.ledger_id = ledger_id
    content.headers.append(_built(values, where))
    if content.headers[0].data_fingerprint != content.headers[-1].data_fingerprint:
        raise PrivacyError(f"{where} is about other data than the lines before; restore the ledger or {NEW_RUN}")


def _built(values: Mapping[str, Any], where: str) -> LedgerHeader:
    try:
        return LedgerHeader(**values)
    except PrivacyError as error:
        raise PrivacyError(f"{where}: {error}") from error


def _step(entry: Mapping[str, Any], where: str) -> Spending:
    _value(entry, "step", int, where)
    noise, rate = (float(_value(entry, name, float, where)) for name in ("noise_multiplier", "sample_rate"))
    try:
        merge([Spending(noise, rate, 1)])
    except PrivacyError as error:
        raise PrivacyError(f"{where}: {error}") from error
    return Spending(noise, rate, 1)


def _value(entry: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value: Any = entry.get(name)
    is_right = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if not is_right or (kind is float and not abs(value) < 1e300):
        raise PrivacyError(f"{where}: {name}={value!r} must be a {kind.__name__}; restore the ledger or {NEW_RUN}")
    return value


def _sync_folder(folder: Path) -> None:
    """Make a new file's name survive a power cut, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
