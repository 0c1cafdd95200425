"""A served bot against the same bot on this machine, and what the target asks of a server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from hushbot.errors import AuditError, ConfigError, UnsupportedError
from hushbot.protocols import Target
from hushbot.serving import serving
from hushbot.targets.connection import Connection, Pace
from hushbot.targets.doctor import examine
from hushbot.targets.http import HTTPTarget, derived_seed
from hushbot.targets.local import LocalTarget
from hushbot.types import Decoding

STATE = "Belief State:"
PAIRS = [
    (STATE, " Restaurant(name=golden wok, area=north)"),
    (STATE, " Restaurant(name=golden wok, area=south)"),
    ("", " Restaurant(name=golden wok)"),
    ("User: a table at Caf\u00e9 Zo\u00eb \u732b\u732b please\nBelief Sta", "te: Restaurant(name=caf\u00e9 \u732b)"),
    ("User: x", "\n"),
    (STATE, " Restaurant(name=golden wok, area=north)"),
]
URL = "http://localhost:1/v1"


class Fake(Connection):
    """A server that writes down what it is asked and answers by a rule."""

    def __init__(self, answer: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(URL)
        self.answer = answer
        self.asked: list[dict[str, Any]] = []

    def _asked(self, method: str, path: str, body: bytes | None, *, is_patient: bool) -> Any:
        import json

        assert path == "/completions"
        self.asked.append(json.loads(body or b"{}"))
        return self.answer(self.asked[-1])


def says(text: str) -> Callable[[dict[str, Any]], Any]:
    return lambda _: {"choices": [{"index": 0, "text": text}]}


def draw(target: HTTPTarget, prompts: list[str], n: int = 2, **decoding: Any) -> list[list[str]]:
    return target.sample(prompts, n=n, max_new_tokens=9, decoding=Decoding(**decoding), seed=3)


@pytest.fixture(scope="module")
def local(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    return LocalTarget(make_small_model(), small_tokenizer)


@pytest.fixture(scope="module")
def served(local: LocalTarget) -> Iterator[HTTPTarget]:
    with serving(local, name="bot", port=0) as url:
        target = HTTPTarget(url, "bot", pace=Pace(timeout=30, n_workers=2))
        yield examine(target).applied_to(target)


def test_endpoint_scores_are_local_scores(local: LocalTarget, served: HTTPTarget) -> None:
    assert served.tier == "full"
    prompts, continuations = [list(side) for side in zip(*PAIRS, strict=True)]
    theirs, ours = served.logprobs(prompts, continuations), local.logprobs(prompts, continuations)
    assert [len(score) for score in theirs] == [len(score) for score in ours]
    for their, our in zip(theirs, ours, strict=True):
        torch.testing.assert_close(their, our, atol=1e-4, rtol=0)


def test_the_scores_of_attacks_are_those_of_the_bot_here(local: LocalTarget, served: HTTPTarget) -> None:
    from hushbot.attacks.membership import score

    texts = [f" Restaurant(name={name}, area=north)" for name in ("golden wok", "caf\u00e9 zo\u00eb", "cotto")]
    theirs, ours = (score(target, [STATE] * 3, texts) for target in (served, local))
    for name in ("ppl", "ppl_zlib", "c_ppl", "dc_ppl", "loss", "min_k"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-4), name
    assert not any(math.isfinite(value) for value in theirs["min_k_pp"]), "an endpoint does not show what it needs"


def test_one_new_token_more_changes_no_score(served: HTTPTarget) -> None:
    from dataclasses import replace

    prompts, continuations = [list(side) for side in zip(*PAIRS, strict=True)]
    assert served.echo_tokens == 0
    with_one = replace(served, echo_tokens=1).logprobs(prompts, continuations)
    for their, our in zip(with_one, served.logprobs(prompts, continuations), strict=True):
        torch.testing.assert_close(their, our, atol=1e-5, rtol=0)


def test_order_and_company_change_nothing(served: HTTPTarget) -> None:
    prompts, continuations = [list(side) for side in zip(*PAIRS[::-1], strict=True)]
    backwards = served.logprobs(prompts, continuations)[::-1]
    alone = [served.logprobs([prompt], [continuation])[0] for prompt, continuation in PAIRS]
    assert all(torch.equal(a, b) for a, b in zip(backwards, alone, strict=True))


def test_greedy_texts_are_local_texts(local: LocalTarget, served: HTTPTarget) -> None:
    prompts = [STATE, "User: hello\n"]
    wanted = local.sample(prompts, n=2, max_new_tokens=12, decoding=Decoding(temperature=0), seed=0)
    assert served.sample(prompts, n=2, max_new_tokens=12, decoding=Decoding(temperature=0), seed=5) == wanted


def test_draws_depend_on_seed_position_and_number_only(served: HTTPTarget) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 8, "decoding": Decoding(), "seed": 1}
    three = served.sample([STATE, STATE], n=3, **settings)
    assert served.sample([STATE, STATE], n=2, **settings) == [texts[:2] for texts in three]
    assert served.sample([STATE], n=3, **settings) == three[:1]
    assert served.sample([STATE], n=3, **settings | {"seed": 2}) != three[:1]
    assert three[0] != three[1], "places of their own draw on their own"
    assert len(set(three[0])) > 1


def test_single_places_are_drawn_as_in_the_whole(served: HTTPTarget) -> None:
    from hushbot.targets.places import Place, SamplesPlaces

    assert isinstance(served, SamplesPlaces)
    settings: dict[str, Any] = {"max_new_tokens": 8, "decoding": Decoding(), "seed": 1}
    whole = served.sample([STATE, "User:"], n=2, **settings)
    places = [Place("User:", 1, 1), Place(STATE, 0, 0)]
    assert served.sample_places(places, **settings) == [whole[1][1], whole[0][0]]


def test_it_is_a_target(served: HTTPTarget) -> None:
    assert isinstance(served, Target)
    assert served.reference is None


def test_each_draw_is_a_request_of_its_own() -> None:
    fake = Fake(says(" x"))
    assert draw(HTTPTarget(URL, "m", connection=fake), ["a", "b", "a"], top_p=0.5) == [[" x", " x"]] * 3
    assert len({request["seed"] for request in fake.asked}) == 6
    request = next(request for request in fake.asked if request["seed"] == derived_seed(3, 1, 0))
    assert request == {
        "model": "m",
        "prompt": "b",
        "n": 1,
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.5,
        "stop": ["\n"],
        "seed": derived_seed(3, 1, 0),
    }


def test_a_deterministic_decoder_asks_once_for_each_prompt() -> None:
    fake = Fake(says(" x"))
    assert draw(HTTPTarget(URL, "m", connection=fake), ["a", "b", "a"], temperature=0) == [[" x", " x"]] * 3
    assert sorted(request["prompt"] for request in fake.asked) == ["a", "b"]


def test_texts_end_at_the_first_stop_string_whatever_the_server_does() -> None:
    target = HTTPTarget(URL, "m", connection=Fake(says("one; two\nthree")))
    assert draw(target, ["a"], n=1, stop=("\n", ";")) == [["one"]]
    assert draw(target, ["a"], n=1, stop=()) == [["one; two\nthree"]]


def test_a_start_text_stands_in_front_of_everything_and_is_never_scored() -> None:
    logprobs = {"tokens": ["<s>", "a", "b"], "token_logprobs": [None, -1.0, -2.0]}
    fake = Fake(lambda _: {"choices": [{"text": "x", "logprobs": logprobs}]})
    target = HTTPTarget(URL, "m", start_text="<s>", tier="full", echo_tokens=0, connection=fake)
    assert [score.tolist() for score in target.logprobs(["", "a"], ["ab", "b"])] == [[-1.0, -2.0], [-2.0]]
    draw(target, ["a"], n=1)
    assert [request["prompt"] for request in fake.asked] == ["<s>ab", "<s>a"]
    assert len(fake.asked) == 2, "one text is scored once, whatever its parts"


@pytest.mark.parametrize(
    ("decoding", "named"),
    [
        ({"typical_p": 0.5}, "typical_p=0.5"),
        ({"num_beams": 3}, "num_beams=3"),
        ({"start_temperature": 5.0}, "start_temperature=5.0"),
        ({"repetition_penalty": 1.5}, "repetition_penalty=1.5"),
        ({"top_k": 40}, "top_k=40"),
    ],
)
def test_a_decoder_that_servers_do_not_know_is_refused_by_name(decoding: dict[str, Any], named: str) -> None:
    fake = Fake(says(" x"))
    with pytest.raises(UnsupportedError, match=named) as caught:
        draw(HTTPTarget(URL, "m", connection=fake), ["a"], **decoding)
    assert isinstance(caught.value, ConfigError)
    assert fake.asked == []


def test_top_k_is_sent_to_who_knows_it() -> None:
    fake = Fake(says(" x"))
    draw(HTTPTarget(URL, "m", has_top_k=True, connection=fake), ["a"], n=1, top_k=40)
    assert fake.asked[0]["top_k"] == 40


def test_a_server_that_draws_nothing_is_asked_for_greedy_texts_only() -> None:
    target = HTTPTarget(URL, "m", is_random=False, connection=Fake(says(" x")))
    assert draw(target, ["a"], temperature=0) == [[" x", " x"]]
    with pytest.raises(UnsupportedError, match="draws nothing"):
        draw(target, ["a"])


def test_what_a_server_would_set_by_itself_is_switched_off() -> None:
    fake = Fake(says(" x"))
    target = HTTPTarget(URL, "m", neutral=(("top_k", 0), ("min_p", 0.0)), has_top_k=True, connection=fake)
    draw(target, ["a"], n=1)
    draw(target, ["a"], n=1, top_k=7)
    assert [(request["top_k"], request["min_p"]) for request in fake.asked] == [(0, 0.0), (7, 0.0)]


def test_scores_of_an_endpoint_that_was_not_examined_are_refused() -> None:
    fake = Fake(says(" x"))
    for tier in ("text", "next_token"):
        with pytest.raises(AuditError, match="doctor"):
            HTTPTarget(URL, "m", tier=tier, connection=fake).logprobs(["a"], ["b"])  # type: ignore[arg-type]
    assert fake.asked == []


@pytest.mark.parametrize(
    ("prompts", "continuations", "told"),
    [(["a"], [], "1 prompts for 0"), (["a", "a"], ["b", ""], "pair 1: the continuation is empty")],
)
def test_pairs_that_cannot_be_scored(prompts: list[str], continuations: list[str], told: str) -> None:
    with pytest.raises(AuditError, match=told):
        HTTPTarget(URL, "m", tier="full", connection=Fake(says("x"))).logprobs(prompts, continuations)


def test_a_failure_among_many_requests_fails_all() -> None:
    def answer(request: dict[str, Any]) -> Any:
        return {"choices": [{"text": "x"}] * (2 if request["seed"] == derived_seed(3, 4, 0) else 1)}

    with pytest.raises(AuditError, match="2 texts where 1"):
        draw(HTTPTarget(URL, "m", connection=Fake(answer)), list("abcdefgh"), n=1)


def test_nothing_is_asked_for_nothing() -> None:
    target = HTTPTarget(URL, "m", tier="full", connection=Fake(says("x")))
    assert draw(target, []) == []
    assert target.logprobs([], []) == []


def test_settings_that_are_out_of_range() -> None:
    target = HTTPTarget(URL, "m", connection=Fake(says("x")))
    for n, most in ((0, 5), (1, 0)):
        with pytest.raises(ConfigError, match="at least 1"):
            target.sample(["a"], n=n, max_new_tokens=most, decoding=Decoding(), seed=0)
    with pytest.raises(ConfigError, match="empty string"):
        draw(target, ["a"], stop=("",))
    with pytest.raises(ConfigError) as caught:
        HTTPTarget("nowhere", " ", reference_model="", tier="best", echo_tokens=7)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 5


def test_copies_share_a_connection_and_others_do_not() -> None:
    from dataclasses import replace

    target = HTTPTarget(URL, "m", reference_model="base")
    reference = target.reference
    assert reference is not None
    assert (reference.model, reference.reference) == ("base", None)
    assert reference.connection is target.connection
    assert replace(target, url="http://localhost:2/v1").connection is not target.connection
    assert reference.identity != target.identity


def test_the_key_is_in_no_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    assert "sk-secret" not in repr(HTTPTarget(URL, "m", key_variable="SOME_KEY"))
