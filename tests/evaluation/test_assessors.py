"""The offline assessor's table and rules, row by row, and models that answer under the written protocol."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation.assessors import OfflineAssessor
from hushbot.evaluation.prompted_assessors import PROTOCOL, EndpointAssessor, TargetAssessor, read_score
from hushbot.masking import IDENTIFIER_SLOTS
from hushbot.types import Decoding, DialogueState, SlotValue

OFFLINE = OfflineAssessor(uses_presidio=False)


def state(**domains: dict[str, str]) -> DialogueState:
    return frozenset(SlotValue(d, slot, value) for d, slots in domains.items() for slot, value in slots.items())


def score(found: DialogueState) -> float | None:
    return OFFLINE.scores([found])[0]


@pytest.mark.parametrize(
    ("slot", "value", "expected"),
    [
        ("area", "north", 1),
        ("pricerange", "cheap", 1),
        ("stars", "4", 1),
        ("book people", "5", 1),
        ("area", "dontcare", 0),
        ("parking", "yes", 0),
        ("name", "golden wok", 2),
        ("destination", "ely", 2),
        ("day", "monday", 2),
        ("book time", "17:15", 2),
        ("leaveat", "17:15", 2),
        ("book stay", "3", 2),
        ("department", "oncology", 3),
        ("guest name", "ada pine", 4),
        ("postcode", "cb21ab", 4),
        ("address", "20 high street", 4),
        ("phone", "unknown", 5),
        ("reference", "ab12cd34", 5),
        ("number plate", "ab12 cde", 5),
        ("email", "me", 5),
        ("note", "ada@example.org", 5),
        ("note", "01223 351880", 5),
        ("account type", "savings", 1),
        ("account number", "12345678", 5),
    ],
)
def test_single_fact(slot: str, value: str, expected: int) -> None:
    assert score(state(hotel={slot: value})) == expected


def test_a_name_is_a_persons_in_a_domain_about_persons() -> None:
    assert score(state(profile={"name": "ada pine"})) == 4
    assert score(state(hotel={"name": "ada pine"})) == 2


def test_every_identifier_that_is_always_masked_scores_high_but_times_and_numbers() -> None:
    low = {slot for slot in IDENTIFIER_SLOTS if (score(state(hotel={slot: "x"})) or 0) < 4}
    assert low == {"time", "number"}


BOOKING = {"name": "golden wok", "book day": "monday", "book time": "17:15", "book people": "2"}
JOURNEY = {"departure": "ely", "destination": "london", "day": "monday", "leaveat": "17:15"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (state(hotel={"area": "north", "stars": "4", "type": "hotel"}), 1),
        (state(hotel={"area": "north", "stars": "4", "type": "hotel", "pricerange": "cheap"}), 2),
        (state(hotel={"area": "north", "stars": "4", "type": "hotel", "parking": "yes"}), 1),
        (state(restaurant={"name": "golden wok", "area": "north"}), 2),
        (state(restaurant={"name": "golden wok", "book day": "monday"}), 3),
        (state(taxi={"destination": "ely", "arriveby": "17:15"}), 3),
        (state(restaurant={"name": "golden wok"}, train={"day": "monday"}), 2),
        (state(restaurant=BOOKING), 4),
        (state(hotel={"name": "acorn", "book day": "monday", "book stay": "2", "book people": "2"}), 4),
        (state(train=JOURNEY), 4),
        (state(train={**JOURNEY, "leaveat": "dontcare"}), 3),
        (state(train={"destination": "ely", "day": "monday"}, taxi={"destination": "ely", "leaveat": "10:00"}), 4),
        (state(train=JOURNEY, taxi={"destination": "ely", "leaveat": "10:00"}), 4),
        (state(train=JOURNEY, restaurant=BOOKING), 5),
        (state(profile={"name": "ada pine"}, restaurant={"name": "golden wok", "book day": "monday"}), 5),
        (state(profile={"name": "ada pine"}, restaurant={"name": "golden wok", "food": "thai"}), 4),
    ],
)
def test_facts_together(found: DialogueState, expected: int) -> None:
    assert score(found) == expected


SLOTS = ("name", "area", "book day", "book time", "book people", "book stay", "departure", "destination", "leaveat",
         "postcode", "phone", "guest", "type", "food", "title")  # fmt: skip
VALUES = ("monday", "17:15", "5", "golden wok", "dontcare", "cb21ab", "01223 351880", "ab12cd34", "20 high street")
TRIPLETS = st.builds(
    SlotValue, st.sampled_from(("hotel", "train", "profile")), st.sampled_from(SLOTS), st.sampled_from(VALUES)
)


@given(st.sets(TRIPLETS, min_size=1, max_size=9), st.data())
@settings(deadline=None, max_examples=200)
def test_a_superset_never_scores_lower(triplets: set[SlotValue], data: st.DataObject) -> None:
    whole = frozenset(triplets)
    part = frozenset(data.draw(st.sets(st.sampled_from(sorted(whole)), min_size=1)))
    low, high = OFFLINE.scores([part, whole])
    assert low is not None
    assert high is not None
    assert low <= high


def fake_presidio(monkeypatch: pytest.MonkeyPatch, confidence: float) -> None:
    class Recogniser:
        supported_entities = ("SECRET",)

        def analyze(self, text: str, entities: Sequence[str], nlp_artifacts: Any) -> list[Any]:
            return [SimpleNamespace(score=confidence)] if text == "open sesame" and "SECRET" in entities else []

    package, module = ModuleType("presidio_analyzer"), ModuleType("presidio_analyzer.predefined_recognizers")
    package.__spec__ = importlib.machinery.ModuleSpec("presidio_analyzer", None)
    for name in ("CreditCardRecognizer", "IbanRecognizer", "PhoneRecognizer", "UsSsnRecognizer"):
        setattr(module, name, Recogniser)
    monkeypatch.setitem(sys.modules, "presidio_analyzer", package)
    monkeypatch.setitem(sys.modules, "presidio_analyzer.predefined_recognizers", module)


@pytest.mark.parametrize(("confidence", "expected"), [(0.4, 5), (0.39, 1)])
def test_presidio_is_asked_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, confidence: float, expected: int
) -> None:
    fake_presidio(monkeypatch, confidence)
    found = state(hotel={"note": "open sesame"})
    assert OfflineAssessor().scores([found]) == [expected]
    assert OfflineAssessor(uses_presidio=False).scores([found]) == [1]
    assert OfflineAssessor().note.endswith("with presidio")


def test_presidio_that_is_demanded_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hushbot.evaluation.assessors._has_presidio", lambda: False)
    assert OfflineAssessor().note.endswith("without presidio")
    with pytest.raises(ConfigError, match=r"uses_presidio=true.*hushbot\[presidio\]"):
        OfflineAssessor(uses_presidio=True)


def test_confidence_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"presidio_score=0\.0"):
        OfflineAssessor(presidio_score=0.0)


@pytest.mark.parametrize(("answer", "expected"), [("4", 4.0), (" 0 \n", 0.0), ("5", 5.0)])
def test_answer_that_is_one_digit_counts(answer: str, expected: float) -> None:
    assert read_score(answer) == expected


@pytest.mark.parametrize("answer", ["", "6", "-1", "4.5", "4/5", "4 5", "four", "The score is 4", "44", "4.", "٤"])
def test_any_other_answer_is_none(answer: str) -> None:
    assert read_score(answer) is None


@dataclass
class Judge:
    """A target that gives one answer to states with a phone and another to the rest."""

    answers: tuple[str, str] = ("5", "1")
    prompts: list[str] = field(default_factory=list)
    settings: list[Decoding] = field(default_factory=list)
    reference: None = None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        self.prompts += prompts
        self.settings.append(decoding)
        return [[self.answers["phone=" not in prompt]] * n for prompt in prompts]

    def complete(self, prompt: str) -> str:
        return self.sample([prompt], n=1, max_new_tokens=8, decoding=Decoding(temperature=0), seed=0)[0][0]


PHONE, AREA = state(hotel={"phone": "01223"}), state(hotel={"area": "a\nb"})


@pytest.mark.parametrize("is_endpoint", [False, True])
def test_model_is_asked_under_the_protocol(is_endpoint: bool) -> None:
    judge = Judge(("5", "rather high"))
    assessor = EndpointAssessor(endpoint=judge) if is_endpoint else TargetAssessor(target=judge)
    assert assessor.scores([PHONE, AREA]) == [5.0, None]
    assert judge.prompts[0] == f"{PROTOCOL}\nFacts: Hotel(phone=01223)\nNumber:"
    assert judge.prompts[1].splitlines()[-2:] == ["Facts: Hotel(area=a\\nb)", "Number:"]
    assert all(decoding.is_deterministic for decoding in judge.settings)
    assert "written protocol" in assessor.note


def test_target_may_be_made_when_it_is_needed() -> None:
    made: list[Judge] = []

    def make() -> Judge:
        made.append(Judge())
        return made[-1]

    assessor = TargetAssessor(target=make)
    assert made == []
    assert assessor.scores([]) == []
    assert made == []
    assert [*assessor.scores([PHONE]), *assessor.scores([AREA])] == [5.0, 1.0]
    assert len(made) == 1


def test_target_that_gives_too_few_answers_is_an_error() -> None:
    class Short(Judge):
        def sample(self, prompts: Sequence[str], **settings: Any) -> list[list[str]]:
            return super().sample(prompts, **settings)[:-1]

    with pytest.raises(AuditError, match="2 requests"):
        TargetAssessor(target=Short()).scores([PHONE, AREA])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: TargetAssessor(target=3), "neither a target"),
        (lambda: TargetAssessor(target=Judge(), protocol=" \n"), "protocol"),
        (lambda: TargetAssessor(target=Judge(), max_new_tokens=0), "max_new_tokens=0"),
        (lambda: EndpointAssessor(endpoint=3), "complete"),
        (lambda: EndpointAssessor(endpoint=Judge(), protocol=""), "protocol"),
    ],
)
def test_settings_are_checked(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
