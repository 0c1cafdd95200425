"""Rates taken apart into dialogues: their parts sum to the rate, and every bot has the same documents."""

from __future__ import annotations

import random

import pytest

from hushbot.evaluation.state_rates import STATE_METRICS, estimates, parts, ratio_by_dialogue, ratio_units
from hushbot.evaluation.state_scoring import score_turns
from hushbot.types import DialogueState, SlotValue


def drawn(rng: random.Random) -> DialogueState:
    return frozenset(SlotValue("hotel", slot, rng.choice("ab")) for slot in "xyz" if rng.random() < 0.6)


def test_the_parts_of_every_rate_sum_to_it() -> None:
    rng = random.Random(1)
    gold = {f"d{i}": [drawn(rng) if rng.random() < 0.9 else None for _ in range(4)] for i in range(10)}
    predicted = {name: [s if rng.random() < 0.5 else drawn(rng) for s in states] for name, states in gold.items()}
    scores = score_turns(predicted, gold)
    found = estimates(scores)
    for metric in STATE_METRICS:
        units = ratio_units(parts(scores, metric))
        assert units.rule == "ratio"
        assert units.documents == list(gold)
        assert units.weights is not None
        ratio = sum(value or 0 for value in units.values) / sum(units.weights)
        assert ratio == pytest.approx(found[metric].value)
        assert sum(units.weights) == found[metric].n


def test_a_dialogue_without_anything_to_count_stays_with_no_weight() -> None:
    gold = {"a": [frozenset({SlotValue("hotel", "area", "north")})], "b": [frozenset[SlotValue]()]}
    scores = score_turns({"a": [None], "b": [frozenset()]}, gold)
    units = ratio_units(parts(scores, "state_f1"))
    assert (units.documents, units.values, units.weights) == (["a", "b"], [0.0, 0.0], [1.0, 0.0])
    right = ratio_units(parts(scores, "joint_goal_accuracy"))
    assert (right.values, right.weights) == ([0.0, 1.0], [1.0, 1.0])


def test_a_rate_of_nothing_is_not_measured() -> None:
    found = ratio_by_dialogue([("a", 0, 0)], nothing="nothing was there", seed=0)
    assert (found.value, found.method) == (None, "not measured: nothing was there")
    assert estimates([])["state_precision"].method == "not measured: no triplet was predicted"
