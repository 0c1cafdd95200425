"""The Pop-Quiz paper's numbers agree with each other where the paper prints them twice."""

from __future__ import annotations

import pytest

from hushbot.evaluation import paper_popquiz as paper


@pytest.mark.parametrize("model", sorted(paper.MEAN_AUC))
def test_rows_of_table_1_average_to_figure_4(model: str) -> None:
    row = [value for (name, _), value in paper.AUC.items() if name == model]
    assert sum(row) / len(row) == pytest.approx(paper.MEAN_AUC[model], abs=0.0011)


def test_numbers_that_stand_in_two_tables_agree() -> None:
    assert paper.AUC["llama2-7b", "fiction"] == paper.LEARNING_RATE[3e-4]
    assert paper.AUC["llama2-7b", "imdb"] == paper.BREAKDOWN["complexity=simple"]
    assert sum(paper.MEAN_AUC.values()) / 6 == pytest.approx(paper.DEFENCES["none"], abs=0.001)


def test_what_was_not_measured_is_absent() -> None:
    assert ("gpt-4o", "medical") not in paper.AUC
    assert len(paper.AUC) == 23
