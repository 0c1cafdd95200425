"""A local model as a target: scores by the chain rule, draws by the law, whatever the batching."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

import hushbot.targets.local
import hushbot.targets.scorer
from hushbot.errors import AuditError, ConfigError, HushbotError
from hushbot.protocols import ShowsTokens, Target
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.local import LocalTarget
from hushbot.targets.row_cache import KeysValues, RowCache, SharedRowCache
from hushbot.targets.sampler import Until
from hushbot.tokens import Piece, encode
from hushbot.types import Decoding

FastTokenizer: Any = PreTrainedTokenizerFast
EOS = "<|endoftext|>"
PLAIN = Decoding(stop=())
GREEDY = Decoding(temperature=0, stop=())
TEXTS = (
    "Belief State: Restaurant(area=north, pricerange=cheap)",
    "User: somewhere cheap in the north\nBelief State:",
    "Response: Golden Wok, caf\u00e9 \u4f60\u597d.",
    "Train(day=monday)",
)
PROMPTS = ("Belief State:", "User: a cheap caf\u00e9\nBelief State:", "", "x")
MAKERS: dict[str, Callable[[int], Any]] = {
    "llama": lambda n: LlamaForCausalLM(
        LlamaConfig(
            vocab_size=n,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
    ),
    "gpt2": lambda n: GPT2LMHeadModel(
        GPT2Config(vocab_size=n, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3)
    ),
    # A head whose logits are divided by a constant after the output embedding.
    "granite": lambda n: GraniteForCausalLM(
        GraniteConfig(
            vocab_size=n,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            logits_scaling=3.0,
            initializer_range=0.3,
        )
    ),
    # Attention that reaches only 4 tokens back: no cache of rows.
    "mistral": lambda n: MistralForCausalLM(
        MistralConfig(
            vocab_size=n,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=4,
            initializer_range=0.3,
        )
    ),
}
ALL = pytest.mark.parametrize("kind", list(MAKERS))
BOTH = pytest.mark.parametrize("kind", ["llama", "gpt2"])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a byte-level BPE that has merged what it saw and knows every byte."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([t for t in TEXTS for _ in range(2)], trainer)
    return FastTokenizer(tokenizer_object=bpe, eos_token=EOS, pad_token=EOS)


@pytest.fixture(scope="module")
def make_model(tokenizer: Any) -> Callable[[str], Any]:
    """Return a maker of one and the same random model per kind."""

    def make(kind: str) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return MAKERS[kind](len(tokenizer)).eval()

    return make


def naive_logprobs(model: Any, ids: Sequence[int], n_scored: int) -> list[float]:
    """Score the last tokens of one sequence by the chain rule, one forward pass on the whole."""
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1)
    return [float(table[i - 1, ids[i]]) for i in range(len(ids) - n_scored, len(ids))]


def naive_greedy(model: Any, ids: list[int], n: int) -> list[int]:
    start = len(ids)
    for _ in range(n):
        with torch.no_grad():
            ids = [*ids, int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())]
    return ids[start:]


def close(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a, b, atol=1e-4, rtol=0) for a, b in zip(ours, theirs, strict=True)
    )


# A model whose law is a table: the next token depends on the last one only.

LETTERS = [EOS, "a", "b", "c", "ab", "\u010a", "\u0120a"]  # the last two are a line break and " a"
TABLE = torch.tensor(
    [
        [0.05, 0.40, 0.20, 0.10, 0.15, 0.05, 0.05],
        [0.10, 0.10, 0.30, 0.20, 0.10, 0.10, 0.10],
        [0.20, 0.25, 0.05, 0.25, 0.05, 0.15, 0.05],
        [0.05, 0.05, 0.05, 0.05, 0.50, 0.10, 0.20],
        [0.30, 0.10, 0.10, 0.30, 0.05, 0.10, 0.05],
        [0.10, 0.30, 0.20, 0.10, 0.10, 0.10, 0.10],
        [0.15, 0.15, 0.15, 0.15, 0.15, 0.15, 0.10],
    ]
)


def table_model(table: torch.Tensor) -> Any:
    """Return a Llama that looks its logits up: identity embeddings, layers that add nothing."""
    n = len(table)
    config = LlamaConfig(
        vocab_size=n,
        hidden_size=2 * n,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.model.layers.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.zero_().fill_diagonal_(1.0)
        # The final norm makes a one-hot vector sqrt(2n) long.
        model.lm_head.weight[:, :n] = table.log().T / math.sqrt(2 * n)
    return model.eval()


def letter_tokenizer(letters: Sequence[str], merges: Sequence[tuple[str, str]]) -> Any:
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, list(merges)))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    return FastTokenizer(tokenizer_object=bpe, eos_token=EOS)


@pytest.fixture(scope="module")
def table_target() -> LocalTarget:
    letters = [*LETTERS, "\u0120"]
    table = torch.full((8, 8), 1e-9)
    table[:7, :7] = TABLE
    table[7] = 1 / 8
    merges = [("a", "b"), ("\u0120", "a")]
    return LocalTarget(table_model(table), letter_tokenizer(letters, merges), batch_rows=512)


def test_scores_are_the_logarithms_of_the_table(table_target: LocalTarget) -> None:
    (whole, rest) = table_target.logprobs(["", "b"], ["bca", "ca"])
    assert whole.exp().tolist() == pytest.approx([0.20, 0.25, 0.05], abs=1e-5)
    assert rest.exp().tolist() == pytest.approx([0.25, 0.05], abs=1e-5)
    assert whole.dtype == torch.float32


def test_a_token_across_the_border_counts_to_the_continuation(table_target: LocalTarget) -> None:
    """`a|bc` is read as `ab c`: the first score is that of `ab` after the start, 0.15."""
    (scores,) = table_target.logprobs(["a"], ["bc"])
    assert scores.exp().tolist() == pytest.approx([0.15, 0.30], abs=1e-5)
    (scores,) = table_target.logprobs(["b "], ["ac"])
    assert scores.exp().tolist() == pytest.approx([0.05, 0.15], abs=1e-5)


def test_a_model_of_zeros_is_uniform(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("gpt2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    (scores,) = LocalTarget(model, tokenizer).logprobs(["Belief State:"], [" Train(day=monday)"])
    n = len(encode(tokenizer, "Belief State: Train(day=monday)")) - len(encode(tokenizer, "Belief State:"))
    assert scores.tolist() == pytest.approx([-math.log(len(tokenizer))] * n)


@ALL
def test_scores_equal_the_naive_loop(kind: str, tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model(kind)
    prompts = [p for p in PROMPTS for _ in TEXTS]
    continuations = [" " + t for _ in PROMPTS for t in TEXTS]
    scores = LocalTarget(model, tokenizer).logprobs(prompts, continuations)
    assert len(scores) == 16
    for prompt, continuation, score in zip(prompts, continuations, scores, strict=True):
        ids = [tokenizer.eos_token_id, *encode(tokenizer, prompt + continuation)]
        text = tokenizer.decode(ids[len(ids) - len(score) :])
        assert text.endswith(continuation)
        assert score.tolist() == pytest.approx(naive_logprobs(model, ids, len(score)), abs=1e-4)


@BOTH
def test_scores_do_not_depend_on_batch_or_order(kind: str, tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model(kind)
    prompts = [p for p in PROMPTS for _ in TEXTS] * 2
    continuations = [t[: 3 + i] for i, _ in enumerate(PROMPTS) for t in TEXTS] * 2
    one = LocalTarget(model, tokenizer, batch_tokens=1).logprobs(prompts, continuations)
    many = LocalTarget(model, tokenizer).logprobs(prompts, continuations)
    assert close(one, many)
    order = sorted(range(len(prompts)), key=lambda i: (i * 7) % 31)
    mixed = LocalTarget(model, tokenizer, batch_tokens=50).logprobs(
        [prompts[i] for i in order], [continuations[i] for i in order]
    )
    assert close([one[i] for i in order], mixed)


def test_the_vocabulary_is_visited_in_chunks(
    tokenizer: Any, make_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("llama")
    whole = LocalTarget(model, tokenizer).logprobs(PROMPTS, TEXTS)
    sizes: list[int] = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[:-1].numel()))
    monkeypatch.setattr(hushbot.targets.scorer, "_CPU_LOGITS_AT_ONCE", 0)
    monkeypatch.setattr(hushbot.targets.scorer, "_LEAST_POSITIONS", 5)
    parts = LocalTarget(model, tokenizer).logprobs(PROMPTS, TEXTS)
    assert close(whole, parts)
    assert len(sizes) > 10
    assert max(sizes) == 5


def test_equal_pairs_are_scored_once_and_answered_apart(
    table_target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    score = hushbot.targets.scorer.score

    def counting(model: CausalLM, sequences: Any, *, batch_tokens: int, with_moments: bool) -> list[torch.Tensor]:
        seen.append(len(sequences))
        return score(model, sequences, batch_tokens=batch_tokens, with_moments=with_moments)

    monkeypatch.setattr(hushbot.targets.local, "score", counting)
    first, _, third = table_target.logprobs(["b", "a", "b"], ["c", "c", "c"])
    assert seen == [2]
    first += 1
    assert third.exp().tolist() == pytest.approx([0.25], abs=1e-5)


def test_token_statistics_begin_with_the_log_probabilities_and_keep_to_the_same_rules(
    table_target: LocalTarget,
) -> None:
    prompts, rests = ["b", "a", "b"], ["c", "c", "ca"]
    rows = table_target.token_statistics(prompts, rests)
    for row, alone in zip(rows, table_target.logprobs(prompts, rests), strict=True):
        assert row.shape == (len(alone), 3)
        assert row[:, 0].tolist() == pytest.approx(alone.tolist(), abs=1e-5)
    assert isinstance(table_target, ShowsTokens)
    with pytest.raises(AuditError, match="pair 1: the continuation is empty"):
        table_target.token_statistics(["a", "a"], ["b", ""])


def test_a_text_is_read_once_for_all_its_prompts(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    target = LocalTarget(model, tokenizer)
    text = "the cheap one in the north"
    pairs = [(text[:cut], text[cut:]) for cut in (3, 0, 9, 25)]
    alone = [target.logprobs([prompt], [rest])[0] for prompt, rest in pairs]
    target.logprobs(["x"], ["y"])  # measures what the model can do, in passes of its own
    sizes: list[int] = []
    hook = model.model.register_forward_pre_hook(
        lambda _, __, k: sizes.append(k["input_ids"].numel()), with_kwargs=True
    )
    together = target.logprobs([prompt for prompt, _ in pairs], [rest for _, rest in pairs])
    hook.remove()
    assert sizes == [len(alone[1])]  # with the start token, without the last one
    assert close(alone, together)
    before = together[1].clone()
    together[0] += 1  # and no answer is a part of another
    assert torch.equal(together[1], before)


def test_many_texts_are_scored_window_by_window_with_the_same_scores(
    tokenizer: Any, make_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = LocalTarget(make_model("llama"), tokenizer)
    prompts = [f"to {'abc'[i % 3]}" for i in range(20)]
    texts = [f" at {(i * 7) % 5}, {i % 4}" for i in range(20)]
    whole = target.logprobs(prompts, texts)
    read: list[list[str]] = []
    encode_all_pieces = hushbot.targets.local.encode_all_pieces

    def noting(tokenizer: Any, some: list[str]) -> Any:
        read.append(some)
        return encode_all_pieces(tokenizer, some)

    monkeypatch.setattr(hushbot.targets.local, "encode_all_pieces", noting)
    monkeypatch.setattr(hushbot.targets.local, "_TEXTS_AT_ONCE", 3)
    assert close(whole, target.logprobs(prompts, texts))
    distinct = sorted({prompt + text for prompt, text in zip(prompts, texts, strict=True)})
    assert read == [distinct[start : start + 3] for start in range(0, len(distinct), 3)]
    with pytest.raises(AuditError, match="pair 17:"):
        target.logprobs(prompts, [*texts[:17], "x" * 5000, *texts[18:]])


def test_texts_that_share_a_prompt_are_scored_like_each_alone(
    tokenizer: Any, make_model: Callable[[str], Any], table_target: LocalTarget
) -> None:
    """Borders that a token straddles, prompts that go on in each other, continuations of one token."""
    prompts = ["", "a", "ab", "b ", "ab ca", "c" * 30]
    texts = ["b", "bc", "bca", "a", "ac", "c" * 9]
    for target in (table_target, LocalTarget(make_model("llama"), tokenizer)):
        pairs = [(prompt, text) for prompt in prompts for text in texts]
        together = target.logprobs([prompt for prompt, _ in pairs], [text for _, text in pairs])
        assert close(together, [target.logprobs([prompt], [text])[0] for prompt, text in pairs])


def test_the_prompt_of_many_continuations_is_read_once(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    target = LocalTarget(model, tokenizer)
    prompt = "User: somewhere cheap in the north\nBelief State:"
    texts = [f" Restaurant(area={area}" for area in ("north", "south", "east", "west", "centre")]
    target.logprobs([prompt, prompt], texts[:2])  # what the model reads is measured once
    sizes: list[int] = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, __, arguments: sizes.append(arguments["input_ids"].numel()), with_kwargs=True
    )
    target.logprobs([prompt] * 5, texts)
    hook.remove()
    beginnings = {
        tuple(ids[:i]) for text in texts for ids in [encode(tokenizer, prompt + text)] for i in range(len(ids))
    }
    assert sizes == [len(beginnings)]


def test_a_pair_that_cannot_be_scored_is_named(table_target: LocalTarget) -> None:
    with pytest.raises(AuditError, match="pair 1: the continuation is empty"):
        table_target.logprobs(["a", "a"], ["b", ""])
    with pytest.raises(AuditError, match="2 prompts for 1 continuations"):
        table_target.logprobs(["a", "a"], ["b"])
    with pytest.raises(AuditError, match=r"pair 0: 71 tokens .* context of 64"):
        table_target.logprobs(["c" * 60], ["b" * 10])
    assert len(table_target.logprobs(["c" * 53], ["b" * 10])[0]) == 10
    assert table_target.logprobs([], []) == []


@pytest.mark.parametrize("kind", ["llama", "granite"])
def test_weights_that_are_not_finite_are_an_error(kind: str, tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model(kind)
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = math.nan
    target = LocalTarget(model, tokenizer)
    with pytest.raises(AuditError, match="pair 0"):
        target.logprobs(["x"], ["y"])
    with pytest.raises(AuditError, match="not finite"):
        target.sample(["x"], n=2, max_new_tokens=3, decoding=PLAIN, seed=0)


def test_special_tokens_in_texts_are_ordinary_characters(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    target = LocalTarget(model, tokenizer)
    text = f"a{EOS}b"
    ids = encode(tokenizer, text)
    assert tokenizer.eos_token_id not in ids
    (scores,) = target.logprobs([""], [text])
    assert scores.tolist() == pytest.approx(naive_logprobs(model, [tokenizer.eos_token_id, *ids], len(ids)), abs=1e-4)
    ((drawn,),) = target.sample([text], n=1, max_new_tokens=6, decoding=GREEDY, seed=0)
    tokens = naive_greedy(model, [tokenizer.eos_token_id, *ids], 6)
    assert drawn == tokenizer.decode(ids + tokens)[len(text) :]


# Drawing.


def outcomes(table: torch.Tensor, letters: Sequence[str], n_tokens: int) -> Iterator[tuple[str, float]]:
    """Enumerate what a prompt that ends in `a` can be continued with, and how probable it is."""

    def walk(last: int, text: str, probability: float, left: int) -> Iterator[tuple[str, float]]:
        if left == 0:
            yield text, probability
            return
        for token, p in enumerate(table[last].tolist()):
            letter = letters[token].replace("\u0120", " ")
            if letter in (EOS, "\u010a"):
                yield text, probability * p
            else:
                yield from walk(token, text + letter, probability * p, left - 1)

    return walk(1, "", 1.0, n_tokens)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_draws_follow_the_exact_distribution(table_target: LocalTarget, temperature: float) -> None:
    tempered = TABLE ** (1 / temperature)
    exact: Counter[str] = Counter()
    for text, p in outcomes(tempered / tempered.sum(dim=1, keepdim=True), LETTERS, 3):
        exact[text] += p  # type: ignore[assignment]
    n = 8000
    (drawn,) = table_target.sample(["ba"], n=n, max_new_tokens=3, decoding=Decoding(temperature=temperature), seed=3)
    counts = Counter(drawn)
    frequent = [text for text, p in exact.items() if p * n >= 10]
    assert len(frequent) > 30
    assert set(counts) <= set(exact)
    observed = [counts[text] for text in frequent]
    expected = [exact[text] * n for text in frequent]
    observed.append(n - sum(observed))
    expected.append(n - sum(expected))
    assert chisquare(observed, expected).pvalue > 0.01
    # The test has power: the other temperature's draws would not pass.
    other = table_target.sample(
        ["ba"], n=n, max_new_tokens=3, decoding=Decoding(temperature=temperature * 0.8), seed=3
    )[0]
    shifted = [Counter(other)[text] for text in frequent]
    assert chisquare([*shifted, n - sum(shifted)], expected).pvalue < 1e-6


@ALL
def test_draws_do_not_depend_on_batching(kind: str, tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model(kind)

    def draw(prompts: Sequence[str], n: int, rows: int, tokens: int = 16384) -> list[list[str]]:
        target = LocalTarget(model, tokenizer, batch_rows=rows, batch_tokens=tokens)
        return target.sample(prompts, n=n, max_new_tokens=9, decoding=Decoding(stop=("a", "\n")), seed=5)

    one = draw(PROMPTS, 6, 1)
    assert one == draw(PROMPTS, 6, 64)
    assert one == draw(PROMPTS, 6, 5)
    assert one == draw(PROMPTS, 6, 64, tokens=40)
    assert [row[:3] for row in one] == draw(PROMPTS, 3, 64)
    # What stands elsewhere in the list does not matter, the position does.
    swapped = draw([PROMPTS[0], "something else", "", PROMPTS[3]], 6, 64)
    assert [swapped[i] for i in (0, 2, 3)] == [one[i] for i in (0, 2, 3)]
    assert draw([PROMPTS[0], PROMPTS[0]], 6, 64)[1] != one[0]
    assert len({text for row in one for text in row}) > 12


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_a_draw_that_is_enough_ends_early_and_is_the_same_so_far(
    kind: str, temperature: float, tokenizer: Any, make_model: Callable[[str], Any]
) -> None:
    target = LocalTarget(make_model(kind), tokenizer, batch_rows=5)
    decoding = Decoding(temperature=temperature, stop=("x",))

    def draw(until: Until | None, length: int = 16) -> list[list[str]]:
        if until is None:
            return target.sample(PROMPTS, n=4, max_new_tokens=length, decoding=decoding, seed=8)
        return target.sample_until(PROMPTS, until, n=4, max_new_tokens=length, decoding=decoding, seed=8)

    whole = draw(None)
    assert draw(Until("", lambda position, text: True)) == whole
    assert draw(Until("e", lambda position, text: False)) == whole
    # Enough for two of the prompts: the first text that holds an `e` or an `n`.
    early = draw(Until("en", lambda position, text: position < 2 and not {"e", "n"}.isdisjoint(text)))
    assert early[2:] == whole[2:]
    for before, after in zip((t for row in whole[:2] for t in row), (t for row in early[:2] for t in row), strict=True):
        assert before.startswith(after)
        assert {"e", "n"}.isdisjoint(after) == {"e", "n"}.isdisjoint(before)
    assert early[:2] != whole[:2]
    limited = draw(Until("", lambda position, text: False, limits=[1, 16, 7, 99]))
    assert limited == [draw(None, n)[i] for i, n in enumerate([1, 16, 7, 16])]


def test_another_seed_gives_other_draws(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    target = LocalTarget(make_model("llama"), tokenizer)
    a, b, c = (target.sample(["x"], n=8, max_new_tokens=8, decoding=PLAIN, seed=seed) for seed in (1, 1, 2))
    assert a == b
    assert not set(a[0]) & set(c[0])


@ALL
def test_greedy_is_the_naive_argmax_and_generate(kind: str, tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model(kind)
    rows = LocalTarget(model, tokenizer).sample(PROMPTS, n=2, max_new_tokens=12, decoding=GREEDY, seed=0)
    for prompt, (first, second) in zip(PROMPTS, rows, strict=True):
        ids = [tokenizer.eos_token_id, *encode(tokenizer, prompt)]
        tokens = naive_greedy(model, ids, 12)
        if tokenizer.eos_token_id in tokens:
            tokens = tokens[: tokens.index(tokenizer.eos_token_id)]
        assert first == second == tokenizer.decode(ids[1:] + tokens)[len(prompt) :]
        generated = model.generate(
            torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=0
        )[0, len(ids) :].tolist()
        assert generated[: len(tokens)] == tokens


def test_attention_that_cannot_take_rows_is_padded_and_draws_the_same(
    tokenizer: Any, make_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind, takes_rows in (("llama", True), ("gpt2", True), ("granite", True), ("mistral", False)):
        model = CausalLM(make_model(kind))
        with model.reading():
            assert model.supports_rows(30) == takes_rows
    target = LocalTarget(make_model("gpt2"), tokenizer, batch_rows=7)
    decoding = Decoding(stop=("e",), temperature=0.8, top_k=40, repetition_penalty=1.2)
    rows = target.sample(PROMPTS, n=5, max_new_tokens=10, decoding=decoding, seed=9)
    monkeypatch.setattr(CausalLM, "supports_rows", lambda self, capacity: False)
    assert rows == target.sample(PROMPTS, n=5, max_new_tokens=10, decoding=decoding, seed=9)


def test_eager_attention_draws_the_same(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    fused = LocalTarget(model, tokenizer).sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2)
    model.set_attn_implementation("eager")
    target = LocalTarget(model, tokenizer)
    with target.causal_lm.reading():
        assert target.causal_lm.supports_rows(30)
    assert fused == target.sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2)


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let short prompts of two draws or more be shared; return a list that grows by one per row that shares one."""
    shared: list[int] = []
    append = SharedRowCache.append

    def counted(self: SharedRowCache, memory: KeysValues) -> None:
        shared.append(1)
        append(self, memory)

    monkeypatch.setattr(SharedRowCache, "append", counted)
    monkeypatch.setattr("hushbot.targets.row_plan._WORTH_SHARING", 1)
    return shared


