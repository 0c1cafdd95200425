"""How long `hushbot --help` and `hushbot ls` take, and that neither imports what is heavy.

    python benchmarks/startup.py   # some seconds

Each command is a process of its own, as its user has it: the interpreter, site-packages and all. Time is the CPU time
of that process, the median of several runs, so that other work on the machine weighs little. The first run compiles
modules and is left out. The floor is the bare interpreter with the same site-packages. The baseline beside it, which
has no goal, is the interpreter that imports torch and transformers, as a command line does that imports all at its top.

Prints one line per claim and exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from packing import tell

GOAL = 0.5
HEAVY = ("torch", "transformers", "lightning", "peft", "hydra", "numpy", "scipy", "sklearn", "pandas")
COMMANDS = ("--help", "ls")


@dataclass(frozen=True)
class Promise:
    """A promise that something is absolute: seconds, or a count of modules."""

    name: str
    baseline: str
    goal: float
    measured: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Return whether the goal was kept."""
        return self.measured <= self.goal

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        return (
            f"{self.name}  vs {self.baseline}  goal <= {self.goal:g}{self.unit}  "
            f"measured {self.measured:.3g}{self.unit}  {verdict}"
        )


def child_seconds(code: str) -> float:
    """Return the CPU time of an interpreter that runs some code, its own start included."""
    from resource import RUSAGE_CHILDREN, getrusage

    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=True)
    after = getrusage(RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def running(command: str) -> str:
    """Return what the installed script does."""
    return f"from hushbot.cli import main; raise SystemExit(main([{command!r}]))"


def heavy_modules(command: str) -> list[str]:
    """Return which heavy packages a command imports."""
    code = (
        "import sys\nfrom hushbot.cli import main\nassert main([sys.argv[1]]) == 0\n"
        f"print('heavy', *sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, command], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1].split()[1:]


def measure(runs: int) -> list[Any]:
    codes = {"interpreter": "pass"} | {f"hushbot {command}": running(command) for command in COMMANDS}
    seconds: dict[str, list[float]] = {name: [] for name in codes}
    for code in codes.values():
        child_seconds(code)
    for _ in range(runs):
        for name, code in codes.items():
            seconds[name].append(child_seconds(code))
    everything = child_seconds("import torch, transformers; transformers.AutoModelForCausalLM")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in {**medians, "torch and transformers": everything}.items():
        print(f"  {name:24s} {value:6.3f} CPU s")
    claims: list[Any] = []
    for command in COMMANDS:
        found = heavy_modules(command)
        print(f"hushbot {command}: heavy packages imported: {', '.join(found) or 'none'}")
        claims += [
            Promise(f"hushbot {command}", "half a second", GOAL, medians[f"hushbot {command}"], " s"),
            Promise(f"hushbot {command}, heavy packages imported", "none", 0, len(found), ""),
        ]
    return claims


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    return tell(measure(parser.parse_args().runs))


if __name__ == "__main__":
    sys.exit(main())
