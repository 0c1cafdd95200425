"""A small audit that trackers follow, with secrets in its records, its settings and the folders they name."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.evaluation import suite
from hushbot.evaluation.comparisons import Comparison, Difference, Standing
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.tracker_comparison import Board, make_board
from hushbot.masking import mask_row
from hushbot.protocols import Target, Tracker
from hushbot.schema import Schema
from hushbot.types import (
    AttackResult,
    AuditReport,
    AuditSplit,
    DataInfo,
    Estimate,
    Headline,
    RecipeInfo,
    RunInfo,
    TrainingEpoch,
    Units,
)

UNIT = 0.987125
"""What one document adds to a metric: in the report, and on no dashboard."""
SECRETS = ("kowloon garden", "01223351880", "maria.rossi@example.org", "homefolder-of-maria", "key-in-the-url")


@dataclass
class Finding:
    """An attack that finds one number, leaves another unmeasured, and has secrets in its rows."""

    value: float
    error: Exception | None = None
    asked: list[int] = field(default_factory=list)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        self.asked.append(seed)
        if self.error is not None:
            raise self.error
        estimate = Estimate(value=self.value, low=self.value - 0.125, high=self.value + 0.125, n=4, method="by_hand")
        name, phone, mail, *_ = SECRETS
        return AttackResult(
            verdict="leak",
            headline=Headline(metric="auc", key="auc", estimate=estimate),
            metrics={"auc": estimate, "advantage": Estimate(value=None, method="no reference"), "k": 3},
            control={"nonmembers": {"auc": Estimate(value=0.5, low=0.25, high=0.75, n=4)}},
            rows=[{"dialogue_id": f"d{i}", "value": name, "text": f"call {phone} or {mail}"} for i in range(3)],
            examples=[mask_row({"dialogue_id": "d0", "value": name})],
            units=Units(rule="ratio", documents=["d0"], values=[UNIT], weights=[1.0]),
        )


Follow = Callable[..., AuditReport]
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAAAAADRSSBWAAAAC0lEQVR4nGNg+A8AAQIBAEK+vGgAAAAASUVORK5CYII="
HALF = Estimate(value=0.5, low=0.25, high=0.75, n=8)


def as_trained(report: AuditReport) -> AuditReport:
    """Return what a report says before the audit: two epochs, utility, cost."""
    more = {"peak_memory_mb": {"train": 640.0}, "seconds_per_turn": HALF}
    epochs = [TrainingEpoch(epoch=k, training_loss=1 / k, measured={"membership/auc": HALF}) for k in (1, 2)]
    return report.model_copy(
        update={
            "training": epochs,
            "utility": {"jga": HALF},
            "utility_by_domain": {"hotel": {"jga": HALF}},
            "run": report.run.model_copy(update=more),
        }
    )


@pytest.fixture
def follow(synthetic_split: AuditSplit, synthetic_schema: Schema, stranger: Target, tmp_path: Path) -> Follow:
    """Return what audits a bot with one tracker into a run directory, and the lines that were said."""
    dialogues = (*synthetic_split.members[:2], *synthetic_split.nonmembers[:2])
    split = AuditSplit(dialogues[:2], dialogues[2:])
    corpus = Corpus(dialogues, synthetic_schema, "synthetic")

    def run(
        tracker: Tracker,
        attacks: Mapping[str, Finding] | None = None,
        *,
        reveal: bool = False,
        said: list[str] | None = None,
    ) -> AuditReport:
        config: dict[str, Any] = {"seed": 7, "reveal": reveal, "recipe": {"turn_level": {}}, "url": SECRETS[4]}
        config |= {"data": {"name": "synthetic", "path": f"/srv/{SECRETS[3]}/corpus"}}
        experiment = Experiment(
            config=config,
            name="turn_level",
            corpus=corpus,
            drawn=SplitReport(split),
            attacks=attacks or {"first": Finding(0.75), "second": Finding(0.625)},
            trackers={"tracker": tracker},
            seed=7,
            reveal=reveal,
        )
        with suite.open_run(experiment, tmp_path / "run") as directory:
            report = suite.start_report(experiment, directory)
            report = as_trained(report)
            return suite.measure(experiment, stranger, directory, report, [].append if said is None else said.append)

    return run


@pytest.fixture
def secrets() -> tuple[str, ...]:
    """Return what must stand in no file that a tracker writes."""
    return SECRETS


@pytest.fixture
def finding() -> type[Finding]:
    """Return the attack that finds what it is told to."""
    return Finding


@pytest.fixture
def unit() -> str:
    """Return what a document adds to a metric, as text."""
    return str(UNIT)


@pytest.fixture
def reports() -> list[AuditReport]:
    """Return two seeds of one arm and a run whose utility was not measured."""
    data = DataInfo(
        name="d", members=9, nonmembers=9, calibration=0, controls=0, domains=1, slots=1, turns=9, supervised_tokens=9
    )

    def report(arm: str, seed: int, accuracy: float | None, auc: float) -> AuditReport:
        headline = Headline(metric="auc", key="auc", estimate=Estimate(value=auc, low=auc - 0.125, high=auc + 0.125))
        return AuditReport(
            status="complete",
            run=RunInfo(id=f"{arm}-{seed}", created="2026", seed=seed, config_sha256="c", data_sha256="d"),
            recipe=RecipeInfo(stack=[arm]),
            data=data,
            utility={"joint_goal_accuracy": Estimate(value=accuracy, low=accuracy, high=accuracy, n=9)},
            attacks={"membership": AttackResult(verdict="leak", headline=headline)},
        )

    return [report("turn_level", 0, 0.5, 0.75), report("turn_level", 1, 0.25, 0.875), report("base", 0, None, 0.5)]


@pytest.fixture
def board(reports: list[AuditReport], compared: Comparison, tmp_path: Path) -> Board:
    """Return a comparison of them whose files are written."""
    folder = tmp_path / "comparison"
    folder.mkdir()
    for name in ("tradeoff.csv", "report.html"):
        (folder / name).write_text("x", encoding="utf-8")
    # A picture of 2 x 1 pixels: black, white.
    (folder / "tradeoff.png").write_bytes(base64.b64decode(PICTURE))
    return make_board(reports, compared, folder=folder, runs_dir=tmp_path)


@pytest.fixture
def compared() -> Comparison:
    """Return what a comparison of two arms might say."""
    difference = Difference(
        arm="turn_level",
        reference="base",
        metric="membership/auc",
        estimate=Estimate(value=0.25, low=0.125, high=0.375, n=9, method="paired_bootstrap"),
        p=0.01,
        p_holm=None,
        n_seeds=2,
        conclusion="higher",
    )
    standing = Standing(
        arm="turn_level",
        is_collapsed=False,
        front="front",
        dominated_by=("base", "dp_sgd"),
        flags=(),
        words="costs a little, buys nothing",
        seconds=9.0,
        tokens=None,
        memory_mb=640.0,
    )
    return Comparison(reference="base", differences=(difference,), standings=(standing,), notes=("two seeds",))
