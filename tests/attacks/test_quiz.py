"""The quiz as a whole: null, power, both modes, controls and refusals; the contract is in test_contract."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hushbot.attacks.quiz import Quiz
from hushbot.attacks.quiz_records import RecordFile
from hushbot.attacks.quiz_writers import EndpointWriter
from hushbot.corpora.medical_records import load_medical_records, write_records
from hushbot.errors import AuditError, ConfigError, DataError
from hushbot.schema import Schema
from hushbot.stats import as_estimate
from hushbot.types import AuditSplit, Decoding, Dialogue

if TYPE_CHECKING:
    from torch import Tensor

QUICK: dict[str, Any] = {"n_draws": 100, "n_permutations": 99}
CORPUS = load_medical_records(220, "both")
SPLIT = AuditSplit(CORPUS.dialogues[:110], CORPUS.dialogues[110:])


@dataclass
class Pupil:
    """Knows some dialogues by heart and answers the rest at random; it writes letters and gives log-probabilities."""

    known: Sequence[Dialogue]
    share: float = 1.0
    """How often it answers a known question right."""
    seed: int = 0
    reference: Pupil | None = None
    form: str = "{letter}"

    def __post_init__(self) -> None:
        self.facts = [{t.value for t in d.final_state or ()} for d in self.known]
        self.by_name = {t.value: d for d in self.known for t in d.final_state or () if t.slot == "name"}

    def rng(self, text: str) -> random.Random:
        return random.Random(f"{self.seed}/{text}")

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        return [[self.form.format(letter=self.letter(prompt))] for prompt in prompts]

    def letter(self, prompt: str) -> str:
        rng = self.rng(prompt)
        options = [line[3:] for line in prompt.splitlines() if line[1:3] == ". "]
        if rng.random() < self.share:
            for name, dialogue in self.by_name.items():
                if name in prompt:
                    values = {t.value for t in dialogue.final_state or ()}
                    right = [i for i, option in enumerate(options) if option in values]
                    return "ABCD"[right[0]]
        return rng.choice("ABCD")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        return [
            torch.tensor([self.score(p + c, c)] * max(1, len(c.split())))
            for p, c in zip(prompts, continuations, strict=True)
        ]

    def score(self, text: str, continuation: str) -> float:
        name = next((name for name in self.by_name if name in text), None)
        is_known = name is not None and all(
            f"{t.slot}={t.value}" in text for t in self.by_name[name].final_state or () if f"{t.slot}=" in text
        )
        rng = self.rng(text + "/" + continuation)
        return -0.1 if is_known and rng.random() < self.share else -3 - rng.random()


def run(target: Any, split: AuditSplit = SPLIT, *, seed: int = 0, **options: Any) -> Any:
    return Quiz(**QUICK | options).run(target, split, CORPUS.schema, seed=seed)


TEXT = {"mode": "text", "subject": "name"}


@pytest.mark.parametrize("options", [{}, TEXT], ids=["score", "text"])
def test_a_bot_that_knows_its_members_leaks(options: dict[str, Any]) -> None:
    result = run(Pupil(SPLIT.members, reference=Pupil(())), **options)
    assert result.verdict == "leak"
    assert result.headline.estimate.value > 0.95
    assert as_estimate(result.metrics["accuracy_members"]).value > 0.9
    assert as_estimate(result.metrics["accuracy_nonmembers"]).value < 0.4
    assert as_estimate(result.metrics["delta_auc_over_base"]).low > 0
    assert as_estimate(result.control["base"]["auc"]).low < 0.5 < as_estimate(result.control["base"]["auc"]).high
    assert result.threat_model == options.get("mode", "score")
    assert len(result.rows) == 880


def test_half_remembered_records_are_found_every_time() -> None:
    for seed in range(3):
        target = Pupil(SPLIT.members, 0.5, seed=seed, reference=Pupil((), seed=-seed - 1))
        assert run(target, seed=seed, **TEXT).verdict == "leak"


def test_a_bot_that_knows_nobody_is_no_leak() -> None:
    for options in ({}, TEXT):
        result = run(Pupil((), reference=Pupil((), seed=-1)), **options)
        assert result.verdict == "no_leak_detected"
        assert result.headline.estimate.low <= 0.5 <= result.headline.estimate.high


def test_a_bot_that_knows_the_non_members_is_on_the_unexpected_side() -> None:
    result = run(Pupil(SPLIT.nonmembers), **TEXT)
    assert result.verdict == "inconclusive"
    assert result.headline.estimate.value < 0.1
    assert any("below 0.5" in note for note in result.notes)


def test_what_the_base_knew_already_is_no_leak() -> None:
    result = run(Pupil(SPLIT.members, reference=Pupil(SPLIT.members)), **TEXT)
    assert result.verdict == "inconclusive"
    assert any("before fine-tuning" in note for note in result.notes)


@pytest.mark.parametrize(
    ("form", "reason"), [("no idea", "name no single option"), ("B", "answers are B"), ("A or B", "name no")]
)
def test_a_bot_that_does_not_answer_is_inconclusive(form: str, reason: str) -> None:
    result = run(Pupil((), form=form), **TEXT)
    assert result.verdict == "inconclusive"
    assert any(reason in note for note in result.notes)
    share = as_estimate(result.metrics["unparsable_members"]).value
    assert share == (0.0 if form == "B" else 1.0)


def test_a_bot_that_always_says_the_same_letter_has_auc_one_half_exactly() -> None:
    result = run(Pupil((), form="B"), **TEXT)
    assert result.headline.estimate.value == 0.5
    assert as_estimate(result.metrics["accuracy_members"]).value == 0.25
    assert as_estimate(result.metrics["accuracy_nonmembers"]).value == 0.25


def test_below_a_hundred_non_members_there_is_no_verdict() -> None:
    small = replace(SPLIT, nonmembers=SPLIT.nonmembers[:99])
    result = run(Pupil(SPLIT.members), small, **TEXT)
    assert result.verdict == "inconclusive"
    assert any("99 non-members, 100 needed" in note for note in result.notes)
    assert as_estimate(result.metrics["tpr_at_1pct_fpr"]).value is None


def test_without_records_nothing_is_measured() -> None:
    result = run(Pupil(()), AuditSplit((Dialogue("a", ()),), (Dialogue("b", ()),)))
    assert (result.verdict, result.headline.estimate.value, result.queries) == ("not_measured", None, 0)


def test_scores_are_not_measured_on_a_target_that_gives_none() -> None:
    target = Pupil(SPLIT.members)
    target.tier = "text"  # type: ignore[attr-defined]
    result = run(target)
    assert (result.verdict, result.headline.estimate.value) == ("not_measured", None)
    assert "mode=text" in result.notes[-1]
    assert run(target, **TEXT).verdict == "leak"


class Broken(Pupil):
    def sample(self, *_: Any, **__: Any) -> list[list[str]]:
        raise AuditError("the endpoint answered 503")


def test_a_failing_base_is_inconclusive_and_never_a_clean_result() -> None:
    for known in ((), SPLIT.members):
        result = run(Pupil(known, reference=Broken(())), **TEXT)
        assert result.verdict == "inconclusive"
        assert result.control["base"] is None
        assert any("503" in note for note in result.notes)


class Refusing:
    def complete(self, prompt: str, *, seed: int = 0) -> str:
        raise AuditError("the endpoint at localhost answered 503")


def test_a_failing_writer_is_inconclusive() -> None:
    result = run(Pupil(()), writer=EndpointWriter(endpoint=Refusing()), **TEXT)
    assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    assert any("503" in note for note in result.notes)


def test_prose_is_quizzed_beside_states_and_told_apart() -> None:
    result = run(Pupil(()), granularities=["structured", "prose"], max_records=105)
    assert {"granularity=structured/auc", "granularity=prose/auc"} <= result.metrics.keys()
    assert result.metrics["members"] == 210
    assert "105 clusters" in result.headline.estimate.method


def test_complex_questions_are_measured_beside_simple_ones() -> None:
    result = run(Pupil(SPLIT.members), complexities=["simple", "complex"], **TEXT)
    assert result.metrics["questions"] == 2 * 880
    assert {"complexity=simple/auc", "complexity=complex/auc"} <= result.metrics.keys()


def test_records_of_a_file_are_quizzed_instead_of_dialogues(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, 220)
    file = RecordFile(path=str(path), fields=["age", "bmi", "blood pressure", "hometown", "hospital", "name"])
    members = {record.id for record in file.read() if record.is_member}
    known = [d for d in load_medical_records(220).dialogues if d.id in members]
    result = run(Pupil(known), AuditSplit((), ()), records=file, max_records=None, **TEXT)
    assert result.verdict == "leak"
    assert result.metrics["members"] == len(members)


def test_a_file_that_cannot_be_read_stops_the_audit(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone"):
        run(Pupil(()), records=RecordFile(path=str(tmp_path / "gone.jsonl")))


def test_notes_and_metrics_show_nobodys_values() -> None:
    result = run(Pupil(SPLIT.members), **TEXT)
    values = {t.value for d in CORPUS.dialogues for t in d.final_state or () if t.slot in ("name", "blood pressure")}
    told = result.model_dump_json()
    assert not [value for value in values if value in told]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"mode": "guess"}, "mode"),
        ({"language": "klingon"}, "language"),
        ({"granularities": []}, "granularities"),
        ({"complexities": ["simple", "complex"]}, "complexities"),
        ({"mode": "text", "complexities": ["hard"]}, "complexities"),
        ({"n_questions": 0}, "n_questions"),
        ({"max_records": 0}, "max_records"),
        ({"writer": 3}, "writer"),
        ({"level": 1.0}, "level"),
        ({"n_draws": 5}, "n_draws"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"attack\.quiz\.{key}"):
        Quiz(**options)


def test_a_real_model_answers_in_every_mode() -> None:
    """Whatever the mode, numbers are finite; what the bundled model knows is not asked here."""
    from hushbot.targets.local import LocalTarget

    target = LocalTarget.from_pretrained(Path(str(files("hushbot"))) / "assets" / "tiny")
    corpus = load_medical_records(8, "both")
    split = AuditSplit(corpus.dialogues[:4], corpus.dialogues[4:])
    for options in (
        {"granularities": ["structured", "prose"]},
        {"language": "question"},
        {"mode": "text"},
        {"mode": "text", "layout": "dialogue"},
    ):
        result = Quiz(n_questions=1, max_new_tokens=4, **QUICK, **options).run(target, split, Schema(()), seed=0)
        assert result.verdict == "inconclusive"
        value = result.headline.estimate.value
        assert value is not None
        assert np.isfinite(value)
        assert result.queries > 0
