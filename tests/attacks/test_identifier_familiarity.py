"""Are members' identifiers more probable than other people's? By hand, with the right sign, and rarely by chance."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from hushbot.attacks.identifier_familiarity import familiarity
from hushbot.attacks.identifier_mining import Probe


def probe(document: str, kind: str = "reference", n: int = 0) -> Probe:
    return Probe(
        dialogue_id=document, value=f"{document}-{n}", kind=kind, domain="hotel", line="actions", cue="ref",
        prefix=f"{document} {n} ref=", gold=f"{document}-{n})", repetitions=1,
    )  # fmt: skip


def scored(probes: Sequence[Probe], values: Sequence[float]) -> dict[tuple[str, str], float]:
    return {(one.prompt, one.continuation): value for one, value in zip(probes, values, strict=True)}


def sides(n: int) -> tuple[list[Probe], list[Probe]]:
    return [probe(f"m{i}") for i in range(n)], [probe(f"n{i}") for i in range(n)]


def test_known_identifiers_object_and_the_difference_is_that_of_the_means() -> None:
    members, others = sides(10)
    scores = scored(members, [-20.0 - i % 2 for i in range(10)]) | scored(others, [-30.0 - i % 3 for i in range(10)])
    found = familiarity(members, others, scores, seed=0)
    assert found.difference.value == pytest.approx(-20.5 - -30.9)
    assert found.difference.low is not None
    assert 9 < found.difference.low < 10.4
    assert found.difference.n == 20
    (said,) = found.objection(0.05)
    assert "10.4" in said
    assert "nats more probable" in said


def test_less_probable_members_and_equal_ones_object_to_nothing() -> None:
    members, others = sides(10)
    low = scored(members, [-30.0] * 10) | scored(others, [-20.0 - i for i in range(10)])
    assert familiarity(members, others, low, seed=0).objection(0.05) == []
    equal = scored(members, [-20.0] * 10) | scored(others, [-20.0] * 10)
    found = familiarity(members, others, equal, seed=0)
    assert (found.difference.value, found.p) == (0.0, 1.0)


def test_kinds_are_compared_with_their_like() -> None:
    """Phones are harder than references; members have more references, and know none of either."""
    members = [*(probe(f"m{i}") for i in range(12)), *(probe(f"m{i}", "phone") for i in range(12, 16))]
    others = [*(probe(f"n{i}") for i in range(4)), *(probe(f"n{i}", "phone") for i in range(4, 16))]
    scores = {
        (one.prompt, one.continuation): (-10.0 if one.kind == "reference" else -40.0) - int(one.dialogue_id[1:]) % 2
        for one in (*members, *others)
    }
    found = familiarity(members, others, scores, seed=0)
    assert found.difference.value == pytest.approx(0.0)
    assert found.objection(0.05) == []


def test_a_kind_of_one_side_alone_does_not_count() -> None:
    members, others = sides(6)
    scores = scored(members, [-20.0] * 6) | scored(others, [-22.0] * 6)
    extra = [probe(f"m{i}", "email", 1) for i in range(6)]
    both = scores | scored(extra, [-1.0] * 6)
    assert familiarity([*members, *extra], others, both, seed=0).difference.value == pytest.approx(2.0)
    assert familiarity(extra, others, both, seed=0).difference.method.endswith("no kind of identifier is on both sides")


def test_documents_count_whole() -> None:
    """Five documents with ten like identifiers each are five units: p cannot be below 1 in C(10, 5) deals."""
    members = [probe(f"m{i}", n=n) for i in range(5) for n in range(10)]
    others = [probe(f"n{i}", n=n) for i in range(5) for n in range(10)]
    scores = scored(members, [-20.0] * 50) | scored(others, [-21.0] * 50)
    found = familiarity(members, others, scores, seed=0)
    assert found.p is not None
    assert found.p == pytest.approx(1 / 252, abs=0.004)
    assert found.p > 1 / 1000


def test_without_scores_or_documents_nothing_is_measured() -> None:
    members, others = sides(4)
    assert familiarity(members, others, None, seed=0).difference.value is None
    few = familiarity(members, others, scored([*members, *others], [-1.0] * 8), seed=0)
    assert (few.difference.value, few.p, few.objection(0.05)) == (None, None, [])
    assert "4 and 4 documents" in few.difference.method


def test_a_bot_that_knows_neither_side_is_objected_to_in_one_case_of_twenty() -> None:
    rng = random.Random(0)
    n_objections = 0
    for seed in range(200):
        members, others = sides(12)
        scores = scored([*members, *others], [rng.gauss(-30, 4) for _ in range(24)])
        n_objections += bool(familiarity(members, others, scores, seed).objection(0.05))
    assert n_objections <= 18  # 10 are expected; 99.5% of such experiments stay at or below 18


def test_order_changes_nothing() -> None:
    members, others = sides(8)
    values = np.random.default_rng(1).normal(-30, 3, size=16)
    scores = scored([*members, *others], [float(value) for value in values])
    turned = familiarity(members[::-1], others[::-1], scores, seed=0)
    assert turned == familiarity(members, others, scores, seed=0)
