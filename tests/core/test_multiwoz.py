"""The MultiWOZ 2.x loader: states, bookings and acts by hand, then the published counts on the real data."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.prompts import parse_state, render_state
from hushbot.types import SlotValue, Span

Raw = dict[str, Any]


def user(text: str = "hello") -> Raw:
    return {"text": text, "metadata": {}, "dialog_act": {}}


def system(text: str = "hi", **domains: Raw) -> Raw:
    metadata = {name: {"semi": part} for name, part in domains.items()} or {"bus": {"semi": {"day": ""}}}
    return {"text": text, "metadata": metadata, "dialog_act": {}}


def write(path: Path, dialogues: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(dialogues), encoding="utf-8")
    return path


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Corpus]:
    def load_log(*log: Raw, **fields: Any) -> Corpus:
        return load_multiwoz(write(tmp_path / "one.json", {"A.json": {"log": list(log), **fields}}))

    return load_log


def triplets(corpus: Corpus) -> list[list[tuple[str, str, tuple[str, ...]]] | None]:
    turns = [turn for dialogue in corpus.dialogues for turn in dialogue.turns]
    return [None if turn.state is None else sorted((t.domain, t.slot, t.values) for t in turn.state) for turn in turns]


def test_a_users_state_stands_in_the_next_system_turn(load: Callable[..., Corpus]) -> None:
    corpus = load(
        user("a train"),
        system("where?", train={"leaveAt": ""}),
        user("at 9"),
        system("ok", train={"leaveAt": "09:00"}),
    )
    assert triplets(corpus) == [[], [("train", "leaveat", ("09:00",))]]
    (dialogue,) = corpus.dialogues
    assert [(turn.user, turn.response) for turn in dialogue.turns] == [("a train", "where?"), ("at 9", "ok")]
    assert (dialogue.id, dialogue.domains, dialogue.goal, corpus.notes) == ("A", ("train",), None, ())
    assert corpus.schema.by_domain == {"train": ("leaveat",)}


def test_book_slots_are_state_and_booked_is_not(load: Callable[..., Corpus]) -> None:
    done = {
        "text": "done",
        "metadata": {
            "restaurant": {
                "semi": {},
                "book": {"people": "2", "booked": [{"name": "thanh binh", "reference": " QX7ZP01A "}]},
            },
            "taxi": {"book": {"booked": [{"type": "red audi", "phone": "07123456789"}]}},
        },
    }
    later = {"text": "bye", "metadata": {"restaurant": {"book": {"booked": []}}}}
    silent = {"text": "hm", "metadata": None}
    corpus = load(user(), done, user(), silent, user(), later)
    assert triplets(corpus) == [[("restaurant", "book people", ("2",))], None, []]
    booked = (
        SlotValue("restaurant", "name", "thanh binh"),
        SlotValue("restaurant", "reference", "QX7ZP01A"),
        SlotValue("taxi", "type", "red audi"),
        SlotValue("taxi", "phone", "07123456789"),
    )
    issued = [turn.booked for turn in corpus.dialogues[0].turns]
    assert issued == [booked, booked, ()], "unknown metadata takes nothing back"


@pytest.mark.parametrize("metadata", [None, {}, "absent"])
def test_missing_metadata_is_unknown_not_empty(load: Callable[..., Corpus], metadata: Any) -> None:
    silent = {"text": "hm", "metadata": metadata, "dialog_act": {}}
    if metadata == "absent":
        del silent["metadata"]
    corpus = load(user(), silent)
    assert triplets(corpus) == [None]
    assert corpus.notes == ("system turn without metadata, state unknown (None) (1): A turn 1",)


def test_spans_are_token_ranges_of_the_text_as_it_stands(load: Callable[..., Corpus]) -> None:
    asked = user("To  ely \n, at  after nine .") | {
        "span_info": [
            ["Train-Inform", "Leave", "After  nine", 4, 5],
            ["Train-Inform", "Dest", "Ely", 1, 1],
            ["Train-Inform", "People", "1", 0, 0],
        ]
    }
    told = system("TR12 .") | {"span_info": [["Train-Inform", "Id", "TR12", 0, 0]]}
    last = user("ely") | {"span_info": [["Train-Inform", "Dest", "ely", 0, 0]]}
    corpus = load(asked, told, last)
    first, second = corpus.dialogues[0].turns
    # "after nine" has one blank in the text and two in the value: not the same text.
    assert first.user_spans == (Span("train", "destination", "Ely", 4, 7),)
    assert first.response_spans == (Span("train", "trainid", "TR12", 0, 4),)
    assert (second.user_spans, second.response_spans) == ((Span("train", "destination", "ely", 0, 3),), ())
    assert corpus.notes[0] == ("span of a value dropped, the text there is not the value (2): A turn 0, A turn 0")


@pytest.mark.parametrize("span_info", ["No Annotation", [5], [["A-B", "c"]], {"a": []}])
def test_unusable_spans_are_a_note(load: Callable[..., Corpus], span_info: Any) -> None:
    corpus = load(user("a") | {"span_info": span_info}, system("b", train={"day": "friday"}))
    assert corpus.dialogues[0].turns[0].user_spans == ()
    assert corpus.notes == ("span of a value dropped, the text there is not the value (1): A turn 0",)


def test_a_dialogue_may_end_with_the_user(load: Callable[..., Corpus]) -> None:
    corpus = load(user(), system(hotel={"area": "north"}), user("bye"))
    last = corpus.dialogues[0].turns[-1]
    assert (last.user, last.state, last.response) == ("bye", None, None)
    assert corpus.dialogues[0].final_state == frozenset({SlotValue("hotel", "area", "north")})
    assert "ends with the user" in corpus.notes[0]


def test_a_system_may_speak_first(load: Callable[..., Corpus]) -> None:
    corpus = load(system("welcome"), user("a hotel"), system("where?", hotel={"type": "hotel"}))
    (dialogue,) = corpus.dialogues
    assert (dialogue.opening, len(dialogue.turns)) == ("welcome", 1)
    assert triplets(corpus) == [[("hotel", "type", ("hotel",))]]


def test_domains_come_from_the_goal(load: Callable[..., Corpus]) -> None:
    goal = {
        "taxi": {"info": {}},
        "hotel": {},
        "Attraction": {"reqt": []},
        "topic": {"x": 1},
        "message": "text",
    }
    corpus = load(user(), system(), goal=goal)
    assert corpus.dialogues[0].domains == ("attraction", "taxi")
    assert corpus.dialogues[0].goal == goal


def test_acts_are_those_of_the_system(load: Callable[..., Corpus]) -> None:
    asks, answers = user(), system()
    asks["dialog_act"] = {"Hotel-Inform": [["Area", "north"]]}
    answers["dialog_act"] = {
        "Hotel-Inform": [["Name", "a (b), c=d\\"], ["Parking", "none"], ["none", "none"]],
        "Hotel-Request": [["Stars", "?"]],
        "general-bye": [["none", "none"]],
    }
    (turn,) = load(asks, answers).dialogues[0].turns
    assert turn.actions == r"hotel-inform(name=a \(b\)\, c\=d\\, parking) hotel-request(stars=?) general-bye()"


@pytest.mark.parametrize("acts", ["No Annotation", None, [], {"A-B": "x"}, {"A-B": [["a"]]}, {"A-B": [["a", {}]]}])
def test_unusable_acts_are_a_note(load: Callable[..., Corpus], acts: Any) -> None:
    answer = system(hotel={"area": "north"})
    answer["dialog_act"] = acts
    corpus = load(user(), answer)
    assert corpus.dialogues[0].turns[0].actions == ""
    assert triplets(corpus) == [[("hotel", "area", ("north",))]]
    (note,) = corpus.notes
    assert "dialog_act" in note
    assert note.endswith("A turn 1")


def test_separate_acts_of_version_20(tmp_path: Path) -> None:
    log = [{"text": f"{i}", "metadata": {"taxi": {}} if i % 2 else {}} for i in range(4)]
    write(tmp_path / "data.json", {"A.json": {"log": log}, "B.json": {"log": log}})
    acts = {"A": {"1": {"Taxi-Request": [["Dest", "?"]]}, "2": "No Annotation"}}
    write(tmp_path / "dialogue_acts.json", acts)
    corpus = load_multiwoz(tmp_path, version="2.0")
    assert [turn.actions for turn in corpus.dialogues[0].turns] == ["taxi-request(dest=?)", ""]
    assert corpus.name == "multiwoz 2.0"
    assert "dialog_act is str, not an object: no acts (1): A turn 3" in corpus.notes
    assert any(note.startswith("turn without dialog_act (4): B turn 0") for note in corpus.notes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data with list files: A and B are val, sng0003 is test, D is all the rest."""
    names = ("A.json", "B.json", "sng0003.json", "D")
    write(tmp_path / "mw" / "data.json", {name: {"log": [user(), system()]} for name in names})
    (tmp_path / "mw" / "valListFile.json").write_text("A.json\r\n\r\nB.json\r\nA.json\r\nGONE.json\r\n\r\n")
    (tmp_path / "mw" / "testListFile.txt").write_text("sng0003\n")
    return tmp_path / "mw"


