"""Every engine must give what a naive loop gives: separate rows, one backward pass per dialogue, clip, sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hushbot.errors import ConfigError
from hushbot.recipes.turn_level import TurnLevel
from hushbot.training.clipping import ClippedSum
from hushbot.training.gradients import (
    EngineName,
    GradientEngine,
    HooksEngine,
    LoopEngine,
    OpacusEngine,
    make_engine,
)
from hushbot.training.packing import PackedDialogue, Row, loss_sum, pack, unpack_rows
from hushbot.types import AuditSplit, Dialogue, Example, Segment

LIMIT = 0.22
"""Below the norms of about half of the dialogues here."""
ENGINES: tuple[EngineName, ...] = ("loop", "hooks", "opacus")
Make = Callable[[], nn.Module]


def with_lora(model: nn.Module, **settings: Any) -> Any:
    torch.manual_seed(1)
    adapted = get_peft_model(
        model, LoraConfig(r=4, task_type="CAUSAL_LM", **{"target_modules": "all-linear", **settings})
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return adapted.train()


def llama(**settings: Any) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    shape |= {"vocab_size": 320, "max_position_embeddings": 1024}
    return LlamaForCausalLM(LlamaConfig(**{**shape, **settings})).train()


def gpt2() -> Any:
    torch.manual_seed(0)
    none = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=32, n_layer=2, n_head=4, **none)).train()


@pytest.fixture(scope="module")
def lora() -> Any:
    """Return a Llama of two layers with an adapter that already does something."""
    return with_lora(llama())


@pytest.fixture(scope="module")
def grouped(few_dialogues: AuditSplit) -> list[list[Example]]:
    """Return the examples of five dialogues, one of them of six turns."""
    members = few_dialogues.members
    turns = tuple(turn for dialogue in members for turn in dialogue.turns)[:6]
    long = Dialogue("long", turns, ("restaurant", "train"))
    return [list(TurnLevel().examples(dialogue)) for dialogue in (members[0], members[1], long, *members[2:4])]


@pytest.fixture(scope="module")
def packs(grouped: list[list[Example]], small_tokenizer: Any) -> list[PackedDialogue]:
    return [pack(examples, small_tokenizer, max_length=1000) for examples in grouped]


def row_gradient(model: Any, rows: Sequence[Row], n_supervised: int) -> list[Tensor]:
    """Return one gradient of all rows, full logits, position by position, over a constant."""
    total = torch.zeros(())
    for row in rows:
        log_p = model(input_ids=torch.tensor([row.input_ids])).logits[0].float().log_softmax(-1)
        chosen = [i for i, supervised in enumerate(row.supervised) if supervised]
        total = total - log_p[torch.tensor(chosen) - 1, torch.tensor(row.input_ids)[chosen]].sum()
    model.zero_grad()
    torch.autograd.backward(total / n_supervised)
    grads = [p.grad for p in model.parameters() if p.requires_grad]
    model.zero_grad()
    return [grad.double() if grad is not None else torch.zeros(()) for grad in grads]


def clip(gradient: list[Tensor], limit: float) -> list[Tensor]:
    norm = math.sqrt(sum(float(part.pow(2).sum()) for part in gradient))
    return [part * min(1.0, limit / norm) for part in gradient]


def naive_sum(model: Any, grouped: list[list[Example]], tokenizer: Any, *, limit: float = LIMIT) -> list[Tensor]:
    """The reference, in float64 from the gradient on."""
    each = []
    for examples in grouped:
        rows = unpack_rows(examples, tokenizer, max_length=1000)
        each.append(clip(row_gradient(model, rows, sum(sum(row.supervised) for row in rows)), limit))
    return [sum(parts[1:], parts[0]) for parts in zip(*each, strict=True)]


def engine_sum(engine: GradientEngine, packs: Sequence[PackedDialogue], *, limit: float = LIMIT) -> list[Tensor]:
    clipped = ClippedSum(engine.parameters, limit)
    engine.accumulate(packs, clipped)
    assert clipped.n_dialogues == len(packs)
    return clipped.sums


def distance(some: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((a.double() - b.double()).pow(2).sum()) for a, b in zip(some, others, strict=True)))


def size(some: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(a.double().pow(2).sum()) for a in some))


def assert_close(some: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    assert size(wanted) > 0
    assert distance(some, wanted) <= tolerance * size(wanted)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_equals_a_loop_over_rows(
    name: EngineName, lora: Any, grouped: list[list[Example]], packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    engine = make_engine(name, lora, chunk_tokens=600)
    assert engine.name == name
    assert [id(p) for p in engine.parameters] == [id(p) for p in lora.parameters() if p.requires_grad]
    wanted = naive_sum(lora, grouped, small_tokenizer)
    assert_close(engine_sum(engine, packs), wanted)
    # The limit must be felt, and by some only, or clipping was not compared.
    alone = [size(engine_sum(engine, [packed], limit=1e9)) for packed in packs]
    assert min(alone) < LIMIT < max(alone)


@pytest.mark.parametrize("name", ["loop", "opacus"])
@pytest.mark.parametrize("make", [lambda: llama(tie_word_embeddings=True), gpt2])
def test_all_weights_can_be_trained_tied_ones_too(
    name: EngineName, make: Make, grouped: list[list[Example]], packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    model = make()
    engine = make_engine(name, model, chunk_tokens=800)
    assert_close(engine_sum(engine, packs[:3]), naive_sum(model, grouped[:3], small_tokenizer))


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"modules_to_save": ["embed_tokens"]},
    ],
)
def test_the_loop_trains_what_hooks_cannot(
    settings: dict[str, Any], grouped: list[list[Example]], packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    model = with_lora(llama(), **settings)
    assert isinstance(make_engine("auto", model, chunk_tokens=800), LoopEngine)
    assert_close(engine_sum(LoopEngine(model), packs[:2]), naive_sum(model, grouped[:2], small_tokenizer))


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "down_proj"]},
    ],
)
def test_hooks_train_every_linear_part(
    settings: dict[str, Any], grouped: list[list[Example]], packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    model = with_lora(llama(attention_bias=True), **settings)
    assert isinstance(make_engine("auto", model, chunk_tokens=800), HooksEngine)
    engine = HooksEngine(model, 800)
    assert_close(engine_sum(engine, packs[:3]), naive_sum(model, grouped[:3], small_tokenizer))


def test_an_adapter_on_gpt2_is_linear_too(
    grouped: list[list[Example]], packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    model = with_lora(gpt2(), fan_in_fan_out=True)
    assert_close(engine_sum(HooksEngine(model, 800), packs[:3]), naive_sum(model, grouped[:3], small_tokenizer))


@pytest.mark.parametrize("name", ["hooks", "opacus"])
def test_the_size_of_a_pass_changes_nothing(name: EngineName, lora: Any, packs: list[PackedDialogue]) -> None:
    wanted = engine_sum(LoopEngine(lora), packs)
    for chunk_tokens in (1, packs[0].n_tokens + packs[1].n_tokens, 10**6):
        assert_close(engine_sum(make_engine(name, lora, chunk_tokens=chunk_tokens), packs), wanted)


def test_a_pass_holds_whole_dialogues_up_to_its_size(
    lora: Any, packs: list[PackedDialogue], monkeypatch: pytest.MonkeyPatch
) -> None:
    import hushbot.training.gradients as module

    passes: list[list[int]] = []
    plain = module.losses

    def spy(model: nn.Module, group: Sequence[PackedDialogue]) -> Tensor:
        passes.append([packed.n_tokens for packed in group])
        return plain(model, group)

    monkeypatch.setattr(module, "losses", spy)
    limit = packs[0].n_tokens + packs[1].n_tokens
    assert packs[2].n_tokens > limit, "the long dialogue is alone in its pass and exceeds it"
    engine_sum(HooksEngine(lora, limit), packs)
    assert [n for group in passes for n in group] == [packed.n_tokens for packed in packs]
    assert passes[:2] == [[packs[0].n_tokens, packs[1].n_tokens], [packs[2].n_tokens]]
    assert all(len(group) == 1 or sum(group) <= limit for group in passes)


@pytest.mark.parametrize("name", ENGINES)
def test_a_dialogue_is_worth_the_same_in_any_company(name: EngineName, lora: Any, packs: list[PackedDialogue]) -> None:
    engine = make_engine(name, lora, chunk_tokens=10**6)
    together, rest, alone = (engine_sum(engine, group) for group in (packs, packs[:2] + packs[3:], packs[2:3]))
    assert_close([a - b for a, b in zip(together, rest, strict=True)], alone)


@pytest.mark.parametrize("name", ENGINES)
def test_one_dialogue_moves_the_sum_by_the_limit_at_most(
    name: EngineName, lora: Any, packs: list[PackedDialogue]
) -> None:
    limit = 0.05  # below every dialogue's norm, so it is reached
    engine = make_engine(name, lora, chunk_tokens=10**6)
    moved = distance(engine_sum(engine, packs, limit=limit), engine_sum(engine, packs[:2] + packs[3:], limit=limit))
    assert moved == pytest.approx(limit, rel=1e-4)


def test_clipping_each_turn_instead_would_move_it_further(
    lora: Any, grouped: list[list[Example]], small_tokenizer: Any
) -> None:
    """The same measure catches the wrong unit: six turns, clipped one by one."""
    turns = [[example] for example in grouped[2]]
    assert len(turns) == 6
    assert size(naive_sum(lora, turns, small_tokenizer, limit=0.05)) > 2 * 0.05


@pytest.mark.parametrize("name", ENGINES)
def test_what_carries_no_loss_changes_nothing(
    name: EngineName, lora: Any, grouped: list[list[Example]], small_tokenizer: Any
) -> None:
    """Text after the last answer, and in another example, with no supervised token in it."""
    idle = Segment("User: and then some more, which nobody answers\n", False)
    examples = grouped[0]
    longer = [*examples[:-1], Example(examples[-1].dialogue_id, (*examples[-1].segments, idle))]
    plain, padded = (pack(group, small_tokenizer, max_length=1000) for group in (examples, longer))
    assert padded.n_tokens > plain.n_tokens
    engine = make_engine(name, lora, chunk_tokens=10**6)
    assert_close(engine_sum(engine, [padded]), engine_sum(engine, [plain]))


@pytest.mark.parametrize("name", ENGINES)
def test_a_dialogue_that_is_not_finite_contributes_nothing(
    name: EngineName, few_dialogues: AuditSplit, packs: list[PackedDialogue], small_tokenizer: Any
) -> None:
    rare = 320
    model = llama(vocab_size=rare + 1)
    with torch.no_grad():
        model.get_input_embeddings().weight[rare] = math.nan
    adapted = with_lora(model)
    poisoned = packs[2].input_ids.clone()
    poisoned[0, 3] = rare
    broken = PackedDialogue(
        "broken", poisoned, packs[2].position_ids, packs[2].sources, packs[2].targets, packs[2].layout
    )
    assert not math.isfinite(float(loss_sum(adapted, broken)))
    engine = make_engine(name, adapted, chunk_tokens=10**6)
    assert_close(engine_sum(engine, [*packs[:2], broken, *packs[3:]]), engine_sum(engine, packs[:2] + packs[3:]))


@pytest.mark.parametrize("name", ENGINES)
def test_an_empty_batch_leaves_the_sum_empty(name: EngineName, lora: Any) -> None:
    assert size(engine_sum(make_engine(name, lora, chunk_tokens=100), [])) == 0


def inventory(model: nn.Module) -> dict[str, Any]:
    """List whatever an engine could leave behind."""
    return {
        "state": {name: weight.clone() for name, weight in model.state_dict().items()},
        "modules": {name: sorted(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            name: (len(module._forward_hooks), len(module._backward_hooks), len(module._forward_pre_hooks))
            for name, module in model.named_modules()
        },
        "parameters": {name: sorted(vars(weight)) for name, weight in model.named_parameters()},
        "frozen": [name for name, weight in model.named_parameters() if not weight.requires_grad],
    }


@pytest.mark.parametrize("name", ENGINES)
def test_the_model_is_left_as_it_was(name: EngineName, packs: list[PackedDialogue]) -> None:
    model = with_lora(llama())
    marks = [torch.full_like(p, 7.0) if i % 2 else None for i, p in enumerate(model.parameters())]
    for p, mark in zip(model.parameters(), marks, strict=True):
        p.grad = mark if p.requires_grad else None
    before = inventory(model)
    engine_sum(make_engine(name, model, chunk_tokens=600), packs)
    after = inventory(model)
    assert before.pop("state").keys() == (state := after.pop("state")).keys()
    assert all(torch.equal(weight, state[key]) for key, weight in model.state_dict().items())
    assert after == before
    for p, mark in zip(model.parameters(), marks, strict=True):
        assert p.grad is (mark if p.requires_grad else None)
    assert p.grad is None or bool((p.grad == 7.0).all())


@pytest.mark.parametrize("name", ENGINES)
def test_an_error_on_the_way_leaves_the_model_as_it_was(name: EngineName, packs: list[PackedDialogue]) -> None:
    model = with_lora(llama())
    before = inventory(model)

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory")

    handle = model.get_output_embeddings().register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine_sum(make_engine(name, model, chunk_tokens=600), packs)
    handle.remove()
    after = inventory(model)
    before.pop("state")
    after.pop("state")
    assert after == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (llama, r"embed_tokens\.weight .* Embedding"),
        (lambda: with_lora(llama(), use_dora=True), "lora_magnitude_vector"),
        (lambda: with_lora(llama(), target_modules=["q_proj", "embed_tokens"]), "lora_embedding_A"),
        (lambda: train_only(gpt2(), "c_attn.weight"), r"c_attn\.weight .* Conv1D"),
        (lambda: tied_linears(), r"v_proj\.weight is trained and tied to .*q_proj\.weight"),
        (
            lambda: with_lora(llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})),
            "dynamic",
        ),
    ],
)
def test_what_hooks_cannot_do_is_refused_with_the_remedy(make: Make, message: str) -> None:
    model = make()
    with pytest.raises(ConfigError, match=rf"{message}.*recipe\.dp_sgd\.engine=loop"):
        make_engine("hooks", model, chunk_tokens=100)
    assert make_engine("auto", model, chunk_tokens=100).name == "loop"


def train_only(model: nn.Module, suffix: str) -> nn.Module:
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.endswith(suffix))
    return model


def tied_linears() -> nn.Module:
    model = llama(num_key_value_heads=4)
    attention = model.model.layers[0].self_attn
    attention.v_proj.weight = attention.q_proj.weight
    return train_only(model, "layers.0.self_attn.q_proj.weight")


def test_a_layer_used_behind_its_back_is_refused(packs: list[PackedDialogue]) -> None:
    model = with_lora(llama(), target_modules=["q_proj"])
    layer = model.get_base_model().model.layers[0].self_attn.q_proj.lora_A["default"]
    layer.forward = lambda x: x @ layer.weight.T  # still a call of the module: fine
    engine_sum(HooksEngine(model, 100), packs[:1])
    model.get_base_model().model.layers[0].self_attn.q_proj.forward = lambda x: x @ layer.weight.T @ torch.ones(4, 32)
    with pytest.raises(ConfigError, match=r"q_proj\.lora_\w\.default is trained and did not run.*engine=loop"):
        engine_sum(HooksEngine(model, 100), packs[:1])


def test_a_layer_that_runs_twice_is_refused(packs: list[PackedDialogue]) -> None:
    model = with_lora(llama(), target_modules=["q_proj"])
    layers = model.get_base_model().model.layers
    layers[1].self_attn.q_proj = layers[0].self_attn.q_proj
    with pytest.raises(ConfigError, match=r"ran twice.*engine=loop"):
        engine_sum(HooksEngine(model, 100), packs[:1])


def test_gradient_checkpointing_changes_nothing(packs: list[PackedDialogue]) -> None:
    model = with_lora(llama())
    wanted = engine_sum(LoopEngine(model), packs[:2])
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for name in ("loop", "hooks"):
        assert_close(engine_sum(make_engine(name, model, chunk_tokens=10**6), packs[:2]), wanted)


def test_reentrant_checkpointing_is_refused_by_hooks(packs: list[PackedDialogue]) -> None:
    """Its layers run without a graph, so that nothing would be seen of their gradients."""
    model = with_lora(llama())
    model.gradient_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()
    with pytest.raises(ConfigError, match="without a gradient"):
        engine_sum(HooksEngine(model, 100), packs[:1])


def test_mixed_precision_stays_close(lora: Any, packs: list[PackedDialogue]) -> None:
    wanted = engine_sum(LoopEngine(lora), packs)
    for name in ("loop", "hooks"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = engine_sum(make_engine(name, lora, chunk_tokens=10**6), packs)
        assert all(total.dtype == torch.float32 for total in got)
        assert_close(got, wanted, 5e-2)


def test_opacus_needs_training_mode(packs: list[PackedDialogue]) -> None:
    model = with_lora(llama()).eval()
    with pytest.raises(ConfigError, match="training mode only"):
        engine_sum(OpacusEngine(model, 10**6), packs[:1])


def test_senseless_settings_are_refused(lora: Any) -> None:
    with pytest.raises(ConfigError, match=r"chunk_tokens=0 .*recipe\.dp_sgd\.chunk_tokens"):
        make_engine("auto", lora, chunk_tokens=0)
    name: Any = "ghost"
    with pytest.raises(ConfigError, match="engine='ghost' must be one of auto, loop, hooks, opacus"):
        make_engine(name, lora, chunk_tokens=100)
    frozen = llama().requires_grad_(False)
    with pytest.raises(ConfigError, match=r"no trainable parameter.*backbone\.lora"):
        make_engine("auto", frozen, chunk_tokens=100)
