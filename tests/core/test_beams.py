"""Beam search against transformers' own, and beam sampling against probabilities that can be added up by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from hushbot.errors import AuditError, ConfigError
from hushbot.targets.beams import BeamSearcher
from hushbot.targets.causal_lm import CausalLM
from hushbot.targets.local import LocalTarget
from hushbot.types import Decoding

PROMPT = "Belief State: Restaurant("
N_NEW = 7


@pytest.fixture(scope="module")
def target(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    model = make_small_model()
    with torch.no_grad():  # an untrained model is nearly indifferent, so that nothing would be told apart
        for parameter in model.parameters():
            parameter.mul_(6)
    return LocalTarget(model, small_tokenizer, batch_rows=12)


def search(target: LocalTarget, decoding: Decoding, *, n: int, seed: int = 0, n_new: int = N_NEW) -> list[str]:
    return target.sample([PROMPT], n=n, max_new_tokens=n_new, decoding=decoding, seed=seed)[0]


def line_breaks(tokenizer: Any) -> list[int]:
    return [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])]


STOPS = tuple("aeinorst=")


def ending(tokenizer: Any, stops: Sequence[str]) -> list[int]:
    return [i for i in range(len(tokenizer)) if not set(stops).isdisjoint(tokenizer.decode([i]))]


def before(text: str, stops: Sequence[str]) -> str:
    return text[: min((at for at in map(text.find, stops) if at >= 0), default=len(text))]


def of_transformers(
    target: LocalTarget, n_beams: int, *, ends: Sequence[int], length_penalty: float = 1.0, warpers: Sequence[Any] = ()
) -> tuple[list[str], list[float]]:
    """Return the texts and scores of the library's own beam search, where its texts end at some tokens."""
    tokenizer, model = target.tokenizer, target.causal_lm.outer
    ids = torch.tensor([target._encoded([PROMPT], 1, [N_NEW])[0]])
    with torch.inference_mode():
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=n_beams,
            num_return_sequences=n_beams,
            do_sample=False,
            early_stopping=False,
            length_penalty=length_penalty,
            max_new_tokens=N_NEW,
            eos_token_id=[*ends, tokenizer.eos_token_id],
            pad_token_id=tokenizer.eos_token_id,
            logits_processor=LogitsProcessorList(warpers),
            renormalize_logits=True,
            return_dict_in_generate=True,
            output_scores=True,
        )
    rows = [row[ids.shape[1] :] for row in found.sequences]
    return [tokenizer.decode(row, skip_special_tokens=True) for row in rows], found.sequences_scores.tolist()


