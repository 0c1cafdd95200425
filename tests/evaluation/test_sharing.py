"""A bot run over dialogues by several processes: every dialogue once, the numbers of one, or none at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hushbot.errors import AuditError, HushbotError, MachineError
from hushbot.evaluation.bot import Played
from hushbot.evaluation.sharing import Team, merged
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.evaluation.utility import UtilityResult, UtilitySettings, measure_utility
from hushbot.types import Dialogue, SlotValue, Turn

SETTINGS = UtilitySettings(latency_turns=0)


def dialogue(number: int) -> Dialogue:
    """Return a dialogue of one to three turns, with a state that grows."""
    turns = []
    for i in range(1 + number % 3):
        state = frozenset(SlotValue("hotel", f"slot{j}", f"v{number}") for j in range(i + 1))
        turns.append(
            Turn(f"user {number} says {i}", state, "", f"hotel-inform(a={i})", f"Answer {i} to guest {number}.")
        )
    return Dialogue(f"d{number}", tuple(turns))


SEVEN = tuple(map(dialogue, range(7)))


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., UtilityResult]:
    """Return a function that measures the utility of a bot that knows everything, in so many processes."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
    from playing import player  # type: ignore[import-not-found]

    def run(
        n_processes: int, dialogues: Sequence[Dialogue] = SEVEN, fails_at: str = "-", settings: Any = SETTINGS
    ) -> UtilityResult:
        folder = tmp_path / str(n_processes)
        folder.mkdir()
        make = partial(player, SEVEN, folder, fails_at)
        team = None if n_processes == 1 else Team(make=make, n_processes=n_processes)
        return measure_utility(make(), dialogues, None, settings, seed=0, team=team)

    return run


def asked(folder: Path) -> dict[int, list[str]]:
    """Return what each process asked."""
    return {int(path.name): path.read_text(encoding="utf-8").splitlines() for path in folder.iterdir()}


def users(prompts: Sequence[str]) -> set[str]:
    return {prompt.split("User: user ")[1].split(" ")[0] for prompt in prompts}


def test_seven_dialogues_in_two_processes_are_four_and_three_and_the_numbers_of_one(
    measure: Callable[..., UtilityResult], tmp_path: Path
) -> None:
    one, two = measure(1), measure(2)
    assert two == one
    (alone,) = asked(tmp_path / "1").values()
    shares = asked(tmp_path / "2")
    mine, (theirs,) = shares.pop(os.getpid()), shares.values()
    assert (users(mine), users(theirs)) == ({"0", "2", "4", "6"}, {"1", "3", "5"})
    assert sorted(mine + theirs) == sorted(alone)  # the same questions, none twice
    assert len(set(alone)) == len(alone)


def test_there_are_no_more_processes_than_dialogues(measure: Callable[..., UtilityResult], tmp_path: Path) -> None:
    assert measure(3, SEVEN[:2]).estimates == measure(1, SEVEN[:2]).estimates
    assert len(asked(tmp_path / "3")) == 2
    measure(4, SEVEN[:1])
    assert list(asked(tmp_path / "4")) == [os.getpid()]


@pytest.mark.parametrize(
    ("fails_at", "lost", "kept"),
    [
        ("Belief State:", {"joint_goal_accuracy", "state_f1", "bleu"}, {"perplexity"}),
        ("Response:", {"bleu"}, {"joint_goal_accuracy", "perplexity"}),
        ("scores", {"perplexity"}, {"joint_goal_accuracy", "bleu"}),
    ],
)
def test_a_bot_that_fails_in_one_process_has_no_number(
    measure: Callable[..., UtilityResult], fails_at: str, lost: set[str], kept: set[str]
) -> None:
    result = measure(2, fails_at=fails_at)
    for name in lost:
        assert result.estimates[name].value is None
        assert "the endpoint" in result.estimates[name].method
    assert all(result.estimates[name].value is not None for name in kept)
    assert not any(row["response"] for row in result.rows) or "bleu" not in lost


def test_a_process_that_fails_is_an_error_and_no_mean_over_the_others(measure: Callable[..., UtilityResult]) -> None:
    with pytest.raises(HushbotError, match=r"process 1 of 2 .* failed: KeyError: 'no such weight'"):
        measure(2, fails_at="bug")
    with pytest.raises(MachineError, match=r"process 1 of 3 .* was killed by SIGKILL"):
        measure(3, fails_at="death")


def played(*dialogues: Dialogue) -> Played:
    turns = [
        TrackedTurn(
            dialogue=one,
            turn=i,
            text="",
            state=None,
            in_use=frozenset(),
            before=frozenset(),
            history=(),
            response="yes",
        )
        for one in dialogues
        for i in range(len(one.turns))
    ]
    return Played(tuple(turns), {})


def names(found: Played) -> list[tuple[str, int]]:
    return [(turn.dialogue.id, turn.turn) for turn in found.turns]


def test_parts_come_back_in_the_order_of_the_dialogues() -> None:
    parts = [played(SEVEN[0], SEVEN[3], SEVEN[6]), played(SEVEN[1], SEVEN[4]), played(SEVEN[2], SEVEN[5])]
    assert names(merged(parts, SEVEN)) == names(played(*SEVEN))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([played(SEVEN[0], SEVEN[2]), played()], "dialogue d1, turn 0: nothing came back"),
        ([played(SEVEN[0]), played(SEVEN[1])], "dialogue d2, turn 0: nothing came back"),
        ([played(SEVEN[0], SEVEN[0]), played(SEVEN[1])], "dialogue d2, turn 0: turn 0 of d0 came back"),
        ([played(SEVEN[0], SEVEN[2]), played(SEVEN[1], SEVEN[1])], "2 turns too many came back, the first of dialogue"),
    ],
)
def test_a_dialogue_that_is_missing_or_there_twice_is_an_error(parts: list[Played], said: str) -> None:
    with pytest.raises(AuditError, match=said):
        merged(parts, SEVEN[:3])


def test_answers_of_a_part_are_no_answers() -> None:
    half = played(SEVEN[1])._replace(failures={"responses": "the endpoint failed"})
    found = merged([played(SEVEN[0]), half], SEVEN[:2])
    assert found.failures == {"responses": "the endpoint failed"}
    assert [turn.response for turn in found.turns] == [None] * 3
    assert names(found) == names(played(*SEVEN[:2]))
    none = merged([played(SEVEN[0]), Played((), {"states": "off", "responses": "off"})], SEVEN[:2])
    assert none == Played((), {"states": "off", "responses": "off"})


def test_responses_that_are_off_are_off(measure: Callable[..., UtilityResult]) -> None:
    settings = replace(SETTINGS, responses=False)
    assert measure(2, settings=settings) == measure(1, settings=settings)
