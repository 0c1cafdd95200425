"""A run's bot is served and audited as a stranger would: the whole suite, as far as the endpoint tells anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from hushbot.cli import main
from hushbot.evaluation.chatting import load_chat
from hushbot.run import RunDirectory
from hushbot.serving import serving

pytestmark = pytest.mark.slow

MICRO = (
    "data=bookings",
    "backbone=tiny",
    "split.members=24",
    "split.nonmembers=24",
    "split.calibration=2",
    "split.controls=10",
    "canaries.m=4",
    "utility.max_dialogues=1",
    "utility.max_new_tokens=8",
    "utility.responses=false",
    "attack=[]",
)
"""The backbone as it is, which nobody has to wait for."""
SIZES: dict[str, dict[str, Any]] = {
    "untargeted_extraction": {"decoders": "[vanilla,greedy]", "n_samples": 20, "k": 20, "max_new_tokens": 24},
    "targeted_extraction": {
        "decoders": "[greedy]",
        "lengths": "[2]",
        "max_prefixes": 6,
        "n_ranked": 0,
    },
    "schema_probe": {"temperatures": "[1.0]", "n_questions": 3, "n_samples": 3, "n_runs": 1},
    "membership": {"n_draws": 200, "n_permutations": 99},
    "blind": {"n_draws": 200, "n_permutations": 99},
    "quiz": {"n_draws": 200, "n_permutations": 99, "max_records": 6, "n_questions": 2},
    "identifier_leak": {
        "n_samples": 2,
        "max_documents": 4,
        "max_controls": 8,
        "max_new_tokens": 6,
        "sweep_documents": 0,
    },
    "canaries": {"n_draws": 200, "n_alternatives": 3},
}
"""Attacks, as small as they still ask for everything."""
EXACT = ("membership", "blind", "quiz", "canaries")
"""Attacks that draw nothing from the bot: every number must be the same."""
INFERENCE = {"batch_rows": 16, "batch_tokens": 4096}


class Served(NamedTuple):
    url: str
    process: subprocess.Popen[str]


def attacks(*names: str) -> list[str]:
    """Return the overrides that choose attacks at their small sizes."""
    sizes = [f"attack.{name}.{key}={value}" for name in names for key, value in SIZES[name].items()]
    return [f"attack=[{','.join(names)}]", *sizes]


@contextmanager
def serve_here(run: Path, *faults: str) -> Iterator[str]:
    """Serve a run's bot in this process, which is faster."""
    chat, _ = load_chat(RunDirectory.open(run), INFERENCE, ())
    with serving(chat.target, faults=faults, prompt_of=chat.prompt_of) as url:
        yield url


@contextmanager
def serve(run: Path, *settings: str) -> Iterator[Served]:
    """Start `hushbot serve` as a user does, and end it as a user does."""
    command = [sys.executable, "-m", "hushbot.cli", "serve", f"run={run}", "port=0", "model=bot", *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"serving bot at (\S+)", process.stdout.readline())
            assert found is not None, "the server did not start"
            yield Served(found[1], process)
        finally:
            # Not SIGINT: a shell's background jobs, and so their children, ignore it.
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def train(folder: Path, recipe: str) -> Path:
    run = folder / recipe
    assert main(["train", *MICRO, f"recipe={recipe}", f"run={run}"]) == 0
    return run


def audit(url: str, run: Path, out: Path, *settings: str) -> tuple[int, Any]:
    code = main(["audit", "target=http", f"url={url}", "model=bot", f"run={run}", f"out={out}", *settings])
    path = out / "report.json"
    return code, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("base"), "base")


@pytest.fixture(scope="module")
def over_http(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, int]:
    """Audit a sound endpoint once; return the report, where it lies, and how the server ended."""
    out = tmp_path_factory.mktemp("audit") / "run"
    with serve(base) as served:
        code, report = audit(served.url, base, out, *attacks(*SIZES))
    assert code == 0
    return report, out, served.process.returncode


