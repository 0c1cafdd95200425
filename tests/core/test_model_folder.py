"""A model on disk: what hashes see, and errors that name a damaged file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hushbot.errors import DataError
from hushbot.training.model_folder import (
    RECORD_NAME,
    folder_sha256,
    load_model,
    started_from,
    weights_sha256,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / RECORD_NAME).write_text('{"started_from": "abc"}')
    return tmp_path


def test_the_folder_hash_sees_every_file_and_name(folder: Path) -> None:
    seen = {folder_sha256(folder)}
    weights = weights_sha256(folder)
    (folder / "tokenizer.json").write_text("[]")
    seen.add(folder_sha256(folder))
    assert weights_sha256(folder) == weights
    (folder / "tokenizer.json").rename(folder / "config.json")
    seen.add(folder_sha256(folder))
    (folder / "more").mkdir()
    seen.add(folder_sha256(folder))
    (folder / "more" / "config.json").write_text("[]")
    seen.add(folder_sha256(folder))
    assert len(seen) == 4  # an empty folder is nothing


def test_a_folder_says_what_its_bot_started_from(folder: Path) -> None:
    assert started_from(folder) == "abc"
    (folder / RECORD_NAME).unlink()
    assert started_from(folder) is None


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff", "NaN"])
def test_a_damaged_record_is_an_error_that_names_it(folder: Path, content: str) -> None:
    (folder / RECORD_NAME).write_bytes(content.encode(errors="surrogateescape"))
    for read in (started_from, weights_sha256, load_model):
        with pytest.raises(DataError, match=RECORD_NAME):
            read(folder)


def test_a_damaged_adapter_configuration_is_an_error_that_names_it(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")
    with pytest.raises(DataError, match=r"adapter_config\.json cannot be read"):
        load_model(folder)
