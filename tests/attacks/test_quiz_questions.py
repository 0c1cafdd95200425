"""Questions: exactly one right option, wrong ones of the same type, letters balanced, and nothing known of sides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushbot.attacks.quiz_questions import (
    LETTERS,
    Pool,
    Question,
    ask,
    data_type,
    is_free,
    mean_the_same,
    normal_form,
)
from hushbot.attacks.quiz_records import Fact, Record, records_of
from hushbot.corpora import load, split
from hushbot.schema import Schema, Slot
from hushbot.types import AuditSplit

NO_SCHEMA = Schema(())


def record(name: str, values: dict[str, str], *, is_member: bool = True, others: tuple[str, ...] = ()) -> Record:
    facts = tuple(sorted(Fact("hotel", slot, value, others) for slot, value in values.items()))
    return Record(name, is_member, facts)


def quiz(records: list[Record], schema: Schema = NO_SCHEMA, **options: Any) -> list[Question]:
    settings_ = {"n_questions": 4, "complexities": ["simple"], "subject": "", "seed": 0} | options
    return ask(records, Pool(records, schema), **settings_).questions


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Golden Wok", "the golden  wok"),
        ("two", "2"),
        ("5 pm", "17:00"),
        ("3.0", "3"),
        ("pizza hut", "pizza hut city centre"),
        ("cambridge", "Cambridge train station"),
        ("b & b", "b&b"),
    ],
)
def test_values_that_mean_the_same_are_told(one: str, other: str) -> None:
    assert mean_the_same(one, other)
    assert mean_the_same(other, one)


@pytest.mark.parametrize(
    ("one", "other"), [("2", "12"), ("17:00", "17:30"), ("north", "south"), ("ely", "elysian"), ("1", "17:01")]
)
def test_values_that_differ_are_told(one: str, other: str) -> None:
    assert not mean_the_same(one, other)


def test_data_types() -> None:
    values = ["golden wok", "17:15", "149.1", "b12", "12 north street", "7"]
    assert [data_type(v) for v in values] == ["text", "number", "number", "mixed", "mixed", "number"]


def test_number_length_counts_digits() -> None:
    question = Question(record("r", {"a": "149.1175", "b": "x"}), Fact("hotel", "a", "149.1175"), ("1", "2", "3"), 0)
    assert question.digits == "5+"
    assert Question(question.record, Fact("hotel", "a", "17:15"), ("1", "2", "3"), 0).digits == "1-4"
    assert Question(question.record, Fact("hotel", "a", "north"), ("1", "2", "3"), 0).digits is None


# fmt: off
WORDS = st.sampled_from([
    "north", "the north", "south", "east", "west", "2", "two", "3", "4", "5", "17:00", "5 pm", "18:00", "dontcare",
    "golden wok", "golden wok city centre", "Golden Wok", "cotto", "yes", "B12", "b 12",
])
# fmt: on
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["area", "name", "stay", "time"]), WORDS, min_size=2, max_size=4),
    min_size=4,
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(RECORDS, st.integers(0, 3))
def test_exactly_one_option_is_right(contents: list[dict[str, str]], seed: int) -> None:
    records = [record(f"r{i}", values) for i, values in enumerate(contents)]
    for question in quiz(records, seed=seed):
        assert len({normal_form(option) for option in question.options}) == 4
        assert question.options[question.place] == question.fact.value
        right = [
            option
            for option in question.options
            if any(mean_the_same(option, fact.value) for fact in question.record.facts)
        ]
        assert right == [question.fact.value]


def test_what_an_earlier_turn_said_is_never_a_wrong_option() -> None:
    """The user first asked for the north: a bot that answers so has not answered wrongly."""
    many = [record(f"r{i}", {"area": area, "name": f"place {area}"}) for i, area in enumerate("nswec")]
    changed = record("x", {"area": "q", "name": "inn"}, others=("n", "s"))
    assert not is_free("n", changed)
    assert is_free("w", changed)
    asked = [q for q in quiz([*many, changed], n_questions=1) if q.record.id == "x" and q.fact.slot == "area"]
    assert all(not {"n", "s"} & set(q.wrong) for q in asked)


def test_void_values_are_no_options() -> None:
    assert not is_free("dontcare", record("r", {"a": "x", "b": "y"}))


def test_right_options_stand_once_at_each_letter_of_a_record() -> None:
    corpus = load("bookings")
    found = records_of(split(corpus, seed=0), ["structured"], max_records=None, seed=0)
    questions = quiz(found.records, corpus.schema)
    by_record: dict[str, list[int]] = {}
    for question in questions:
        by_record.setdefault(question.record.id, []).append(question.place)
    assert len(by_record) > 350
    assert all(sorted(places) == [0, 1, 2, 3] for places in by_record.values())
    firsts = Counter(places[0] for places in by_record.values())
    assert min(firsts[i] for i in range(len(LETTERS))) > len(by_record) / 8, "the order itself is random"


def test_with_other_numbers_of_questions_letters_differ_by_at_most_one() -> None:
    corpus = load("medical_records", n_records=30)
    found = records_of(split(corpus, seed=0), ["structured"], max_records=None, seed=0)
    for n in (3, 6):
        by_record: dict[str, list[int]] = {}
        for question in quiz(found.records, corpus.schema, n_questions=n):
            by_record.setdefault(question.record.id, []).append(question.place)
        assert len(by_record) == len(found.records)
        for places in by_record.values():
            counts = [places.count(i) for i in range(4)]
            assert sum(counts) == n
            assert max(counts) - min(counts) <= 1


def test_wrong_options_are_of_the_right_ones_type() -> None:
    mixed = [
        record(f"r{i}", {"code": code, "name": f"name{i}"}) for i, code in enumerate(["1", "2", "3", "4", *"abcde"])
    ]
    for question in quiz(mixed, n_questions=2):
        if question.fact.slot == "code":
            assert {data_type(option) for option in question.options} == {question.data_type}


def test_wrong_options_are_drawn_as_often_as_values_occur() -> None:
    """A uniform draw of three of seven wrong values would hold the common one in 43% of questions, not in most."""
    records = [record(f"r{i}", {"slot": "a", "name": f"name {i}"}) for i in range(50)]
    records += [record(f"s{i}{v}", {"slot": v, "name": f"other {v} {i}"}) for v in "bcdefgh" for i in range(5)]
    asked = [q for q in quiz(records, n_questions=2) if q.fact.slot == "slot" and q.fact.value != "a"]
    assert len(asked) == 35
    assert np.mean(["a" in q.wrong for q in asked]) > 0.8


def test_a_slot_with_too_few_values_takes_the_schemas() -> None:
    records = [record(f"r{i}", {"stars": str(1 + i % 2), "name": f"inn {i}"}) for i in range(8)]
    schema = Schema.of([Slot("hotel", "stars", True, ("1", "2", "3", "4"))])
    assert not [q for q in quiz(records, n_questions=2) if q.fact.slot == "stars"]
    asked = [q for q in quiz(records, schema, n_questions=2) if q.fact.slot == "stars"]
    assert len(asked) >= 8
    assert all(set(q.options) == {"1", "2", "3", "4"} for q in asked)


def test_a_record_that_allows_too_few_questions_is_left_out_and_counted() -> None:
    records = [record(f"r{i}", {"area": area, "type": "inn"}) for i, area in enumerate(["n", "s", "e", "w"])]
    asked = ask(records, Pool(records, NO_SCHEMA), n_questions=4, complexities=["simple"], subject="", seed=0)
    assert asked.questions == []
    assert "4 left out" in asked.notes[0]


def test_a_further_question_on_a_field_has_other_wrong_options() -> None:
    records = [record(f"r{i}", {"area": f"area{chr(97 + i)}", "type": "inn"}) for i in range(12)]
    for name in ("r0", "r7"):
        asked = [q for q in quiz(records) if q.record.id == name]
        assert len({frozenset(q.wrong) for q in asked}) == 4


def test_the_subject_is_not_asked_about() -> None:
    corpus = load("medical_records", n_records=40)
    found = records_of(split(corpus, seed=0), ["structured"], max_records=None, seed=0)
    assert all(q.fact.slot != "name" for q in quiz(found.records, corpus.schema, subject="name"))


def test_neither_side_nor_order_decides_what_is_asked() -> None:
    corpus = load("bookings")
    drawn = split(corpus, seed=0, members=40, nonmembers=40, calibration=0, controls=0)
    swapped = AuditSplit(drawn.nonmembers[::-1], drawn.members[::-1])
    first, second = (
        quiz(records_of(s, ["structured"], max_records=None, seed=3).records, corpus.schema, seed=3)
        for s in (drawn, swapped)
    )

    def form(questions: list[Question]) -> list[tuple[object, ...]]:
        return [(q.record.id, q.fact, q.wrong, q.place) for q in questions]

    assert form(first) == form(second)
    other = quiz(records_of(drawn, ["structured"], max_records=None, seed=3).records, corpus.schema, seed=4)
    assert form(first) != form(other)


def test_real_states_are_asked_about_with_one_right_option(shared_dir: Path) -> None:
    corpus = load("multiwoz21", path=str(shared_dir / "data" / "multiwoz21"), parts=["val"])
    drawn = split(corpus, seed=0, members=100, nonmembers=100, calibration=0, controls=0)
    found = records_of(drawn, ["structured"], max_records=None, seed=0)
    questions = quiz(found.records, corpus.schema)
    assert len({q.record.id for q in questions}) > 190
    for question in questions:
        others = [option for option in question.options if option != question.fact.value]
        assert len(others) == 3
        assert not any(mean_the_same(o, f.value) for o in others for f in question.record.facts)
    assert np.mean([len({data_type(o) for o in q.options}) == 1 for q in questions]) > 0.95
