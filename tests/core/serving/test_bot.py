"""A served bot: its scores and draws are the local target's, token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from hushbot.errors import ConfigError
from hushbot.protocols import Target
from hushbot.serving.answers import Choice
from hushbot.serving.bot import LocalBot, OffByOneBot
from hushbot.serving.requests import CompletionRequest, RequestError
from hushbot.targets.guarded import GuardedTarget
from hushbot.targets.local import LocalTarget
from hushbot.tokens import encode
from hushbot.types import Decoding

PAIRS = (
    ("Belief State:", " Restaurant(name=golden wok)"),
    ("", "User: is there a pizza hut?\nBelief State:"),
    ("User: caf", "é and 你好\n"),
    ("User: 你", "好 x"),
    ("Response: Golden W", "ok"),
)


def echoed(bot: LocalBot, *texts: str, n_top: int = 1) -> list[Choice]:
    return bot.complete(CompletionRequest(prompts=texts, max_tokens=0, echo=True, n_top=n_top))


def continuation_scores(choice: Choice, prompt: str) -> list[float | None]:
    """Apply the rule that clients apply: what ends behind the prompt belongs to the continuation."""
    at, scores = 0, []
    for score in choice.scores or ():
        at += len(score.text)
        if at > len(prompt):
            scores.append(score.logprob)
    return scores


@pytest.fixture(scope="module")
def bot(local: LocalTarget) -> LocalBot:
    return LocalBot(local)


@pytest.mark.parametrize(("prompt", "continuation"), PAIRS)
def test_echoed_scores_are_the_local_ones(bot: LocalBot, local: LocalTarget, prompt: str, continuation: str) -> None:
    (choice,) = echoed(bot, prompt + continuation)
    (expected,) = local.logprobs([prompt], [continuation])
    assert continuation_scores(choice, prompt) == pytest.approx(expected.tolist(), abs=1e-5)
    assert choice.text == prompt + continuation


def test_an_echo_begins_with_the_start_token_and_spells_the_text(bot: LocalBot, local: LocalTarget) -> None:
    text = "User: 你好, café\nBelief State: Hotel(area=north)"
    (choice,) = echoed(bot, text)
    scores = choice.scores or ()
    assert (scores[0].text, scores[0].logprob, scores[0].top) == ("", None, ())
    assert "".join(score.text for score in scores) == text
    assert len(scores) == 1 + len(encode(local.tokenizer, text))
    assert all(score.logprob is not None and score.logprob <= 0 for score in scores[1:])


def test_one_batch_scores_as_single_requests_do(bot: LocalBot) -> None:
    texts = [prompt + continuation for prompt, continuation in PAIRS]
    for text, together in zip(texts, echoed(bot, *texts), strict=True):
        (alone,) = echoed(bot, text)
        assert [score.logprob for score in together.scores or ()][1:] == pytest.approx(
            [score.logprob for score in alone.scores or ()][1:], abs=1e-5
        )


def test_the_best_tokens_are_the_models_own(bot: LocalBot, local: LocalTarget) -> None:
    text = "User: is there"
    (choice,) = echoed(bot, text, n_top=3)
    ids = [local.tokenizer.eos_token_id, *encode(local.tokenizer, text)]
    with torch.no_grad():
        table = torch.log_softmax(local.causal_lm.core(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    for i, score in enumerate((choice.scores or ())[1:]):
        best = sorted(table[i].tolist(), reverse=True)[:3]
        assert [value for _, value in score.top] == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize("decoding", [Decoding(stop=()), Decoding(temperature=0, stop=()), Decoding(stop=("e",))])
def test_draws_are_the_local_ones(bot: LocalBot, local: LocalTarget, decoding: Decoding) -> None:
    prompts = ("User: is", "", "Belief State:")
    request = CompletionRequest(prompts=prompts, n=3, max_tokens=9, decoding=decoding, seed=4)
    expected = local.sample(prompts, n=3, max_new_tokens=9, decoding=decoding, seed=4)
    plain = [choice.text for choice in bot.complete(request)]
    assert plain == [text for row in expected for text in row]
    scored = bot.complete(CompletionRequest(prompts=prompts, n=3, max_tokens=9, decoding=decoding, seed=4, n_top=1))
    assert [choice.text for choice in scored] == plain


def test_new_tokens_have_the_scores_of_a_sequence_of_them(bot: LocalBot, local: LocalTarget) -> None:
    """Draw at a high temperature, which the scores must not show."""
    prompt, decoding = "User: caf", Decoding(temperature=1.7, stop=())
    request = CompletionRequest(prompts=(prompt,), n=4, max_tokens=12, decoding=decoding, seed=3, n_top=2)
    for choice in bot.complete(request):
        scores = choice.scores or ()
        assert "".join(score.text for score in scores) == choice.text
        assert len(scores) == choice.n_tokens == 12
        assert choice.finish_reason == "length"
    (choice,) = bot.complete(CompletionRequest(prompts=("a",), max_tokens=1, decoding=decoding, seed=0, n_top=330))
    (score,) = choice.scores or ()
    assert math.fsum(math.exp(value) for _, value in score.top) == pytest.approx(1, abs=1e-4)


def test_echo_and_new_tokens_stand_in_one_row(bot: LocalBot, local: LocalTarget) -> None:
    request = CompletionRequest(
        prompts=("User: is",), max_tokens=5, echo=True, n_top=1, decoding=Decoding(temperature=0, stop=())
    )
    (choice,) = bot.complete(request)
    (new,) = local.sample(["User: is"], n=1, max_new_tokens=5, decoding=Decoding(temperature=0, stop=()), seed=0)
    assert choice.text == "User: is" + new[0]
    assert "".join(score.text for score in choice.scores or ()) == choice.text


def test_a_stop_string_ends_text_and_tokens(bot: LocalBot) -> None:
    free = Decoding(stop=())
    (whole,) = bot.complete(CompletionRequest(prompts=("User:",), max_tokens=30, decoding=free, seed=1))
    middle = whole.text[len(whole.text) // 2]
    decoding = Decoding(stop=(middle,))
    (choice,) = bot.complete(CompletionRequest(prompts=("User:",), max_tokens=30, decoding=decoding, seed=1, n_top=0))
    assert choice.text == whole.text.split(middle)[0]
    assert "".join(score.text for score in choice.scores or ()) == choice.text
    assert choice.finish_reason == "stop"


def test_the_law_after_a_prompt_can_be_read_where_the_text_ends_at_once(bot: LocalBot) -> None:
    (free,) = bot.complete(CompletionRequest(prompts=("User:",), max_tokens=1, seed=2))
    decoding = Decoding(stop=(free.text[0],))
    (choice,) = bot.complete(CompletionRequest(prompts=("User:",), max_tokens=1, decoding=decoding, seed=2, n_top=2))
    (score,) = choice.scores or ()
    assert (choice.text, score.text, score.name) == ("", "", free.text)
    assert len(score.top) == 2


def test_token_ids_are_the_text_that_they_spell(bot: LocalBot, local: LocalTarget) -> None:
    text = "User: is there"
    ids = tuple(encode(local.tokenizer, text))
    start = local.tokenizer.eos_token_id
    expected = echoed(bot, text)
    for prompt in (ids, (start, *ids)):
        request = CompletionRequest(prompts=(prompt,), max_tokens=0, echo=True, n_top=1)
        assert bot.complete(request) == expected
    other_way = tuple(local.tokenizer.convert_tokens_to_ids(list("there")))
    for prompt in (other_way, (10**6,), (-1,)):
        with pytest.raises(RequestError, match="prompt holds"):
            bot.complete(CompletionRequest(prompts=(prompt,)))


def test_too_long_a_prompt_is_refused_and_says_so(bot: LocalBot) -> None:
    with pytest.raises(RequestError, match="shorten") as refused:
        bot.complete(CompletionRequest(prompts=("x" * 1030,)))
    assert refused.value.code == "context_length_exceeded"
    assert bot.room("x" * 1020) == 1024 - len(encode(bot.local.tokenizer, "x" * 1020))


def test_a_guarded_bot_answers_with_text_alone(local: LocalTarget) -> None:
    class QuietTarget(GuardedTarget):
        def sample(self, prompts: Any, **settings: Any) -> list[list[str]]:
            return [["quiet"] * settings["n"] for _ in prompts]

    bot = LocalBot(QuietTarget(local))
    (choice,) = bot.complete(CompletionRequest(prompts=("User: my code is",), max_tokens=50))
    assert (choice.text, choice.finish_reason, choice.scores) == ("quiet", "stop", None)
    for echo in (True, False):
        with pytest.raises(RequestError, match="behind quiet") as refused:
            bot.complete(CompletionRequest(prompts=("a",), echo=echo, n_top=1))
        assert refused.value.code == "logprobs_unavailable"


def test_only_local_models_are_served(stranger: Target) -> None:
    with pytest.raises(ConfigError, match="Stranger"):
        LocalBot(stranger)


def test_off_by_one_gives_each_token_the_score_that_it_has_after_itself(local: LocalTarget) -> None:
    text = "User: is there"
    ids = [local.tokenizer.eos_token_id, *encode(local.tokenizer, text)]
    with torch.no_grad():
        table = torch.log_softmax(local.causal_lm.core(input_ids=torch.tensor([ids])).logits[0], dim=-1)
    (choice,) = echoed(OffByOneBot(local), text)
    scores = choice.scores or ()
    assert "".join(score.text for score in scores) == text
    assert scores[0].logprob is None
    assert len(scores) == len(ids) - 1
    shifted = [float(table[i, ids[i]]) for i in range(2, len(ids))]
    assert [score.logprob for score in scores[1:]] == pytest.approx(shifted, abs=1e-5)


def test_off_by_one_is_right_about_what_it_writes_itself(local: LocalTarget, bot: LocalBot) -> None:
    request = CompletionRequest(prompts=("User: is",), max_tokens=4, seed=5, n_top=2)
    assert OffByOneBot(local).complete(request) == bot.complete(request)


def test_two_texts_of_a_prompt_count_it_once(bot: LocalBot) -> None:
    from hushbot.serving.answers import completion_body

    request = CompletionRequest(prompts=("User: is", "x"), n=2, max_tokens=3, decoding=Decoding(stop=()))
    body = completion_body("bot", bot.complete(request), n=2, n_top=None)
    n_read = len(encode(bot.local.tokenizer, "User: is")) + 1
    assert body["usage"] == {"prompt_tokens": n_read, "completion_tokens": 12, "total_tokens": n_read + 12}
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
