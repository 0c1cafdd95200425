"""The cheap audit of a bot in training: whom it looks at, what it finds, and when that is too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.split import SplitReport
from hushbot.errors import ConfigError
from hushbot.evaluation.experiment import Experiment
from hushbot.evaluation.state_scoring import STRICT
from hushbot.evaluation.watch import AUC, FEWEST, JGA, TPR, CheapAudit, WatchSettings, make_watch, watch_of
from hushbot.prompts import STATE_MARKER, render_state
from hushbot.schema import Schema
from hushbot.targets import local
from hushbot.training.model_folder import tiny_dir
from hushbot.types import AuditSplit, Dialogue, Estimate, Turn

Make = Callable[..., CheapAudit]


@dataclass(frozen=True)
class Forbidden:
    """Stands for non-members: whoever looks at one fails."""

    def __iter__(self) -> Any:
        raise AssertionError("a non-member was looked at")

    def __len__(self) -> int:
        raise AssertionError("a non-member was looked at")


@pytest.fixture
def split(synthetic_split: AuditSplit) -> AuditSplit:
    """Return 60 members, 25 calibration and 15 control dialogues; non-members must not be touched."""
    others = synthetic_split.nonmembers
    forbidden: Any = Forbidden()
    return AuditSplit(synthetic_split.members[:60], forbidden, others[:25], others[25:40])


@pytest.fixture
def make(split: AuditSplit, synthetic_schema: Schema) -> Make:
    """Return what makes the cheap audit of a split."""

    def run(
        settings: WatchSettings, *, split: AuditSplit = split, seed: int = 0, tokenizer: Any = None
    ) -> CheapAudit | None:
        experiment = Experiment(
            config={},
            name="turn_level",
            corpus=Corpus((), synthetic_schema, "synthetic"),
            drawn=SplitReport(split),
            attacks={},
            trackers={},
            seed=seed,
            reveal=False,
        )
        tokenizer = tokenizer or (lambda texts, **_: SimpleNamespace(input_ids=[[0]] * len(texts)))
        return make_watch(settings, experiment, tokenizer, rules=STRICT, max_length=1024, learns_changes=False)

    return run  # type: ignore[return-value]


@pytest.fixture
def looking_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Return what makes every look one at a fake bot."""

    def use(target: Any) -> None:
        target.causal_lm = SimpleNamespace(context_length=None)
        monkeypatch.setattr(local, "LocalTarget", lambda model, tokenizer, name: target)

    return use


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(tiny_dir())


# --- whom it looks at ---


def test_members_stand_against_calibration_and_control_dialogues(make: Make, split: AuditSplit) -> None:
    audit = make(WatchSettings(every=1, documents=30))
    members, others, pool = audit.population.sides
    assert (len(members), len(others), pool) == (30, 30, [])
    assert {unit.dialogue_id for unit in members} <= {dialogue.id for dialogue in split.members}
    heldout = {dialogue.id for dialogue in (*split.calibration, *split.controls)}
    assert {unit.dialogue_id for unit in others} <= heldout
    assert {dialogue.id for dialogue in audit.dialogues} <= heldout
    assert len(audit.dialogues) == 8


def test_the_draw_is_the_seeds(make: Make) -> None:
    settings = WatchSettings(every=1, documents=20, dialogues=4)
    first, same, other = make(settings), make(settings), make(settings, seed=1)
    assert first.population == same.population != other.population
    assert first.dialogues == same.dialogues != other.dialogues
    assert first.fingerprint == same.fingerprint != other.fingerprint


def test_a_state_that_both_sides_hold_is_not_compared(make: Make, split: AuditSplit) -> None:
    twin = replace(split.members[0], id="twin")
    doubled = replace(split, calibration=(*split.calibration, twin))
    shared = render_state(twin.final_state or frozenset())
    texts = [unit.text for unit in make(WatchSettings(every=1), split=doubled).population.units]
    assert shared in [unit.text for unit in make(WatchSettings(every=1)).population.units]
    assert shared not in texts


def test_without_enough_to_compare_it_refuses(make: Make, split: AuditSplit) -> None:
    alone = replace(split, calibration=(), controls=())
    with pytest.raises(ConfigError, match=r"60 states of members and 0 of calibration and control.*split.calibration"):
        make(WatchSettings(every=1), split=alone)
    few = replace(split, calibration=split.calibration[: FEWEST - 1], controls=())
    assert make(WatchSettings(every=1), split=few) is not None
    with pytest.raises(ConfigError, match=f"{FEWEST} of each are needed"):
        make(WatchSettings(every=1, budget={"membership_auc": 0.6}), split=few)
    assert make(WatchSettings(), split=alone) is None


# --- what it finds ---


def test_a_bot_that_knows_the_members_is_found_out(
    make: Make, memoriser: Any, stranger: Any, looking_at: Callable[[object], None], tokenizer: Any
) -> None:
    audit = make(WatchSettings(every=1), tokenizer=tokenizer)
    looking_at(memoriser)
    found = audit.look(torch.nn.Identity())
    assert (found[AUC].value, found[AUC].n) == (1.0, 100)
    assert TPR not in found  # 40 others leave a rate of one in a hundred unidentified
    looking_at(stranger)
    chance = audit.look(torch.nn.Identity())[AUC]
    assert chance.low is not None
    assert chance.high is not None
    assert chance.low < 0.5 < chance.high