def ids(corpus: Corpus) -> list[str]:
    return [dialogue.id for dialogue in corpus.dialogues]


def test_list_files_make_the_parts(folder: Path) -> None:
    corpus = load_multiwoz(folder)
    assert ids(corpus) == ["A", "B", "sng0003", "D"]
    assert set(corpus.notes) == {
        "listed twice in the val list (1): A",
        "in the val list, but not in the data (1): GONE",
    }
    assert ids(load_multiwoz(folder, parts=["val"])) == ["A", "B"]
    assert ids(load_multiwoz(folder, parts=["test", "train"])) == ["sng0003", "D"]
    assert load_multiwoz(folder, parts=["test"]).name == "multiwoz 2.1 test"


def test_an_archive_reads_as_its_folder(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mw.zip", "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"MULTIWOZ2.1/{file.name}")
    whole = load_multiwoz(folder, parts=["val"])
    assert load_multiwoz(tmp_path / "mw.zip", parts=["val"]) == whole


def test_part_files_plain_and_packed(folder: Path, tmp_path: Path) -> None:
    text = (folder / "data.json").read_text()
    target = tmp_path / "parts"
    target.mkdir()
    (target / "val.json.gz").write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(target / "test.json.zip", "w") as archive:
        archive.writestr(
            "test.json",
            text.replace('"A', '"X').replace('"B', '"Y').replace("sng", "tst").replace('"D', '"Z'),
        )
    assert ids(load_multiwoz(target)) == ["A", "B", "sng0003", "D", "X", "Y", "tst0003", "Z"]
    assert ids(load_multiwoz(target, parts=["test"])) == ["X", "Y", "tst0003", "Z"]
    assert ids(load_multiwoz(target / "val.json.gz")) == ["A", "B", "sng0003", "D"]
    with pytest.raises(DataError, match=r"no train\.json there"):
        load_multiwoz(target, parts=["train", "val"])


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    (folder / "testListFile.txt").unlink()
    with pytest.raises(DataError, match="needs testListFile"):
        load_multiwoz(folder, parts=["val"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no data\.json"):
        load_multiwoz(tmp_path / "empty")
    with pytest.raises(DataError, match="no such file or folder"):
        load_multiwoz(tmp_path / "none")


def test_options_are_checked_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_multiwoz(tmp_path, version="2.2", parts=["dev"])
    assert "version='2.2'" in caught.value.problems[0]
    assert "parts=['dev']" in caught.value.problems[1]
    with pytest.raises(ConfigError, match="parts='val' is not a list"):
        load_multiwoz(tmp_path, parts="val")


MALFORMED: dict[str, Any] = {
    "no object": [],
    "no log": {"goal": {}},
    "log no list": {"log": {}},
    "turn no object": {"log": ["hello"]},
    "no text": {"log": [{"metadata": {}}, system()]},
    "text no string": {"log": [{"text": 5}, system()]},
    "text surrogate": {"log": [user("\ud800"), system()]},
    "goal surrogate": {"log": [user(), system()], "goal": {"\ud800": {"info": {}}}},
    "goal no object": {"log": [user(), system()], "goal": []},
    "metadata no object": {"log": [user(), {"text": "x", "metadata": "y"}]},
    "domain no object": {"log": [user(), {"text": "x", "metadata": {"taxi": []}}]},
    "semi no object": {"log": [user(), {"text": "x", "metadata": {"taxi": {"semi": "x"}}}]},
    "value a boolean": {"log": [user(), system(taxi={"departure": True})]},
    "value an object": {"log": [user(), system(taxi={"departure": {"a": 1}})]},
    "two values": {"log": [user(), system(taxi={"leaveAt": "1", "leaveat": "2"})]},
    "nameless slot": {"log": [user(), system(taxi={" ": "x"})]},
    "booked no list": {"log": [user(), {"text": "x", "metadata": {"taxi": {"book": {"booked": "yes"}}}}]},
    "booked a number": {"log": [user(), {"text": "x", "metadata": {"taxi": {"book": {"booked": [{"a": 0.5}]}}}}]},
    "system twice": {"log": [user(), system(), system(taxi={"departure": "x"})]},
    ".json": {"log": []},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_each_malformed_dialogue_is_one_problem(tmp_path: Path, name: str) -> None:
    good = {"log": [user(), system()]}
    path = write(tmp_path / "x.json", {name: MALFORMED[name], "good": good})
    with pytest.raises(DataError, match="1 malformed dialogue; ") as caught:
        load_multiwoz(path)
    shown = repr(name.removesuffix(".json"))
    assert str(caught.value).startswith(f"{path}: dialogue {shown}: ")
    corpus = load_multiwoz(path, on_error="skip")
    assert ids(corpus) == ["good"]
    assert corpus.notes[-1].startswith("skipped 1 dialogue: ")


def test_all_problems_of_all_files_stand_in_one_error(tmp_path: Path) -> None:
    write(tmp_path / "val.json", {f"V{i}": {} for i in range(12)})
    write(tmp_path / "test.json", {f"T{i}": {} for i in range(12)})
    with pytest.raises(DataError) as caught:
        load_multiwoz(tmp_path)
    lines = str(caught.value).splitlines()
    assert len(lines) == 22
    assert "val.json: dialogue 'V0': it has no log" in lines[0]
    assert "test.json: dialogue 'T0': it has no log" in lines[12]
    assert lines[20] == "and 4 more"


def test_an_id_that_occurs_twice_is_a_problem(tmp_path: Path) -> None:
    good = {"log": [user(), system()]}
    write(tmp_path / "val.json", {"A": good, "A.json": good})
    write(tmp_path / "test.json", {"A": good})
    with pytest.raises(DataError, match="the id occurs twice") as caught:
        load_multiwoz(tmp_path)
    assert "2 malformed dialogues" in str(caught.value)


def test_another_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"found list; .* data=unified"):
        load_multiwoz(write(tmp_path / "x.json", [{"dialogue_id": "a"}]))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
SLOTS = st.dictionaries(st.sampled_from(["area", "leaveAt", "booked", ""]) | st.text(max_size=4), JSON, max_size=3)
METADATA = st.dictionaries(
    st.text(max_size=4), st.dictionaries(st.sampled_from(["semi", "book"]), SLOTS | JSON) | JSON, max_size=2
)
LOG = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.text(max_size=5) | JSON,
            "metadata": METADATA | JSON,
            "dialog_act": METADATA | JSON,
            "span_info": st.lists(st.tuples(*[st.text(max_size=2)] * 3, *[st.integers(-1, 2)] * 2)) | JSON,
        },
    ),
    max_size=4,
)
DIALOGUES = st.dictionaries(
    st.text(max_size=5),
    st.fixed_dictionaries({}, optional={"log": LOG | JSON, "goal": JSON}) | JSON,
    max_size=3,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=DIALOGUES | JSON, on_error=st.sampled_from(["raise", "skip"]))