def has_copies(model: Any) -> CausalLM:
    """Return a model that gives each row a copy of its prompt and attends as it was made to."""
    causal_lm = CausalLM(model)
    causal_lm.__dict__["_shares_prompts"] = False
    return causal_lm


@pytest.mark.parametrize("kind", ["llama", "gpt2", "granite"])
@pytest.mark.parametrize("is_own", [True, False])
def test_rows_that_share_prompts_have_the_logits_of_rows_with_copies(
    kind: str, is_own: bool, make_model: Callable[[str], Any]
) -> None:
    model = make_model(kind)
    rows, columns = [0, 0, 1, 0, 2, 1], [[(7 * row + 11 * step) % 300 for row in range(6)] for step in range(9)]
    logits: dict[type[RowCache], list[torch.Tensor]] = {}
    for cache_kind, causal_lm in ((RowCache, has_copies(model)), (SharedRowCache, CausalLM(model))):
        with causal_lm.reading(), causal_lm.attending_by_rows():
            prompts = causal_lm.prefill([list(range(1, 31)), [5, 6], list(range(40, 53))])
            cache = (RowCache if is_own else cache_kind)(prompts[0].memory, n_rows=6, capacity=40)
            for row in rows:
                cache.append(prompts[row].memory)
            logits[cache_kind] = [causal_lm.step(column, cache) for column in columns]
    whole = torch.stack(logits[RowCache])
    assert float((torch.stack(logits[SharedRowCache]) - whole).abs().max()) <= 1e-5 * max(1.0, float(whole.abs().max()))