@pytest.fixture(scope="module")
def in_memory(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    out = tmp_path_factory.mktemp("audit") / "run"
    assert main(["audit", "target=run", f"run={base}", f"out={out}", *attacks(*SIZES)]) == 0
    return json.loads((out / "report.json").read_text(encoding="utf-8")), out


def numbers(metrics: Mapping[str, Any], wanted: Callable[[str], bool] = lambda _: True) -> dict[str, Any]:
    return {
        key: metric["value"] if isinstance(metric, Mapping) else metric
        for key, metric in metrics.items()
        if wanted(key)
    }


def test_the_whole_suite_runs_over_http(over_http: tuple[Any, Path, int]) -> None:
    report, _, ended = over_http
    assert report["status"] == "complete"
    assert report["endpoint"]["tier"] == "full"
    assert {name for name, attack in report["attacks"].items() if attack["verdict"] == "not_measured"} == set()
    assert report["attacks"].keys() == SIZES.keys()
    assert report["run"]["device"] == "endpoint"
    assert report["run"]["weights_sha256"] is None
    assert ended == 0, "to be told to end is no error"


@pytest.mark.parametrize("name", EXACT)
def test_what_draws_nothing_measures_what_it_measures_in_memory(
    over_http: tuple[Any, Path, int], in_memory: tuple[Any, Path], name: str
) -> None:
    ours, theirs = over_http[0]["attacks"][name], in_memory[0]["attacks"][name]
    assert ours["verdict"] == theirs["verdict"]
    over_wire, local = numbers(ours["metrics"]), numbers(theirs["metrics"])
    assert over_wire.keys() == local.keys()
    unmeasured = {key for key, value in over_wire.items() if value is None and local[key] is not None}
    assert unmeasured == {key for key in unmeasured if key.startswith("min_k_pp/")}, "it needs the whole next-token law"
    measured = [key for key, value in over_wire.items() if value is not None]
    assert len(measured) >= 6
    assert [over_wire[key] for key in measured] == pytest.approx([local[key] for key in measured], abs=1e-4)


@pytest.mark.parametrize("name", sorted(SIZES.keys() - {"schema_probe"}))
def test_scores_in_the_records_are_the_local_ones(
    over_http: tuple[Any, Path, int], in_memory: tuple[Any, Path], name: str
) -> None:
    """`schema_probe` reads texts alone, so that it has no scores, and no records."""
    over_wire, local = (scores_of(path / "records" / f"{name}.parquet") for path in (over_http[1], in_memory[1]))
    assert set(local.columns) - set(over_wire.columns) == ({"min_k_pp"} if name == "membership" else set())
    assert len(over_wire)
    assert over_wire.select_dtypes("float").notna().any(axis=None)
    pd.testing.assert_frame_equal(over_wire, local[over_wire.columns], atol=1e-4, rtol=1e-4)


def scores_of(path: Path) -> pd.DataFrame:
    """Return the numbers in an attack's records that do not hang on what was drawn."""
    rows = pd.read_parquet(path)
    if path.stem == "untargeted_extraction":
        rows = rows[rows["decoder"] == "greedy"].reset_index(drop=True)
    if path.stem == "identifier_leak":
        return rows[["sequence_logprob"]]
    return rows.select_dtypes("number")


def test_greedy_decoding_says_the_same(over_http: tuple[Any, Path, int], in_memory: tuple[Any, Path]) -> None:
    def counted(report: Any) -> dict[str, Any]:
        return numbers(
            report["attacks"]["targeted_extraction"]["metrics"],
            lambda key: key.startswith("greedy/none/") and key.endswith(("states", "state_precision", "triplets")),
        )

    assert counted(over_http[0]) == pytest.approx(counted(in_memory[0]))
    assert counted(over_http[0])


def test_neither_address_nor_persons_are_in_the_report(over_http: tuple[Any, Path, int], base: Path) -> None:
    text = (over_http[1] / "report.json").read_text(encoding="utf-8")
    assert "127.0.0.1" not in text
    assert str(base) not in text
    clear = [path.name for path in over_http[1].rglob("*.jsonl")]
    assert clear == [], "the cache of questions and answers is gone with the audit's end"


def test_what_the_endpoint_does_not_tell_is_not_measured(base: Path, tmp_path: Path) -> None:
    with serve_here(base, "drop_logprobs") as url:
        code, report = audit(url, base, tmp_path / "audit", *attacks("membership", "schema_probe", "identifier_leak"))
    assert code == 0
    assert report["endpoint"]["tier"] == "text"
    verdicts = {name: attack["verdict"] for name, attack in report["attacks"].items()}
    assert verdicts["membership"] == "not_measured"
    assert report["attacks"]["membership"]["headline"]["estimate"]["value"] is None
    assert any("tier" in note for note in report["attacks"]["membership"]["notes"])
    assert verdicts["schema_probe"] != "not_measured"
    assert verdicts["identifier_leak"] != "not_measured"


def test_a_guard_leaves_an_endpoint_of_text_alone(tmp_path: Path) -> None:
    run = train(tmp_path, "base+value_copy")
    with serve_here(run) as url:
        code, report = audit(url, run, tmp_path / "audit", *attacks("membership"))
    assert code == 0
    assert report["endpoint"]["tier"] == "text"
    assert report["attacks"]["membership"]["verdict"] == "not_measured"


def test_scores_out_of_place_are_never_measured_with(base: Path, tmp_path: Path) -> None:
    with serve_here(base, "off_by_one") as url:
        code, report = audit(url, base, tmp_path / "audit", *attacks("membership"))
    assert code == 0
    assert report["endpoint"]["tier"] == "next_token"
    assert report["attacks"]["membership"]["verdict"] == "not_measured"


def test_a_model_that_is_not_there_is_an_error(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serve_here(base) as url:
        code = main(["audit", "target=http", f"url={url}", "model=other", f"run={base}", f"out={tmp_path / 'a'}"])
    assert code == 1
    assert "404" in capsys.readouterr().err