def test_arbitrary_json_raises_only_our_errors(tmp_path: Path, content: Any, on_error: Any) -> None:
    path = write(tmp_path / "any.json", content)
    try:
        corpus = load_multiwoz(path, on_error=on_error)
    except HushbotError:
        return
    for dialogue in corpus.dialogues:
        for turn in dialogue.turns:
            if turn.state is not None:
                assert parse_state(render_state(turn.state)) == turn.state
            f"{turn.user}{turn.response}{turn.actions}".encode()
    "".join(corpus.notes).encode()


# The real data


@pytest.mark.shared
@pytest.mark.parametrize("name", ["01_mw21_value_statuses", "02_mw21_multivalue", "03_mw21_missing_parts"])
def test_cases_of_irregular_states(shared_dir: Path, name: str) -> None:
    expected = json.loads((shared_dir / "cases" / f"{name}.expected.json").read_text())
    corpus = load_multiwoz(shared_dir / "cases" / f"{name}.json")
    assert ids(corpus) == list(expected)
    (about,) = expected.values()
    wanted = [
        None if turn is None else [(domain, slot, tuple(values)) for domain, slot, values in turn]
        for turn in about["user_turns"]
    ]
    assert triplets(corpus) == wanted
    if name.startswith("03"):
        notes = "\n".join(corpus.notes)
        for place in (
            "state unknown (None) (1): CASE0003 turn 3",
            "turn without dialog_act (3): CASE0003 turn 0",
        ):
            assert place in notes
        assert "dialog_act is str, not an object: no acts (1): CASE0003 turn 2" in notes


