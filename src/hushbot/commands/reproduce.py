"""`hushbot reproduce`: a paper's tables and figures, ours beside the paper's, in one command that can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hushbot.errors import ConfigError

PAPERS = ("tods", "popquiz", "leakit")


def main(
    paper: str,
    overrides: Sequence[str],
    *,
    out: Path,
    read: Path | None = None,
    trust: Sequence[str] = (),
    config_dir: Path | None = None,
) -> None:
    """Run what a paper's tables need, unless a finished run is given, and write and print them."""
    check_paper(paper)
    if read is not None and overrides:
        raise ConfigError(f"--read {read} runs nothing, so {' '.join(overrides)} would change nothing; leave one out")
    run = read or run_of(paper, overrides, trust, config_dir)
    from hushbot.evaluation.reproducing import write_paper

    write_paper(paper, run, out / paper)
    print(f"summary: {out / paper / 'summary.md'}")


def check_paper(paper: str) -> None:
    """Refuse a paper that nobody knows.

    Raises:
        ConfigError: It is none of `PAPERS`.
    """
    if paper not in PAPERS:
        raise ConfigError(f"{paper!r} is no paper that hushbot reproduces; choose one of {', '.join(PAPERS)}")


def run_of(paper: str, overrides: Sequence[str], trust: Sequence[str], config_dir: Path | None) -> Path:
    """Train and audit a bot, or audit the one that `target=` names; return the run directory."""
    if any(override.startswith("target=") for override in overrides):
        return _audit(paper, overrides, trust, config_dir)
    from hushbot.commands import train
    from hushbot.composition import compose

    chosen = any(override.startswith("experiment=") for override in overrides)
    config = compose("train", [*([] if chosen else [f"experiment={paper}"]), *overrides], config_dir=config_dir)
    path = train.run_path(config, trust)
    train.run(config, path, trust)
    return path


def _audit(paper: str, overrides: Sequence[str], trust: Sequence[str], config_dir: Path | None) -> Path:
    """Attack an existing bot as the paper does; the audit is named after the bot unless `out=` says otherwise."""
    from hushbot.commands import audit

    given = dict(override.split("=", 1) for override in overrides if "=" in override)
    name = Path(given.get("run") or given.get("model") or "bot").name
    path = Path(given.get("out") or Path(given.get("runs_dir", "runs")) / f"{paper}-{name}")
    attacks = [] if "+experiment" in given else [f"+experiment={paper}_attacks"]
    placed = [] if "out" in given else [f"out={path}"]
    audit.main([*attacks, *overrides, *placed], trust=trust, config_dir=config_dir)
    return path
