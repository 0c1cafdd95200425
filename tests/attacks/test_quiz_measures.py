"""What answers tell, by hand: confidences, ties, the guesser, the verdict's rules."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from hushbot.attacks.quiz_measures import (
    Confidences,
    Evidence,
    breakdown,
    confidences,
    credits_of,
    doubt_of,
    guess,
    judge,
    over,
    rates,
    read_blind,
    rows_of,
    unparsable,
)
from hushbot.attacks.quiz_questions import Pool, Question
from hushbot.attacks.quiz_records import Fact, Record
from hushbot.masking import mask_row
from hushbot.schema import Schema
from hushbot.stats import Bootstrap, as_estimate, auc
from hushbot.types import Estimate

QUICK = Bootstrap(n_draws=100)


def question(number: int, *, is_member: bool, value: str = "north", place: int = 0, domain: str = "hotel") -> Question:
    facts = (Fact(domain, "area", value), Fact(domain, "name", f"inn {number}"))
    return Question(Record(f"r{number}", is_member, facts), facts[0], ("x", "y", "z"), place)


def asked(members: Sequence[Sequence[int]], nonmembers: Sequence[Sequence[int]]) -> tuple[list[Question], list[float]]:
    """Return questions and credits: one inner list per record, 1 for right."""
    questions, credits = [], []
    for number, (is_member, right) in enumerate([*((True, r) for r in members), *((False, r) for r in nonmembers)]):
        for credit in right:
            questions.append(question(number, is_member=is_member))
            credits.append(float(credit))
    return questions, credits


def test_a_confidence_is_the_share_of_right_answers() -> None:
    found = confidences(*asked([[1, 1, 1, 0]], [[1, 0, 0, 0], [0, 0, 0, 0]]))
    assert found.members.tolist() == [0.75]
    assert sorted(found.nonmembers.tolist()) == [0.0, 0.25]


def test_an_unparsable_answer_is_not_right() -> None:
    questions = [question(0, is_member=True, place=0), question(1, is_member=False, place=2)]
    assert credits_of(questions, [None, 2]) == [0.0, 1.0]


def test_auc_with_ties_by_hand() -> None:
    """Members 1, 1/2; others 1/2, 0: pairs won 1 + 1 + 1/2 + 1 of 4."""
    found = confidences(*asked([[1, 1], [1, 0]], [[1, 0], [0, 0]]))
    measured = rates(found, QUICK)
    assert as_estimate(measured["auc"]).value == pytest.approx(3.5 / 4)
    assert as_estimate(measured["accuracy_members"]).value == pytest.approx(0.75)
    assert as_estimate(measured["accuracy_nonmembers"]).value == pytest.approx(0.25)
    assert as_estimate(measured["called_members"]).value == 1.0
    assert as_estimate(measured["called_nonmembers"]).value == 0.5
    assert as_estimate(measured["tpr_at_1pct_fpr"]).value is None, "two non-members allow no 1%"


def test_a_threshold_never_splits_a_tie() -> None:
    """2 of 100 non-members are at 1: at most one may pass, so none can, and no member at 1 is caught."""
    found = confidences(*asked([[1, 1]] * 50, [[1, 1]] * 2 + [[0, 1]] * 98))
    measured = rates(found, QUICK)
    assert (measured["threshold"], as_estimate(measured["tpr_at_1pct_fpr"]).value) == (1.0, 0.0)
    found = confidences(*asked([[1, 1]] * 50, [[1, 1]] + [[0, 1]] * 99))
    measured = rates(found, QUICK)
    assert (measured["threshold"], as_estimate(measured["tpr_at_1pct_fpr"]).value) == (0.5, 1.0)
    assert as_estimate(measured["realised_fpr"]).value == pytest.approx(0.01)


def test_auc_is_mann_whitneys() -> None:
    rng = np.random.default_rng(0)
    members, others = (rng.integers(0, 2, size=(n, 4)).tolist() for n in (13, 17))
    found = confidences(*asked(members, others))
    naive = np.mean([(sum(m) > sum(o)) + (sum(m) == sum(o)) / 2 for m in members for o in others])
    assert as_estimate(rates(found, QUICK)["auc"]).value == pytest.approx(float(naive))


def test_swapping_sides_mirrors_the_auc() -> None:
    first = confidences(*asked([[1, 1], [1, 0], [0, 0]], [[1, 0], [0, 0]]))
    second = confidences(*asked([[1, 0], [0, 0]], [[1, 1], [1, 0], [0, 0]]))
    one, other = (as_estimate(rates(found, QUICK)["auc"]).value for found in (first, second))
    assert one is not None
    assert other == pytest.approx(1 - one)


def test_the_order_of_questions_changes_nothing() -> None:
    questions, credits = asked([[1, 1], [1, 0]], [[1, 0], [0, 0], [1, 1]])
    back = rates(confidences(questions[::-1], credits[::-1]), QUICK)
    assert back == rates(confidences(questions, credits), QUICK)
    assert breakdown(questions[::-1], credits[::-1], QUICK) == breakdown(questions, credits, QUICK)


def test_breakdowns_count_the_records_that_were_asked() -> None:
    questions = [
        question(0, is_member=True, value="north"),
        question(0, is_member=True, value="17:15"),
        question(1, is_member=False, value="149.1175"),
        question(2, is_member=False, value="b12", domain="taxi"),
        question(3, is_member=False, value="west"),
    ]
    found = breakdown(questions, [1.0, 0.0, 1.0, 0.0, 0.0], QUICK)
    assert as_estimate(found["type=text/auc"]).value == 1.0
    assert as_estimate(found["type=number/auc"]).value == 0.0
    assert as_estimate(found["type=mixed/auc"]).value is None, "no member was asked such a question"
    assert as_estimate(found["digits=1-4/accuracy_members"]).value == 0.0
    assert as_estimate(found["digits=5+/accuracy_nonmembers"]).value == 1.0
    assert as_estimate(found["digits=5+/accuracy_members"]).value is None
    assert (found["category=hotel/questions"], found["category=taxi/questions"]) == (4, 1)
    assert {"complexity=simple/auc", "granularity=structured/auc"} <= found.keys()


def test_the_guesser_takes_the_commonest_option_and_shares_ties() -> None:
    records = [Record(f"r{i}", True, (Fact("h", "a", v), Fact("h", "b", f"n{i}"))) for i, v in enumerate("nnnnsseew")]
    pool = Pool(records, Schema(()))

    def credit(value: str, *wrong: str) -> float:
        fact = Fact("h", "a", value)
        return guess([Question(Record("q", True, (fact,)), fact, wrong, 1)], pool)[0]

    assert credit("n", "s", "e", "w") == 1.0
    assert credit("s", "n", "e", "w") == 0.0
    assert credit("s", "e", "w", "x") == 0.5


def test_a_guesser_is_at_chance_where_all_values_are_unique() -> None:
    records = [Record(f"r{i}", True, (Fact("h", "a", f"v{i}"), Fact("h", "b", "x"))) for i in range(9)]
    fact = records[0].facts[0]
    asked_ = Question(records[0], fact, ("v1", "v2", "v3"), 2)
    assert guess([asked_], Pool(records, Schema(()))) == [0.25]


def test_records_words_that_tell_the_sides_apart_confound() -> None:
    def found(word: str) -> list[str]:
        records = [
            Record(f"r{i}", i % 2 == 0, (Fact("h", "a", word if i % 2 else "north"), Fact("h", "b", f"n{i}")))
            for i in range(120)
        ]
        questions = [Question(r, r.facts[0], ("x", "y", "z"), 0) for r in records]
        return read_blind(confidences(questions, [1.0] * 120), QUICK, 99).confounds

    assert found("north") == []
    assert found("southwest")


def test_unparsable_answers_are_counted_apart() -> None:
    questions, _ = asked([[0, 0]], [[0, 0]])
    found = unparsable(questions, [None, 1, 1, 1], QUICK)
    assert as_estimate(found["unparsable_members"]).value == 0.5
    assert as_estimate(found["unparsable_nonmembers"]).value == 0.0


def test_a_bot_that_does_not_take_part_is_told() -> None:
    assert "6 of 10 answers name no single option" in doubt_of([None] * 6 + [0, 1, 2, 3])
    assert "9 of 10 answers are B" in doubt_of([1] * 9 + [2])
    assert doubt_of([None] * 10)
    assert doubt_of([0, 1, 2, 3, None]) == ""


AREA = Estimate(value=0.9, low=0.8, high=0.95)
FLAT = Estimate(value=0.5, low=0.4, high=0.6)
DELTA, NO_DELTA = Estimate(value=0.3, low=0.1, high=0.5), Estimate(value=0.1, low=-0.1, high=0.3)
TOLD = Estimate(value=0.7, low=0.6, high=0.8)


def test_verdicts() -> None:
    fine = {"auc": AREA, "delta_auc_over_base": DELTA, "delta_auc_over_guess": DELTA, "delta_auc_over_blind": DELTA}
    verdicts = [
        judge(Evidence(fine, FLAT, [], 100)),
        judge(Evidence({"auc": AREA}, FLAT, [], 100)),
        judge(Evidence(fine, TOLD, ["confounded"], 100)),
        judge(Evidence(fine, FLAT, [], 99)),
        judge(Evidence(fine | {"delta_auc_over_base": NO_DELTA}, FLAT, [], 100)),
        judge(Evidence(fine | {"delta_auc_over_guess": NO_DELTA}, TOLD, [], 100)),
        judge(Evidence(fine | {"delta_auc_over_guess": NO_DELTA}, FLAT, [], 100)),
        judge(Evidence(fine | {"delta_auc_over_blind": NO_DELTA}, FLAT, ["confounded"], 100)),
        judge(Evidence(fine | {"auc": FLAT}, FLAT, [], 100)),
        judge(Evidence(fine | {"auc": FLAT}, FLAT, ["confounded"], 100)),
        judge(Evidence(fine | {"auc": FLAT}, FLAT, [], 100, "the bot does not answer")),
        judge(Evidence(fine | {"auc": Estimate(value=0.2, low=0.1, high=0.3)}, FLAT, [], 100)),
        judge(Evidence(fine | {"auc": Estimate(value=None, method="not measured: x")}, FLAT, [], 100)),
    ]
    assert [verdict for verdict, _ in verdicts] == [
        *("leak", "leak", "leak", "inconclusive", "inconclusive", "inconclusive", "leak", "inconclusive"),
        *("no_leak_detected", "inconclusive", "inconclusive", "inconclusive", "inconclusive"),
    ]
    assert "99 non-members, 100 needed" in verdicts[3][1][0]


def drawn(rates_: tuple[float, float], seed: int) -> Confidences:
    """Return confidences of 110 records a side, each of four questions answered right at its side's rate."""
    rng = np.random.default_rng(seed)
    members, others = (rng.binomial(4, rate, size=110) / 4 for rate in rates_)
    records = [[Record(f"{side}{i}", side == "m", ()) for i in range(110)] for side in "mn"]
    return Confidences(members, others, (records[0], records[1]))


