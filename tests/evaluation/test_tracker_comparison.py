"""A comparison on a dashboard: its tables and points, nothing unmeasured as zero, and nothing logged twice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hushbot.evaluation.csv_tracker import CsvTracker
from hushbot.evaluation.tensorboard_tracker import TensorboardTracker
from hushbot.evaluation.tracker_comparison import Board, log_comparison, make_board
from hushbot.types import AuditReport, Units


def test_tables_hold_estimates_as_cells_and_lists_as_text(board: Board) -> None:
    (difference,) = board.tables["differences"]
    assert (difference["value"], difference["low"], difference["high"], difference["n"]) == (0.25, 0.125, 0.375, 9)
    assert (difference["arm"], difference["p_holm"], difference["conclusion"]) == ("turn_level", None, "higher")
    (standing,) = board.tables["standings"]
    assert (standing["dominated_by"], standing["flags"], standing["tokens"]) == ("base; dp_sgd", "", None)
    assert board.tables["notes"] == [{"note": "two seeds"}]


def test_a_chart_has_a_point_per_run_and_none_where_either_was_not_measured(board: Board) -> None:
    (points,) = board.charts.values()
    assert list(board.charts) == ["membership/auc"]
    found = [(p["arm"], p["seed"], p["utility"], p["leakage"]) for p in points]
    assert found == [("turn_level", "0", 0.5, 0.75), ("turn_level", "1", 0.25, 0.875)]
    assert (points[0]["leakage_low"], points[0]["leakage_high"]) == (0.625, 0.875)
    unmeasured = [r for r in board.tables["arms"] if r["arm"] == "base" and r["metric"] == "joint_goal_accuracy"]
    assert {row["value"] for row in unmeasured} == {None}, "in the table it stands, empty"


def test_what_documents_add_changes_nothing(board: Board, reports: list[AuditReport], compared: Any) -> None:
    units = Units(rule="ratio", documents=["d1"], values=[1.0], weights=[1.0])
    more = [report.model_copy(update={"utility_units": {"joint_goal_accuracy": units}}) for report in reports]
    assert make_board(more, compared, folder=board.folder, runs_dir=board.runs_dir) == board


def test_only_trackers_that_show_comparisons_are_told(board: Board, reports: list[AuditReport], compared: Any) -> None:
    class Told:
        boards: list[Board] = []  # noqa: RUF012

        def log(self, report: AuditReport) -> None: ...

        def log_comparison(self, board: Board, config: Any, say: Any) -> None:
            self.boards.append(board)

    told = Told()
    config = {"comparison": str(board.folder), "runs_dir": str(board.runs_dir)}
    log_comparison([CsvTracker(), told], reports, compared, config, print)
    assert told.boards == [board]


def test_the_same_comparison_has_the_same_hash(board: Board) -> None:
    other = dataclasses.replace(board, tables={**board.tables, "notes": []})
    assert len({board.sha256, dataclasses.replace(board).sha256, other.sha256}) == 2


@pytest.mark.integration
def test_tensorboard_shows_tables_and_the_picture_once(board: Board) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'hushbot[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):
        TensorboardTracker().log_comparison(board, {}, print)
    events = EventAccumulator(str(board.folder / "tensorboard")).Reload()
    (picture,) = events.Images("tradeoff/all")
    assert (picture.width, picture.height) == (2, 1)
    (standings,) = events.Tensors("comparison/standings/text_summary")
    assert b"costs a little, buys nothing" in standings.tensor_proto.string_val[0]
    assert len(list((board.folder / "tensorboard").iterdir())) == 1, "what has not changed opens no file"
