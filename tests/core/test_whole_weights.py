"""A bot whose weights are not all there is no bot: it would know nobody, and look safe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.targets import LocalTarget
from hushbot.training.backbone import HubBackbone, tiny_dir
from hushbot.training.model_folder import RECORD_NAME, load_model, save_model
from hushbot.training.whole_weights import LARGEST_RATIO, check_description, check_loaded, read_shapes, settings_sha256

SIZES: Any = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
FIRST = {"llama": "model.layers.0.mlp.up_proj.weight", "gpt2": "transformer.h.0.mlp.c_fc.weight"}
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model of each kind and an adapter on the first, as anybody may have saved them."""
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    llama: Any = LlamaForCausalLM(
        LlamaConfig(vocab_size=257, num_hidden_layers=2, max_position_embeddings=64, tie_word_embeddings=True, **SIZES)
    )
    gpt2: Any = GPT2LMHeadModel(GPT2Config(vocab_size=257, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    letters = {"<|endoftext|>": 0} | {c: i + 1 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_alone = Tokenizer(models.BPE(vocab=letters, merges=[]))
    bytes_alone.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    make: Any = PreTrainedTokenizerFast
    tokenizer = make(tokenizer_object=bytes_alone, eos_token="<|endoftext|>")
    for name, model in (("llama", llama), ("gpt2", gpt2)):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    base = HubBackbone(name_or_path=str(folder / "llama"), max_length=64).load()
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["q_proj", "up_proj"])
    save_model(get_peft_model(base.model, lora), base.tokenizer, folder / "adapter")
    save_model(HubBackbone(name_or_path=str(folder / "gpt2"), max_length=64).load().model, tokenizer, folder / "ours")
    return folder


def copied(saved: Path, name: str, tmp_path: Path) -> Path:
    folder = tmp_path / name
    shutil.copytree(saved / name, folder)
    return folder


def change_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def change_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


def cut(folder: Path) -> None:
    (path,) = folder.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-64])


LOADERS = {
    "a run's or anybody's folder": lambda folder: load_model(folder),
    "a target": lambda folder: LocalTarget.from_pretrained(folder),
    "a backbone": lambda folder: HubBackbone(name_or_path=str(folder), max_length=32).load(),
}


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("loader", LOADERS)
def test_whole_models_load(kind: str, loader: str, saved: Path) -> None:
    LOADERS[loader](saved / kind)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("damage", ["removed", "renamed", "left over", "reshaped", "truncated", "embedding removed"])
