"""Schema-guided dialogues: carry-over by hand, the case files, then the counts of the real packs."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.files import Notes, read_json
from hushbot.corpora.frames import describe_results, linear_actions, read_dialogue
from hushbot.corpora.schema_guided import load_schema_guided
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.prompts import parse_state, render_state
from hushbot.types import Dialogue, SlotValue, Span

Raw = dict[str, Any]


def user(text: str, **services: dict[str, list[str]]) -> Raw:
    """Return a user turn with one frame per service."""
    frames = [
        {"service": service, "state": {"active_intent": "Find", "slot_values": values}}
        for service, values in services.items()
    ]
    return {"speaker": "USER", "utterance": text, "frames": frames}


def system(text: str, *frames: Raw) -> Raw:
    return {"speaker": "SYSTEM", "utterance": text, "frames": list(frames)}


def dialogue(*turns: Raw, name: str = "1_00000") -> Raw:
    return {"dialogue_id": name, "services": [], "turns": list(turns)}


def read(*turns: Raw) -> Dialogue:
    return read_dialogue(dialogue(*turns), acts={})


def listed(found: Dialogue) -> list[list[list[Any]] | None]:
    """Return the states in the form of the expected files."""
    return [
        None if turn.state is None else sorted([t.domain, t.slot, list(t.values)] for t in turn.state)
        for turn in found.turns
    ]


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_sgd_frames_replace_their_service_and_carry_the_others_over() -> None:
    found = read(
        user("a cafe", Cafes_1={"city": ["Oakham"]}),
        system("?"),
        user("pay Kim 5", Pay_1={"to": ["Kim"], "amount": ["5", "five"]}),
        system("done"),
        user("pay Lee", Pay_1={"to": ["Lee"]}),
    )
    assert listed(found) == [
        [["Cafes_1", "city", ["Oakham"]]],
        [["Cafes_1", "city", ["Oakham"]], ["Pay_1", "amount", ["5", "five"]], ["Pay_1", "to", ["Kim"]]],
        [["Cafes_1", "city", ["Oakham"]], ["Pay_1", "to", ["Lee"]]],
    ]
    assert found.domains == ("Cafes_1", "Pay_1")
    assert found.turns[-1].response is None


def test_multiwoz22_states_are_the_union_of_the_turns_frames_and_nothing_more() -> None:
    found = read(
        user("a room", hotel={"hotel-area": ["north"]}, taxi={}),
        system("?"),
        user("a taxi", hotel={}, taxi={"taxi-LeaveAt": ["18:00", "6 pm"]}),
        system("ok"),
    )
    assert listed(found) == [[["hotel", "area", ["north"]]], [["taxi", "leaveat", ["18:00", "6 pm"]]]]


def test_frames_without_an_intent_still_hold_the_state() -> None:
    turn = user("thanks", hotel={"hotel-area": ["north"]})
    turn["frames"][0]["state"]["active_intent"] = "NONE"
    assert listed(read(turn, system("bye"))) == [[["hotel", "area", ["north"]]]]


def test_a_turn_without_a_state_is_unknown_and_an_empty_state_is_empty() -> None:
    found = read(user("hi"), system("?"), user("a cafe", Cafes_1={}), system("?"), user("hm"))
    assert [turn.state for turn in found.turns] == [None, frozenset(), None]


def test_values_stand_as_they_are_and_empty_texts_are_absent() -> None:
    values = {"a": ["None"], "b": ["x | y"], "c": [" z "], "d": [""], "e": [], "f": ["", "dontcare"]}
    assert listed(read(user("hi", S_1=values))) == [
        [
            ["S_1", "a", ["None"]],
            ["S_1", "b", ["x | y"]],
            ["S_1", "c", [" z "]],
            ["S_1", "f", ["dontcare"]],
        ]
    ]


def spanned(turn: Raw, *spans: Raw) -> Raw:
    """Return a turn whose first frame marks places of values in its text."""
    first, *others = turn["frames"]
    return {**turn, "frames": [{**first, "slots": list(spans)}, *others]}


def test_multiwoz22_spans_name_their_value_and_copies_have_no_place() -> None:
    asked = spanned(
        user("north, please", hotel={"hotel-area": ["north"]}),
        {"slot": "hotel-area", "value": "North", "start": 0, "exclusive_end": 5},
        {"slot": "hotel-name", "value": ["elm inn"], "copy_from": "restaurant-name"},
    )
    offer = {"service": "hotel", "slots": [{"slot": "hotel-name", "value": "Elm", "start": 1, "exclusive_end": 4}]}
    notes = Notes()
    found = read_dialogue(dialogue(asked, system("Elm?", offer), name="A"), acts={}, notes=notes)
    assert found.turns[0].user_spans == (Span("hotel", "area", "North", 0, 5),)
    assert found.turns[0].response_spans == ()
    assert notes.finish() == ("span of a value dropped, the text there is not the value (1): A turn 1",)


def test_sgd_spans_hold_where_the_actions_or_the_state_give_what_stands_there() -> None:
    asked = spanned(
        user("Elm Inn, 5 of us", Hotels_1={"name": ["Elm Inn"], "rooms": ["5", "five"]}),
        {"slot": "name", "start": 0, "exclusive_end": 7},
        {"slot": "rooms", "start": 9, "exclusive_end": 10},
        {"slot": "rooms", "start": 0, "exclusive_end": 3},
        {"slot": "city", "start": 0, "exclusive_end": 3},
    )
    offer = {
        "service": "Hotels_1",
        "actions": [{"act": "CONFIRM", "slot": "city", "values": ["Ely"]}],
        "slots": [{"slot": "city", "start": 3, "exclusive_end": 6}],
    }
    notes = Notes()
    raw = dialogue(asked, user("now", Hotels_1={}), system("In ely?", offer), system("Yes?"), name="1")
    (turn,) = read_dialogue(raw, prefix="dev/", acts={}, notes=notes).turns
    assert turn.user_spans == (Span("Hotels_1", "name", "Elm Inn", 0, 7), Span("Hotels_1", "rooms", "5", 9, 10))
    assert turn.response_spans == (Span("Hotels_1", "city", "Ely", 3, 6),)
    note = "span of a value dropped, the text there is not the value (2): dev/1 turn 0, dev/1 turn 0"
    assert notes.finish() == (note,)


def test_dropped_spans_are_one_note_of_the_corpus(tmp_path: Path) -> None:
    turn = spanned(user("hi", A_1={"x": ["1"]}), {"slot": "x", "start": 0, "exclusive_end": 1})
    path = write(tmp_path / "dialogues_001.json", [dialogue(turn, name=name) for name in "ab"])
    write(tmp_path / "schema.json", [{"service_name": "A_1", "slots": [{"name": "x"}]}])
    note = "span of a value dropped, the text there is not the value (2): a turn 0, b turn 0"
    assert load_schema_guided(path).notes == (note,)


def test_actions_are_linear_and_escaped() -> None:
    offer = {
        "service": "Hotels_1",
        "actions": [
            {"act": "OFFER", "slot": "hotel_name", "values": ["Elm (Inn)"]},
            {"act": "OFFER", "slot": "stars", "values": ["3"]},
            {"act": "REQUEST", "slot": "city", "values": []},
            {"act": "REQ_MORE", "slot": "", "values": []},
        ],
    }
    assert linear_actions([offer]) == (
        r"Hotels_1-OFFER(hotel_name=Elm \(Inn\), stars=3) Hotels_1-REQUEST(city=?) Hotels_1-REQ_MORE()"
    )


def test_acts_file_fills_actions_and_may_lack_turns() -> None:
    raw = dialogue(user("hi", hotel={}), system("Elm Inn?"), user("ok", hotel={}), system("bye"), name="A.json")
    acts = {"A.json": {"1": {"dialog_act": {"Hotel-Inform": [["name", "Elm Inn"]], "general-reqmore": []}}}}
    found = read_dialogue(raw, acts=acts)
    assert found.id == "A"
    assert [turn.actions for turn in found.turns] == ["hotel-inform(name=Elm Inn) general-reqmore()", ""]


def test_database_line_counts_results_and_names_the_first() -> None:
    call = {"method": "Find", "parameters": {"city": "Oakham"}}
    named = {
        "service": "Hotels_1",
        "service_call": call,
        "service_results": [{"city": "Oakham", "hotel_name": "Elm"}],
    }
    offered = {
        "service": "Flights_1",
        "actions": [{"act": "OFFER", "slot": "airlines", "values": ["Delta"]}],
        "service_results": [{"nonstop": "True", "airport_name": "LAX", "airlines": "Delta"}] * 2,
    }
    none = {"service": "Pay_1", "service_call": call, "service_results": []}
    assert describe_results([named, offered]) == "Hotels_1 1 found, Elm; Flights_1 2 found, Delta"
    assert describe_results([none]) == "Pay_1 0 found"
    assert describe_results([{"service": "Pay_1"}]) == ""
    assert read(user("pay", Pay_1={}), system("no", none)).turns[0].database == "Pay_1 0 found"


def test_system_first_is_the_opening_and_empty_utterances_stay() -> None:
    found = read(system("Welcome."), user("hi", S_1={}), system(""))
    assert found.opening == "Welcome."
    assert found.turns[0].response == ""


def test_several_splits_prefix_ids_and_join_their_schemas(tmp_path: Path) -> None:
    for split, service in (("train", "A_1"), ("dev", "B_1")):
        write(tmp_path / split / "dialogues_001.json", [dialogue(user("hi", **{service: {"x": ["1"]}}))])
        slots = [{"name": "x", "is_categorical": True, "possible_values": ["1"], "description": "d"}]
        write(tmp_path / split / "schema.json", [{"service_name": service, "slots": slots}])
    both = load_schema_guided(tmp_path, name="sgd")
    assert [d.id for d in both.dialogues] == ["dev/1_00000", "train/1_00000"]
    assert both.schema.domains == ("A_1", "B_1")
    assert (both.name, both.notes) == ("sgd", ())
    slot = both.schema.find("A_1", "x")
    assert slot is not None
    assert (slot.categorical, slot.possible_values, slot.description) == (True, ("1",), "d")
    one = load_schema_guided(tmp_path, splits=["train"])
    assert [d.id for d in one.dialogues] == ["1_00000"]
    files = [tmp_path / "train" / "dialogues_001.json"]
    assert [d.id for d in load_schema_guided(files).dialogues] == ["1_00000"]


def test_gzip_and_missing_schema_and_slots_outside_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "dialogues_001.json.gz"
    path.write_bytes(gzip.compress(json.dumps([dialogue(user("hi", A_1={"x": ["1"]}), system("?"))]).encode()))
    assert load_schema_guided(path).notes == ("no schema.json: the schema holds only the slots that the states use",)
    write(tmp_path / "schema.json", [{"service_name": "A_1", "slots": [{"name": "y"}]}])
    corpus = load_schema_guided(path)
    assert corpus.schema.by_domain == {"A_1": ("x", "y")}
    assert corpus.notes == ("schema.json lacks slots that states use, added: A_1-x",)


def test_all_malformed_dialogues_are_named_at_once_or_skipped(tmp_path: Path) -> None:
    good = dialogue(user("hi", A_1={}), system("?"))
    bad = [
        {**good, "dialogue_id": "2", "turns": None},
        dialogue({**user("hi"), "speaker": "BOT"}, name="3"),
        dialogue({**user("hi"), "utterance": 7}, name="4"),
        dialogue(user("hi", A_1={"x": "text"}), name="5"),  # type: ignore[dict-item]
        dialogue(system("hello"), name="6"),
        {**good, "dialogue_id": None},
        good,
    ]
    path = write(tmp_path / "dialogues_001.json", [good, *bad])
    with pytest.raises(DataError) as caught:
        load_schema_guided(path)
    for part in (
        "'2'",
        "'3'",
        "***(3) is neither",
        "'4'",
        "7",
        "'5'",
        "A_1 x",
        "'6'",
        "no user",
        "number 7",
        "twice",
        str(path),
    ):
        assert part in str(caught.value)
    skipped = load_schema_guided(path, on_error="skip")
    assert [d.id for d in skipped.dialogues] == ["1_00000"]
    assert skipped.notes[0].startswith("skipped 7 dialogues")


def test_unknown_states_are_noted(tmp_path: Path) -> None:
    path = write(tmp_path / "dialogues_001.json", [dialogue(user("hi"), system("?"))])
    assert load_schema_guided(path).notes[-1] == "1 user turn(s) have no state in the data: unknown in 1_00000"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"splits": ["dev"]}, DataError, "no such file or folder"),
        ({"splits": "train"}, ConfigError, "must be a list"),
        ({"on_error": "ignore"}, ConfigError, "on_error"),
    ],
)
def test_wrong_options(tmp_path: Path, options: Any, error: type[Exception], message: str) -> None:
    write(tmp_path / "train" / "dialogues_001.json", [dialogue(user("hi"))])
    with pytest.raises(error, match=message):
        load_schema_guided(tmp_path, **options)


def test_wrong_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"correct data\.path"):
        load_schema_guided(tmp_path)
    with pytest.raises(DataError, match="no usable dialogue"):
        load_schema_guided(write(tmp_path / "dialogues_1.json", []))
    with pytest.raises(DataError, match="not a list"):
        load_schema_guided(write(tmp_path / "dialogues_1.json", {}))
    write(tmp_path / "dialogues_1.json", [dialogue(user("hi"))])
    write(tmp_path / "schema.json", [{"service_name": 1}])
    with pytest.raises(DataError, match=r"schema\.json.*service_name"):
        load_schema_guided(tmp_path)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=3) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def shaped(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return nearly right records: each key may be missing or hold anything."""
    return st.fixed_dictionaries({}, optional={key: value | anything for key, value in keys.items()}) | anything


