"""Schema probing on scripted bots: what is counted, what is filtered, and that nothing found is not nothing there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from hushbot.attacks.schema_asking import METHODS, ProbeSettings, Trace, probe
from hushbot.attacks.schema_counts import n_needed
from hushbot.attacks.schema_probe import SchemaProbe
from hushbot.errors import AuditError, ConfigError
from hushbot.prompts import STATE_MARKER
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, AuditSplit, Decoding, Estimate

SMALL = Schema.of([Slot("hotel", "area"), Slot("hotel", "stars"), Slot("taxi", "to"), Slot("train", "day")])
SERVED = {"hotel": ("area", "day", "name", "stars"), "taxi": ("at", "by", "from", "to"), "train": ("at", "day", "to")}
TRUE = Schema.of(Slot(domain, slot) for domain, slots in SERVED.items() for slot in slots)
ANSWERS = tuple(f" {slot.domain.capitalize()}({slot.name}=x)" for slot in TRUE.slots)
SPLIT = AuditSplit((), ())


@dataclass
class Clerk:
    """Answers with what it is told to; where it is unsure it also makes things up, unless it is asked greedily."""

    answers: Sequence[str] = ANSWERS
    noise: str = ""
    reference: Any = None
    prompts: list[str] = field(default_factory=list)

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.prompts += prompts
        if decoding.temperature == 0:  # it takes up what the customer says
            return [[self.heard(prompt)] * n for prompt in prompts]
        return [
            [self.answers[(i + draw) % len(self.answers)] + self.noise for draw in range(n)]
            for i, _ in enumerate(prompts)
        ]

    def heard(self, prompt: str) -> str:
        said = prompt.casefold()
        known = [text for text in self.answers if text.strip().split("(")[0].casefold() in said]
        return known[0] if known else " None"

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Any]:
        raise AuditError("no log-probabilities")


def run(bot: Any, schema: Schema = TRUE, **settings: Any) -> AttackResult:
    small = {"temperatures": (1.0,), "n_questions": 40, "n_samples": 40, "n_runs": 2}
    return SchemaProbe(**(small | settings)).run(bot, SPLIT, schema, seed=0)


def value(result: AttackResult, name: str) -> float | None:
    metric = result.metrics[name]
    return metric.value if isinstance(metric, Estimate) else metric


@pytest.mark.parametrize("method", METHODS)
def test_a_bot_that_says_what_it_serves_is_found_out(method: str) -> None:
    result = run(Clerk(), method=method)
    assert value(result, f"{method}/t=1/domain_recall") == 1
    if method != "inter_temperature":
        assert result.headline.estimate.value == 1
        assert result.verdict == "leak"


def test_precision_and_recall_by_hand() -> None:
    """Two of four true slots and one that is none: 2/3 and 2/4, F1 = 4/7."""
    bot = Clerk(answers=(" Hotel(area=north, colour=red)", " Taxi(to=x)"))
    result = run(bot, SMALL, methods=("model_against_model",), method="model_against_model")
    assert value(result, "model_against_model/t=1/slot_precision") == pytest.approx(2 / 3)
    assert value(result, "model_against_model/t=1/slot_recall") == 0.5
    assert result.headline.estimate.value == pytest.approx(4 / 7)
    assert value(result, "model_against_model/t=1/domain_precision") == 1
    assert value(result, "model_against_model/t=1/domain_recall") == pytest.approx(2 / 3)


def test_what_is_not_said_again_in_earnest_is_dropped() -> None:
    bot = Clerk(noise=" Bank(account=1)")
    plain = run(bot, method="model_against_model")
    assert value(plain, "model_against_model/t=1/slot_precision") == pytest.approx(11 / 12)
    assert value(plain, "inter_temperature/t=1/slot_precision") == 1


def test_a_bot_without_states_is_inconclusive_and_not_measured() -> None:
    result = run(Clerk(answers=(" None",)))
    assert result.verdict == "inconclusive"
    assert result.headline.estimate.value is None


def test_the_base_is_the_bar_where_there_is_one() -> None:
    known = run(Clerk(reference=Clerk()), method="model_against_model")
    assert known.verdict == "no_leak_detected"
    learnt = run(Clerk(reference=Clerk(answers=(" Bank(account=1)",))), method="model_against_model")
    assert learnt.verdict == "leak"
    assert learnt.control["base"]["model_against_model/t=1/slot_f1"].value == 0


class Broken(Clerk):
    """Answers nothing."""

    def sample(self, prompts: Sequence[str], **_: Any) -> list[list[str]]:
        raise AuditError("the endpoint answered 503")


def test_a_base_that_fails_is_inconclusive_and_keeps_what_was_measured() -> None:
    result = run(Clerk(reference=Broken()), method="model_against_model")
    assert result.verdict == "inconclusive"
    assert result.headline.estimate.value == 1
    assert result.control == {"base": None}
    assert any("503" in note for note in result.notes)


def test_the_blind_guess_by_hand() -> None:
    """The guess has each of 36 tasks with 8 slots; hotel has 2 of them that are true, taxi none: F1 = 4 / (288 + 4)."""
    guess = Schema.of([Slot("hotel", "area"), Slot("hotel", "name"), Slot("taxi", "to"), Slot("train", "sun")])
    blind = run(Clerk(), guess, method="model_against_model").blind
    assert blind is not None
    assert blind["slot_f1"].value == pytest.approx(4 / 292)
    assert blind["slot_recall"].value == 0.5
    assert blind["domain_recall"].value == pytest.approx(2 / 3)


def test_runs_that_find_the_same_are_no_further_evidence() -> None:
    """Eight runs of one and the same bot know as much as two: the interval stays as wide."""
    few, many = (run(Clerk(), SMALL, method="model_against_model", n_runs=n).headline.estimate for n in (2, 8))
    assert (few.low, few.high, few.n) == (many.low, many.high, many.n)


def test_nothing_true_needs_no_number_of_questions() -> None:
    result = run(Clerk(answers=(" Bank(account=1)",)), SMALL)
    assert result.metrics["model_against_model/t=1/questions"] is None
    assert result.metrics["model_against_model/t=1/asked"] is None
    assert value(result, "model_against_model/t=1/slot_f1") == 0


def test_inter_temperature_counts_every_time_the_bot_was_asked() -> None:
    for repeats, factor in ((False, 2), (True, 3)):
        bot = Clerk()
        found = probe(bot, seed=0, settings=ProbeSettings(n_questions=40, repeats_questions=repeats))
        assert found.n_queries == len(bot.prompts) == 40 * factor


def test_a_probe_keeps_only_what_was_seen_often_enough() -> None:
    settings = ProbeSettings(method="model_against_model", n_questions=len(ANSWERS), n_per_round=100, min_count=2)
    with pytest.raises(AuditError, match="found no slot 2 times in 11 questions"):
        probe(Clerk(), seed=0, settings=settings)


def test_the_fewest_questions_are_those_after_which_nothing_got_better() -> None:
    trace = Trace([frozenset({("hotel", "area")}), frozenset(), frozenset({("taxi", "to")}), frozenset()], 4)
    assert n_needed(trace, {("hotel", "area"), ("taxi", "to")}) == 3
    assert trace.pairs(2) == {("hotel", "area")}
    assert trace.pairs(min_count=2) == set()


def test_questions_are_put_as_the_first_turn_of_a_dialogue() -> None:
    bot = Clerk()
    probe(bot, seed=0, settings=ProbeSettings(method="model_against_model", n_questions=5))
    assert len(bot.prompts) == 5
    assert all(prompt.startswith("User: ") and prompt.endswith(f"\n{STATE_MARKER}") for prompt in bot.prompts)


def test_a_probed_schema_is_spelled_as_the_bot_spells_it() -> None:
    found = probe(Clerk(), seed=0, settings=ProbeSettings(method="model_against_model", n_questions=20))
    assert found.schema.by_domain == SERVED
    assert found.n_queries == 20


def test_a_probe_that_finds_nothing_is_an_error() -> None:
    with pytest.raises(AuditError, match="found no slot in 400 questions"):
        probe(Clerk(answers=(" None",)), seed=0, settings=ProbeSettings())


def test_wrong_settings_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        SchemaProbe(n_runs=0, method="guess", temperature=9.0)
    assert len(caught.value.problems) == 3
