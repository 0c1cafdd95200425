"""Check what a launcher asks for: counts and amounts, each problem with its configuration key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hushbot.errors import ConfigError


def check_requests(
    launcher: Any,
    *,
    at_least_one: Sequence[str] = (),
    at_least_zero: Sequence[str] = (),
    positive: Sequence[str] = (),
) -> None:
    """Refuse settings outside their range; None is none that was set.

    Raises:
        ConfigError: Holds every problem.
    """
    rules: list[tuple[str, float, str]] = [(name, 1, "at least 1") for name in at_least_one]
    rules += [(name, 0, "at least 0") for name in at_least_zero]
    rules += [(name, math.ulp(0.0), "positive") for name in positive]
    problems = [
        f"launcher.{name}={value!r} must be {rule}"
        for name, least, rule in rules
        if (value := getattr(launcher, name)) is not None and not least <= value < math.inf
    ]
    if problems:
        raise ConfigError(*problems)
