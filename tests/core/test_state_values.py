"""Every value that a reader could take from a text is found, with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushbot.prompts import STATE_MARKER, read_changes, read_state, render_changes
from hushbot.prompts import Changes as StateChanges
from hushbot.targets.state_values import leave_out, written_values
from hushbot.types import SlotValue


def found(text: str) -> list[tuple[str, str, str, str]]:
    """Return (domain, slot, value, stop), having checked that each value stands where it is said to stand."""
    values = written_values(text)
    for value in values:
        assert "\\" in text or text[value.start : value.end].strip() == value.value
    return [(value.domain, value.slot, value.value, value.stop) for value in values]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Belief State: Restaurant(name=pizza hut, area=) Train(day=monday)\n",
            [
                ("Restaurant", "name", "pizza hut", ","),
                ("Restaurant", "area", "", ")"),
                ("Train", "day", "monday", ")"),
            ],
        ),
        ("Belief State: Hotel(name=a\\, b\\=c, x=1", [("Hotel", "name", "a, b=c", ","), ("Hotel", "x", "1", "")]),
        ("Belief State: Hotel(name=cut\nResponse: no (a=b)", [("Hotel", "name", "cut", ""), ("no", "a", "b", ")")]),
        ("Belief State: None\n", [("", "", "None", "")]),
        ("Belief State: Hotel(area=north) Tr", [("Hotel", "area", "north", ")"), ("", "", "Tr", "")]),
        (
            "Belief State: Hotel(pizza hut, area=north)",
            [("Hotel", "", "pizza hut", ","), ("Hotel", "area", "north", ")")],
        ),
        ("Belief State: Hotel name=pizza hut)", [("", "", "Hotel name=pizza hut)", "")]),
        ("Belief State: Hotel(a=b) Database: c(d=e)", [("Hotel", "a", "b", ")"), ("c", "d", "e", ")")]),
        ("Belief State: x Belief State: Hotel(a=b)", [("", "", "x", ""), ("Hotel", "a", "b", ")")]),
        ("belief  state : x", []),  # nobody's marker, and no slot
        ("belief state: Hotel(a=b)", [("Hotel", "a", "b", ")")]),
        (" area=north) Train(day=monday)", [("", "area", "north", ")"), ("Train", "day", "monday", ")")]),
        ("pizza hut, area=north)", [("", "", "pizza hut", ","), ("", "area", "north", ")")]),
        ("note: Hotel(a=b)", [("Hotel", "a", "b", ")")]),
        ("at 9:15 A(b=c) Belief State: None", [("15 A", "b", "c", ")"), ("", "", "None", "")]),
        ("Hello there, how are you (today)?", []),
        (
            "Actions: hotel-inform(name=acorn, parking, area=?) bye()\nResponse: It is the acorn (at last): e=f.",
            [("hotel-inform", "name", "acorn", ","), ("hotel-inform", "area", "?", ")"), ("", "e", "f.", "")],
        ),
        ("User: A((b=c, (d) e=f)g=h", [("", "b", "c", ","), ("", "e", "f", ")"), ("A", "g", "h", "")]),
        ("User: a\\(b=c\\, d", [("", "a(b", "c, d", "")]),
        ("Actions: Hotel(acorn, 3)\nUser: at 9:15 (or so)\nDatabase: hotel 2 found, acorn", []),
        ("", []),
    ],
)
def test_values_are_found_with_their_places(text: str, expected: list[tuple[str, str, str, str]]) -> None:
    assert found(text) == expected


def test_lines_are_read_one_by_one() -> None:
    text = "Belief State: A(b=c)\nActions: d(e=f)\nUser: hello\nBelief State: G(h=i) Actions: j=k, Response: l=m"
    values = [(value.section, value.slot, value.value) for value in written_values(text)]
    assert values == [
        *(("", "b", "c"), ("Actions:", "e", "f"), ("", "h", "i")),
        *(("Actions:", "j", "k"), ("Response:", "l", "m")),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Belief State: A(b=@, c=d)\nx", "Belief State: A(c=d)\nx"),
        ("Belief State: A(c=d, b=@)\nx", "Belief State: A(c=d)\nx"),
        ("Belief State: A(c=d, b=@, e=)", "Belief State: A(c=d, e=)"),
        ("Belief State: A(b=@, c=@) D(e=@)\nx", "Belief State: None\nx"),
        ("Belief State: A(b=@) D(e=f)", "Belief State: D(e=f)"),
        ("Belief State: D(e=f) A(b=@)", "Belief State: D(e=f)"),
        ("Belief State: A(c\\(\\,x=@, e\\)=f)", "Belief State: A(e\\)=f)"),
        ("A(b=@)", " None"),
        ("Belief State: A(b=@) Database: x", "Belief State: Database: x"),
        ("c=d, b=@)", "c=d)"),
    ],
)
def test_entries_are_left_out(text: str, expected: str) -> None:
    places = []
    while "@" in text:
        places.append(text.index("@"))
        text = text.replace("@", "", 1)
    assert leave_out(text, places, 0) == expected
    assert leave_out(text, [], 0) == text


def test_what_the_asker_wrote_is_not_left_out() -> None:
    text = "Belief State: A(c=d, b=)"
    assert leave_out(text, [len(text) - 1], len("Belief State: A(c=d, b=")) == text
    assert leave_out(text, [len(text) - 1], len("Belief State: A(c=d,")) == "Belief State: A(c=d,)"
    sole = "Belief State: A(b=)"
    assert leave_out(sole, [len(sole) - 1], len("Belief State: A(")) == "Belief State: A()"
    # Places that are no blank entry are none of its business.
    for place in range(len(text) + 1):
        assert place == len(text) - 1 or leave_out(text, [place], 0) == text


PARTS = (*"ab (),=:\\\n\r", "None", "Belief State:", "Hotel(", "name=", "Actions:")
NASTY = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@given(NASTY)
def test_whatever_a_reader_reads_is_found(text: str) -> None:
    """The readers of `prompts` are the oracle; a section's line is read by nobody, so it is left out."""
    line = STATE_MARKER + text
    read = read_state(line).state or frozenset()
    changes = read_changes(line).changes
    said = read | (changes.said if changes else frozenset())
    values = {(value.slot, value.value) for value in written_values(line)}
    assert {(triplet.slot, triplet.value) for triplet in said} <= values


TEXT = st.text(st.sampled_from("aB (),=:\\\n\r'"), min_size=1, max_size=6)
TRIPLETS = st.builds(SlotValue, TEXT, TEXT, TEXT)


@given(st.lists(TRIPLETS, max_size=4, unique_by=lambda triplet: (triplet.domain, triplet.slot)))
def test_a_written_state_is_found_whole(triplets: list[SlotValue]) -> None:
    line = f"{STATE_MARKER} {render_changes(StateChanges(frozenset(triplets)))}\n"
    values = [(value.slot, value.value) for value in written_values(line) if value.slot]
    assert sorted(values) == sorted((triplet.slot, triplet.value) for triplet in triplets)