@pytest.mark.parametrize("n_beams", [2, 5])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_beam_search_is_that_of_transformers(
    target: LocalTarget, n_beams: int, length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    result = BeamSearcher._result
    monkeypatch.setattr(BeamSearcher, "_result", lambda self, found: results.append(found) or result(self, found))
    ends = line_breaks(target.tokenizer)
    texts, scores = of_transformers(target, n_beams, ends=ends, length_penalty=length_penalty)
    ours = search(target, Decoding(num_beams=n_beams, length_penalty=length_penalty), n=n_beams)
    assert ours == [text.split("\n")[0] for text in texts]
    assert [score for score, _ in results[0].finished[0]] == pytest.approx(scores, abs=1e-4)


def test_a_law_holds_before_beams_compare_as_in_transformers(target: LocalTarget) -> None:
    warpers = [TemperatureLogitsWarper(2.5), TopKLogitsWarper(40), TopPLogitsWarper(0.9), TypicalLogitsWarper(0.8)]
    texts, _ = of_transformers(target, 4, ends=line_breaks(target.tokenizer), warpers=warpers)
    law = Decoding(num_beams=4, temperature=2.5, top_k=40, top_p=0.9, typical_p=0.8)
    ours = search(target, law, n=4)
    assert ours == [text.split("\n")[0] for text in texts]
    assert ours != search(target, Decoding(num_beams=4), n=4)


def make_ender(model: Any, tokenizer: Any, *, scale: float, factor: float) -> LocalTarget:
    """Return a bot whose likeliest tokens nearly all end a text, as `STOPS` are in them."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
        model.lm_head.weight[ending(tokenizer, STOPS)] *= factor
    return LocalTarget(model, tokenizer)


@pytest.fixture(scope="module")
def ender(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    return make_ender(make_small_model(), small_tokenizer, scale=1, factor=3)


@pytest.fixture(scope="module")
def sharp_ender(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    return make_ender(make_small_model(), small_tokenizer, scale=6, factor=1.5)


@pytest.mark.parametrize("length_penalty", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("n_beams", [2, 3, 5])
def test_where_nearly_all_that_is_likely_ends_others_go_on(
    ender: LocalTarget, n_beams: int, length_penalty: float
) -> None:
    """Hardly any of the first 2 x beams candidates goes on; the library, too, looks further down."""
    ends = ending(ender.tokenizer, STOPS)
    texts, _ = of_transformers(ender, n_beams, ends=ends, length_penalty=length_penalty)
    ours = search(ender, Decoding(num_beams=n_beams, length_penalty=length_penalty, stop=STOPS), n=n_beams)
    assert ours == [before(text, STOPS) for text in texts]


def test_with_room_for_every_text_the_best_one_is_found(target: LocalTarget, small_tokenizer: Any) -> None:
    """Two tokens after the prompt, all pairs scored one by one."""
    best = search(target, Decoding(num_beams=len(small_tokenizer)), n=1, n_new=2)[0]
    ends = {*line_breaks(small_tokenizer), small_tokenizer.eos_token_id}
    ids = target._encoded([PROMPT], 1, [2])[0]
    with torch.inference_mode():
        first = torch.log_softmax(target.causal_lm.outer(torch.tensor([ids])).logits[0, -1].double(), -1)
        rows = torch.tensor([[*ids, token] for token in range(len(small_tokenizer))])
        second = torch.log_softmax(target.causal_lm.outer(rows).logits[:, -1].double(), -1)
    scores = {(a,): float(first[a]) for a in ends}
    for a, b in itertools.product(range(len(small_tokenizer)), repeat=2):
        if a not in ends:
            scores[a, b] = float(first[a] + second[a, b]) / 2
    tokens = max(scores, key=lambda key: scores[key])
    kept = [token for token in tokens if token not in ends]
    assert best == small_tokenizer.decode(kept)


def test_groups_without_a_penalty_all_find_the_same_and_with_one_they_differ(target: LocalTarget) -> None:
    alike = search(target, Decoding(num_beams=3, beam_groups=3), n=3)
    assert len(set(alike)) == 1
    assert alike[0] == search(target, Decoding(temperature=0), n=1)[0]
    told_apart = search(target, Decoding(num_beams=3, beam_groups=3, diversity_penalty=100.0), n=3)
    assert len({text[:1] for text in told_apart}) == 3
    assert alike[0] in told_apart  # the first group pays nothing


Found = list[tuple[float, tuple[int, ...]]]


def naive_groups(target: LocalTarget, decoding: Decoding, ends: Collection[int], n_new: int) -> list[str]:
    """Search in groups with whole sequences and dictionaries."""
    ids = target._encoded([PROMPT], 1, [n_new])[0]
    size = decoding.num_beams // decoding.beam_groups
    groups: list[dict[tuple[int, ...], float]] = [{(): 0.0} for _ in range(decoding.beam_groups)]
    found: list[Found] = [[] for _ in groups]
    for step in range(1, n_new + 1):
        taken: Counter[int] = Counter()
        for i, group in enumerate(groups):
            candidates: dict[tuple[int, ...], float] = {}
            for tokens, score in group.items():
                with torch.inference_mode():
                    logits = target.causal_lm.outer(torch.tensor([[*ids, *tokens]])).logits[0, -1].double()
                for token, log in enumerate(torch.log_softmax(logits, -1).tolist()):
                    candidates[*tokens, token] = score + log
            ranked = sorted(candidates, key=lambda key: taken[key[-1]] * decoding.diversity_penalty - candidates[key])
            ended = [key for key in ranked[:size] if key[-1] in ends or step == n_new]
            found[i] = sorted([*found[i], *((-candidates[key] / step, key) for key in ended)])[:size]
            going = [key for key in ranked if key[-1] not in ends][:size] if step < n_new else []
            if len(found[i]) == size and going and -found[i][-1][0] >= max(candidates[key] for key in going) / step:
                going = []
            groups[i] = {key: candidates[key] for key in going}
            taken.update(key[-1] for key in groups[i])
    ranked_texts = sorted(item for texts in found for item in texts)
    whole = [target.tokenizer.decode(list(tokens), skip_special_tokens=True) for _, tokens in ranked_texts]
    return [before(text, decoding.stop) for text in whole]


@pytest.mark.parametrize("penalty", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("stops", [(), ("(", "a", "i", "n"), STOPS], ids="".join)
def test_groups_are_those_of_a_naive_search(
    target: LocalTarget, ender: LocalTarget, sharp_ender: LocalTarget, penalty: float, stops: tuple[str, ...]
) -> None:
    decoding = Decoding(num_beams=6, beam_groups=3, diversity_penalty=penalty, stop=stops)
    for bot in (target, ender, sharp_ender):
        texts = search(bot, decoding, n=6, n_new=5)
        ends = {*ending(bot.tokenizer, stops), bot.tokenizer.eos_token_id}
        assert texts == naive_groups(bot, decoding, ends, 5)
        first = search(bot, Decoding(num_beams=2, stop=stops), n=2, n_new=5)
        assert set(first) <= set(texts)  # the first group is a plain search


def best_of_drawn(scores: dict[tuple[int, ...], float], n_drawn: int, n_kept: int) -> Counter[tuple[Any, ...]]:
    """Return the probability of each list of best keys of some that are drawn one by one, none of them twice."""
    weights = {key: math.exp(score) for key, score in scores.items()}
    chances: Counter[tuple[Any, ...]] = Counter()
    for order in itertools.permutations(weights, n_drawn):
        chance, left = 1.0, sum(weights.values())
        for key in order:
            chance *= weights[key] / left
            left -= weights[key]
        chances[tuple(sorted(order, key=lambda key: -scores[key])[:n_kept])] += chance  # type: ignore[assignment]
    return chances


def test_two_steps_of_sampled_beams_have_their_exact_law(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any
) -> None:
    """Of 5 tokens 4 are drawn and the best 2 go on; of their 10 successors 4 are drawn and the best 2 are given."""
    target, kept, n = LocalTarget(make_small_model(), small_tokenizer), 5, 1500
    ids = target._encoded([PROMPT], 1, [2])[0]

    def successors(tokens: tuple[int, ...], score: float) -> dict[tuple[int, ...], float]:
        with torch.inference_mode():
            top = target.causal_lm.outer(torch.tensor([[*ids, *tokens]])).logits[0, -1].double().topk(kept)
        logs = torch.log_softmax(top.values / 0.3, -1).tolist()
        return {(*tokens, token): score + log for token, log in zip(top.indices.tolist(), logs, strict=True)}

    first = successors((), 0.0)
    expected: Counter[tuple[str, ...]] = Counter()
    for beams, chance in best_of_drawn(first, 4, 2).items():
        second = {key: score for beam in beams for key, score in successors(beam, first[beam]).items()}
        for pair, share in best_of_drawn(second, 4, 2).items():
            expected[tuple(small_tokenizer.decode(list(key)) for key in pair)] += chance * share  # type: ignore[assignment]
    assert not any(small_tokenizer.eos_token in text for pair in expected for text in pair)
    decoding = Decoding(num_beams=2, samples_beams=True, top_k=kept, temperature=0.3, stop=())
    (texts,) = target.sample([PROMPT], n=2 * n, max_new_tokens=2, decoding=decoding, seed=4)
    counts = Counter(zip(texts[::2], texts[1::2], strict=True))
    assert set(counts) <= set(expected)
    frequent = [pair for pair, chance in expected.items() if n * chance >= 5]
    assert len(frequent) > 8
    observed = [counts[pair] for pair in frequent]
    wanted = [n * expected[pair] for pair in frequent]
    assert chisquare([*observed, n - sum(observed)], [*wanted, n - sum(wanted)]).pvalue > 0.01


def test_sampled_beams_are_drawn_without_replacement(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any
) -> None:
    """One step with two beams draws four tokens and keeps the two best: the first beam's law in closed form."""
    target = LocalTarget(make_small_model(), small_tokenizer)
    ids = target._encoded([PROMPT], 1, [1])[0]
    kept = 5
    with torch.inference_mode():
        logits = target.causal_lm.outer(torch.tensor([ids])).logits[0, -1].double()
    top = logits.topk(kept)
    p = torch.softmax(top.values, -1).tolist()
    # The best of four out of five is the best of all unless that one is the one left out.
    left_out = 0.0
    for order in itertools.permutations(range(kept), 4):
        if 0 not in order:
            chance, rest = 1.0, 1.0
            for i in order:
                chance *= p[i] / rest
                rest -= p[i]
            left_out += chance
    decoding = Decoding(num_beams=2, samples_beams=True, top_k=kept)
    n = 1500
    texts = target.sample([PROMPT], n=2 * n, max_new_tokens=1, decoding=decoding, seed=3)[0]
    best = small_tokenizer.decode([int(top.indices[0])])
    n_second = sum(text != best for text in texts[::2])
    sd = math.sqrt(n * left_out * (1 - left_out))
    assert abs(n_second - n * left_out) < 4 * sd + 1


def test_draws_belong_to_their_search_whatever_the_batch(target: LocalTarget) -> None:
    decoding = Decoding(num_beams=3, samples_beams=True, temperature=2)
    texts = search(target, decoding, n=12, seed=5)
    assert search(target, decoding, n=6, seed=5) == texts[:6]
    together = target.sample(["User: hello\n", PROMPT], n=12, max_new_tokens=N_NEW, decoding=decoding, seed=5)
    alone = BeamSearcher(target.causal_lm, target.tokenizer, decoding, N_NEW, 5, batch_rows=3, batch_tokens=10**6)
    with target.causal_lm.reading():
        again = alone.run(target._encoded(["User: hello\n", PROMPT], 12, [N_NEW] * 2), 12)
    assert again == together
    assert len(Counter(texts)) > 3


def test_batches_stay_within_rows_and_tokens_and_change_nothing(
    target: LocalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    read = CausalLM.branch_features

    def seen(self: CausalLM, texts: Any, rows: Any) -> Any:
        asked.append((len(rows), 1 + max(texts.lengths)))
        return read(self, texts, rows)

    monkeypatch.setattr(CausalLM, "branch_features", seen)
    decoding = Decoding(num_beams=3, samples_beams=True, stop=())
    prompts = [PROMPT, "User: hello, I am looking for a hotel in the north of the town\n" * 3, "User: hello\n"]
    lengths = [len(ids) for ids in target._encoded(prompts, 1, [N_NEW] * 3)]
    found = []

    def most(rows: int, tokens: int) -> tuple[int, int]:
        bounded = LocalTarget(target.causal_lm, target.tokenizer, batch_rows=rows, batch_tokens=tokens)
        with target.causal_lm.reading():
            assert target.causal_lm.supports_branches(200)  # asks the model, too
        asked.clear()
        found.append(bounded.sample(prompts, n=12, max_new_tokens=N_NEW, decoding=decoding, seed=2))
        return max(n for n, _ in asked), max(n * length for n, length in asked)

    assert most(14, 10**6)[0] == 12
    assert most(64, 10**6)[0] == 36
    bound = 7 * (max(lengths) + N_NEW)
    assert most(64, bound)[1] <= bound
    assert most(64, 3 * max(lengths))[0] > 3  # short prompts fit in where a long one fills the memory
    assert most(1, 1)[0] == 3  # a search is never cut
    assert all(texts == found[0] for texts in found)


def test_a_prompt_that_stands_twice_is_searched_with_its_own_numbers(target: LocalTarget) -> None:
    decoding = Decoding(num_beams=2, samples_beams=True, temperature=2)
    one, other = target.sample([PROMPT, PROMPT], n=8, max_new_tokens=N_NEW, decoding=decoding, seed=1)
    assert one != other
    assert search(target, decoding, n=8, seed=1) == one
    assert search(target, decoding, n=8, seed=2) != one


def test_a_search_with_too_few_hypotheses_repeats_its_last(target: LocalTarget) -> None:
    greedy = search(target, Decoding(temperature=0), n=1)
    for decoding in (Decoding(num_beams=3, top_k=1), Decoding(num_beams=3, temperature=0)):
        assert search(target, decoding, n=3) == greedy * 3


def test_logits_that_are_not_finite_are_an_error(
    make_small_model: Callable[[], nn.Module], small_tokenizer: Any
) -> None:
    model = make_small_model()
    broken = LocalTarget(model, small_tokenizer)
    search(broken, Decoding(num_beams=2), n=1)
    with torch.no_grad():
        model.lm_head.weight[5] = math.nan  # type: ignore[union-attr,operator]
    for decoding in (Decoding(num_beams=2), Decoding(num_beams=2, samples_beams=True)):
        with pytest.raises(AuditError, match="not finite"):
            search(broken, decoding, n=2)


@pytest.mark.parametrize(
    ("n_new", "decoding", "message"),
    [(0, Decoding(num_beams=2), "max_new_tokens=0"), (3, Decoding(num_beams=2, stop=("",)), "empty string")],
)
def test_settings_without_sense_are_refused(target: LocalTarget, n_new: int, decoding: Decoding, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search(target, decoding, n=1, n_new=n_new)


def test_searches_that_draw_nothing_repeat_their_beams(target: LocalTarget) -> None:
    texts = search(target, Decoding(num_beams=2), n=5)
    assert texts == [texts[0], texts[1], texts[0], texts[1], texts[0]]
    both = target.sample([PROMPT, PROMPT], n=2, max_new_tokens=N_NEW, decoding=Decoding(num_beams=2), seed=0)
    assert both[0] == both[1] == texts[:2]


def test_a_text_ends_before_its_stop_string(target: LocalTarget) -> None:
    (whole,) = search(target, Decoding(num_beams=2, stop=("\n",)), n=1)
    cut = whole[2:3]
    assert cut
    assert all(cut not in text for text in search(target, Decoding(num_beams=2, stop=(cut,)), n=2))


def test_a_search_cannot_be_ended_early_by_its_caller(target: LocalTarget) -> None:
    from hushbot.targets.sampler import Until

    until = Until(",", lambda position, text: True)
    with pytest.raises(ConfigError, match="num_beams=2"):
        target.sample_until([PROMPT], until, n=1, max_new_tokens=3, decoding=Decoding(num_beams=2), seed=0)
