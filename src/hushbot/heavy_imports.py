"""Importing what takes seconds: torch, transformers, Lightning, scipy.

Guarantees: Python does not look for rubbish meanwhile. It would go through all that was imported so far again and
again, a fifth of the time that a command needs to start, and find nothing that could go: what is imported stays. It is
left out of every later search, too, so that one takes milliseconds instead of a quarter of a second.

Voids it: a process that has imported torch before; there nothing is changed.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def heavy_imports() -> Iterator[None]:
    """Import within the block what takes long; several blocks may nest."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
