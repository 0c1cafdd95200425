from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.errors import AuditError, ConfigError, DataError
from hushbot.run import (
    RunDirectory,
    config_sha256,
    report_json,
    report_schema,
    versions,
)
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, RecipeInfo, RunInfo

ROOT = Path(__file__).resolve().parents[2]
CONFIG = {"seed": 0, "trainer": {"lr": 1e-05, "steps": 10}, "arms": ["turn_level"]}
MANIFEST = {"members": ["d1", "d2"], "nonmembers": ["d3"], "data_sha256": "ab"}


def report(**changes: Any) -> AuditReport:
    fields: dict[str, Any] = {
        "status": "complete",
        "run": RunInfo(id="r", created="2026-01-01T00:00:00Z", seed=0, config_sha256="a", data_sha256="b"),
        "recipe": RecipeInfo(stack=["turn_level"]),
        "data": DataInfo(
            name="bookings",
            members=2,
            nonmembers=1,
            calibration=0,
            controls=0,
            domains=1,
            slots=2,
            turns=6,
            supervised_tokens=60,
        ),
        "utility": {
            "joint_goal_accuracy": Estimate(value=0.5, low=0.25, high=0.75, n=4, method="cluster_bootstrap"),
            "bleu": Estimate(value=None, method="not measured: responses are off"),
        },
        "attacks": {
            "membership": AttackResult(
                verdict="inconclusive",
                headline=Headline(metric="tpr_at_1pct_fpr", estimate=Estimate(value=None)),
                rows=[{"value": "secret"}],
            )
        },
    }
    return AuditReport(**(fields | changes))


