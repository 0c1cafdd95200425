"""Value objects: equality, order, and what an explicit setting refuses."""

from __future__ import annotations

import dataclasses

import pytest
from pydantic import ValidationError

from hushbot.types import (
    AttackResult,
    Decoding,
    Dialogue,
    Estimate,
    Example,
    Headline,
    Segment,
    SlotValue,
    Turn,
)


def test_alternatives_do_not_change_what_a_triplet_is() -> None:
    plain, rich = SlotValue("hotel", "type", "hotel"), SlotValue("hotel", "type", "hotel", ("guesthouse",))
    assert plain == rich
    assert hash(plain) == hash(rich)
    assert rich.values == ("hotel", "guesthouse")


def test_final_state_is_the_last_known_one() -> None:
    first = frozenset({SlotValue("taxi", "to", "x")})
    assert Dialogue("d", (Turn("a", first), Turn("b", None))).final_state == first
    assert Dialogue("d", (Turn("a", frozenset()),)).final_state == frozenset()
    assert Dialogue("d", (Turn("a", None),)).final_state is None


def test_objects_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Turn("a", None).user = "b"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Estimate(value=1.0).value = 2.0  # type: ignore[misc]


def test_example_text_is_its_segments() -> None:
    assert Example("d", (Segment("a", False), Segment("b", True))).text == "ab"


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"repetition_penalty": 0.0},
    ],
)
def test_decoding_refuses_what_makes_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Decoding(**wrong)  # type: ignore[arg-type]


def test_vanilla_is_the_default() -> None:
    decoding = Decoding()
    assert (decoding.temperature, decoding.top_k, decoding.top_p, decoding.repetition_penalty) == (
        1.0,
        0,
        1.0,
        1.0,
    )


def test_rows_stay_out_of_the_report() -> None:
    result = AttackResult(
        verdict="inconclusive",
        headline=Headline(metric="auc", estimate=Estimate(value=None)),
        rows=[{"state": "secret"}],
    )
    assert "secret" not in result.model_dump_json()
    assert AttackResult.model_validate_json(result.model_dump_json()).headline.estimate.value is None
