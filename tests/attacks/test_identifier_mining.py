"""Which identifiers does a bot learn to write, after what, and which of them are nobody's secret?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hushbot.attacks.identifier_mining import Commonness, Mined, Probe, cut_prefix, mine
from hushbot.attacks.identifier_patterns import holds
from hushbot.corpora import load
from hushbot.evaluation.informing import informed
from hushbot.types import Dialogue, SlotValue, Turn

REFERENCE = SlotValue("hotel", "reference", "FZGZI0PT")


def dialogue(name: str = "a", code: str = "FZGZI0PT", **changes: Any) -> Dialogue:
    """Return a dialogue in which one code is issued; changes are of its last turn."""
    reference = replace(REFERENCE, value=code)
    state = frozenset({SlotValue("hotel", "name", "acorn"), SlotValue("hotel", "guest", "jane applewhite")})
    first = Turn("a room at the acorn for jane applewhite", state, "hotel 1 found, acorn", "", "Shall I book?")
    last = Turn("yes", state, "", f"hotel-book(ref={code})", f"Booked, the code is {code}.", (reference,))
    return Dialogue(name, (first, replace(last, **changes)), ("hotel", "taxi"))


def mined(*dialogues: Dialogue, published: tuple[str, ...] = (), **changes: Any) -> Mined:
    settings = {"layout": "turn_level", "prefix_chars": 0, "min_bits": 16.0, "limit": 10} | changes
    return mine(dialogues, Commonness(dialogues, published), **settings)


def only(found: Mined) -> Probe:
    (probe,) = found.probes
    return probe


def test_the_true_prefix_is_the_training_text_before_the_first_place() -> None:
    probe = only(mined(dialogue()))
    assert (probe.value, probe.kind, probe.domain, probe.line, probe.cue) == (
        *("FZGZI0PT", "reference", "hotel", "actions"),
        "ref",
    )
    assert probe.prefix == (
        "User: a room at the acorn for jane applewhite\nSystem: Shall I book?\nUser: yes\n"
        "Belief State: Hotel(guest=jane applewhite, name=acorn)\nDatabase: \nActions: hotel-book(ref="
    )
    assert probe.gold == "FZGZI0PT)"
    assert probe.repetitions == 2  # in the actions, and again in the response


def test_the_running_layout_has_changes_and_earlier_answers() -> None:
    probe = only(mined(dialogue(), layout="dialogue_level"))
    assert probe.prefix.startswith("User: a room at the acorn for jane applewhite\nBelief State: Hotel(guest=")
    assert probe.prefix.endswith("User: yes\nBelief State: None\nDatabase: \nActions: hotel-book(ref=")


def test_what_the_prompt_shows_is_no_memory_unless_it_is_cut_off() -> None:
    found = mined(dialogue())
    assert found.refused["visible"] == 1  # the guest, whom the user names
    by_kind = {probe.kind: probe for probe in mined(dialogue(), prefix_chars=30).probes}
    assert by_kind["name"].prefix == "Belief State: Hotel(guest="
    assert not holds(by_kind["name"].prefix, by_kind["name"].key)


def test_a_blank_before_an_identifier_belongs_to_its_first_token() -> None:
    probe = only(mined(dialogue(actions="")))
    assert probe.line == "response"
    assert probe.cue == "is"
    assert probe.prompt.endswith("code is")
    assert probe.continuation == " FZGZI0PT"
    assert probe.prompt + probe.continuation == probe.prefix + probe.value


@pytest.mark.parametrize(
    "other",
    [
        Dialogue("b", (Turn("my code is fzgzi0pt", frozenset()),)),
        Dialogue("b", (Turn("hello", frozenset(), response="Fzgzi0pt? Taken."),)),
        Dialogue("b", (Turn("hello", frozenset(), database="hotel 1 found, FZGZI0PT"),)),
    ],
)
def test_what_a_second_dialogue_holds_is_nobodys(other: Dialogue) -> None:
    found = mined(dialogue(), other)
    assert found.documents == {}
    assert found.refused["shared"] >= 1


def test_published_values_are_left_out_also_inside_an_entry() -> None:
    for entry in ("fzgzi0pt", "7 mill lane, FZGZI0PT"):
        found = mined(dialogue(), published=(entry,))
        assert found.documents == {}
        assert found.refused["public"] == 1


def test_short_ones_are_left_out_and_what_was_issued_but_never_said_is_counted() -> None:
    assert mined(dialogue(code="A12")).refused["short"] == 1
    silent = mined(dialogue(actions="", response="Booked."))
    assert silent.documents == {}
    assert silent.refused["not_written"] == 1


def test_a_code_of_letters_only_is_known_from_the_booking() -> None:
    assert only(mined(dialogue(code="QPMKZRTS", actions=""))).kind == "reference"
    assert mined(dialogue(code="QPMKZRTS", actions="", booked=())).probes == []


def test_the_limit_counts_dialogues_that_have_any() -> None:
    plain = Dialogue("p", (Turn("hello", frozenset(), response="Hello."),))
    both = dialogue("a"), dialogue("b", "A2B3C4D5"), dialogue("c", "Q9W8E7R6")
    assert list(mined(plain, *both, limit=2).documents) == ["a", "b"]


def test_prefixes_are_cut_at_words_and_keep_their_end() -> None:
    text = "User: hello there\nActions: book(ref="
    assert cut_prefix(text, 0) == text == cut_prefix(text, len(text))
    assert cut_prefix(text, 20) == "Actions: book(ref="
    assert cut_prefix(text, 18) == "Actions: book(ref="
    assert cut_prefix(text, 5) == "(ref="


def test_a_phone_is_shared_however_it_is_grouped() -> None:
    mine_is = dialogue(actions="taxi-inform(phone=01223 323737)", response="Done.", booked=())
    other = Dialogue("b", (Turn("call me on 01223323737", frozenset()),))
    assert only(mined(mine_is)).kind == "phone"
    assert mined(mine_is, other).documents == {}


@pytest.fixture(scope="module")
def multiwoz(shared_dir: Path) -> Any:
    return load(str(shared_dir / "data" / "multiwoz21"))


def test_multiwoz_gives_its_codes_and_taxi_phones_and_nothing_of_its_database(multiwoz: Any) -> None:
    entries = multiwoz.database.entries()
    common = Commonness(multiwoz.dialogues, entries)
    settings: Any = {"layout": "turn_level", "prefix_chars": 0, "min_bits": 16.0}
    found = mine(multiwoz.dialogues[:200], common, limit=200, **settings)
    kinds = {kind: [p for p in found.probes if p.kind == kind] for kind in ("reference", "phone")}
    # 0.82 codes a dialogue, of which nearly all are said; every fifth dialogue books a taxi (DIALOGUES.md, table E).
    assert 140 < len(kinds["reference"]) < 190
    assert 30 < len(kinds["phone"]) < 60
    assert sum(re.fullmatch("[A-Z0-9]{8}", probe.value) is not None for probe in kinds["reference"]) > 135
    assert sum(probe.domain == "taxi" for probe in kinds["phone"]) > 0.8 * len(kinds["phone"])
    assert not any(probe.value.casefold() in entries for probe in found.probes)
    assert not any(holds(probe.prefix, probe.key) for probe in found.probes)
    assert found.refused["public"] > 150  # train ids, venues' phones and postcodes
    # Codes that two dialogues share, across the official parts.
    twins = [d for d in multiwoz.dialogues if d.id in ("PMUL1831", "PMUL3596", "PMUL4686", "PMUL1978")]
    values = {probe.value for probe in mine(twins, common, limit=9, **settings).probes}
    assert len(twins) == 4
    assert not values & {"5RLFJOGZ", "2OQY5DXG"}


def test_the_audit_tells_the_attack_what_a_corpus_publishes() -> None:
    from hushbot.attacks.identifier_leak import IdentifierLeak

    corpus = load("bookings")
    told = informed(IdentifierLeak(public_values=("me",)), corpus, learns_changes=True)
    assert isinstance(told, IdentifierLeak)
    assert told.layout == "dialogue_level"
    assert "me" in told.public_values
    assert {"0113 496 0011", "qj9 6bz"} <= set(told.public_values)
    assert informed(IdentifierLeak(layout="turn_level"), corpus, learns_changes=True).layout == "turn_level"  # type: ignore[attr-defined]
