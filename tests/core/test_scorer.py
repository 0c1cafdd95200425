"""Token sequences that begin alike: the scores of each alone, from fewer tokens read."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

from hushbot.errors import AuditError
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.scorer import Scored, score, token_moments
from hushbot.targets.token_store import TokenStore
from hushbot.training.prefix_attention import NAME, PrefixLayout, prefix_logits

N = 60
SIZES: dict[str, Any] = {
    "vocab_size": N,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
}
MAKERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=N, n_positions=512, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    ),
    "granite": lambda: GraniteForCausalLM(GraniteConfig(logits_scaling=3.0, **SIZES)),  # no plain head
    "mistral": lambda: MistralForCausalLM(MistralConfig(sliding_window=4, **SIZES)),  # reaches 4 tokens back
}


def make(kind: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return MAKERS[kind]().eval()


def naive(model: Any, sequence: Scored) -> list[float]:
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=torch.tensor([sequence.ids])).logits[0].double(), dim=-1)
    return [float(table[i - 1, sequence.ids[i]]) for i in range(sequence.first, len(sequence.ids))]


def check(model: Any, sequences: Sequence[Scored], causal_lm: CausalLM | None = None, budget: int = 16384) -> None:
    causal_lm = causal_lm or CausalLM(model)
    with causal_lm.reading():
        values = score(causal_lm, sequences, batch_tokens=budget)
    for sequence, value in zip(sequences, values, strict=True):
        assert value.tolist() == pytest.approx(naive(model, sequence), abs=1e-4)


@contextmanager
def reading(model: Any) -> Iterator[list[int]]:
    """Note how many tokens, padding included, each forward pass reads."""
    sizes: list[int] = []
    body = model.base_model
    hook = body.register_forward_pre_hook(lambda _, __, k: sizes.append(k["input_ids"].numel()), with_kwargs=True)
    yield sizes
    hook.remove()


def mixture(seed: int) -> list[Scored]:
    """Make sequences that branch off each other anywhere, some twice, some with one token to score."""
    rng = random.Random(seed)
    known: list[list[int]] = []
    for _ in range(rng.randint(1, 25)):
        trunk = rng.choice([*known, [0]])
        ids = trunk[: rng.randint(1, len(trunk))] + rng.choices(range(N), k=rng.choice([0, 1, 2, 9, 40]))
        known.append(ids if len(ids) > 1 else [0, rng.randrange(N)])
    return [Scored(i, ids, rng.choice([1, len(ids) - 1, rng.randint(1, len(ids) - 1)])) for i, ids in enumerate(known)]


def continuations(n: int, *, of: int) -> list[Scored]:
    """Make n sequences with a common beginning; two tokens follow it, and both are scored."""
    prompt = [(i * 7 + 3) % N for i in range(of)]
    return [Scored(i, [*prompt, i, (i * 3 + 1) % N], of) for i in range(n)]


@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("budget", [16384, 64, 1])
def test_scores_are_those_of_each_sequence_alone(kind: str, budget: int) -> None:
    model = make(kind)
    for seed in range(4):
        check(model, mixture(seed), budget=budget)


@pytest.mark.parametrize("seed", range(4, 24))
def test_whatever_begins_alike(seed: int) -> None:
    check(make("llama"), mixture(seed))


def test_eager_attention_reads_trees_too() -> None:
    model = make("llama")
    model.set_attn_implementation("eager")
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        assert causal_lm.supports_trees(300)
    check(model, mixture(3), causal_lm)


def test_a_shared_prompt_is_read_once() -> None:
    model = make("llama")
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        assert causal_lm.supports_trees(300)
    with reading(model) as sizes:
        check(model, [], causal_lm)
        with causal_lm.reading():
            score(causal_lm, continuations(20, of=300), batch_tokens=16384)
    assert sizes == [300 + 20]  # the last token of each predicts nothing that is asked for


@pytest.mark.parametrize("budget", [16384, 128])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_flat_passes_what_groups_begin_with_is_read_once(seed: int, budget: int) -> None:
    rng, model = random.Random(seed), make("llama")
    prompt = rng.choices(range(N), k=20)
    middles = [prompt + rng.choices(range(N), k=30) for _ in range(8)]
    # No two of them end alike, so that all they share is a prompt, or a prompt and a middle.
    ends = [[i, *rng.choices(range(N), k=rng.randint(0, 60))] for i in range(N)]
    sequences = [Scored(i, [*rng.choice(middles), *end, 0], rng.choice([1, 20, 50])) for i, end in enumerate(ends)]
    causal_lm, multiplied = CausalLM(model), list[int]()
    with causal_lm.reading():
        assert causal_lm.supports_trees(200)
        assert causal_lm.is_flat
    hook = model.model.layers[0].mlp.register_forward_pre_hook(lambda _, given: multiplied.append(len(given[0])))
    with causal_lm.reading():
        values = score(causal_lm, sequences, batch_tokens=budget)
    hook.remove()
    used = {tuple(sequence.ids[:50]) for sequence in sequences}
    n_distinct = 20 + 30 * len(used) + sum(map(len, ends))
    # Middles are read once each, the prompt before them once or with some of them.
    assert n_distinct <= sum(multiplied) <= n_distinct + 20 * (len(used) - 1)
    for sequence, value in zip(sequences, values, strict=True):
        assert value.tolist() == pytest.approx(naive(model, sequence), abs=1e-4)


def test_what_is_held_of_beginnings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, held = random.Random(1), list[int]()
    long = [rng.choices(range(N), k=90) for _ in range(30)]
    sequences = [Scored(i, [*long[i // 4], i % 4, *rng.choices(range(N), k=70)], 1) for i in range(120)]
    cut = TokenStore.cut
    monkeypatch.setattr(TokenStore, "cut", lambda self, n: (held.append(n), cut(self, n))[1])
    causal_lm = CausalLM(make("llama"))
    check(causal_lm.core, sequences, causal_lm, budget=200)
    assert causal_lm.is_flat
    assert 90 <= max(held) <= 200


def test_several_prompts_share_a_pass_as_far_as_the_budget_goes() -> None:
    model = make("llama")
    sequences = [Scored(20 * k + s.pair, [k, *s.ids[1:]], s.first) for k in range(6) for s in continuations(20, of=100)]
    check(model, sequences)
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        causal_lm.supports_trees(9)
        with reading(model) as sizes:
            score(causal_lm, sequences, batch_tokens=16384)
        assert sizes == [6 * 120]
        with reading(model) as sizes:
            score(causal_lm, sequences, batch_tokens=250)
        assert sizes == [2 * 120] * 3


@pytest.mark.parametrize("kind", ["granite", "mistral"])
def test_models_that_read_no_trees_are_read_row_by_row(kind: str) -> None:
    causal_lm = CausalLM(make(kind))
    with causal_lm.reading():
        assert not causal_lm.supports_trees(30)


def test_short_texts_within_a_sliding_window_may_share() -> None:
    causal_lm = CausalLM(MistralForCausalLM(MistralConfig(sliding_window=16, **SIZES)))
    with causal_lm.reading():
        assert causal_lm.supports_trees(16)
        assert not causal_lm.supports_trees(17)


def test_a_model_that_misreads_trees_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    causal_lm = CausalLM(model)
    blind = causal_lm.tree_features

    def forgetful(rows: Any) -> torch.Tensor:
        """Let everything before a token in the row be seen, as a model that ignores its mask does."""
        return blind([row._replace(ends=[len(row.ids)] * len(row.ids)) for row in rows])

    monkeypatch.setattr(causal_lm, "tree_features", forgetful)
    with causal_lm.reading():
        assert not causal_lm.supports_trees(30)
    check(model, mixture(1), causal_lm)


def test_an_adapter_is_read_or_not_as_asked() -> None:
    base = make("llama")
    with torch.random.fork_rng():
        torch.manual_seed(2)
        adapted = get_peft_model(make("llama"), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    sequences = [*mixture(5), *continuations(9, of=50)]
    check(base, sequences, CausalLM(adapted, without_adapter=True))
    check(adapted, sequences, CausalLM(adapted))
    with pytest.raises(AssertionError):
        check(base, sequences, CausalLM(adapted))


def test_the_attention_that_packed_training_leaves_behind_serves_as_well() -> None:
    model = make("llama")
    ids = torch.tensor([[1, 2, 3]])
    prefix_logits(model, ids, torch.arange(3)[None], PrefixLayout(3), torch.tensor([2]))
    assert model.config._attn_implementation == NAME
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        assert causal_lm.supports_trees(300)
        assert causal_lm.supports_rows(300)
    check(model, [*mixture(6), *continuations(9, of=50)], causal_lm)
    assert model.config._attn_implementation == NAME


def test_only_positions_that_are_asked_for_get_logits() -> None:
    model = make("llama")
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        causal_lm.supports_trees(300)
        sizes: list[int] = []
        hook = model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[:-1].numel()))
        score(causal_lm, continuations(20, of=300), batch_tokens=16384)
    hook.remove()
    assert sum(sizes) == 1 + 20  # the end of the prompt once for all, and the first token of each


def test_a_score_that_is_not_finite_names_its_pair() -> None:
    model = make("llama")
    with torch.no_grad():
        model.lm_head.weight[7] = math.nan
    causal_lm = CausalLM(model)
    with causal_lm.reading(), pytest.raises(AuditError, match=r"pair \d+: a log-probability is not finite"):
        score(causal_lm, continuations(20, of=50), batch_tokens=16384)


def naive_moments(model: Any, sequence: Scored) -> list[list[float]]:
    """Work out each wanted token's row in double precision, a vocabulary entry at a time."""
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=torch.tensor([sequence.ids])).logits[0].double(), dim=-1)
    rows = []
    for i in range(sequence.first, len(sequence.ids)):
        law = [(math.exp(x), x) for x in table[i - 1].tolist()]
        mean = sum(p * x for p, x in law)
        rows.append([float(table[i - 1, sequence.ids[i]]), mean, math.sqrt(sum(p * (x - mean) ** 2 for p, x in law))])
    return rows


