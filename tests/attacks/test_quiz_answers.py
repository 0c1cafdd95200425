"""Answers: which letter a text names, and which option a score prefers, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from hushbot.attacks.quiz_answers import answer_by_score, answer_in_text, place_of, question_prompt, read_letter
from hushbot.attacks.quiz_questions import Question
from hushbot.attacks.quiz_records import Fact, Record
from hushbot.errors import AuditError
from hushbot.prompts import parse_state
from hushbot.types import Decoding

if TYPE_CHECKING:
    from torch import Tensor

OPTIONS = ("golden wok", "pizza hut", "la mimosa", "cotto")
FACTS = (
    Fact("hotel", "area", "east"),
    Fact("hotel", "name", "inn (old), 7"),
    Fact("hotel", "stars", "4"),
)
RECORD = Record("r", True, FACTS)
QUESTION = Question(RECORD, FACTS[1], ("mill", "beacon", "lodge"), 2, text="Which name?")


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        (" b.", "B"),
        ("(b)", "B"),
        ("**C**", "C"),
        ("C. la mimosa", "C"),
        ("D: cotto", "D"),
        ("The answer is C.", "C"),
        ("ANSWER IS C", "C"),
        ("answer: d", "D"),
        ("the answer is b because of it", "B"),
        ("The correct answer is (A).", "A"),
        ("Option B", "B"),
        ("I'd say C", "C"),
        ("\n\n D\nQuestion: next", "D"),
        ("I think it is pizza hut", "B"),
        ("A", "A"),
        ("A or B", None),
        ("A and B", None),
        ("The answer is B or C", None),
        ("It is B, not A", None),
        ("A. golden wok B. pizza hut", None),
        ("golden wok or pizza hut", None),
        ("A table for two", None),
        ("the answer is a mystery", None),
        ("Because of it", None),
        ("E", None),
        ("", None),
        ("\n \n", None),
        ("pizza huts", None),
    ],
)
def test_letters_are_read(text: str, letter: str | None) -> None:
    assert read_letter(text, OPTIONS) == (None if letter is None else "ABCD".index(letter))


def test_letters_inside_options_are_no_answers() -> None:
    options = ("platform A", "platform B", "platform C", "a and b guest house")
    assert read_letter("C. platform B", options) == 2
    assert read_letter("D. a and b guest house", options) == 3
    assert read_letter("platform B", options) == 1
    assert read_letter("C", ("A", "B", "C", "D")) == 2


def test_the_bot_reads_question_and_options() -> None:
    plain = question_prompt(QUESTION, "plain")
    assert plain.splitlines()[1:] == [
        "Question: Which name?", "A. mill", "B. beacon", "C. inn (old), 7", "D. lodge", "Answer:"
    ]  # fmt: skip
    dialogue = question_prompt(QUESTION, "dialogue")
    assert dialogue.startswith("User: Which name? A. mill B. beacon")
    assert dialogue.endswith("\nResponse:")
    assert dialogue.count("\n") == 1


def test_an_option_stands_in_the_state_as_the_bot_writes_it() -> None:
    place = place_of(QUESTION, "mill, (new)", "record")
    assert place.before == "Belief State: Hotel(area=east, name="
    assert place.after == ", stars=4)\n"
    assert place.bare == "Belief State: Hotel(name="
    state = parse_state(place.before + place.option + place.after)
    assert {t.slot: t.value for t in state} == {"area": "east", "name": "mill, (new)", "stars": "4"}


def test_an_option_stands_in_prose_in_the_values_place() -> None:
    text = "ada is 36 years old."
    prose = Record("r", True, (Fact("p", "age", "36", span=(7, 9)),), "prose", text, "Response: ")
    place = place_of(Question(prose, prose.facts[0], ("1", "2", "3"), 0), "47", "record")
    assert place.before + place.option + place.after == "Response: ada is 47 years old."
    assert place.option == " 47"
    first = Record("r", True, (Fact("p", "name", "ada", span=(0, 3)),), "prose", text, "Response: ")
    place = place_of(Question(first, first.facts[0], ("1", "2", "3"), 0), "bob", "record")
    assert (place.before, place.option) == ("Response:", " bob")


class Scripted:
    """Gives each token of a continuation the log-probability that a table has for it; writes `B`."""

    reference = None

    def __init__(self, table: dict[tuple[str, str], Sequence[float]]) -> None:
        self.table = table
        self.asked: list[tuple[str, str]] = []

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        assert decoding.is_deterministic
        return [["B"] for _ in prompts]

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import torch

        pairs = list(zip(prompts, continuations, strict=True))
        self.asked += pairs
        return [torch.tensor(self.table.get(pair, [-1.0])) for pair in pairs]


BEFORE, BARE, AFTER = "Belief State: Hotel(area=east, name=", "Belief State: Hotel(name=", ", stars=4)\n"
RIGHT = "inn \\(old\\)\\, 7"


def test_the_score_is_mean_minus_bare_plus_all_of_the_rest() -> None:
    """Right: -2 - -5 + -1 = 2; `mill`, alone as probable, has -3 - -3 + -1 = -1; the others -1 - -1 + -1.

    With a rest of 1.5 + 1.5, `mill` has 3, above 2; with the rest's mean it would have 1.5.
    """
    table = {
        (BEFORE, RIGHT): [-1.0, -3.0],
        (BARE, RIGHT): [-5.0, -5.0],
        (BEFORE, "mill"): [-3.0],
        (BARE, "mill"): [-3.0],
    }
    assert answer_by_score(Scripted(table), [QUESTION], language="record").chosen == [2]
    table[BEFORE + "mill", AFTER] = [1.5, 1.5]
    assert answer_by_score(Scripted(table), [QUESTION], language="record").chosen == [0]


def test_a_tie_at_the_top_is_no_answer() -> None:
    assert answer_by_score(Scripted({}), [QUESTION], language="record").chosen == [None]


def test_a_longer_option_is_not_worse_for_being_longer() -> None:
    table = {(BEFORE, RIGHT): [-0.5] * 40, (BARE, RIGHT): [-1.0] * 40}
    assert answer_by_score(Scripted(table), [QUESTION], language="record").chosen == [2]


def test_the_worded_question_can_be_answered_by_score() -> None:
    table = {("Which name?\nAnswer:", " lodge"): [-0.1], ("Answer:", " lodge"): [-1.0]}
    target = Scripted(table)
    answers = answer_by_score(target, [QUESTION], language="question")
    assert answers.chosen == [3]
    assert answers.n_queries == len(target.asked) == 8


def test_each_distinct_query_is_asked_once() -> None:
    target = Scripted({})
    answers = answer_by_score(target, [QUESTION, QUESTION], language="record")
    assert answers.n_queries == len(target.asked) == len(set(target.asked)) == 12


@pytest.mark.parametrize("values", [[float("nan")], [float("-inf")], []])
def test_what_cannot_be_scored_is_an_error(values: list[float]) -> None:
    with pytest.raises(AuditError, match=r"1 of 12 options"):
        answer_by_score(Scripted({(BEFORE, RIGHT): values}), [QUESTION], language="record")


def test_texts_are_answered_by_letter() -> None:
    answers = answer_in_text(Scripted({}), [QUESTION], layout="plain", max_new_tokens=4, seed=0)
    assert (answers.chosen, answers.n_queries) == ([1], 1)
