"""From samples to distinct states: every sample is accounted for, and rankings put the familiar first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.attacks import state_candidates
from hushbot.attacks.state_candidates import Candidate, Harvest, read_candidates, score_candidates
from hushbot.types import SlotValue


def texts(samples: Sequence[str]) -> list[tuple[str, int]]:
    return [(c.text, c.count) for c in read_candidates(samples).candidates]


def test_distinct_states_are_counted_whatever_their_order_or_case() -> None:
    samples = [
        " Hotel(area=north, stars=4)",
        " Hotel(stars=4, area=north)",
        " Hotel(area=North, stars=4)",
        " Taxi(departure=ely)",
    ]
    assert texts(samples) == [("Hotel(area=north, stars=4)", 3), ("Taxi(departure=ely)", 1)]


def test_third_states_are_counted_apart() -> None:
    samples = [
        " None",
        "",
        " ",
        " I have no idea",
        " Hotel(area=nor",
        " Hotel(area=north, stars=",
        " Hotel(area=north, area=south)",
        " Taxi(departure=ely)",
    ]
    candidates, counts = read_candidates(samples)
    assert counts == {
        "samples": 8,
        "parse_failures": 4,
        "empty_states": 1,
        "cut_states": 1,
        "format_errors": 1,
    }
    assert [c.text for c in candidates] == ["Hotel(area=north)", "Hotel(area=south)", "Taxi(departure=ely)"]


SAMPLES = st.lists(
    st.sampled_from(["", " None", " junk", " Hotel(a=1", " Hotel(a=1, b=", " Hotel(a=1)", " hotel(A=1) Taxi(b=2)"])
    | st.text(alphabet="Hotel(a=1, )\\\n", max_size=12),
    max_size=12,
)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_every_sample_is_counted_once_in_any_order(samples: list[str], random: Any) -> None:
    outcomes = read_candidates(samples)
    n_states = sum(candidate.count for candidate in outcomes.candidates)
    assert len(samples) == n_states + outcomes.counts["parse_failures"] + outcomes.counts["empty_states"]
    shuffled = random.sample(samples, len(samples))
    assert read_candidates(shuffled) == outcomes


def candidates(n: int) -> list[Candidate]:
    return [Candidate(frozenset({SlotValue("hotel", "stars", str(i))}), f"Hotel(stars={i})", 1) for i in range(n)]


def test_low_scores_rank_first_and_ties_fall_at_random() -> None:
    harvest = Harvest(candidates(40), {}, {"ppl": np.array([5.0] * 39 + [1.0]), "dc_ppl": np.arange(40.0)})
    orders = harvest.rankings(seed=3)
    assert orders["dc_ppl"] == list(range(40))
    assert orders["ppl"][0] == 39
    assert orders["ppl"][1:] == [i for i in orders["none"] if i != 39]
    assert sorted(orders["none"]) == list(range(40))
    assert orders["none"] != list(range(40))
    assert harvest.rankings(seed=4)["none"] != orders["none"]


def test_a_score_that_is_not_finite_ranks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(target: Any, prefixes: Sequence[str], suffixes: Sequence[str], *, names: Sequence[str]) -> dict[str, Any]:
        assert set(names) == {"ppl", "ppl_zlib", "c_ppl", "dc_ppl"}
        assert prefixes == ["Belief State:"]
        assert suffixes == [" Taxi(departure=ely)"]
        return {"ppl": np.ones(1), "ppl_zlib": np.ones(1), "c_ppl": np.ones(1), "dc_ppl": np.array([np.nan])}

    monkeypatch.setattr(state_candidates, "score", score)
    harvest = score_candidates(None, read_candidates([" Taxi(departure=ely)"]))  # type: ignore[arg-type]
    assert set(harvest.scores) == {"ppl", "ppl_zlib", "c_ppl"}
    assert harvest.failures == {"dc_ppl": "1 of 1 values are not finite"}