@pytest.mark.parametrize("kind", ["llama", "granite"])
def test_moments_are_those_of_each_sequence_alone(kind: str) -> None:
    model = make(kind)
    sequences = [*mixture(2), *continuations(9, of=50)]
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        values = score(causal_lm, sequences, batch_tokens=200, with_moments=True)
        plain = score(causal_lm, sequences, batch_tokens=200)
    for sequence, value, alone in zip(sequences, values, plain, strict=True):
        for row, expected in zip(value.tolist(), naive_moments(model, sequence), strict=True):
            assert row == pytest.approx(expected, abs=1e-4)
        assert value[:, 0].tolist() == pytest.approx(alone.tolist(), abs=1e-5)


def test_what_is_impossible_weighs_nothing_in_the_moments() -> None:
    class Fixed:
        """Half, quarter, quarter, and one token that cannot come."""

        n_tokens, device = 4, torch.device("cpu")

        def logits(self, features: torch.Tensor) -> torch.Tensor:
            return torch.tensor([0.5, 0.25, 0.25, 0.0]).log().expand(len(features), 4)

    model: Any = Fixed()
    row = token_moments(model, torch.zeros(1, 1), [0], [0])[0].tolist()
    assert row == pytest.approx([-math.log(2), -1.5 * math.log(2), 0.5 * math.log(2)])
