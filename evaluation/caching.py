"""Answers kept while a bot is under attack, so that an audit that was killed asks nothing twice.

Guarantees: the answers lie in `cache/` of the run directory, for its owner only, since they hold what the bot said in
the clear; they are deleted when the audit is complete, unless they are to be kept. An answer is used only for the same
question to the same bot (`hushbot.targets.cache`), so switching the cache on, off or on again changes no result but
for the last digits of scores, which may be computed in other batches.

What voids it: copying the folder elsewhere before the audit has ended.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.targets.identity import Identified

KEPT_NOTE = (
    "every answer of the bot under attack was kept in cache/, in the clear (cache.keep=true); delete the folder once "
    "it is of no use"
)


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Whether answers are kept, and for how long."""

    enabled: bool | Literal["auto"] = "auto"
    """`auto` keeps those of endpoints, which cost time and money; a model on this machine is asked again for little."""
    keep: bool = False
    """Whether they stay on disk when the audit is complete: in the clear, whatever `reveal` says."""

    def wants(self, target: Target) -> bool:
        """Return whether a target's answers are kept."""
        return isinstance(target, Identified) if self.enabled == "auto" else self.enabled


@contextmanager
def remembering(settings: CacheSettings, target: Target, directory: RunDirectory) -> Iterator[Target]:
    """Lend the target as it is to be asked: with a memory on disk where that is wanted.

    Raises:
        ConfigError: A cache was asked for, and the target does not say who it is.
        DataError: What lies in the folder cannot be used.
    """
    if not settings.wants(target):
        yield target
        return
    from hushbot.targets.answer_store import AnswerStore
    from hushbot.targets.cache import remember

    store = AnswerStore(directory.cache)
    try:
        yield remember(target, store)
    finally:
        store.close()


def forget(settings: CacheSettings, directory: RunDirectory) -> tuple[str, ...]:
    """Delete what was kept, also by an earlier start of the run, unless it is to stay; then say so for the report."""
    if not directory.cache.is_dir():
        return ()
    if settings.keep:
        return (KEPT_NOTE,)
    shutil.rmtree(directory.cache)
    return ()
