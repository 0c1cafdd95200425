"""Records: from dialogues, in prose and from files, without what decides nothing; files never leak into errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hushbot.attacks.quiz_records import Fact, Record, RecordFile, choose, records_of
from hushbot.corpora.medical_records import load_medical_records, write_records
from hushbot.errors import ConfigError, DataError
from hushbot.types import AuditSplit, Dialogue, SlotValue, Span, Turn

SECRET = "zelda quirk"


def state(**slots: str) -> frozenset[SlotValue]:
    return frozenset(SlotValue("hotel", slot, value) for slot, value in slots.items())


def dialogue(name: str, *states: frozenset[SlotValue]) -> Dialogue:
    return Dialogue(name, tuple(Turn("hello", s) for s in states), ("hotel",))


def test_a_record_is_the_last_known_state_and_knows_what_was_said_before() -> None:
    one = dialogue("m", state(area="north"), state(area="south", name="inn", stars="dontcare"))
    found = records_of(AuditSplit((one,), ()), ["structured"], max_records=None, seed=0)
    (record,) = found.records
    assert [(f.slot, f.value) for f in record.facts] == [("area", "south"), ("name", "inn")]
    assert set(record.facts[0].others) == {"north", "south"}
    assert record.is_member


def test_what_decides_nothing_is_left_out_and_counted() -> None:
    both = state(area="east", name="inn")
    split = AuditSplit(
        (dialogue("a", both), dialogue("b", state(area="west")), dialogue("d", state(area="w", name="x"))),
        (dialogue("c", both), dialogue("f", state(area="q", name="y")), dialogue("e", state(area="q", name="y"))),
    )
    found = records_of(split, ["structured"], max_records=None, seed=0)
    assert [(r.id, r.is_member) for r in found.records] == [("e", False), ("d", True)]
    assert "2 of 6 are asked about; left out are 1 with fewer than two facts, 2 that both sides hold" in found.notes[0]
    assert found.n_nonmembers == 1


def test_a_side_is_cut_at_random_and_by_seed() -> None:
    records = [Record(f"r{i}", i % 2 == 0, (Fact("h", "a", f"v{i}"), Fact("h", "b", "x"))) for i in range(40)]
    first, again, other = (choose(records, max_records=5, seed=seed).records for seed in (0, 0, 1))
    assert sum(r.is_member for r in first) == 5
    assert len(first) == 10
    assert first == again == choose(records[::-1], max_records=5, seed=0).records
    assert first != other


def test_prose_is_a_response_with_marked_values() -> None:
    text = "ada is 36."
    spans = (Span("p", "name", "ada", 0, 3), Span("p", "age", "36", 7, 9))
    turns = (Turn("who?", frozenset(), response=text, response_spans=spans), Turn("bye", frozenset(), response="bye"))
    (record,) = records_of(AuditSplit((Dialogue("m", turns),), ()), ["prose"], max_records=None, seed=0).records
    assert (record.granularity, record.text) == ("prose", text)
    assert {f.slot: f.span and text[slice(*f.span)] for f in record.facts} == {"name": "ada", "age": "36"}


def test_medical_records_give_one_record_of_each_granularity() -> None:
    corpus = load_medical_records(6, "both")
    split = AuditSplit(corpus.dialogues[:3], corpus.dialogues[3:])
    found = records_of(split, ["structured", "prose"], max_records=None, seed=0)
    assert sorted(r.granularity for r in found.records) == ["prose"] * 6 + ["structured"] * 6
    assert all(len(r.facts) == 8 for r in found.records)
    for record in found.records:
        if record.granularity == "prose":
            assert all(f.span and record.text[slice(*f.span)] == f.value for f in record.facts)


def test_a_file_of_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    rows = [
        {"id": 1, "member": True, "age": 36, "smokes": False, "bmi": 20.5},
        {"id": 2, "member": "no", "age": None},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    first, second = RecordFile(path=str(path)).read()
    assert [(f.domain, f.slot, f.value) for f in first.facts] == [
        ("record", "age", "36"), ("record", "bmi", "20.5"), ("record", "smokes", "false")
    ]  # fmt: skip
    assert (first.id, first.is_member, second.id, second.is_member, second.facts) == ("1", True, "2", False, ())


def test_a_table_is_read(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text('who,trained,kind,age,town\nx,1,film,36,"a, b"\n', encoding="utf-8")
    (record,) = RecordFile(path=str(path), id_column="who", member_column="trained", domain_column="kind").read()
    assert record == Record("x", True, (Fact("film", "age", "36"), Fact("film", "town", "a, b")))


def test_only_the_named_fields_are_asked_about(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, 3)
    records = RecordFile(path=str(path), fields=["age", "bmi", "hometown"]).read()
    assert all([f.slot for f in record.facts] == ["age", "bmi", "hometown"] for record in records)
    with pytest.raises(DataError, match="line 1 has no weight"):
        RecordFile(path=str(path), fields=["weight"]).read()


def test_prose_in_a_file_keeps_the_facts_that_stand_there(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    row = {"id": "x", "member": 0, "text": "Ada (136) is 36.", "age": 36, "town": "ely", "name": "ada"}
    path.write_text(json.dumps(row), encoding="utf-8")
    (record,) = RecordFile(path=str(path), text_column="text").read()
    assert {f.slot: f.span for f in record.facts} == {"age": (13, 15), "name": (0, 3)}
    assert (record.granularity, record.opening) == ("prose", "")


def test_the_generators_file_is_read_with_a_fair_share_of_members(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    write_records(path, 200)
    records = RecordFile(path=str(path), text_column="text").read()
    assert len(records) == 200
    assert 70 < sum(r.is_member for r in records) < 130
    assert all(len(r.facts) == 8 for r in records)


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("r.jsonl", "", "holds no record"),
        ("r.jsonl", '{"id": 1, "member": true}\n' * 2, "same 'id'"),
        ("r.jsonl", f'{{"id": "{SECRET}"}}', "line 1 has no member"),
        ("r.jsonl", f'{{"id": "x", "member": "{SECRET}"}}', "none of true, 1, yes"),
        ("r.jsonl", f'{{"id": "x", "member": 1, "a": ["{SECRET}"]}}', "'a' is a list or an object"),
        ("r.jsonl", f'\n{{"id": "{SECRET}', "line 2 is no JSON"),
        ("r.jsonl", f'["{SECRET}"]', "line 1 is no object"),
        ("r.jsonl", "[" * 100_000, "line 1 is no JSON"),
        ("r.csv", f"id,member\n{SECRET},1,2\n", "line 2 has more or fewer cells"),
        ("r.csv", f'id,member\n"{SECRET}"x,1\n', "line 2 is no CSV"),
    ],
)
def test_a_bad_file_is_an_error_that_shows_nobody(tmp_path: Path, name: str, text: str, rule: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        RecordFile(path=str(path)).read()
    assert rule in str(caught.value)
    assert name in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_missing_file_and_columns_that_clash_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv"):
        RecordFile(path=str(tmp_path / "gone.csv")).read()
    with pytest.raises(ConfigError, match="columns differ"):
        RecordFile(path="x", id_column="member")
