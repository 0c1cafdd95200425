"""Inform, Success and the combined score of a bot that was run over dialogues of MultiWOZ, as utility.

Guarantees: measured only where the corpus has MultiWOZ's tables and goals, otherwise absent; every number is an
`Estimate` whose interval resamples dialogues; both rules of what a turn is about are measured, `inform` and `success`
by the change of state, `inform_by_slot_names` and `success_by_slot_names` by what the answer names.

What voids comparability with published numbers: hushbot's bots write plain answers, in which venues, phones, codes
and so on are found by the tables and by shape (`placeholders`); an offer made in other words is missed. Answers follow
gold histories. `combined` takes BLEU on plain text. The gold dialogue says when a reference could be given.
Rules and source: `task_completion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushbot.corpora.multiwoz_database import MultiwozDatabase
from hushbot.evaluation.placeholders import Answer, Delexicaliser
from hushbot.evaluation.response_scoring import answered, bleu_counts, bleu_of_counts
from hushbot.evaluation.state_rates import ratio_units
from hushbot.evaluation.task_completion import (
    ACTIVE_DOMAIN_RULES,
    ActiveDomainRule,
    Completion,
    TaskTurn,
    active_domains,
    booked_domains,
    complete,
    goals_of,
    plain_state,
)
from hushbot.evaluation.tracking import TrackedTurn
from hushbot.evaluation.venue_search import VenueSearch
from hushbot.protocols import Database
from hushbot.stats import Bootstrap, cluster_bootstrap
from hushbot.types import Dialogue, Estimate, Units

_SUFFIX: Mapping[ActiveDomainRule, str] = {"state_change": "", "slot_names": "_by_slot_names"}
TASK_METRICS = (
    *(f"{name}{_SUFFIX[rule]}" for rule in ACTIVE_DOMAIN_RULES for name in ("inform", "success")),
    "combined",
)
"""What is measured of every bot that has goals and tables."""


def has_tasks(dialogues: Sequence[Dialogue], database: Database | None) -> bool:
    """Return whether there is anything to complete: MultiWOZ's tables, and a goal that can be checked."""
    return isinstance(database, MultiwozDatabase) and bool(goals_of(dialogues))


class Tasks(NamedTuple):
    """What came of the tasks of a bot's dialogues."""

    completions: Mapping[ActiveDomainRule, Mapping[str, Completion]]
    """By rule, for each dialogue that has a goal."""
    estimates: dict[str, Estimate]
    """By `TASK_METRICS`."""
    units: dict[str, Units]
    """Inform and Success taken apart into dialogues; the combined score is no ratio."""


def measure_tasks(turns: Sequence[TrackedTurn], database: MultiwozDatabase, *, seed: int) -> Tasks:
    """Return Inform and Success of a bot's answers, by both rules, and the combined score by the change of state.

    Args:
        turns: What the bot did; at least one dialogue has a goal.
        database: The tables.
        seed: Of the intervals.
    """
    done = complete_all(turns, database)
    found: dict[str, Estimate] = {}
    units: dict[str, Units] = {}
    for rule, results in done.items():
        for name, values in (
            ("inform", [result.inform for result in results.values()]),
            ("success", [result.success for result in results.values()]),
        ):
            key, scores = name + _SUFFIX[rule], np.array(values, dtype=np.float64)
            found[key] = cluster_bootstrap(scores, None, bootstrap=Bootstrap(seed=seed))
            units[key] = ratio_units([(dialogue, value, 1) for dialogue, value in zip(results, values, strict=True)])
    found["combined"] = combined(turns, done["state_change"], seed=seed)
    return Tasks(done, found, units)


def complete_all(
    turns: Sequence[TrackedTurn], database: MultiwozDatabase
) -> dict[ActiveDomainRule, dict[str, Completion]]:
    """Return what came of each dialogue that has a goal, by each rule."""
    by_dialogue: dict[str, list[TrackedTurn]] = {}
    for turn in turns:
        by_dialogue.setdefault(turn.dialogue.id, []).append(turn)
    goals = goals_of([said[0].dialogue for said in by_dialogue.values()])
    reader, search = Delexicaliser.of(database), VenueSearch(database)
    tasks = {name: [_task_turn(turn, reader) for turn in by_dialogue[name]] for name in goals}
    return {
        rule: {name: complete(goals[name], said, active_domains(said, rule), search) for name, said in tasks.items()}
        for rule in ACTIVE_DOMAIN_RULES
    }


def combined(turns: Sequence[TrackedTurn], results: Mapping[str, Completion], *, seed: int) -> Estimate:
    """Return (Inform + Success) / 2 + BLEU in points, of at most 200; `n` counts dialogues."""
    pairs = answered(turns)
    names = dict.fromkeys(turn.dialogue.id for turn in turns)
    rows = np.array([[*_marks(results.get(name)), *bleu_counts(pairs.get(name, []))] for name in names], np.float64)
    bleu_of = bleu_of_counts()

    def value(drawn: NDArray[np.float64]) -> float:
        marks_per_goal: float = drawn[:, 1].sum() / drawn[:, 0].sum()
        return 50 * marks_per_goal + bleu_of(drawn[:, 2:])

    return cluster_bootstrap(rows, None, value, bounds=(0.0, 200.0), bootstrap=Bootstrap(seed=seed))


def _marks(result: Completion | None) -> tuple[int, int]:
    """Return whether a dialogue counts, and how many of Inform and Success it earned."""
    return (0, 0) if result is None else (1, result.inform + result.success)


def task_protocol(dialogues: Sequence[Dialogue]) -> dict[str, object]:
    """Return the rules behind the numbers."""
    return {
        "task_dialogues": len(goals_of(dialogues)),
        "task_answers": "plain answers, in which names, addresses, phones and postcodes of the tables, train ids and "
        "codes were found by text and shape; published systems write placeholders",
        "active_domain": "the domain whose state changed last; *_by_slot_names: the domains of what the answer names",
        "task_state": "predicted; after an unreadable state the last readable one",
        "task_bookings": "gold: a reference counts only where the gold dialogue has a booking",
        "task_venues": "names, foods and stations by likeness of at least 90 of 100, all else equal; "
        "the venues offered must be some of the goal's",
        "combined": "(inform + success) / 2 in percent, plus BLEU on plain text",
        "task_by_domain": "dialogues whose goal names the domain; success needs the offers of all domains, and all "
        "that was asked for in this one",
    }


def _task_turn(turn: TrackedTurn, reader: Delexicaliser) -> TaskTurn:
    answer = Answer("") if turn.response is None else reader.read(turn.response)
    return TaskTurn(answer, plain_state(turn.in_use), booked_domains(turn.dialogue.turns[turn.turn]))
