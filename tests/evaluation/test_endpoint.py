"""An endpoint as an audit's target: examined first, attacked as far as it tells, never mistaken for another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import AuditError, ConfigError, DataError, UnsupportedError
from hushbot.evaluation import audited, endpoint, suite
from hushbot.evaluation.experiment import Experiment
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.targets.doctor import Diagnosis, Finding
from hushbot.targets.http import HTTPTarget
from hushbot.types import AttackResult, AuditReport, AuditSplit, Estimate, Headline, Tier

SOUND = Diagnosis(
    tier="full",
    findings=(Finding("liveness", True, "continued a text"), Finding("batch", False, "a list of prompts: 500")),
    fingerprint="abc",
    echo_tokens=0,
)
CONFIG: dict[str, Any] = {
    "target": "http",
    "url": "http://localhost:1/v1",
    "model": "/somebody/models/bot",
    "run": None,
    "key_variable": None,
    "reference_model": None,
    "start_text": "",
    "manifest": None,
    "pace": {"_target_": "hushbot.targets.connection.Pace", "n_tries": 2},
}


@pytest.fixture
def experiment(synthetic_split: AuditSplit, synthetic_schema: Schema) -> Experiment:
    dialogues = (*synthetic_split.members[:3], *synthetic_split.nonmembers[:3])
    return Experiment(
        config=CONFIG,
        name="bot",
        corpus=Corpus(dialogues, synthetic_schema, "synthetic"),
        drawn=SplitReport(AuditSplit(dialogues[:3], dialogues[3:])),
        attacks={},
        trackers={},
        seed=0,
        reveal=False,
    )


@pytest.fixture
def directory(experiment: Experiment, tmp_path: Path) -> RunDirectory:
    with suite.open_run(experiment, tmp_path / "run") as made:
        made.write_report(suite.start_report(experiment, made))
    return RunDirectory.open(made.path)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what decides what the doctor says of each model."""

    def say(diagnosis: Diagnosis, **by_model: Diagnosis) -> None:
        monkeypatch.setattr(endpoint, "examine", lambda target: by_model.get(target.model, diagnosis))

    return say


def load(
    experiment: Experiment, directory: RunDirectory, report: AuditReport | None = None, **config: Any
) -> tuple[Target, AuditReport, list[str]]:
    said: list[str] = []
    report = report or directory.read_report()
    target, report = audited.load_target({**CONFIG, **config}, None, experiment, report, (), said.append)
    return target, report, said


def test_the_verdict_is_in_the_report_and_neither_address_nor_folder_is(
    experiment: Experiment, directory: RunDirectory, found: Callable[..., None]
) -> None:
    found(SOUND)
    target, report, said = load(experiment, directory)
    assert isinstance(target, HTTPTarget)
    assert (target.tier, target.echo_tokens, target.pace.n_tries, target.fingerprint) == ("full", 0, 2, "abc")
    assert report.endpoint is not None
    assert (report.endpoint.model, report.endpoint.tier, report.endpoint.fingerprint) == ("bot", "full", "abc")
    assert [(each.name, each.is_fine) for each in report.endpoint.findings] == [("liveness", True), ("batch", False)]
    assert report.run.device == "endpoint"
    directory.write_report(report)
    text = directory.report_path.read_text(encoding="utf-8")
    assert "localhost" not in text
    assert "somebody" not in text
    assert directory.read_report().endpoint == report.endpoint
    assert "endpoint of tier full, by `hushbot doctor`; not fine: batch" in report.notes
    assert any("batch: a list of prompts" in line for line in said)
    assert not any("liveness" in line for line in said)


def test_a_dead_endpoint_is_an_error(
    experiment: Experiment, directory: RunDirectory, found: Callable[..., None]
) -> None:
    found(Diagnosis(tier=None, findings=(Finding("liveness", False, "it is gone"),)))
    with pytest.raises(AuditError, match="it is gone"):
        load(experiment, directory)


def test_an_audit_goes_on_with_the_model_that_it_began_with(
    experiment: Experiment, directory: RunDirectory, found: Callable[..., None]
) -> None:
    found(SOUND)
    _, report, _ = load(experiment, directory)
    _, again, _ = load(experiment, directory, report)
    assert again == report
    found(replace(SOUND, fingerprint="another"))
    with pytest.raises(AuditError, match="answers otherwise"):
        load(experiment, directory, report)
    found(replace(SOUND, tier="text"))
    with pytest.raises(AuditError, match="tier is 'text'; when this audit began it was 'full'"):
        load(experiment, directory, report)
    found(replace(SOUND, fingerprint=None))
    load(experiment, directory, report)


def test_the_base_control_is_examined_as_well(
    experiment: Experiment, directory: RunDirectory, found: Callable[..., None]
) -> None:
    found(SOUND)
    target, report, _ = load(experiment, directory, reference_model="base")
    assert target.reference is not None
    assert report.endpoint is not None
    assert report.endpoint.reference_model == "base"
    found(SOUND, base=replace(SOUND, tier="text"))
    with pytest.raises(AuditError, match="reference_model: its tier is 'text'"):
        load(experiment, directory, reference_model="base")


