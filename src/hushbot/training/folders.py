"""Write a folder whole or not at all.

Guarantees: the folder's final name appears in one rename, once everything is in it; a process killed before
leaves a hidden scratch folder beside it, never a half-written one in its place. Void on network file systems
whose renames are not atomic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(folder: Path, *, replace: bool) -> Iterator[Path]:
    """Yield an empty folder that takes its final name when the block ends without an error.

    Args:
        folder: The final name.
        replace: Whether a folder of that name gives way; if not it stays and the new one is discarded,
            which is right where several processes make the same thing.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        yield new
        if replace and folder.exists():
            folder.rename(Path(scratch) / "old")
        try:
            new.rename(folder)
        except OSError:
            # Renaming onto a folder with something in it fails: another process was faster.
            if replace or not folder.is_dir():
                raise
