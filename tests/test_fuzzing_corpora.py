"""Corpus files, however broken, are read or refused by a `HushbotError` that names the file; never a hang.

Each test prints how many inputs it tried; see `fuzzing.py` for how to try more.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hushbot.corpora import load

ROOT = Path(__file__).resolve().parents[1]


def _fuzzing() -> Any:
    spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).with_name("fuzzing.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzzing"] = module  # a NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


fuzzing = _fuzzing()
SEED, Tell, tell, seconds, named = fuzzing.SEED, fuzzing.Tell, fuzzing.tell, fuzzing.seconds, fuzzing.named
as_json, hunt, taking_turns = fuzzing.as_json, fuzzing.hunt, fuzzing.taking_turns
mutated_bytes, mutated_values = fuzzing.mutated_bytes, fuzzing.mutated_values

# Seeds: one good input of each format, as small as it still has every part

TURN = {"food": ["thai"], "area": ["north", "the north"]}
FRAMES = [
    {"service": "cafes", "actions": [], "slots": [{"slot": "food", "start": 0, "exclusive_end": 4}]}
    | {"state": {"active_intent": "find", "requested_slots": [], "slot_values": TURN}}
]
GUIDED = {
    "dialogue_id": "1_0",
    "services": ["cafes"],
    "turns": [
        {"speaker": "USER", "utterance": "Thai food, north.", "frames": FRAMES, "turn_id": "0"},
        {
            "speaker": "SYSTEM",
            "utterance": "Blue Lantern?",
            "frames": [
                {
                    "service": "cafes",
                    "actions": [{"act": "OFFER", "slot": "name", "values": ["Blue Lantern"]}],
                    "slots": [{"slot": "name", "start": 0, "exclusive_end": 12, "value": "Blue Lantern"}],
                    "service_call": {"method": "find", "parameters": {}},
                    "service_results": [{"name": "Blue Lantern", "stars": "4"}],
                }
            ],
            "turn_id": "1",
        },
    ],
}
SCHEMA = [
    {
        "service_name": "cafes",
        "description": "",
        "slots": [{"name": "food", "is_categorical": True, "possible_values": ["thai"], "description": "x"}],
        "intents": [],
    }
]
ACT = {"dialog_act": {"Cafes-Inform": [["name", "Blue Lantern"]]}, "span_info": [["a", "b", "c", 1, 2]]}
ACTS = {"1_0": {"1": ACT}}
METADATA = {
    "restaurant": {
        "book": {"booked": [{"name": "blue lantern", "reference": "A1B2C3"}], "people": "2", "day": "monday"},
        "semi": {"food": "thai|chinese", "area": "not mentioned", "name": ""},
    }
}
MULTIWOZ = {
    "MUL0001.json": {
        "goal": {"restaurant": {"info": {"food": "thai"}}, "message": ["x"]},
        "log": [
            {"text": "Thai food.", "metadata": {}, "dialog_act": {}, "span_info": []},
            {
                "text": "Blue Lantern?",
                "metadata": METADATA,
                "dialog_act": {"Restaurant-Inform": [["Name", "blue lantern"]]},
                "span_info": [["Restaurant-Inform", "Name", "blue lantern", 0, 1]],
            },
        ],
    }
}
UNIFIED_ACTS = {
    "categorical": [{"intent": "inform", "domain": "cafe", "slot": "area", "value": "north"}],
    "non-categorical": [
        {"intent": "inform", "domain": "cafe", "slot": "food", "value": "Thai", "start": 0, "end": 4},
    ],
    "binary": [{"intent": "bye", "domain": "", "slot": ""}],
}
UNIFIED = {
    "dataset": "toy",
    "data_split": "train",
    "dialogue_id": "toy-train-0",
    "original_id": "0",
    "domains": ["cafe"],
    "goal": {"description": "", "inform": {"cafe": {"food": "thai"}}, "request": {}},
    "turns": [
        {
            "speaker": "user",
            "utterance": "Thai food",
            "utt_idx": 0,
            "dialogue_acts": UNIFIED_ACTS,
            "state": {"cafe": {"food": "thai", "area": "north|south"}},
        },
        {
            "speaker": "system",
            "utterance": "Blue Lantern",
            "utt_idx": 1,
            "dialogue_acts": UNIFIED_ACTS,
            "booked": {"cafe": [{"name": "Blue Lantern", "Ref": "A1B2C3"}]},
            "db_results": {"cafe": []},
        },
    ],
}
ONTOLOGY = {
    "domains": {"cafe": {"description": "", "slots": {"food": {"is_categorical": False, "possible_values": []}}}},
    "intents": {},
    "state": {"cafe": {"food": ""}},
    "dialogue_acts": {},
}
DELTA = {
    "dialogue_id": 1,
    "service": ["leave"],
    "speaker": [0, 1, 0],
    "utterance": ["HR Assistant: Who?", "Robin Vale", "Thanks"],
    "state": [{"employee": "Robin Vale"}],
}
COLUMNS = {
    "dialogue_id": "C1",
    "services": ["restaurant"],
    "turns": {
        "turn_id": ["0", "1"],
        "speaker": [0, 1],
        "utterance": ["Thai food please.", "Blue Lantern?"],
        "frames": [
            {
                "service": ["restaurant"],
                "state": [
                    {
                        "active_intent": "find_restaurant",
                        "requested_slots": [],
                        "slots_values": {
                            "slots_values_name": ["restaurant-food"],
                            "slots_values_list": [["thai"]],
                        },
                    }
                ],
                "slots": [
                    {
                        "slot": ["restaurant-food"],
                        "value": ["thai"],
                        "start": [4],
                        "exclusive_end": [0],
                        "copy_from": [""],
                        "copy_from_value": [[]],
                    }
                ],
            },
            {"service": [], "state": [], "slots": []},
        ],
        "dialogue_acts": [
            {
                "dialog_act": {
                    "act_type": ["Restaurant-Inform"],
                    "act_slots": [{"slot_name": ["thai"], "slot_value": ["food"]}],
                },
                "span_info": {
                    "act_type": ["Restaurant-Inform"],
                    "act_slot_name": ["food"],
                    "act_slot_value": ["thai"],
                    "span_start": [0],
                    "span_end": [4],
                },
            },
            {"dialog_act": {"act_type": [], "act_slots": []}, "span_info": {"act_type": []}},
        ],
    },
}
TABLE = [{"name": "blue lantern", "area": "north", "food": "thai", "id": 1, "location": [1.0, 2.0]}]

CORPORA: Mapping[str, Mapping[str, Any]] = {
    "schema_guided": {"dialogues_001.json": [GUIDED], "schema.json": SCHEMA, "dialog_acts.json": ACTS},
    "multiwoz21": {
        "data.json": MULTIWOZ,
        "ontology.json": {"restaurant-semi-food": ["thai"], "restaurant-book-day": ["monday"]},
        "dialogue_acts.json": {"MUL0001": {"1": {"Restaurant-Inform": [["Name", "x"]]}}},
        "restaurant_db.json": TABLE,
    },
    "unified": {"dialogues.json": [UNIFIED], "ontology.json": ONTOLOGY},
    "hr_multiwoz": {"hr.json": [DELTA]},
}


# Corpora


@pytest.mark.parametrize("name", CORPORA)
def test_corpus_readers(name: str, tmp_path: Path, tell: Tell) -> None:
    files = CORPORA[name]

    def read(changed: Mapping[str, bytes]) -> None:
        for file, content in changed.items():
            (tmp_path / file).write_bytes(content)
        load(name, path=tmp_path)

    def inputs() -> Iterator[dict[str, bytes]]:
        good = {file: json.dumps(value).encode() for file, value in files.items()}
        streams = {
            file: taking_turns(
                as_json(mutated_values([value], SEED)),
                as_json(mutated_values([value], SEED + 1)),
                mutated_bytes([good[file]], SEED),
            )
            for file, value in files.items()
        }
        yield good
        while True:
            for file, stream in streams.items():
                yield good | {file: next(stream)}

    tell(f"reader {name}", hunt(read, inputs(), seconds=seconds(0.3), place=str(tmp_path)))


def test_rows_of_the_hub(tell: Tell) -> None:
    rows = [COLUMNS, GUIDED, UNIFIED, DELTA, {"dialogue_id": "M1", **MULTIWOZ["MUL0001.json"]}]
    tell("rows", hunt(lambda row: load("hub", rows_or_id=[row]), mutated_values(rows, SEED), seconds=seconds(0.375)))


def archive(files: Mapping[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return sink.getvalue()


def test_files_of_unknown_format(tmp_path: Path, tell: Tell) -> None:
    texts = [json.dumps(value).encode() for value in ([GUIDED], MULTIWOZ, [UNIFIED], [DELTA])]
    packed = {"x.json.gz": [gzip.compress(text, mtime=0) for text in texts], "x.json": texts}
    packed["x.zip"] = [archive({"data/dialogues.json": texts[2]}), archive({"data.json": texts[1]})]

    def read(given: tuple[str, bytes]) -> None:
        path = tmp_path / given[0]
        path.write_bytes(given[1])
        load(path)

    streams = [named(name, mutated_bytes(seeds, SEED)) for name, seeds in packed.items()]
    tell("files", hunt(read, taking_turns(*streams), seconds=seconds(0.375), place=str(tmp_path)))


def unpacked(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.mark.shared
def test_real_files(shared_dir: Path, tmp_path: Path, tell: Tell) -> None:
    data, cases = shared_dir / "data", shared_dir / "cases"
    seeds: dict[str, Any] = {}
    with zipfile.ZipFile(data / "multiwoz21" / "val.json.zip") as real:
        whole = json.loads(real.read(real.namelist()[0]))
        seeds["multiwoz21"] = [dict([item]) for item in list(whole.items())[:6]]
    seeds["multiwoz21"] += [json.loads(path.read_text()) for path in sorted(cases.glob("0[123]_mw21_*s.json"))]
    seeds["multiwoz22"] = [[one] for one in json.loads((data / "multiwoz22/dialogues_5_examples.json").read_text())]
    seeds["sgd"] = [[one] for one in unpacked(data / "sgd/dev/dialogues_007.json.gz")[:6]]
    seeds["hr_multiwoz"] = [[one] for one in unpacked(data / "hr_multiwoz/hr_multiwoz.json.gz")[:6]]
    dummies = sorted((data / "unified" / "dummy").glob("*.json"))
    seeds["unified"] = [json.loads(path.read_text())[:1] for path in dummies]
    paths = {name: tmp_path / name / "dialogues_001.json" for name in seeds}
    for path in paths.values():
        path.parent.mkdir()

    def read(given: tuple[str, bytes]) -> None:
        paths[given[0]].write_bytes(given[1])
        load(given[0], path=paths[given[0]])

    streams = [
        named(
            name,
            taking_turns(
                as_json(mutated_values(values, SEED)),
                mutated_bytes([json.dumps(value).encode() for value in values], SEED),
            ),
        )
        for name, values in seeds.items()
    ]
    tell("real files", hunt(read, taking_turns(*streams), seconds=seconds(0.75), place=str(tmp_path)))