@pytest.mark.shared
def test_case_of_ids_and_lists(shared_dir: Path) -> None:
    folder = shared_dir / "cases" / "05_ids_and_lists"
    expected = json.loads(folder.with_suffix(".expected.json").read_text())
    corpus = load_multiwoz(folder)
    assert ids(corpus) == expected["ids"]
    assert any("GONE9999" in note for note in corpus.notes)
    assert any("twice" in note and "ALFA0001" in note for note in corpus.notes)
    for part in ("train", "val", "test"):
        assert ids(load_multiwoz(folder, parts=[part])) == expected[part]


@pytest.mark.shared
def test_cases_of_files(shared_dir: Path) -> None:
    assert ids(load_multiwoz(shared_dir / "cases" / "24_bom.json")) == ["CASE0024"]
    for name in ("latin1", "truncated", "lfs_pointer"):
        with pytest.raises(DataError, match=rf"24_{name}\.json"):
            load_multiwoz(shared_dir / "cases" / f"24_{name}.json", on_error="skip")


@pytest.fixture(scope="module")
def real(shared_dir: Path) -> dict[str, Corpus]:
    folder = shared_dir / "data" / "multiwoz21"
    return {part: load_multiwoz(folder, parts=[part]) for part in ("val", "test")}


@pytest.fixture(scope="module")
def facts(shared_dir: Path) -> Any:
    return json.loads((shared_dir / "data" / "facts.json").read_text())


