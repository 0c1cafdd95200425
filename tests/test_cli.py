"""The command line as a user meets it: help, lists, exit codes, start-up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hushbot.cli import main


def test_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in (
        "train",
        "audit",
        "compare",
        "report",
        "ls",
        "validate",
        "reproduce",
        "serve",
        "chat",
        "doctor",
        "gate",
    ):
        assert verb in text


@pytest.mark.parametrize(
    "verb", ["train", "audit", "compare", "report", "ls", "validate", "reproduce", "serve", "chat", "doctor", "gate"]
)
def test_verbs_explain_themselves(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


def test_ls_shows_options_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", "recipe"]) == 0
    text = capsys.readouterr().out
    assert "turn_level" in text
    assert "base" in text
    assert "multiwoz21" not in text
    assert main(["ls", "recipes"]) == 2


def test_configuration_errors_exit_with_2_and_are_all_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "trainer.max_epochs=abc", "attack.membership.score=7"]) == 2
    text = capsys.readouterr().err
    assert "trainer.max_epochs='abc'" in text
    assert "attack.membership.score" in text


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nope"]) == 2
    assert main(["train", "--nope"]) == 2
    capsys.readouterr()


def test_a_paper_that_cannot_be_reproduced_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "nope"]) == 2
    assert "tods, popquiz, leakit" in capsys.readouterr().err


@pytest.mark.parametrize("paper", ["tods", "leakit"])
def test_a_reproduction_without_its_corpus_names_the_missing_key(
    paper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", paper]) == 2
    assert "data.path" in capsys.readouterr().err


def test_data_errors_exit_with_1_and_name_the_file(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"{tmp_path}/absent"
    assert main(["train", "data=multiwoz21", f"data.path={path}", f"runs_dir={tmp_path}/runs"]) == 1
    assert path in capsys.readouterr().err


def test_start_up_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom hushbot.cli import main\nassert main(['ls']) == 0\n"
        "heavy = {'torch', 'transformers', 'hydra', 'scipy', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
