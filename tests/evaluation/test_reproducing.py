"""Two papers beside a run: numbers that can be followed by hand, and nothing where none was measured."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from hushbot.errors import DataError
from hushbot.evaluation import paper_leakit, paper_popquiz
from hushbot.evaluation.reproducing import write_paper
from hushbot.evaluation.reproduction_leakit import reproduce as reproduce_leakit
from hushbot.evaluation.reproduction_popquiz import quizzes_of
from hushbot.evaluation.reproduction_popquiz import reproduce as reproduce_popquiz
from hushbot.run import RunDirectory
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, Metric, RecipeInfo, RunInfo


def near(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half, n=100, method="by hand")


QUIZ: dict[str, Metric] = {
    "auc": near(0.9),
    "accuracy_members": near(0.8),
    "type=text/auc": near(0.9),
    "type=number/auc": near(0.7),
    "complexity=simple/auc": near(0.8),
    "digits=2/auc": near(0.75),
    "digits=2/questions": 40,
}
LEAK: dict[str, Metric] = {
    "leak_rate": near(0.5),
    "leak_rate/kind=email": near(0.6),
    "leak_rate/domain=hotel": near(0.4),
    "leakit_rate": near(0.55),
    "leak_rate/temperature=0.7": near(0.45),
    "hit@4": near(0.3),
    "documents": 25,
}


def report_of(status: str = "complete", data: str = "medical records (both)", **attacks: AttackResult) -> AuditReport:
    return AuditReport(
        status=status,  # type: ignore[arg-type]
        run=RunInfo(id="x", created="now", seed=0, config_sha256="c", data_sha256="d"),
        recipe=RecipeInfo(stack=["turn_level"]),
        data=DataInfo(
            name=data, members=6, nonmembers=6, calibration=0, controls=0, domains=1, slots=1, turns=2,
            supervised_tokens=3,
        ),
        attacks=attacks,
    )  # fmt: skip


def quiz() -> AttackResult:
    return AttackResult(
        verdict="leak",
        headline=Headline(metric="auc", estimate=near(0.9), key="auc"),
        metrics=QUIZ,
        control={"base": {"auc": near(0.5).model_dump()}},
        blind={"guess/auc": near(0.52).model_dump()},
    )


def leak() -> AttackResult:
    return AttackResult(
        verdict="leak",
        headline=Headline(metric="leak_rate", estimate=near(0.5), key="leak_rate"),
        metrics=LEAK,
        control={"nonmembers": {"leak_rate": near(0.0, 0.02).model_dump(), "leakit_rate": near(0.5).model_dump()}},
    )


def test_each_quiz_stands_beside_its_base_its_guesser_and_the_paper() -> None:
    found = reproduce_popquiz(report_of(quiz=quiz(), quiz_text=quiz()), {})
    rows = {(each.row, each.column, each.metric): each for each in found.tables["table1"][1]}
    ours = rows["quiz", "bot", "auc"]
    assert (ours.ours, ours.chance, ours.paper) == (near(0.9), near(0.5), paper_popquiz.AUC["llama2-7b", "medical"])
    assert rows["quiz_text", "guesser", "auc"].ours == near(0.52)
    assert rows["quiz", "bot", "tpr_at_1pct_fpr"].ours is None  # not measured, never zero


def test_breakdowns_carry_the_papers_numbers_where_it_prints_any() -> None:
    tables = reproduce_popquiz(report_of(quiz=quiz()), {}).tables
    assert [(each.column, each.metric, each.paper) for each in tables["table2"][1]] == [
        ("text", "auc", 0.880),
        ("number", "auc", 0.755),
    ]
    assert [(each.column, each.paper) for each in tables["digits"][1]] == [("2", None)]
    assert tables["granularity"][1] == []


def test_another_corpus_has_no_number_of_the_paper_beside_it() -> None:
    rows = reproduce_popquiz(report_of(data="bookings", quiz=quiz()), {}).tables["table1"][1]
    assert {each.paper for each in rows} == {None}


def test_claims_hold_by_their_differences() -> None:
    found = {each.claim.split(" (")[0]: each for each in reproduce_popquiz(report_of(quiz=quiz()), {}).orderings}
    text = found["text gives members away more than numbers do"]
    # 0.9 - 0.7, and the half widths of 0.05 add up as squares: 0.05 * sqrt(2) = 0.0707
    assert text.difference.value == pytest.approx(0.2)
    assert text.difference.low == pytest.approx(0.2 - 0.0707, abs=1e-4)
    assert text.outcome == "holds"
    assert found["simple questions work better than complex ones"].outcome == "cannot tell"  # no complex one was asked


def test_only_quizzes_are_quizzes() -> None:
    assert list(quizzes_of(report_of(quiz=quiz(), quiz_text=quiz(), quizzical=quiz(), membership=quiz()))) == [
        "quiz",
        "quiz_text",
    ]


def test_both_rules_stand_beside_documents_never_seen_and_the_paper() -> None:
    found = reproduce_leakit(report_of(identifier_leak=leak()), {})
    ours, theirs = found.tables["leak_rate"][1]
    assert (ours.ours, ours.chance, ours.paper) == (near(0.5), near(0.0, 0.02), paper_leakit.LEAK_RATE)
    assert (theirs.ours, theirs.chance) == (near(0.55), near(0.5))
    assert [each.outcome for each in found.orderings] == ["holds", "cannot tell"]
    assert [(each.row, each.column, each.paper) for each in found.tables["breakdown"][1]] == [
        ("kind", "email", 0.213),
        ("domain", "hotel", None),
    ]
    assert [(each.row, each.column, each.metric) for each in found.tables["settings"][1]][3:] == [
        ("temperature", "0.7", "leak_rate")
    ]
    assert [each.column for each in found.tables["hit_at_k"][1]] == ["k=4"]


@pytest.mark.parametrize(("paper", "attack"), [("popquiz", "quiz"), ("leakit", "identifier_leak")])
def test_files_hold_every_table_and_say_what_is_missing(
    paper: str, attack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = quiz() if attack == "quiz" else leak()
    with RunDirectory(tmp_path / "run").create({"seed": 0}, {"data_sha256": "d"}) as run:
        run.write_report(report_of(status="partial", **{attack: result}))
    write_paper(paper, tmp_path / "run", tmp_path / "out")
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "**The run is partial**" in summary
    assert "not measured" in summary
    stems = {path.stem for path in (tmp_path / "out").glob("*.csv")}
    assert all(f"`{stem}.csv`" in summary for stem in stems)
    assert len(stems) == (6 if paper == "popquiz" else 5)
    first = "table1" if paper == "popquiz" else "leak_rate"
    with (tmp_path / "out" / f"{first}.csv").open() as file:
        row = next(csv.DictReader(file))
    assert (row["value"], row["chance_value"]) == (("0.9", "0.5") if paper == "popquiz" else ("0.5", "0.0"))
    assert "does the paper's ordering hold here?" in capsys.readouterr().out


@pytest.mark.parametrize("paper", ["popquiz", "leakit"])
def test_a_run_without_the_papers_attack_is_refused(paper: str, tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({"seed": 0}, {"data_sha256": "d"}) as run:
        run.write_report(report_of())
    with pytest.raises(DataError, match=f"no attack of {paper}.*hushbot reproduce {paper}"):
        write_paper(paper, tmp_path, tmp_path / "out")
