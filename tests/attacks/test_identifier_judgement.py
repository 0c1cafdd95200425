"""When is a document called, and when a bot a leaking one? Null and power by simulation, corners by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hushbot.attacks.identifier_asking import Evidence
from hushbot.attacks.identifier_judgement import Judged, find_objections, judge
from hushbot.attacks.identifier_mining import Probe
from hushbot.attacks.identifier_statistics import fisher
from hushbot.intervals import clopper_pearson, unmeasured

N, M, ALPHA = 16, 8, 0.05


def evidence(name: str, hits: int, control_hits: Sequence[int] = (0,) * M, kind: str = "reference") -> Evidence:
    probe = Probe(name, f"v{name}", kind, "hotel", "actions", "ref", "", "", 1)
    return Evidence(probe, [""] * N, hits, tuple(control_hits), [], False)


def side(prefix: str, hits: Sequence[int]) -> list[Evidence]:
    return [evidence(f"{prefix}{i:03}", k) for i, k in enumerate(hits)]


def binomial(rng: random.Random, n: int, p: float) -> int:
    return sum(rng.random() < p for _ in range(n)) if p else 0


def test_a_single_strong_leak_is_called_and_named() -> None:
    judged = Judged.of(side("m", [N, *[0] * 29]), side("n", [0] * 30), ALPHA)
    assert [each.probe.dialogue_id for each in judged.members if judged.is_called(each)] == ["m000"]
    assert judged.rate(judged.members).value == pytest.approx(1 / 30)
    verdict, (reason,) = judge(judged, 20)
    assert verdict == "inconclusive"  # one against none may be the split's chance
    assert "1 of 30 members" in reason
    assert "m000" not in reason


def test_enough_of_them_are_a_leak_and_the_same_on_the_other_side_is_none() -> None:
    leaky, clean = [N] * 8 + [0] * 22, [0] * 30
    assert judge(Judged.of(side("m", leaky), side("n", clean), ALPHA), 20)[0] == "leak"
    assert judge(Judged.of(side("m", leaky), side("n", leaky), ALPHA), 20)[0] == "inconclusive"
    assert judge(Judged.of(side("m", clean), side("n", leaky), ALPHA), 20)[0] == "no_leak_detected"


def test_nothing_called_leaves_an_upper_bound() -> None:
    judged = Judged.of(side("m", [0] * 30), side("n", [1] * 30), ALPHA)
    assert judge(judged, 20)[0] == "no_leak_detected"
    rate = judged.rate(judged.members)
    assert (rate.value, rate.low) == (0.0, 0.0)
    assert rate.high == pytest.approx(1 - 0.025 ** (1 / 30))


def test_too_few_documents_on_either_side_are_inconclusive_whatever_they_say() -> None:
    many, few = [N] * 30, [N] * 19
    assert judge(Judged.of(side("m", few), side("n", [0] * 30), ALPHA), 20)[0] == "inconclusive"
    assert judge(Judged.of(side("m", many), side("n", [0] * 19), ALPHA), 20)[0] == "inconclusive"
    assert judge(Judged.of([], [], ALPHA), 20)[0] == "inconclusive"
    assert Judged.of([], [], ALPHA).rate([]).value is None


def test_a_document_with_several_identifiers_pays_for_them() -> None:
    """Three hits of 16 alone have p = 0.0012; as the best of 50 identifiers, 0.06."""
    alone = Judged.of([evidence("m", 3)], [], ALPHA)
    crowd = Judged.of([evidence("m", 3), *(evidence("m", 0) for _ in range(49))], [], ALPHA)
    p = fisher(3, N, 0, N * M)
    assert alone.q_values == {"m": pytest.approx(p)}
    assert crowd.q_values == {"m": pytest.approx(50 * p)}
    assert alone.count(alone.members) == (1, 1)
    assert crowd.count(crowd.members) == (0, 1)


def test_kinds_without_a_hit_are_reported_with_a_bound() -> None:
    members = [*side("m", [N] * 10), *(evidence(f"p{i}", 0, kind="phone") for i in range(10))]
    rates = Judged.of(members, [], ALPHA).rates_by(members, lambda each: each.probe.kind)
    assert rates["reference"].value == 1.0
    assert rates["phone"].value == 0.0
    assert rates["phone"].high == pytest.approx(1 - 0.025**0.1)


def test_order_changes_nothing() -> None:
    members, nonmembers = side("m", [N, 3, 2, 1, *[0] * 16]), side("n", [2, 1, *[0] * 18])
    plain, turned = (
        Judged.of(members, nonmembers, ALPHA),
        Judged.of(members[::-1], nonmembers[::-1], ALPHA),
    )
    assert plain.q_values == turned.q_values
    assert plain.threshold == turned.threshold


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_a_bot_that_ties_nothing_to_its_documents_is_seldom_called(common: float) -> None:
    """Values that the bot knows come out as often after any prefix; some dialogues' values are well known."""
    rng = random.Random(0)
    n_any = n_leak = 0
    for _ in range(150):
        sides = []
        for prefix in "mn":
            rates = [common if rng.random() < 0.5 else 0.02 for _ in range(25)]
            sides.append(
                [
                    evidence(f"{prefix}{i}", binomial(rng, N, p), [binomial(rng, N, p) for _ in range(M)])
                    for i, p in enumerate(rates)
                ]
            )
        judged = Judged.of(*sides, ALPHA)
        n_any += judged.threshold >= 0
        n_leak += judge(judged, 20)[0] == "leak"
    assert n_any <= 15  # 5% of 150 are 7.5; 99% of such experiments stay at or below 15
    assert n_leak == 0


def test_what_follows_from_the_prefix_is_no_leak() -> None:
    """A third of the values can be read off their own prefix, on both sides alike: all of those are called."""
    rng = random.Random(1)
    verdicts = []
    for _ in range(200):
        sides = [side(prefix, [N if rng.random() < 1 / 3 else 0 for _ in range(30)]) for prefix in "mn"]
        verdicts.append(judge(Judged.of(*sides, ALPHA), 20)[0])
    assert verdicts.count("no_leak_detected") == 0
    assert verdicts.count("leak") <= 17  # 5% of 200 are 10; 99% of such experiments stay at or below 17


def test_a_bot_that_remembers_some_is_found() -> None:
    """A quarter of 40 members are remembered, each said in half of the samples."""
    rng = random.Random(2)
    n_leak = 0
    for _ in range(100):
        hits = [binomial(rng, N, 0.5) if i % 4 == 0 else 0 for i in range(40)]
        n_leak += judge(Judged.of(side("m", hits), side("n", [0] * 40), ALPHA), 20)[0] == "leak"
    assert n_leak >= 95


def test_exact_probabilities_object_where_they_part_the_sides() -> None:
    few, many = clopper_pearson(1, 30), clopper_pearson(12, 30)
    assert find_objections({"extractable@9": few}, {"extractable@9": few}, (9,), ALPHA) == []
    assert find_objections({"extractable@9": few}, {"extractable@9": many}, (9,), ALPHA) == []
    (objection,) = find_objections({"extractable@9": many}, {"extractable@9": few}, (9,), ALPHA)
    assert "12 of 30 members, 1 of 30 non-members" in objection
    assert find_objections({"extractable@9": unmeasured("x")}, {"extractable@9": few}, (9,), ALPHA) == []
