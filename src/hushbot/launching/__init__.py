"""Where the cells of a comparison run: on this machine, as Ray tasks, or as Slurm jobs.

Guarantees of every launcher: a cell runs in a process of its own, started by the same command with the same number of
threads, so that on CPUs of one kind it measures the same to the last bit wherever it runs; a cell that is done is not
run again; a killed one is tried again from its last checkpoint, a few times; one that fails stops no other.

Importing this package imports neither Ray nor submitit: both are extras.
"""

from __future__ import annotations

from hushbot.launching.grid import Attempt, Cell, Launcher, run_grid
from hushbot.launching.local import LocalLauncher

__all__ = ["Attempt", "Cell", "Launcher", "LocalLauncher", "run_grid"]
