from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from hushbot.attacks.membership import score
from hushbot.attacks.token_scores import cannot_give, ref_ratio
from hushbot.errors import AuditError
from hushbot.stats import orient
from hushbot.targets import LocalTarget
from hushbot.types import Decoding

Pair = tuple[str, str]


@dataclass
class Scripted:
    """A target whose token probabilities are written down, one list per (prompt, continuation)."""

    probabilities: dict[Pair, list[float]]
    asked: list[Pair] = field(default_factory=list)
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise AssertionError("membership scores need no samples")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        pairs = list(zip(prompts, continuations, strict=True))
        self.asked.extend(pairs)
        return [torch.tensor(self.probabilities[pair], dtype=torch.float64).log() for pair in pairs]


HOTEL = {
    ("", "Belief State: Hotel(area=north)"): [1 / 2, 1 / 4, 1 / 8, 1 / 8],
    ("Belief State:", " Hotel(area=north)"): [1 / 8, 1 / 8],
    ("", " Hotel(area=north)"): [1 / 16, 1 / 64],
}
TAXI = {
    ("", "Belief State: Taxi(leave=9)"): [1 / 4, 1 / 4, 1 / 4],
    ("Belief State:", " Taxi(leave=9)"): [1 / 4],
    ("", " Taxi(leave=9)"): [1 / 2],
}
PREFIX = "Belief State:"


def test_scores_are_the_papers_equations_done_by_hand() -> None:
    # In bits: the whole text has 1 + 2 + 3 + 3 = 9 over 4 tokens, the suffix 3 + 3 = 6 over 2 tokens
    # given the prefix and 4 + 6 = 10 bits on its own.
    scores = score(Scripted(HOTEL), [PREFIX], [" Hotel(area=north)"])
    n_bytes = len(zlib.compress(b"Belief State: Hotel(area=north)"))
    assert scores["ppl"] == pytest.approx([2 ** (9 / 4)])
    assert scores["loss"] == pytest.approx([9 / 4 * math.log(2)])
    assert scores["ppl_zlib"] == pytest.approx([9 / 4 * math.log(2) / n_bytes])
    assert scores["c_ppl"] == pytest.approx([2**3])
    assert scores["dc_ppl"] == pytest.approx([6 / 10])
    assert scores["min_k"] == pytest.approx([-3 * math.log(2)])  # 20% of 4 tokens: the worst one


def test_dc_ppl_is_log_c_ppl_over_log_ppl_of_the_suffix() -> None:
    scores = score(Scripted(HOTEL), [PREFIX], [" Hotel(area=north)"])
    ppl_of_suffix = 2 ** (10 / 2)
    assert scores["dc_ppl"] == pytest.approx(np.log(scores["c_ppl"]) / math.log(ppl_of_suffix))


def test_min_k_averages_a_fifth_of_the_tokens() -> None:
    whole = [1 / 2] * 8 + [1 / 16, 1 / 64]
    table = {("", "ab"): whole, ("a", "b"): [0.5], ("", "b"): [0.5]}
    assert score(Scripted(table), ["a"], ["b"])["min_k"] == pytest.approx([-5 * math.log(2)])


def test_texts_keep_their_order_and_each_pair_is_asked_for_once() -> None:
    target = Scripted(HOTEL | TAXI)
    hotel, taxi = " Hotel(area=north)", " Taxi(leave=9)"
    scores = score(target, [PREFIX] * 3, [taxi, hotel, taxi])
    assert scores["dc_ppl"] == pytest.approx([2.0, 0.6, 2.0])
    assert sorted(target.asked) == sorted([*HOTEL, *TAXI])


def test_nothing_to_score_asks_nothing() -> None:
    target = Scripted({})
    assert {name: len(values) for name, values in score(target, [], []).items()} == dict.fromkeys(
        ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k", "min_k_pp"), 0
    )
    assert target.asked == []


def test_what_has_no_score_is_an_error_and_never_a_number() -> None:
    suffix = " Hotel(area=north)"
    certain = Scripted(HOTEL | {("", suffix): [1.0, 1.0]})
    impossible = Scripted(HOTEL | {("", suffix): [0.5, 0.0]})
    silent = Scripted(HOTEL | {("", suffix): []})
    for target, message in (
        (certain, "certain on its own"),
        (impossible, "not finite"),
        (silent, "no token"),
    ):
        with pytest.raises(AuditError, match=message):
            score(target, [PREFIX], [suffix])
    with pytest.raises(AuditError, match="text 0 has an empty suffix"):
        score(Scripted(HOTEL), [PREFIX], [""])


