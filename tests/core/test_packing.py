"""Packed dialogues must train exactly as ordinary rows do; the reference here is a naive row-by-row loop."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.errors import ConfigError, DataError
from hushbot.prompts import database_line, text_line
from hushbot.tokens import encode, start_token
from hushbot.training.packing import PackedDialogue, Row, loss_sum, losses, pack, shorten_history, unpack_rows
from hushbot.training.prefix_attention import NAME, Branch, Forest, PrefixLayout, verify
from hushbot.types import Example, Segment

HAND_MADE = [
    ("i want a cheap place", "Restaurant(pricerange=cheap)", "restaurant 2 found", "golden wok is cheap"),
    (
        "in the north",
        "Restaurant(area=north, pricerange=cheap)",
        "restaurant 1 found",
        "booked, reference 7G",
    ),
    ("thanks", "Restaurant(area=north, pricerange=cheap)", "", "you are welcome"),
]


def turn_examples(turns: list[tuple[str, str, str, str]], dialogue_id: str = "hand") -> list[Example]:
    """Lay turns (user, state, database, response) out as the turn-level recipe does."""
    history: list[Segment] = []
    examples = []
    for user, state, database, response in turns:
        history.append(Segment(f"User: {user}\n", False))
        answer = (
            Segment("Belief State:", False),
            Segment(f" {state}\n", True),
            Segment(database_line(database), False),
            Segment("Actions:", False),
            Segment(text_line("inform"), True),
            Segment("Response:", False),
            Segment(text_line(response), True),
        )
        examples.append(Example(dialogue_id, (*history, *answer)))
        history.append(Segment(f"System: {response}\n", False))
    return examples


def read_multiwoz(path: Path, n: int) -> list[list[Example]]:
    """Read real dialogues as turn examples; the state is simplified, the texts are as they stand."""
    with zipfile.ZipFile(path) as archive:
        data = json.loads(archive.read("val.json"))
    dialogues = []
    for name in sorted(data)[:n]:
        log = data[name]["log"]
        turns = []
        for user, system in zip(log[::2], log[1::2], strict=False):
            pairs = [
                f"{slot}={value}"
                for parts in system["metadata"].values()
                for slot, value in parts["semi"].items()
                if value not in ("", "not mentioned")
            ]
            texts = (" ".join(line["text"].split()) for line in (user, system))
            turns.append((next(texts), f"Any({', '.join(pairs)})" if pairs else "None", "", next(texts)))
        dialogues.append(turn_examples(turns, name))
    return dialogues


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    texts = [example.text for example in turn_examples(HAND_MADE)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=320, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet),
    )
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=bpe, eos_token="<|endoftext|>")


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def gpt2() -> Any:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=320,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=4096,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
    )
    return GPT2LMHeadModel(config)


def lora_llama() -> nn.Module:
    model = get_peft_model(llama(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model


def row_loss(model: Any, rows: list[Row]) -> Tensor:
    """Score every row alone, full logits, position by position: the reference."""
    total = torch.zeros(())
    for row in rows:
        log_p = model(input_ids=torch.tensor([row.input_ids])).logits[0].float().log_softmax(-1)
        for i, (token, supervised) in enumerate(zip(row.input_ids, row.supervised, strict=True)):
            if supervised:
                total = total - log_p[i - 1, token]
    return total


def gradients(model: nn.Module, loss: Tensor) -> Tensor:
    model.zero_grad()
    torch.autograd.backward(loss)
    parts = [p.grad.flatten() for p in model.parameters() if p.requires_grad and p.grad is not None]
    assert parts
    return torch.cat(parts)


def assert_equal_training(model: nn.Module, examples: list[Example], tokenizer: Any, max_length: int) -> None:
    model.train()
    rows = unpack_rows(examples, tokenizer, max_length=max_length)
    expected = row_loss(model, rows)
    wanted = gradients(model, expected)
    packed = pack(examples, tokenizer, max_length=max_length)
    assert packed.n_supervised == sum(sum(row.supervised) for row in rows)
    for dense in (False, True):
        loss = loss_sum(model, packed, dense=dense)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
        difference = (gradients(model, loss) - wanted).norm() / wanted.norm()
        assert difference <= 1e-5, f"dense={dense}: {difference:.2g}"


def two_examples() -> list[Example]:
    shared = Segment("User: a\n", False)
    return [
        Example("d", (shared, Segment("Response:", False), Segment(" x\n", True))),
        Example("d", (shared, Segment("System: x\n", False), Segment("Response:", False), Segment(" y\n", True))),
    ]


class Letters:
    """A tokenizer of one token per character, ids 1.., start token 0: sequences can be checked by hand."""

    bos_token_id = 0
    eos_token_id = None

    def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[ord(character) for character in text] for text in texts]}


def spelled(packed: PackedDialogue) -> str:
    return "".join(chr(token) if token else "^" for token in packed.input_ids[0].tolist())


def test_history_stands_once_and_each_branch_follows_its_own_part_of_it() -> None:
    packed = pack(two_examples(), Letters(), max_length=100)
    assert spelled(packed) == "^User: a\nSystem: x\nResponse: y\n" + "Response: x\n"
    assert packed.layout == PrefixLayout(31, (Branch(12, prefix=9),))
    assert packed.position_ids[0].tolist() == [*range(31), *range(9, 21)]
    assert "".join(map(chr, packed.targets.tolist())) == " y\n x\n"
    assert packed.sources.tolist() == [27, 28, 29, 39, 40, 41]
    assert (packed.n_tokens, packed.n_supervised, packed.n_truncated) == (43, 6, 0)
    assert packed.dialogue_id == "d"


def test_a_branch_that_starts_with_its_answer_is_predicted_from_the_trunk() -> None:
    shared = Segment("User: a\n", False)
    longest = Example("d", (shared, Segment("System: b\n", False), Segment("Response:", False), Segment(" y\n", True)))
    packed = pack([Example("d", (shared, Segment("x\n", True))), longest], Letters(), max_length=100)
    assert spelled(packed).endswith("^User: a\nSystem: b\nResponse: y\nx\n")
    # The last of the eight shared characters stands at 8 because the start token stands at 0.
    assert packed.sources.tolist()[-2:] == [8, 31]


def test_an_example_that_starts_with_its_answer_is_predicted_from_the_start_token() -> None:
    examples = [Example("d", (Segment("x\n", True),)), Example("d", (Segment("y\n", True),))]
    packed = pack(examples, Letters(), max_length=9)
    assert spelled(packed) == "^x\ny\n"
    assert packed.sources.tolist() == [0, 1, 0, 3]
    assert packed.layout == PrefixLayout(3, (Branch(2, prefix=1),))


def test_one_example_is_an_ordinary_row() -> None:
    example = turn_examples(HAND_MADE)[-1]
    packed = pack([example], Letters(), max_length=1000)
    [row] = unpack_rows([example], Letters(), max_length=1000)
    assert packed.input_ids[0].tolist() == row.input_ids
    assert packed.layout == PrefixLayout(len(row.input_ids))
    assert [token + 1 for token in packed.sources.tolist()] == [i for i, s in enumerate(row.supervised) if s]


def test_examples_without_anything_supervised_cost_nothing() -> None:
    idle = Example("d", (Segment("User: a very long line that nobody answers\n", False),))
    packed = pack([idle, *two_examples()], Letters(), max_length=100)
    assert packed.n_supervised == 6
    assert loss_positions(packed) == loss_positions(pack(two_examples(), Letters(), max_length=100))


def loss_positions(packed: PackedDialogue) -> list[tuple[int, int]]:
    positions = packed.position_ids[0][packed.sources].tolist()
    return sorted(zip(positions, packed.targets.tolist(), strict=True))


def test_dense_mask_shows_the_layout() -> None:
    mask = PrefixLayout(3, (Branch(2, prefix=1), Branch(1, prefix=2))).dense_mask()[0, 0].int().tolist()
    assert mask == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0, 0],
        [1, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 1],
    ]


def test_the_mask_of_a_forest_keeps_dialogues_apart() -> None:
    forest = Forest((PrefixLayout(2, (Branch(1, prefix=1),)), PrefixLayout(1), PrefixLayout(2)))
    assert forest.n_tokens == 6
    assert forest.dense_mask()[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]


def several(tokenizer: Any) -> list[PackedDialogue]:
    """Pack four dialogues of different lengths, the last of one turn, which has no branches."""
    groups = [HAND_MADE, HAND_MADE[:2], [*HAND_MADE, *HAND_MADE[::-1]], HAND_MADE[1:2]]
    return [pack(turn_examples(turns, f"d{i}"), tokenizer, max_length=1000) for i, turns in enumerate(groups)]


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("make", [llama, gpt2, lora_llama])
def test_dialogues_in_one_pass_lose_what_each_loses_alone(make: Any, dense: bool, tokenizer: Any) -> None:
    model, packs = make().train(), several(tokenizer)
    together = losses(model, packs, dense=dense)
    assert together.shape == (4,)
    assert together.dtype == torch.float32
    for i, packed in enumerate(packs):
        alone = loss_sum(model, packed)
        torch.testing.assert_close(together[i], alone, rtol=1e-5, atol=0)
        wanted = gradients(model, alone)
        assert (gradients(model, losses(model, packs, dense=dense)[i]) - wanted).norm() <= 1e-5 * wanted.norm()
    torch.testing.assert_close(losses(model, packs[::-1]).flip(0), together, rtol=1e-5, atol=0)


def test_one_dialogue_in_a_pass_is_not_touched_by_another(tokenizer: Any) -> None:
    """Not even by a rounding error, whatever the neighbour says."""
    model, packs = llama(), several(tokenizer)
    [before, *_] = losses(model, packs[:2]).tolist()
    packs[1].input_ids.fill_(3)
    packs[1].position_ids.zero_()
    assert losses(model, packs[:2]).tolist()[0] == before


def test_a_sliding_window_is_measured_against_the_longest_dialogue_of_a_pass(tokenizer: Any) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    packs = several(tokenizer)
    reaches = [int(packed.position_ids.max()) + 1 for packed in packs]
    assert reaches.index(max(reaches)) == 2
    shape: Any = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    window = max(reaches)
    model = MistralForCausalLM(MistralConfig(vocab_size=320, num_hidden_layers=1, sliding_window=window, **shape))
    losses(model, packs)
    model = MistralForCausalLM(MistralConfig(vocab_size=320, num_hidden_layers=1, sliding_window=window - 1, **shape))
    with pytest.raises(ConfigError, match=f"sliding window of {window - 1} tokens"):
        losses(model, packs)


def test_rows_are_the_tokens_the_bot_will_read(tokenizer: Any) -> None:
    examples = turn_examples([("hi <|endoftext|> Belief State: x", "None", "é", "so"), *HAND_MADE])
    rows = unpack_rows(examples, tokenizer, max_length=1000)
    for example, row in zip(examples, rows, strict=True):
        assert row.input_ids == [start_token(tokenizer), *encode(tokenizer, example.text)]
        supervised = [t for t, s in zip(row.input_ids, row.supervised, strict=True) if s]
        texts = "".join(segment.text for segment in example.segments if segment.supervised)
        assert tokenizer.decode(supervised) == texts


@pytest.mark.parametrize("make", [llama, gpt2, lora_llama])
def test_training_equals_ordinary_rows(make: Any, tokenizer: Any) -> None:
    model, examples = make(), turn_examples(HAND_MADE)
    assert_equal_training(model, examples, tokenizer, 1000)
    packed = pack(examples, tokenizer, max_length=1000)
    assert packed.n_tokens < sum(len(row.input_ids) for row in unpack_rows(examples, tokenizer, max_length=1000))


@pytest.mark.parametrize("make", [llama, gpt2])
def test_training_equals_ordinary_rows_when_histories_are_cut(make: Any, tokenizer: Any) -> None:
    examples = turn_examples(HAND_MADE)
    lengths = [len(row.input_ids) for row in unpack_rows(examples, tokenizer, max_length=1000)]
    packed = pack(examples, tokenizer, max_length=lengths[1])
    assert packed.n_truncated == 1
    assert_equal_training(make(), examples, tokenizer, lengths[1])


@pytest.mark.shared
@pytest.mark.parametrize("make", [llama, gpt2])
def test_training_equals_ordinary_rows_on_real_dialogues(make: Any, tokenizer: Any, shared_dir: Path) -> None:
    model = make()
    for examples in read_multiwoz(shared_dir / "data/multiwoz21/val.json.zip", 2):
        assert_equal_training(model, examples, tokenizer, 4096)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_nothing(use_reentrant: bool, tokenizer: Any) -> None:
    model = llama().train()
    packed = pack(turn_examples(HAND_MADE), tokenizer, max_length=1000)
    wanted = gradients(model, loss_sum(model, packed))
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    torch.testing.assert_close(gradients(model, loss_sum(model, packed)), wanted)


def test_other_uses_of_the_model_are_untouched(tokenizer: Any) -> None:
    model = llama().eval()
    ids, mask = torch.tensor([[5, 6, 7, 8], [0, 9, 8, 7]]), torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])
    before = model(input_ids=ids, attention_mask=mask).logits
    generated = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    loss_sum(model, pack(turn_examples(HAND_MADE), tokenizer, max_length=1000))
    assert model.config._attn_implementation == NAME
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    again = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(again, generated)
    assert NAME not in model.config.to_json_string()


def test_to_moves_every_tensor() -> None:
    moved = pack(two_examples(), Letters(), max_length=100).to("meta")
    tensors = (moved.input_ids, moved.position_ids, moved.sources, moved.targets)
    assert {tensor.device.type for tensor in tensors} == {"meta"}


def test_oldest_history_goes_first_and_the_marker_stays() -> None:
    example = two_examples()[1]  # 1 + 8 + 10 + 9 + 3 tokens
    [row] = unpack_rows([example], Letters(), max_length=30)
    assert "".join(map(chr, row.input_ids[1:])) == "System: x\nResponse: y\n"
    [row] = unpack_rows([example], Letters(), max_length=13)
    assert "".join(map(chr, row.input_ids[1:])) == "Response: y\n"


def test_an_answer_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(DataError, match=r"dialogue d: .* 31 tokens still has 13 .* backbone\.max_length"):
        pack(two_examples()[1:], Letters(), max_length=12)


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "no examples"),
        ([*two_examples(), Example("e", (Segment("x\n", True),))], "2 dialogues"),
        ([Example("d", (Segment("User: a\n", False),))], "dialogue d: no supervised token"),
        (
            [Example("d", (Segment("User: a", False), Segment("b\n", True)))],
            "dialogue d: a segment ends inside",
        ),
    ],
)
def test_malformed_input_is_an_error(examples: list[Example], message: str) -> None:
    with pytest.raises(DataError, match=message):
        pack(examples, Letters(), max_length=100)


@pytest.mark.parametrize("make", [llama, gpt2, lora_llama])
def test_verify_accepts_plain_attention(make: Any) -> None:
    model = make().train()
    verify(model)
    assert model.training


def test_verify_refuses_a_model_whose_tokens_see_the_future() -> None:
    model = llama()
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, inputs, output: output + output.mean(1, keepdim=True))
    with pytest.raises(ConfigError, match="llama gives other logits"):
        verify(model)


def test_verify_refuses_a_model_whose_dialogues_see_each_other() -> None:
    model = llama()

    def leak(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # The last three tokens of the check are the second dialogue; alone, or in the first, nothing changes.
        return output if output.shape[1] < 15 else output + output[:, :1] * (torch.arange(15) >= 12)[:, None]

    model.model.layers[0].register_forward_hook(leak)
    with pytest.raises(ConfigError, match="llama gives other logits"):
        verify(model)


def test_a_sliding_window_shorter_than_the_dialogue_is_refused(tokenizer: Any) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    shape: Any = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    config = MistralConfig(vocab_size=320, num_hidden_layers=1, sliding_window=16, **shape)
    packed = pack(turn_examples(HAND_MADE), tokenizer, max_length=1000)
    with pytest.raises(ConfigError, match=r"sliding window of 16 tokens.*backbone\.max_length"):
        loss_sum(MistralForCausalLM(config), packed)


def test_checking_a_model_leaves_its_attention_as_it_was(make_small_model: Callable[[], Any]) -> None:
    model = make_small_model()
    before = model.config._attn_implementation
    verify(model)
    assert model.config._attn_implementation == before != NAME


def test_an_example_without_a_loss_is_no_trunk() -> None:
    """The longest history teaches nothing here: what is packed must not hang on it."""
    idle = Example("d", (*two_examples()[-1].segments[:1], Segment("much longer\n", False), Segment("", True)))
    examples = [idle, two_examples()[0]]
    assert loss_positions(pack(examples, Letters(), max_length=100)) == loss_positions(
        pack(examples[1:], Letters(), max_length=100)
    )
    assert pack(examples, Letters(), max_length=100).layout.branches == ()


def test_a_segment_that_ends_inside_a_line_is_told_without_the_line() -> None:
    broken = Example("d", (Segment("my secret ", False), Segment("word\n", True)))
    with pytest.raises(DataError, match="a segment ends inside a line of example 0") as caught:
        pack([broken], Letters(), max_length=100)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("spare", range(0, 90, 7))
def test_a_history_in_use_is_cut_as_in_training(spare: int, tokenizer: Any) -> None:
    """A state of no tokens leaves the two rules nothing to differ in."""
    lines = ("User: one\n", "System: two two\n", "User: three\n", "System: four\n", "User: five\n")
    whole = 1 + len(encode(tokenizer, "".join(lines) + "Belief State:"))
    lengths = [len(encode(tokenizer, line)) for line in lines]
    kept = shorten_history(lines, lengths, sum(lengths) - spare)
    n = next(
        (
            n
            for n in range(len(lines))
            if 1 + len(encode(tokenizer, "".join(lines[n:]) + "Belief State:")) <= whole - spare
        ),
        len(lines) - 1,
    )
    assert kept == lines[n:]
    segments = [Segment(line, False) for line in (*lines, "Belief State:")]
    answer = Segment(" None\n", True)
    limit = whole - spare + len(encode(tokenizer, " None\n"))
    example = Example("d", (*segments, answer))
    fits = 1 + len(encode(tokenizer, lines[-1] + "Belief State:")) <= whole - spare
    if fits:
        (row,) = unpack_rows([example], tokenizer, max_length=limit)
        assert row.input_ids[1:] == encode(tokenizer, "".join(kept) + "Belief State: None\n")


def test_the_last_line_stays_whatever_the_limit() -> None:
    assert shorten_history(("User: a\n", "User: b\n"), [3, 3], 5) == ("User: b\n",)
    assert shorten_history(("User: a\n", "User: b\n"), [3, 3], -5) == ("User: b\n",)
    assert shorten_history((), [], -5) == ()


def running_example(*turns: str) -> Example:
    """Lay turns out as a running text: each is a user's line, which may be empty, then a state and a response."""
    segments = [Segment("System: hi\n", False)]
    for turn in turns:
        segments += [Segment(f"User: {turn}\n", False)] if turn else []
        segments += [Segment("Belief State:", False), Segment(f" {turn}\n", True)]
        segments += [Segment("Response:", False), Segment(f" {turn.upper()}\n", True)]
    return Example("d", tuple(segments))