def files_of(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


# Configuration and manifest


def test_configuration_and_manifest_are_on_disk_before_anything_else(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "deep" / "run").create(CONFIG, MANIFEST) as run:
        assert files_of(run.path) == {"config.yaml", "manifest.json", ".lock"}
        assert run.config == CONFIG
        assert run.manifest == MANIFEST
        assert (run.checkpoints, run.model, run.records) == tuple(
            run.path / name for name in ("checkpoints", "model", "records")
        )


def test_a_run_is_resumed_with_equal_settings(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()
    before = {path: path.read_bytes() for path in (tmp_path / "config.yaml", tmp_path / "manifest.json")}
    RunDirectory(tmp_path).create(dict(reversed(CONFIG.items())), MANIFEST).close()
    assert {path: path.read_bytes() for path in before} == before


def test_another_configuration_is_refused_and_named(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()
    other = {"seed": 1, "trainer": {"lr": 1e-05}, "arms": ["turn_level"], "extra": None}
    with pytest.raises(DataError, match=r"config\.yaml") as caught:
        RunDirectory(tmp_path).create(other, MANIFEST)
    for part in (
        "seed is 0 there and 1 now",
        "trainer.steps is 10 there and absent now",
        "extra is absent there",
    ):
        assert part in str(caught.value)


def test_nobody_becomes_a_member_after_the_fact(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(DataError, match=r"manifest.json .* members is \['d1', 'd2'\] there and \['d1'\] now"):
        RunDirectory(tmp_path).create(CONFIG, MANIFEST | {"members": ["d1"]})
    assert not (tmp_path / "config.yaml").exists()  # a refused run leaves nothing behind
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()  # and does not keep the lock


def test_a_resumed_run_may_differ_in_free_keys_only(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create(CONFIG | {"tracker": "none"}, MANIFEST).close()
    free = {"tracker"}
    RunDirectory(tmp_path).create(CONFIG | {"tracker": "wandb"}, MANIFEST, free_keys=free).close()
    RunDirectory(tmp_path).create(CONFIG, MANIFEST, free_keys=free).close()
    assert RunDirectory.open(tmp_path).config["tracker"] == "none"
    with pytest.raises(DataError, match="seed is 0 there and 1 now"):
        RunDirectory(tmp_path).create(CONFIG | {"seed": 1}, MANIFEST, free_keys=free)


def test_one_and_true_are_different_settings(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create({"flag": 1}, {}).close()
    with pytest.raises(DataError, match="flag is 1 there and True now"):
        RunDirectory(tmp_path).create({"flag": True}, {})


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, Path("x"), "\ud800"])
def test_what_cannot_be_stored_is_a_configuration_error(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="cannot be stored"):
        RunDirectory(tmp_path / "run").create({"key": value}, {})
    assert not (tmp_path / "run").exists()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
CONFIGS = st.dictionaries(
    TEXTS,
    st.recursive(
        SCALARS | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3)
    ),
)


@settings(max_examples=40, deadline=None)
@given(CONFIGS)
def test_every_configuration_survives_the_disk(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("run")
    with RunDirectory(path).create(config, {}) as run:
        assert run.config == config
        assert run.run_id == config_sha256(config)[:12]
    RunDirectory(path).create(config, {}).close()


def test_a_directory_without_a_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no run directory"):
        RunDirectory.open(tmp_path)
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()
    assert RunDirectory.open(tmp_path).config == CONFIG


@pytest.mark.parametrize(("name", "content"), [("config.yaml", "- 1"), ("config.yaml", "{"), ("manifest.json", "[")])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    RunDirectory(tmp_path).create(CONFIG, MANIFEST).close()
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=name):
        RunDirectory(tmp_path).create(CONFIG, MANIFEST)


# The lock


def test_two_writers_of_one_directory_are_one_too_many(tmp_path: Path) -> None:
    code = "import sys; from hushbot.run import RunDirectory; RunDirectory(sys.argv[1]).create({}, {})"
    with RunDirectory(tmp_path).create({}, {}):
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert other.returncode == 1
        assert f"is being written by process {os.getpid()}" in other.stderr
        with pytest.raises(DataError, match="is being written"):
            RunDirectory.open(tmp_path).write_report(report())
    RunDirectory.open(tmp_path).write_report(report())
    RunDirectory(tmp_path).create({}, {}).close()


def test_what_a_killed_process_had_not_finished_is_removed(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run:
        run.write_records("membership", [{"n": 1}], reveal=False)
        run.model.mkdir()
        (run.model / "config.json").write_text("{}")
    whole = files_of(tmp_path)
    (tmp_path / ".report.json.ab_12345.tmp").write_text("{")
    (tmp_path / "records" / ".membership.parquet.ab_12345.tmp").write_text("PAR1")
    (tmp_path / ".model-ab_12345" / "new").mkdir(parents=True)
    (tmp_path / ".model-ab_12345" / "new" / "model.safetensors").write_text("half")
    RunDirectory(tmp_path).create({}, {}).close()
    assert files_of(tmp_path) == whole
    assert not (tmp_path / ".model-ab_12345").exists()


# Records


def test_records_are_masked_unless_revealed(tmp_path: Path) -> None:
    rows = [{"dialogue_id": "d1", "value": "pizza hut", "score": 0.5}, {"dialogue_id": "d2", "hits": 3}]
    with RunDirectory(tmp_path / "run").create({}, {}) as run:
        assert run.write_records("membership", rows, reveal=False) == "records/membership.parquet"
        masked = pd.read_parquet(run.path / "records/membership.parquet")
        assert next(iter(masked["value"])) == "p***t(9)"
        assert list(masked.columns) == ["dialogue_id", "value", "score", "hits"]
        assert masked["hits"].isna().tolist() == [True, False]
        assert b"pizza hut" not in (run.path / "records/membership.parquet").read_bytes()

        run.write_records("membership", rows, reveal=True)
        assert pd.read_parquet(run.records / "membership.parquet")["value"][0] == "pizza hut"
        assert run.path.stat().st_mode & 0o777 == 0o700
    assert rows[0]["value"] == "pizza hut"


def test_records_may_be_empty_or_nested_but_not_mixed(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run:
        run.write_records("empty", [], reveal=False)
        assert len(pd.read_parquet(run.records / "empty.parquet")) == 0
        run.write_records("nested", [{"scores": [1.0, 2.0], "n": np.int64(3)}], reveal=False)
        assert pd.read_parquet(run.records / "nested.parquet")["scores"][0].tolist() == [1.0, 2.0]
        with pytest.raises(DataError, match="column 'n' mixes types"):
            run.write_records("mixed", [{"n": 1}, {"n": "one"}], reveal=True)
        assert not (run.records / "mixed.parquet").exists()


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".hidden", "a b"])
def test_records_stay_in_their_directory(tmp_path: Path, name: str) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run, pytest.raises(DataError, match="records name"):
        run.write_records(name, [], reveal=False)


# The report


def test_a_report_survives_the_disk_without_its_rows(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run:
        complete = [run.is_complete]
        run.write_report(report(status="partial"))
        complete.append(run.is_complete)
        run.write_report(report())
        complete.append(run.is_complete)
        assert complete == [False, False, True]
        text = run.report_path.read_text()
        assert "secret" not in text
        assert report_json(run.read_report()) == text
        assert run.read_report().utility["bleu"].value is None
        assert {name for name in files_of(run.path) if name.startswith(".")} == {".lock"}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_nan_reaches_a_report_and_the_last_good_one_stays(tmp_path: Path, bad: float) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run:
        run.write_report(report())
        good = run.report_path.read_bytes()
        with pytest.raises(AuditError, match=r"utility\.joint_goal_accuracy\.low="):
            run.write_report(report(utility={"joint_goal_accuracy": Estimate(value=0.5, low=bad)}))
        with pytest.raises(AuditError, match=r"utility_protocol\.nested\.1="):
            run.write_report(report(utility_protocol={"nested": [0.0, np.float64(bad)]}))
        assert run.report_path.read_bytes() == good


def test_a_value_that_json_lacks_is_an_audit_error(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).create({}, {}) as run:
        with pytest.raises(AuditError, match="cannot hold this report"):
            run.write_report(report(utility_protocol={"thing": object()}))
        assert not run.report_path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "finished"}, "status: "),
        ({"version": 2}, "version: "),
        ({"run": {"id": "r"}}, r"run\.created: "),
        ({"utility": {"bleu": 0.5}}, r"utility\.bleu: "),
    ],
)
def test_a_report_that_breaks_the_format_names_file_and_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    content = json.loads(report_json(report())) | change
    (tmp_path / "report.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"report.json: {message}"):
        RunDirectory(tmp_path).read_report()


@pytest.mark.parametrize("text", ['{"version": 1', "[]", '{"value": NaN}', "\ufeff"])
def test_a_damaged_report_is_not_an_unfinished_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(DataError, match=r"report\.json"):
        _ = RunDirectory(tmp_path).is_complete


def test_the_published_schema_is_up_to_date_and_accepts_a_report() -> None:
    published = (ROOT / "docs" / "report.schema.json").read_text()
    assert published == report_schema(), "docs/report.schema.json is stale: write hushbot.run.report_schema() there"
    content = json.loads(report_json(report()))
    jsonschema.validate(content, json.loads(published))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content | {"status": "finished"}, json.loads(published))


# Small functions


def test_the_hash_depends_on_content_not_on_order() -> None:
    assert config_sha256({"a": 1, "b": [2]}) == config_sha256({"b": (2,), "a": 1})
    assert config_sha256({"a": 1}) != config_sha256({"a": 2})
    # printf '{"a":1}' | sha256sum
    assert config_sha256({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_versions_name_what_a_result_depends_on() -> None:
    found = versions()
    assert {"python", "hushbot", "torch", "transformers"} <= set(found)
    assert found["threads"] == str(torch.get_num_threads())
    assert found["python"] == ".".join(str(part) for part in sys.version_info[:3])
