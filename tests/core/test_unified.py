"""The ConvLab-3 loader: small files by hand, then the published counts and MultiWOZ's own release."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hushbot.corpora.corpus import Corpus
from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.corpora.unified import load_unified
from hushbot.errors import ConfigError, DataError, HushbotError
from hushbot.prompts import parse_state, render_state
from hushbot.types import SlotValue, Span

Raw = dict[str, Any]


def user(text: str = "hello", **fields: Any) -> Raw:
    return {"speaker": "user", "utterance": text, "state": {}, **fields}


def system(text: str = "hi", **fields: Any) -> Raw:
    return {"speaker": "system", "utterance": text, **fields}


def dialogue(*turns: Raw, name: str = "toy-train-0", **fields: Any) -> Raw:
    return {"dataset": "toy", "data_split": "train", "dialogue_id": name, "turns": list(turns), **fields}


def load(tmp_path: Path, *dialogues: Any, on_error: Any = "raise") -> Corpus:
    path = tmp_path / "dialogues.json"
    path.write_text(json.dumps(list(dialogues)))
    return load_unified(path, on_error=on_error)


def test_states_stand_on_the_users_turn(tmp_path: Path) -> None:
    state = {"Restaurants_1": {"price range": " Cheap ", "name": "", "time": "5 pm|17:00| |5 pm", "x": None}}
    corpus = load(tmp_path, dialogue(user("a table", state=state), system("ok"), domains=["b", "a"], goal={"x": 1}))
    (found,) = corpus.dialogues
    (turn,) = found.turns
    assert turn.state is not None
    assert {(t.domain, t.slot, t.values) for t in turn.state} == {
        ("Restaurants_1", "price range", ("Cheap",)),
        ("Restaurants_1", "time", ("5 pm", "17:00")),
    }
    assert (turn.user, turn.response, found.domains, found.goal) == ("a table", "ok", ("a", "b"), {"x": 1})
    assert (found.id, corpus.name, corpus.notes) == ("toy-train-0", "unified toy", ())


def test_unknown_and_empty_states_differ(tmp_path: Path) -> None:
    known, unknown, null = user(), user(), user(state=None)
    del unknown["state"]
    corpus = load(tmp_path, dialogue(known, system(), unknown, system(), null))
    turns = corpus.dialogues[0].turns
    assert [turn.state for turn in turns] == [frozenset(), None, None]
    assert [turn.response for turn in turns] == ["hi", "hi", None]
    assert corpus.dialogues[0].goal is None
    assert corpus.notes == (
        "user turn without state, unknown (None) (2): toy-train-0 user turn 1, toy-train-0 user turn 2",
    )


def test_a_system_may_speak_first(tmp_path: Path) -> None:
    found = load(tmp_path, dialogue(system("welcome"), user("x"), system("y"))).dialogues[0]
    assert (found.opening, [(turn.user, turn.response) for turn in found.turns]) == ("welcome", [("x", "y")])


def test_bookings_and_acts(tmp_path: Path) -> None:
    answer = system(
        booked={"hotel": [{"name": "belfry", "reference": "7GAWK763"}], "train": []},
        dialogue_acts={
            "categorical": [{"intent": "inform", "domain": "hotel", "slot": "area", "value": "north, east"}],
            "non-categorical": [{"intent": "inform", "domain": "hotel", "slot": "name", "value": "belfry"}],
            "binary": [
                {"intent": "request", "domain": "hotel", "slot": "stars"},
                {"intent": "goodbye", "domain": "", "slot": ""},
            ],
        },
    )
    (turn,) = load(tmp_path, dialogue(user(), answer)).dialogues[0].turns
    assert turn.booked == (SlotValue("hotel", "name", "belfry"), SlotValue("hotel", "reference", "7GAWK763"))
    assert turn.actions == r"hotel-inform(area=north\, east, name=belfry) hotel-request(stars) goodbye()"


def test_spans_are_those_of_non_categorical_acts_of_both_speakers(tmp_path: Path) -> None:
    def acts(value: str, **place: Any) -> Raw:
        act = {"intent": "inform", "domain": "hotel", "slot": "name", "value": value, **place}
        return {"categorical": [{**act, "start": 0, "end": 3}], "non-categorical": [act], "binary": []}

    corpus = load(
        tmp_path,
        dialogue(
            user("elm inn", dialogue_acts=acts("Elm", start=0, end=3)),
            user("oak, then", dialogue_acts=acts("oak", start=0, end=3)),
            system("Oak it is", dialogue_acts=acts("oak", start=1, end=4)),
            user("so", dialogue_acts=acts("oak")),
        ),
    )
    first, second = corpus.dialogues[0].turns
    assert first.user == "elm inn oak, then"
    assert first.user_spans == (Span("hotel", "name", "Elm", 0, 3), Span("hotel", "name", "oak", 8, 11))
    assert first.response_spans == second.user_spans == ()
    assert corpus.notes == ("span of a value dropped, the text there is not the value (1): toy-train-0 turn 2",)


@pytest.mark.parametrize("acts", ["x", [], {"binary": {}, "categorical": ["x"]}, {"binary": [{"intent": 5}]}])
def test_unusable_acts_are_a_note(tmp_path: Path, acts: Any) -> None:
    corpus = load(tmp_path, dialogue(user(), system(dialogue_acts=acts or "x")))
    assert corpus.dialogues[0].turns[0].actions == ""
    assert corpus.notes[0] == "dialogue_acts ignored, they are malformed (1): toy-train-0 user turn 0"


def test_folders_archives_and_files_read_the_same(tmp_path: Path) -> None:
    text = json.dumps([dialogue(user(), system())])
    ontology = {
        "domains": {
            "hotel": {
                "slots": {
                    "area": {
                        "description": "part of town",
                        "is_categorical": True,
                        "possible_values": ["north"],
                    },
                    "name": {"is_categorical": False, "possible_values": ["elm inn"]},
                }
            }
        }
    }
    (tmp_path / "a" / "data").mkdir(parents=True)
    (tmp_path / "a" / "data" / "dialogues.json").write_text(text)
    (tmp_path / "a" / "data" / "ontology.json").write_text(json.dumps(ontology))
    (tmp_path / "b").mkdir()
    with zipfile.ZipFile(tmp_path / "b" / "data.zip", "w") as archive:
        for file in (tmp_path / "a" / "data").iterdir():
            archive.write(file, f"data/{file.name}")
        archive.writestr("data/ToyDB.json", "[]")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "toy.dummy_data.json").write_text(text)
    places = ["a", "a/data", "b", "b/data.zip", "c", "a/data/dialogues.json", "c/toy.dummy_data.json"]
    loaded = {place: load_unified(tmp_path / place) for place in places}
    assert {corpus.dialogues for corpus in loaded.values()} == {loaded["a"].dialogues}
    slot = loaded["b"].schema.find("hotel", "area")
    assert slot is not None
    assert (slot.categorical, slot.possible_values, slot.description) == (True, ("north",), "part of town")
    name = loaded["b"].schema.find("hotel", "name")
    assert name is not None
    assert (slot.collected, name.collected) == (False, True)  # the names are somebody's
    assert loaded["a"].schema == loaded["b"].schema
    assert loaded["b"].notes == ("database not read, the bot will see no lookups (1): ToyDB.json",)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected data\.zip or dialogues\.json, found none"):
        load_unified(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.dummy_data.json").write_text("[]")
    with pytest.raises(DataError, match=r"found a\.dummy_data\.json, b\.dummy_data\.json"):
        load_unified(tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(DataError, match="found dict"):
        load_unified(tmp_path / "x.json")


def test_splits(tmp_path: Path) -> None:
    path = tmp_path / "dialogues.json"
    splits = ("train", "validation", "test", "test")
    raw = [dialogue(user(), system(), name=f"{i}") | {"data_split": s} for i, s in enumerate(splits)]
    path.write_text(json.dumps(raw))
    corpus = load_unified(path, splits=["test", "train"])
    assert [d.id for d in corpus.dialogues] == ["0", "2", "3"]
    assert corpus.name == "unified toy test train"
    with pytest.raises(ConfigError, match=r"no split 'dev', only test, train, validation; set data.splits"):
        load_unified(path, splits=["dev"])
    with pytest.raises(ConfigError, match="must be a list"):
        load_unified(path, splits="test")


MALFORMED: dict[str, Any] = {
    "no object": 5,
    "no id": {"turns": []},
    "empty id": dialogue(user(), name=""),
    "no turns": {"dialogue_id": "a"},
    "no user": dialogue(),
    "turn no object": dialogue("x"),  # type: ignore[arg-type]
    "speaker": dialogue({"speaker": "wizard", "utterance": "x"}),
    "no utterance": dialogue({"speaker": "user"}),
    "utterance no string": dialogue(user(text=None)),  # type: ignore[arg-type]
    "surrogate": dialogue(user("\udc00")),
    "state a list": dialogue(user(state=[])),
    "domain a list": dialogue(user(state={"a": []})),
    "value a number": dialogue(user(state={"a": {"b": 0}})),
    "value a boolean": dialogue(user(state={"a": {"b": False}})),
    "nameless": dialogue(user(state={"a": {" ": "x"}})),
    "twice": dialogue(user(state={"a": {"b": "x", "b ": "y"}})),
    "booked": dialogue(user(), system(booked={"a": "x"})),
    "goal": dialogue(user(), goal=[]),
    "domains": dialogue(user(), domains=[1]),
    "same id": dialogue(user(), name="good"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_each_malformed_dialogue_is_one_problem(tmp_path: Path, name: str) -> None:
    good = dialogue(user(), system(), name="good")
    with pytest.raises(DataError, match="1 malformed dialogue; "):
        load(tmp_path, good, MALFORMED[name])
    corpus = load(tmp_path, good, MALFORMED[name], on_error="skip")
    assert [d.id for d in corpus.dialogues] == ["good"]
    assert corpus.notes[-1].startswith("skipped 1 dialogue: ")


ACTS: Raw = {"non-categorical": [{"intent": "x", "domain": "a", "slot": "b", "value": "c", "start": 0, "end": 1}]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
STATE = st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.text(max_size=5) | JSON))
TURN = st.fixed_dictionaries(
    {"speaker": st.sampled_from(["user", "system"]), "utterance": st.text(max_size=5) | JSON},
    optional={"state": STATE | JSON, "booked": JSON, "dialogue_acts": JSON | st.just(ACTS)},
)
DIALOGUE = st.fixed_dictionaries(
    {"dialogue_id": st.text(max_size=5) | JSON, "turns": st.lists(TURN | JSON, max_size=4) | JSON},
    optional={"data_split": JSON, "dataset": JSON, "domains": JSON, "goal": JSON},
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.lists(DIALOGUE | JSON, max_size=3) | JSON, on_error=st.sampled_from(["raise", "skip"]))
def test_arbitrary_json_raises_only_our_errors(tmp_path: Path, content: Any, on_error: Any) -> None:
    path = tmp_path / "any.json"
    path.write_text(json.dumps(content))
    try:
        corpus = load_unified(path, on_error=on_error)
    except HushbotError:
        return
    for found in corpus.dialogues:
        for turn in found.turns:
            if turn.state is not None:
                assert parse_state(render_state(turn.state)) == turn.state
            f"{turn.user}{turn.response}{turn.actions}".encode()
    "".join(corpus.notes).encode()


# The real data


@pytest.mark.shared
@pytest.mark.parametrize("name", ["camrest", "woz"])
def test_published_counts(shared_dir: Path, name: str) -> None:
    facts = json.loads((shared_dir / "data" / "facts.json").read_text())["unified"][name]
    folder = shared_dir / "data" / "unified" / name
    dialogues = load_unified(folder).dialogues
    ends = [found.turns[-1].response is None for found in dialogues]
    assert {
        "dialogues": len(dialogues),
        "utterances": sum(1 if turn.response is None else 2 for found in dialogues for turn in found.turns),
        "splits": {split: len(load_unified(folder, splits=[split]).dialogues) for split in facts["splits"]},
        "dialogues_ending_with_user": sum(ends),
        "dialogues_without_goal": sum(found.goal is None for found in dialogues),
    } == facts
    states = {turn.state for found in dialogues for turn in found.turns if turn.state is not None}
    assert len(states) > 400
    for state in states:
        assert parse_state(render_state(state)) == state


@pytest.mark.shared
@pytest.mark.parametrize("name", ["camrest", "multiwoz21", "sgd", "tm1", "woz"])
def test_dummy_files(shared_dir: Path, name: str) -> None:
    corpus = load_unified(shared_dir / "data" / "unified" / "dummy" / f"{name}.dummy_data.json")
    assert (len(corpus.dialogues), corpus.name, corpus.notes) == (10, f"unified {name}", ())
    n_spans = {"camrest": (11, 45), "multiwoz21": (34, 74), "sgd": (42, 128), "tm1": (60, 107), "woz": (17, 0)}
    turns = [turn for d in corpus.dialogues for turn in d.turns]
    by_users = [(turn.user, span) for turn in turns for span in turn.user_spans]
    by_systems = [(turn.response or "", span) for turn in turns for span in turn.response_spans]
    assert (len(by_users), len(by_systems)) == n_spans[name]
    assert all(text[span.start : span.end].casefold() == span.value.casefold() for text, span in by_users + by_systems)
    values = {v for d in corpus.dialogues for turn in d.turns for t in turn.state or () for v in t.values}
    assert values
    for value in values:
        alone = frozenset({SlotValue("Restaurants_1", "name", value)})
        assert parse_state(render_state(alone)) == alone


@pytest.mark.shared
def test_states_agree_with_the_original_release(shared_dir: Path) -> None:
    data = shared_dir / "data"
    original = load_multiwoz(data / "multiwoz21" / "raw_examples" / "data_5_dialogues.json")
    raw = json.loads((data / "unified" / "dummy" / "multiwoz21.dummy_data.json").read_text())
    names = {entry["original_id"].removesuffix(".json"): entry["dialogue_id"] for entry in raw}
    unified = {d.id: d for d in load_unified(data / "unified" / "dummy" / "multiwoz21.dummy_data.json").dialogues}
    both = [(d, unified[names[d.id]]) for d in original.dialogues if d.id in names]
    assert sorted(d.id for d, _ in both) == ["MUL2168", "SNG0129", "SNG01856"]
    renamed = {"price range": "pricerange", "leave at": "leaveat", "arrive by": "arriveby"}
    for one, other in both:
        for turn, twin in zip(one.turns, other.turns, strict=True):
            state = [SlotValue(t.domain, renamed.get(t.slot, t.slot), t.value) for t in twin.state or ()]
            assert turn.state == frozenset(state)
            assert turn.user.strip() == twin.user.strip()
        # The unified files give what was booked before the answer, so they lag by one turn.
        lagging = [set(), *(set(turn.booked) for turn in one.turns[:-1])]
        assert [set(turn.booked) for turn in other.turns] == lagging
