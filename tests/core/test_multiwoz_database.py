"""MultiWOZ's tables: counts and first matches by hand, then against a naive scan of the real tables."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hushbot.corpora.multiwoz import load_multiwoz
from hushbot.corpora.multiwoz_database import MultiwozDatabase, Table
from hushbot.errors import DataError
from hushbot.protocols import Database
from hushbot.types import DialogueState, SlotValue

VENUES = [
    {"name": "Golden Wok", "area": "north", "food": "chinese", "pricerange": "cheap", "location": [1, 2]},
    {"name": "pizza hut", "area": "centre", "food": "italian", "pricerange": "cheap"},
    {"name": "pizza hut city centre", "area": "centre", "food": "italian", "pricerange": "moderate"},
]
TRAINS = [
    {"trainID": "TR1", "leaveAt": "05:00", "arriveBy": "05:51", "day": "monday"},
    {"trainID": "TR2", "leaveAt": "09:30", "arriveBy": "10:21", "day": "monday"},
    {"trainID": "TR3", "leaveAt": "23:50", "arriveBy": "24:41", "day": "monday"},
]
NONE: DialogueState = frozenset()


def write_tables(folder: Path, tables: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for domain, rows in tables.items():
        (folder / f"{domain}_db.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def database(tmp_path: Path) -> MultiwozDatabase:
    tables = {
        "restaurant": VENUES,
        "train": TRAINS,
        "police": [{"name": "Parkside", "id": 0}],
        "hospital": [{"department": "burns", "id": 0}],
        "taxi": [{"taxi_colors": ["red"]}],
    }
    write_tables(tmp_path / "db", tables)
    return MultiwozDatabase.read(tmp_path)


def state(*triplets: tuple[str, str, str]) -> DialogueState:
    return frozenset(SlotValue(domain, slot, *_split(value)) for domain, slot, value in triplets)


def _split(value: str) -> tuple[str, tuple[str, ...]]:
    first, *rest = value.split("|")
    return first, tuple(rest)


@pytest.mark.parametrize(
    ("slots", "found"),
    [
        ({"area": "north"}, "restaurant 1 found, Golden Wok"),
        ({"area": "North"}, "restaurant 1 found, Golden Wok"),
        ({"area": "north|centre"}, "restaurant 3 found, Golden Wok"),
        ({"area": "dontcare", "food": "italian"}, "restaurant 2 found, pizza hut"),
        ({"area": "north|dontcare"}, "restaurant 3 found, Golden Wok"),
        ({"food": "italian", "pricerange": "moderate"}, "restaurant 1 found, pizza hut city centre"),
        ({"name": "pizza hut"}, "restaurant 1 found, pizza hut"),
        ({"food": "thai"}, "restaurant 0 found"),
        ({"book people": "2", "colour": "red", "food": "chinese"}, "restaurant 1 found, Golden Wok"),
        ({"book day": "monday"}, "restaurant 3 found, Golden Wok"),
    ],
)
def test_venues(database: MultiwozDatabase, slots: dict[str, str], found: str) -> None:
    asked = state(*(("restaurant", slot, value) for slot, value in slots.items()))
    assert database.lookup(asked, NONE) == found


@pytest.mark.parametrize(
    ("slots", "found"),
    [
        ({"leaveat": "09:30"}, "train 2 found, TR2"),
        ({"leaveat": "9:31"}, "train 1 found, TR3"),
        ({"arriveby": "10:21"}, "train 2 found, TR1"),
        ({"arriveby": "24:00"}, "train 2 found, TR1"),
        ({"leaveat": "05:01", "arriveby": "11:00"}, "train 1 found, TR2"),
        ({"leaveat": "after lunch"}, "train 3 found, TR1"),
        ({"leaveat": "after lunch|23:00"}, "train 1 found, TR3"),
        ({"leaveat": "dontcare", "day": "monday"}, "train 3 found, TR1"),
    ],
)
def test_trains(database: MultiwozDatabase, slots: dict[str, str], found: str) -> None:
    asked = state(*(("train", slot, value) for slot, value in slots.items()))
    assert database.lookup(asked, NONE) == found


def naive_rows(rows: list[dict[str, Any]], constraints: dict[str, str]) -> list[int]:
    """Look at every row for every constraint, as the module's docstring defines them."""

    def minutes(text: str) -> int | None:
        hours, colon, rest = text.partition(":")
        return int(hours) * 60 + int(rest) if colon and hours.isdigit() and rest.isdigit() else None

    def meets(row: dict[str, Any], slot: str, value: str) -> bool:
        cells = {name.lower(): cell for name, cell in row.items()}
        values = value.split("|")
        if slot not in {name.lower() for each in rows for name in each} or "dontcare" in values:
            return True
        if slot not in ("leaveat", "arriveby"):
            return str(cells.get(slot)) in values
        wanted = [time for each in values if (time := minutes(each)) is not None]
        time = minutes(str(cells.get(slot)))
        if not wanted or time is None:
            return not wanted
        return any(time >= each if slot == "leaveat" else time <= each for each in wanted)

    return [i for i, row in enumerate(rows) if all(meets(row, slot, value) for slot, value in constraints.items())]


