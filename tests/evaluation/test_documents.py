"""What a report tells of single dialogues: no id, no text, and the same name in every report of one split."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from hushbot.evaluation.documents import (
    LONGEST_CELL,
    document_hash,
    examples_of,
    pseudonymous,
    pseudonymous_units,
    split_sha256,
    with_documents,
)
from hushbot.types import AttackResult, Estimate, Headline, Units

MANIFEST: dict[str, Any] = {
    "data_sha256": "d",
    "members": ["a", "b"],
    "nonmembers": ["c"],
    "calibration": [],
    "controls": ["e"],
}
SPLIT = split_sha256(MANIFEST)


def test_the_split_is_who_is_where_in_whatever_order() -> None:
    assert len(SPLIT) == 64
    assert split_sha256(MANIFEST | {"members": ["b", "a"], "canary_coins": {"x": True}, "seed": 3}) == SPLIT
    others: tuple[dict[str, Any], ...] = (
        {"data_sha256": "other"},
        {"members": ["a"], "nonmembers": ["b", "c"]},
        {"members": ["c"], "nonmembers": ["a", "b"]},
        {"calibration": ["f"]},
        {"controls": []},
    )
    assert len({SPLIT, *(split_sha256(MANIFEST | other) for other in others)}) == 6


def test_a_document_is_called_the_first_twelve_digits_of_its_hash_in_the_split() -> None:
    expected = hashlib.sha256(f"{SPLIT}:MUL0001.json".encode()).hexdigest()[:12]
    assert document_hash("MUL0001.json", SPLIT) == expected
    assert document_hash("MUL0001.json", "another split") != expected


def test_units_keep_everything_but_ids_and_digits() -> None:
    units = Units(rule="ratio", documents=["a", "b", "a"], values=[1 / 3, None, 2.0], weights=[1234567.8, 1.0, 0.1])
    found = pseudonymous(units, SPLIT)
    a, b = document_hash("a", SPLIT), document_hash("b", SPLIT)
    assert found.documents == [a, b, a]
    assert found.values == [0.333333, None, 2.0]
    assert found.weights == [1234570.0, 1.0, 0.1]
    assert (found.rule, found.sides) == ("ratio", None)
    assert units.documents == ["a", "b", "a"]
    assert pseudonymous_units({"x": units}, SPLIT) == {"x": found}
    scores = Units(rule="auc", documents=["a", "c"], values=[1.0, 0.0], sides=["member", "nonmember"])
    assert pseudonymous(scores, SPLIT).sides == ["member", "nonmember"]
    assert pseudonymous(scores, SPLIT).weights is None


def row(number: int, **cells: Any) -> dict[str, Any]:
    return {"dialogue_id": f"d{number}", "value": f"01223 35188{number}", **cells}


@pytest.mark.parametrize("column", ["is_member_hit", "is_hit", "is_called", "is_right"])
def test_hits_on_members_come_first_and_are_five_at_most(column: str) -> None:
    rows = [row(i, **{column: i % 2 == 1}) for i in range(20)]
    assert [each["dialogue_id"] for each in examples_of(rows, SPLIT)] == [
        document_hash(f"d{i}", SPLIT) for i in (1, 3, 5, 7, 9)
    ]
    nonmembers = [row(0, role="nonmember", **{column: True}), row(1, is_member=False, **{column: True})]
    (found,) = examples_of([*nonmembers, row(2, role="member", is_member=True, **{column: True})], SPLIT)
    assert found["dialogue_id"] == document_hash("d2", SPLIT)


def test_without_a_hit_the_first_rows_are_shown() -> None:
    for rows in ([row(i) for i in range(9)], [row(i, is_hit=False) for i in range(9)]):
        assert [each["dialogue_id"] for each in examples_of(rows, SPLIT)] == [
            document_hash(f"d{i}", SPLIT) for i in range(5)
        ]
    assert examples_of([], SPLIT) == []


def test_an_example_is_masked_hashed_short_and_plain_json() -> None:
    cells = {
        "state": "Hotel(name=the grand old inn, phone=01223351880)",
        "prompt": "zyzzyva " * 500,
        "score": np.float64(1 / 3),
        "worst": float("nan"),
        "flags": (np.bool_(True), float("inf")),
        "is_member": np.bool_(True),
        "decoder": "vanilla",
        "kinds": {"phone": "01223351880"},
    }
    (found,) = examples_of([row(1, **cells)], SPLIT)
    text = json.dumps(found, allow_nan=False)
    for secret in ("01223", "grand", "old", "zyzzyva", '"d1"'):
        assert secret not in text
    assert (found["score"], found["worst"], found["flags"]) == (0.333333, None, [True, None])
    assert (found["is_member"], found["decoder"]) == (True, "vanilla")
    assert len(found["prompt"]) == LONGEST_CELL + 1


def test_a_result_says_nothing_in_the_clear_and_keeps_its_rows() -> None:
    units = Units(rule="ratio", documents=["secret person"], values=[1.0], weights=[1.0])
    headline = Headline(metric="rate", estimate=Estimate(value=1.0))
    rows = [{"dialogue_id": "secret person", "value": "secret value"}]
    result = with_documents(AttackResult(verdict="leak", headline=headline, units=units, rows=rows), SPLIT)
    assert "secret" not in result.model_dump_json()
    assert result.rows == rows
    assert result.units is not None
    assert result.units.documents == [result.examples[0]["dialogue_id"]]
    bare = with_documents(AttackResult(verdict="not_measured", headline=headline), SPLIT)
    assert (bare.units, bare.examples) == (None, [])
