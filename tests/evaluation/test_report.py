"""The page and the comparison: from report.json alone, self-contained, escaped, honest about gaps."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from hushbot.errors import DataError
from hushbot.evaluation.report import (
    NOT_MEASURED,
    guarantee,
    print_summary,
    show,
    summary,
    write_comparison,
    write_page,
)
from hushbot.run import RunDirectory
from hushbot.types import Estimate


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tradeoff = neighbour("test_tradeoff")
make_report, private = tradeoff.make_report, tradeoff.private


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    paths = []
    for arm, accuracy, leak in (("turn_level", 0.5, 0.6), ("base", 0.1, None)):
        path = tmp_path / arm
        with RunDirectory(path).create({"arm": arm}, {"members": []}) as directory:
            directory.write_report(make_report(arm, 0, accuracy, leak))
        paths.append(path)
    return paths


def test_numbers_are_shown_with_interval_and_n() -> None:
    assert show(Estimate(value=0.5, low=0.4, high=0.6, n=7)) == "0.500 [0.400, 0.600] (n=7)"
    assert show(Estimate(value=None)) == NOT_MEASURED
    assert show(None) == NOT_MEASURED
    assert show(3) == "3"


def test_a_bot_that_others_trained_has_no_guarantee_that_anybody_knows() -> None:
    report = make_report("bot", 0, None, 0.6)
    assert guarantee(report) == "none"
    assert "it has no formal guarantee" in summary(report)
    foreign = report.model_copy(update={"audited": {"target": "http", "model": "bot"}})
    assert guarantee(foreign) == "unknown"
    assert "its formal guarantee is unknown" in summary(foreign)
    assert [row.privacy_unit for row in tradeoff.rows_of([report, foreign])] == ["none", "unknown", "none"]


def test_page_is_self_contained_and_escapes_what_a_bot_said(runs: list[Path], tmp_path: Path) -> None:
    write_page(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)
    assert "<svg" in page
    assert "0.600 [0.500, 0.700] (n=50)" in page
    assert NOT_MEASURED in page


def test_comparison_writes_its_files(runs: list[Path], tmp_path: Path) -> None:
    write_comparison(runs, tmp_path / "comparison")
    assert {path.name for path in (tmp_path / "comparison").iterdir()} == {
        "tradeoff.csv",
        "comparisons.csv",
        "metrics.csv",
        "roc.csv",
        "tradeoff.png",
        "report.html",
    }
    assert (tmp_path / "comparison" / "tradeoff.png").read_bytes().startswith(b"\x89PNG")


def test_comparison_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run directory"):
        write_comparison([], tmp_path)
    nothing = write_comparison([tmp_path / "absent"], tmp_path / "comparison")
    assert [damaged.path.name for damaged in nothing.found.damaged] == ["absent"]
    assert nothing.comparison.differences == ()


def test_summary_table_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    reports = [make_report("turn_level", 0, 0.5, 0.6), make_report("base", 0, None, None)]
    print_summary(reports)
    text = capsys.readouterr().out
    assert "turn_level" in text
    assert NOT_MEASURED in text
    assert "50% of dialogue states" in summary(reports[0])
    assert "leaks under untargeted extraction" in summary(reports[0])
    assert "no conclusion" in summary(reports[1])


def test_many_attacks_go_on_in_a_further_table_and_lose_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = make_report("turn_level", 0, 0.5, 0.6)
    attack = next(iter(report.attacks.values()))
    names = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf"]
    report = report.model_copy(update={"attacks": dict.fromkeys(names, attack)})
    print_summary([report])
    text = capsys.readouterr().out
    assert [text.count(name) for name in names] == [1] * 7
    assert text.count("turn_level") == 3  # one row in each of three tables
    assert max(map(len, text.splitlines())) <= 80


def test_a_guarantee_is_written_with_unit_and_delta_and_its_absence_is_no_number() -> None:
    plain = make_report("turn_level", 0, 0.5, 0.6)
    assert guarantee(private(plain, 8.0)) == "epsilon 8 per dialogue, delta 0.008"
    both = private(plain, 8.0)
    assert both.recipe.privacy is not None
    privacy = both.recipe.privacy.model_copy(update={"epsilon_at_1e5": 12.345})
    both = both.model_copy(update={"recipe": both.recipe.model_copy(update={"privacy": privacy})})
    assert guarantee(both) == "epsilon 8 per dialogue, delta 0.008 (epsilon 12.35 at delta 1e-05)"
    assert guarantee(plain) == "none"
    assert guarantee(private(plain, float("inf"))) == "none (epsilon is not finite)"
    assert "its formal guarantee is epsilon 8 per dialogue, delta 0.008" in summary(private(plain, 8.0))
    assert "it has no formal guarantee" in summary(plain)


def test_page_shows_each_arms_guarantee_and_the_recipes_notes(tmp_path: Path) -> None:
    noted = make_report("value_copy", 0, 0.5, 0.6).model_copy(
        update={"notes": ["value_copy: 3 <b>values</b> are blank", "loader: 2 dialogues skipped"]}
    )
    made = {"private": private(make_report("dp_sgd", 0, 0.5, 0.6), 8.0), "plain": noted}
    for name, report in made.items():
        with RunDirectory(tmp_path / name).create({"arm": name}, {"members": []}) as directory:
            directory.write_report(report)
    write_page([tmp_path / "private", tmp_path / "plain"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<td>epsilon 8 per dialogue, delta 0.008</td>" in page
    assert "<td>none</td>" in page
    assert "Formal guarantee: none" in page
    assert "clipping norm 1, 10 steps" in page
    before_numbers = page.split("<h3>value_copy, seed 0</h3>")[1].split("<table>")[0]
    assert "<li>value_copy: 3 &lt;b&gt;values&lt;/b&gt; are blank</li>" in before_numbers
    assert "loader" not in before_numbers
