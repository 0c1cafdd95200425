"""A model on disk: load a base, save what training made of it, load it again.

Guarantees: weights are read from safetensors only and no code that came with a model is run. A model that
`save_model` wrote and `load_model` reads gives the same logits, bit by bit; an adapter is refused on any
other base than the one it was trained on. A folder is written whole or not at all.

Void if the arithmetic differs: the same weights give slightly different logits on other hardware.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.machine_faults import is_out_of_memory
from hushbot.storage import read_json
from hushbot.tokens import start_token
from hushbot.training.folders import new_folder
from hushbot.training.smollm2 import smollm2_dir
from hushbot.training.whole_weights import (
    check_adapter,
    check_adapter_description,
    check_description,
    check_loaded,
    check_size,
    settings_sha256,
)

RECORD_NAME = "hushbot_backbone.json"
_CONFIG, _ADAPTER_CONFIG = "config.json", "adapter_config.json"
# Kept in the model's own configuration, so that it survives whatever is done to the model in between.
_NAME_KEY = "hushbot_backbone"
_DTYPES = ("float32", "bfloat16", "float16", "float64")
_RECORD_TYPES: dict[str, type] = {
    **dict.fromkeys(("name", "dtype", "base_fingerprint", "started_from", "base_revision", "settings_sha256"), str),
    "max_length": int,
}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBackbone:
    """A model with its tokenizer."""

    model: Any
    """A causal LM of transformers, or a peft model around one."""
    tokenizer: Any
    """A fast tokenizer with a start token and a padding token."""
    name: str
    """Which backbone this is, for reports (`tiny`, `smollm2`, a hub id)."""
    max_length: int
    """Tokens one example may have, its start token included."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a base model comes from."""

    where: str
    """A folder or a hub id."""
    name: str
    revision: str | None = None
    local_files_only: bool = True


