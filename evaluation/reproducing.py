"""Which module makes which paper's tables, from a finished run.

Guarantees: no model is loaded; a run without the paper's attacks is refused, by name.
"""

from __future__ import annotations

from pathlib import Path

from hushbot.errors import DataError
from hushbot.evaluation import reproduction_files, reproduction_leakit, reproduction_popquiz
from hushbot.evaluation.reproduction_tables import write_tables
from hushbot.run import RunDirectory


def write_paper(paper: str, run: Path, out: Path) -> None:
    """Write a paper's tables and summary into a folder, and print them.

    Raises:
        DataError: There is no run or no report, or it holds none of the paper's attacks.
    """
    if paper == "tods":
        reproduction_files.write_reproduction(run, out)
        return
    directory = RunDirectory.open(run)
    report = directory.read_report()
    if paper == "popquiz":
        is_there, found = bool(reproduction_popquiz.quizzes_of(report)), reproduction_popquiz.reproduce
    else:
        is_there, found = reproduction_leakit.ATTACK in report.attacks, reproduction_leakit.reproduce
    if not is_there:
        raise DataError(f"{directory.report_path} has no attack of {paper}; `hushbot reproduce {paper}` runs it")
    write_tables(found(report, directory.config), report, out)
