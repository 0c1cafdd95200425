"""Step by step to a report: what is done is not done again, what fails leaves the rest standing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hushbot.attacks.canaries import Canaries
from hushbot.composition import compose
from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import AuditError, ConfigError, DataError, HushbotError
from hushbot.evaluation import making, suite
from hushbot.evaluation.documents import document_hash, split_sha256
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.sensitivity import Sensitivity
from hushbot.evaluation.utility import UtilitySettings
from hushbot.protocols import Target
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.types import AttackResult, AuditReport, AuditSplit, Estimate, Headline, PrivacyInfo, Units

SECRET = "pizza hut"


@dataclass
class FakeAttack:
    """Finds what it is told to find, and counts how often it was asked."""

    value: float = 0.5
    error: Exception | None = None
    asked: list[tuple[AuditSplit, int]] = field(default_factory=list)

    def run(self, target: Target, split: AuditSplit, schema: Schema, *, seed: int) -> AttackResult:
        self.asked.append((split, seed))
        if self.error is not None:
            raise self.error
        return AttackResult(
            verdict="leak",
            headline=Headline(metric="rate", estimate=Estimate(value=self.value, low=0.0, high=1.0, n=4)),
            rows=[{"dialogue_id": "d1", "value": SECRET}],
            units=Units(rule="ratio", documents=["d1"], values=[self.value], weights=[1.0]),
        )


@dataclass
class RecordingTracker:
    """Keeps every report it is told."""

    seen: list[AuditReport] = field(default_factory=list)

    def log(self, report: AuditReport) -> None:
        self.seen.append(report)


MakeExperiment = Callable[..., Experiment]


@pytest.fixture
def make_experiment(synthetic_split: AuditSplit, synthetic_schema: Schema) -> MakeExperiment:
    dialogues = (*synthetic_split.members[:4], *synthetic_split.nonmembers[:4])
    corpus = Corpus(dialogues, synthetic_schema, "synthetic", notes=("one dialogue was mended",))
    split = AuditSplit(dialogues[:4], dialogues[4:7], controls=dialogues[7:])

    def make(attacks: dict[str, FakeAttack], tracker: RecordingTracker | None = None, **more: Any) -> Experiment:
        settings = {"config": {"setting": 1}, "reveal": False, **more}
        return Experiment(
            name="turn_level",
            corpus=corpus,
            drawn=SplitReport(split, notes=("a group was broken up",)),
            attacks=attacks,
            trackers={} if tracker is None else {"recording": tracker},
            seed=7,
            **settings,
        )

    return make


def measure(experiment: Experiment, path: Path, target: Target, said: list[str] | None = None) -> AuditReport:
    """Attack as every command does, into a directory that may hold something already."""
    with suite.open_run(experiment, path) as directory:
        report = suite.start_report(experiment, directory)
        say = said.append if said is not None else (lambda _: None)
        return suite.measure(experiment, target, directory, report, say)


def on_disk(path: Path) -> AuditReport:
    return RunDirectory.open(path).read_report()


def test_first_report_says_what_was_used(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment({})
    with suite.open_run(experiment, tmp_path) as directory:
        report = suite.start_report(experiment, directory)
    assert report.status == "partial"
    assert (report.data.members, report.data.nonmembers, report.data.calibration, report.data.controls) == (4, 3, 0, 1)
    assert report.data.turns == sum(len(dialogue.turns) for dialogue in experiment.corpus.dialogues)
    assert report.recipe.stack == ["turn_level"]
    assert report.run.data_sha256 == experiment.manifest["data_sha256"]
    assert report.run.seed == 7
    assert report.run.id.startswith("turn_level-s7-")
    assert report.notes == ["one dialogue was mended", "a group was broken up"]
    assert not (tmp_path / "report.json").exists()


def test_extractions_are_assessed_while_their_rows_are_in_the_clear(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target
) -> None:
    class Extracting(FakeAttack):
        def run(self, *arguments: Any, **named: Any) -> AttackResult:
            row = {"decoder": "vanilla", "state": f"Hotel(phone=01223351880, name={SECRET})"}
            found = super().run(*arguments, **named)
            return found.model_copy(update={"rows": [{**row, "is_member_hit": True, "is_nonmember_hit": False}]})

    experiment = make_experiment({"one": Extracting(), "other": FakeAttack()}, sensitivity=Sensitivity(enabled=True))
    measure(experiment, tmp_path, stranger)
    attacks = on_disk(tmp_path).attacks
    pii = attacks["one"].metrics["sensitivity/vanilla/all/pii_score"]
    assert isinstance(pii, Estimate)
    assert pii.value == pytest.approx((5 + 2) / 2)
    assert "sensitivity/vanilla/all/pii_score" in attacks["one"].control["nonmembers"]
    assert attacks["other"].metrics == {}
    assert SECRET not in (tmp_path / "report.json").read_text(encoding="utf-8")


def test_every_attack_runs_once_and_each_is_on_disk_before_the_next(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target
) -> None:
    seen_on_disk: list[list[str]] = []

    class Watching(FakeAttack):
        def run(self, *arguments: Any, **named: Any) -> AttackResult:
            path = tmp_path / "report.json"
            seen_on_disk.append(list(on_disk(tmp_path).attacks) if path.exists() else [])
            return super().run(*arguments, **named)

    attacks = {"first": Watching(), "second": Watching(0.25)}
    said: list[str] = []
    report = measure(make_experiment(attacks), tmp_path, stranger, said)
    assert seen_on_disk == [[], ["first"]]
    assert [len(attack.asked) for attack in attacks.values()] == [1, 1]
    split, seed = attacks["first"].asked[0]
    assert (len(split.members), seed) == (4, 7)
    assert said == ["attacking turn_level with first", "attacking turn_level with second"]
    assert report == on_disk(tmp_path)
    assert report.status == "complete"
    assert report.attacks["second"].headline.estimate.value == 0.25
    assert report.attacks["second"].records == "records/second.parquet"
    assert report.run.seconds["audit"] >= 0
    assert report.run.peak_memory_mb["audit"] > 0


def test_an_attack_that_tests_a_claim_is_told_what_training_claims(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target, synthetic_schema: Schema
) -> None:
    experiment = make_experiment({"canaries": Canaries(n_alternatives=1, n_draws=100), "other": FakeAttack()})
    split = replace(experiment.split, canaries=draw_canaries(synthetic_schema, CanarySettings(m=20), 0))
    experiment = replace(experiment, drawn=replace(experiment.drawn, split=split))
    privacy = PrivacyInfo(
        unit="dialogue",
        epsilon=2.5,
        delta=1e-3,
        accountant="prv",
        noise_multiplier=1.0,
        sample_rate=0.1,
        steps=9,
        max_grad_norm=1.0,
        secure_rng=False,
    )
    with suite.open_run(experiment, tmp_path) as directory:
        report = suite.start_report(experiment, directory)
        report = report.model_copy(update={"recipe": report.recipe.model_copy(update={"privacy": privacy})})
        report = suite.measure(experiment, stranger, directory, report, lambda _: None)
        assert len(directory.manifest["canary_coins"]) == 20
    found = report.attacks["canaries"]
    assert found.metrics["claimed_epsilon"] == 2.5
    assert isinstance(bound := found.metrics["epsilon_lower"], Estimate)
    assert "delta 0.001" in bound.method


def test_a_configuration_draws_its_canaries_and_one_without_draws_none() -> None:
    config = compose("train", ["canaries.m=6", "canaries.kinds=[phone]", "split.members=20", "split.nonmembers=20"])
    found = suite.prepare(config, "turn_level")
    assert [canary.kind for canary in found.split.canaries] == ["phone"] * 6
    assert any(note.startswith("canaries: ") for note in found.notes)
    del config["canaries"]
    plain = suite.prepare(config, "turn_level")
    assert plain.split == replace(found.split, canaries=())
    assert not [key for key in plain.manifest if "canar" in key]


def test_trackers_hear_of_every_step(make_experiment: MakeExperiment, tmp_path: Path, stranger: Target) -> None:
    tracker = RecordingTracker()
    measure(make_experiment({"first": FakeAttack(), "second": FakeAttack()}, tracker), tmp_path, stranger)
    assert [(list(report.attacks), report.status) for report in tracker.seen] == [
        (["first"], "partial"),
        (["first", "second"], "partial"),
        (["first", "second"], "complete"),
    ]
    assert SECRET not in repr(tracker.seen)


def test_what_the_report_holds_is_not_attacked_again(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target
) -> None:
    broken = FakeAttack(error=AuditError("the endpoint went away"))
    with pytest.raises(AuditError, match="went away"):
        measure(make_experiment({"first": FakeAttack(0.1), "second": broken}), tmp_path, stranger)
    kept = on_disk(tmp_path)
    assert (kept.status, list(kept.attacks)) == ("partial", ["first"])

    again, mended = FakeAttack(0.9), FakeAttack(0.2)
    report = measure(make_experiment({"first": again, "second": mended}), tmp_path, stranger)
    assert again.asked == []
    assert len(mended.asked) == 1
    assert {name: attack.headline.estimate.value for name, attack in report.attacks.items()} == {
        "first": 0.1,
        "second": 0.2,
    }
    assert report.status == "complete"
    assert report.run.created == kept.run.created


def test_a_failure_is_written_down_and_forgotten_once_it_is_overcome(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target
) -> None:
    experiment = make_experiment({"first": FakeAttack()})
    with suite.open_run(experiment, tmp_path) as directory:
        suite.fail(directory, suite.start_report(experiment, directory), AuditError("no answer; start the endpoint"))
    failed = on_disk(tmp_path)
    assert (failed.status, failed.error) == ("failed", "no answer; start the endpoint")
    report = measure(experiment, tmp_path, stranger)
    assert (report.status, report.error, list(report.attacks)) == ("complete", None, ["first"])


def test_nan_reaches_no_report(make_experiment: MakeExperiment, tmp_path: Path, stranger: Target) -> None:
    attacks = {"first": FakeAttack(), "second": FakeAttack(float("nan"))}
    with pytest.raises(AuditError, match=r"second.*nan"):
        measure(make_experiment(attacks), tmp_path, stranger)
    assert list(on_disk(tmp_path).attacks) == ["first"]


@pytest.mark.parametrize("reveal", [False, True])
def test_records_are_masked_unless_revealed(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target, reveal: bool
) -> None:
    measure(make_experiment({"first": FakeAttack()}, reveal=reveal), tmp_path, stranger)
    (value,) = pd.read_parquet(tmp_path / "records" / "first.parquet")["value"]
    assert value == (SECRET if reveal else "p***t(9)")
    assert SECRET not in (tmp_path / "report.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("reveal", [False, True])
def test_the_report_names_dialogues_by_their_hash_and_masks_its_examples(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target, reveal: bool
) -> None:
    experiment = make_experiment({"first": FakeAttack()}, RecordingTracker(), reveal=reveal)
    report = measure(experiment, tmp_path, stranger)
    split = split_sha256(experiment.manifest)
    assert report.run.split_sha256 == split
    name, first = document_hash("d1", split), report.attacks["first"]
    assert first.units == Units(rule="ratio", documents=[name], values=[0.5], weights=[1.0])
    assert first.examples == [{"dialogue_id": name, "value": "p***t(9)"}]
    text = (tmp_path / "report.json").read_text(encoding="utf-8")
    assert '"d1"' not in text
    assert on_disk(tmp_path) == report


def test_a_report_from_before_there_were_hashes_of_splits_is_resumed_with_one(
    make_experiment: MakeExperiment, tmp_path: Path, stranger: Target
) -> None:
    broken = FakeAttack(error=AuditError("the endpoint went away"))
    with pytest.raises(AuditError):
        measure(make_experiment({"first": FakeAttack(), "second": broken}), tmp_path, stranger)
    old = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    del old["run"]["split_sha256"], old["attacks"]["first"]["units"], old["attacks"]["first"]["examples"]
    (tmp_path / "report.json").write_text(json.dumps(old), encoding="utf-8")
    experiment = make_experiment({"first": FakeAttack(), "second": FakeAttack()})
    report = measure(experiment, tmp_path, stranger)
    assert report.run.split_sha256 == split_sha256(experiment.manifest)
    assert [found.units is None for found in report.attacks.values()] == [True, False]


def test_another_split_is_refused_and_changes_nothing(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment({})
    suite.open_run(experiment, tmp_path).close()
    before = (tmp_path / "manifest.json").read_bytes()
    split = experiment.split
    swapped = AuditSplit((*split.members[:3], split.nonmembers[0]), (split.members[3], *split.nonmembers[1:]))
    with pytest.raises(DataError, match=r"manifest\.json.*members: 1 only there"):
        suite.open_run(replace(experiment, drawn=SplitReport(swapped)), tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == before


def test_another_configuration_is_refused(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    suite.open_run(make_experiment({}), tmp_path).close()
    with pytest.raises(DataError, match="setting is 1 there and 2 now"):
        suite.open_run(make_experiment({}, config={"setting": 2}), tmp_path)


def test_components_are_checked_before_any_data_is_read(tmp_path: Path) -> None:
    config = {
        "seed": 0,
        "reveal": False,
        "attack": {"membership": {"_target_": "hushbot.attacks.membership.Membership", "n_draws": 1}},
        "tracker": {},
        "split": {"_target_": "hushbot.corpora.split.SplitSettings"},
        "data": {"_target_": "hushbot.corpora.schema_guided.load_schema_guided", "path": str(tmp_path), "name": "x"},
    }
    with pytest.raises(ConfigError, match="n_draws=1"):
        suite.prepare(config, "turn_level")
    config["attack"] = {}
    with pytest.raises(DataError, match=str(tmp_path)):
        suite.prepare(config, "turn_level")


def test_all_problems_are_told_at_once() -> None:
    config = {"seed": -1, "reveal": "no", "inference": {"batch_rows": 0}, "data": {"_target_": "os.system"}}
    with pytest.raises(ConfigError) as caught:
        suite.check(config, ())
    text = str(caught.value)
    for said in ("seed=-1", "reveal='no'", "inference.batch_rows=0", "--trust os"):
        assert said in text
    assert len(caught.value.problems) == 4


def test_utility_is_measured_on_nonmembers_once(
    make_experiment: MakeExperiment, tmp_path: Path, memoriser: Target, failing_target: Target
) -> None:
    experiment = make_experiment({})
    settings = UtilitySettings(max_dialogues=2, responses=False)
    with suite.open_run(experiment, tmp_path) as directory:
        report = suite.start_report(experiment, directory)
        report = suite.measure_bot(experiment, settings, memoriser, directory, report, lambda _: None)
        assert report == directory.read_report()
        # Measured already: a bot that cannot answer is not even asked.
        again = suite.measure_bot(experiment, settings, failing_target, directory, report, lambda _: None)
    assert again is report
    assert report.status == "partial"
    assert report.run.seconds["utility"] > 0
    assert report.run.peak_memory_mb["utility"] > 0
    assert report.utility_protocol["dialogues_offered"] == 3
    assert report.utility_by_domain
    assert all(numbers.keys() >= {"joint_goal_accuracy", "state_f1"} for numbers in report.utility_by_domain.values())
    # Two dialogues have too few turns to time.
    assert report.run.seconds_per_turn is not None
    assert report.run.seconds_per_turn.value is None
    split = split_sha256(experiment.manifest)
    hashes = {document_hash(dialogue.id, split) for dialogue in experiment.split.nonmembers}
    assert set(report.utility_units["joint_goal_accuracy"].documents) < hashes
    nonmembers = {dialogue.id for dialogue in experiment.split.nonmembers}
    records = pd.read_parquet(tmp_path / "records" / "utility.parquet")
    assert set(records["dialogue_id"]) <= nonmembers
    assert records["dialogue_id"].nunique() == 2


def say_nothing(_: str) -> None:
    """Swallow a line of progress."""


def tiny_config(*overrides: str) -> dict[str, Any]:
    return compose("train", ["trainer.accelerator=cpu", "trainer.progress_bar=false", *overrides])


def fitted(experiment: Experiment, path: Path) -> tuple[Any, AuditReport]:
    with suite.open_run(experiment, path) as directory:
        report = suite.start_report(experiment, directory)
        return making.make_bot(experiment, experiment.config, directory, report, say_nothing)


def test_a_trained_bot_is_controlled_by_what_it_was_trained_from(
    make_experiment: MakeExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("trainer.max_epochs=0", "backbone.max_length=200", "trainer.num_threads=1")
    target, report = fitted(make_experiment({}, config=config), tmp_path / "run")
    assert target.reference.name == "base"
    assert report.run.device == target.device
    assert report.run.versions["threads"] == "1"
    assert report == on_disk(tmp_path / "run")
    folder = tmp_path / "run" / "model"
    record = json.loads((folder / "hushbot_backbone.json").read_text(encoding="utf-8"))
    (folder / "hushbot_backbone.json").write_text(json.dumps(record | {"started_from": "other"}), encoding="utf-8")
    with pytest.raises(DataError, match="trained from"):
        making.target_of(config, folder, config["inference"], name="turn_level")


def test_an_untrained_adapter_is_nobodys_control(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tiny_config("recipe=base", "+backbone.lora._target_=hushbot.training.backbone.LoraSettings")
    assert config["fit"] is False
    target, _ = fitted(make_experiment({}, config=config), tmp_path / "run")
    assert target.reference is None
    assert (tmp_path / "run" / "model" / "adapter_config.json").is_file()


def test_lost_history_is_noted(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tiny_config("trainer.max_epochs=0", "backbone.max_length=120")
    experiment = make_experiment({}, config=config)
    target, report = fitted(experiment, tmp_path / "run")
    lost = [note for note in report.notes if "lost their oldest history" in note]
    assert len(lost) == 1
    assert int(lost[0].split()[0]) > 0
    folder = tmp_path / "run" / "model"
    limit = suite.history_limit(experiment, UtilitySettings(), target, folder)
    assert limit is not None
    assert limit.shorten(("User: " + "a long story " * 9 + "\n", "User: b\n"), "Belief State:") == ("User: b\n",)
    assert "within the 120 tokens" in str(limit.protocol()["history_limit"])
    assert "context of 2048 tokens" in str(limit.protocol()["history_limit"])
    assert suite.history_limit(experiment, UtilitySettings(), target, tmp_path / "nothing") is None


LORA = "+backbone.lora._target_=hushbot.training.backbone.LoraSettings"


def test_what_private_training_spent_is_in_the_report_that_knows_the_weights(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    config = tiny_config("recipe=dp_sgd", "recipe.dp_sgd.accountant=rdp", "trainer.max_epochs=1", LORA)
    _, report = fitted(make_experiment({}, config=config), tmp_path / "run")
    privacy = on_disk(tmp_path / "run").recipe.privacy
    assert privacy == report.recipe.privacy
    assert privacy is not None
    assert (privacy.unit, privacy.steps, privacy.n_units, privacy.engine) == ("dialogue", 1, 4, "hooks")
    assert 7.5 < privacy.epsilon <= privacy.target_epsilon == 8.0
    assert (tmp_path / "run" / "privacy_ledger.jsonl").is_file()
    assert report.run.weights_sha256 is not None
    assert not any("not compared" in note for note in report.notes)


def test_with_a_known_seed_there_is_no_epsilon(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    known = tiny_config("recipe=dp_sgd", "recipe.dp_sgd.insecure_seed=1", "trainer.max_epochs=1", LORA)
    _, report = fitted(make_experiment({}, config=known), tmp_path / "run")
    assert report.recipe.privacy is None
    assert any("NOT private" in note for note in report.notes)


def test_a_saved_model_that_is_not_the_trained_one_is_an_error(
    make_experiment: MakeExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hushbot.training import backbone

    config = tiny_config("trainer.max_epochs=1", LORA)
    save_model = backbone.save_model

    def save_untrained(model: Any, tokenizer: Any, folder: Path, *, started_from: str) -> None:
        untrained = suite.build(config["backbone"], "backbone").load()
        save_model(untrained.model, tokenizer, folder, started_from=started_from)

    monkeypatch.setattr(backbone, "save_model", save_untrained)
    with pytest.raises(HushbotError, match="what was trained is not what was saved"):
        fitted(make_experiment({}, config=config), tmp_path / "run")


def test_without_a_dialogue_to_compare_on_the_report_says_so(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment({}, config=tiny_config("trainer.max_epochs=0", LORA))
    split = replace(experiment.split, controls=())
    _, report = fitted(replace(experiment, drawn=replace(experiment.drawn, split=split)), tmp_path / "run")
    assert any("was not compared with the trained one" in note for note in report.notes)


@pytest.mark.parametrize(
    ("overrides", "learns_changes"),
    [
        (["recipe=dialogue_level"], True),
        (["recipe=dialogue_level", "fit=false"], False),
        (["recipe=turn_level"], False),
    ],
)
def test_a_bot_is_asked_for_what_it_was_trained_to_write(
    make_experiment: MakeExperiment,
    tmp_path: Path,
    memoriser: Target,
    monkeypatch: pytest.MonkeyPatch,
    overrides: list[str],
    learns_changes: bool,
) -> None:
    seen: list[bool] = []
    measure_utility = suite.measure_utility

    def noting(*given: Any, **named: Any) -> Any:
        seen.append(named["learns_changes"])
        return measure_utility(*given, **named)

    monkeypatch.setattr(suite, "measure_utility", noting)
    experiment = make_experiment({}, config=tiny_config(*overrides))
    settings = UtilitySettings(max_dialogues=1, responses=False)
    with suite.open_run(experiment, tmp_path) as directory:
        report = suite.start_report(experiment, directory)
        report = suite.measure_bot(experiment, settings, memoriser, directory, report, say_nothing)
        done = suite.measure(experiment, memoriser, directory, report, say_nothing)
        again = suite.measure(experiment, memoriser, directory, done, say_nothing)
    assert seen == [learns_changes]
    # Attacks still ask for whole states, which a bot that learnt changes was never trained to write.
    assert done.notes.count(suite.WHOLE_STATES_NOTE) == learns_changes
    assert again.notes == done.notes == on_disk(tmp_path).notes
    assert ("running text" in str(report.utility_protocol["layout"])) is learns_changes


def test_a_report_from_before_there_was_a_quiz_keeps_its_note(
    make_experiment: MakeExperiment, tmp_path: Path, memoriser: Target
) -> None:
    experiment = make_experiment({}, config=tiny_config("recipe=dialogue_level"))
    older = suite.WHOLE_STATES_NOTES[1]
    assert older.startswith("the membership attack scores whole states")
    assert "quiz" in suite.WHOLE_STATES_NOTE
    with suite.open_run(experiment, tmp_path) as directory:
        report = suite.start_report(experiment, directory)
        assert not suite.says_changes(report)
        before = report.model_copy(update={"notes": [*report.notes, older]})
        after = suite.measure(experiment, memoriser, directory, before, say_nothing)
    assert suite.says_changes(after)
    assert after.notes == before.notes


def test_a_run_may_be_resumed_with_settings_that_change_no_result(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    def experiment(*overrides: str) -> Experiment:
        return make_experiment({}, config=compose("train", ["recipe=dp_sgd", *overrides]))

    first, faster = experiment(), experiment("recipe.dp_sgd.engine=loop", "recipe.dp_sgd.chunk_tokens=64")
    assert first.config_sha256 == faster.config_sha256
    suite.open_run(first, tmp_path).close()
    suite.open_run(faster, tmp_path).close()
    with pytest.raises(DataError, match=r"recipe\.dp_sgd\.max_grad_norm is 1\.0 there and 2\.0 now"):
        suite.open_run(experiment("recipe.dp_sgd.max_grad_norm=2.0"), tmp_path)
