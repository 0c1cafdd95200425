"""The rule that calls an extraction a leak, on candidates whose holders are known by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hushbot.attacks.state_candidates import RANKINGS, Candidate, Harvest
from hushbot.attacks.state_judgement import Judged, Rule, judge, judged_metrics, judged_states, overall
from hushbot.attacks.state_metrics import StateIndex
from hushbot.attacks.state_sides import Sides, take_sides
from hushbot.stats import unmeasured
from hushbot.types import AuditSplit, Dialogue, DialogueState, Estimate, SlotValue, Turn, Verdict

N_PER_SIDE = 30
RULE = Rule(k=100, min_triplets=5, n_decoders=1)


def state(name: str, n_triplets: int = 5) -> DialogueState:
    """Return a state that no other name shares."""
    return frozenset(SlotValue("hotel", f"slot {i}", f"{name}/{i}") for i in range(n_triplets))


def side(name: str) -> tuple[Dialogue, ...]:
    return tuple(Dialogue(f"{name}{i}", (Turn("hello", state(f"{name}{i}")),)) for i in range(N_PER_SIDE))


SPLIT = AuditSplit(side("m"), side("n"))


@pytest.fixture(scope="module")
def sides() -> Sides:
    return take_sides(SPLIT, seed=0)


def harvest(states: Sequence[DialogueState], scores: Sequence[float] | None = None) -> Harvest:
    """Return candidates that are ranked as they stand, or by scores, lowest first."""
    values = np.array(range(len(states)) if scores is None else scores, dtype=np.float64)
    candidates = [Candidate(found, str(i), 1) for i, found in enumerate(states)]
    return Harvest(candidates, {"samples": len(states)}, dict.fromkeys(RANKINGS, values))


def of_both(n_members: int, n_nonmembers: int, n_nobodys: int = 0) -> list[DialogueState]:
    """Return states of as many members, non-members and strangers."""
    names = [("m", n_members), ("n", n_nonmembers), ("x", n_nobodys)]
    return [state(f"{name}{i}") for name, n in names for i in range(n)]


def test_the_size_of_the_test_is_shared_among_decoders() -> None:
    assert RULE.size == 0.05
    assert replace_decoders(8).size == 0.05 / 8
    assert RULE.suffix == "@100/n>=5"


def replace_decoders(n: int) -> Rule:
    return RULE._replace(n_decoders=n)


def test_the_best_k_long_states_are_judged() -> None:
    found = [state("a", 4), state("b", 5), state("c", 6), state("d", 1), state("e", 7)]
    ranked = harvest(found, scores=[0, 3, 2, 0, 1])
    assert judged_states(ranked, RULE, seed=0) == [found[4], found[2], found[1]]
    assert judged_states(ranked, RULE._replace(k=2), seed=0) == [found[4], found[2]]
    assert judged_states(ranked, RULE._replace(min_triplets=6), seed=0) == [found[4], found[2]]
    assert judged_states(replace(ranked, scores={"ppl": ranked.scores["ppl"]}), RULE, seed=0) == []


def test_the_judged_precision_has_the_corrected_level(sides: Sides) -> None:
    found = harvest([*of_both(15, 5), *(state(f"m{i}", 4) for i in range(20, 30))])
    metrics = judged_metrics(found, sides.equal_members, replace_decoders(10), seed=0)
    assert metrics.keys() == {
        f"{name}@100/n>=5" for name in ("states", "extracted_states", "state_precision", "triplets")
    }
    precision = metrics["state_precision@100/n>=5"]
    assert isinstance(precision, Estimate)
    assert precision.value == 15 / 20
    assert precision.level == pytest.approx(0.995)
    assert metrics["extracted_states@100/n>=5"] == 20  # ten states of four triplets do not count
    nothing = judged_metrics(harvest([]), sides.equal_members, RULE, seed=0)["state_precision@100/n>=5"]
    assert isinstance(nothing, Estimate)
    assert nothing.value is None


def test_states_of_members_alone_are_a_leak(sides: Sides) -> None:
    judged = judge(harvest(of_both(20, 0)), sides, RULE, seed=0)
    assert (judged.verdict, judged.difference.value) == ("leak", 1)
    assert judged.p == pytest.approx(1 / 2001)  # no deal of 2000 gives all twenty to the members


def test_a_leak_among_one_decoder_may_be_none_among_twenty(sides: Sides) -> None:
    # Fifteen of members and five of non-members: chance gives that once in a hundred splits.
    found = harvest(of_both(15, 5))
    alone, among = (judge(found, sides, replace_decoders(n), seed=0) for n in (1, 20))
    assert alone.p == among.p
    assert alone.p is not None
    assert 0.05 / 20 < alone.p < 0.05
    assert alone.difference.value == among.difference.value == 0.5
    assert (alone.difference.level, among.difference.level) == (0.95, 1 - 0.05 / 20)
    assert alone.difference.low is not None
    assert among.difference.low is not None
    assert among.difference.low < 0 < alone.difference.low
    assert (alone.verdict, among.verdict) == ("leak", "no_leak_detected")


def test_an_interval_that_reaches_zero_is_no_leak_though_the_split_be_rare(sides: Sides) -> None:
    # Fourteen of members and six of others: one split in thirty, but the two-sided interval is wider than that.
    judged = judge(harvest(of_both(14, 6)), sides, RULE, seed=0)
    assert judged.p is not None
    assert judged.p <= 0.05
    assert judged.difference.low is not None
    assert judged.difference.low <= 0
    assert judged.verdict == "no_leak_detected"
    assert f"up to {judged.difference.high:.3f} stays compatible" in judged.reason


def test_parts_of_one_dialogue_are_one_finding(sides: Sides) -> None:
    # All twenty-one states are parts of the same seven triplets: the interval is sure, the split is not.
    whole = sorted(state("m0", 7))
    one = Dialogue("m0", (Turn("hello", frozenset(whole)),))
    told = take_sides(replace(SPLIT, members=(one, *SPLIT.members[1:])), seed=0)
    parts = [frozenset(whole) - {a, b} for i, a in enumerate(whole) for b in whole[:i]]
    judged = judge(harvest(parts), told, RULE, seed=0)
    assert (len(parts), judged.difference.value) == (21, 1)
    assert judged.difference.low is not None
    assert judged.difference.low > 0.6
    assert judged.p == pytest.approx(0.5, abs=0.05)
    assert judged.verdict == "no_leak_detected"


@pytest.mark.parametrize("n", [0, 1, 19])
def test_fewer_than_twenty_long_states_decide_nothing(n: int, sides: Sides) -> None:
    short = [state(f"m{i}", 4) for i in range(30)]
    judged = judge(harvest([*of_both(n, 0), *short]), sides, RULE, seed=0)
    assert judged.verdict == "inconclusive"
    assert judged.reason.startswith(f"{n} distinct states of 5 or more triplets")
    assert judged.difference.value == (1 if n else None)
    assert (judged.p is None) == (n == 0)


def test_short_states_never_count_towards_the_verdict(sides: Sides) -> None:
    # Thirty states of four triplets are the members' own; the long ones are fair.
    fair = of_both(10, 10)
    with_short = harvest([*(state(f"m{i}", 4) for i in range(30)), *fair])
    assert judge(with_short, sides, RULE, seed=0) == judge(harvest(fair), sides, RULE, seed=0)
    assert judge(with_short, sides, RULE._replace(min_triplets=4), seed=0).verdict == "leak"


def test_a_ranking_that_failed_decides_nothing(sides: Sides) -> None:
    found = harvest(of_both(20, 0))
    failed = replace(found, scores={}, failures={"dc_ppl": "3 of 20 values are not finite"})
    judged = judge(failed, sides, RULE, seed=0)
    assert (judged.verdict, judged.p, judged.difference.value) == ("inconclusive", None, None)
    assert "3 of 20 values are not finite" in judged.reason


def test_a_side_without_states_decides_nothing(sides: Sides) -> None:
    nobody = StateIndex.of(())
    for empty in (sides._replace(equal_members=nobody), sides._replace(equal_nonmembers=nobody)):
        judged = judge(harvest(of_both(20, 0)), empty, RULE, seed=0)
        assert (judged.verdict, judged.p, judged.difference.value) == ("inconclusive", None, None)
        assert "no known dialogue state" in judged.reason


def verdicts(found: Mapping[str, Verdict]) -> dict[str, Judged]:
    return {name: Judged(verdict, f"why {name}", unmeasured("made up"), None) for name, verdict in found.items()}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"a": "leak", "b": "no_leak_detected"}, "leak"),
        ({"a": "no_leak_detected", "b": "leak"}, "leak"),
        ({"a": "inconclusive", "b": "leak"}, "leak"),
        ({"a": "no_leak_detected", "b": "inconclusive"}, "no_leak_detected"),
        ({"a": "inconclusive", "b": "no_leak_detected"}, "inconclusive"),
    ],
)
def test_any_leak_is_one_and_else_the_registered_decoder_decides(found: dict[str, Verdict], expected: Verdict) -> None:
    assert overall(verdicts(found), "a") == (expected, ["a: why a", "b: why b"])
    assert overall(verdicts(dict(reversed(found.items()))), "a") == (expected, ["a: why a", "b: why b"])


def test_a_bot_that_knows_neither_side_rarely_seems_to_leak() -> None:
    # Sixty dialogues, of which a bot "knows" any forty; each split of them is a fair coin. At most 5% of the splits
    # may look like leaks: 7 or more of 40 would be less than one chance in a hundred.
    everyone = [*SPLIT.members, *SPLIT.nonmembers]
    n_leaks = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(everyone))
        split = AuditSplit(
            tuple(everyone[i] for i in order[:N_PER_SIDE]), tuple(everyone[i] for i in order[N_PER_SIDE:])
        )
        known = [everyone[i].turns[0].state or frozenset() for i in rng.permutation(len(everyone))[:40]]
        n_leaks += judge(harvest(known), take_sides(split, seed), RULE, seed).verdict == "leak"
    assert n_leaks < 7
