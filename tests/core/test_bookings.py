"""The bundled corpus: made by its generator, two disjoint halves, and the features it promises."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import pytest

from hushbot.corpora.bookings import BookingsDatabase, load_bookings
from hushbot.corpora.bookings_generator import SCHEMA, render_files
from hushbot.corpora.corpus import Corpus
from hushbot.prompts import parse_state, render_state
from hushbot.types import SlotValue


@pytest.fixture(scope="module")
def halves() -> dict[str, Corpus]:
    return {"public": load_bookings("public"), "private": load_bookings("private")}


def triplets(corpus: Corpus) -> Iterator[SlotValue]:
    for dialogue in corpus.dialogues:
        for turn in dialogue.turns:
            yield from turn.state or ()


def test_shipped_files_are_the_generators_byte_for_byte() -> None:
    shipped = files("hushbot") / "assets" / "bookings"
    for name, text in render_files().items():
        assert (shipped / name).read_bytes() == text.encode("utf-8"), name


def test_size_and_domains(halves: dict[str, Corpus]) -> None:
    assert sum(len(corpus.dialogues) for corpus in halves.values()) == 1000
    for corpus in halves.values():
        assert set(corpus.schema.domains) == {"clinic", "event", "hotel", "restaurant", "taxi"}
        assert {t.domain for t in triplets(corpus)} == set(corpus.schema.domains)


def test_halves_share_no_open_value(halves: dict[str, Corpus]) -> None:
    open_values = {
        half: {t.value for t in triplets(corpus) if not SCHEMA[t.domain][t.slot] and t.value != "dontcare"}
        for half, corpus in halves.items()
    }
    assert min(map(len, open_values.values())) > 500
    assert open_values["public"] & open_values["private"] == set()


def test_references_are_unique_and_never_shared(halves: dict[str, Corpus]) -> None:
    said = [
        word.strip(".")
        for corpus in halves.values()
        for dialogue in corpus.dialogues
        for turn in dialogue.turns
        if "NOTIFY_SUCCESS" in turn.actions
        for word in (turn.response or "").replace(":", " ").split()
        if word.strip(".").isupper() and any(c.isdigit() for c in word)
    ]
    assert len(said) > 1000
    assert len(set(said)) == len(said)


def test_promised_features_occur(halves: dict[str, Corpus]) -> None:
    for corpus in halves.values():
        n = len(corpus.dialogues)
        assert sum(len(d.domains) > 1 for d in corpus.dialogues) > n / 2
        assert any(t.value == "dontcare" for t in triplets(corpus))
        values = [{t.value: t.domain for t in d.final_state or ()} for d in corpus.dialogues]
        repeated = sum(len({t.value for t in d.final_state or ()}) < len(d.final_state or ()) for d in corpus.dialogues)
        assert repeated > 50, values[:1]
        changed = kept = 0
        for dialogue in corpus.dialogues:
            for before, after in zip(dialogue.turns, dialogue.turns[1:], strict=False):
                old = {(t.domain, t.slot): t.value for t in before.state or ()}
                new = {(t.domain, t.slot): t.value for t in after.state or ()}
                changed += any(new.get(key, value) != value for key, value in old.items())
                kept += old == new
        assert changed > 30
        assert kept > 50
        words = ("usual", "regular", "again")
        usual = [d for d in corpus.dialogues if not d.turns[0].user or any(w in d.turns[0].user for w in words)]
        unsaid = [t for d in usual for t in d.turns[0].state or () if t.slot in {"guest", "patient"}]
        assert len(unsaid) > 30, "returning customers, whose name nobody says"
        choices = {}
        for dialogue in corpus.dialogues:
            turn = dialogue.turns[0]
            choices.setdefault(render_state(turn.state or frozenset()), set()).add(turn.actions)
        assert any(len(actions) > 1 for actions in choices.values())


def test_some_private_customers_tap_instead_of_talking(halves: dict[str, Corpus]) -> None:
    silent = {half: sum(not d.turns[0].user for d in corpus.dialogues) for half, corpus in halves.items()}
    assert silent["public"] == 0, "the backbone has not seen them"
    assert 50 < silent["private"] < 150


def test_every_value_survives_the_state_text(halves: dict[str, Corpus]) -> None:
    for corpus in halves.values():
        for triplet in set(triplets(corpus)):
            assert parse_state(render_state(frozenset({triplet}))) == {triplet}


def test_lookup_counts_and_shows_a_single_match() -> None:
    rows = [
        {"name": "a", "food": "thai", "area": "north", "price": "cheap", "phone": "1", "postcode": "p"},
        {"name": "b", "food": "thai", "area": "south", "price": "cheap", "phone": "2", "postcode": "q"},
    ]
    database = BookingsDatabase({"restaurant": rows})
    thai = frozenset({SlotValue("restaurant", "food", "thai"), SlotValue("restaurant", "area", "dontcare")})
    assert database.lookup(thai, frozenset()) == "restaurant 2 found, a, b"
    chosen = thai | {SlotValue("restaurant", "name", "b"), SlotValue("restaurant", "guest", "kim")}
    assert database.lookup(chosen, thai) == "restaurant 1 found, b, 2, q"
    assert database.lookup(chosen, chosen) == "restaurant 1 found, b, 2, q"
    assert database.lookup(frozenset({SlotValue("taxi", "to", "b")}), frozenset()) == ""
    assert (
        database.lookup(frozenset({SlotValue("restaurant", "food", "peruvian")}), frozenset()) == "restaurant 0 found"
    )
