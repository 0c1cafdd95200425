"""Flat passes: what each token alone would be, of which models, and what they do not multiply."""

from __future__ import annotations

import logging
import random
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from hushbot.targets import flat_pass
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.flat_pass import is_readable
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import Packed, pack

N = 60
SIZES: dict[str, Any] = {
    "vocab_size": N,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}


def llama(**more: Any) -> LlamaForCausalLM:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return LlamaForCausalLM(LlamaConfig(**SIZES, **more)).eval()


def adapted() -> Any:
    model = get_peft_model(llama(), LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(2))
    return model


def forest(seed: int) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Return texts, and per text the sequences behind it: of very different lengths, that begin alike or do not."""
    rng = random.Random(seed)
    texts, branches = [], []
    for _ in range(rng.randint(1, 6)):
        texts.append(rng.choices(range(N), k=rng.choice([1, 2, 9, 30])))
        trunk = rng.choices(range(N), k=rng.choice([1, 3, 12]))
        several = [trunk[: rng.randint(1, len(trunk))] + rng.choices(range(N), k=rng.randint(0, 4)) for _ in range(3)]
        branches.append(sorted(several[: rng.choice([1, 3])]))
    return texts, branches


def behind(
    causal_lm: CausalLM, texts: list[list[int]], trees: list[Packed]
) -> tuple[StoredTexts, torch.Tensor, list[int]]:
    """Read texts, then trees behind them."""
    store = TokenStore()
    read = causal_lm.prefill(texts)
    stored = StoredTexts(store, [store.add_text(one.memory, len(ids)) for one, ids in zip(read, texts, strict=True)])
    features, slots = causal_lm.branch_features(stored, trees)
    return stored, features, slots


def check(model: Any, seed: int, causal_lm: CausalLM | None = None, *, is_flat: bool = True) -> None:
    """Compare the logits behind every path with those of the whole sequence in a row of its own."""
    causal_lm = causal_lm or CausalLM(model)
    texts, branches = forest(seed)
    trees = [pack(group) for group in branches]
    with causal_lm.reading():
        assert causal_lm.supports_branches(100)
        _, features, _ = behind(causal_lm, texts, trees)
        assert causal_lm.is_flat == is_flat
        logits = causal_lm.logits(features)
        start = 0
        for text, group, tree in zip(texts, branches, trees, strict=True):
            for branch, path in zip(group, tree.paths, strict=True):
                alone = causal_lm.outer(input_ids=torch.tensor([text + branch])).logits[0, -len(branch) :]
                torch.testing.assert_close(logits[[start + place for place in path]], alone, atol=2e-4, rtol=1e-4)
            start += len(tree.ids)


@pytest.mark.parametrize("seed", range(12))
def test_every_token_is_what_it_is_behind_its_text_and_path_alone(seed: int) -> None:
    check(llama(), seed)


@pytest.mark.parametrize(
    "more",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"head_dim": 12},
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    ],
    ids=["bias", "head size", "tied", "scaled positions"],
)
def test_whatever_a_llama_is_configured_to(more: dict[str, Any]) -> None:
    check(llama(**more), 3)


@pytest.mark.parametrize("without_adapter", [False, True])
def test_an_adapter_is_read_or_not_as_asked(without_adapter: bool) -> None:
    model = adapted()
    check(model, 4, CausalLM(model, without_adapter=without_adapter))


def test_what_is_kept_is_what_padded_rows_keep() -> None:
    texts, branches = forest(5)
    trees = [pack(group) for group in branches]
    kept, features = [], []
    for is_flat in (True, False):
        causal_lm = CausalLM(llama())
        causal_lm.__dict__["_reads_flat"] = is_flat
        with causal_lm.reading():
            stored, found, slots = behind(causal_lm, texts, trees)
        features.append(found)
        kept.append([(keys[slots], values[slots]) for keys, values in stored.store.layers])
        assert len(set(slots)) == len(slots) == stored.store.n_tokens - sum(map(len, texts))
    torch.testing.assert_close(*features, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(*kept, atol=1e-5, rtol=1e-4)


def test_trees_without_texts_are_read_without_a_store() -> None:
    trees = [pack(group) for group in forest(6)[1]]
    causal_lm = CausalLM(llama())
    with causal_lm.reading():
        assert causal_lm.is_flat
        flat = causal_lm.tree_features(trees)
        causal_lm.__dict__["_reads_flat"] = False
        torch.testing.assert_close(flat, causal_lm.tree_features(trees), atol=1e-5, rtol=1e-4)


def test_padding_is_not_multiplied() -> None:
    model, multiplied = llama(), list[int]()
    causal_lm = CausalLM(model)
    trees = [pack([list(range(n))]) for n in (9, 8, 5, 1, 1)]
    with causal_lm.reading():
        assert causal_lm.is_flat
        model.model.layers[0].mlp.register_forward_pre_hook(
            lambda _, given: multiplied.append(given[0].shape[:-1].numel())
        )
        causal_lm.tree_features(trees)
        causal_lm.__dict__["_reads_flat"] = False
        causal_lm.tree_features(trees)
    assert multiplied == [9 + 8 + 5 + 1 + 1, 5 * 9]


@pytest.mark.parametrize("where", ["body", "layer", "attention", "forward"])
def test_what_hangs_on_calls_that_are_left_out_is_heeded(where: str) -> None:
    model = llama()
    body, layer = model.model, model.model.layers[1]
    asked = list[str]()
    if where == "forward":  # how accelerate hangs its hooks
        own = layer.forward
        layer.forward = lambda *given, **named: (asked.append(where), own(*given, **named))[1]
    else:
        module = {"body": body, "layer": layer, "attention": layer.self_attn}[where]
        module.register_forward_hook(lambda *_: asked.append(where))
    assert not is_readable(body)
    check(model, 7, is_flat=False)
    assert asked


def test_other_classes_are_read_in_rows() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = MistralForCausalLM(MistralConfig(sliding_window=None, **SIZES)).eval()
    assert not is_readable(other.model)
    check(other, 8, is_flat=False)


def test_a_pass_that_misreads_a_model_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    attend = flat_pass.sdpa_attention_forward
    monkeypatch.setattr(flat_pass, "sdpa_attention_forward", lambda *given, **named: attend(*given[:4], None, **named))
    model = llama()
    with caplog.at_level(logging.WARNING, logger="hushbot"):
        check(model, 9, is_flat=False)
    assert "LlamaForCausalLM misreads branches; rows are padded" in caplog.text
