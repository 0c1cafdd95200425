"""Utility domain by domain: hand-counted, and against a naive count over random states."""

from __future__ import annotations

import random

import pytest

from hushbot.evaluation.bot import Played
from hushbot.evaluation.domain_utility import domain_scores, utility_by_domain
from hushbot.evaluation.state_scoring import STRICT, ScoringRules
from hushbot.evaluation.task_completion import Completion
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.types import Dialogue, DialogueState, Estimate, SlotValue, Turn


def state(*triplets: str) -> DialogueState:
    return frozenset(SlotValue(*triplet.split("-")) for triplet in triplets)


NORTH, SOUTH, MONDAY, FRIDAY = "hotel-area-north", "hotel-area-south", "train-day-monday", "train-day-friday"
FIRST = Dialogue(
    "first",
    (
        Turn("a", state(NORTH), response="one two three four five"),
        Turn("b", state(NORTH, MONDAY), response="six seven eight nine ten"),
        Turn("c", None, response="unknown to the corpus"),
    ),
)
SECOND = Dialogue("second", (Turn("d", state(FRIDAY), response="all aboard the next train"), Turn("e", state())))
PREDICTED: dict[str, list[DialogueState | None]] = {
    "first": [state(NORTH, MONDAY), state(SOUTH, MONDAY), state(NORTH)],
    "second": [None, state(NORTH)],
}


def play(
    dialogues: list[Dialogue],
    predicted: dict[str, list[DialogueState | None]],
    responses: dict[str, list[str]],
    failures: dict[str, str] | None = None,
) -> Played:
    turns = [
        TrackedTurn(
            dialogue=dialogue,
            turn=i,
            text="",
            state=predicted[dialogue.id][i],
            in_use=frozenset(),
            before=frozenset(),
            history=(),
            response=responses[dialogue.id][i] if dialogue.id in responses else None,
        )
        for dialogue in dialogues
        for i in range(len(dialogue.turns))
    ]
    return Played(tuple(turns), failures or {})


ECHO = {
    "first": ["one two three four five", "six seven eight nine ten", "no"],
    "second": ["a b c d e", "f"],
}


def values(found: dict[str, dict[str, Estimate]]) -> dict[str, dict[str, float | None]]:
    return {domain: {name: number.value for name, number in numbers.items()} for domain, numbers in found.items()}


def test_a_domain_counts_where_gold_holds_it_and_by_its_own_slots() -> None:
    found = utility_by_domain(play([FIRST, SECOND], PREDICTED, ECHO), [FIRST, SECOND], None, rules=STRICT, seed=0)
    # Hotel: turns a (right; the train is invented but not its business) and b (wrong). F1: 2 / (2 + 1 + 1).
    # Train: turns b (right) and d (unreadable): one triplet matched, one missed.
    assert list(found) == ["hotel", "train"]
    assert found["hotel"]["joint_goal_accuracy"].value == 0.5
    assert found["hotel"]["joint_goal_accuracy"].n == 2
    assert found["hotel"]["state_f1"].value == 0.5
    assert found["train"]["joint_goal_accuracy"].value == 0.5
    assert found["train"]["state_f1"].value == pytest.approx(2 / 3)
    # The answers of a and b are gold; of train's b and d the second is not.
    assert found["hotel"]["bleu"].value == pytest.approx(100)
    assert found["hotel"]["bleu"].n == found["train"]["bleu"].n == 2
    assert (found["train"]["bleu"].value or 100) < 100


def test_intervals_resample_dialogues() -> None:
    dialogues = [Dialogue(f"d{i}", (Turn("u", state(NORTH)), Turn("v", state(NORTH)))) for i in range(6)]
    predicted: dict[str, list[DialogueState | None]] = {
        f"d{i}": [state(NORTH if i < 3 else SOUTH)] * 2 for i in range(6)
    }
    found = utility_by_domain(play(dialogues, predicted, {}), dialogues, None, rules=STRICT, seed=0)
    accuracy = found["hotel"]["joint_goal_accuracy"]
    assert (accuracy.value, accuracy.n) == (0.5, 12)
    assert "6 clusters" in accuracy.method
    assert accuracy.low is not None
    assert accuracy.high is not None
    assert accuracy.low < 0.2
    assert accuracy.high > 0.8


