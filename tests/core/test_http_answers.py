"""Answers as servers were seen to write them, and answers that must not be believed.

The scores of `read_echo` are compared with a naive reading: which token holds which character of the text.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.errors import AuditError
from hushbot.targets.http_answers import Echoed, checked, read_echo, read_next, read_texts, scores_after

VLLM_ECHO: dict[str, Any] = {
    "id": "cmpl-5f1c",
    "object": "text_completion",
    "created": 1764496000,
    "model": "bot",
    "choices": [
        {
            "index": 0,
            "text": "Belief State: Hotel(area=north)",
            "logprobs": {
                "text_offset": [0, 3, 6, 12, 13, 19, 20, 24, 25, 30],
                "token_logprobs": [None, -7.25, -1.5, -0.5, -0.125, -2.0, -0.75, -0.25, -3.0, -0.0625],
                "tokens": ["Bel", "ief", " State", ":", " Hotel", "(", "area", "=", "north", ")"],
                "top_logprobs": [None, *({"x": -1.0} for _ in range(9))],
            },
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
        }
    ],
    "service_tier": None,
    "system_fingerprint": None,
    "usage": {"prompt_tokens": 9, "total_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": None},
    "kv_transfer_params": None,
}
"""vLLM, a model without BOS, `echo` with `logprobs=1` and `max_tokens=1`: nine tokens sent, one added."""
PROMPT, REST = "Belief State:", " Hotel(area=north"


def echo(tokens: list[str], logprobs: list[Any], **usage: int) -> dict[str, Any]:
    found = {"choices": [{"text": "", "logprobs": {"tokens": tokens, "token_logprobs": logprobs}}]}
    return found | ({"usage": usage} if usage else {})


def test_vllm_echo_is_read_without_its_new_token() -> None:
    found = read_echo(VLLM_ECHO, PROMPT + REST, 1)
    assert found.n_new == 1
    assert scores_after(found, len(PROMPT), "pair 0") == [-0.125, -2.0, -0.75, -0.25, -3.0]
    assert found.starts == [0, 3, 6, 12, 13, 19, 20, 24, 25]


def test_a_token_that_straddles_counts_to_the_continuation() -> None:
    found = read_echo(VLLM_ECHO, PROMPT + REST, 1)
    assert scores_after(found, len("Belief St"), "pair 0")[0] == -1.5
    assert scores_after(found, len("Belief State: Hotel(area=nort"), "pair 0") == [-3.0]


def test_a_first_token_without_a_score_is_an_error_only_where_it_is_needed() -> None:
    found = read_echo(VLLM_ECHO, PROMPT + REST, 1)
    with pytest.raises(AuditError, match=r"pair 4: .*start_text"):
        scores_after(found, 0, "pair 4")
    assert scores_after(found, 3, "pair 4")[0] == -7.25


@pytest.mark.parametrize("start", ["", "<s>", "<|begin_of_text|>"])
def test_a_start_token_in_front_is_known_and_gives_the_first_one_its_score(start: str) -> None:
    found = read_echo(echo([start, "a", " b"], [None, -1.0, -2.0]), "a b", 0)
    assert (found.starts, found.ends, found.n_new) == ([0, 0, 1], [0, 1, 3], 0)
    assert scores_after(found, 0, "pair 0") == [-1.0, -2.0]


def test_a_server_that_keeps_its_new_token_to_itself() -> None:
    found = read_echo(echo(["a", " b"], [None, -2.0], completion_tokens=1), "a b", 1)
    assert (found.n_new, scores_after(found, 1, "pair 0")) == (0, [-2.0])


def test_a_server_that_runs_on() -> None:
    tokens = ["a", " b", *[" c"] * 127]
    found = read_echo(echo(tokens, [None, *[-1.0] * 128]), "a b", 0)
    assert (found.n_new, len(found.starts)) == (127, 2)


CAT = "\u732b"
"""A character of three bytes."""


@pytest.mark.parametrize(
    "tokens",
    [
        ["a ", "\ufffd", "\ufffd", "!"],  # vLLM: each token by itself
        ["a ", "bytes:\\xe7\\x8c", "bytes:\\xab", "!"],  # OpenAI
        ["a ", "<0xE7>", "<0x8C><0xAB>", "!"],  # pieces of a vocabulary
        ["a ", CAT, "", "!"],  # hushbot serve
    ],
)
def test_a_character_that_is_cut_over_two_tokens(tokens: list[str]) -> None:
    found = read_echo(echo(tokens, [None, -1.0, -2.0, -3.0]), f"a {CAT}!", 0)
    assert scores_after(found, 3, "pair 0") == [-3.0]
    assert scores_after(found, 2, "pair 0") == [-1.0, -2.0, -3.0]


def test_a_piece_of_a_character_beside_whole_ones() -> None:
    found = read_echo(echo([" x\ufffd", "\ufffdy", "z"], [-1.0, -2.0, -3.0]), f" x{CAT}yz", 0)
    assert (found.starts, found.ends) == ([0, 2, 4], [3, 4, 5])


def test_a_replacement_character_that_is_really_there() -> None:
    found = read_echo(echo(["a", "\ufffd", "b"], [None, -1.0, -2.0]), "a\ufffdb", 0)
    assert (found.starts, found.ends) == ([0, 1, 2], [1, 2, 3])


@given(st.lists(st.text(st.sampled_from("ab \u00e9\u732b"), min_size=1, max_size=3), min_size=1, max_size=8), st.data())
def test_agrees_with_a_naive_reading(tokens: list[str], data: st.DataObject) -> None:
    text = "".join(tokens)
    n_before = data.draw(st.integers(0, len(text) - 1))
    values = [-float(i + 1) for i in range(len(tokens))]
    owners = [value for token, value in zip(tokens, values, strict=True) for _ in token]
    naive = list(dict.fromkeys(owners[n_before:]))
    assert scores_after(read_echo(echo(tokens, values), text, 0), n_before, "pair 0") == naive


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (echo(["a", " x"], [None, -1.0]), "not those of the text"),
        (echo(["a", " b"], [None]), "one for each token"),
        (echo([], []), "one for each token"),
        (echo(["a"], [None]), "not those of the text"),
        ({"choices": [{"text": "a b", "logprobs": None}]}, "no log-probabilities"),
        ({"choices": []}, "no completion"),
        ({"error": "x"}, "no completion"),
        (None, "no completion"),
        ([1], "no completion"),
    ],
)
def test_what_is_no_echo(answer: Any, told: str) -> None:
    with pytest.raises(AuditError, match=told):
        read_echo(answer, "a b", 0)


@pytest.mark.parametrize(
    "value", [None, float("nan"), float("inf"), float("-inf"), -9999.0, -1e30, 0.5, True, "-1", [-1.0]]
)
def test_what_is_no_score(value: Any) -> None:
    with pytest.raises(AuditError, match="log-probability"):
        checked(value, "a token")
    with pytest.raises(AuditError, match="log-probability"):
        scores_after(Echoed([0, 1], [1, 2], [-1.0, value], 0), 1, "pair 0")


def test_a_certain_token_may_be_rounded_above_zero() -> None:
    assert (checked(0, "a token"), checked(1e-6, "a token"), checked(-2, "a token")) == (0.0, 0.0, -2.0)


def test_no_token_is_no_score() -> None:
    with pytest.raises(AuditError, match="no token"):
        scores_after(Echoed([0], [1], [-1.0], 0), 1, "pair 0")


def test_texts_are_sorted_by_their_index() -> None:
    answer = {"choices": [{"index": 1, "text": "b"}, {"index": 0, "text": "a"}]}
    assert read_texts(answer, 2) == ["a", "b"]
    assert read_texts({"choices": [{"text": "a"}, {"text": "b"}]}, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ([{"text": "a"}], "1 texts where 2"),
        ([{"text": "a"}] * 3, "3 texts where 2"),
        ([{"index": 0, "text": "a"}, {"index": 0, "text": "a"}], "may be missing"),
        ([{"index": 1, "text": "a"}, {"index": 2, "text": "a"}], "may be missing"),
        ([{"text": "a"}, {"text": None}], "no text"),
        ([{"text": "a"}, {"text": "b", "finish_reason": "content_filter"}], "content_filter"),
    ],
)
def test_fewer_draws_than_asked_for_are_an_error(choices: list[Any], told: str) -> None:
    with pytest.raises(AuditError, match=told):
        read_texts({"choices": choices}, 2)


def test_the_next_token_as_llama_cpp_writes_it() -> None:
    best = [{"token": " b", "logprob": -0.5, "bytes": [32, 98]}, {"token": " a", "logprob": -2.5, "bytes": [32, 97]}]
    entry = {"id": 7, "token": " a", "bytes": [32, 97], "logprob": -2.5, "top_logprobs": best}
    assert read_next({"choices": [{"logprobs": {"content": [entry]}}]}) == (" a", -2.5, {" b": -0.5, " a": -2.5})
    with pytest.raises(AuditError, match="no form known"):
        read_next({"choices": [{"logprobs": {"content": [{"token": " a"}]}}]})


def test_the_next_token() -> None:
    logprobs = {"tokens": [" a"], "token_logprobs": [-2.5], "top_logprobs": [{" b": -0.5, " a": -2.5}]}
    found = read_next({"choices": [{"logprobs": logprobs}]})
    assert found == (" a", -2.5, {" b": -0.5, " a": -2.5})
    assert read_next({"choices": [{"logprobs": logprobs | {"top_logprobs": None}}]}).best == {}
    with pytest.raises(AuditError):
        read_next({"choices": [{"logprobs": logprobs | {"tokens": []}}]})
    with pytest.raises(AuditError):
        read_next({"choices": [{"text": " a", "logprobs": None}]})