def test_states_are_scored_over_the_held_out_dialogues_turns(
    make: Make, memoriser: Any, looking_at: Callable[[object], None], tokenizer: Any
) -> None:
    audit = make(WatchSettings(every=1, dialogues=3), tokenizer=tokenizer)
    looking_at(replace(memoriser, members=audit.dialogues[:2]))
    turns = [len(dialogue.turns) for dialogue in audit.dialogues]
    found = audit.look(torch.nn.Identity())[JGA]
    assert found.n == sum(turns)
    assert found.value == pytest.approx(sum(turns[:2]) / sum(turns))
    assert JGA not in replace(audit, dialogues=()).look(torch.nn.Identity())


def test_the_low_false_positive_rate_is_there_where_numbers_allow_it(
    make: Make, synthetic_split: AuditSplit, memoriser: Any, looking_at: Callable[[object], None], tokenizer: Any
) -> None:
    large = AuditSplit(synthetic_split.members, (), synthetic_split.nonmembers)
    looking_at(memoriser)
    found = make(WatchSettings(every=1, documents=110, dialogues=0), split=large, tokenizer=tokenizer).look(
        torch.nn.Identity()
    )
    assert found[TPR].value == 1.0


def test_a_bot_that_cannot_be_asked_is_not_measured(
    make: Make, failing_target: Any, looking_at: Callable[[object], None], tokenizer: Any
) -> None:
    looking_at(failing_target)
    audit = make(WatchSettings(every=1, budget={"membership_auc": 0.6}), tokenizer=tokenizer)
    found = audit.look(torch.nn.Identity())
    assert [estimate.value for estimate in found.values()] == [None, None]
    assert all(estimate.method.startswith("not measured: ") for estimate in found.values())
    assert "could not be held against the budget of 0.6 (not measured: the endpoint" in (audit.excess(found) or "")


def test_a_real_models_number_is_that_of_its_losses(make: Make, tokenizer: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_dir())
    audit = make(WatchSettings(every=1, documents=12, dialogues=0), tokenizer=tokenizer)
    losses = []
    for unit in audit.population.units:
        ids = [tokenizer.bos_token_id or tokenizer.eos_token_id]
        ids += tokenizer(f"{STATE_MARKER} {unit.text}", add_special_tokens=False).input_ids
        batch = torch.tensor([ids])
        with torch.no_grad():
            losses.append(float(model(input_ids=batch, labels=batch).loss))
    members, others = losses[:12], losses[12:]
    expected = np.mean([[(m < o) + (m == o) / 2 for o in others] for m in members])
    assert audit.look(model)[AUC].value == pytest.approx(expected, abs=0.02)


# --- the budget ---


@pytest.mark.parametrize(
    ("stop_when", "value", "low", "is_over"),
    [
        ("low", 0.7, 0.59, False),
        ("low", 0.7, 0.6, False),
        ("low", 0.7, 0.61, True),
        ("value", 0.61, 0.5, True),
        ("value", 0.6, 0.5, False),
        ("low", 0.7, None, True),  # nothing is known of it
        ("value", None, None, True),
    ],
)
def test_what_is_over_the_budget(
    make: Make, stop_when: Any, value: float | None, low: float | None, is_over: bool
) -> None:
    audit = make(WatchSettings(every=1, budget={"membership_auc": 0.6}, stop_when=stop_when))
    high = None if low is None else 0.8
    assert (audit.excess({AUC: Estimate(value=value, low=low, high=high)}) is not None) == is_over
    assert audit.excess({}) is not None
    assert audit.stops


@pytest.mark.parametrize(
    ("stop_when", "said"),
    [
        ("low", "membership/auc is 0.700 [0.610, 0.800], the lower end of its interval over the budget of 0.6"),
        ("value", "membership/auc is 0.700 [0.610, 0.800], over the budget of 0.6"),
    ],
)
def test_it_says_what_is_over_the_budget(make: Make, stop_when: Any, said: str) -> None:
    audit = make(WatchSettings(every=1, budget={"membership_auc": 0.6}, stop_when=stop_when))
    assert audit.excess({AUC: Estimate(value=0.7, low=0.61, high=0.8)}) == said


def test_without_a_budget_nothing_is_over_it(make: Make) -> None:
    audit = make(WatchSettings(every=1, budget={"membership_auc": None}))
    assert audit.excess({AUC: Estimate(value=1.0, low=1.0, high=1.0)}) is None
    assert not audit.stops


# --- settings ---


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"every": 0}, "every"),
        ({"budget": {"membership_auc": 0.6}}, "every"),
        ({"every": 1, "budget": {"membership_auc": 0.4}}, "budget"),
        ({"every": 1, "budget": {"membership_auc": 1.0}}, "budget"),
        ({"every": 1, "budget": {"quiz_auc": 0.6}}, "budget"),
        ({"every": 1, "budget": {"membership_auc": 0.6}, "documents": FEWEST - 1}, "documents"),
        ({"documents": 1}, "documents"),
        ({"dialogues": -1}, "dialogues"),
        ({"score": "min_k_pp"}, "score"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"stop_when": "high"}, "stop_when"),
    ],
)
def test_senseless_settings_are_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"must be .*; set watch\.{key}"):
        WatchSettings(**settings)


def test_a_configuration_without_a_watch_looks_at_nothing() -> None:
    assert watch_of({}) is watch_of({"watch": None}) is watch_of({"watch": {"every": None, "documents": 3}}) is None
    assert watch_of({"watch": {"every": 2}}) == {"every": 2}


def test_dialogues_without_a_state_are_not_tracked(make: Make, split: AuditSplit) -> None:
    silent = tuple(Dialogue(f"silent{i}", (Turn("hello", None),)) for i in range(30))
    audit = make(WatchSettings(every=1, dialogues=99), split=replace(split, controls=(*split.controls, *silent)))
    assert len(audit.dialogues) == 40