Unsplit = tuple[str, str, str]


def unsplit(corpus: Corpus) -> Iterator[list[frozenset[Unsplit]]]:
    """Yield the states of each dialogue with values as the facts count them."""
    for dialogue in corpus.dialogues:
        yield [frozenset((t.domain, t.slot, "|".join(t.values)) for t in turn.state or ()) for turn in dialogue.turns]


@pytest.mark.shared
@pytest.mark.parametrize("part", ["val", "test"])
def test_published_counts(real: dict[str, Corpus], facts: Any, part: str) -> None:
    corpus = real[part]
    (note,) = corpus.notes
    assert note.startswith("span of a value dropped")
    dialogues = list(unsplit(corpus))
    states = [state for dialogue in dialogues for state in dialogue]
    turns = [turn for dialogue in corpus.dialogues for turn in dialogue.turns]
    pairs = [pair for dialogue in dialogues for pair in pairwise(dialogue)]
    distinct = frozenset().union(*states)
    # The counts are of what the last metadata of a dialogue holds.
    booked = {(t.slot, t.value) for dialogue in corpus.dialogues for t in dialogue.turns[-1].booked}
    assert all(turn.state is not None for turn in turns)
    assert {
        "dialogues": len(dialogues),
        "utterances": sum(1 if turn.response is None else 2 for turn in turns),
        "user_turns": len(states),
        "empty_states": states.count(frozenset()),
        "distinct_non_empty_states": len(set(states) - {frozenset()}),
        "distinct_triplets": len(distinct),
        "distinct_values": len({value for _, _, value in distinct}),
        "domain_slots": len({(domain, slot) for domain, slot, _ in distinct}),
        "domains": sorted({domain for domain, _, _ in distinct}),
        "state_equals_previous": [sum(a == b for a, b in pairs), len(pairs)],
        "triplets_total": sum(map(len, states)),
        "mean_final_size": round(sum(len(dialogue[-1]) for dialogue in dialogues) / len(dialogues), 4),
        "dontcare_triplets": sum(value == "dontcare" for state in states for _, _, value in state),
        "booked_references_distinct": sum(slot == "reference" for slot, _ in booked),
        "taxi_phones_distinct": sum(slot == "phone" for slot, _ in booked),
    } == facts[part]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("part", "of_users", "of_systems", "n_dropped", "in_state"),
    [("val", 6657, 11531, 701, 6444), ("test", 6632, 11635, 700, 6409)],
)
def test_spans_that_hold_are_kept_and_1401_others_are_not(
    real: dict[str, Corpus], part: str, of_users: int, of_systems: int, n_dropped: int, in_state: int
) -> None:
    turns = [turn for dialogue in real[part].dialogues for turn in dialogue.turns]
    by_users = [(turn, span) for turn in turns for span in turn.user_spans]
    by_systems = [(turn, span) for turn in turns for span in turn.response_spans]
    assert (len(by_users), len(by_systems)) == (of_users, of_systems)
    assert f"is not the value ({n_dropped}): " in real[part].notes[0]
    texts = [(turn.user, span) for turn, span in by_users]
    texts += [(turn.response or "", span) for turn, span in by_systems]
    assert all(text[span.start : span.end].casefold() == span.value.casefold() for text, span in texts)
    # The names fit those of the states: nearly all that a user says is in the state under the same name.
    known = [{(t.domain, t.slot, v) for t in turn.state or () for v in t.values} for turn, _ in by_users]
    said = [(span.domain, span.slot, span.value.casefold()) for _, span in by_users]
    assert sum(span in state for span, state in zip(said, known, strict=True)) == in_state


