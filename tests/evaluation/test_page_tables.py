"""Tables of numbers: controls in the row of what they control, gaps named, cuts counted."""

from __future__ import annotations

from hushbot.evaluation.page_tables import MOST_NUMBERS, blind_numbers, number_table, text_of
from hushbot.types import AttackResult, Estimate, Headline


def rate(value: float | None) -> Estimate:
    return Estimate(value=value, method="by hand", n=9)


ATTACK = AttackResult(
    verdict="leak",
    headline=Headline(metric="auc", estimate=rate(0.7), key="dc_ppl/auc"),
    metrics={"dc_ppl/auc": rate(0.7), "ppl/auc": rate(None), "members": 150, "threshold": None},
    control={
        "base": {"dc_ppl/auc": rate(0.5).model_dump()},
        "nonmembers": None,
        "p": 0.25,
        "judged": {"vanilla": {"verdict": "leak"}},
    },
    blind={"auc": rate(0.4).model_dump(), "permutation_p": 0.5},
)


def test_a_row_holds_a_metric_its_controls_and_its_blind_baseline() -> None:
    table = number_table(ATTACK, is_whole=True)
    assert table.columns == ["bot", "base", "blind"]
    assert table.rows == [
        ("dc_ppl/auc", ["0.700 (n=9)", "0.500 (n=9)", "0.400 (n=9)"]),
        ("ppl/auc", ["not measured", "", "0.400 (n=9)"]),
        ("members", ["150", "", ""]),
        ("threshold", ["not measured", "", ""]),
        ("blind: permutation_p", ["", "", "0.5"]),
        ("control: nonmembers", ["not measured", "", ""]),
        ("control: p", ["0.25", "", ""]),
        ("control: judged/vanilla/verdict", ["leak", "", ""]),
    ]


def test_a_short_table_keeps_the_headlines_own_numbers_and_counts_the_others() -> None:
    many = {f"vanilla/ppl/state_precision@{k}": rate(0.1) for k in range(MOST_NUMBERS)}
    attack = ATTACK.model_copy(update={"metrics": {**many, **ATTACK.metrics}})
    table = number_table(attack, is_whole=False)
    assert "dc_ppl/auc" in [key for key, _ in table.rows]
    assert not any(key.startswith("vanilla") for key, _ in table.rows)
    assert len(table.rows) + table.n_left_out == len(number_table(attack, is_whole=True).rows)


def test_the_blind_number_beside_a_headline_is_its_own_metric_or_the_auc() -> None:
    assert blind_numbers(ATTACK) == [("auc", "0.400 (n=9)")]
    other = ATTACK.model_copy(update={"headline": Headline(metric="tpr_at_1pct_fpr", estimate=rate(0.1))})
    assert blind_numbers(other) == [("auc", "0.400 (n=9)")]
    assert blind_numbers(other.model_copy(update={"blind": None})) == []


def test_texts_of_whatever_a_report_holds() -> None:
    assert text_of([]) == "none"
    assert text_of(["a", None, 0.123456]) == "a, not measured, 0.1235"
    assert text_of({"a": {"b": True}}) == "a/b True"
