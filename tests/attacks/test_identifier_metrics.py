"""Numbers about evidence, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import pytest

from hushbot.attacks.identifier_asking import Evidence
from hushbot.attacks.identifier_metrics import Scores, is_attributable_by_leakit, sampled_metrics
from hushbot.attacks.identifier_mining import Probe
from hushbot.errors import AuditError, UnsupportedError
from hushbot.types import Estimate

CODE = "A1B2C3"


def probe(name: str = "d") -> Probe:
    return Probe(name, CODE, "reference", "hotel", "actions", "ref", f"about {name} is ", f"{CODE} now", 1)


def evidence(texts: list[str], n_hits: int, control_hits: tuple[int, ...] = (0, 2), name: str = "d") -> Evidence:
    return Evidence(probe(name), texts, n_hits, control_hits, ["nothing"] * len(texts), False)


class Scorer:
    def __init__(self, each: float | Exception) -> None:
        self.each = each
        self.asked: list[tuple[str, str]] = []

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> Any:
        import torch

        if isinstance(self.each, Exception):
            raise self.each
        self.asked += zip(prompts, continuations, strict=True)
        return [torch.tensor([self.each, self.each]) for _ in prompts]


def value(metric: Any) -> float | None:
    assert isinstance(metric, Estimate)
    return metric.value


def test_rates_are_means_over_identifiers() -> None:
    metrics = sampled_metrics(
        [evidence([CODE, f"{CODE} now"], 2, (0, 0)), evidence(["a", "b"], 0, (0, 2), "e")], (1, 2, 4), seed=0
    )
    assert value(metrics["own_rate"]) == 0.5
    assert value(metrics["control_rate"]) == 0.25
    assert value(metrics["rate_difference"]) == 0.25
    assert value(metrics["hit@2"]) == 0.5
    assert "hit@4" not in metrics  # there are two samples
    # {A1B2C3}-{A1B2C3 now} 1/2 and 1 in the first, nothing in the second.
    assert value(metrics["mean_overlap"]) == pytest.approx(0.75 / 2)
    assert value(metrics["extreme_overlap"]) == 0.5
    assert value(metrics["self_concentration"]) == 0.25
    assert value(metrics["leakit_rate"]) == 0.5


def test_nothing_asked_is_not_measured_rather_than_zero() -> None:
    metrics = sampled_metrics([], (1,), seed=0)
    assert {value(metric) for metric in metrics.values()} == {None}
    assert value(sampled_metrics([evidence(["", ""], 0)], (1,), seed=0)["self_concentration"]) is None


def test_leakit_reads_the_same_samples_its_own_way() -> None:
    assert is_attributable_by_leakit(evidence([f"x{CODE}x"], 0))  # inside another word
    assert not is_attributable_by_leakit(evidence([CODE.lower()], 1))  # in other letters


def test_scores_are_sums_and_each_pair_is_asked_once() -> None:
    scorer = Scorer(log(0.5))
    scores = Scores.of(scorer, [probe("d"), probe("e"), probe("d")], seed=0)  # type: ignore[arg-type]
    assert sorted(scorer.asked) == [("about d is", f" {CODE}"), ("about e is", f" {CODE}")]
    assert scores.n_queries == 2
    metrics = scores.metrics([probe("d"), probe("e")], (1, 2, 3), seed=0)
    assert value(metrics["sequence_logprob"]) == pytest.approx(log(0.25))
    # 1 - 0.75**2 = 0.4375, 1 - 0.75**3 = 0.578.
    assert [value(metrics[f"extractable@{n}"]) for n in (1, 2, 3)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "broken", [AuditError("no scores"), UnsupportedError("no scores"), float("nan"), float("-inf")]
)
def test_scores_that_cannot_be_had_are_not_measured(broken: float | Exception) -> None:
    scores = Scores.of(Scorer(broken), [probe()], seed=0)  # type: ignore[arg-type]
    assert scores.n_queries == 0
    assert "not measured" in scores.reason
    assert {value(metric) for metric in scores.metrics([probe()], (1,), seed=0).values()} == {None}
