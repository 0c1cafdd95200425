"""The wiring of `hushbot reproduce`: which run it makes or takes, and that a given one is only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hushbot.commands import audit, reproduce, train
from hushbot.composition import compose
from hushbot.errors import ConfigError
from hushbot.evaluation import reproducing, reproduction_files


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path]]:
    """Replace the making of files; return (run, folder) of each."""
    calls: list[tuple[Path, Path]] = []
    monkeypatch.setattr(reproduction_files, "write_reproduction", lambda run, out: calls.append((run, out)))
    return calls


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(train, "run", lambda config, path, trust: configs.append(config))
    return configs


@pytest.fixture
def audited(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []
    monkeypatch.setattr(audit, "main", lambda overrides, *, trust, config_dir: calls.append(list(overrides)))
    return calls


def test_a_bot_is_trained_with_the_papers_attacks(
    written: list[tuple[Path, Path]], trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    overrides = ["data.path=somewhere", f"runs_dir={tmp_path}", "attack.untargeted_extraction.n_samples=7"]
    reproduce.main("tods", overrides, out=tmp_path / "out")
    (config,) = trained
    assert config["data"]["version"] == "2.1"
    assert list(config["recipe"]) == ["turn_level"]
    assert config["attack"]["untargeted_extraction"]["n_samples"] == 7
    assert {"schema_probe", "targeted_extraction", "targeted_gold", "targeted_sweep"} < config["attack"].keys()
    assert written == [(train.run_path(config), tmp_path / "out" / "tods")]


def test_another_experiment_takes_the_place_of_the_papers(
    written: list[tuple[Path, Path]], trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    reproduce.main("tods", ["experiment=tods_quick", f"runs_dir={tmp_path}"], out=tmp_path)
    assert trained[0]["split"]["members"] == 60
    assert len(written) == 1


def test_an_existing_bot_is_audited_with_the_same_attacks(
    written: list[tuple[Path, Path]], audited: list[list[str]], tmp_path: Path
) -> None:
    reproduce.main("tods", ["target=run", "run=some/bot", "runs_dir=there"], out=tmp_path)
    (overrides,) = audited
    made = compose("audit", overrides)
    assert made["attack"] == compose("train", ["experiment=tods", "data.path=x"])["attack"]
    assert made["out"] == "there/tods-bot"
    assert written == [(Path("there/tods-bot"), tmp_path / "tods")]
    reproduce.main("tods", ["target=run", "run=some/bot", "out=mine"], out=tmp_path)
    assert written[1][0] == Path("mine")


def test_a_run_that_is_given_is_only_read(
    written: list[tuple[Path, Path]], trained: list[dict[str, Any]], audited: list[list[str]], tmp_path: Path
) -> None:
    reproduce.main("tods", [], out=tmp_path, read=Path("a/run"))
    assert written == [(Path("a/run"), tmp_path / "tods")]
    assert trained == audited == []
    with pytest.raises(ConfigError, match="seed=1 would change nothing"):
        reproduce.main("tods", ["seed=1"], out=tmp_path, read=Path("a/run"))


@pytest.mark.parametrize(
    ("paper", "data", "attacks"),
    [
        ("popquiz", "medical_records", {"quiz", "quiz_worded", "quiz_text"}),
        ("leakit", "multiwoz", {"identifier_leak"}),
    ],
)
def test_other_papers_have_settings_of_their_own(
    paper: str,
    data: str,
    attacks: set[str],
    monkeypatch: pytest.MonkeyPatch,
    trained: list[dict[str, Any]],
    audited: list[list[str]],
    tmp_path: Path,
) -> None:
    calls: list[tuple[str, Path, Path]] = []
    monkeypatch.setattr(reproducing, "write_paper", lambda *given: calls.append(given))
    overrides = ["data.path=somewhere"] if data == "multiwoz" else []
    reproduce.main(paper, [*overrides, f"runs_dir={tmp_path}"], out=tmp_path / "out")
    (config,) = trained
    assert data in config["data"]["_target_"]
    assert config["attack"].keys() == attacks
    assert calls == [(paper, train.run_path(config), tmp_path / "out" / paper)]
    reproduce.main(paper, ["target=run", "run=some/bot", "runs_dir=there"], out=tmp_path)
    assert compose("audit", audited[0])["attack"] == config["attack"]
    assert calls[1] == (paper, Path(f"there/{paper}-bot"), tmp_path / paper)


def test_a_paper_that_nobody_knows_is_refused_before_anything_runs(
    written: list[tuple[Path, Path]], trained: list[dict[str, Any]], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="choose one of tods, popquiz, leakit"):
        reproduce.main("attention", [], out=tmp_path)
    assert written == []
    assert trained == []
