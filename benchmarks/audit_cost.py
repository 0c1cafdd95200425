"""What an audit costs beside the training that it audits, and how its cost grows.

    python benchmarks/audit_cost.py   # the bundled backbone, about four minutes

A run as `hushbot train` makes it: turn-level training of the bundled backbone with the demo's settings, utility, and
the default attacks, each phase by itself. The audit is all attacks with their controls, intervals and records.

Then each part of the audit grows alone, by four times and four times again: the states that are sampled and ranked
(`untargeted_extraction`), the dialogues on each side (`membership`), the candidates that are scored. A cost c n^e has
the exponent e, which is shown from step to step. The claim is on the last step, where fixed costs weigh least; 1 is
linear. That memory does not grow with the candidates is measured in `benchmarks/scoring.py`.

Time is CPU time on one thread, measured once for the run and as the best of several rounds for the growth. Prints one
line per claim and exits with 1 if a goal is missed. The goals are set for MultiWOZ.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from dp_overhead import Ceiling
from packing import MULTIWOZ, Claim, draw, tell
from schema_sampling import cpu_seconds
from scoring import audited, load_corpus, made_up_states

from hushbot.attacks.membership import Membership
from hushbot.attacks.state_extraction import UntargetedExtraction
from hushbot.commands.train import say
from hushbot.composition import build, compose
from hushbot.corpora.corpus import Corpus
from hushbot.discretion import discreet
from hushbot.evaluation import making, suite
from hushbot.targets.local import LocalTarget
from hushbot.types import AuditSplit

GOAL_AUDIT, GOAL_EXPONENT = 1.0, 1.1
STEP = 4


@dataclass(frozen=True)
class Exponent(Ceiling):
    """A promise on how fast a cost grows."""

    def __str__(self) -> str:
        return f"{self.name}  vs {self.baseline}  goal <= {self.goal:g}  measured {self.measured:.2f}  " + (
            "met" if self.is_met else "MISSED"
        )


def overrides(n: int, n_samples: int) -> list[str]:
    """Return the settings of a run on n members."""
    data = ["data=multiwoz21", f"data.path={MULTIWOZ}", "data.parts=[val]"] if MULTIWOZ.is_dir() else []
    sides = [f"split.members={n}", f"split.nonmembers={n}", "split.calibration=10", "split.controls=10"]
    training = ["trainer.max_epochs=10", "trainer.batch_size=2", "trainer.learning_rate=0.0015"]
    quiet = ["trainer.accelerator=cpu", "trainer.progress_bar=false", "utility.max_dialogues=10"]
    return [*data, *sides, *training, *quiet, f"attack.untargeted_extraction.n_samples={n_samples}"]


def run(config: Mapping[str, Any], path: Path) -> tuple[dict[str, float], LocalTarget]:
    """Train, measure and audit; return the CPU time of each phase, and the bot."""
    suite.check(config, ())
    suite.quieten()
    experiment = suite.prepare(config, "turn_level")
    state: dict[str, Any] = {}

    def train() -> None:
        state["bot"], state["report"] = making.make_bot(experiment, config, directory, state["report"], say)

    def use() -> None:
        settings = build(config["utility"], "utility")
        state["report"] = suite.measure_bot(experiment, settings, state["bot"], directory, state["report"], say)

    def audit() -> None:
        state["report"] = suite.measure(experiment, state["bot"], directory, state["report"], say)

    with (
        suite.open_run(experiment, path) as directory,
        discreet(experiment.everybody, experiment.corpus.schema),
    ):
        state["report"] = suite.start_report(experiment, directory)
        seconds = {"training": cpu_seconds(train), "utility": cpu_seconds(use), "audit": cpu_seconds(audit)}
    unmeasured = [name for name, result in state["report"].attacks.items() if result.verdict == "not_measured"]
    if unmeasured:
        raise RuntimeError(f"{', '.join(unmeasured)} not measured, so the audit was not whole")
    return seconds, state["bot"]


def growth(name: str, sizes: Sequence[int], step: Callable[[int], object], rounds: int) -> Claim:
    """Measure a step at each size; return the claim on how its cost grows at the end."""
    best = dict.fromkeys(sizes, math.inf)
    step(sizes[0])  # pays for set-up
    for _ in range(rounds):
        for size in sizes:
            best[size] = min(best[size], cpu_seconds(partial(step, size)))
    exponents = [math.log(best[after] / best[before]) / math.log(after / before) for before, after in pairwise(sizes)]
    for size, exponent in zip(sizes, [None, *exponents], strict=True):
        grows = "" if exponent is None else f", exponent {exponent:.2f}"
        print(f"  {size:6d} {name:12s} {best[size]:8.2f} CPU s, {1000 * best[size] / size:7.2f} ms each{grows}")
    return Exponent(f"cost of {name}, exponent up to {max(sizes):,}", "linear", GOAL_EXPONENT, exponents[-1])


def grow(first: int) -> list[int]:
    return [first, first * STEP, first * STEP * STEP]


def growth_claims(bot: LocalTarget, corpus: Corpus, arguments: argparse.Namespace) -> list[Claim]:
    # A small corpus has fewer dialogues than the growth would reach.
    most = min(arguments.dialogues * STEP**2, len(corpus.dialogues) // 2)
    drawn = tuple(draw(corpus.dialogues, 2 * most))
    everyone = AuditSplit(drawn[:most], drawn[most:])
    candidates = made_up_states(corpus, arguments.candidates * STEP**2)

    def sample(n: int) -> object:
        return UntargetedExtraction(n_samples=n).run(bot, everyone, corpus.schema, seed=0)

    def compare(n: int) -> object:
        split = AuditSplit(everyone.members[:n], everyone.nonmembers[:n])
        return Membership().run(bot, split, corpus.schema, seed=0)

    def score(n: int) -> object:
        return audited(bot, candidates[:n])

    return [
        growth("samples", grow(arguments.samples), sample, 1),
        growth("dialogues", grow(most // STEP**2), compare, arguments.rounds),
        growth("candidates", grow(arguments.candidates), score, arguments.rounds),
    ]


def measure(arguments: argparse.Namespace) -> list[Claim]:
    config = compose("train", overrides(arguments.members, arguments.attack_samples))
    with TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        seconds, bot = run(config, Path(folder) / "run")
    corpus = load_corpus()
    print(
        f"tiny, trained on {arguments.members} dialogues of {corpus.name}; {', '.join(config['attack'])} with "
        f"{arguments.attack_samples} samples; one thread"
    )
    for phase, spent in seconds.items():
        print(f"  {phase:12s} {spent:8.2f} CPU s ({spent / seconds['training']:.2f})")
    whole = Ceiling("default audit", "the training it audits", GOAL_AUDIT, seconds["audit"] / seconds["training"])
    return [whole, *growth_claims(bot, corpus, arguments)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=60, help="dialogues trained on, and as many that are not")
    parser.add_argument(
        "--attack-samples", type=int, default=1000, help="states that the audit samples, as in the demo"
    )
    parser.add_argument("--samples", type=int, default=250, help="where the growth of samples begins")
    parser.add_argument("--dialogues", type=int, default=25, help="where the growth of dialogues begins")
    parser.add_argument("--candidates", type=int, default=1000, help="where the growth of candidates begins")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    return tell(measure(arguments))


if __name__ == "__main__":
    sys.exit(main())
