"""The doctor against sound servers and against every fault that a real server was seen to have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hushbot.errors import AuditError
from hushbot.serving import FAULTS, serving
from hushbot.targets.alignment import Evidence, judge_alignment
from hushbot.targets.connection import Connection, Pace
from hushbot.targets.doctor import PROMPTS, Diagnosis, Finding, examine
from hushbot.targets.http import HTTPTarget
from hushbot.targets.local import LocalTarget


@pytest.fixture(scope="module")
def small(make_small_model: Callable[[], nn.Module], small_tokenizer: Any) -> LocalTarget:
    """Return an untrained bot, to which all tokens are nearly alike."""
    return LocalTarget(make_small_model(), small_tokenizer)


@pytest.fixture(scope="module", params=["trained", "untrained"])
def local(request: Any, small: LocalTarget) -> LocalTarget:
    """Return the untrained bot, or one that is sure of what it says."""
    if request.param == "untrained":
        return small
    from importlib.resources import as_file, files

    with as_file(files("hushbot") / "assets" / "tiny") as path:
        return LocalTarget.from_pretrained(path)


def diagnosed(local: LocalTarget, *faults: str, timeout: float = 30.0) -> Diagnosis:
    """Examine a served bot; what it asks to wait passes in no time."""
    with serving(local, name="bot", faults=faults, port=0) as url:
        pace, slept = Pace(timeout=timeout), [0.0]
        connection = Connection(url, pace=pace, clock=lambda: slept[0], sleep=lambda s: slept.append(slept.pop() + s))
        if "drip" in faults:
            connection = Connection(url, pace=pace)
        return examine(HTTPTarget(url, "bot", pace=pace, connection=connection))


def unwell(diagnosis: Diagnosis) -> dict[str, str]:
    return {name: detail for name, is_fine, detail in diagnosis.findings if not is_fine}


def test_a_sound_server_is_of_the_full_tier(local: LocalTarget) -> None:
    diagnosis = diagnosed(local)
    assert (diagnosis.tier, diagnosis.echo_tokens, unwell(diagnosis)) == ("full", 0, {})
    assert diagnosis.fingerprint is not None
    assert (diagnosis.has_top_k, diagnosis.is_random, diagnosis.neutral) == (True, True, (("top_k", 0),))


def test_a_model_is_known_again_and_another_is_not(
    small: LocalTarget, make_small_model: Callable[[], nn.Module]
) -> None:
    other = make_small_model()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(-1.5)
    prints = [diagnosed(bot).fingerprint for bot in (small, small, LocalTarget(other, small.tokenizer))]
    assert prints[0] == prints[1] != prints[2]


EXPECTED = {
    "drop_logprobs": ("text", "echo", "no log-probabilities"),
    "off_by_one": ("next_token", "alignment", "off by one"),
    "no_echo_400": ("next_token", "echo", "answered 400"),
    "429_retry_after": ("full", "rate_limit", "asked to wait"),
    "drip": (None, "liveness", "drip"),
    "max_tokens0_runs_on": ("full", "zero_tokens", "runs on"),
    "batch_500": ("full", "batch", "answered 500"),
}


def test_no_fault_is_overlooked() -> None:
    assert set(EXPECTED) == set(FAULTS)


@pytest.mark.parametrize("fault", EXPECTED)
def test_every_fault_is_named(local: LocalTarget, fault: str) -> None:
    tier, name, told = EXPECTED[fault]
    diagnosis = diagnosed(local, fault, timeout=0.5 if fault == "drip" else 30.0)
    assert diagnosis.tier == tier
    assert told in unwell(diagnosis)[name]
    assert set(unwell(diagnosis)) <= {name, *(("next_token",) if fault == "drop_logprobs" else ())}


def test_what_a_diagnosis_makes_of_a_target() -> None:
    target = HTTPTarget("http://localhost:1/v1", "bot")
    found = Diagnosis(tier="full", findings=(), fingerprint="abc", echo_tokens=0, has_top_k=True)
    examined = found.applied_to(target)
    assert (examined.tier, examined.fingerprint, examined.echo_tokens, examined.has_top_k) == ("full", "abc", 0, True)
    assert examined.connection is target.connection
    with pytest.raises(AuditError, match="cannot be audited: it is gone"):
        Diagnosis(tier=None, findings=(Finding("liveness", False, "it is gone"),)).applied_to(target)


def test_an_endpoint_that_is_not_there() -> None:
    diagnosis = examine(HTTPTarget("http://127.0.0.1:1/v1", "bot"))
    assert diagnosis.tier is None
    assert [finding.name for finding in diagnosis.findings] == ["liveness"]


def test_a_model_that_is_not_there(small: LocalTarget) -> None:
    with serving(small, name="bot", port=0) as url:
        diagnosis = examine(HTTPTarget(url, "somebody else"))
    assert diagnosis.tier is None
    assert "no such model" in diagnosis.findings[0].detail


class Twisted(Connection):
    """A sound server whose answers are changed on their way."""

    def __init__(self, url: str, twist: Callable[[dict[str, Any], Any], Any]) -> None:
        super().__init__(url)
        self.twist = twist

    def _asked(self, method: str, path: str, body: bytes | None, *, is_patient: bool) -> Any:
        import json

        return self.twist(json.loads(body or b"{}"), super()._asked(method, path, body, is_patient=is_patient))


def twisted(local: LocalTarget, twist: Callable[[dict[str, Any], Any], Any]) -> Diagnosis:
    with serving(local, name="bot", port=0) as url:
        return examine(HTTPTarget(url, "bot", connection=Twisted(url, twist)))


@pytest.mark.parametrize("shift", [1, -1])
def test_a_list_that_is_shifted_either_way_is_named(local: LocalTarget, shift: int) -> None:
    def moved(asked: dict[str, Any], answer: Any) -> Any:
        if asked.get("echo"):
            found = answer["choices"][0]["logprobs"]
            values = found["token_logprobs"][1:]
            found["token_logprobs"] = [None, *values[-shift:], *values[:-shift]]
        return answer

    diagnosis = twisted(local, moved)
    assert diagnosis.tier == "next_token"
    assert "off by one" in unwell(diagnosis)["alignment"]


def test_a_constant_score_is_not_believed(small: LocalTarget) -> None:
    def flat(asked: dict[str, Any], answer: Any) -> Any:
        found = answer["choices"][0]["logprobs"]
        if found:
            found["token_logprobs"] = [None if value is None else -1.0 for value in found["token_logprobs"]]
            found["top_logprobs"] = [row and dict.fromkeys(row, -1.0) for row in found["top_logprobs"] or []]
        return answer

    diagnosis = twisted(small, flat)
    assert diagnosis.tier == "next_token"
    assert "not established" in unwell(diagnosis)["alignment"]


def test_a_first_token_without_a_score_is_said_with_its_remedy(small: LocalTarget) -> None:
    def without_start(asked: dict[str, Any], answer: Any) -> Any:
        if asked.get("echo"):
            found = answer["choices"][0]["logprobs"]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                found[name] = found[name][1:]
            found["token_logprobs"][0] = None
        return answer

    diagnosis = twisted(small, without_start)
    assert diagnosis.tier == "full"
    assert "start_text" in unwell(diagnosis)["first_token"]


def test_a_server_that_never_says_the_same_twice_has_no_fingerprint(small: LocalTarget) -> None:
    times = iter(range(10**6))

    def restless(asked: dict[str, Any], answer: Any) -> Any:
        for choice in answer["choices"]:
            choice["text"] += str(next(times))
        return answer

    diagnosis = twisted(small, restless)
    assert diagnosis.fingerprint is None
    assert {"determinism", "seed"} <= set(unwell(diagnosis))


def test_a_server_that_always_says_the_same_is_noticed(small: LocalTarget) -> None:
    def stubborn(asked: dict[str, Any], answer: Any) -> Any:
        for choice in answer["choices"]:
            choice["text"] = " a fixed answer, always"
        return answer

    diagnosis = twisted(small, stubborn)
    assert {"sampling", "draws", "stop", "top_k", "seed"} <= set(unwell(diagnosis))
    assert not diagnosis.is_random


def evidence(aligned: float, early: float, late: float, itself: float | None) -> list[Evidence]:
    return [Evidence(aligned, early, late, itself)] * 3


@pytest.mark.parametrize(
    ("places", "is_fine", "told"),
    [
        (evidence(0.0, 3.0, 3.0, 3.0), True, "agree"),
        (evidence(0.4, 3.0, 3.0, 3.0), True, "agree"),  # quantised
        (evidence(0.6, 3.0, 3.0, 3.0), False, "misaligned"),
        (evidence(0.4, 3.0, 3.0, 1.0), False, "not established"),
        (evidence(0.0, 3.0, 3.0, None), True, "agree"),
        (evidence(0.1, 3.0, 3.0, None), False, "not established"),
        (evidence(0.0, 0.005, 3.0, 3.0), False, "not established"),
        (evidence(0.3, 0.0, 3.0, 3.0), False, "before their own"),
        (evidence(0.3, 3.0, 0.0, 3.0), False, "behind their own"),
        (evidence(9.0, 3.0, 5.0, 0.0), False, "including itself"),
        ([*evidence(0.0, 3.0, 3.0, 3.0), Evidence(4.0, 9.0, 9.0, 9.0)], False, "misaligned"),
    ],
)
def test_verdicts_over_places(places: list[Evidence], is_fine: bool, told: str) -> None:
    verdict = judge_alignment(places)
    assert verdict.is_fine is is_fine
    assert told in verdict.detail


def test_the_order_of_places_changes_nothing() -> None:
    places = [Evidence(0.1 * i, 2.0 + i, 3.0, None if i % 2 else 4.0) for i in range(4)]
    assert judge_alignment(places) == judge_alignment(places[::-1])


def test_what_is_asked_is_nobodys() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS) >= 4


def test_shifted_scores_of_a_start_text_are_no_matter(small: LocalTarget) -> None:
    with serving(small, name="bot", port=0) as url:
        target = replace(HTTPTarget(url, "bot"), start_text="User: good day\n")
        assert examine(target).tier == "full"