def test_a_target_that_drops_answers_is_an_error() -> None:
    class Dropping(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            return super().logprobs(prompts, continuations)[:-1]

    with pytest.raises(AuditError, match="answered 2 of 3"):
        score(Dropping(HOTEL), [PREFIX], [" Hotel(area=north)"])


def test_a_perplexity_beyond_the_range_of_numbers_is_an_error() -> None:
    class Appalled(Scripted):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
            return [torch.tensor([-self.cost], dtype=torch.float64) for _ in prompts]

        cost = 709.0

    target = Appalled({})
    assert np.isfinite(score(target, [PREFIX], [" x"])["c_ppl"]).all()
    target.cost = 710.0
    with pytest.raises(AuditError, match="a loss of 710 per token has no finite perplexity"):
        score(target, [PREFIX], [" x"])


@dataclass
class Lettered:
    """A target in which a token is a character, and its probability hangs on the character and its place alone."""

    sizes: list[int] = field(default_factory=list)
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise AssertionError("membership scores need no samples")

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        self.sizes.append(len(prompts))
        return [
            torch.tensor([-float(ord(c) % 7 + 1) / (len(prompt) + i + 1) for i, c in enumerate(text)]).double()
            for prompt, text in zip(prompts, continuations, strict=True)
        ]


def test_many_texts_are_asked_about_a_part_at_a_time_with_the_scores_of_one_alone() -> None:
    suffixes = [f" Taxi(leave={i % 1500})" for i in range(2500)]
    target = Lettered()
    scores = score(target, [PREFIX] * len(suffixes), suffixes)
    assert sum(target.sizes) == 3 * 1500
    assert max(target.sizes) <= 3 * 1024
    for i in (0, 7, 1499, 1500, 2499):
        alone = score(Lettered(), [PREFIX], [suffixes[i]])
        assert np.array_equal([v[i] for v in scores.values()], [v[0] for v in alone.values()], equal_nan=True)


@dataclass
class Shown(Scripted):
    """A target that shows each token's log-probability, and its mean and spread over the vocabulary."""

    rows: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    n_shown: int = 0

    def token_statistics(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        assert set(prompts) <= {""}
        self.n_shown += len(prompts)
        return [torch.tensor(self.rows[text], dtype=torch.float64).reshape(-1, 3) for text in continuations]


def test_min_k_pp_averages_the_lowest_fifth_of_the_standardised_tokens() -> None:
    # Ten tokens with z = 1 eight times, then -2 and -4: the lowest two, whatever their log-probability.
    rows = [(-1.0, -2.0, 1.0)] * 8 + [(-3.0, -2.0, 0.5), (-9.0, -1.0, 2.0)]
    target = Shown({}, rows={"ab": rows})
    assert score(target, ["a"], ["b"], names=["min_k_pp"])["min_k_pp"].tolist() == [-3.0]
    few = Shown({}, rows={"ab": rows[:1]})
    assert score(few, ["a"], ["b"], names=["min_k_pp"])["min_k_pp"].tolist() == [1.0]


def test_min_k_pp_asks_once_for_each_text_and_for_nothing_else() -> None:
    target = Shown({}, rows={"ab": [(-1.0, -2.0, 1.0)], "cb": [(-4.0, -2.0, 1.0)]})
    found = score(target, ["a", "c", "a"], ["b", "b", "b"], names=["min_k_pp"])
    assert {name: values.tolist() for name, values in found.items()} == {"min_k_pp": [1.0, -2.0, 1.0]}
    assert (target.n_shown, target.asked) == (2, [])


def test_a_token_that_the_bot_is_certain_of_stands_at_its_mean() -> None:
    certain = Shown({}, rows={"ab": [(0.0, 0.0, 0.0)]})
    assert score(certain, ["a"], ["b"], names=["min_k_pp"])["min_k_pp"].tolist() == [0.0]
    for rows in ([(-200.0, 0.0, 0.0)], []):
        with pytest.raises(AuditError, match="min_k_pp is undefined"):
            score(Shown({}, rows={"ab": rows}), ["a"], ["b"], names=["min_k_pp"])


def test_a_target_that_shows_no_tokens_gives_no_min_k_pp_and_the_reason() -> None:
    target = Scripted(HOTEL)
    scores = score(target, [PREFIX], [" Hotel(area=north)"])
    assert np.isnan(scores["min_k_pp"]).all()
    assert all(np.isfinite(values).all() for name, values in scores.items() if name != "min_k_pp")
    assert "does not show" in cannot_give(target, ["ppl", "min_k_pp"])["min_k_pp"]
    assert cannot_give(target, ["ppl"]) == cannot_give(Shown({}), ["min_k_pp"]) == {}


def test_only_what_is_named_is_returned_and_what_is_unknown_refused() -> None:
    assert list(score(Scripted(HOTEL), [PREFIX], [" Hotel(area=north)"], names=["c_ppl", "ppl"])) == ["ppl", "c_ppl"]
    with pytest.raises(ValueError, match="no such scores: perplexity"):
        score(Scripted({}), [], [], names=["perplexity"])


def test_the_reference_ratio_is_the_log_of_the_ratio_of_probabilities_per_token() -> None:
    text, suffix = "Belief State: Hotel(area=north)", " Hotel(area=north)"
    base = HOTEL | {("", text): [1 / 2, 1 / 4, 1 / 16, 1 / 64]}
    ours, reference = (score(Scripted(table), [PREFIX], [suffix]) for table in (HOTEL, base))
    assert ref_ratio(ours, reference) == pytest.approx([(13 - 9) / 4 * math.log(2)])


def tiny() -> LocalTarget:
    """Return a random model of bytes whose probabilities are far from even."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({c: i for i, c in enumerate([*alphabet, "<|endoftext|>"])}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    make_tokenizer: Any = PreTrainedTokenizerFast
    config = LlamaConfig(
        vocab_size=len(alphabet) + 1,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LocalTarget(LlamaForCausalLM(config), make_tokenizer(tokenizer_object=bpe, eos_token="<|endoftext|>"))


def test_a_model_is_scored_as_its_own_table_of_probabilities_says() -> None:
    target = tiny()
    tokenizer, model = target.tokenizer, target.causal_lm.core
    suffixes = [" a b c d e f", " f e d"]
    found = score(target, ["a"] * 2, suffixes)
    for i, suffix in enumerate(suffixes):
        ids = [tokenizer.eos_token_id, *tokenizer.encode(f"a{suffix}")]
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1)[:-1]
        mean = (table.exp() * table).sum(dim=-1)
        spread = ((table.exp() * table**2).sum(dim=-1) - mean**2).sqrt()
        logprob = table[range(len(ids) - 1), ids[1:]]
        n = max(1, int(0.2 * len(logprob)))
        assert found["min_k_pp"][i] == pytest.approx(float(((logprob - mean) / spread).sort()[0][:n].mean()), abs=1e-3)
        assert found["min_k"][i] == pytest.approx(float(logprob.sort()[0][:n].mean()), abs=1e-4)
        assert found["loss"][i] == pytest.approx(-float(logprob.mean()), abs=1e-4)


def test_zlib_sees_the_text_that_is_scored_and_not_its_tokens_or_its_suffix() -> None:
    suffix = " Hotel(area=north)"
    scores = score(Scripted(HOTEL), [PREFIX], [suffix])
    n_bytes = np.log(scores["ppl"][0]) / scores["ppl_zlib"][0]
    assert round(n_bytes) == len(zlib.compress((PREFIX + suffix).encode("utf-8")))
    assert round(n_bytes) != len(zlib.compress(suffix.encode("utf-8")))


def test_raising_the_probability_of_a_text_moves_every_score_to_the_side_of_members() -> None:
    # Some tools have the sign of Min-K% wrong, and find members by their being unlikely.
    suffix = " Hotel(area=north)"
    whole, given = ("", PREFIX + suffix), (PREFIX, suffix)
    known = HOTEL | {whole: [1 / 2, 1 / 4, 1 / 2, 1 / 2], given: [1 / 2, 1 / 2]}
    before, after = (score(Scripted(table), [PREFIX], [suffix]) for table in (HOTEL, known))
    for name in ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k"):
        assert orient(name, after[name]) > orient(name, before[name])
    shy, sure = (Shown({}, rows={whole[1]: [(x, -2.0, 1.0)]}) for x in (-3.0, -1.0))
    low, high = (score(target, [PREFIX], [suffix], names=["min_k_pp"])["min_k_pp"] for target in (shy, sure))
    assert orient("min_k_pp", high) > orient("min_k_pp", low)
    assert orient("ref_ratio", ref_ratio(after, before)) > 0


def test_the_reference_of_an_adapter_is_the_same_model_with_the_adapter_off() -> None:
    from peft import LoraConfig, get_peft_model

    plain, adapted = tiny(), tiny()
    model = get_peft_model(adapted.causal_lm.core, LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    target = LocalTarget(model, adapted.tokenizer)
    suffixes = [" a b c d", " d c"]
    assert target.reference is not None
    ours, reference, base = (score(bot, ["a"] * 2, suffixes) for bot in (target, target.reference, plain))
    assert reference["loss"] == pytest.approx(base["loss"], abs=1e-4)
    assert reference["min_k_pp"] == pytest.approx(base["min_k_pp"], abs=1e-3)
    assert ref_ratio(ours, reference) == pytest.approx(base["loss"] - ours["loss"], abs=1e-4)
    assert np.all(np.abs(ref_ratio(ours, reference)) > 1e-3)
