"""Errors quote nobody: what the dialogues say is masked in them, and what a user needs to mend them stays."""

from __future__ import annotations

import traceback

import pytest

from hushbot.discretion import Veil, discreet
from hushbot.errors import AuditError, ConfigError, DataError, UnsupportedError
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, Dialogue, Estimate, Headline, SlotValue, Turn

SECRET = SlotValue("taxi", "phone", "07700900461")
NAME = SlotValue("taxi", "name", "Quillon Zebrawski")
CALLER = Dialogue(
    "call-7",
    (
        Turn(
            "call Quillon Zebrawski on 07700900461, i need to see my mother at noon",
            frozenset({SECRET, NAME, SlotValue("taxi", "day", "monday")}),
            response="Your code is QX7Z4K9W.",
        ),
    ),
)
OTHERS = tuple(Dialogue(f"d{i}", (Turn("a taxi on monday", frozenset()),)) for i in range(5))
SCHEMA = Schema.of([Slot("taxi", "phone"), Slot("taxi", "name"), Slot("taxi", "day")])
EVERYBODY = (CALLER, *OTHERS)


@pytest.fixture
def veil() -> Veil:
    return Veil.over(EVERYBODY, SCHEMA)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no room for Quillon Zebrawski", "no room for Q***n(7) Z***i(9)"),
        ("no room for ZEBRAWSKI", "no room for ***(9)"),
        ("code QX7Z4K9W, phone=07700900461!", "code ***(8), phone=***(11)!"),
        ("it said i need to see my mother", "it said ***(1) ***(4) ***(2) ***(3) ***(2) m***r(6)"),
        ("it said 'see my mother'", "it said '***(3) ***(2) m***r(6)'"),
        (r"it said 'Qu\xefllon'", "it said 'Q***n(10)'"),
    ],
)
def test_what_somebody_said_is_masked(veil: Veil, said: str, shown: str) -> None:
    assert veil.mask(said) == shown


@pytest.mark.parametrize(
    "said",
    [
        "k=2 is outside (0, 1]; set attack.membership.k",
        "call-7: taxi-phone has an empty name; correct its state",
        "the endpoint answered 503 to every request; start it and audit again",
        "attack.quiz.mode='texts' must be score or text",
        "monday is no number of seconds",
    ],
)
def test_what_is_nobodys_stays(veil: Veil, said: str) -> None:
    assert veil.mask(said) == said


@pytest.mark.parametrize("kind", [AuditError, DataError, ConfigError, UnsupportedError])
def test_our_errors_keep_their_kind_and_exit_code(kind: type[AuditError]) -> None:
    cause = KeyError("QX7Z4K9W")
    with pytest.raises(kind) as caught, discreet(EVERYBODY, SCHEMA):
        raise kind("no room for 07700900461") from cause
    assert type(caught.value) is kind
    assert str(caught.value) == "no room for ***(11)"
    assert "QX7Z4K9W" not in "".join(traceback.format_exception(caught.value))


def test_every_problem_of_a_configuration_is_masked() -> None:
    with pytest.raises(ConfigError) as caught, discreet(EVERYBODY, SCHEMA):
        raise ConfigError("one: 07700900461", "two: fine")
    assert caught.value.problems == ("one: ***(11)", "two: fine")


def test_a_bug_keeps_its_place_and_loses_what_it_quotes() -> None:
    def trip() -> None:
        try:
            raise KeyError("QX7Z4K9W")
        except KeyError:
            raise ValueError("could not convert string to float: '07700900461'") from None

    with pytest.raises(RuntimeError) as caught, discreet(EVERYBODY, SCHEMA):
        trip()
    shown = "".join(traceback.format_exception(caught.value))
    assert "ValueError: could not convert string to float: '***(11)'" in shown
    assert "in trip" in shown
    assert "raise KeyError(" not in shown
    assert "line" in shown


def test_an_interruption_passes() -> None:
    with pytest.raises(KeyboardInterrupt), discreet(EVERYBODY, SCHEMA):
        raise KeyboardInterrupt


def test_notes_and_reasons_of_an_attack_are_masked_and_numbers_kept(veil: Veil) -> None:
    gone = Estimate(value=None, method="not measured: no answer to 'see my mother'")
    known = Estimate(value=0.5, low=0.4, high=0.6, n=9, method="cluster_bootstrap")
    result = AttackResult(
        verdict="inconclusive",
        headline=Headline(metric="auc", estimate=gone),
        metrics={"auc": gone, "accuracy": known, "questions": 4, "none": None},
        control={"base": {"auc": gone}},
        notes=["failed at QX7Z4K9W", "24 states judged"],
    )
    veiled = veil.veiled(result)
    assert veiled.notes == ["failed at ***(8)", "24 states judged"]
    assert veiled.headline.estimate.method == "not measured: no answer to '***(3) ***(2) m***r(6)'"
    assert veiled.metrics["auc"] == veiled.control["base"]["auc"] == veiled.headline.estimate
    assert (veiled.metrics["accuracy"], veiled.metrics["questions"], veiled.metrics["none"]) == (known, 4, None)


def test_apostrophes_are_no_quotation_marks_and_bytes_are_quoted() -> None:
    veil = Veil([Dialogue("d1", (Turn("the red lion at nine please", frozenset()),))])
    said = "members' identifiers are 12.8 nats more probable than non-members' (p = 0.0005): the bot knows them"
    assert veil.mask(said) == said
    assert "red lion" not in veil.mask("no reading of b'the red lion'")
    assert "red lion" not in veil.mask("no reading of value='the red lion'")


def test_a_measured_number_stays_though_somebody_paid_it() -> None:
    veil = Veil([Dialogue("d1", (Turn("it was 12.80 pounds, call 555.0142.77", frozenset()),))])
    assert veil.mask("12.80 nats") == "12.80 nats"
    assert "555" not in veil.mask("no number 555.0142.77")


def test_a_value_of_everybodys_words_is_nobodys() -> None:
    crowd = [
        Dialogue(f"d{i}", (Turn("i do not mind", frozenset({SlotValue("hotel", "area", "do not")})),))
        for i in range(30)
    ]
    rare = Dialogue("x", (Turn("for blue smithers", frozenset({SlotValue("hotel", "guest", "blue smithers")})),))
    veil = Veil([*crowd, rare])
    assert veil.mask("samples do not show one") == "samples do not show one"
    assert "smithers" not in veil.mask("no room for blue smithers")
    assert veil.mask("samples do not show one") != Veil(crowd[:5]).mask("samples do not show one")
