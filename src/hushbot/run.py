"""The run directory on disk: configuration and manifest before training, records and report during the audit.

    >>> with RunDirectory(path).create(config, manifest) as run:        # doctest: +SKIP
    ...     run.write_records("membership", rows, reveal=False)
    ...     run.write_report(report)
    >>> RunDirectory.open(path).read_report().status                    # doctest: +SKIP
    'complete'

Guarantees:

* `config.yaml` and `manifest.json` are there before anything is trained, and an existing one that differs is
  refused: nobody becomes a member after the fact.
* A file is there whole or not at all: it is written beside its place, synced, and moved in one step.
* Two processes never write one run directory: `create` holds a lock until it is closed or the process ends.
* No NaN or infinity reaches a report; records are masked unless `reveal` is asked for, and then the directory
  is closed to other users (mode 0700).

What voids them: editing the files by hand, and network file systems without POSIX locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import math
import os
import platform
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import yaml
from pydantic import ValidationError

from hushbot.errors import AuditError, DataError
from hushbot.masking import mask_row
from hushbot.storage import (
    differences,
    float_leaves,
    plain_json,
    read_json,
    read_yaml,
    remove_scratch,
    without_keys,
    write_atomically,
)
from hushbot.types import AuditReport, as_estimate

__all__ = [
    "RunDirectory",
    "config_sha256",
    "read_report",
    "report_json",
    "report_schema",
    "versions",
    "write_atomically",
]

# fmt: off
PACKAGES = (
    "hushbot", "torch", "transformers", "tokenizers", "pytorch-lightning", "peft", "opacus", "datasets",
    "hydra-core", "pydantic", "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "sacrebleu",
)
# fmt: on
"""Distributions whose versions a report names."""

_SHOWN_DIFFERENCES = 5


class RunDirectory:
    """One run on disk. `create` opens it for writing and holds the lock; `open` is for reading.

    Args:
        path: The directory; `create` makes it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: IO[str] | None = None

    # Making and opening

    def create(
        self, config: Mapping[str, Any], manifest: Mapping[str, Any], *, free_keys: Collection[str] = ()
    ) -> RunDirectory:
        """Write the configuration and the manifest, or check that they are what is already there (to resume).

        Args:
            config: The whole resolved configuration.
            manifest: Who is a member, the canaries' coins, the hash of the data.
            free_keys: Configuration keys, dotted below the top level (`recipe.dp_sgd.engine`), that may differ
                when a run is resumed, because they change where or how it happens and not what it measures; the
                file keeps what it has.

        Raises:
            ConfigError: The configuration holds something that JSON and YAML cannot.
            DataError: The directory belongs to another run, or another process is writing it.
        """
        plain_config, plain_manifest = (
            plain_json(config, "the configuration"),
            plain_json(manifest, "the manifest"),
        )
        self.path.mkdir(parents=True, exist_ok=True)
        self._acquire()
        try:
            self._clear()
            # Both are compared before either is written: a refused run leaves the directory as it was.
            if self.config_path.exists():
                _refuse_difference(
                    self.config_path, without_keys(self.config, free_keys), without_keys(plain_config, free_keys)
                )
            if self.manifest_path.exists():
                _refuse_difference(self.manifest_path, self.manifest, plain_manifest)
            if not self.config_path.exists():
                text = yaml.safe_dump(plain_config, sort_keys=False)
                write_atomically(self.config_path, text.encode())
            if not self.manifest_path.exists():
                text = json.dumps(plain_manifest, indent=1, ensure_ascii=False, allow_nan=False)
                write_atomically(self.manifest_path, (text + "\n").encode())
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Return an existing run.

        Raises:
            DataError: The directory holds no run.
        """
        run = cls(path)
        for needed in (run.config_path, run.manifest_path):
            if not needed.is_file():
                raise DataError(f"{run.path} is no run directory: it has no {needed.name}; give the path of a run")
        return run

    def close(self) -> None:
        """Let other processes write; closing twice is harmless."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Where things are

    @property
    def config_path(self) -> Path:
        """Return where the resolved configuration lies."""
        return self.path / "config.yaml"

    @property
    def manifest_path(self) -> Path:
        """Return where the split, the coins and the data hash lie."""
        return self.path / "manifest.json"

    @property
    def report_path(self) -> Path:
        """Return where the report lies once there is one."""
        return self.path / "report.json"

    @property
    def checkpoints(self) -> Path:
        """Return the directory of Lightning checkpoints; made by whoever writes there."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Return the directory that transformers and peft load; made by whoever writes there."""
        return self.path / "model"

    @property
    def records(self) -> Path:
        """Return the directory of records."""
        return self.path / "records"

    @property
    def cache(self) -> Path:
        """Return the directory of answers that are kept until the audit ends; made by whoever writes there."""
        return self.path / "cache"

    @property
    def config(self) -> dict[str, Any]:
        """Return the configuration on disk."""
        config = read_yaml(self.config_path)
        if not isinstance(config, dict):
            raise DataError(f"{self.config_path} holds no mapping; restore it or start a new run")
        return config

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the manifest on disk."""
        return read_json(self.manifest_path)

    @property
    def run_id(self) -> str:
        """Return a short name of the run; equal configurations share it, so a resumed run keeps its own."""
        return config_sha256(self.config)[:12]

    @property
    def is_complete(self) -> bool:
        """Return whether the run has a report that says it is complete; a damaged report is an error."""
        return self.report_path.exists() and self.read_report().status == "complete"

    # Writing and reading results

    def write_records(self, name: str, rows: Sequence[Mapping[str, Any]], *, reveal: bool) -> str:
        """Write one row per candidate, document or query; return the path relative to the run directory.

        Args:
            name: The attack.
            rows: Records; a key that a row lacks is empty there.
            reveal: Write identifying values as they are, and close the directory to other users.

        Raises:
            DataError: The name is no file name, or a column mixes types.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.@-]*", name):
            raise DataError(f"records name {name!r} must be letters, digits and _.@- only; rename the attack")
        shown = [dict(row) if reveal else mask_row(dict(row)) for row in rows]
        target = self.records / f"{name}.parquet"
        with self._exclusive():
            if reveal:
                self.path.chmod(0o700)
            self.records.mkdir(parents=True, exist_ok=True)
            write_atomically(target, _parquet(shown, target))
        return target.relative_to(self.path).as_posix()

    def write_report(self, report: AuditReport) -> None:
        """Write the report whole or not at all; the previous one stays until the new one is safe on disk.

        Raises:
            AuditError: A number is NaN or infinite, or a value is none that JSON has.
        """
        content = report_json(report).encode()
        with self._exclusive():
            write_atomically(self.report_path, content)

    def read_report(self) -> AuditReport:
        """Return the report on disk.

        Raises:
            DataError: There is none, or it breaks the format; names the file and the key.
        """
        return read_report(self.report_path)

    # The lock

    def _acquire(self) -> None:
        if self._lock is not None:
            return
        handle = (self.path / ".lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise DataError(
                f"{self.path} is being written by process {owner}; wait for it to end or choose another run directory"
            ) from error
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        self._lock = handle

    def _clear(self) -> None:
        """Remove what a process that was killed had not finished: parts of files, and of a model."""
        for folder in (self.path, self.records):
            remove_scratch(folder)
        for scratch in self.path.glob(f".{self.model.name}-*"):
            shutil.rmtree(scratch, ignore_errors=True)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Hold the lock for one write, unless `create` holds it anyway."""
        was_held = self._lock is not None
        self._acquire()
        try:
            yield
        finally:
            if not was_held:
                self.close()


def read_report(path: Path) -> AuditReport:
    """Return the report in a file, wherever it lies.

    Raises:
        DataError: There is none, or it breaks the format; names the file and the key.
    """
    content = read_json(path)
    try:
        report = AuditReport.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"{path}: {key}: {first['msg']} ({error.error_count()} problems in all); "
            "the file was not written by this version of hushbot: run the audit again"
        ) from error
    for name, attack in report.attacks.items():
        for block in ("control", "blind"):
            _check_estimates(getattr(attack, block), f"{path}: attacks.{name}.{block}")
    return report


def _check_estimates(node: object, where: str) -> None:
    """Refuse what looks like an estimate and is none, anywhere in a block whose form nobody prescribes."""
    if isinstance(node, Mapping):
        if "value" in node:
            try:
                as_estimate(node)
            except ValidationError as error:
                raise DataError(f"{where}: no estimate ({error.errors()[0]['msg']}); run the audit again") from error
        for name, inner in node.items():
            _check_estimates(inner, f"{where}.{name}")


def config_sha256(config: Mapping[str, Any]) -> str:
    """Return the hash of a configuration; the order of its keys does not matter.

    Raises:
        ConfigError: The configuration holds something that JSON cannot.
    """
    plain = plain_json(config, "the configuration")
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def versions() -> dict[str, str]:
    """Return the version of Python and of every package a result depends on, and torch's number of threads."""
    import torch  # not at the top: reading a report needs none

    found = {"python": platform.python_version(), "threads": str(torch.get_num_threads())}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def report_json(report: AuditReport) -> str:
    """Return the text of report.json.

    Raises:
        AuditError: A number is NaN or infinite, or a value is none that JSON has; names the key.
    """
    for key, value in float_leaves(report.model_dump()):
        if not math.isfinite(value):
            raise AuditError(f"report.json: {key}={value} is no finite number; write null and say why in the notes")
    try:
        return json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    except (ValueError, TypeError) as error:
        raise AuditError(f"report.json cannot hold this report: {error}; store plain numbers and texts") from error


def report_schema() -> str:
    """Return the JSON Schema of report.json, as published in docs/report.schema.json."""
    schema = AuditReport.model_json_schema(mode="serialization")
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def _parquet(rows: Sequence[Mapping[str, Any]], path: Path) -> bytes:
    import pyarrow as pa  # not at the top: reading a report needs no parquet
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(key for row in rows for key in row))
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise DataError(f"{path}: column {name!r} mixes types ({error}); give every row the same type") from error
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def _refuse_difference(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    changes = list(differences(found, wanted))
    if not changes:
        return
    shown = "; ".join(changes[:_SHOWN_DIFFERENCES])
    more = len(changes) - _SHOWN_DIFFERENCES
    raise DataError(
        f"{path} belongs to another run: {shown}{f' and {more} more' if more > 0 else ''}; "
        "choose another run directory, or delete this one to start again"
    )
