"""Targets: the score-based black box that attacks see.

Guarantee: importing this package imports no torch; each name is looked up when it is first used.

>>> import hushbot.targets
>>> sorted(hushbot.targets.__all__)
['HTTPTarget', 'LocalTarget', 'Target']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hushbot.protocols import Target
    from hushbot.targets.http import HTTPTarget
    from hushbot.targets.local import LocalTarget

__all__ = ["HTTPTarget", "LocalTarget", "Target"]

_HOMES = {
    "HTTPTarget": "hushbot.targets.http",
    "LocalTarget": "hushbot.targets.local",
    "Target": "hushbot.protocols",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
