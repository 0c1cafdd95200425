"""Phrases behind texts, read as far as it matters: true scores, true bounds, nothing read twice."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hushbot.errors import AuditError
from hushbot.targets import phrase_scores
from hushbot.targets.guided_law import phrase_law
from hushbot.targets.local import LocalTarget
from hushbot.targets.phrase_scores import End, Reading, begin, read_on
from hushbot.targets.phrase_trees import PhraseTrees
from hushbot.targets.token_store import StoredTexts, TokenStore
from hushbot.targets.token_tree import leaf
from hushbot.tokens import encode

FastTokenizer: Any = PreTrainedTokenizerFast
SLOTS = (", abba=", ", abab=", ", ba=", ", baab=", ")")
TEXTS = ["a=b", "b", "ab=ba", "b=a"]
PHRASES = [SLOTS, (" a(", " b(", "\n"), (")",), SLOTS]
N_TOKENS = 13 + 4 + 1 + 13
"""Of their trees: the last of each text; `, `, `abba`, the end of `abab`, `ba` and the end of `baab`; ` a` and `b`."""


@pytest.fixture(scope="module")
def target() -> LocalTarget:
    """Return a random model that reads characters."""
    symbols = ["<end>", *"ab,=()\n "]
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    bpe.decoder = decoders.Fuse()
    config = LlamaConfig(
        vocab_size=len(symbols),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model: Any = LlamaForCausalLM(config)
    return LocalTarget(model.eval(), FastTokenizer(tokenizer_object=bpe, eos_token="<end>"))


@pytest.fixture(params=[False, True], ids=["", "last tokens read"])
def readings(
    target: LocalTarget, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> tuple[TokenStore, list[Reading]]:
    """Return phrases of which nothing was read but perhaps the token before; no tree is too small to read in parts."""
    monkeypatch.setattr(phrase_scores, "_CPU_TOKENS_A_PASS", 0)
    trees, store = PhraseTrees(target.tokenizer), TokenStore()
    ids = [[0, *encode(target.tokenizer, text)] for text in TEXTS]
    plans = [trees.after(text, own, phrases)[1] for text, own, phrases in zip(TEXTS, ids, PHRASES, strict=True)]
    with target.causal_lm.reading():
        read = target.causal_lm.prefill(ids)
        slots = [store.add_text(one.memory, len(own) - 1) for one, own in zip(read, ids, strict=True)]
        texts, ends = StoredTexts(store, slots), [End(own[-1]) for own in ids]
        if request.param:
            features, read_at = target.causal_lm.branch_features(texts, [leaf(end.token) for end in ends])
            ends = [End(*one) for one in zip([own[-1] for own in ids], read_at, features, strict=True)]
        return store, begin(target.causal_lm, texts, ends, plans)


def n_tokens_read(readings: list[Reading]) -> int:
    return sum(int((reading.slots > 0).sum()) for reading in readings)


def naive_scores(target: LocalTarget) -> list[list[float]]:
    return [
        [float(score.double().sum()) for score in target.logprobs([text] * len(phrases), list(phrases))]
        for text, phrases in zip(TEXTS, PHRASES, strict=True)
    ]


def advance(target: LocalTarget, store: TokenStore, readings: list[Reading], margin: float, most: int = 999) -> int:
    """Read on; return how many tokens were read."""
    before = store.n_tokens
    with target.causal_lm.reading():
        read_on(target.causal_lm, store, readings, margin=margin, batch_tokens=most)
    return store.n_tokens - before


def by_text(readings: list[Reading]) -> list[tuple[list[float], list[bool]]]:
    """Return per text the bounds of its phrases, and which were read to their end."""
    found = {
        number: (bounds, is_whole)
        for reading in readings
        for number, bounds, is_whole in zip(
            reading.members, reading.bounds.tolist(), reading.is_whole.tolist(), strict=True
        )
    }
    return [found[number] for number in range(len(TEXTS))]


def test_without_a_margin_all_phrases_have_their_scores(target: LocalTarget, readings: Any) -> None:
    store, all_readings = readings
    assert [reading.members for reading in all_readings] == [[0, 3], [1], [2]]
    assert n_tokens_read(all_readings) in {0, len(TEXTS)}
    assert n_tokens_read(all_readings) + advance(target, store, all_readings, math.inf) == N_TOKENS
    for (bounds, is_whole), wanted in zip(by_text(all_readings), naive_scores(target), strict=True):
        assert all(is_whole)
        assert bounds == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("most", [999, 8])
@pytest.mark.parametrize("margin", [0.5, 2.0, 200.0])
def test_what_is_left_unread_is_below_the_margin(target: LocalTarget, readings: Any, margin: float, most: int) -> None:
    store, all_readings = readings
    n_read = n_tokens_read(all_readings) + advance(target, store, all_readings, margin, most)
    n_unread = 0
    for (bounds, is_whole), wanted in zip(by_text(all_readings), naive_scores(target), strict=True):
        for bound, score, is_read in zip(bounds, wanted, is_whole, strict=True):
            if is_read:
                assert bound == pytest.approx(score, abs=1e-4)
            else:
                assert score < bound <= max(wanted) - margin + 1e-4
                n_unread += 1
    assert (n_unread > 0) == (margin < 200)
    assert n_read == n_tokens_read(all_readings) <= N_TOKENS
    # What is asked for later is read then, and nothing twice.
    alone = all_readings[0].alone(1)
    n_read += advance(target, store, [alone], math.inf, most)
    assert by_text(all_readings)[3][0] == pytest.approx(naive_scores(target)[3], abs=1e-4)
    assert alone.members == [3]
    assert n_read + advance(target, store, all_readings, math.inf, most) == N_TOKENS
    for (bounds, _), wanted in zip(by_text(all_readings), naive_scores(target), strict=True):
        assert bounds == pytest.approx(wanted, abs=1e-4)
    slots = [slot for reading in all_readings for slot in reading.slots.flatten().tolist()]
    assert len(set(slots)) == len(slots) == N_TOKENS


def test_a_batch_of_few_tokens_is_read_at_once(
    target: LocalTarget, readings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, all_readings = readings
    monkeypatch.setattr(phrase_scores, "_CPU_TOKENS_A_PASS", N_TOKENS)
    n_known = n_tokens_read(all_readings)
    n_read = n_known + advance(target, store, all_readings, 0.5)
    # Where the first tokens are scored already, what they rule out is not read at all.
    assert n_read < N_TOKENS if n_known else n_read == N_TOKENS


def test_what_follows_a_token_that_was_read_is_scored_without_reading(target: LocalTarget, readings: Any) -> None:
    _, all_readings = readings
    if not n_tokens_read(all_readings):
        pytest.skip("no token was read")
    (closing,) = (reading for reading in all_readings if reading.plan.paths == [[target.tokenizer.vocab[")"]]])
    assert closing.is_whole.all()
    assert closing.bounds[0] == pytest.approx(naive_scores(target)[2], abs=1e-4)


def test_scores_that_are_no_numbers_come_to_an_end(
    target: LocalTarget, readings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, all_readings = readings
    with torch.no_grad():
        weight = target.causal_lm.outer.model.norm.weight
        kept = weight.clone()
        weight.fill_(math.nan)
        advance(target, store, all_readings, 0.5)
        weight.copy_(kept)
    with pytest.raises(AuditError, match="not finite"):
        phrase_law(all_readings[0].bounds, 1.0)
