"""Beam search against transformers' own, and beam sampling against probabilities that can be added up by hand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hushbot.errors import ConfigError
from hushbot.targets.beams import BeamSearcher
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


@pytest.mark.parametrize("n_beams", [2, 5])
@pytest.mark.parametrize("length_penalty", [1.0, 0.0])
def test_beam_search_is_that_of_transformers(target: LocalTarget, n_beams: int, length_penalty: float) -> None:
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
            eos_token_id=[*line_breaks(tokenizer), tokenizer.eos_token_id],
            pad_token_id=tokenizer.eos_token_id,
        )
    whole = [tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=True) for row in found]
    theirs = [text.split("\n")[0] for text in whole]
    assert search(target, Decoding(num_beams=n_beams, length_penalty=length_penalty), n=n_beams) == theirs


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
    alone = BeamSearcher(target.causal_lm, target.tokenizer, decoding, N_NEW, 5, batch_rows=3)
    with target.causal_lm.reading():
        again = alone.run(target._encoded(["User: hello\n", PROMPT], 12, [N_NEW] * 2), 12)
    assert again == together
    assert len(Counter(texts)) > 3


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