state = shaped(slot_values=st.dictionaries(st.text(max_size=2), st.lists(st.text(max_size=2), max_size=2), max_size=2))
action = shaped(act=st.just("OFFER"), slot=st.text(max_size=2), values=st.lists(st.text(max_size=2), max_size=2))
frame = shaped(
    service=st.sampled_from(["a", "B_1"]),
    state=state,
    slots=st.lists(
        shaped(slot=st.text(max_size=2), start=st.integers(-1, 3), exclusive_end=st.integers(-1, 3)), max_size=2
    ),
    actions=st.lists(action, max_size=2),
    service_call=shaped(parameters=anything),
    service_results=st.lists(st.dictionaries(st.text(max_size=2), anything, max_size=2), max_size=2),
)
turn = shaped(
    speaker=st.sampled_from(["USER", "SYSTEM"]),
    utterance=st.text(max_size=3),
    frames=st.lists(frame, max_size=2),
)
raw_dialogue = shaped(
    dialogue_id=st.text(max_size=2), services=st.lists(st.text(max_size=2)), turns=st.lists(turn, max_size=3)
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(raw_dialogue, max_size=2) | anything, acts=anything)
def test_arbitrary_json_raises_our_errors_only(tmp_path: Path, content: Any, acts: Any) -> None:
    path = write(tmp_path / "dialogues_001.json", content)
    write(tmp_path / "dialog_acts.json", acts)
    try:
        corpus = load_schema_guided(path)
    except HushbotError:
        return
    for found in corpus.dialogues:
        for one in found.turns:
            assert one.state is None or parse_state(render_state(one.state)) == one.state