@pytest.mark.parametrize(
    ("kind", "batch_rows", "batch_tokens"),
    [
        ("llama", 64, 16384),
        ("llama", 7, 16384),
        ("gpt2", 7, 16384),
        ("granite", 7, 16384),
        ("llama", 3, 60),
        ("llama", 1, 1),
    ],
)
def test_sharing_prompts_changes_no_draw(
    kind: str,
    batch_rows: int,
    batch_tokens: int,
    tokenizer: Any,
    make_model: Callable[[str], Any],
    sharing: list[int],
) -> None:
    model = make_model(kind)
    copies, shared = (
        LocalTarget(causal_lm, tokenizer, batch_rows=batch_rows, batch_tokens=batch_tokens)
        for causal_lm in (has_copies(model), CausalLM(model))
    )
    with shared.causal_lm.reading():
        assert shared.causal_lm.supports_sharing(30)
    sharing.clear()
    prompts = [*PROMPTS, PROMPTS[1]]
    decoding = Decoding(stop=("e",), temperature=0.8, top_k=40)
    texts = [target.sample(prompts, n=5, max_new_tokens=12, decoding=decoding, seed=3) for target in (copies, shared)]
    assert texts[0] == texts[1]
    assert bool(sharing) == (batch_rows > 1)
    # A prompt that stands twice is shared under greedy decoding, too.
    best = [target.sample(prompts, n=1, max_new_tokens=12, decoding=GREEDY, seed=0) for target in (copies, shared)]
    assert best[0] == best[1]
    assert model.config._attn_implementation == "sdpa"


