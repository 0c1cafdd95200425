"""Whether what lies in a folder is the whole model that its configuration describes, and nothing else.

transformers and peft fill what a file lacks with random numbers and go on; such a bot knows nobody, and an audit would
call that safe. They also leave out what the configuration has no place for.

Guarantees: a model with a tensor missing, renamed, left over or of another shape is refused, and so is an adapter. A
configuration that describes far more than its files hold is refused before memory for it is asked for, and one that
asks for attention code from the hub before any is fetched.

What voids it: numbers inside the tensors, which nobody checks here, and settings that change no shape (`n_head` of
GPT-2); of folders that `model_folder.save_model` wrote, those are known by their hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM

from hushbot.errors import ConfigError, DataError
from hushbot.storage import read_json

LARGEST_RATIO = 16
"""Weights that a configuration may describe per number in the files: they may be packed, as 4-bit ones are."""
_SHOWN = 3
_REMEDY = "restore the folder, or save the model anew with save_pretrained"
_MAY_DIFFER = ("base_model_name_or_path", "_name_or_path")
"""Where things lie, which changes from machine to machine."""


def check_description(where: str, raw: Mapping[str, Any]) -> None:
    """Refuse a configuration that names attention or other code of the hub (`somebody/kernel`).

    Raises:
        ConfigError: It does.
    """
    for key, value in _leaves(raw):
        if "_implementation" in key and isinstance(value, str) and "/" in value:
            raise ConfigError(
                f"{where}: config.json asks for {key}={value!r}, which is code from the hub and never run; "
                "remove that key"
            )


def check_size(folder: Path, config: Any) -> None:
    """Compare how much a configuration describes with how much the files of its folder hold, before it is built.

    Args:
        folder: Holds the safetensors files; without any, nothing is checked.
        config: The configuration, as transformers reads it.

    Raises:
        DataError: It describes far more, or a file cannot be read.
    """
    shapes = [shape for path in sorted(folder.glob("*.safetensors")) for shape in read_shapes(path).values()]
    if not shapes:
        return
    n_layers = getattr(config, "num_hidden_layers", None)
    if isinstance(n_layers, int) and n_layers > len(shapes):
        raise DataError(
            f"{folder}: config.json describes {n_layers} layers, the files {len(shapes)} tensors; {_REMEDY}"
        )
    # Built without memory; what it would draw at random must not be missing from whoever draws next.
    build: Any = AutoModelForCausalLM.from_config  # untyped
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        empty = build(config, trust_remote_code=False)
    n_described, n_held = sum(weight.numel() for weight in empty.parameters()), sum(map(_size, shapes))
    if n_described > LARGEST_RATIO * n_held:
        raise DataError(f"{folder}: config.json describes {n_described} weights, the files hold {n_held}; {_REMEDY}")


def check_loaded(where: str, found: Mapping[str, Any]) -> None:
    """Check what transformers says of a model that it has loaded.

    Args:
        where: The folder or hub id.
        found: Its `output_loading_info`.

    Raises:
        DataError: Tensors were missing, of another shape, or not used.
    """
    names = {
        kind: sorted(map(str, found.get(f"{kind}_keys") or ())) for kind in ("missing", "mismatched", "unexpected")
    }
    _refuse(where, "config.json", sorted(names["missing"] + names["mismatched"]), names["unexpected"])


def check_adapter_description(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration, once it is one of a low-rank adapter that fits its file.

    Raises:
        DataError: It is none, or cannot be read.
    """
    path = folder / "adapter_config.json"
    config = read_json(path)
    if config.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type={config.get('peft_type')!r} must be 'LORA'; no other adapter is understood")
    largest = max(
        (max(shape, default=0) for shape in read_shapes(folder / "adapter_model.safetensors").values()), default=0
    )
    patterns = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, Mapping) else [None])]
    for rank in ranks:
        if not isinstance(rank, int) or not 1 <= rank <= largest:
            raise DataError(f"{path}: rank {rank!r} does not fit the weights beside it; restore both files")
    return config


def check_adapter(folder: Path, model: Any) -> None:
    """Check that an adapter in memory is what its folder holds.

    Raises:
        DataError: Tensors were missing or not used.
    """
    held = set(read_shapes(folder / "adapter_model.safetensors"))
    # Anything but False makes peft ask the hub whether the vocabulary has grown.
    wanted = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    _refuse(str(folder), "adapter_config.json", sorted(wanted - held), sorted(held - wanted - set(model.state_dict())))


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file, by name, without reading the tensors.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}; restore it") from error


def settings_sha256(path: Path) -> str:
    """Return the hash of a model's or an adapter's configuration, however it is written and wherever its base lies.

    Raises:
        DataError: The file cannot be read.
    """
    content = {key: value for key, value in read_json(path).items() if key not in _MAY_DIFFER}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _refuse(where: str, description: str, missing: Collection[str], unused: Collection[str]) -> None:
    if not missing and not unused:
        return
    told = [
        f"{len(names)} tensors {what} ({', '.join(list(names)[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for names, what in ((missing, "are missing or of another shape"), (unused, "belong to nothing in it"))
        if names
    ]
    raise DataError(
        f"{where}: the weights are not those that {description} describes: {' and '.join(told)}; random numbers would "
        f"stand in for what is missing; {_REMEDY}"
    )


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
