"""What `hushbot doctor` says of this machine and of an endpoint, and how it ends."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from hushbot import installation
from hushbot.cli import main
from hushbot.commands import doctor as command
from hushbot.targets import doctor
from hushbot.targets.doctor import Diagnosis, Finding
from hushbot.targets.http import HTTPTarget


def test_this_machine_can_do_what_the_tests_need() -> None:
    found = {fact.name: fact for fact in installation.facts()}
    assert found["torch"].detail == metadata.version("torch")
    assert found["python"].is_fine
    assert "tiny" in found["backbones"].detail
    assert int(found["cores"].detail) >= 1


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "version", gone)
    found = {fact.name: fact for fact in installation.facts()}
    assert not found["peft"].is_fine
    assert "pip install peft" in found["peft"].detail


def test_the_command_says_so_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert "backbones" in capsys.readouterr().out


@pytest.mark.parametrize(("tier", "code"), [("full", 0), ("text", 0), (None, 1)])
def test_an_endpoint_is_usable_or_not(
    tier: Any, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[HTTPTarget] = []

    def examine(target: HTTPTarget) -> Diagnosis:
        asked.append(target)
        return Diagnosis(tier=tier, findings=(Finding("liveness", tier is not None, "[bold]said so[/bold]"),))

    monkeypatch.setattr(doctor, "examine", examine)
    assert main(["doctor", "url=http://localhost:1/v1", "model=bot", "pace.timeout=5", "start_text=<s>"]) == code
    shown = capsys.readouterr()
    assert "[bold]" in shown.out, "what a server says is no markup"
    assert (f"tier: {tier}" in shown.out) == (code == 0)
    assert (asked[0].model, asked[0].start_text, asked[0].pace.timeout) == ("bot", "<s>", 5.0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["url=http://localhost:1/v1"], "model is missing"),
        (["modl=x"], "'modl' is no setting"),
        (["url=ftp://x", "model=b"], "http://"),
        (["url=http://localhost:1/v1", "model=b", "pace.n_tries=many"], "pace.n_tries"),
        (["url=http://localhost:1/v1", "model=b", "pace.nope=1"], "pace.nope"),
    ],
)
def test_wrong_settings_are_configuration_errors(
    settings: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *settings]) == 2
    assert told in capsys.readouterr().err


def test_a_key_on_the_command_line_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sk-very-secret"]) == 2
    assert "sk-very-secret" not in capsys.readouterr().err
    assert "key_variable" in " ".join(command._SETTINGS)
