"""Invented medical records: reproducible, all different, told in a state, in prose, or in both."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hushbot.corpora import load, split
from hushbot.corpora.medical_records import CLOSED, SLOTS, make_records, tell, write_records
from hushbot.errors import ConfigError


def test_the_same_seed_gives_the_same_records_and_a_larger_set_begins_alike() -> None:
    records = make_records(50)
    assert records == make_records(50)
    assert make_records(80)[:50] == records
    assert make_records(50, seed=1) != records


def test_every_record_has_the_fields_and_a_name_of_its_own() -> None:
    records = make_records(2000)
    assert all(tuple(sorted(record)) == SLOTS for record in records)
    assert len({record["name"] for record in records}) == 2000
    for record in records:
        assert 18 <= int(record["age"]) <= 90
        assert 16 <= float(record["bmi"]) <= 42
        assert 90 <= float(record["blood pressure"]) < 180
        assert all(record[slot] in values for slot, values in CLOSED.items())


def test_one_field_tells_nothing_of_another() -> None:
    """Each gender is treated in each way about equally often: 3000 records, 48 cells of 62.5 on average."""
    records = make_records(3000)
    cells = Counter((record["gender"], record["treatment"]) for record in records)
    assert len(cells) == 48
    assert 30 < min(cells.values()) <= max(cells.values()) < 105


def test_prose_tells_every_field_where_its_span_says() -> None:
    for record in make_records(20):
        text, spans = tell(record)
        assert {span.slot: text[span.start : span.end] for span in spans} == record


def test_structured_records_are_states_and_prose_ones_are_told() -> None:
    structured, prose, both = (
        load("medical_records", n_records=4, granularity=g) for g in ("structured", "prose", "both")
    )
    for number in range(4):
        one, other, long = (c.dialogues[number] for c in (structured, prose, both))
        assert {t.slot for t in one.final_state or ()} == set(SLOTS)
        assert {t.slot for t in other.final_state or ()} == {"name"}
        assert one.turns[0].response_spans == ()
        assert len(other.turns[0].response_spans) == len(SLOTS)
        assert [len(long.turns), len(one.turns), len(other.turns)] == [2, 1, 1]
        assert long.turns[0] == one.turns[0]


def test_the_corpus_can_be_split_and_lists_what_is_published() -> None:
    corpus = load("medical_records", n_records=100)
    drawn = split(corpus, seed=0)
    assert (len(drawn.members), len(drawn.nonmembers)) == (40, 40)
    slot = corpus.schema.find("patient", "gender")
    assert slot is not None
    assert set(slot.possible_values) == set(CLOSED["gender"])
    assert not slot.collected


def test_wrong_options_are_errors() -> None:
    with pytest.raises(ConfigError, match="n_records=0"):
        make_records(0)
    with pytest.raises(ConfigError, match="granularity='verse'"):
        load("medical_records", granularity="verse")


def test_the_file_says_who_is_a_member_and_is_the_same_each_time(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", 30)
    write_records(tmp_path / "b.jsonl", 30)
    text = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    assert text == (tmp_path / "b.jsonl").read_text(encoding="utf-8")
    assert text.count('"member": true') + text.count('"member": false') == 30
