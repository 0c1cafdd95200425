"""What a machine refuses, in words: no room, no permission, no memory.

Guarantees: such a failure leaves `machine_faults` as a `MachineError` that says what is full, closed or too small, and
what to do about it; any other error leaves as it was. What is on disk by then stays, and the same command goes on.

What voids it: a process that the system kills for its memory says nothing at all.

>>> with machine_faults():
...     raise OSError(28, "No space left on device", "runs/x/report.json")
Traceback (most recent call last):
...
hushbot.errors.MachineError: runs/x/report.json: No space left on device; make room, then give the same command again
"""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator

from hushbot.errors import HushbotError, MachineError

_AGAIN = "then give the same command again"
_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room"),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "make it writable, or choose another folder"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "raise the limit of open files (ulimit -n)"),
    **dict.fromkeys((errno.EIO, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP), "see what lies there"),
    errno.ENOMEM: "free memory",
}
_OTHERS = re.compile(r"\(os error (\d+)\)|(No space left on device)")
"""How libraries that are no Python report the system's refusal."""
_MEMORY = (
    "ask for less at a time: inference.batch_rows, inference.batch_tokens, trainer.batch_size or backbone.max_length, "
    "or compare with launcher.workers=1"
)


@contextlib.contextmanager
def machine_faults() -> Iterator[None]:
    """Let what the machine refuses out as a `MachineError`.

    Raises:
        MachineError: Stands for a full disk, a folder that may not be written, memory that is not enough.
    """
    try:
        yield
    except HushbotError:
        raise
    except Exception as error:
        said = told(error)
        if said is None:
            raise
        raise MachineError(said) from error


def told(error: BaseException) -> str | None:
    """Return a failure of the machine in words; None for any other error."""
    if "inline_container" in str(error) and isinstance(error.__context__, OSError):
        error = error.__context__  # what torch could not write, in Python's own words
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}; {_REMEDIES[error.errno]}, {_AGAIN}"
    if is_out_of_memory(error):
        first = next(iter(str(error).splitlines()), "")
        return f"memory is not enough{f' ({first})' if first else ''}; {_MEMORY}, {_AGAIN}"
    if found := _OTHERS.search(str(error)):  # safetensors, torch
        number = int(found[1]) if found[1] else errno.ENOSPC
        return f"{str(error).splitlines()[0]}; {_REMEDIES[number]}, {_AGAIN}" if number in _REMEDIES else None
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is not enough: Python's, a GPU's, or torch's on a CPU (no class)."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