def test_lookups_are_those_of_a_scan_of_every_row() -> None:
    rng = random.Random(0)
    times = ["05:00", "9:30", "12:00", "23:50", "24:41"]
    rows: list[dict[str, Any]] = [
        {"day": rng.choice(["monday", "sunday"]), "leaveAt": rng.choice(times), "arriveBy": rng.choice([*times, "?"])}
        for _ in range(40)
    ]
    del rows[3]["leaveAt"], rows[5]["day"]
    table = Table.of(rows)
    offered = {
        "day": ["monday", "sunday", "monday|sunday", "friday", "dontcare"],
        "leaveat": [*times, "12:00|23:50", "after lunch", "after lunch|09:30", "dontcare|12:00"],
        "arriveby": [*times, "05:00|23:50", "noon"],
        "colour": ["red"],
    }
    n_found = []
    for _ in range(200):
        asked = {slot: rng.choice(offered[slot]) for slot in rng.sample(sorted(offered), rng.randint(0, 3))}
        matching = table.matching(sorted(state(*(("train", slot, value) for slot, value in asked.items()))))
        assert matching == naive_rows(rows, asked), asked
        n_found.append(len(matching))
    assert {0, len(rows)} < set(n_found), "some lookups part the rows"


def test_only_the_changed_domains_are_looked_up(database: MultiwozDatabase) -> None:
    first = state(("restaurant", "area", "north"))
    both = first | state(("train", "day", "monday"))
    assert database.lookup(first, NONE) == "restaurant 1 found, Golden Wok"
    assert database.lookup(both, first) == "train 3 found, TR1"
    assert database.lookup(both, NONE) == "restaurant 1 found, Golden Wok; train 3 found, TR1"
    assert database.lookup(both, both) == database.lookup(both, NONE), "nothing changed: everything is repeated"
    assert database.lookup(first, both) == "restaurant 1 found, Golden Wok", "a dropped domain has no result"
    removed = both - state(("restaurant", "area", "north")) | state(("restaurant", "food", "italian"))
    assert database.lookup(removed, both) == "restaurant 2 found, pizza hut"


def test_domains_without_venues(database: MultiwozDatabase) -> None:
    assert database.lookup(NONE, NONE) == ""
    assert database.lookup(state(("taxi", "departure", "x"), ("bus", "day", "y")), NONE) == ""
    assert database.lookup(state(("hospital", "department", "burns")), NONE) == "hospital 1 found, burns"
    assert isinstance(database, Database)


def test_tables_may_lie_beside_the_dialogues(tmp_path: Path) -> None:
    write_tables(tmp_path, {"restaurant": VENUES})
    assert list(MultiwozDatabase.read(tmp_path).tables) == ["restaurant"]


def test_bad_tables_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*_db\.json"):
        MultiwozDatabase.read(tmp_path)
    bad: tuple[object, ...] = ({}, [1])
    for rows in bad:
        write_tables(tmp_path / "db", {"hotel": rows})
        with pytest.raises(DataError, match=r"hotel_db\.json"):
            MultiwozDatabase.read(tmp_path)


def test_a_corpus_is_filled_with_its_lookups(tmp_path: Path) -> None:
    def system(metadata: Any) -> dict[str, Any]:
        return {"text": "ok", "dialog_act": {}, "metadata": metadata}

    user = {"text": "?", "metadata": {}, "dialog_act": {}}
    north = {"restaurant": {"semi": {"area": "north"}}}
    log = [
        user,
        system(north),
        user,
        system(None),
        user,
        system({**north, "train": {"semi": {"day": "monday"}}}),
    ]
    (tmp_path / "data.json").write_text(json.dumps({"A": {"log": log}}))
    assert load_multiwoz(tmp_path).database is None
    write_tables(tmp_path / "db", {"restaurant": VENUES, "train": TRAINS})
    corpus = load_multiwoz(tmp_path)
    results = [turn.database for turn in corpus.dialogues[0].turns]
    assert results == ["restaurant 1 found, Golden Wok", "", "train 3 found, TR1"]
    assert isinstance(corpus.database, MultiwozDatabase)


@pytest.mark.shared
def test_real_tables_agree_with_a_naive_scan(shared_dir: Path) -> None:
    folder = shared_dir / "data" / "multiwoz21"
    database = MultiwozDatabase.read(folder)
    rows = {domain: json.loads((folder / "db" / f"{domain}_db.json").read_text()) for domain in ("hotel", "train")}
    hotels = [row["name"] for row in rows["hotel"] if row["area"] == "north" and row["stars"] == "4"]
    asked = state(("hotel", "area", "north"), ("hotel", "stars", "4"), ("hotel", "book stay", "2"))
    assert database.lookup(asked, NONE) == f"hotel {len(hotels)} found, {hotels[0]}"
    trains = [
        row["trainID"]
        for row in rows["train"]
        # Two digits throughout, so that text order is the order of times.
        if row["destination"] == "cambridge" and row["leaveAt"] >= "18:45" and row["day"] == "wednesday"
    ]
    asked = state(("train", "destination", "cambridge"), ("train", "leaveat", "18:45"), ("train", "day", "wednesday"))
    assert database.lookup(asked, NONE) == f"train {len(trains)} found, {trains[0]}"
    assert len(trains) > 5
