from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hushbot.errors import PrivacyError
from hushbot.training.ledger import LedgerHeader, PrivacyLedger, read_history
from hushbot.training.privacy import Spending, epsilon

HEADER = LedgerHeader(
    data_fingerprint="f" * 64, noise_multiplier=1.0, sample_rate=0.1, max_grad_norm=1.0, n_dialogues=100
)
STEP = '{"step": 0, "noise_multiplier": 1.0, "sample_rate": 0.1}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "privacy_ledger.jsonl"


def spend(path: Path, n_steps: int, header: LedgerHeader = HEADER) -> str:
    """Open the ledger as a new process would, spend, and return its id."""
    ledger = PrivacyLedger.open(path, header)
    for step in range(n_steps):
        ledger.spend(step)
    ledger.close()
    return ledger.ledger_id


def test_a_ledger_has_a_header_and_a_line_per_step(path: Path) -> None:
    ledger = PrivacyLedger.open(path, HEADER)
    for step in range(3):
        ledger.spend(step)
        assert len(path.read_text().splitlines()) == step + 2, "on disk when spend returns"
    first, *steps = (json.loads(line) for line in path.read_text().splitlines())
    started = first.pop("started")
    assert started.endswith("+00:00")
    assert first == {
        "ledger": ledger.ledger_id,
        "data_fingerprint": "f" * 64,
        "noise_multiplier": 1.0,
        "sample_rate": 0.1,
        "max_grad_norm": 1.0,
        "n_dialogues": 100,
        "is_insecure": False,
    }
    assert steps == [{"step": i, "noise_multiplier": 1.0, "sample_rate": 0.1} for i in range(3)]
    assert ledger.n_steps == 3
    assert ledger.history() == read_history(path) == (Spending(1.0, 0.1, 3),)


def test_opening_spends_nothing(path: Path) -> None:
    assert spend(path, 0) == spend(path, 0), "the id is kept"
    assert read_history(path) == ()


def test_different_ledgers_have_different_ids(tmp_path: Path) -> None:
    assert spend(tmp_path / "a", 0) != spend(tmp_path / "b", 0)


def test_rolled_back_steps_stay_counted(path: Path) -> None:
    """A run at step 13 dies, its checkpoint is of step 10, and it goes on to 20: 23 steps were taken."""
    ledger_id = spend(path, 13)
    ledger = PrivacyLedger.open(path, HEADER, expected_id=ledger_id, at_least=10)
    for step in range(10, 20):
        ledger.spend(step)
    assert ledger.n_steps == 23
    assert read_history(path) == (Spending(1.0, 0.1, 23),)
    nominal = epsilon([Spending(1.0, 0.1, 20)], delta=1e-3, accountant="rdp").epsilon
    assert epsilon(ledger.history(), delta=1e-3, accountant="rdp").epsilon > nominal


def test_steps_with_other_noise_are_kept_apart(path: Path) -> None:
    spend(path, 2)
    spend(path, 3, replace(HEADER, noise_multiplier=2.0, sample_rate=0.2))
    assert read_history(path) == (Spending(1.0, 0.1, 2), Spending(2.0, 0.2, 3))


# --- kills ---

ENDLESS = """
import sys
from pathlib import Path
from hushbot.training.ledger import LedgerHeader, PrivacyLedger
header = LedgerHeader(
    data_fingerprint="f" * 64, noise_multiplier=1.0, sample_rate=0.1, max_grad_norm=1.0, n_dialogues=100
)
ledger = PrivacyLedger.open(Path(sys.argv[1]), header)
for step in range(10**9):
    ledger.spend(step)
    print(step + 1, flush=True)
"""