@pytest.mark.shared
def test_published_overlap(real: dict[str, Corpus], facts: Any) -> None:
    states = {part: {s for d in unsplit(corpus) for s in d} - {frozenset()} for part, corpus in real.items()}
    values = {part: frozenset().union(*found) for part, found in states.items()}
    assert {
        "test_distinct_states_exactly_in_val": len(states["test"] & states["val"]),
        "triplets_common": len(values["test"] & values["val"]),
    } == facts["overlap"]


@pytest.mark.shared
def test_every_distinct_state_survives_the_round_trip(real: dict[str, Corpus]) -> None:
    states = {turn.state for c in real.values() for d in c.dialogues for turn in d.turns if turn.state is not None}
    values = {value for state in states for triplet in state for value in triplet.values}
    assert len(values) > 600
    for value in values:
        alone = frozenset({SlotValue("hotel", "name", value)})
        assert parse_state(render_state(alone)) == alone
    for state in states:
        assert parse_state(render_state(state)) == state


@pytest.mark.shared
def test_the_schema_holds_every_slot_and_the_ontologys_values(real: dict[str, Corpus]) -> None:
    schema = real["val"].schema
    held = {(t.domain, t.slot) for d in real["val"].dialogues for turn in d.turns for t in turn.state or ()}
    assert held <= {(slot.domain, slot.name) for slot in schema.slots}
    area = schema.find("hotel", "area")
    assert area is not None
    assert area.categorical
    assert {"north", "south", "east", "west", "centre"} <= set(area.possible_values)


@pytest.mark.shared
def test_raw_and_tokenised_releases_agree(real: dict[str, Corpus], shared_dir: Path) -> None:
    raw = load_multiwoz(shared_dir / "data" / "multiwoz21" / "raw_examples" / "data_5_dialogues.json")
    assert len(raw.dialogues) == 5
    tokenised = {d.id: d for corpus in real.values() for d in corpus.dialogues}
    both = [(d, tokenised[d.id]) for d in raw.dialogues if d.id in tokenised]
    assert sorted(d.id for d, _ in both) == ["PMUL1635", "SNG0073"]
    for one, other in both:
        assert [turn.state for turn in one.turns] == [turn.state for turn in other.turns]


def test_a_malformed_act_is_a_note_that_quotes_nothing(tmp_path: Path) -> None:
    log = [user(), system() | {"dialog_act": {"Hotel-Inform": [["Phone", ["01223351880"]]]}}]
    corpus = load_multiwoz(write(tmp_path / "x.json", {"d": {"log": log}}))
    assert [note for note in corpus.notes if "ignored" in note] == ["dialog_act ignored, it is malformed (1): d turn 1"]
    assert "01223351880" not in "".join(corpus.notes)
