"""Guided sampling from a local model: the same law as through single questions, whatever the tokens and batches."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
)

from hushbot.errors import AuditError, ConfigError
from hushbot.targets import guided_local, phrase_scores
from hushbot.targets.guided import Choice, Free, Guided, Law, ask_for_guided, phrase_law, token_law
from hushbot.targets.guided_law import Lot, accepted
from hushbot.targets.guided_rows import Waiting
from hushbot.targets.local import LocalTarget
from hushbot.targets.phrase_trees import PhraseTrees
from hushbot.tokens import encode, encode_with_spans
from hushbot.types import Decoding

FastTokenizer: Any = PreTrainedTokenizerFast
PLAIN = Decoding()
NARROW = Decoding(top_k=5)
EOS = "<end>"
# Tokens straddle values and delimiters ("b,"), phrases and values ("=a"), texts and phrases (",a"), words ("b a").
MERGES = [("b", ","), (",", "a"), ("=", "a"), ("b", " "), ("b ", "a"), ("a", "b"), (")", "\n")]
VALUE = re.compile(r"((?:\\[^\n]|\\(?=\n)|[^\\,)\n])*)([,)\n])")
PROMPTS = ["a", "ab b", "b "]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a BPE over nine characters whose merges respect no boundary."""
    symbols = [EOS, *"ab,=) \\\n", *("".join(pair) for pair in MERGES)]
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=MERGES))
    bpe.decoder = decoders.Fuse()
    return FastTokenizer(tokenizer_object=bpe, eos_token=EOS)


def llama(n: int) -> Any:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=n,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.15,
        )
    )


def gpt2(n: int) -> Any:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=n, n_positions=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.15)
    )


def mistral(n: int) -> Any:
    """Return a model whose attention reaches four tokens back, so that no tree can be read behind a memory."""
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=n,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            sliding_window=4,
            initializer_range=0.15,
        )
    )


@pytest.fixture(scope="module")
def make_target(tokenizer: Any) -> Callable[..., LocalTarget]:
    """Return a maker of targets around one and the same random model per kind."""

    def make(maker: Callable[[int], Any] = llama, *, batch_rows: int = 64, batch_tokens: int = 16384) -> LocalTarget:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            model = maker(len(tokenizer)).eval()
        return LocalTarget(model, tokenizer, batch_rows=batch_rows, batch_tokens=batch_tokens)

    return make


@dataclass(frozen=True)
class OneValue:
    """A slot, its value, and what comes then; phrases begin with what the tokenizer likes to pull over."""

    prompt: str = "a"
    limit: int = 3
    slots: tuple[str, ...] = ("b=", " ab=", "a)b=")

    def next(self, text: str) -> Choice | Free | None:
        body = text[len(self.prompt) :]
        if not body:
            return Choice(self.slots)
        if body in self.slots:
            return Free(",)", self.limit)
        return None if body.endswith("\n") else Choice((",a)\n", ", b)\n", ")\n"))


@dataclass(frozen=True)
class TwoChoices:
    """Phrases only."""

    def next(self, text: str) -> Choice | Free | None:
        if text.endswith("a"):
            return Choice(("b=", " ab=", "a)b="))
        return None if text.endswith("\n") else Choice((",a)\n", ", b)\n", ")\n"))


def naive_choice(target: LocalTarget, text: str, rule: Choice, decoding: Decoding, law: Law) -> Any:
    if law == "phrase":
        scores = target.logprobs([text] * len(rule.phrases), list(rule.phrases))
        return phrase_law(np.array([float(score.double().sum()) for score in scores]), decoding.temperature)
    # Tokens that all spellings begin with are certain, so the law may be worked out on whole texts.
    wholes = [text + phrase for phrase in rule.phrases]
    scores = target.logprobs([""] * len(wholes), wholes)
    return token_law(
        [encode(target.tokenizer, whole) for whole in wholes],
        [score.tolist() for score in scores],
        decoding.temperature,
    )


