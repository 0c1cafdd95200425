"""A language model small enough to be trained in a test, and the dialogues to train it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.stack import RecipeStack
from hushbot.types import AuditSplit


@pytest.fixture(scope="session")
def few_dialogues(synthetic_split: AuditSplit) -> AuditSplit:
    """Return 6 members, 3 calibration dialogues and 3 non-members."""
    members, others = synthetic_split.members, synthetic_split.nonmembers
    return AuditSplit(members[:6], others[:3], calibration=others[3:6])


@pytest.fixture(scope="session")
def small_tokenizer(few_dialogues: AuditSplit) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE of about 300 tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [e.text for d in few_dialogues.members for e in TurnLevel().examples(d)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


@pytest.fixture(scope="session")
def make_small_model(small_tokenizer: Any) -> Callable[[], nn.Module]:
    """Return a maker of one and the same randomly initialised Llama: one layer, 32 wide."""
    config = LlamaConfig(
        vocab_size=len(small_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )

    def make() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return LlamaForCausalLM(config)

    return make


@pytest.fixture(scope="session")
def turn_stack() -> RecipeStack:
    """Return the plain stack."""
    return RecipeStack((TurnLevel(),))
