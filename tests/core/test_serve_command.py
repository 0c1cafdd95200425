"""`hushbot serve` before it serves: what it refuses, and that it says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from hushbot.cli import main
from hushbot.commands.serve import check
from hushbot.composition import compose
from hushbot.errors import ConfigError


def problems(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        check(compose("serve", ["run=somewhere", *overrides]))
    return refused.value.problems


def test_the_defaults_serve_this_machine_alone() -> None:
    config = compose("serve", ["run=somewhere"])
    check(config)
    assert (config["host"], config["faults"], config["allow_remote"]) == ("127.0.0.1", [], False)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("run=null", "run=DIR"),
        ("port=70000", "port=70000"),
        ("port=http", "port='http'"),
        ("host=0.0.0.0", "allow_remote=true"),
        ("host='::'", "allow_remote=true"),
        ("allow_remote=maybe", "allow_remote"),
        ("faults=drip", "faults=[drip]"),
    ],
)
def test_what_it_refuses(override: str, told: str) -> None:
    (problem,) = problems(override)
    assert told in problem


def test_all_problems_are_told_at_once() -> None:
    assert len(problems("port=-1", "host=example.org", "run=null")) == 3


def test_another_machine_may_ask_where_that_is_wanted() -> None:
    check(compose("serve", ["run=somewhere", "host=0.0.0.0", "allow_remote=true", "faults=[429_retry_after,drip]"]))


@pytest.mark.parametrize("override", ["faults=[drop_logprob]", "prot=1"])
def test_misspellings_exit_with_2(override: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "run=somewhere", override]) == 2
    assert ("drop_logprobs" if "faults" in override else "port") in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", f"run={tmp_path}"]) == 1
    assert str(tmp_path) in capsys.readouterr().err