def naive_next(target: LocalTarget, ids: list[int], generated: list[int], decoding: Decoding) -> dict[int, float]:
    """Return the law of the next token from one pass over everything."""
    with torch.no_grad():
        logits = target.causal_lm.outer(input_ids=torch.tensor([[*ids, *generated]])).logits[0, -1].double()
    for token in set(generated):
        factor = decoding.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    kept = logits.argsort(descending=True)[: decoding.top_k or None].tolist()
    chances = torch.softmax(logits[kept] / decoding.temperature, dim=-1).tolist()
    return dict(zip(kept, chances, strict=True))


def exact_law(
    target: LocalTarget, prompt: str, grammar: Any, decoding: Decoding = PLAIN, law: Law = "phrase"
) -> dict[tuple[str, bool], float]:
    """Enumerate every text and its probability, reading whole texts anew each time."""
    found: dict[tuple[str, bool], float] = defaultdict(float)

    def walk(text: str, chance: float) -> None:
        rule = grammar.next(prompt + text)
        if rule is None:
            found[text, True] += chance
        elif isinstance(rule, Choice):
            law_here = naive_choice(target, prompt + text, rule, decoding, law)
            for phrase, share in zip(rule.phrases, law_here.tolist(), strict=True):
                walk(text + phrase, chance * share)
        else:
            start = [target.tokenizer.eos_token_id, *encode(target.tokenizer, prompt + text)]
            ended: dict[str, float] = defaultdict(float)
            write(text, start, [], rule, chance, ended)
            for piece, share in ended.items():
                walk(text + piece, share)

    def write(
        text: str, start: list[int], generated: list[int], rule: Free, chance: float, ended: dict[str, float]
    ) -> None:
        for token, share in naive_next(target, start, generated, decoding).items():
            if token == target.tokenizer.eos_token_id:
                found[text + target.tokenizer.decode(generated), False] += chance * share
                continue
            piece = target.tokenizer.decode([*generated, token])
            whole = VALUE.match(piece)
            if whole and whole[1] and whole[2] != "\n":
                ended[whole[1]] += chance * share
            elif whole or len(generated) + 1 == rule.max_new_tokens:
                found[text + (whole[1] if whole else piece), False] += chance * share
            else:
                write(text, start, [*generated, token], rule, chance * share, ended)

    walk("", 1.0)
    return dict(found)


def fits(found: Sequence[Guided], law: dict[tuple[str, bool], float], n: int) -> bool:
    """Return whether counts are those of draws from a law; rare texts are counted together."""
    counts = {(text.text, text.is_complete): text.count for text in found}
    assert counts.keys() <= law.keys()
    assert sum(counts.values()) == n
    rare = {key for key, chance in law.items() if n * chance < 5}
    observed = [counts.get(key, 0) for key in law if key not in rare]
    expected = [n * chance for key, chance in law.items() if key not in rare]
    if rare:
        observed.append(sum(counts.get(key, 0) for key in rare))
        expected.append(n * sum(law[key] for key in rare))
    assert len(observed) > 5
    return bool(chisquare(observed, np.array(expected) * n / sum(expected)).pvalue > 1e-3)


@pytest.mark.parametrize("maker", [llama, gpt2])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_draws_follow_the_exact_law(make_target: Any, maker: Any, prompt: str) -> None:
    target, n = make_target(maker), 20_000
    grammar = OneValue(prompt)
    law = exact_law(target, prompt, grammar, NARROW)
    assert sum(law.values()) == pytest.approx(1)
    assert fits(target.sample_guided([prompt], grammar, n=n, decoding=NARROW, seed=1).texts[0], law, n)


def test_single_questions_follow_the_same_law(make_target: Any) -> None:
    target, n = make_target(), 3000
    law = exact_law(target, "a", OneValue(), NARROW)
    asked = ask_for_guided(target, ["a"], OneValue(), n=n, decoding=NARROW, seed=2, law="phrase").texts[0]
    assert fits(asked, law, n)