def save_model(model: Any, tokenizer: Any, folder: Path, *, started_from: str | None = None) -> None:
    """Write a trained model, whole or not at all; an adapter is written without its base.

    The folder is what transformers (all weights) or peft (adapter) load, and replaces one that is there.

    Args:
        model: The model after training.
        tokenizer: Its tokenizer.
        folder: Where to write.
        started_from: The `base_fingerprint` that the model had before training; kept for `check_start`.
    """
    is_adapter = isinstance(model, PeftModel)
    record = {
        "name": getattr(model.config, _NAME_KEY, None),
        "max_length": tokenizer.model_max_length,
        "dtype": str(next(_base_weights(model))[1].dtype).removeprefix("torch."),
        "base_fingerprint": base_fingerprint(model) if is_adapter else None,
        "started_from": started_from,
        "base_revision": getattr(model.config, "_commit_hash", None) if is_adapter else None,
    }
    with new_folder(Path(folder), replace=True) as new:
        if is_adapter:
            # Anything but False makes peft ask the hub whether the vocabulary has grown; ours never does.
            model.save_pretrained(new, save_embedding_layers=False)
            _sort_targets(new / _ADAPTER_CONFIG)
        else:
            model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / "README.md").unlink(missing_ok=True)
        record["settings_sha256"] = settings_sha256(new / (_ADAPTER_CONFIG if is_adapter else _CONFIG))
        (new / RECORD_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        for file in new.rglob("*"):
            if file.is_file():
                file.chmod(0o644)  # safetensors writes for its owner alone, unlike everything else in a run


def load_model(folder: Path) -> LoadedBackbone:
    """Load what `save_model` wrote, or any folder in the same form, in evaluation mode.

    Raises:
        ConfigError: Something in it cannot be read.
        DataError: The folder holds no model, has its weights in pickle form only or not all of them, its
            configuration is not the one that was saved with them, or its adapter belongs to another base.
    """
    folder = Path(folder)
    record = _read_record(folder)
    if (folder / _ADAPTER_CONFIG).is_file():
        _check_settings(folder / _ADAPTER_CONFIG, record)
        model = _load_adapter(folder, record)
    elif (folder / _CONFIG).is_file():
        _check_settings(folder / _CONFIG, record)
        _weight_files(folder)
        model = load_causal_lm(ModelSource(str(folder), folder.name), "auto")
    else:
        raise DataError(f"{folder}: neither config.json nor {_ADAPTER_CONFIG}; give a folder that holds a model")
    tokenizer, recorded = load_limit(folder)
    limit = getattr(model.config, "max_position_embeddings", tokenizer.model_max_length)
    return LoadedBackbone(model.eval(), tokenizer, record.get("name") or folder.name, min(recorded, limit))


def load_limit(folder: Path) -> tuple[Any, int]:
    """Return a folder's tokenizer, and how many tokens an example had at most when its model was trained."""
    tokenizer = load_tokenizer(ModelSource(str(folder), folder.name), None)
    return tokenizer, _read_record(folder).get("max_length") or tokenizer.model_max_length


def weights_sha256(folder: Path) -> str:
    """Return one hash over all weights in a folder, and over the base that an adapter stands on.

    Raises:
        DataError: The folder holds no safetensors file.
    """
    total = hashlib.sha256()
    for path in _weight_files(Path(folder)):
        with path.open("rb") as file:
            total.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    total.update(str(_read_record(Path(folder)).get("base_fingerprint")).encode())
    return total.hexdigest()


def folder_sha256(folder: Path) -> str:
    """Return one hash over every file of a model's folder: weights, tokenizer and configuration."""
    total = hashlib.sha256()
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
        total.update(path.relative_to(folder).as_posix().encode() + b"\0" + digest)
    return total.hexdigest()


def started_from(folder: Path) -> str | None:
    """Return the `base_fingerprint` of what a folder's bot was before training; None where the folder does not say."""
    found = _read_record(Path(folder)).get("started_from")
    return None if found is None else str(found)


def check_start(folder: Path, before: Any) -> None:
    """Check that a model is the one that the bot in a folder was before it was trained.

    Raises:
        DataError: It is another one, or the folder does not say what its bot started from.
    """
    if started_from(folder) != base_fingerprint(before):
        raise DataError(
            f"{folder}: the backbone is not, or not known to be, the one that this bot was trained from, so it is no "
            "control; restore that backbone (pin backbone.revision) or train again"
        )


def load_causal_lm(source: ModelSource, dtype: torch.dtype | str) -> Any:
    """Load a base model without dropout; never pickled weights, never code from the repository.

    Raises:
        ConfigError: Something cannot be read.
        DataError: The weights are not all of the model that the configuration describes.
    """
    options = {"revision": source.revision, "local_files_only": source.local_files_only}
    try:
        check_description(source.where, PreTrainedConfig.get_config_dict(source.where, **options)[0])
        config = AutoConfig.from_pretrained(source.where, trust_remote_code=False, **options)
        for name, value in vars(config).items():
            if "drop" in name and isinstance(value, float):
                setattr(config, name, 0.0)
        if not hasattr(config, _NAME_KEY):
            setattr(config, _NAME_KEY, source.name)
        if Path(source.where).is_dir():
            check_size(Path(source.where), config)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.where,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
        model, found = loaded
        check_loaded(source.where, found)
        return model
    except HushbotError:
        raise
    except Exception as error:  # the folder is anybody's, and a damaged one makes transformers fail in any way there is
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            f"backbone {source.name} ({source.where}): {type(error).__name__}: {error}\n(needed: a causal language "
            "model that transformers knows, with safetensors weights; set backbone.name_or_path)"
        ) from error


