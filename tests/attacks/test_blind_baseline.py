from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hushbot.attacks.blind_baseline import BlindBaseline, BlindText, blind_baseline, related
from hushbot.errors import AuditError
from hushbot.intervals import Bootstrap
from hushbot.types import AuditSplit, Dialogue, SlotValue, Turn

QUICK = Bootstrap(n_draws=100)
FOODS = ("thai", "greek", "french", "korean", "turkish", "welsh", "danish", "cuban")


def text_of(rng: random.Random) -> str:
    return f"a {rng.choice(FOODS)} place for {rng.randint(1, 8)} at {rng.randint(10, 23)}:{rng.randint(10, 59)}"


def texts(n: int, seed: int, mark: Callable[[str, bool], str] = lambda text, _: text) -> list[BlindText]:
    """Make n members and n others from one population; `mark` may make them differ."""
    rng = random.Random(seed)
    return [BlindText(mark(text_of(rng), i < n), i < n, f"c{rng.random()}") for i in range(2 * n)]


def measure(given: list[BlindText], seed: int = 0, n: int = 99) -> BlindBaseline:
    return blind_baseline(given, bootstrap=replace(QUICK, seed=seed), n_permutations=n)


def test_sides_from_one_population_are_called_confounded_no_more_often_than_said() -> None:
    found = [measure(texts(60, seed), seed) for seed in range(40)]
    assert sum(bool(one.confounds) for one in found) <= 5  # 2 expected; more than 5 would occur in 1.4% of all cases
    assert np.mean([one.auc.value for one in found]) == pytest.approx(0.5, abs=0.03)
    p = np.array([one.permutation_p for one in found])
    assert np.mean(p <= 0.1) <= 0.25
    assert all(0.01 <= value <= 1 for value in p)


def test_texts_of_which_nothing_is_known_are_ties_whatever_their_dialogues_are_called() -> None:
    # Each holds a word that no other text holds. Scores that differ in their last bits alone, which go with the place
    # in a matrix, must not tell names that begin with `m` from names that begin with `n`.
    found = []
    for seed in range(20):
        words = iter(random.Random(seed).sample(range(1000, 10_000), 240))
        given = [BlindText(f"the house {next(words)}", kind == "m", f"{kind}{i}") for kind in "mn" for i in range(120)]
        found.append(measure(given, seed))
    assert sum(bool(one.confounds) for one in found) <= 1
    assert min(one.permutation_p or 0 for one in found) > 0.01


@pytest.mark.parametrize(
    "mark",
    [
        lambda text, is_member: text + (" please" if is_member else " thanks"),
        lambda text, is_member: text.replace("a ", "the ") if is_member and "t" in text[2] else text,
        lambda text, is_member: text + (" and" * 5 if is_member else ""),
        lambda text, is_member: " ".join(reversed(text.split())) if is_member else text,
    ],
    ids=["another word", "a word in some", "longer", "another order"],
)
def test_whatever_makes_the_sides_differ_is_found(mark: Callable[[str, bool], str]) -> None:
    found = measure(texts(150, 1, mark), n=199)
    assert found.confounds
    assert all(line.startswith("confounded: blind ") for line in found.confounds)
    assert found.auc.low is not None
    assert found.auc.low > 0.5
    assert found.permutation_p == pytest.approx(1 / 200)


def test_domains_alone_can_give_the_sides_away() -> None:
    given = [text._replace(domains=("bank" if text.is_member else "bus",)) for text in texts(60, 2)]
    assert measure(given).auc.value == 1.0
    assert measure([text._replace(domains=("bank",)) for text in given]).auc.value != 1.0


def test_a_split_that_was_balanced_is_not_called_confounded() -> None:
    # Each food is on both sides equally often: what the other folds have learnt of it is always the opposite.
    found = []
    for seed in range(15):
        names = random.Random(seed).sample(range(100), 48)
        sides = [BlindText(food, i % 2 == 0, f"c{names.pop()}") for food in FOODS for i in range(6)]
        found.append(measure(sides, seed))
    assert sum(bool(one.confounds) for one in found) <= 1
    assert np.mean([one.auc.value for one in found]) > 0.4  # without a choice of saying nothing: below 0.2


def test_neither_order_nor_swapped_sides_change_what_is_found() -> None:
    given = texts(60, 3, lambda text, is_member: text + (" please" if is_member and "1" in text else ""))
    plain, turned = measure(given), measure(given[::-1])
    assert plain.shown() == turned.shown()
    assert plain.scores.tolist() == turned.scores[::-1].tolist()
    assert plain.strongest.tolist() == turned.strongest[::-1].tolist()
    swapped = measure([text._replace(is_member=not text.is_member) for text in given])
    assert swapped.auc.value == pytest.approx(plain.auc.value)
    assert swapped.permutation_p == plain.permutation_p
    assert swapped.length_auc.value == pytest.approx(1 - (plain.length_auc.value or 0))


def test_the_strongest_feature_is_turned_its_better_way() -> None:
    short = measure(texts(60, 4, lambda text, is_member: text[: 12 if is_member else None]))
    assert short.length_auc.value == 0.0
    assert short.strongest[:60].min() > short.strongest[60:].max()
    few = measure(texts(10, 4, lambda text, is_member: text[: 12 if is_member else None]))
    assert few.strongest_name == "length_auc"
    assert few.strongest[:10].min() > few.strongest[10:].max()


def test_too_few_dialogues_train_no_classifier_and_the_lengths_still_count() -> None:
    found = measure([text._replace(cluster=f"{text.is_member}{i % 19}") for i, text in enumerate(texts(100, 5))])
    assert (found.auc.value, found.auc.low, found.permutation_p) == (None, None, None)
    assert "19 dialogues on a side, 20 needed" in found.auc.method
    assert found.length_auc.value is not None
    assert len(found.scores) == 0


def test_an_empty_side_measures_nothing() -> None:
    found = measure([text for text in texts(30, 6) if text.is_member])
    assert {estimate.value for estimate in found.estimates.values()} == {None}
    assert (found.confounds, found.strongest_name) == ([], "")


def test_a_cluster_on_both_sides_is_an_error() -> None:
    given = [text._replace(cluster="one") for text in texts(30, 7)]
    with pytest.raises(AuditError, match="1 of 1 clusters have texts on both sides"):
        measure(given)


def test_texts_of_one_dialogue_do_not_vouch_for_each_other() -> None:
    # Twenty dialogues a side with a word of their own in each of their texts: out of its fold, none says anything.
    given = [BlindText(f"word{i % 40} {i}", i % 2 == 0, f"c{i % 40}") for i in range(400)]
    found = measure(given)
    assert found.confounds == []
    assert found.auc.value == pytest.approx(0.5, abs=0.2)


def test_the_level_is_corrected_for_the_three_aucs() -> None:
    found = measure(texts(30, 8))
    assert [estimate.level for estimate in found.estimates.values()] == pytest.approx([1 - 0.05 / 3] * 3)


def test_many_texts_take_seconds_not_minutes() -> None:
    started = time.process_time()
    blind_baseline(texts(1500, 9), bootstrap=QUICK)
    assert time.process_time() - started < 20


def test_related_dialogues_of_a_side_are_one_cluster() -> None:
    def dialogue(name: str, value: str) -> Dialogue:
        return Dialogue(name, (Turn("hi", frozenset({SlotValue("bus", "to", value)})),))

    split = AuditSplit((dialogue("a", "ely"), dialogue("b", "ely"), dialogue("c", "york")), (dialogue("d", "ely"),))
    assert related(split) == {"a": "a", "b": "a", "c": "c", "d": "d"}
