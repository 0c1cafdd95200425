"""Run every benchmark and count the goals that are met.

    python benchmarks/all_claims.py

Each script runs in a process of its own, so that none warms another's caches. Prints all claims once more at the end
and exits with 1 if any goal is missed or a script fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "startup.py",
    "packing.py",
    "dp_overhead.py",
    "sampling.py",
    "schema_sampling.py",
    "scoring.py",
    "audit_cost.py",
)
_CLAIM = re.compile(r".+  goal .+  measured .+  (?:met|MISSED|missed)$")
_COUNT = re.compile(r"(\d+) of (\d+) goals met")


def main() -> int:
    """Run the scripts one after another."""
    claims, n_met, n_goals, has_failed = list[str](), 0, 0, False
    for script in SCRIPTS:
        print(f"== {script}", flush=True)
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name(script))], stdout=subprocess.PIPE, text=True, check=False
        )
        print(done.stdout, end="", flush=True)
        claims += [line for line in done.stdout.splitlines() if _CLAIM.match(line)]
        count = _COUNT.search(done.stdout)
        if count is None:
            print(f"{script} ended with code {done.returncode} and no count of goals", file=sys.stderr)
            has_failed = True
            continue
        n_met, n_goals = n_met + int(count[1]), n_goals + int(count[2])
    print("== all claims", *claims, f"{n_met} of {n_goals} goals met", sep="\n")
    return int(has_failed or n_met < n_goals)


if __name__ == "__main__":
    sys.exit(main())
