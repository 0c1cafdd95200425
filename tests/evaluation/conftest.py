"""A small audit that trackers follow, with secrets in its records, its settings and the folders they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.evaluation import suite
from hushbot.evaluation.experiment import Experiment
from hushbot.protocols import Target, Tracker
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditReport, AuditSplit, Estimate, Headline

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
        )


Follow = Callable[..., AuditReport]


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
            report = report.model_copy(update={"utility": {"jga": Estimate(value=0.5, low=0.25, high=0.75, n=8)}})
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