def test_kill_9_never_loses_a_step(path: Path) -> None:
    for attempt in (1, 2):
        before = read_history(path)[0].steps if path.exists() else 0
        process = subprocess.Popen([sys.executable, "-c", ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(20):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        taken = 20 + len(process.stdout.read().splitlines())
        process.wait()
        assert process.returncode == -signal.SIGKILL
        history = read_history(path)
        # The last line may have been written for a step that was not announced any more.
        assert before + taken <= sum(entry.steps for entry in history) <= before + taken + 1
        assert len([line for line in path.read_text().splitlines() if "ledger" in line]) == attempt


def test_a_process_that_leaves_between_two_steps_loses_none(path: Path) -> None:
    code = ENDLESS.replace("print(step + 1, flush=True)", "import os; step == 4 and os._exit(3)")
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 3
    assert read_history(path) == (Spending(1.0, 0.1, 5),)


def test_a_line_cut_anywhere_counts_as_a_step(path: Path) -> None:
    """Cut the third step's line after each of its bytes: nothing of it, part of it, all but its line break."""
    spend(path, 3)
    whole = path.read_bytes()
    start = whole.rindex(b'{"step"')
    for end in range(start, len(whole) + 1):
        path.write_bytes(whole[:end])
        expected = 2 if end == start else 3
        assert read_history(path) == (Spending(1.0, 0.1, expected),), whole[start:end]
        ledger = PrivacyLedger.open(path, HEADER)
        ledger.spend(2)
        assert ledger.n_steps == expected + 1
        assert ledger.history() == read_history(path) == (Spending(1.0, 0.1, expected + 1),), whole[start:end]


def test_a_line_filled_up_with_zeros_by_a_power_cut_counts_as_a_step(path: Path) -> None:
    spend(path, 2)
    for tail in (b"\0" * 9, b'{"step": 2, "noi' + b"\0" * 9):
        path.write_bytes(path.read_bytes() + tail)
        spend(path, 0)
    assert read_history(path) == (Spending(1.0, 0.1, 4),)


def test_a_cut_line_costs_the_worst_that_is_known(path: Path) -> None:
    spend(path, 2, replace(HEADER, noise_multiplier=0.5, sample_rate=0.1))
    spend(path, 2, replace(HEADER, noise_multiplier=2.0, sample_rate=0.3))
    path.write_bytes(path.read_bytes() + b'{"step": 2, "noise_mul')
    steps = (Spending(0.5, 0.1, 2), Spending(2.0, 0.3, 2))
    assert read_history(path) == (*steps, Spending(0.5, 0.3, 1)), "least noise and highest rate, from wherever"
    ledger = PrivacyLedger.open(path, replace(HEADER, noise_multiplier=0.25, sample_rate=0.2))
    assert ledger.history() == (*steps, Spending(0.25, 0.3, 1)), "what is asked for now counts too"
    assert read_history(path) == ledger.history()


def test_several_kills_each_leave_their_cut_line(path: Path) -> None:
    for _ in range(3):
        spend(path, 2)
        path.write_bytes(path.read_bytes()[:-5])
    assert read_history(path) == (Spending(1.0, 0.1, 6),)
    ledger_id = spend(path, 0)
    path.write_bytes(path.read_bytes()[:-5])  # and one in a header
    ledger = PrivacyLedger.open(path, HEADER, expected_id=ledger_id, at_least=6)
    assert ledger.n_steps == 7


def test_a_kill_before_the_first_header_was_whole_leaves_a_usable_folder(path: Path) -> None:
    path.touch()
    assert spend(path, 1) != ""
    assert read_history(path) == (Spending(1.0, 0.1, 1),)
    path.write_bytes(b'{"ledger": "0a')
    with pytest.raises(PrivacyError, match="no header"):
        read_history(path)
    assert PrivacyLedger.open(path, HEADER).n_steps == 1


# --- refusals ---


@pytest.mark.parametrize("content", [None, b"", b'{"ledger": "0a'])
def test_a_checkpoint_without_its_ledger_is_refused(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(PrivacyError, match=r"missing or empty.*start a new run in another directory"):
        PrivacyLedger.open(path, HEADER, expected_id="0a0b", at_least=3)
    assert (path.read_bytes() if path.exists() else None) == content, "a refused ledger is left alone"


def test_another_runs_ledger_is_refused(tmp_path: Path) -> None:
    ours, other = spend(tmp_path / "a", 5), spend(tmp_path / "b", 5)
    with pytest.raises(PrivacyError, match=f"has the id {other}, the checkpoint belongs to ledger {ours}"):
        PrivacyLedger.open(tmp_path / "b", HEADER, expected_id=ours, at_least=3)


def test_a_ledger_shorter_than_the_checkpoint_knows_is_refused(path: Path) -> None:
    ledger_id = spend(path, 5)
    before = path.read_bytes()
    with pytest.raises(PrivacyError, match="has 5 steps, the checkpoint knows of 6"):
        PrivacyLedger.open(path, HEADER, expected_id=ledger_id, at_least=6)
    assert path.read_bytes() == before
    assert PrivacyLedger.open(path, HEADER, expected_id=ledger_id, at_least=5).n_steps == 5


def test_other_data_are_refused(path: Path) -> None:
    spend(path, 1)
    with pytest.raises(PrivacyError, match=r"is about data ffffffffffff, this run's are eeeeeeeeeeee"):
        PrivacyLedger.open(path, replace(HEADER, data_fingerprint="e" * 64))


def test_a_missing_ledger_is_no_empty_history(path: Path) -> None:
    with pytest.raises(PrivacyError, match="what was spent is unknown"):
        read_history(path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("garbage\n", "neither a header nor a step"),
        ("\n", "neither a header nor a step"),
        ("[1, 2]\n", "neither a header nor a step"),
        ('{"note": "hello"}\n', "neither a header nor a step"),
        (STEP.strip() + STEP, "neither a header nor a step"),  # two steps run together must not count as one
        ('{"step": 1, "noise_mul\n' + STEP, "neither a header nor a step"),  # only a new process cuts a line
        (STEP.replace("1.0", "-1.0"), "noisy step"),
        (STEP.replace("1.0", "NaN"), "noise_multiplier=nan"),
        (STEP.replace("1.0", "Infinity"), "noise_multiplier=inf"),
        (STEP.replace("1.0", "1" + "0" * 400), "noise_multiplier=1000"),
        (STEP.replace("0.1", "1.5"), "noisy step"),
        (STEP.replace("0.1", "0"), "noisy step"),
        (STEP.replace("0.1", '"0.1"'), "sample_rate='0.1' must be a float"),
        (STEP.replace("0.1", "true"), "sample_rate=True must be a float"),
        (STEP.replace('"step": 0', '"step": null'), "step=None must be a int"),
        ('{"step": 4}\n', "noise_multiplier=None"),
    ],
)
def test_damage_is_refused_and_named(path: Path, line: str, told: str) -> None:
    spend(path, 2)
    path.write_text(path.read_text() + line)
    before = path.read_bytes()
    for read in (read_history, lambda p: PrivacyLedger.open(p, HEADER)):
        with pytest.raises(PrivacyError, match=told) as caught:
            read(path)
        assert f"{path}, line " in str(caught.value)
    assert path.read_bytes() == before


def test_a_step_before_any_header_is_refused(path: Path) -> None:
    path.write_text(STEP)
    with pytest.raises(PrivacyError, match="line 1 is neither"):
        PrivacyLedger.open(path, HEADER)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ledger", "other", "belongs to ledger other"),
        ("data_fingerprint", "e", "about other data"),
        ("n_dialogues", 2.5, "2.5 must be a int"),
    ],
)
def test_headers_of_one_file_belong_together(path: Path, name: str, value: object, told: str) -> None:
    spend(path, 1)
    header = json.loads(path.read_text().splitlines()[0]) | {name: value}
    path.write_text(path.read_text() + json.dumps(header) + "\n")
    with pytest.raises(PrivacyError, match=told):
        read_history(path)


