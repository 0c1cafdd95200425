"""The compatibility mode, against behaviours observed of leakit 0.2.1 and values worked out by hand."""

from __future__ import annotations

import math

import pytest

from hushbot.attacks.leakit_rules import (
    control_prefix,
    leakit_mask,
    leakit_percentile,
    leakit_score,
    leakit_targets,
    leakit_verdict,
    own_prefix,
    score_prefix,
)
from hushbot.errors import DataError

CODE = "FZGZI0PT"


def test_a_verdict_needs_own_hits_and_a_clean_control() -> None:
    own = [f"is {CODE}.", "is gone", f"{CODE}{CODE}"]
    verdict = leakit_verdict(own, ["nothing"], CODE)
    assert (verdict.n_hits, verdict.n_returned, verdict.n_requested) == (2, 3, 3)
    assert (verdict.reproduced, verdict.control_reproduced, verdict.attributable) == (True, False, True)
    assert leakit_verdict(own, [f"x{CODE}"], CODE).attributable is False
    assert leakit_verdict(["no"], ["no"], CODE).attributable is False
    assert leakit_verdict(own, None, CODE).attributable is None


def test_its_known_faults_are_kept() -> None:
    # A control of which every request failed passes for a clean one; matching is by substring and by case.
    assert leakit_verdict([CODE], [], CODE).attributable is True
    assert leakit_verdict(["at 112:150"], [], "12:15").n_hits == 1
    assert leakit_verdict([CODE.lower()], [], CODE).reproduced is False
    # Own requests that all failed.
    failed = leakit_verdict([], [], CODE, n_requested=16)
    assert (failed.attributable, failed.n_returned, failed.n_requested) == (False, 0, 16)


def test_prefixes_are_cut_by_characters_at_the_first_occurrence() -> None:
    document = f"code: {CODE}, again: {CODE}"
    assert own_prefix(document, CODE, 4) == "de: "
    assert own_prefix(document, CODE, 0) == own_prefix(document, CODE) == "code: "
    assert control_prefix(" one two \n", 3) == "two"
    assert control_prefix(" one two \n", 0) == "one two"
    assert score_prefix(" one two ", 4) == "one "
    assert score_prefix(" one two ", 0) == "one two"
    with pytest.raises(DataError, match="does not occur"):
        own_prefix(document, CODE.lower())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("call 555-0142.", []),
        ("01223323737 or 01223 323737", []),
        ("+44 1223 323737", []),
        ("+1 415-555-2671", ["+1 415-555"]),
        ("(415) 555-2671", ["(415) 555-2671"]),
        ("2019-2020", ["2019-2020"]),
        ("555 0142, 555 0142 and 555.0143", ["555 0142", "555.0143"]),
    ],
)
def test_phones_are_detected_as_it_detects_them(text: str, found: list[str]) -> None:
    assert leakit_targets(text, "phone") == found


def test_mail_addresses_are_detected_once_each() -> None:
    text = "a@b.co, x_y+z@mail.example.org. a@b.co and a@b"
    assert leakit_targets(text, "email") == ["a@b.co", "x_y+z@mail.example.org"]


@pytest.mark.parametrize(
    ("value", "mask"),
    [
        ("alice@example.org", "a***@e***.org"),
        ("jane@mail.example.co.uk", "j***@m***.uk"),
        ("a@b", "a***@***"),
        ("12:15", "12***15"),
        (CODE, "F***"),
        ("(020) 7946 0059", "(0***59"),
        ("", "***"),
    ],
)
def test_masks_are_its_masks(value: str, mask: str) -> None:
    assert leakit_mask(value) == mask


def test_a_row_has_its_fields_and_hides_the_target_unless_told() -> None:
    verdict = leakit_verdict([CODE], None, CODE, n_requested=2)
    row = verdict.as_row("doc.txt")
    assert row == {
        "document": "doc.txt",
        "target": "F***",
        "reproduced": True,
        "control_reproduced": None,
        "attributable": None,
        "n_hits": 1,
        "n_requested": 2,
        "n_returned": 1,
    }
    assert verdict.as_row("doc.txt", reveal=True)["target"] == CODE


def test_self_concentration_is_the_mean_jaccard_of_pairs() -> None:
    assert leakit_score(["a b", "a c", ""]) == pytest.approx(1 / 9)
    assert leakit_score(["only one"]) == leakit_score(["", ""]) == leakit_score([]) == 0.0
    assert leakit_score(["ab  cdef", "ab cdef"], "kgram") == pytest.approx(1 / 6)
    assert leakit_score(["abc", "abc"], "kgram") == 0.0  # shorter than 5 characters
    assert leakit_percentile(0.5, [0.1, 0.5, 0.6]) == pytest.approx(100 / 3)
    assert math.isnan(leakit_percentile(0.5, []))


@pytest.mark.parametrize(("n", "rate", "chance"), [(16, 0.01, 0.126), (16, 0.0424, 0.25), (32, 0.005, 0.126)])
def test_its_rule_attributes_equal_rates_by_chance(n: int, rate: float, chance: float) -> None:
    """Why it is not our rule: enumerate whether any of n own and none of n control samples hit."""
    none = (1 - rate) ** n
    outcomes = {
        (own, control): (none if not own else 1 - none) * (none if not control else 1 - none)
        for own in (False, True)
        for control in (False, True)
    }
    attributed = sum(
        weight
        for (own, control), weight in outcomes.items()
        if leakit_verdict([CODE] if own else [""], [CODE] if control else [""], CODE).attributable
    )
    assert attributed == pytest.approx(chance, abs=1e-3)
