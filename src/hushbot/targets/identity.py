"""Who a target is: one hash over everything that its answers depend on beside what it is asked.

Guarantees: two bots have the same identity only where weights (every tensor, as it is in memory), adapter and whether
it is on, configuration, tokenizer, number types, kind of device, the packages that compute, and every guard with its
settings are the same. An endpoint says itself who it is (`Identified`). What cannot be told is a `ConfigError`, never
a guess.

What voids it: an endpoint that changes its model behind the same name between two examinations; a rewriting model that
is named by a hub id; a guard whose answers depend on what is no field of it; packages that changed but not their
version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from hushbot.errors import ConfigError
from hushbot.protocols import Target
from hushbot.targets.guarded import GuardedTarget

if TYPE_CHECKING:
    from hushbot.targets.local import LocalTarget

_PACKAGES = ("hushbot", "torch", "transformers", "tokenizers", "peft")
"""What computes the answers of a bot on this machine."""
_SOURCE_KEYS = frozenset({"_name_or_path", "name_or_path", "base_model_name_or_path", "transformers_version"})
"""Keys of a model's configuration that say where it came from, which is not what it is."""


@runtime_checkable
class Identified(Protocol):
    """A target that says itself who it is."""

    @property
    def identity(self) -> str:
        """A text that differs between two targets whose answers may differ: address, model, fingerprint."""
        ...


def identity_of(target: Target) -> str:
    """Return the hash of what a target's answers depend on.

    Raises:
        ConfigError: The target does not show it.
    """
    return hashlib.sha256(json.dumps(_plain_target(target), sort_keys=True).encode()).hexdigest()


def _plain_target(target: Any) -> Any:
    if isinstance(target, GuardedTarget):
        settings = {name: _plain(value) for name, value in vars(target).items() if name != "inner"}
        return {"guard": _class_name(target), "settings": settings, "inner": _plain_target(target.inner)}
    if isinstance(target, Identified):
        return {"kind": _class_name(target), "identity": target.identity}
    from hushbot.targets.local import LocalTarget  # not at the top: an endpoint's identity needs no torch

    if isinstance(target, LocalTarget):
        return _plain_local(target)
    raise ConfigError(
        f"cache.enabled=true: a {_class_name(target)} does not say who it is, so its answers cannot be kept apart from "
        "another bot's; give it a property `identity`, or set cache.enabled=false"
    )


def _plain_local(target: LocalTarget) -> Any:
    model, tokenizer = target.causal_lm, target.tokenizer
    adapters = getattr(model.outer, "peft_config", {}) if model.has_adapter else {}
    return {
        "weights": _weights_sha256(model.outer),
        "model": _class_name(model.core),
        "config": _plain(model.core.config.to_dict()),
        "adapters": {name: _plain(adapter.to_dict()) for name, adapter in adapters.items()},
        "active": _plain(getattr(model.outer, "active_adapter", None)) if model.has_adapter else None,
        "without_adapter": model.without_adapter,
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "special": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id],
        "device": target.device,
        "packages": dict(_versions()),
    }


def _weights_sha256(model: Any) -> str:
    import torch

    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        total.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
        total.update(values.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def _plain(value: Any) -> Any:
    """Return a setting in JSON's own types, the same in every process.

    Raises:
        ConfigError: It is of a kind whose content does not show.
    """
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items() if name not in _SOURCE_KEYS}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(inner) for inner in value), key=lambda inner: json.dumps(inner, sort_keys=True))
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    from hushbot.targets.target_rewriter import PretrainedTarget

    if isinstance(value, Enum):
        return [_class_name(value), value.name]
    if hasattr(value, "sample"):  # also where it is a dataclass: its answers may depend on more than its fields
        return _plain_target(value)
    if isinstance(value, PretrainedTarget):
        return {"pretrained": [_folder_or_id(value.path), _folder_or_id(value.adapter)]}
    if is_dataclass(value) and not isinstance(value, type):
        return {
            "kind": _class_name(value),
            "settings": {field.name: _plain(getattr(value, field.name)) for field in fields(value)},
        }
    return _plain_target(value)  # which refuses it


def _folder_or_id(source: str | None) -> str | None:
    """Return the hash of a model's folder; a hub id is only a name."""
    from hushbot.training.model_folder import folder_sha256

    return folder_sha256(Path(source)) if source is not None and Path(source).is_dir() else source


def _versions() -> Iterator[tuple[str, str]]:
    for name in _PACKAGES:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            yield name, ""


def _class_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