def load_tokenizer(source: ModelSource, max_length: int | None) -> Any:
    """Load a fast tokenizer and see to its padding token and length."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            source.where,
            revision=source.revision,
            local_files_only=source.local_files_only,
            trust_remote_code=False,
        )
    except Exception as error:  # likewise
        raise ConfigError(
            f"backbone {source.name} ({source.where}): no tokenizer that transformers can read "
            f"({type(error).__name__}: {error}); restore its files or set backbone.name_or_path"
        ) from error
    if not tokenizer.is_fast:
        raise ConfigError(f"backbone {source.name}: no fast tokenizer, which hushbot needs for character offsets")
    start_token(tokenizer)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token
    if max_length is not None:
        tokenizer.model_max_length = max_length
    return tokenizer


def _load_adapter(folder: Path, record: dict[str, Any]) -> Any:
    """Load an adapter on the base that its configuration, or else the bundled name, points to."""
    _weight_files(folder)
    config = check_adapter_description(folder)
    where, name = config.get("base_model_name_or_path"), record.get("name")
    if where is not None and not isinstance(where, str):
        raise DataError(
            f"{folder / _ADAPTER_CONFIG}: base_model_name_or_path={where!r} is no path; name the base model"
        )
    if not Path(where or "").is_dir() and name in ("tiny", "smollm2"):
        # The run was made on another machine or in another environment.
        where = str(tiny_dir() if name == "tiny" else smollm2_dir())
    if not where:
        raise DataError(f"{folder / _ADAPTER_CONFIG}: base_model_name_or_path is empty; name the base model there")
    dtype = getattr(torch, record.get("dtype") or "float32")
    source = ModelSource(where, name or where, record.get("base_revision"), Path(where).is_dir())
    model = put_adapter(load_causal_lm(source, dtype), folder)
    expected = record.get("base_fingerprint")
    if expected is not None and base_fingerprint(model) != expected:
        raise DataError(f"{folder}: the base {where} is not the one this adapter was trained on; restore that one")
    return model


def put_adapter(model: Any, folder: Path) -> Any:
    """Put a low-rank adapter of a folder on a base model, whole or not at all.

    Raises:
        DataError: The folder holds no such adapter, or it does not fit the model.
    """
    folder = Path(folder)
    check_adapter_description(folder)
    try:
        adapted = PeftModel.from_pretrained(model, str(folder), is_trainable=False)
    except Exception as error:  # as above
        if is_out_of_memory(error):
            raise
        raise DataError(
            f"{folder}: the adapter cannot be put on its base ({type(error).__name__}: {error}); restore both"
        ) from error
    check_adapter(folder, adapted)
    return adapted


def _base_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of the base, or of the whole model where there is no adapter, in a fixed order."""
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" not in name:
            yield name.replace(".base_layer", ""), parameter


def base_fingerprint(model: Any) -> str:
    """Hash the beginning of each weight of the base: enough to tell two bases apart, at any size."""
    total = hashlib.sha256()
    for name, parameter in _base_weights(model):
        total.update(f"{name} {tuple(parameter.shape)}".encode())
        total.update(parameter.detach().flatten()[:256].float().cpu().numpy().tobytes())
    return total.hexdigest()


def _read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD_NAME
    if not path.is_file():
        return {}
    record = read_json(path)
    for key, value in record.items():
        is_right = key not in _RECORD_TYPES or value is None or type(value) is _RECORD_TYPES[key]
        if (
            not is_right
            or (key == "dtype" and value not in (None, *_DTYPES))
            or (key == "max_length" and value is not None and value < 2)
        ):
            raise DataError(f"{path}: {key}={value!r} is not what save_model writes; restore the file")
    return record


def _sort_targets(path: Path) -> None:
    """Write an adapter's target modules in order: peft keeps a set, whose order is another one in each process."""
    config = read_json(path)
    if isinstance(config.get("target_modules"), list):  # or a pattern
        config["target_modules"].sort()
        path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _check_settings(path: Path, record: dict[str, Any]) -> None:
    if record.get("settings_sha256") not in (None, settings_sha256(path)):
        raise DataError(
            f"{path}: not as it was when the weights beside it were saved, which would make another bot of them; "
            "restore the file"
        )


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder; a folder with pickles only is an error."""
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise DataError(f"{folder}: no *.safetensors file; save the weights as safetensors (pickles are never loaded)")
    return found


def tiny_dir() -> Path:
    """Return the folder of the bundled backbone.

    Raises:
        ConfigError: This installation has none.
    """
    path = Path(str(files("hushbot") / "assets" / "tiny"))
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"backbone tiny: {path} is not there; reinstall hushbot, make it with `python -m "
            f"hushbot.training.pretrain_tiny {path}`, or set backbone=hf"
        )
    return path
