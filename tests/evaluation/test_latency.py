"""Seconds per turn: one turn at a time, the same questions as when the bot was run, and a hand-checked interval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from hushbot.errors import AuditError
from hushbot.evaluation import latency
from hushbot.evaluation.bot import Bot
from hushbot.evaluation.latency import FEWEST_TURNS, median, seconds_per_turn
from hushbot.evaluation.tracking import Asker, TrackedTurn
from hushbot.evaluation.utility import UtilitySettings, measure_utility
from hushbot.protocols import Target
from hushbot.targets.answer_store import AnswerStore
from hushbot.targets.cache import remember
from hushbot.targets.guarded import GuardedTarget
from hushbot.types import Decoding, Dialogue, SlotValue, Turn

NORTH = frozenset({SlotValue("hotel", "area", "north")})
DIALOGUES = [
    Dialogue(
        f"d{i}",
        (
            Turn(f"north {i}", NORTH, "2 found", "hotel-request()", "How many stars?"),
            Turn("any", NORTH, "1 found", "hotel-inform()", "The Avalon."),
        ),
    )
    for i in range(5)
]


class Plain:
    """Answers every prompt with a readable state, whatever is asked, and keeps count of the questions."""

    reference = None

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails_alone = False

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        if self.fails_alone and len(prompts) == 1:
            raise AuditError("the endpoint is down")
        self.calls.append(list(prompts))
        return [[" Hotel(area=north)"] * n for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[torch.Tensor]:
        return [torch.full((len(text),), -0.5) for text in continuations]


def played(target: Target, *, learns_changes: bool, is_answering: bool = True) -> tuple[Bot, tuple[TrackedTurn, ...]]:
    bot = Bot(Asker(target=target, max_new_tokens=20, seed=0), None, learns_changes)
    return bot, bot.play(DIALOGUES, is_answering=is_answering).turns


def test_the_median_lies_between_two_order_statistics() -> None:
    # Of 20 values the 6th and the 15th: a fair coin thrown 20 times shows at most 5 heads with probability 0.0207.
    found = median([float(i) for i in range(20, 0, -1)])
    assert (found.value, found.low, found.high, found.n) == (10.5, 6.0, 15.0, 20)
    # Of 6 values the smallest and the largest, 1 - 2 / 64; of 5 not even those, 1 - 2 / 32.
    found = median([3.0, 1.0, 2.0, 9.0, 5.0, 4.0])
    assert (found.value, found.low, found.high) == (3.5, 1.0, 9.0)
    few = median([1.0] * (FEWEST_TURNS - 1))
    assert (few.value, few.low, few.n) == (None, None, 5)
    assert "not measured: 5 turns were timed, too few" in few.method


@pytest.mark.parametrize("learns_changes", [True, False])
def test_turns_are_asked_one_at_a_time_as_when_the_bot_was_run(learns_changes: bool) -> None:
    target = Plain()
    bot, turns = played(target, learns_changes=learns_changes)
    before = [prompt for call in target.calls for prompt in call]
    n_calls = len(target.calls)
    found = seconds_per_turn(bot, turns, n_turns=8, is_answering=True, seed=0)
    repeated = target.calls[n_calls:]
    assert [len(call) for call in repeated] == [1] * 27  # 8 turns and one to warm up: state, actions, response
    assert {call[0].rsplit("\n", 1)[-1].split(":")[0] for call in repeated} == {"Belief State", "Actions", "Response"}
    assert {call[0] for call in repeated} <= set(before)
    assert found.n == 8
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert 0 < found.low <= found.value <= found.high
    assert "state and response" in found.method


def test_without_answers_the_state_alone_is_timed() -> None:
    target = Plain()
    bot, turns = played(target, learns_changes=False, is_answering=False)
    n_calls = len(target.calls)
    found = seconds_per_turn(bot, turns, n_turns=6, is_answering=False, seed=0)
    assert all(call[0].endswith("Belief State:") for call in target.calls[n_calls:])
    assert len(target.calls) - n_calls == 7
    assert "state only" in found.method


def test_the_first_turn_warms_up_and_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bot, turns = played(Plain(), learns_changes=False)
    seconds = iter([99.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    clock: list[float] = []

    def now() -> float:
        clock.append(clock[-1] + next(seconds) if len(clock) % 2 else 0.0)
        return clock[-1]

    monkeypatch.setattr(latency, "_now", now)
    found = seconds_per_turn(bot, turns, n_turns=6, is_answering=True, seed=0)
    assert (found.value, found.low, found.high) == (3.5, 1.0, 6.0)


def test_nothing_is_asked_where_the_turns_are_too_few() -> None:
    target = Plain()
    bot, turns = played(target, learns_changes=False)
    n_calls = len(target.calls)
    found = seconds_per_turn(bot, turns[:FEWEST_TURNS], n_turns=20, is_answering=True, seed=0)
    assert found.value is None
    assert found.method == "not measured: 6 turns to time, 6 and one to warm up needed"
    assert len(target.calls) == n_calls


def test_a_target_that_fails_has_no_latency_and_keeps_its_utility() -> None:
    target = Plain()
    target.fails_alone = True
    result = measure_utility(target, DIALOGUES, None, seed=0)
    assert result.seconds_per_turn is not None
    assert result.seconds_per_turn.value is None
    assert result.seconds_per_turn.method == "not measured: the endpoint is down"
    assert result.estimates["joint_goal_accuracy"].value == 1


def test_timing_changes_no_other_number() -> None:
    timed = measure_utility(Plain(), DIALOGUES, None, seed=0)
    untimed = measure_utility(Plain(), DIALOGUES, None, UtilitySettings(latency_turns=0), seed=0)
    assert untimed.seconds_per_turn is None
    assert timed.seconds_per_turn is not None
    assert timed.seconds_per_turn.n == 9  # ten turns, one to warm up
    for name in ("estimates", "by_domain", "units", "protocol", "rows"):
        assert getattr(timed, name) == getattr(untimed, name)


def test_a_stage_that_failed_is_not_timed() -> None:
    class Mute(Plain):
        def sample(self, prompts: Sequence[str], **settings: Any) -> list[list[str]]:
            if prompts[0].endswith("Response:"):
                raise AuditError("no response today")
            return super().sample(prompts, **settings)

    target = Mute()
    found = measure_utility(target, DIALOGUES, None, seed=0).seconds_per_turn
    assert found is not None
    assert found.method == "not measured: no response today"


class Known(Plain):
    """A bot that says who it is, as one whose answers are kept must."""

    @property
    def identity(self) -> str:
        return "known"


def test_kept_answers_are_not_timed(tmp_path: Path) -> None:
    inner = Known()
    store = AnswerStore(tmp_path / "cache")
    try:
        bot, turns = played(remember(inner, store), learns_changes=False)
        n_calls = len(inner.calls)
        assert seconds_per_turn(bot, turns, n_turns=6, is_answering=True, seed=0).n == 6
        assert len(inner.calls) - n_calls == 21
        hidden, _ = played(GuardedTarget(remember(inner, store)), learns_changes=False)
        found = seconds_per_turn(hidden, turns, n_turns=6, is_answering=True, seed=0)
        assert found.value is None
        assert "behind a guard" in found.method
    finally:
        store.close()


@pytest.mark.parametrize("turns", [-1, 1, FEWEST_TURNS - 1])
def test_a_setting_that_gives_no_interval_is_refused(turns: int) -> None:
    with pytest.raises(ValueError, match=rf"latency_turns={turns} must be at least 6.*or 0; set utility.latency_turns"):
        UtilitySettings(latency_turns=turns)
