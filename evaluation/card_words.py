"""Lists, tables and numbers of a card, in Markdown that says what it means and nothing else.

Guarantees: a name or reason stands on one line and holds nothing that Markdown or HTML would act on; a number without a
measurement reads "not measured", never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hushbot.types import AuditReport, Estimate

NOT_MEASURED = "not measured"
_LONGEST_REASON = 240


def bullets(lines: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {line}" for line in lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Put a name or reason on one line, without anything that Markdown or HTML would act on."""
    line = " ".join(text.split())
    line = line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}..."
    return re.sub(r"[`|<>\[\]*\\]", lambda sign: {"|": "/", "<": "(", ">": ")"}.get(sign[0], "'"), line)


def cells(estimate: Estimate | None) -> tuple[str, str, str]:
    """Return value, interval and n; a number without a measurement has none of them."""
    if estimate is None or estimate.value is None:
        return NOT_MEASURED, "-", "-"
    interval = "-"
    if estimate.low is not None and estimate.high is not None:
        interval = f"{estimate.low:.3f} to {estimate.high:.3f} ({estimate.level:.0%})"
    return f"{estimate.value:.3f}", interval, str(estimate.n)


def data_name(report: AuditReport) -> str:
    """Return the data's name; of a path its last part, since folders are a machine's and not the card's."""
    name = report.data.name
    return Path(name).name if name.startswith(("/", "~", ".")) or "\\" in name else name
