"""What is said of a guarantee, and what is said that it is not."""

from __future__ import annotations

import pytest

from hushbot.recipes.dp_sgd import DpSgd
from hushbot.training.guarantee import DOES_NOT_COVER, caveats
from hushbot.training.mechanism import plan_mechanism

GIVEN = DpSgd(target_epsilon=None, noise_multiplier=1.0)


@pytest.mark.parametrize(
    "words",
    [
        ("hyper-parameters",),
        ("other runs on the same members", "add up", "interrupted", "copies of a run directory", "other seeds"),
        ("other runs on the same members", "an arm without a guarantee"),
        ("changing what a dialogue says", "costs more", "1.2 to 1.9 times epsilon", "at most 2 epsilon"),
        ("several dialogues of one person",),
        ("hashes and fingerprints", "report", "checkpoint", "ledger"),
        ("notes", "computed on the members", "error messages", "name member dialogues"),
        ("the split", "de-duplication"),
        ("calibration dialogues",),
        ("floating-point",),
    ],
)
def test_what_is_not_covered_is_named(words: tuple[str, ...]) -> None:
    assert any(all(word in limit for word in words) for limit in DOES_NOT_COVER)


@pytest.mark.parametrize(("n_units", "delta", "is_told"), [(6, None, True), (66, None, False), (66, 0.0101, True)])
def test_a_large_delta_is_worth_a_warning(n_units: int, delta: float | None, is_told: bool) -> None:
    # 6 ** -1.1 = 0.139, 66 ** -1.1 = 0.00997
    settings = DpSgd(target_epsilon=None, noise_multiplier=1.0, delta=delta)
    notes = caveats(plan_mechanism(settings, n_units=n_units, max_epochs=1))
    assert [note.split(" is above")[0][:15] for note in notes] == (["dp_sgd: delta=0"] if is_told else [])


@pytest.mark.parametrize(("n_units", "is_told"), [(99_999, False), (100_000, True), (200_000, True)])
def test_the_usual_delta_is_too_large_for_many_members(n_units: int, is_told: bool) -> None:
    notes = caveats(plan_mechanism(GIVEN, n_units=n_units, max_epochs=1))
    assert [f"not below one over the {n_units} members" in note for note in notes] == ([True] if is_told else [])