@pytest.mark.shared
@pytest.mark.parametrize(
    ("given_name", "expected_name", "key"),
    [
        ("07_mw22_inactive_frames", "07_mw22_inactive_frames", "user_turns"),
        ("10_sgd_carryover", "10_sgd_carryover", "accumulated_user_turns"),
        ("11_sgd_tricky_values.json", "11_sgd_tricky_values", "accumulated_user_turns"),
    ],
)
def test_case_files(shared_dir: Path, given_name: str, expected_name: str, key: str) -> None:
    corpus = load_schema_guided(shared_dir / "cases" / given_name)
    expected = read_json(shared_dir / "cases" / f"{expected_name}.expected.json")
    wanted = {name: case for name, case in expected.items() if isinstance(case, dict)}
    assert {d.id: listed(d) for d in corpus.dialogues} == {name: case[key] for name, case in wanted.items()}
    for found in corpus.dialogues:
        assert list(found.domains) == wanted[found.id].get("domains", list(found.domains))


@pytest.fixture(scope="module")
def sgd(shared_dir: Path) -> Corpus:
    return load_schema_guided(shared_dir / "data" / "sgd", name="sgd")


@pytest.mark.shared
def test_sgd_counts_are_the_published_ones(shared_dir: Path) -> None:
    facts = read_json(shared_dir / "data" / "facts.json")["sgd"]
    for name, expected in facts.items():
        path = shared_dir / "data" / "sgd" / name
        found = load_schema_guided(path).dialogues
        texts = [text for d in found for one in d.turns for text in (one.user, one.response)]
        assert len(found) == expected["dialogues"]
        assert len([text for text in texts if text is not None]) == expected["turns"]
        assert sum(text == "" for text in texts) == expected["empty_utterances"]
        assert sorted({service for d in found for service in d.domains}) == expected["services"]
        # Frames are not kept; their number shows that the file was read whole.
        frames = [len(t["frames"]) for d in read_json(path) for t in d["turns"] if t["speaker"] == "USER"]
        assert (sum(frames), sum(n > 1 for n in frames)) == (
            expected["user_frames"],
            expected["multi_frame_user_turns"],
        )