def verdict_of(rates_: tuple[float, float], seed: int) -> str:
    found, base = drawn(rates_, seed), drawn((0.25, 0.25), -seed - 1 + 2**32)
    area = auc(*found.sides, bootstrap=QUICK)
    return judge(Evidence({"auc": area, "delta_auc_over_base": over(found, base.sides, QUICK)}, FLAT, [], 110))[0]


def test_false_alarms_stay_below_their_rate() -> None:
    """The upper tail of a 95% interval: 2.5% of 120 is 3, and the base must be beaten as well; 9 would be 5 sigma."""
    alarms = sum(verdict_of((0.25, 0.25), seed) == "leak" for seed in range(120))
    assert alarms <= 6


def test_power_at_the_papers_effect() -> None:
    """Members answered right at 70%, as in the paper's cases, others at chance: always found."""
    assert all(verdict_of((0.7, 0.25), seed) == "leak" for seed in range(40))


def test_the_difference_to_itself_is_zero() -> None:
    found = confidences(*asked([[1, 1], [1, 0]], [[1, 0], [0, 0]]))
    assert over(found, found.sides, QUICK).value == 0.0


def test_rows_hide_values_once_they_are_masked() -> None:
    questions = [question(0, is_member=True, value="golden wok", place=1), question(1, is_member=False)]
    rows = rows_of(questions, [1, None])
    assert [row["is_right"] for row in rows] == [True, False]
    assert [row["is_parsed"] for row in rows] == [True, False]
    assert [row["confidence"] for row in rows] == [1.0, 0.0]
    masked = mask_row(rows[0])
    assert "golden wok" not in str(masked)
    assert (masked["complexity"], masked["granularity"], masked["data_type"]) == ("simple", "structured", "text")