def test_prompts_that_are_shared_at_once_stay_within_the_batch(
    tokenizer: Any, make_model: Callable[[str], Any], sharing: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    begin = SharedRowCache.begin_step

    def looked_at(self: SharedRowCache) -> tuple[torch.Tensor, torch.Tensor]:
        step = begin(self)
        held.append(sum(prompt.keys.shape[1] for prompt in self.shared_prompts(0)))
        return step

    monkeypatch.setattr(SharedRowCache, "begin_step", looked_at)
    prompts = [f"{'x' * 30}{letter}" for letter in "abcdefghijkl"]
    n_tokens = 1 + len(encode(tokenizer, prompts[0]))
    batch_tokens = 3 * n_tokens + 6 * 9  # six rows of nine tokens, and three prompts
    target = LocalTarget(make_model("llama"), tokenizer, batch_rows=6, batch_tokens=batch_tokens)
    decoding = Decoding(stop=("a", "e", "o", "t"))  # draws of different lengths, so that prompts linger
    texts = target.sample(prompts, n=3, max_new_tokens=9, decoding=decoding, seed=1)
    assert max(held) == 3 * n_tokens
    roomy = LocalTarget(make_model("llama"), tokenizer)
    assert texts == roomy.sample(prompts, n=3, max_new_tokens=9, decoding=decoding, seed=1)
    assert max(held) > 3 * n_tokens


def test_where_prompts_cannot_be_shared_rows_have_copies_and_draws_are_the_same(
    tokenizer: Any, make_model: Callable[[str], Any], sharing: list[int]
) -> None:
    model = make_model("llama")
    expected = LocalTarget(has_copies(model), tokenizer).sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2)
    model.set_attn_implementation("eager")
    target = LocalTarget(model, tokenizer)
    with target.causal_lm.reading():
        assert target.causal_lm.supports_rows(30)
        assert not target.causal_lm.supports_sharing(30)
    assert expected == target.sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2)
    assert not sharing
    assert model.config._attn_implementation == "eager"


