"""Corpus files: JSON in, errors that name the file out.

Guarantees: a file is read whole or not at all; whatever is wrong with it (missing, cut, not UTF-8, a Git LFS
pointer, a broken archive) is one `DataError` that names it. Archives are read in memory: nothing is extracted
to disk, so a member's name cannot reach outside. Malformed dialogues of all files are reported together, or
skipped and counted. A file larger than `MOST_BYTES`, or packed more tightly than text can be (`MOST_RATIO`), is
refused before it fills memory.

Void if a file changes while it is being read. A machine with less memory than a large corpus needs, about ten times
its size, still runs out of it.
"""

from __future__ import annotations

import gzip
import json
import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, NamedTuple, TypeVar, get_args

from hushbot.errors import ConfigError, DataError
from hushbot.masking import mask_value

OnError = Literal["raise", "skip"]

MOST_BYTES = 2 * 2**30
"""What a corpus file may hold once it is unpacked; SGD in ConvLab-3's form, judged by its sample, has some 0.5 GB."""
MOST_RATIO = 200
"""How many times smaller a packed file may be; MultiWOZ's and SGD's are packed to a 16th to 24th, zeros to a 1000th."""
MOST_BRACKETS = 1 / 16
"""Opening brackets in a character of JSON; corpora have at most one in 57, and each empty list takes 56 bytes."""
FREE_BYTES = 16 * 2**20
"""Up to so much, neither ratio nor brackets matter."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_SURROGATE = re.compile("[\ud800-\udfff]")
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Of a zip archive's members. Others unpack to any length at once, and no corpus uses them."""
_PART = 2**20
_BROKEN = (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, OverflowError, struct.error)
"""What a damaged archive makes the standard library raise; a name in it may be no text."""
_MAX_LINES = 20
_MAX_LISTED = 5
_KIND_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}

T = TypeVar("T")


class Location(NamedTuple):
    """Where a file lies: on disk, or in a zip archive."""

    path: Path
    member: str | None = None


