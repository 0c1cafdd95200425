"""Slices by domain, slot and kind: both spellings of the keys, the headline's metric first, nothing unmeasured."""

from __future__ import annotations

from hushbot.evaluation.page_breakdowns import (
    MOST_ROWS,
    Breakdown,
    DotLook,
    Slice,
    arms_breakdown_figure,
    breakdown_figure,
    breakdowns_of,
)
from hushbot.types import AttackResult, Estimate, Headline


def rate(value: float | None) -> Estimate:
    return Estimate(value=value, low=None if value is None else value / 2, high=value, n=9)


def test_slices_are_found_in_either_spelling_with_their_controls() -> None:
    attack = AttackResult(
        verdict="leak",
        headline=Headline(metric="leak_rate", estimate=rate(0.4), key="leak_rate"),
        metrics={
            "leak_rate/domain=hotel": rate(0.2),
            "leak_rate/domain=train": rate(0.6),
            "leak_rate/domain=taxi": rate(None),
            "domain=hotel/own_rate": rate(0.9),
            "slot=hotel-book time/leak_rate": rate(0.1),
            "leak_rate/line=actions": rate(0.5),
            "documents": 17,
        },
        control={"nonmembers": {"leak_rate/domain=hotel": rate(0.1), "leak_rate/domain=bus": rate(0.1)}, "base": None},
    )
    domain, slot = breakdowns_of(attack)
    assert (domain.dimension, domain.metric) == ("domain", "leak_rate")
    assert [slice_.name for slice_ in domain.slices] == ["train", "hotel"]  # the largest first, the gap left out
    assert list(domain.slices[1].sides) == ["members", "nonmembers"]
    assert [slice_.name for slice_ in slot.slices] == ["hotel-book time"]


def test_another_rate_is_shown_where_the_headline_has_no_slices() -> None:
    attack = AttackResult(
        verdict="leak",
        headline=Headline(metric="tpr_at_1pct_fpr", estimate=rate(0.4), key="dc_ppl/tpr_at_1pct_fpr"),
        metrics={"type=text/accuracy_members": rate(0.9), "type=text/auc": rate(0.6), "type=text/questions": 4},
    )
    (kind,) = breakdowns_of(attack)
    assert (kind.dimension, kind.metric) == ("type", "auc")


def test_a_chart_has_a_row_per_slice_and_counts_what_it_leaves_out() -> None:
    slices = [Slice(f"<i>{i}", {"members": rate(0.5), "base": rate(0.1)}) for i in range(MOST_ROWS + 3)]
    text = str(breakdown_figure(Breakdown("slot", "auc", slices)))
    assert text.count('class="bar"') == 2 * MOST_ROWS
    assert "auc by slot (the 40 largest; 3 more in the table)" in text
    assert "<i>" not in text


def test_runs_beside_each_other_have_a_row_per_domain_and_one_legend_entry_per_arm() -> None:
    def of(*names: str) -> Breakdown:
        return Breakdown("domain", "auc", [Slice(name, {"members": rate(0.5)}) for name in names])

    looks = [DotLook("a", "arm0", "circle", "a, seed 0"), DotLook("a", "arm0", "circle", "a, seed 1")]
    text = str(arms_breakdown_figure("t", [(looks[0], of("hotel", "taxi")), (looks[1], of("taxi"))]))
    assert text.count("<li") == 1
    assert 'data-tip="taxi, a, seed 1: 0.500 [0.250, 0.500] (n=9)"' in text
    assert text.count('class="bar"') == 3