@pytest.mark.shared
def test_every_sgd_span_holds(sgd: Corpus) -> None:
    turns = [one for d in sgd.dialogues for one in d.turns]
    by_users = [(one.user, span) for one in turns for span in one.user_spans]
    by_systems = [(one.response or "", span) for one in turns for span in one.response_spans]
    assert (len(by_users), len(by_systems)) == (2794, 6443)
    assert not [note for note in sgd.notes if "span" in note]
    for text, span in by_users + by_systems:
        assert text[span.start : span.end].casefold() == span.value.casefold()


@pytest.mark.shared
def test_every_sgd_turn_has_a_known_state(sgd: Corpus) -> None:
    states = [one.state for d in sgd.dialogues for one in d.turns]
    known = [found for found in states if found is not None]
    assert len(states) == len(known) == 7299
    assert len({d.id for d in sgd.dialogues}) == 836
    assert len({t.domain for found in known for t in found}) == 22


@pytest.mark.shared
def test_sgd_states_match_a_naive_reading(shared_dir: Path) -> None:
    path = shared_dir / "data" / "sgd" / "test" / "dialogues_008.json.gz"
    expected = []
    for raw in read_json(path):
        values: dict[tuple[str, str], list[str]] = {}
        for one in raw["turns"]:
            for part in one["frames"] if one["speaker"] == "USER" else []:
                values = {key: value for key, value in values.items() if key[0] != part["service"]}
                values |= {(part["service"], s): v for s, v in part["state"]["slot_values"].items()}
            if one["speaker"] == "USER":
                expected.append(sorted([service, slot, value] for (service, slot), value in values.items()))
    assert [found for d in load_schema_guided(path).dialogues for found in listed(d)] == expected