def find(path: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files below a folder that match any glob pattern, sorted; a file is returned as it is.

    Raises:
        DataError: There is no such file or folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; set data.path to where the corpus lies")
    return sorted({file for pattern in patterns for file in path.glob(pattern) if file.is_file()})


def locate(path: Path) -> dict[str, Location]:
    """Return the files of a corpus by name: directly in a folder, in a zip archive, or one file alone.

    Raises:
        DataError: There is no such file or folder, or the archive is broken.
    """
    if path.suffix == ".zip" and path.is_file():
        # The shortest path wins: an archive's own data before that of a folder of examples inside it.
        names = sorted(members(path), key=lambda name: (-name.count("/"), name))
        return {PurePosixPath(name).name: Location(path, name) for name in names}
    return {file.name: Location(file) for file in find(path, ["*"])}


def members(path: Path) -> tuple[str, ...]:
    """Return the names of the files in a zip archive, in archive order, without macOS' shadow copies.

    Raises:
        DataError: The file is no readable zip archive.
    """
    _refuse_pointer(path, _read_head(path))
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except _BROKEN as error:
        raise DataError(f"{path}: not a readable zip archive ({error}); fetch the file again") from error
    return tuple(n for n in names if not n.endswith("/") and not n.startswith("__MACOSX/"))


def read_json(path: Path, member: str | None = None) -> Any:
    """Read a .json, .json.gz or .zip file.

    Args:
        path: The file; UTF-8, with or without a byte order mark.
        member: Which file of a zip archive, by its whole name or its last part; default: the only .json.

    Raises:
        DataError: The file is missing, cut, not UTF-8, not JSON, a Git LFS pointer, a broken archive, or would fill
            memory.
    """
    if member is None and path.suffix == ".zip":
        member = _only_json(path)
    text = read_text(path, member)
    where = f"{path}!{member}" if member else str(path)
    if len(text) > FREE_BYTES and text.count("[") + text.count("{") > MOST_BRACKETS * len(text):
        raise DataError(f"{where}: more than a bracket in {1 / MOST_BRACKETS:g} characters; is this the right file?")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        kind = "the file is cut" if is_cut else "not JSON"
        raise DataError(
            f"{where}: {kind}: {error.msg} at line {error.lineno} column {error.colno}; fetch the file again"
        ) from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits and thousands of open brackets: legal JSON, but no corpus.
        raise DataError(f"{where}: not usable as JSON ({error}); is this the right file?") from error


def read_text(path: Path, member: str | None = None) -> str:
    """Read a text file, plain, gzipped or in a zip archive, as UTF-8.

    Raises:
        DataError: The file is missing, not UTF-8, a Git LFS pointer or a broken archive, or would fill memory.
    """
    where = f"{path}!{member}" if member else str(path)
    content = _read_bytes(path, member)
    _refuse_pointer(path, content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind a byte order mark, the user counts from the file's start.
        offset = error.start + (3 if content.startswith(b"\xef\xbb\xbf") else 0)
        raise DataError(
            f"{where}: byte {content[offset]:#04x} at offset {offset} is not UTF-8; re-encode the file, "
            "for example `iconv -f latin1 -t utf-8`"
        ) from error


def require(value: Any, kind: type[T], what: str) -> T:
    """Return a value of a dialogue if it is of the right JSON type.

    Raises:
        DataError: It is not, or it is a string that UTF-8 cannot hold.
    """
    if not isinstance(value, kind):
        raise DataError(f"{what} is {_masked(value)}, not {_KIND_NAMES.get(kind, kind.__name__)}")
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
        raise DataError(f"{what} holds half a surrogate pair, which is no character")
    return value


@dataclass
class Problems:
    """Collects what is wrong with single dialogues, so that a user sees all of it at once."""

    on_error: OnError
    """`raise` one error with everything at the end, or `skip` the dialogues and say which."""
    _lines: list[str] = field(default_factory=list)
    _ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            choices = " or ".join(get_args(OnError))
            raise ConfigError(f"on_error={self.on_error!r} is not {choices}; set data.on_error")

    def add(self, path: Path, dialogue_id: str, problem: str) -> None:
        """Note that a dialogue cannot be used."""
        self._lines.append(_printable(f"{path}: dialogue {_shown(dialogue_id)}: {problem}"))
        self._ids.append(_printable(dialogue_id))

    def finish(self) -> tuple[str, ...]:
        """Return notes on the skipped dialogues; nothing when there were none.

        Raises:
            DataError: Dialogues were malformed and `on_error` is `raise`; lists up to 20 of them.
        """
        if not self._lines:
            return ()
        if self.on_error == "skip":
            # Ids only: notes stand in the manifest and the report, and a problem may quote what somebody said.
            listed = listing(self._ids)
            return (f"skipped {_count(len(self._ids), 'dialogue')}: {listed}; data.on_error=raise says why",)
        lines = self._lines[:_MAX_LINES]
        if len(self._lines) > _MAX_LINES:
            lines.append(f"and {len(self._lines) - _MAX_LINES} more")
        lines.append(f"{_count(len(self._lines), 'malformed dialogue')}; repair them or set data.on_error=skip")
        raise DataError("\n".join(lines))


@dataclass
class Notes:
    """Collects what a loader repaired or could not know, one line per kind."""

    _places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str) -> None:
        """Note that something of a kind was met at a place."""
        self._places.setdefault(kind, []).append(place)

    def finish(self) -> tuple[str, ...]:
        """Return one line per kind, with how often and where first."""
        return tuple(f"{kind} ({len(at)}): {listing(at)}" for kind, at in self._places.items())


def listing(items: Sequence[str], limit: int = _MAX_LISTED) -> str:
    """Join the first items with commas and say how many are left out."""
    more = [f"and {len(items) - limit} more"] if len(items) > limit else []
    return ", ".join([*items[:limit], *more])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _printable(text: str) -> str:
    """Escape what UTF-8 cannot hold: a message about broken text must not break the terminal."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _masked(value: Any) -> str:
    """Say what kind of thing a value is, without showing it: it may be somebody's."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        return f"the text {mask_value(value)}"
    return next((name for kind, name in _KIND_NAMES.items() if isinstance(value, kind)), f"a {type(value).__name__}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _only_json(path: Path) -> str:
    names = [name for name in members(path) if name.endswith(".json")]
    if len(names) != 1:
        found = listing(names) or "none"
        raise DataError(f"{path}: expected one .json file in the archive, found {found}; name the member")
    return names[0]


def _resolve(path: Path, names: Sequence[str], member: str) -> str:
    """Return the full name of a member that is given by its full name or by its last part."""
    if member in names:
        return member
    matches = [name for name in names if PurePosixPath(name).name == member]
    if len(matches) != 1:
        found = listing(matches or names) or "nothing"
        raise DataError(f"{path}: {'several' if matches else 'no'} members named {member!r}; found {found}")
    return matches[0]


def _read_bytes(path: Path, member: str | None) -> bytes:
    head = _read_head(path)
    if head.startswith(_LFS_POINTER):
        return head
    try:
        if path.suffix == ".zip":
            name = _resolve(path, members(path), member) if member else _only_json(path)
            with zipfile.ZipFile(path) as archive:
                return _read_member(path, archive, name)
        if member is not None:
            raise DataError(f"{path}: asked for its member {member!r}, but it is no .zip archive")
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return _read_bounded(stream, str(path), path.stat().st_size)
        with path.open("rb") as plain:
            return _read_bounded(plain, str(path), None)
    except (*_BROKEN, zlib.error, lzma.LZMAError, RuntimeError) as error:
        raise DataError(f"{path}: cannot be read: {error}; fetch the file again") from error


def _read_member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    found = archive.getinfo(name)
    if found.compress_type not in _PACKINGS:
        raise DataError(
            f"{path}: {name!r} is packed with method {found.compress_type}, which may unpack to any length; pack it "
            "anew with zip's usual method (deflate)"
        )
    with archive.open(found) as stream:
        # The archive says how much a member takes, and may lie.
        return _read_bounded(stream, f"{path}!{name}", min(found.compress_size, path.stat().st_size))


def _read_bounded(stream: IO[bytes] | gzip.GzipFile, where: str, packed_size: int | None) -> bytes:
    """Read a stream to its end, part by part, so that one that is too long is refused while it is short.

    Args:
        stream: What unpacks itself.
        where: What to call it in an error.
        packed_size: How many bytes it takes where it lies; None where it is not packed.

    Raises:
        DataError: It is larger than a corpus is, or than text that is packed to that size.
    """
    limit = MOST_BYTES if packed_size is None else min(MOST_BYTES, max(FREE_BYTES, MOST_RATIO * packed_size))
    content = bytearray()
    while part := stream.read(_PART):
        content += part
        if len(content) > limit:
            packed = "" if packed_size is None else f", from {packed_size} packed ones"
            raise DataError(
                f"{where}: holds more than {limit} bytes{packed}: more than a corpus does ({MOST_BYTES} in one file, "
                f"or {MOST_RATIO} times its packed size); if it is one, give it in several files, or unpacked"
            )
    return bytes(content)


def _read_head(path: Path) -> bytes:
    """Return the first bytes of a file: enough to know a Git LFS pointer, whatever the file's name says."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_LFS_POINTER))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; set data.path to where the corpus lies") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _refuse_pointer(path: Path, content: bytes) -> None:
    if content.startswith(_LFS_POINTER):
        raise DataError(
            f"{path}: this is a Git LFS pointer, not the data; run `git lfs pull` or download the real file"
        )