def test_prompts_are_shared_within_a_sliding_window_only(tokenizer: Any) -> None:
    config = MistralConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=16,
    )
    model = CausalLM(MistralForCausalLM(config))
    with model.reading():
        assert model.supports_sharing(16)
        assert not model.supports_sharing(17)


def test_a_model_that_ignores_shared_prompts_is_found_out(
    tokenizer: Any, make_model: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, sharing: list[int]
) -> None:
    model = make_model("llama")
    expected = LocalTarget(model, tokenizer).sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2)
    monkeypatch.setattr(SharedRowCache, "shared_prompts", lambda self, layer: [])
    target = LocalTarget(model, tokenizer)
    sharing.clear()
    assert target.sample(PROMPTS, n=4, max_new_tokens=8, decoding=PLAIN, seed=2) == expected
    assert len(sharing) == 3  # the probe's
    assert not target.causal_lm.supports_sharing(30)


def test_shared_rows_are_read_with_the_attention_of_rows_only(make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    causal_lm = CausalLM(model)
    with causal_lm.reading():
        prompt = causal_lm.prefill([[1, 2, 3]])[0].memory
        cache = SharedRowCache(prompt, n_rows=1, capacity=2)
        cache.append(prompt)
        with pytest.raises(RuntimeError, match="attending_by_rows"):
            causal_lm.step([4], cache)
        with pytest.raises(ZeroDivisionError), causal_lm.attending_by_rows():
            causal_lm.step([4 // 0], cache)
    assert model.config._attn_implementation == "sdpa"


def test_generation_config_is_ignored(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama")
    before = LocalTarget(model, tokenizer).sample(["x"], n=20, max_new_tokens=6, decoding=PLAIN, seed=4)
    model.generation_config.update(top_k=2, temperature=0.1, do_sample=True, repetition_penalty=9.0)
    model.generation_config.eos_token_id = list(range(1, len(tokenizer)))
    after = LocalTarget(model, tokenizer).sample(["x"], n=20, max_new_tokens=6, decoding=PLAIN, seed=4)
    assert before == after
    assert len(set(after[0])) == 20


@pytest.mark.parametrize("stop", [("\n",), ("a", "te"), ("St",), ("caf\u00e9", "\u00e9", " ")])
def test_a_draw_ends_before_the_first_stop_string(
    stop: tuple[str, ...], tokenizer: Any, make_model: Callable[[str], Any]
) -> None:
    """Stopping cuts the very text that would have been drawn without."""
    model = make_model("llama")
    with torch.no_grad():  # make the pieces of the stop strings likely
        likely = [t for text in TEXTS for t in encode(tokenizer, text)]
        model.lm_head.weight *= 0.5
        model.model.norm.weight[0] = 8.0
        model.lm_head.weight[:, 0] = 0.0
        model.lm_head.weight[likely, 0] = 0.05
    target = LocalTarget(model, tokenizer)
    endless = target.sample(PROMPTS, n=60, max_new_tokens=14, decoding=PLAIN, seed=6)
    stopped = target.sample(PROMPTS, n=60, max_new_tokens=14, decoding=Decoding(stop=stop), seed=6)
    n_cut = 0
    for whole, cut in zip((t for r in endless for t in r), (t for r in stopped for t in r), strict=True):
        ends = [at for at in (whole.find(s) for s in stop) if at >= 0]
        assert cut == (whole[: min(ends)] if ends else whole)
        n_cut += bool(ends)
    assert n_cut >= 3


def test_a_draw_ends_at_eos_and_at_its_length() -> None:
    table = torch.full((4, 4), 1e-9)
    for last, following in ((0, 1), (1, 2), (2, 3), (3, 0)):
        table[last, following] = 1.0
    target = LocalTarget(table_model(table), letter_tokenizer([EOS, "a", "b", "c"], []))
    draws = [target.sample([""], n=1, max_new_tokens=n, decoding=PLAIN, seed=0)[0][0] for n in (1, 2, 3, 9)]
    assert draws == ["a", "ab", "abc", "abc"]
    assert target.sample(["abc"], n=2, max_new_tokens=4, decoding=GREEDY, seed=0) == [["", ""]]


def test_a_character_of_several_tokens_is_whole() -> None:
    """The two bytes of an accented e are two tokens; it may also be what ends the text."""
    table = torch.full((4, 4), 1e-9)
    for last, following in ((0, 1), (1, 2), (2, 3), (3, 1)):
        table[last, following] = 1.0
    target = LocalTarget(table_model(table), letter_tokenizer([EOS, "a", "\u00c3", "\u00a9"], []))
    assert len(target.logprobs(["a"], ["\u00e9"])[0]) == 2
    assert target.sample(["a"], n=1, max_new_tokens=5, decoding=GREEDY, seed=0) == [["\u00e9a\u00e9"]]
    stop = Decoding(temperature=0, stop=("a\u00e9",))
    assert target.sample(["\u00e9"], n=1, max_new_tokens=9, decoding=stop, seed=0) == [[""]]
    assert target.sample([""], n=1, max_new_tokens=2, decoding=GREEDY, seed=0) == [["a\N{REPLACEMENT CHARACTER}"]]


def test_a_leading_blank_survives_sentencepiece_decoding() -> None:
    letters = [EOS, "\u2581a", "\u2581b", "c", "\u2581", "a", "b"]
    bpe = Tokenizer(models.BPE({x: i for i, x in enumerate(letters)}, [("\u2581", "a"), ("\u2581", "b")]))
    bpe.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    bpe.decoder = decoders.Metaspace(prepend_scheme="always")
    table = torch.full((7, 7), 1e-9)
    for last, following in enumerate((1, 2, 3, 1, 1, 1, 1)):
        table[last, following] = 1.0
    target = LocalTarget(table_model(table), FastTokenizer(tokenizer_object=bpe, eos_token=EOS))
    assert target.sample(["a"], n=1, max_new_tokens=3, decoding=GREEDY, seed=0) == [[" bc a"]]
    assert target.sample([""], n=1, max_new_tokens=3, decoding=GREEDY, seed=0) == [["a bc"]]
    stop = Decoding(temperature=0, stop=(" a",))
    assert target.sample(["a"], n=1, max_new_tokens=9, decoding=stop, seed=0) == [[" bc"]]
    assert [len(s) for s in target.logprobs(["a", "a b"], [" bc", "c"])] == [2, 1]


def test_requests_that_make_no_sense_are_refused(table_target: LocalTarget) -> None:
    def draw(n: int = 1, length: int = 4, stop: tuple[str, ...] = (), prompt: str = "a") -> object:
        return table_target.sample([prompt], n=n, max_new_tokens=length, decoding=Decoding(stop=stop), seed=0)

    with pytest.raises(ConfigError, match="n=0"):
        draw(n=0)
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        draw(length=0)
    with pytest.raises(ConfigError, match="empty string"):
        draw(stop=("\n", ""))
    with pytest.raises(AuditError, match=r"prompt 0: 61 tokens .* 5 new ones .* context of 64"):
        draw(prompt="c" * 60, length=5)
    assert draw(prompt="c" * 60, length=4)
    # A prompt that has a limit of its own is held to that one.
    until, longer = Until("", lambda position, text: False, limits=[4, 9]), ["c" * 60, "a"]
    table_target.sample_until(longer, until, n=1, max_new_tokens=9, decoding=GREEDY, seed=0)
    with pytest.raises(AuditError, match=r"prompt 0: 62 tokens .* 4 new ones .* context of 64"):
        table_target.sample_until(["c" * 61, "a"], until, n=1, max_new_tokens=9, decoding=GREEDY, seed=0)
    assert table_target.sample([], n=1, max_new_tokens=4, decoding=PLAIN, seed=0) == []


# The target itself.


def test_it_is_a_target_without_a_reference(table_target: LocalTarget) -> None:
    assert isinstance(table_target, Target)
    assert table_target.reference is None


def test_a_tokenizer_that_does_not_fit_is_refused(make_model: Callable[[str], Any]) -> None:
    too_many = letter_tokenizer([EOS, *map(chr, range(0x4E00, 0x4E00 + 400))], [])
    with pytest.raises(ConfigError, match="401 tokens"):
        LocalTarget(make_model("llama"), too_many)
    with pytest.raises(ConfigError, match="batch_rows=0"):
        LocalTarget(make_model("llama"), letter_tokenizer([EOS], []), batch_rows=0)


@pytest.fixture
def adapted(make_model: Callable[[str], Any]) -> Any:
    """Return a Llama with a LoRA adapter that does something."""
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.5, task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = get_peft_model(make_model("llama"), config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    return model


def test_the_reference_of_an_adapter_is_its_base(
    adapted: Any, tokenizer: Any, make_model: Callable[[str], Any]
) -> None:
    adapted.train()
    target = LocalTarget(adapted, tokenizer)
    reference = target.reference
    assert isinstance(reference, LocalTarget)
    assert reference.reference is None
    scores = target.logprobs(PROMPTS, TEXTS)
    base = LocalTarget(make_model("llama"), tokenizer)
    assert close(reference.logprobs(PROMPTS, TEXTS), base.logprobs(PROMPTS, TEXTS))
    assert not close(scores, base.logprobs(PROMPTS, TEXTS))
    assert close(scores, target.logprobs(PROMPTS, TEXTS))
    draws = [t.sample(PROMPTS, n=3, max_new_tokens=5, decoding=PLAIN, seed=1) for t in (target, reference, base)]
    assert draws[1] == draws[2] != draws[0]
    assert LocalTarget(adapted, tokenizer, reference=base).reference is base


def test_a_model_in_training_is_read_without_dropout(adapted: Any, tokenizer: Any) -> None:
    target = LocalTarget(adapted, tokenizer)
    calm = target.logprobs(PROMPTS, TEXTS)
    adapted.train()
    assert close(calm, target.logprobs(PROMPTS, TEXTS))
    assert not any(score.requires_grad or score.is_inference() for score in calm)


def test_models_and_adapters_load_from_folders(
    adapted: Any, tokenizer: Any, make_model: Callable[[str], Any], tmp_path: Path
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    make_model("llama").save_pretrained(base)
    tokenizer.save_pretrained(base)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(adapter)
    tokenizer.save_pretrained(adapter)
    expected = LocalTarget(adapted, tokenizer).logprobs(PROMPTS, TEXTS)
    plain = LocalTarget.from_pretrained(base)
    assert plain.reference is None
    for target in (
        LocalTarget.from_pretrained(adapter),
        LocalTarget.from_pretrained(base, adapter=adapter),
        LocalTarget.from_pretrained(base, adapter=adapter, reference=base, batch_rows=3, batch_tokens=99),
        LocalTarget.from_pretrained(adapter, reference=plain),
    ):
        assert close(target.logprobs(PROMPTS, TEXTS), expected)
        assert target.reference is not None
        assert close(target.reference.logprobs(PROMPTS, TEXTS), plain.logprobs(PROMPTS, TEXTS))
    assert target.reference is plain


def test_pickled_weights_are_refused(
    adapted: Any, tokenizer: Any, make_model: Callable[[str], Any], tmp_path: Path
) -> None:
    model = make_model("llama")
    model.config.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    torch.save(model.state_dict(), tmp_path / "base" / "pytorch_model.bin")
    with pytest.raises(HushbotError, match="safetensors"):
        LocalTarget.from_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "base")
    adapted.save_pretrained(tmp_path / "adapter", safe_serialization=False)
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors"):
        LocalTarget.from_pretrained(tmp_path / "base", adapter=tmp_path / "adapter")


def test_half_precision_is_scored_in_full(tokenizer: Any, make_model: Callable[[str], Any]) -> None:
    model = make_model("llama").to(torch.bfloat16)
    target = LocalTarget(model, tokenizer)
    scores = target.logprobs(PROMPTS, TEXTS)
    assert {score.dtype for score in scores} == {torch.float32}
    ids = [tokenizer.eos_token_id, *encode(tokenizer, PROMPTS[0] + TEXTS[0])]
    assert scores[0].tolist() == pytest.approx(naive_logprobs(model, ids, len(scores[0])), abs=0.3)
    with target.causal_lm.reading():
        assert target.causal_lm.has_plain_head
        assert target.causal_lm.supports_rows(30)


def test_importing_the_package_imports_no_torch() -> None:
    code = (
        "import sys, hushbot.targets as t\n"
        "assert 'torch' not in sys.modules\n"
        "t.Target\n"
        "assert 'torch' not in sys.modules\n"
        "print(sorted(set(t.__all__) - set(dir(t))))"
    )
    assert hushbot.targets.LocalTarget is LocalTarget
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        hushbot.targets.Nothing  # noqa: B018
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_continuation_without_tokens_is_told_without_its_text(
    table_target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "hushbot.targets.local.encode_all_pieces", lambda tokenizer, texts: [[Piece("asecret", [], [])]]
    )
    with pytest.raises(AuditError, match=r"pair 0: .* a continuation of 6 characters") as caught:
        table_target.logprobs(["a"], ["secret"])
    assert "secret" not in str(caught.value)


def test_a_target_says_where_it_runs(table_target: LocalTarget) -> None:
    assert table_target.device == next(table_target.causal_lm.outer.parameters()).device.type