@pytest.mark.parametrize(
    "decoding", [Decoding(temperature=0.5, top_k=4), Decoding(top_k=4, repetition_penalty=3.0)], ids=["cool", "varied"]
)
def test_temperature_and_filters_are_those_of_single_questions(make_target: Any, decoding: Decoding) -> None:
    # The penalty looks at the free piece alone, for a target that is asked question by question sees nothing else.
    target, n = make_target(), 20_000
    law = exact_law(target, "a", OneValue(), decoding)
    assert fits(target.sample_guided(["a"], OneValue(), n=n, decoding=decoding, seed=3).texts[0], law, n)
    asked = ask_for_guided(target, ["a"], OneValue(), n=3000, decoding=decoding, seed=3, law="phrase").texts[0]
    assert fits(asked, law, 3000)


def test_token_law_is_drawn_as_defined_and_is_another_one(make_target: Any) -> None:
    target, n = make_target(), 20_000
    by_token = exact_law(target, "a", OneValue(), NARROW, "token")
    by_phrase = exact_law(target, "a", OneValue(), NARROW)
    found = target.sample_guided(["a"], OneValue(), n=n, decoding=NARROW, seed=4, law="token").texts[0]
    assert fits(found, by_token, n)
    assert not fits(found, by_phrase, n)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_masses_are_those_of_whole_phrases_after_the_text(make_target: Any, prompt: str) -> None:
    target = make_target()
    grammar = OneValue(prompt)
    found = target.sample_guided([prompt], grammar, n=3000, decoding=PLAIN, seed=5).texts[0]
    n_checked = 0
    for text in found:
        if not text.is_complete:
            continue
        slot = next(slot for slot in grammar.slots if text.text.startswith(slot))
        value = VALUE.match(text.text[len(slot) :])
        assert value is not None
        for mass, so_far, rule in zip(
            text.mass,
            (prompt, prompt + slot + value[1]),
            (Choice(grammar.slots), grammar.next(prompt + slot + "b")),
            strict=True,
        ):
            assert isinstance(rule, Choice)
            scores = target.logprobs([so_far] * 3, list(rule.phrases))
            assert math.log(mass) == pytest.approx(
                math.log(sum(math.exp(float(score.double().sum())) for score in scores)), abs=1e-4
            )
            n_checked += 1
    assert n_checked > 50


def test_no_two_lots_of_draws_share_random_numbers(make_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[int, int, bytes]] = []

    def recorded(seed: int, position: int, key: bytes) -> Lot:
        keys.append((seed, position, key))
        return Lot(seed, position, key)

    monkeypatch.setattr(guided_local, "Lot", recorded)
    # `b` and then `,`, or `b,` at once, make the same text and, spelled anew, the same tokens.
    make_target().sample_guided(["a", "a"], OneValue(limit=4), n=5000, decoding=PLAIN, seed=0)
    assert len(keys) > 500
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(("batch_rows", "batch_tokens"), [(1, 16384), (7, 16384), (64, 30)])
def test_batches_change_nothing(make_target: Any, batch_rows: int, batch_tokens: int) -> None:
    def draw(target: LocalTarget) -> list[list[Guided]]:
        return target.sample_guided(["ab b", "ab b a"], OneValue("ab b"), n=300, decoding=PLAIN, seed=6).texts

    usual = draw(make_target())
    small = draw(make_target(batch_rows=batch_rows, batch_tokens=batch_tokens))
    assert [[text.text for text in texts] for texts in usual] == [[text.text for text in texts] for texts in small]
    for one, other in zip([t for ts in usual for t in ts], [t for ts in small for t in ts], strict=True):
        assert (one.count, one.is_complete) == (other.count, other.is_complete)
        assert one.mass == pytest.approx(other.mass, rel=1e-4)


