"""Wording: templates give nothing away, and what a model writes is checked, counted and replaced or dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from hushbot.attacks.quiz_questions import COMPLEXITIES, Pool, Question, ask
from hushbot.attacks.quiz_records import Fact, Record, records_of
from hushbot.attacks.quiz_writers import EndpointWriter, TargetWriter, TemplateWriter, read_question
from hushbot.corpora import load, split
from hushbot.errors import AuditError, ConfigError
from hushbot.types import Decoding

FACTS = (Fact("hotel", "area", "east"), Fact("hotel", "name", "mill inn"), Fact("hotel", "people", "2"))
QUESTION = Question(Record("r", True, FACTS), FACTS[1], ("beacon", "lodge", "manor"), 1)
GOOD = "Question: Where did the two in the east stay?\nWrong 1: the anchor\nWrong 2: compass\n3. nothing"


def written(*wrong: str, question: str = "Where did they stay?") -> str:
    return "\n".join([f"Question: {question}", *(f"Wrong {i}: {w}" for i, w in enumerate(wrong, start=1))])


def test_a_well_formed_question_is_taken_over() -> None:
    found = read_question(QUESTION, written("the anchor", "compass", "old beacon"))
    assert found is not None
    assert found.text == "Where did they stay?"
    assert found.options == ("the anchor", "mill inn", "compass", "old beacon")


@pytest.mark.parametrize(
    "answer",
    [
        "",
        GOOD,
        written("anchor", "compass"),
        written("anchor", "compass", "beacon", "manor"),
        written("anchor", "compass", "the mill inn"),
        written("anchor", "compass", "east"),
        written("anchor", "compass", "Compass"),
        written("anchor", "compass", "12"),
        written("anchor", "compass", "dontcare"),
        written("anchor", "compass", "beacon", question="Is it the Mill Inn?"),
        written("anchor", "compass", "beacon", question="why " * 200),
        f"{written('anchor', 'compass', 'beacon')}\nQuestion: another?",
    ],
)
def test_a_malformed_one_is_not(answer: str) -> None:
    assert read_question(QUESTION, answer) is None


class Endpoint:
    """Answers requests in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def complete(self, prompt: str, *, seed: int = 0) -> str:
        self.asked.append(prompt)
        return self.answers[(len(self.asked) - 1) % len(self.answers)]


def test_an_endpoint_words_questions_and_malformed_ones_are_replaced_or_dropped() -> None:
    good = written("anchor", "compass", "beacon")
    endpoint = Endpoint(good, "I cannot help with that.")
    result = EndpointWriter(endpoint=endpoint).write([QUESTION, QUESTION], subject="", seed=0)
    assert [q.wrong for q in result.questions] == [("anchor", "compass", "beacon"), QUESTION.wrong]
    assert result.questions[1].text.startswith("One request says: hotel area east, hotel people 2.")
    assert result.notes == ["questions worded by a model: 1 of 2 malformed, replaced by templates"]
    assert "mill inn" in endpoint.asked[0]
    dropping = EndpointWriter(endpoint=Endpoint(good, "no"), drops_malformed=True)
    result = dropping.write([QUESTION, QUESTION], subject="", seed=0)
    assert len(result.questions) == 1
    assert "dropped" in result.notes[0]


def test_a_writer_that_writes_nothing_usable_is_an_error() -> None:
    with pytest.raises(AuditError, match="no question that can be used"):
        EndpointWriter(endpoint=Endpoint("no")).write([QUESTION], subject="", seed=0)


class Talker:
    reference = None

    def __init__(self, answer: str, n: int = 1) -> None:
        self.answer, self.n = answer, n

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        return [[self.answer] * self.n for _ in prompts]


def test_a_model_words_questions() -> None:
    result = TargetWriter(target=Talker(written("anchor", "compass", "beacon"))).write([QUESTION], subject="", seed=0)
    assert result.questions[0].text == "Where did they stay?"
    with pytest.raises(AuditError, match="did not answer each of 1"):
        TargetWriter(target=Talker("x", n=2)).write([QUESTION], subject="", seed=0)


def test_what_is_no_writer_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"writer\.endpoint"):
        EndpointWriter(endpoint=object())
    with pytest.raises(ConfigError, match=r"writer\.target"):
        TargetWriter(target=3)


@pytest.mark.parametrize("complexity", COMPLEXITIES)
@pytest.mark.parametrize("subject", ["", "name"])
def test_templates_never_hold_the_right_option(complexity: str, subject: str) -> None:
    corpus = load("medical_records", n_records=60)
    found = records_of(split(corpus, seed=0), ["structured"], max_records=None, seed=0)
    asked = ask(
        found.records,
        Pool(found.records, corpus.schema),
        n_questions=4,
        complexities=[complexity],
        subject=subject,
        seed=0,
    )
    result = TemplateWriter().write(asked.questions, subject=subject, seed=0)
    assert len(result.questions) == len(asked.questions) > 0
    for question in result.questions:
        assert f" {question.fact.value} " not in f" {question.text.replace(',', ' ').replace('.', ' ')} "
        name = next(fact.value for fact in question.record.facts if fact.slot == "name")
        assert (name in question.text) or question.fact.slot == "name"


def test_complex_questions_give_more_and_ask_the_same() -> None:
    simple, hard = (
        TemplateWriter().write([replace(QUESTION, complexity=c)], subject="name", seed=0).questions[0]
        for c in COMPLEXITIES
    )
    assert simple.options == hard.options
    assert len(hard.text) > len(simple.text)
