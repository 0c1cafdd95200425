from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.corpora.multiwoz_database import MultiwozDatabase, Table
from hushbot.errors import AuditError
from hushbot.evaluation.task_utility import TASK_METRICS, complete_all, has_tasks, measure_tasks
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.prompts import render_state
from hushbot.types import Decoding, Dialogue, DialogueState, SlotValue, Turn

DATABASE = MultiwozDatabase(
    {
        "hotel": Table.of(
            [
                {"name": "mill pond lodge", "area": "south", "phone": "01223000111"},
                {"name": "old barn", "area": "north", "phone": "01223000222"},
            ]
        )
    }
)
SOUTH: DialogueState = frozenset({SlotValue("hotel", "area", "south")})
NORTH: DialogueState = frozenset({SlotValue("hotel", "area", "north")})
GOAL = {"hotel": {"info": {"area": "south"}, "reqt": ["phone"]}, "message": []}
GOOD = "Mill Pond Lodge , call 01223000111 ."


def dialogue(name: str, goal: dict[str, object] | None = GOAL) -> Dialogue:
    return Dialogue(name, (Turn(f"a hotel in the south, says {name}", SOUTH, response=GOOD),), ("hotel",), goal)


def tracked(name: str, state: DialogueState = SOUTH, response: str | None = GOOD) -> TrackedTurn:
    return TrackedTurn(
        dialogue=dialogue(name),
        turn=0,
        text="",
        state=state,
        in_use=state,
        before=frozenset(),
        history=(),
        response=response,
    )


class Bot:
    """Answers every prompt with the same state and answer."""

    reference = None

    def __init__(self, state: DialogueState = SOUTH, response: str = GOOD, *, fails: bool = False) -> None:
        self.state, self.response, self.fails = state, response, fails

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if prompts[0].endswith("Response:") and self.fails:
            raise AuditError("the endpoint is down")
        is_state = prompts[0].endswith("Belief State:")
        return [[f" {render_state(self.state)}" if is_state else f" {self.response}"] * n for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        return [torch.zeros(len(text)) for text in continuations]


DIALOGUES = [dialogue(f"d{i}") for i in range(4)]


def test_rates_are_over_dialogues_with_intervals() -> None:
    turns = [tracked("a"), tracked("b"), tracked("c", response="Mill Pond Lodge it is ."), tracked("d", NORTH)]
    found = measure_tasks(turns, DATABASE, seed=0).estimates
    assert set(found) == set(TASK_METRICS)
    # c keeps the phone number to itself; d offers a venue in the north.
    assert found["inform"].value == 0.75
    assert found["success"].value == 0.5
    for name in TASK_METRICS:
        low, value, high = found[name].low, found[name].value, found[name].high
        assert low is not None
        assert value is not None
        assert high is not None
        assert low <= value <= high
        assert found[name].n == 4
    assert found["inform"].low != found["inform"].high


def test_units_sum_to_the_rates_and_by_domain_is_by_goal() -> None:
    turns = [tracked("a"), tracked("b"), tracked("c", response="Mill Pond Lodge it is ."), tracked("d", NORTH)]
    found = measure_tasks(turns, DATABASE, seed=0)
    assert set(found.units) == set(TASK_METRICS) - {"combined"}
    for name, units in found.units.items():
        assert units.documents == ["a", "b", "c", "d"]
        assert units.weights == [1.0] * 4
        assert sum(value or 0 for value in units.values) / 4 == found.estimates[name].value
    assert found.units["success"].values == [1, 1, 0, 0]
    by_domain = measure_utility(Bot(), DIALOGUES, DATABASE, seed=0).by_domain
    assert {name: number.value for name, number in by_domain["hotel"].items()} == {
        "joint_goal_accuracy": 1,
        "state_f1": 1,
        "bleu": pytest.approx(100),
        "inform": 1,
        "success": 1,
    }


def test_the_combined_score_is_the_mean_of_both_in_points_plus_bleu() -> None:
    result = measure_utility(Bot(), DIALOGUES, DATABASE, seed=0)
    found = {name: estimate.value for name, estimate in result.estimates.items()}
    assert found["inform"] == found["success"] == 1
    assert found["bleu"] == pytest.approx(100)
    assert found["combined"] == pytest.approx(200)
    lost = measure_utility(Bot(NORTH), DIALOGUES, DATABASE, seed=0).estimates
    assert lost["inform"].value == lost["success"].value == 0
    assert lost["combined"].value == pytest.approx(100)


def test_the_order_of_dialogues_changes_no_rate() -> None:
    turns = [tracked("a"), tracked("b", NORTH), tracked("c", response="no")]
    there, back = (complete_all(some, DATABASE) for some in (turns, turns[::-1]))
    assert there == back


def test_the_protocol_names_both_rules() -> None:
    protocol = measure_utility(Bot(), DIALOGUES, DATABASE, seed=0).protocol
    assert protocol["task_dialogues"] == 4
    assert "state changed last" in str(protocol["active_domain"])
    assert "by_slot_names" in str(protocol["active_domain"])
    json.dumps(protocol, allow_nan=False)


def test_without_goals_or_tables_the_numbers_are_absent_never_zero() -> None:
    without_goal = [replace(each, goal=None) for each in DIALOGUES]
    for dialogues, database in ((DIALOGUES, None), (without_goal, DATABASE), ([], DATABASE)):
        assert not has_tasks(dialogues, database)
        result = measure_utility(Bot(), dialogues, database, seed=0)
        assert not set(TASK_METRICS) & set(result.estimates)
        assert "active_domain" not in result.protocol


def test_dialogues_without_a_goal_do_not_count() -> None:
    mixed = [dialogue("a"), dialogue("b", None), dialogue("c", {"message": []})]
    found = measure_utility(Bot(), mixed, DATABASE, seed=0)
    assert found.estimates["inform"].n == 1
    assert found.protocol["task_dialogues"] == 1
    assert found.estimates["combined"].value == pytest.approx(200)


def test_answers_that_could_not_be_had_are_not_measured() -> None:
    failed = measure_utility(Bot(fails=True), DIALOGUES, DATABASE, seed=0).estimates
    off = measure_utility(Bot(), DIALOGUES, DATABASE, UtilitySettings(responses=False), seed=0).estimates
    for name in TASK_METRICS:
        assert failed[name].value is None
        assert failed[name].method == "not measured: the endpoint is down"
        assert off[name].value is None
        assert "utility.responses" in off[name].method


def test_gold_answers_of_the_corpus_nearly_always_succeed(shared_dir: Path) -> None:
    corpus = load_multiwoz(shared_dir / "data" / "multiwoz21", parts=["test"])
    assert isinstance(corpus.database, MultiwozDatabase)
    turns = [
        TrackedTurn(
            dialogue=each,
            turn=i,
            text="",
            state=turn.state,
            in_use=turn.state or frozenset(),
            before=frozenset(),
            history=(),
            response=turn.response,
        )
        for each in corpus.dialogues[:200]
        for i, turn in enumerate(each.turns)
    ]
    found = complete_all(turns, corpus.database)["state_change"].values()
    assert len(found) == 200
    # With marked values instead of found ones the whole test set has 92.5 and 88.7 of 100.
    assert sum(result.inform for result in found) >= 176
    assert sum(result.success for result in found) >= 168