def test_draws_do_not_depend_on_the_prompts_beside(make_target: Any) -> None:
    target = make_target()
    alone = target.sample_guided(["a"], OneValue(), n=200, decoding=PLAIN, seed=7).texts[0]
    beside = target.sample_guided(["a", "b a", "a"], OneValue(), n=200, decoding=PLAIN, seed=7).texts
    assert [(t.text, t.count) for t in alone] == [(t.text, t.count) for t in beside[0]]
    assert [(t.text, t.count) for t in alone] != [(t.text, t.count) for t in beside[2]]


def test_single_questions_do_not_depend_on_the_prompts_beside(make_target: Any) -> None:
    def draw(prompts: Sequence[str]) -> list[tuple[str, int]]:
        asked = ask_for_guided(make_target(), prompts, OneValue(), n=60, decoding=PLAIN, seed=7, law="phrase")
        return [(text.text, text.count) for text in asked.texts[0]]

    assert draw(["a"]) == draw(["a", "b a", "a"])


def test_temperature_zero_is_one_text_and_that_of_single_questions(make_target: Any) -> None:
    target, greedy = make_target(), Decoding(temperature=0)
    (found,) = target.sample_guided(["a"], TwoChoices(), n=40, decoding=greedy, seed=0).texts[0]
    (asked,) = ask_for_guided(target, ["a"], TwoChoices(), n=40, decoding=greedy, seed=0, law="phrase").texts[0]
    assert (found.text, found.count, found.is_complete) == (asked.text, 40, True)
    assert found.mass == pytest.approx(asked.mass, rel=1e-4)


def test_both_ways_to_sample_count_alike(make_target: Any) -> None:
    target, greedy = make_target(), Decoding(temperature=0)
    prompts = ["a", "b a", "a"]
    found = target.sample_guided(prompts, OneValue(), n=40, decoding=greedy, seed=0)
    asked = ask_for_guided(target, prompts, OneValue(), n=40, decoding=greedy, seed=0, law="phrase")
    assert (found.n_phrases, found.n_pieces) == (asked.n_phrases, asked.n_pieces)
    # `b a` is the end of a text of the grammar's prompt `a`, which has a phrase to choose and no value to write.
    assert found.n_pieces == 2 * 40


def test_phrases_are_counted_by_text_whatever_its_spelling(make_target: Any) -> None:
    found = make_target().sample_guided(["a", "a"], OneValue(limit=4), n=2000, decoding=PLAIN, seed=0)
    assert found.n_pieces == 2 * 2000
    # Behind the prompt three slots, behind each distinct value three phrases: both prompts are the same text, and so is
    # a value that was written in other tokens.
    values = {
        slot + value[1]
        for texts in found.texts
        for text in texts
        if text.is_complete
        for slot in OneValue.slots
        if text.text.startswith(slot) and (value := VALUE.match(text.text[len(slot) :]))
    }
    assert found.n_phrases == 3 + 3 * len(values)


def recording(monkeypatch: pytest.MonkeyPatch, target: LocalTarget) -> list[tuple[int, int, int]]:
    """Record (rows, longest text read before, longest tree) of every pass behind memories."""
    passes: list[tuple[int, int, int]] = []
    read = target.causal_lm.branch_features

    def branch_features(texts: Any, rows: Any) -> Any:
        passes.append((len(rows), max(texts.lengths), max(len(row.ids) for row in rows)))
        return read(texts, rows)

    monkeypatch.setattr(target.causal_lm, "branch_features", branch_features)
    return passes


