"""A language model small enough to be trained in a test, and the dialogues to train it on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.recipes.turn_level import TurnLevel
from hushbot.schema import Schema
from hushbot.training.fit import FitResult, TrainerSettings, fit
from hushbot.training.stack import RecipeStack
from hushbot.training.watching import Watch
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
            return LlamaForCausalLM(copy.deepcopy(config))  # models write into theirs

    return make


@pytest.fixture(scope="session")
def turn_stack() -> RecipeStack:
    """Return the plain stack."""
    return RecipeStack((TurnLevel(),))


class Weights(dict[str, Tensor]):
    """Weights by name, equal where they are so to the bit."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict) or self.keys() != other.keys():
            return False
        return all(torch.equal(weight, other[name]) for name, weight in self.items())

    def __ne__(self, other: object) -> bool:
        return not self == other


@pytest.fixture
def fit_small(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any, few_dialogues: AuditSplit, tmp_path: Path
) -> Callable[..., tuple[Weights, FitResult]]:
    """Return a function that trains a fresh small model and returns its weights and what `fit` said."""

    def run(
        stack: RecipeStack,
        settings: TrainerSettings,
        *,
        split: AuditSplit = few_dialogues,
        folder: str = "a",
        model: nn.Module | None = None,
        seed: int = 0,
        max_length: int = 1024,
        watch: Watch | None = None,
    ) -> tuple[Weights, FitResult]:
        trained = model if model is not None else make_small_model()
        result = fit(
            trained,
            small_tokenizer,
            stack=stack,
            split=split,
            schema=Schema(()),
            settings=settings,
            max_length=max_length,
            checkpoint_dir=tmp_path / folder / "checkpoints",
            seed=seed,
            watch=watch,
        )
        return Weights({name: weight.detach().clone() for name, weight in trained.named_parameters()}), result

    return run


@pytest.fixture
def power_cut() -> Callable[[object, str, int], Any]:
    """Return a context in which the process dies in the nth call of a function, after that did its work."""

    class Died(Exception):
        pass

    @contextmanager
    def cut(owner: object, name: str, call: int) -> Iterator[None]:
        original, calls = getattr(owner, name), [0]

        def patched(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            calls[0] += 1
            if calls[0] == call:
                raise Died
            return result

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, patched)
            with pytest.raises(Died):
                yield

    return cut