RUNNING = running_example("a", "bb", "", "cccc", "dd")
N_OPENING, N_A, N_BB, N_NONE, N_CCCC, N_DD = TURNS = 11, 36, 39, 26, 45, 39


def row_text(row: Row) -> str:
    return "".join(map(chr, row.input_ids[1:]))


def supervised_text(row: Row) -> str:
    return "".join(chr(token) for token, learnt in zip(row.input_ids, row.supervised, strict=True) if learnt)


def test_a_running_text_that_is_too_long_is_cut_between_turns_and_nothing_is_learnt_twice() -> None:
    assert sum(TURNS) == len(RUNNING.text)
    rows = unpack_rows([RUNNING], Letters(), max_length=100)
    assert [supervised_text(row) for row in rows] == [
        " a\n A\n bb\n BB\n",
        " \n \n",
        " cccc\n CCCC\n",
        " dd\n DD\n",
    ]
    # Of the turns before, as many as have at most 50 tokens: bb has 39, cccc 45; `None` with bb would have 65.
    assert [row_text(row) for row in rows] == [
        RUNNING.text[: N_OPENING + N_A + N_BB],
        RUNNING.text[N_OPENING + N_A :][: N_BB + N_NONE],
        RUNNING.text[N_OPENING + N_A + N_BB :][: N_NONE + N_CCCC],
        RUNNING.text[-N_CCCC - N_DD :],
    ]


