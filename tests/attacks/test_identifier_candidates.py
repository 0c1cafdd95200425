"""Where identifiers stand in what a bot learnt to write, and what each is taken for."""

from __future__ import annotations

from hushbot.attacks.identifier_candidates import SEVERAL, cue_of, find_candidates

DOMAINS = ("hotel", "taxi")


def read(text: str, line: str, **changes: object) -> list[tuple[str, str, str]]:
    settings = {"issued": {}, "domains": DOMAINS} | changes
    found = find_candidates(text, line, **settings)  # type: ignore[arg-type]
    return [(text[each.start : each.end], each.kind, each.domain) for each in found]


def test_slots_name_what_they_hold_in_states_and_acts() -> None:
    state = " Hotel(guest=jane doe, name=acorn, phone=01223 323737) Taxi(id=AB 123, to=acorn)\n"
    assert read(state, "state") == [
        ("jane doe", "name", "hotel"),
        ("01223 323737", "phone", "hotel"),
        ("AB 123", "id", "taxi"),
    ]
    assert read(" taxi-inform(phone=07518044119, car=blue bmw)\n", "actions") == [("07518044119", "phone", "taxi")]


def test_a_slot_of_free_text_gives_what_is_in_it() -> None:
    state = r" Hotel(contact=Kim at kim@mail.example or 555-1234, phone=\(415\) 555-2671)"
    assert read(state, "state") == [
        ("kim@mail.example", "email", "hotel"),
        ("555-1234", "phone", "hotel"),
        (r"\(415\) 555-2671", "phone", "hotel"),
    ]


def test_wishes_are_no_identifiers() -> None:
    assert read(" Hotel(guest=dontcare, people=5, stay=3, time=12:15)", "state") == []


def test_an_issued_one_keeps_its_domain_wherever_it_is_said() -> None:
    issued = {"fzgzi0pt": ("reference", "taxi")}
    assert read(" Your code is FZGZI0PT .", "response", issued=issued) == [("FZGZI0PT", "reference", "taxi")]
    assert read(" booking-book(ref=FZGZI0PT)", "actions", issued=issued) == [("FZGZI0PT", "reference", "taxi")]
    assert read(" Your code is FZGZI0PT .", "response") == [("FZGZI0PT", "reference", SEVERAL)]
    assert read(" Your code is FZGZI0PT .", "response", domains=("hotel",)) == [("FZGZI0PT", "reference", "hotel")]


def test_a_cue_is_the_slot_or_the_last_word() -> None:
    assert cue_of(" booking-book(day=Monday, ref=") == "ref"
    assert cue_of(" Your reference number is : ") == "is"
    assert cue_of(" ") == ""
