"""By domain and slot: what of the extracted triplets somebody has, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import beta

from hushbot.attacks.state_extraction import UntargetedExtraction
from hushbot.attacks.state_metrics import StateIndex, normalise_state
from hushbot.attacks.targeted_extraction import TargetedExtraction
from hushbot.attacks.triplet_precision import triplet_precisions
from hushbot.prompts import parse_state
from hushbot.schema import Schema, Slot
from hushbot.types import AuditSplit, Dialogue, Estimate, Metric, Turn

SCHEMA = Schema.of([Slot("Hotel", "name"), Slot("Hotel", "stars"), Slot("Train", "day"), Slot("Train", "leave at")])
TRUTH = StateIndex.of([Dialogue("a", (Turn("hi", parse_state("Hotel(name=one, stars=4) Train(day=monday)")),))])
SAID = [
    normalise_state(parse_state(text))
    for text in ("Hotel(name=one, stars=4)", "Hotel(name=two, stars=4)", "Hotel(name=three) Boat(day=monday)")
]


def measure(truth: StateIndex = TRUTH) -> dict[str, Metric]:
    return triplet_precisions((triplet for state in SAID for triplet in state), truth, SCHEMA, suffix="@3")


def estimate(metric: Any) -> Estimate:
    assert isinstance(metric, Estimate)
    return metric


def test_distinct_triplets_are_counted_by_domain_and_slot_in_the_schemas_words() -> None:
    found = measure()
    rates = {key: (estimate(value).value, estimate(value).n) for key, value in found.items() if "off" not in key}
    assert rates == {
        "triplet_precision@3": (2 / 5, 5),
        "domain=Hotel/triplet_precision@3": (2 / 4, 4),
        "slot=Hotel-name/triplet_precision@3": (1 / 3, 3),
        "slot=Hotel-stars/triplet_precision@3": (1.0, 1),
    }
    assert found["off_schema_triplets@3"] == 1
    name = estimate(found["slot=Hotel-name/triplet_precision@3"])
    assert (name.low, name.high) == pytest.approx((beta.ppf(0.025, 1, 3), beta.ppf(0.975, 2, 2)))
    assert "dialogues taken as given" in name.method


def test_nothing_that_a_bot_made_up_gets_into_a_name() -> None:
    assert not any("boat" in key.casefold() for key in measure())


def test_a_side_without_known_states_is_not_measured() -> None:
    found = measure(StateIndex.of([Dialogue("b", (Turn("hi", None),))]))
    values = [metric for metric in found.values() if isinstance(metric, Estimate)]
    assert len(values) == 4
    assert {value.value for value in values} == {None}


def test_nothing_extracted_is_no_precision_of_zero() -> None:
    found = triplet_precisions([], TRUTH, SCHEMA)
    assert estimate(found["triplet_precision"]).value is None
    assert found.keys() == {"triplet_precision", "off_schema_triplets"}


SLOT = "slot=restaurant-book time/triplet_precision"


def test_what_only_members_have_stands_out_beside_its_control(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    attack = UntargetedExtraction(n_samples=100, k=40)
    result = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    assert estimate(result.metrics[f"{SLOT}@40"]).value == 1
    assert estimate(result.control["nonmembers"][f"{SLOT}@40"]).value == 0
    assert result.metrics["off_schema_triplets@40"] == 0


def test_targeted_extraction_counts_what_the_prefix_did_not_say(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    attack = TargetedExtraction(decoders=["greedy"], lengths=[2], max_prefixes=30)
    result = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    # After area and people comes the table's time, which one person has: non-members' prefixes bring out members'.
    times, control = estimate(result.metrics[SLOT]), estimate(result.control["nonmembers"][SLOT])
    assert (times.value, control.value) == (1, 0)
    assert times.n > 10
    assert control.n > 10
    assert "slot=restaurant-area/triplet_precision" not in result.metrics
