"""`hushbot ls`: what can be chosen, one line each, read from the first line of each configuration file."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from hushbot.composition import config_files, config_root
from hushbot.errors import ConfigError


def main(group: str | None) -> None:
    """Print every option of every group, or of one group."""
    rows = [
        (path.parent.name, path.stem, summary(path.read_text(encoding="utf-8")))
        for path in config_files()
        if path.parent != config_root()
    ]
    groups = sorted({row[0] for row in rows})
    if group is not None and group not in groups:
        raise ConfigError(f"group {group!r} does not exist; there are {', '.join(groups)}")
    table = Table(title=None, box=None, pad_edge=False)
    for column in ("group", "option", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column != "what it is")
    for row in rows:
        if group in (None, row[0]):
            table.add_row(*row)
    Console().print(table)


def summary(text: str) -> str:
    """Return the first comment of a configuration file."""
    comments = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in comments if not line.startswith("@package")), "")