def test_weights_that_are_not_all_there_are_refused(
    damage: str, kind: str, loader: str, saved: Path, tmp_path: Path
) -> None:
    folder, name = copied(saved, kind, tmp_path), FIRST[kind]
    embedding = next(name for name in load_file(folder / "model.safetensors") if "embed" in name or "wte" in name)
    damages: dict[str, Change] = {
        "removed": lambda f: change_tensors(f, lambda t: t.pop(name)),
        "renamed": lambda f: change_tensors(f, lambda t: t.update({f"{name}x": t.pop(name)})),
        "left over": lambda f: change_tensors(f, lambda t: t.update({"model.more": torch.zeros(3)})),
        "reshaped": lambda f: change_tensors(f, lambda t: t.update({name: torch.zeros(5, 5)})),
        "truncated": cut,
        "embedding removed": lambda f: change_tensors(f, lambda t: t.pop(embedding)),
    }
    damages[damage](folder)
    with pytest.raises(HushbotError, match=str(folder)) as caught:
        LOADERS[loader](folder)
    if damage in ("removed", "renamed", "embedding removed"):
        assert "random numbers would stand in for what is missing" in str(caught.value)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("llama", {"num_hidden_layers": 1}),  # transformers would leave the second layer out
        ("llama", {"num_hidden_layers": 3}),
        ("llama", {"hidden_size": 32}),
        ("llama", {"vocab_size": 300}),
        ("llama", {"num_attention_heads": 4}),
        ("llama", {"tie_word_embeddings": False}),
        ("llama", {"model_type": "qwen2"}),  # has biases that a llama has not
        ("gpt2", {"n_layer": 1}),
        ("gpt2", {"n_embd": 32}),
        ("gpt2", {"n_positions": 32}),
    ],
)
def test_sizes_that_the_weights_do_not_have_are_refused(
    kind: str, changed: dict[str, Any], loader: str, saved: Path, tmp_path: Path
) -> None:
    folder = copied(saved, kind, tmp_path)
    change_json(folder / "config.json", **changed)
    with pytest.raises(HushbotError, match=str(folder)):
        LOADERS[loader](folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_hidden_layers": 10**9},
        {"vocab_size": 10**12},
        {"hidden_size": 10**6, "intermediate_size": 10**6},
        {"model_type": "qwen2", "hidden_size": 4096, "intermediate_size": 22016, "vocab_size": 151936},
    ],
)
def test_a_description_of_a_giant_is_refused_before_memory_is_asked_for(
    changed: dict[str, Any], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM

    folder = copied(saved, "llama", tmp_path)
    change_json(folder / "config.json", **changed)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(DataError, match=r"config\.json describes .* the files"):
        load_model(folder)


def test_packed_weights_may_be_as_few_as_they_are() -> None:
    assert LARGEST_RATIO >= 8  # eight weights of 4 bits in one number of 32


def test_looking_at_the_size_draws_no_random_number(saved: Path) -> None:
    """Adapters start at random weights: what looks must not change them."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    load_model(saved / "llama")
    assert torch.equal(torch.rand(4), expected)


def test_attention_code_from_the_hub_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, "llama", tmp_path)
    for key in ("attn_implementation", "_attn_implementation"):
        change_json(folder / "config.json", **{key: "somebody/kernel"})
        with pytest.raises(ConfigError, match=r"code from the hub and never run"):
            load_model(folder)
    with pytest.raises(ConfigError, match="somebody/kernel"):
        check_description("m", {"text_config": [{"experts_implementation": "somebody/kernel"}]})
    check_description("m", {"attn_implementation": "sdpa", "_name_or_path": "a/b"})


def test_what_transformers_says_is_heeded() -> None:
    check_loaded("m", {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()})
    with pytest.raises(DataError, match=r"m: .*2 tensors are missing or of another shape \(a, b\)"):
        check_loaded("m", {"missing_keys": {"b"}, "mismatched_keys": {"a"}})
    with pytest.raises(DataError, match=r"4 tensors belong to nothing in it \(a, b, c, \.\.\.\)"):
        check_loaded("m", {"unexpected_keys": set("abcd")})


# Settings that change no shape


def test_settings_of_a_saved_bot_are_those_it_was_saved_with(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, "ours", tmp_path)
    path = folder / "config.json"
    before = settings_sha256(path)
    change_json(path, _name_or_path="elsewhere")  # and written in another form
    assert settings_sha256(path) == before
    load_model(folder)
    change_json(path, n_head=4)  # another bot of the same weights
    with pytest.raises(DataError, match=rf"{path}: not as it was when the weights beside it were saved"):
        load_model(folder)


@pytest.mark.parametrize("record", [{"dtype": "save"}, {"dtype": 7}, {"max_length": "9"}, {"max_length": 0}])
def test_a_record_of_something_else_is_refused(record: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, "adapter", tmp_path)
    change_json(folder / RECORD_NAME, **record)
    with pytest.raises(DataError, match=f"{RECORD_NAME}: {next(iter(record))}="):
        load_model(folder)


# Adapters

ADAPTER_LOADERS = {
    "a folder": lambda folder, saved: load_model(folder),
    "beside a model": lambda folder, saved: LocalTarget.from_pretrained(saved / "llama", adapter=folder),
}


@pytest.mark.parametrize("loader", ADAPTER_LOADERS)
@pytest.mark.parametrize("damage", ["none", "removed", "renamed", "left over", "reshaped", "truncated"])
def test_an_adapter_is_put_on_whole_or_not_at_all(damage: str, loader: str, saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, "adapter", tmp_path)
    name = min(read_shapes(folder / "adapter_model.safetensors"))
    damages: dict[str, Change] = {
        "none": lambda f: None,
        "removed": lambda f: change_tensors(f, lambda t: t.pop(name)),
        "renamed": lambda f: change_tensors(f, lambda t: t.update({f"{name}x": t.pop(name)})),
        "left over": lambda f: change_tensors(f, lambda t: t.update({"more": torch.zeros(3)})),
        "reshaped": lambda f: change_tensors(f, lambda t: t.update({name: torch.zeros(5, 5)})),
        "truncated": cut,
    }
    damages[damage](folder)
    if damage == "none":
        ADAPTER_LOADERS[loader](folder, saved)
        return
    with pytest.raises(DataError, match=str(folder)):
        ADAPTER_LOADERS[loader](folder, saved)


@pytest.mark.parametrize("loader", ADAPTER_LOADERS)
@pytest.mark.parametrize(
    "changed",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": "("},
        {"layers_to_transform": [0]},
        {"r": 3},
        {"r": 10**9},  # would ask for memory first
        {"rank_pattern": {"q_proj": 10**9}},
        {"use_dora": True},
        {"peft_type": "IA3"},
        {"peft_type": "PROMPT_TUNING"},  # may name a tokenizer with code
        {"peft_type": 3},
        {"modules_to_save": ["lm_head"]},
        {"megatron_config": {"a": 1}, "megatron_core": "antigravity"},  # may name a module to import
    ],
)
def test_an_adapters_configuration_fits_its_file(
    changed: dict[str, Any], loader: str, saved: Path, tmp_path: Path
) -> None:
    folder = copied(saved, "adapter", tmp_path)
    change_json(folder / RECORD_NAME, settings_sha256=None)  # as in folders of others
    change_json(folder / "adapter_config.json", **changed)
    with pytest.raises(DataError, match=str(folder)):
        ADAPTER_LOADERS[loader](folder, saved)
    assert "antigravity" not in sys.modules


def test_an_adapter_of_another_strength_is_not_the_one_that_was_saved(saved: Path, tmp_path: Path) -> None:
    folder = copied(saved, "adapter", tmp_path)
    change_json(folder / "adapter_config.json", lora_alpha=400)
    with pytest.raises(DataError, match="not as it was when the weights beside it were saved"):
        load_model(folder)


SAVE = """
import sys
from pathlib import Path
import torch
from hushbot.training.backbone import LoraSettings, TinyBackbone, save_model
torch.manual_seed(0)
loaded = TinyBackbone(lora=LoraSettings(r=2)).load()
save_model(loaded.model, loaded.tokenizer, Path(sys.argv[1]))
"""


@pytest.mark.long
def test_the_same_adapter_is_the_same_files_in_every_process(tmp_path: Path) -> None:
    from hushbot.training.model_folder import folder_sha256

    hashes = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", SAVE, str(folder)], check=True, env=environment, timeout=300)
        hashes.add(folder_sha256(folder))
    assert len(hashes) == 1


def test_bundled_weights_are_whole() -> None:
    load_model(tiny_dir())