@pytest.mark.parametrize(
    "change",
    [{"noise_multiplier": -1.0}, {"sample_rate": 0.0}, {"max_grad_norm": 0.0}, {"n_dialogues": 0}],
)
def test_impossible_headers_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(PrivacyError):
        replace(HEADER, **change)  # type: ignore[arg-type]


# --- while it is open ---


def test_a_second_writer_is_noticed_before_the_next_step(path: Path) -> None:
    first = PrivacyLedger.open(path, HEADER)
    first.spend(0)
    second = PrivacyLedger.open(path, HEADER)
    with pytest.raises(PrivacyError, match="one training per directory"):
        first.spend(1)
    second.spend(0)
    assert read_history(path) == (Spending(1.0, 0.1, 2),)


def test_a_ledger_deleted_under_way_is_noticed(path: Path) -> None:
    ledger = PrivacyLedger.open(path, HEADER)
    path.unlink()
    with pytest.raises(PrivacyError, match="deleted"):
        ledger.spend(0)


def test_a_step_that_cannot_be_synced_is_not_granted_but_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = PrivacyLedger.open(path, HEADER)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(PrivacyError, match="No space left"):
            ledger.spend(0)
    with pytest.raises(PrivacyError, match="bytes where this process left"):
        ledger.spend(0)  # the file and this process no longer agree
    assert read_history(path) == (Spending(1.0, 0.1, 1),)


def test_the_line_is_synced_and_the_new_files_folder_too(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append("folder" if os.path.samestat(os.fstat(descriptor), path.parent.stat()) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watch)
    PrivacyLedger.open(path, HEADER).spend(0)
    assert synced == ["file", "folder", "file"]
    synced.clear()
    PrivacyLedger.open(path, HEADER).spend(1)
    assert synced == ["file", "file"]


def test_a_closed_ledger_grants_nothing(path: Path) -> None:
    ledger = PrivacyLedger.open(path, HEADER)
    ledger.close()
    with pytest.raises(PrivacyError, match="closed"):
        ledger.spend(0)


def test_a_folder_in_its_place_is_refused(path: Path) -> None:
    path.mkdir()
    with pytest.raises(PrivacyError, match="cannot be read"):
        PrivacyLedger.open(path, HEADER)


def test_where_the_noise_is_known_there_is_no_epsilon(path: Path) -> None:
    spend(path, 2, replace(HEADER, is_insecure=True))
    with pytest.raises(PrivacyError, match="noise is known"):
        read_history(path)
    before = path.read_bytes()
    with pytest.raises(PrivacyError, match="begun with is_insecure=True, this run has False"):
        PrivacyLedger.open(path, HEADER)
    assert path.read_bytes() == before