@pytest.mark.parametrize("n", [500, 50_000])
def test_each_text_is_read_once_however_many_draws_it_has(
    make_target: Any, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    target = make_target()
    target.sample_guided(["a"], TwoChoices(), n=1, decoding=PLAIN, seed=0)  # measures what the model can do
    passes = recording(monkeypatch, target)
    found = target.sample_guided(["a"], TwoChoices(), n=n, decoding=PLAIN, seed=0).texts[0]
    assert sum(text.count for text in found) == n
    # One text without a slot, three with one; such small trees are read at once.
    assert sum(rows for rows, _, _ in passes) == 4


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_phrases_that_were_left_unread_are_drawn_as_often_as_they_should(
    make_target: Any, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    # Phrases of half the best one's probability together are left unread, so that many draws fall on a bound first.
    monkeypatch.setattr(phrase_scores, "_CPU_TOKENS_A_PASS", 0)
    monkeypatch.setattr(guided_local, "MARGIN", math.log(2) / temperature)
    n_completed, n = 0, 20_000

    def counted(*args: Any) -> dict[int, int]:
        nonlocal n_completed
        n_completed += 1
        return accepted(*args)

    monkeypatch.setattr(guided_local, "accepted", counted)
    target, grammar, decoding = make_target(), OneValue("ab b"), Decoding(top_k=5, temperature=temperature)
    law = exact_law(target, "ab b", grammar, decoding)
    assert fits(target.sample_guided(["ab b"], grammar, n=n, decoding=decoding, seed=1).texts[0], law, n)
    assert n_completed > 5


def test_memory_is_bounded_by_batch_tokens(make_target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target(batch_tokens=24)
    target.sample_guided(["a"], TwoChoices(), n=1, decoding=PLAIN, seed=0)
    passes = recording(monkeypatch, target)
    held: list[int] = []
    forget = Waiting.forget

    def watched(self: Waiting) -> None:
        forget(self)
        held.append(sum(map(len, self.remembered())))

    monkeypatch.setattr(Waiting, "forget", watched)
    found = target.sample_guided(["a"], OneValue(limit=4), n=10_000, decoding=PLAIN, seed=0).texts[0]
    assert sum(text.count for text in found) == 10_000
    assert 24 < max(held) <= 2 * 24  # 108 if nothing were forgotten
    assert max(rows for rows, _, _ in passes) > 1
    assert all(rows == 1 or rows * (text + tree) <= 24 for rows, text, tree in passes)


def test_a_model_that_cannot_branch_is_asked_question_by_question(make_target: Any) -> None:
    target = make_target(mistral)
    found = target.sample_guided(["a"], OneValue(), n=50, decoding=PLAIN, seed=8)
    assert found == ask_for_guided(target, ["a"], OneValue(), n=50, decoding=PLAIN, seed=8, law="phrase")
    with pytest.raises(ConfigError, match="shows its tokens"):
        target.sample_guided(["a"], OneValue(), n=1, decoding=PLAIN, seed=8, law="token")


def test_a_text_longer_than_the_context_is_an_error(make_target: Any) -> None:
    target = make_target()
    prompt = "a" * 58
    # 59 tokens with the start token and 6 for a phrase or a value are one too many; the last new one of a value is
    # never read back.
    with pytest.raises(AuditError, match=r"prompt 0: 65 tokens .* context of 64"):
        target.sample_guided([prompt], OneValue(prompt, slots=("=" * 6,)), n=1, decoding=PLAIN, seed=0)

    @dataclass(frozen=True)
    class OneFree:
        limit: int

        def next(self, text: str) -> Choice | Free | None:
            return Free(",", self.limit) if text == prompt else None

    assert target.sample_guided([prompt], OneFree(6), n=1, decoding=PLAIN, seed=0).texts[0][0].count == 1
    with pytest.raises(AuditError, match="prompt 0: 65 tokens"):
        target.sample_guided([prompt], OneFree(7), n=1, decoding=PLAIN, seed=0)


def test_weights_that_are_no_numbers_are_an_error(make_target: Any) -> None:
    target = make_target()
    target.sample_guided(["a"], OneValue(), n=1, decoding=PLAIN, seed=0)
    with torch.no_grad():
        target.causal_lm.outer.model.norm.weight.fill_(math.nan)
    with pytest.raises(AuditError, match="not finite"):
        target.sample_guided(["a"], OneValue(), n=1, decoding=PLAIN, seed=0)


@pytest.mark.parametrize("text", ["a", "ab b", "b ", "a\nb", "ab", ""])
@pytest.mark.parametrize("phrase", ["b=", ",a)\n", " ab=", "a"])
def test_text_and_phrase_are_spelled_as_one(tokenizer: Any, text: str, phrase: str) -> None:
    trees = PhraseTrees(tokenizer)
    ids = [0, *encode(tokenizer, text)]
    head, phrases = trees.after(text, ids, (phrase, "=" * 3))
    assert [*head, *phrases.paths[0]] == [0, *encode(tokenizer, text + phrase)]
    assert [*head, *phrases.paths[1]] == [0, *encode(tokenizer, text + "===")]
    n_counted = len(phrases.paths[0]) - phrases.firsts[0]
    assert n_counted == sum(end > len(text) for _, end in encode_with_spans(tokenizer, text + phrase).spans)


def test_tokens_are_kept_only_where_they_are_the_tokenizers_own(tokenizer: Any) -> None:
    trees = PhraseTrees(tokenizer)
    own = [0, *encode(tokenizer, "a\nab=")]
    assert trees.respelled("a\nab=", own) is own
    a, b = (tokenizer.get_vocab()[c] for c in "ab")
    foreign = [*own[:-2], a, b, own[-1]]  # `ab` in two tokens
    assert trees.respelled("a\nab=", foreign) == own


@dataclass(frozen=True)
class Words:
    """A value of some words, and what comes then."""

    def next(self, text: str) -> Choice | Free | None:
        if text == "a=":
            return Free(",)", 6)
        return None if text.endswith("\n") else Choice((", a=\n", ")\n"))


def test_a_value_of_several_words_is_spelled_anew_before_its_last_word_too(make_target: Any) -> None:
    # Words are spelled alone here, so that the last word says nothing of those before it.
    symbols = [EOS, *"ab,=) \\\n", "ab"]
    bpe = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[("a", "b")]))
    bpe.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    bpe.decoder = decoders.Fuse()
    tokenizer = FastTokenizer(tokenizer_object=bpe, eos_token=EOS)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        target = LocalTarget(llama(len(tokenizer)).eval(), tokenizer)
    n_words = 0
    for text in target.sample_guided(["a="], Words(), n=20_000, decoding=PLAIN, seed=0).texts[0]:
        value = VALUE.match(text.text)
        if not text.is_complete or value is None or "ab " not in value[1]:
            continue
        scores = target.logprobs([f"a={value[1]}"] * 2, [", a=\n", ")\n"])
        mass = sum(math.exp(float(score.double().sum())) for score in scores)
        assert math.log(text.mass[-1]) == pytest.approx(math.log(mass), abs=1e-4)
        n_words += 1
    assert n_words > 10


def test_phrases_are_spelled_with_all_words_where_tokens_reach_over_blanks() -> None:
    # `b cd` is one token once `d` follows, though `b c` and ` cd` alone are not.
    scores = {EOS: 0.0, "b cd": -1.0, " c": -1.0, **dict.fromkeys("bcd ", -5.0)}
    tokenizer = FastTokenizer(tokenizer_object=Tokenizer(models.Unigram(list(scores.items()), 0)), eos_token=EOS)
    own = encode(tokenizer, "b c")
    assert tokenizer.convert_ids_to_tokens(own) == ["b", " c"]
    head, phrases = PhraseTrees(tokenizer).after("b c", [0, *own], ("d",))
    assert [*head, *phrases.paths[0]] == [0, *encode(tokenizer, "b cd")]
    assert tokenizer.convert_ids_to_tokens(phrases.paths[0]) == ["b cd"]
