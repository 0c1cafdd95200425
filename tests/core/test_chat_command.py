"""`hushbot chat` as a user meets it: what it refuses, and how it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hushbot.cli import main
from hushbot.errors import DataError
from hushbot.evaluation import chatting
from hushbot.evaluation.chatting import Chat
from hushbot.run import RunDirectory
from hushbot.schema import Schema
from hushbot.training.model_folder import folder_sha256


class Parrot:
    """Says one thing, unless it is interrupted."""

    reference = None

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def sample(self, prompts: Sequence[str], **settings: object) -> list[list[str]]:
        if self.error is not None:
            raise self.error
        return [["Restaurant(area=north)" if prompt.endswith("State:") else "hello"] for prompt in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[object]:
        raise NotImplementedError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return what looks like a run directory."""
    (tmp_path / "config.yaml").write_text("{}\n", encoding="utf-8")
    (tmp_path / "manifest.json").write_text("{}\n", encoding="utf-8")
    return tmp_path


def talk(
    run: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, *overrides: str, error: BaseException | None = None
) -> int:
    chat = Chat(
        target=Parrot(error),  # type: ignore[arg-type]
        database=None,
        limit=None,
        learns_changes=False,
        max_new_tokens=8,
        schema=Schema(()),
        opening="Good day.",
    )
    monkeypatch.setattr(chatting, "load_chat", lambda *_: (chat, "turn_level"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(said), encoding="utf-8"))
    return main(["chat", f"run={run}", *overrides])


def test_a_file_of_lines_is_a_talk(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(run.rglob("*"))
    assert talk(run, monkeypatch, b"in the north") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "Bot       Good day.",
        "State     restaurant: area=north (new)",
        "Database  (nothing)",
        "Actions   hello",
        "Bot       hello",
    ]
    assert "turn_level, without a guard" in err
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize(("opening", "first"), [("Welcome", "Bot       Welcome"), ("''", "State ")])
def test_another_opening(
    opening: str, first: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(run, monkeypatch, b"in the north\n", f"opening={opening}") == 0
    assert capsys.readouterr().out.startswith(first)


def test_bytes_that_are_no_text_do_not_end_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(run, monkeypatch, b"\xff\xfe north\n/state\n") == 0


def test_ctrl_c_is_a_way_to_end(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk(run, monkeypatch, b"hello\n", error=KeyboardInterrupt()) == 0


def test_problems_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "opening=7", "reveal=maybe"]) == 2
    told = capsys.readouterr().err
    assert "run=DIR" in told
    assert "opening=7" in told
    assert "reveal='maybe'" in told


def test_a_misspelling_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "rn=somewhere"]) == 2
    assert "`run`" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", f"run={tmp_path}"]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_a_run_without_a_report_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", f"run={run}"]) == 1
    assert str(run / "report.json") in capsys.readouterr().err


def test_a_damaged_report_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.json").write_text(json.dumps({"version": 1}), encoding="utf-8")
    assert main(["chat", f"run={run}"]) == 1
    assert "report.json" in capsys.readouterr().err


def test_a_changed_file_of_the_model_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "model").mkdir()
    tokenizer = run / "model" / "tokenizer.json"
    tokenizer.write_text("{}", encoding="utf-8")
    info = SimpleNamespace(run=SimpleNamespace(model_sha256=folder_sha256(run / "model")))
    monkeypatch.setattr(RunDirectory, "read_report", lambda self: info)
    chatting._check_model(RunDirectory(run))
    tokenizer.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="restore the model"):
        chatting._check_model(RunDirectory(run))