@pytest.mark.parametrize("max_length", range(N_CCCC + 1, len(RUNNING.text) + 3))
def test_windows_teach_every_supervised_token_once(max_length: int) -> None:
    rows = unpack_rows([RUNNING], Letters(), max_length=max_length)
    [whole] = unpack_rows([RUNNING], Letters(), max_length=1000)
    assert "".join(map(supervised_text, rows)) == supervised_text(whole)
    starts, turn_starts = [], [sum(TURNS[:n]) for n in range(len(TURNS))]
    for row in rows:
        start = RUNNING.text.index(row_text(row))  # in one piece
        starts.append(start)
        first_learnt = max(turn for turn in turn_starts if turn < start + row.supervised.index(True))
        assert len(row.input_ids) <= max_length
        assert start in turn_starts
        assert first_learnt - start <= max(max_length // 2, N_OPENING)
    assert starts == sorted(starts)
    assert pack([RUNNING], Letters(), max_length=max_length).n_truncated == (len(rows) > 1)


def test_an_opening_that_does_not_fit_is_dropped() -> None:
    [first, *_] = unpack_rows([RUNNING], Letters(), max_length=N_CCCC + 1)
    assert row_text(first).startswith("User: a\n")


def test_a_turn_that_teaches_nothing_and_does_not_fit_is_passed_over() -> None:
    idle = Segment(f"User: {'x' * 99}\n", False)
    long = Example("d", (*RUNNING.segments[:6], idle, *RUNNING.segments[6:]))
    assert [supervised_text(row) for row in unpack_rows([long], Letters(), max_length=60)] == [
        supervised_text(row) for row in unpack_rows([RUNNING], Letters(), max_length=60)
    ]
    assert "x" not in "".join(row_text(row) for row in unpack_rows([long], Letters(), max_length=60))


def test_turns_after_the_last_thing_to_learn_are_left_out_where_they_do_not_fit() -> None:
    one = running_example("a")
    idle = [Segment(f"User: {i}\n", False) for i in range(9)]
    [row] = unpack_rows([Example("d", (*one.segments, *idle))], Letters(), max_length=70)
    assert row_text(row) == f"{one.text}User: 0\nUser: 1\n"


def test_a_turn_of_a_running_text_that_does_not_fit_alone_is_an_error() -> None:
    with pytest.raises(DataError, match=r"dialogue d: .* 197 tokens still has 46 .* backbone\.max_length"):
        unpack_rows([RUNNING], Letters(), max_length=N_CCCC)


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("share", [0.4, 0.7])
def test_training_on_windows_equals_ordinary_rows(make: Any, share: float, tokenizer: Any) -> None:
    whole = pack([RUNNING], tokenizer, max_length=1000)
    max_length = int(share * whole.n_tokens)
    packed = pack([RUNNING], tokenizer, max_length=max_length)
    assert packed.layout.branches
    assert sorted(packed.targets.tolist()) == sorted(whole.targets.tolist())
    assert_equal_training(make(), [RUNNING], tokenizer, max_length)