@pytest.mark.shared
@pytest.mark.parametrize("folder", ["sgd", "multiwoz22"])
def test_every_value_and_state_round_trips(shared_dir: Path, folder: str) -> None:
    corpus = load_schema_guided(shared_dir / "data" / folder)
    assert not [note for note in corpus.notes if "lacks" in note]
    values = {v for d in corpus.dialogues for one in d.turns for t in one.state or () for v in t.values}
    for value in values:
        alone = frozenset([SlotValue("Hotels_1", "name", value)])
        assert parse_state(render_state(alone)) == alone
    for final in {d.final_state for d in corpus.dialogues}:
        assert final is not None
        assert parse_state(render_state(final)) == final


@pytest.mark.shared
def test_multiwoz22_examples_keep_the_state_of_their_last_turns(shared_dir: Path) -> None:
    corpus = load_schema_guided(shared_dir / "data" / "multiwoz22")
    by_id = {d.id: d for d in corpus.dialogues}
    assert len(by_id) == 5
    assert by_id["SNG01678"].domains == ("police",)
    sizes = Counter({name: len(d.final_state or ()) for name, d in by_id.items()})
    assert sizes["SNG1161"] > 0
    assert sizes["MUL1443"] > 0
    assert all(t.slot == t.slot.lower() and "-" not in t.slot for d in by_id.values() for t in d.final_state or ())