@pytest.mark.parametrize("note", suite.WHOLE_STATES_NOTES)
def test_the_split_must_be_the_one_of_the_run_or_manifest(
    experiment: Experiment, directory: RunDirectory, found: Callable[..., None], synthetic_split: AuditSplit, note: str
) -> None:
    found(SOUND)
    load(experiment, directory, manifest=str(directory.manifest_path))
    others = synthetic_split.members[3:9]
    other = replace(experiment, drawn=SplitReport(AuditSplit(others[:3], others[3:])))
    with pytest.raises(DataError, match=r"manifest\.json is of another run"):
        load(other, directory, manifest=str(directory.manifest_path))
    with pytest.raises(DataError, match=r"manifest\.json is of another run"):
        audited.load_target(CONFIG, directory, other, directory.read_report(), (), print)
    begun = directory.read_report()
    run = begun.model_copy(update={"notes": [note, "something of that run alone"]})
    directory.write_report(run)
    _, report = audited.load_target(CONFIG, directory, experiment, begun, (), lambda _: None)
    assert f"members are those of run {begun.run.id}" in report.notes
    assert note in report.notes, "attacks ask such a bot otherwise"
    assert "something of that run alone" not in report.notes


@pytest.mark.parametrize("missing", ["url", "model"])
def test_what_is_missing_is_said_before_anything_is_sent(missing: str) -> None:
    with pytest.raises(ConfigError, match="give url=URL"):
        audited.chosen({**CONFIG, missing: None}, ())
    with pytest.raises(ConfigError) as caught:
        audited.chosen({**CONFIG, "adapter": "somewhere", "pace": {**CONFIG["pace"], "timeout": "long"}}, ())
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["pace.timeout='long'", "adapter"]
    config, run = audited.chosen(CONFIG, ())
    assert (config, run) == (CONFIG, None)
    assert audited.name_of(CONFIG, None) == "bot"


@dataclass(frozen=True)
class Asking:
    """An attack that needs a tier, and perhaps asks what cannot be done."""

    needs: ClassVar[Tier] = "full"
    headline_metric: ClassVar[str] = "rate"
    error: Exception | None = None

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        if self.error is not None:
            raise self.error
        return AttackResult(verdict="leak", headline=Headline(metric="rate", estimate=Estimate(value=0.5)))


@dataclass(frozen=True)
class Reading(Asking):
    needs: ClassVar[Tier] = "text"


def told(tier: Tier) -> HTTPTarget:
    return HTTPTarget("http://localhost:1/v1", "bot", tier=tier)


@pytest.mark.parametrize(
    ("attack", "tier", "verdict"),
    [
        (Asking(), "full", "leak"),
        (Asking(), "next_token", "not_measured"),
        (Asking(), "text", "not_measured"),
        (Reading(), "text", "leak"),
        (Reading(), "full", "leak"),
    ],
)
def test_attacks_above_the_tier_are_not_measured(
    attack: Asking, tier: Tier, verdict: str, experiment: Experiment
) -> None:
    result = suite.attacked(attack, told(tier), experiment)
    assert result.verdict == verdict
    if verdict == "not_measured":
        assert result.headline.metric == "rate"
        assert result.headline.estimate.value is None
        assert f"tier 'full'; this one's is '{tier}'" in result.notes[0]


def test_a_target_without_a_tier_tells_everything(experiment: Experiment, stranger: Target) -> None:
    assert suite.attacked(Asking(), stranger, experiment).verdict == "leak"


def test_a_decoder_that_the_endpoint_does_not_know_is_not_measured(experiment: Experiment) -> None:
    result = suite.attacked(Reading(UnsupportedError("no decoder with num_beams=5")), told("full"), experiment)
    assert (result.verdict, result.notes) == ("not_measured", ["not measured: no decoder with num_beams=5"])
    with pytest.raises(ConfigError, match="wrong"):
        suite.attacked(Reading(ConfigError("wrong")), told("full"), experiment)


def test_what_the_attacks_need() -> None:
    from hushbot.attacks.membership import Membership
    from hushbot.attacks.schema_probe import SchemaProbe
    from hushbot.attacks.state_extraction import UntargetedExtraction
    from hushbot.attacks.targeted_extraction import TargetedExtraction

    assert getattr(Membership(), "needs", "full") == "full"
    assert SchemaProbe().needs == "text"
    assert UntargetedExtraction().needs == "text"
    assert UntargetedExtraction(decoders=("vanilla", "schema_guided")).needs == "text"
    assert UntargetedExtraction(decoders=("schema_guided",), decoder="schema_guided").needs == "full"
    assert TargetedExtraction().needs == "text"
    assert TargetedExtraction(decoders=("schema_guided",), decoder="schema_guided").needs == "full"
