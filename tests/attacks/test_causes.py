"""Repetitions counted by hand, and ranks under a bot whose probabilities are written down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from hushbot.attacks import causes
from hushbot.attacks.causes import ask_next, rank_causes, repetition_causes
from hushbot.attacks.completions import Completed, Side
from hushbot.attacks.state_metrics import StateIndex
from hushbot.attacks.targeted_prefixes import Prefix, collect_prefixes
from hushbot.errors import AuditError
from hushbot.schema import Schema, Slot
from hushbot.types import Decoding, Dialogue, DialogueState, Estimate, Metric, SlotValue, Turn

if TYPE_CHECKING:
    from torch import Tensor

AREA, NAME, STARS = (
    SlotValue("hotel", "area", "north"),
    SlotValue("hotel", "name", "ritz"),
    SlotValue("hotel", "stars", "4"),
)
TAXI = SlotValue("taxi", "to", "ely")


def state(*triplets: SlotValue) -> DialogueState:
    return frozenset(triplets)


ANN = Dialogue("ann", tuple(Turn("hello", each) for each in (state(AREA), state(AREA, NAME), state(AREA, NAME, STARS))))
BOB = Dialogue("bob", (Turn("hello", state(AREA, NAME)), Turn("hello", None)))
SCHEMA = Schema.of(Slot(each.domain, each.slot) for each in (AREA, NAME, STARS, TAXI))


def value_of(metric: Metric) -> float | None:
    assert isinstance(metric, Estimate)
    return metric.value


def test_repetitions_count_the_turns_that_hold_a_correct_state() -> None:
    dialogues = [ANN, BOB]
    members, _ = collect_prefixes(dialogues, [], [1, 2], max_prefixes=9, seed=0)
    draws = {
        "Belief State: Hotel(area=north,": [Completed(" name=ritz)", state(AREA, NAME), {})],
        "Belief State: Hotel(area=north, name=ritz,": [Completed(" stars=5)", state(AREA, NAME), {})],
    }
    metrics = repetition_causes(Side.of(members, draws, StateIndex.of(dialogues)), dialogues)
    assert value_of(metrics["causes/repetitions/l=1"]) == 3  # two turns of Ann's, one of Bob's
    missing = metrics["causes/repetitions/l=2"]
    assert value_of(missing) is None
    assert isinstance(missing, Estimate)
    assert missing.level == 0.99


@dataclass
class Written:
    """Gives a phrase the probability that is written down for it, and any other one in a million."""

    probabilities: Mapping[str, float]
    reference: None = None
    n_asked: int = 0

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        raise NotImplementedError

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        self.n_asked += len(prompts)
        return [torch.tensor([math.log(self.probabilities.get(phrase, 1e-6))]) for phrase in continuations]


def ranks_of(bot: Written, dialogues: Sequence[Dialogue], length: int = 1) -> dict[str, float | None]:
    prefixes = collect_prefixes(dialogues, [], [length], max_prefixes=9, seed=0)[0]
    found = rank_causes(bot, dialogues, prefixes, SCHEMA, n_ranked=5, seed=0)
    assert found.n_queries == bot.n_asked
    return {name: value_of(metric) for name, metric in found.metrics.items()}


GUEST = Dialogue("guest", (Turn("hello", state(AREA, NAME)),))
OTHERS = [
    Dialogue(f"n{i}", (Turn("hello", state(SlotValue("hotel", "name", name))),))
    for i, name in enumerate(["cat", "dog"])
]


def test_ranks_by_hand() -> None:
    bot = Written(
        {", name=": 0.3, ", stars=": 0.6, ") Taxi(to=": 0.1, "ritz,": 0.2, "ritz)": 0.2, "cat)": 0.5, "dog,": 0.1}
    )
    found = ranks_of(bot, [GUEST, *OTHERS])
    assert found["causes/slot/mean_rank/l=1"] == 2  # after the stars
    assert found["causes/value/mean_rank/l=1"] == 2  # 0.4 however it ends, after the cat's 0.5
    assert found["causes/pair/mean_rank/l=1"] == 2  # 0.12 after 0.15; nobody is known to have said any stars
    assert found["causes/slot/rank1/l=1"] == 0
    assert found["causes/slot/beyond5/l=1"] == 0
    # three slots; three names ended in two ways
    assert bot.n_asked == 3 + 3 * 2


def test_a_rival_slot_counts_by_its_values() -> None:
    stars = [Dialogue(f"s{n}", (Turn("hello", state(SlotValue("hotel", "stars", n))),)) for n in "123"]
    bot = Written({", name=": 0.3, ", stars=": 0.6, "ritz)": 0.5, "1)": 0.6, "2)": 0.3, "3,": 0.05, ") Taxi(to=": 0.1})
    found = ranks_of(bot, [GUEST, *stars])
    assert found["causes/value/rank1/l=1"] == 1
    assert found["causes/pair/mean_rank/l=1"] == 3  # 0.15 after 0.36 and 0.18, before 0.03


def test_what_is_as_probable_stands_before_the_truth() -> None:
    found = ranks_of(Written({}), [GUEST, *OTHERS])
    assert found["causes/slot/mean_rank/l=1"] == 3
    assert found["causes/value/mean_rank/l=1"] == 3


def test_pruned_pair_ranks_equal_those_of_scoring_every_pair() -> None:
    import random

    rng = random.Random(0)
    names = [f"v{i}" for i in range(12)]
    dialogues = []
    for i in range(30):
        chosen = {
            key: SlotValue(*key, rng.choice(names))
            for key in [("hotel", "area"), ("hotel", "name"), ("hotel", "stars"), ("taxi", "to")]
        }
        dialogues.append(Dialogue(f"d{i:02}", (Turn("hello", frozenset(list(chosen.values())[: rng.randint(2, 4)])),)))
    phrases = [", name=", ", stars=", ") Taxi(to=", ", area=", *(name + end for name in names for end in ",)")]
    bot = Written({phrase: rng.random() / 2 for phrase in phrases})
    prefixes = collect_prefixes(dialogues, [], [1, 2], max_prefixes=99, seed=0)[0]
    questions = ask_next(dialogues, prefixes, SCHEMA, n_ranked=99, seed=0)
    ranks = causes.rank_all(causes._Scorer(bot), questions)
    assert len(ranks) > 20
    for question, rank in zip(questions, ranks, strict=True):
        p = bot.probabilities
        every = {
            (key, value): p[phrase] * (p[f"{value},"] + p[f"{value})"])
            for key, phrase in question.slots.items()
            for value in question.values[key]
        }
        true = every[question.true, question.value]
        assert rank.pair == sum(found >= true * (1 - 1e-6) for found in every.values())


def test_the_domain_may_change_and_closed_ones_stay_closed() -> None:
    traveller = Dialogue("t", (Turn("hello", state(AREA, TAXI, SlotValue("taxi", "time", "9"))),))
    prefixes = collect_prefixes([traveller], [], [1, 2], max_prefixes=9, seed=0)[0]
    first, second = ask_next([traveller], prefixes, SCHEMA, n_ranked=5, seed=0)
    assert first.prompt == "Belief State: Hotel(area=north"
    assert first.true == ("taxi", "time")
    assert dict(first.slots) == {
        ("hotel", "name"): ", name=",
        ("hotel", "stars"): ", stars=",
        ("taxi", "to"): ") Taxi(to=",
        ("taxi", "time"): ") Taxi(time=",
    }
    assert second.prompt == "Belief State: Hotel(area=north) Taxi(time=9"
    assert dict(second.slots) == {("taxi", "to"): ", to="}


def test_at_most_fifty_values_compete_the_true_one_among_them() -> None:
    crowd = [Dialogue(f"c{i}", (Turn("hello", state(SlotValue("hotel", "name", f"n{i}"))),)) for i in range(80)]
    prefixes: list[Prefix] = collect_prefixes([GUEST, *crowd], [], [1], max_prefixes=9, seed=0)[0]
    (question,) = ask_next([GUEST, *crowd], prefixes, SCHEMA, n_ranked=5, seed=0)
    assert len(question.values["hotel", "name"]) == 50
    assert question.values["hotel", "name"].count("ritz") == 1


def test_nothing_is_asked_unless_asked_for() -> None:
    found = rank_causes(
        Written({}), [GUEST], collect_prefixes([GUEST], [], [1], max_prefixes=9, seed=0)[0], SCHEMA, n_ranked=0, seed=0
    )
    assert found == ({}, 0, [])


def test_a_failed_query_leaves_every_rank_unmeasured_and_says_so() -> None:
    class Mute(Written):
        def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
            raise AuditError("no log-probabilities")

    prefixes = collect_prefixes([GUEST], [], [1], max_prefixes=9, seed=0)[0]
    found = rank_causes(Mute({}), [GUEST], prefixes, SCHEMA, n_ranked=5, seed=0)
    assert len(found.metrics) == 9
    assert {value_of(metric) for metric in found.metrics.values()} == {None}
    assert found.notes == ["ranks not measured: a query failed: no log-probabilities"]


def test_nan_is_a_failure() -> None:
    bot = Written({", name=": math.nan})
    prefixes = collect_prefixes([GUEST], [], [1], max_prefixes=9, seed=0)[0]
    found = rank_causes(bot, [GUEST], prefixes, SCHEMA, n_ranked=5, seed=0)
    assert value_of(found.metrics["causes/slot/rank1/l=1"]) is None


@pytest.mark.parametrize("value", ["a, b", "x=y (z)"])
def test_values_are_spelled_as_a_state_spells_them(value: str) -> None:
    assert causes._written(value) == value.translate({ord(c): f"\\{c}" for c in ",()="})