def test_the_numbers_are_a_naive_count() -> None:
    rng = random.Random(0)
    choices = [NORTH, SOUTH, MONDAY, FRIDAY, "train-leave-dontcare"]

    def draw() -> DialogueState:
        picked = {choice.rsplit("-", 1)[0]: choice for choice in rng.sample(choices, 3)}
        return state(*picked.values())

    dialogues = [Dialogue(f"d{i}", tuple(Turn("u", draw()) for _ in range(4))) for i in range(12)]
    predicted: dict[str, list[DialogueState | None]] = {
        d.id: [turn.state if rng.random() < 0.5 else draw() for turn in d.turns] for d in dialogues
    }
    found = utility_by_domain(play(dialogues, predicted, {}), dialogues, None, rules=STRICT, seed=0)
    for domain in ("hotel", "train"):
        right, total = 0, 0
        for dialogue in dialogues:
            for turn, guess in zip(dialogue.turns, predicted[dialogue.id], strict=True):
                wanted = {t for t in turn.state or () if t.domain == domain}
                if wanted:
                    total += 1
                    right += {t for t in guess or () if t.domain == domain} == wanted
        assert 0 < right < total
        assert found[domain]["joint_goal_accuracy"].value == pytest.approx(right / total)
        assert found[domain]["joint_goal_accuracy"].n == total


def test_a_domain_of_ignored_values_alone_is_not_measured() -> None:
    careless = Dialogue("x", (Turn("u", state("hotel-area-dontcare")),))
    rules = ScoringRules(dontcare="ignore")
    guesses: dict[str, list[DialogueState | None]] = {"x": [state(NORTH)]}
    assert domain_scores(guesses, {"x": [careless.turns[0].state]}, "hotel", rules) == []
    found = utility_by_domain(play([careless], guesses, {}), [careless], None, rules=rules, seed=0)
    assert found["hotel"]["joint_goal_accuracy"].value is None
    assert "no turn's gold state holds anything of the domain" in found["hotel"]["state_f1"].method


def test_spellings_of_a_domain_are_one_domain() -> None:
    upper = Dialogue("x", (Turn("u", frozenset({SlotValue("Hotel", "area", "north")})), Turn("v", state(NORTH))))
    guesses: dict[str, list[DialogueState | None]] = {"x": [state(NORTH), state(NORTH)]}
    found = utility_by_domain(play([upper], guesses, {}), [upper], None, rules=STRICT, seed=0)
    assert {name: number["joint_goal_accuracy"].value for name, number in found.items()} == {"Hotel": 1}


def test_inform_and_success_are_over_the_goals_that_name_the_domain() -> None:
    done = {
        "first": Completion({"hotel": True, "train": False}, {"hotel": True, "train": True}),
        "second": Completion({"train": True, "taxi": True}, {"train": False, "taxi": True}),
        "third": Completion({"train": True}, {"train": True}),
    }
    found = utility_by_domain(play([FIRST, SECOND], PREDICTED, {}), [FIRST, SECOND], done, rules=STRICT, seed=0)
    by_goal = {d: (n["inform"].value, n["success"].value, n["inform"].n) for d, n in found.items()}
    assert by_goal == {
        "hotel": (1, 0, 1),  # its own offer fits, the train's does not
        "taxi": (1, 1, 1),
        "train": (pytest.approx(2 / 3), pytest.approx(1 / 3), 3),
    }
    assert set(found["taxi"]) == {"inform", "success"}  # no state is about it


def test_what_failed_is_not_measured_in_any_domain() -> None:
    mute = play([FIRST, SECOND], PREDICTED, {}, {"responses": "responses are off"})
    found = utility_by_domain(mute, [FIRST, SECOND], None, rules=STRICT, seed=0)
    assert found["hotel"]["bleu"].method == "not measured: responses are off"
    assert found["hotel"]["joint_goal_accuracy"].value == 0.5
    deaf = Played((), {"states": "the endpoint is down", "responses": "the endpoint is down"})
    found = utility_by_domain(deaf, [FIRST, SECOND], None, rules=STRICT, seed=0)
    assert values(found) == {
        domain: {"joint_goal_accuracy": None, "state_f1": None, "bleu": None} for domain in ("hotel", "train")
    }
