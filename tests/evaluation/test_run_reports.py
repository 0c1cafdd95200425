"""Reports are read one by one: what is damaged is told with its reason, and stops no other."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hushbot.cli import main
from hushbot.errors import DataError, HushbotError
from hushbot.evaluation.run_reports import read_reports, read_run
from hushbot.run import report_json


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_report = neighbour("test_tradeoff").make_report


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with two runs, of which only report.json is left, and one of each kind of damage."""
    folder = tmp_path / "runs"
    good = report_json(make_report("turn_level", 0, 0.5, 0.6))
    partial = make_report("base", 0, 0.1, None).model_copy(update={"status": "partial"})
    texts = {
        "a-good": good,
        "b-partial": report_json(partial),
        "c-cut": good[: len(good) // 2],
        "d-other-format": json.dumps(json.loads(good) | {"version": 2}),
        "e-infinite": good.replace('"seed": 0', '"seed": 0, "extra": 1e999'),
        "f-binary": "\udcff\udcfe",
        "g-nested": "[" * 200_000,
    }
    for name, text in texts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "report.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    (folder / "h-missing").mkdir()
    (folder / "h-missing" / "config.yaml").touch()
    (folder / "trackio").mkdir()  # lies beside runs, and is none
    return folder


REASONS = {
    "c-cut": "report.json cannot be read",
    "d-other-format": "report.json: version: Input should be 1",
    "e-infinite": "run.extra=inf is no finite number",
    "f-binary": "report.json cannot be read: 'utf-8' codec",
    "g-nested": "report.json cannot be read",
    "h-missing": "report.json does not exist",
}


def test_a_folder_of_runs_is_all_its_runs(runs: Path) -> None:
    found = read_reports([runs])
    assert [path.name for path in found.paths] == ["a-good", "b-partial"]
    assert [report.status for report in found.reports] == ["complete", "partial"]
    assert [name for name, _ in found.told] == list(REASONS)
    for name, reason in found.told:
        assert reason.startswith(REASONS[name]) or REASONS[name] in reason
        assert str(runs) not in reason, "a page does not say where this machine keeps its files"


def test_runs_may_be_named_one_by_one_and_count_once(runs: Path) -> None:
    given = [runs / "a-good", runs / "a-good" / "report.json", runs / "c-cut", runs]
    assert [path.name for path in read_reports(given).paths] == ["a-good", "b-partial"]
    assert len(read_reports(given).damaged) == len(REASONS)


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = read_reports([tmp_path / "empty", tmp_path / "nowhere"])
    assert [reason.split(";")[0] for _, reason in found.told] == [
        "it is no run directory and holds none",
        "it does not exist",
    ]
    with pytest.raises(DataError, match="does not exist"):
        read_run(tmp_path / "nowhere")


def test_nothing_damaged_is_no_error(runs: Path) -> None:
    read_reports([runs / "a-good"]).check()
    with pytest.raises(HushbotError, match="1 of 2 runs have no readable report"):
        read_reports([runs / "a-good", runs / "c-cut"]).check()


def test_report_rebuilds_everything_and_says_at_the_end_what_it_could_not_read(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["report", str(runs), "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "6 of 8 runs have no readable report; everything else is written" in printed.err
    assert all(f"{runs / name}: " in printed.err for name in REASONS)
    assert "turn_level" in printed.out
    assert {"tradeoff.csv", "tradeoff.png", "report.html"} <= {path.name for path in out.iterdir()}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in REASONS)
    assert "partial" in page
    for name in ("a-good", "b-partial"):
        assert {"privacy_card.md", "report.html"} <= {path.name for path in (runs / name).iterdir()}
    assert not (runs / "c-cut" / "privacy_card.md").exists()


def test_report_of_sound_runs_succeeds_from_their_reports_alone(runs: Path, tmp_path: Path) -> None:
    assert [path.name for path in (runs / "a-good").iterdir()] == ["report.json"]
    assert main(["report", str(runs / "a-good"), "--out", str(tmp_path / "out")]) == 0


def test_nothing_readable_is_still_a_page(runs: Path, tmp_path: Path) -> None:
    assert main(["report", str(runs / "c-cut"), "--out", str(tmp_path / "out")]) == 1
    assert "c-cut" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_a_directory_that_cannot_be_written_stops_no_other(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from hushbot.evaluation import card

    write = card.write_card

    def refuse(report: Any, folder: Path) -> Path:
        if folder.name == "a-good":
            raise PermissionError(13, "Permission denied")
        return write(report, folder)

    monkeypatch.setattr(card, "write_card", refuse)
    given = [str(runs / "a-good"), str(runs / "b-partial")]
    assert main(["report", *given, "--out", str(tmp_path / "out")]) == 1
    assert "a-good: cannot be written: Permission denied" in capsys.readouterr().err
    assert (runs / "b-partial" / "privacy_card.md").exists()


def test_an_arm_that_fails_keeps_none_from_being_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One arm dies before it reports, which launching tells after all were tried; the other is compared."""
    from hushbot.launching import LocalLauncher

    def launch(_: LocalLauncher, cells: Any, folder: Path) -> None:
        done, failed = cells
        done.path.mkdir(parents=True)
        (done.path / "report.json").write_text(report_json(make_report("base", 0, 0.1, 0.2)), encoding="utf-8")
        raise HushbotError(f"{failed.name} ended with code 1: no memory")

    monkeypatch.setattr(LocalLauncher, "launch", launch)
    out = tmp_path / "comparison"
    places = [f"comparison={out}", f"runs_dir={tmp_path / 'runs'}"]
    assert main(["compare", "arms=[base,turn_level]", *places]) == 1
    printed = capsys.readouterr()
    assert "turn_level seed 0 ended with code 1: no memory" in printed.err
    assert "base" in printed.out
    assert (out / "tradeoff.csv").read_text(encoding="utf-8").count("\nbase,") == 2, "the run and its arm"
    assert "turn_level-s0-" in (out / "report.html").read_text(encoding="utf-8"), "the page names what is missing"
