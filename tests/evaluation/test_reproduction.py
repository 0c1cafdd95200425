"""The paper's tables from a report: numbers that can be followed by hand, and nothing where none was measured."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hushbot.errors import DataError
from hushbot.evaluation import paper_tods, reproduction
from hushbot.evaluation.reproduction import (
    Number,
    csv_of,
    differences,
    fig6,
    fig7,
    fig11,
    fig12,
    table2,
    table3,
    table4,
)
from hushbot.evaluation.reproduction_comparisons import difference_of, fall_of, paired_precision, two_lists
from hushbot.evaluation.reproduction_files import read_records, write_reproduction
from hushbot.evaluation.reproduction_orderings import Ordering, orderings
from hushbot.evaluation.reproduction_plots import draw
from hushbot.intervals import Bootstrap
from hushbot.run import RunDirectory
from hushbot.types import AttackResult, AuditReport, DataInfo, Estimate, Headline, Metric, RecipeInfo, RunInfo

SETTINGS = Bootstrap(n_draws=200)
UNTARGETED_KEY = "vanilla/dc_ppl/state_precision@2"


def near(value: float | None, n: int = 50) -> Estimate:
    """Return an estimate with an interval of plus or minus 0.1; None is not measured."""
    if value is None:
        return Estimate(value=None, method="not measured: no candidates")
    return Estimate(value=value, low=value - 0.1, high=value + 0.1, n=n, method="test")


def attack(headline: str, metrics: Mapping[str, Metric], chance: Mapping[str, Metric] | None = None) -> AttackResult:
    return AttackResult(
        verdict="inconclusive",
        headline=Headline(metric=headline.rpartition("/")[2], estimate=near(0.5), key=headline),
        metrics=dict(metrics),
        control={"nonmembers": None if chance is None else {k: dump(v) for k, v in chance.items()}},
    )


def dump(metric: Metric) -> Any:
    """Return a number as report.json holds it in a control."""
    return metric.model_dump() if isinstance(metric, Estimate) else metric


def report_of(status: str = "complete", **attacks: AttackResult) -> AuditReport:
    return AuditReport(
        status=status,  # type: ignore[arg-type]
        run=RunInfo(id="x", created="now", seed=0, config_sha256="c", data_sha256="d"),
        recipe=RecipeInfo(stack=["turn_level"]),
        data=DataInfo(
            name="toy", members=6, nonmembers=6, calibration=0, controls=0, domains=1, slots=1, turns=2,
            supervised_tokens=3,
        ),
        attacks=attacks,
    )  # fmt: skip


@pytest.fixture
def untargeted() -> AttackResult:
    metrics: dict[str, Metric] = {
        "vanilla/none/state_precision": near(0.2),
        "vanilla/none/states": 30,
        "vanilla/none/triplets": near(1.5),
        "vanilla/none/value_precision": near(None),
        "vanilla/ppl/state_precision@2": near(0.4),
        "vanilla/dc_ppl/state_precision@2": near(0.6),
        "schema_guided/none/state_precision": near(0.3),
        "schema_guided/none/states": 90,
        "members_all/vanilla/none/state_precision": near(0.9),
    }
    return attack(UNTARGETED_KEY, metrics, {"vanilla/none/state_precision": near(0.1), "vanilla/none/states": 15})


def by_name(numbers: Sequence[Number]) -> dict[tuple[str, str, str], Number]:
    found = {(each.row, each.column, each.metric): each for each in numbers}
    assert len(found) == len(numbers), "a number stands twice"
    return found


# what the paper prints


def test_the_papers_tables_agree_with_each_other() -> None:
    for (decoder, ranking, name), value in paper_tods.RANKED.items():
        if ranking == "none":
            assert paper_tods.UNRANKED[decoder, name] == value
    assert paper_tods.RANKED["beam_sampling", "dc_ppl", "value_precision"] == 76.34
    assert ("vanilla", "c_ppl", "triplets") not in paper_tods.RANKED, "Table IV prints no triplets"
    assert len(paper_tods.UNRANKED) == 6 * 5
    assert len(paper_tods.RANKED) == 3 * (5 + 3 + 5)


# tables


def test_table3_sets_ours_and_chance_beside_the_papers_in_our_units(untargeted: AttackResult) -> None:
    found = by_name(table3(report_of(untargeted_extraction=untargeted)))
    precision = found["vanilla", "none", "state_precision"]
    assert precision.ours == near(0.2)
    assert precision.chance == near(0.1)
    assert precision.paper == pytest.approx(0.1437)
    assert found["vanilla", "none", "states"][3:] == (30, 15, 336)
    assert found["schema_guided", "none", "states"].paper is None, "the paper has no such row"
    assert not any(row.startswith("members_all") for row, _, _ in found)


def test_what_was_not_measured_stays_empty(untargeted: AttackResult) -> None:
    found = by_name(table3(report_of(untargeted_extraction=untargeted)))
    assert found["schema_guided", "none", "values"].ours is None
    rows = list(csv.DictReader(io.StringIO(csv_of(found.values()))))
    values = next(r for r in rows if (r["row"], r["metric"]) == ("schema_guided", "values"))
    assert values["value"] == values["chance_value"] == values["paper"] == ""
    vp = next(r for r in rows if (r["row"], r["metric"]) == ("vanilla", "value_precision"))
    assert vp["value"] == ""
    assert vp["why_not_measured"] == "not measured: no candidates"
    states = next(r for r in rows if (r["row"], r["metric"]) == ("vanilla", "states"))
    assert (states["value"], states["chance_value"], states["paper"]) == ("30", "15", "336")


def test_ranked_tables_take_all_states_under_none_and_the_best_under_scores(untargeted: AttackResult) -> None:
    report = report_of(untargeted_extraction=untargeted)
    second, fourth = by_name(table2(report)), by_name(table4(report))
    assert second["vanilla", "none", "state_precision"].ours == near(0.2)
    assert second["vanilla", "ppl", "state_precision"].ours == near(0.4)
    assert second["vanilla", "ppl", "triplets"].paper == 2.27
    assert fourth["vanilla", "dc_ppl", "state_precision"][3:] == (near(0.6), None, pytest.approx(0.42))
    assert ("vanilla", "dc_ppl", "state_precision") not in second
    assert {metric for _, _, metric in fourth} == {"state_precision", "value_precision"}


def test_a_run_without_the_attack_has_empty_tables() -> None:
    for make in reproduction.FIGURES.values():
        assert make(report_of()) == []


# figures


def test_fig6_has_the_true_schema_as_its_upper_bound() -> None:
    metrics: dict[str, Metric] = {"prefixes/l=3": 9}
    for decoder in ("greedy", "schema_guided"):
        metrics |= {f"{decoder}/none/state_precision": near(0.5), f"{decoder}/none/state_precision/l=3": near(0.4)}
    gold = {"schema_guided/none/state_precision": near(0.7), "schema_guided/none/state_precision/l=3": near(0.6)}
    key = "greedy/none/state_precision"
    report = report_of(targeted_extraction=attack(key, metrics, metrics), targeted_gold=attack(key, gold))
    found = by_name(fig6(report))
    assert found["schema_guided", "3", "state_precision"][3:5] == (near(0.4), near(0.4))
    assert found[reproduction.GOLD_NAME, "3", "state_precision"][3:5] == (near(0.6), None)
    assert found["all", "3", "prefixes"].ours == 9


def test_fig7_reads_settings_from_decoders_and_puts_plain_sampling_at_temperature_1() -> None:
    specs = ("vanilla", "vanilla:top_k=40", "vanilla:top_k=5", "vanilla:temperature=0.5")
    metrics: dict[str, Metric] = {}
    for n, spec in enumerate(specs):
        metrics |= {f"{spec}/none/state_precision": near(0.1), f"{spec}/none/states": n}
    numbers = fig7(report_of(targeted_sweep=attack("vanilla/none/state_precision", metrics)))
    assert [(n.row, n.column, n.ours) for n in numbers if n.metric == "states"] == [
        ("temperature", "0.5", 3), ("temperature", "1", 0), ("top_k", "5", 2), ("top_k", "40", 1),
    ]  # fmt: skip


def test_fig11_counts_every_completion_of_the_members_once() -> None:
    scores = [10.0, 100.0, 1000.0, 1e9]
    frame = pd.DataFrame(
        {"role": ["member"] * 4 + ["nonmember"], "is_hit": [True, True, False, False, True]}
        | {name: [*scores, 5.0] for name in ("ppl", "dc_ppl")}
    )
    numbers = fig11(frame)
    for name in ("log10 ppl", "dc_ppl"):
        assert sum(n.ours for n in numbers if n.row == name) == 2  # type: ignore[misc]
        assert sum(n.chance for n in numbers if n.row == name) == 2  # type: ignore[misc]
    first = next(n for n in numbers if n.row == "log10 ppl" and n.ours)
    assert float(first.column) == pytest.approx(1.0, abs=0.3), "log10 of 10"
    assert fig11(None) == []


def test_fig12_finds_what_sensitivity_adds() -> None:
    key = "sensitivity/greedy/dc_ppl/pii_score"
    numbers = fig12(report_of(targeted_extraction=attack("greedy/none/state_precision", {key: near(2.0)})))
    assert numbers == [Number("greedy", "dc_ppl", "pii_score", near(2.0))]


@pytest.mark.parametrize("name", [*reproduction.FIGURES, "fig11"])
def test_nothing_measured_is_a_picture_that_says_so(name: str) -> None:
    figure = draw(name, [Number("a", "1", "m", near(None)), Number("b", "2", "m", None)])
    assert "not measured" in figure.texts[0].get_text()


def test_a_bar_has_its_chance_line_and_the_papers_mark(untargeted: AttackResult) -> None:
    figure = draw("table3", table3(report_of(untargeted_extraction=untargeted)))
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert labels == {"none", "chance line", "the paper"}


# orderings


def test_an_ordering_has_three_outcomes() -> None:
    def outcome(low: float | None, high: float | None, value: float | None = 0.5) -> str:
        return Ordering("claim", "case", Estimate(value=value, low=low, high=high)).outcome

    assert outcome(0.1, 0.9) == "holds"
    assert outcome(-0.9, -0.1) == "does not hold"
    assert outcome(-0.1, 0.9) == outcome(0.0, 0.9) == outcome(-0.9, 0.0) == "cannot tell"
    assert outcome(None, None) == outcome(0.1, 0.9, None) == "cannot tell"


def test_a_difference_of_estimates_moves_with_the_ends_that_move_it() -> None:
    first = Estimate(value=0.6, low=0.3, high=0.7, n=9)
    second = Estimate(value=0.2, low=0.1, high=0.6, n=5)
    found = difference_of(first, second)
    assert found.value == pytest.approx(0.4)
    assert found.low == pytest.approx(0.4 - (0.3**2 + 0.4**2) ** 0.5)
    assert found.high == pytest.approx(0.4 + (0.1**2 + 0.1**2) ** 0.5)
    assert found.n == 5
    assert difference_of(first, near(None)).value is None
    with pytest.raises(ValueError, match="one level"):
        difference_of(first, second.model_copy(update={"level": 0.99}))


def targeted_rows(hits: Mapping[tuple[str, str, int], Sequence[bool]]) -> pd.DataFrame:
    """Return records of (decoder, role, prefix length) -> one hit per dialogue."""
    return pd.DataFrame(
        [
            {
                "decoder": decoder, "role": role, "prefix_length": length, "is_hit": hit,
                "dialogue_id": f"{role}{i}", "ppl": float(i + 1), "dc_ppl": float(-i),
            }
            for (decoder, role, length), row in hits.items()
            for i, hit in enumerate(row)
        ]
    )  # fmt: skip


def test_decoders_are_compared_on_the_same_dialogues_and_chance_is_taken_off() -> None:
    frame = targeted_rows(
        {
            ("a", "member", 1): [True] * 30 + [False] * 10,
            ("b", "member", 1): [True] * 10 + [False] * 30,
            ("a", "nonmember", 1): [True] * 30 + [False] * 10,
            ("b", "nonmember", 1): [True] * 10 + [False] * 30,
        }
    )
    raw = paired_precision(frame, ("a", "b"), False, SETTINGS)
    assert raw.value == pytest.approx(0.5)
    assert Ordering("", "", raw).outcome == "holds"
    beyond = paired_precision(frame, ("a", "b"), True, SETTINGS)
    assert beyond.value == pytest.approx(0.0)
    assert Ordering("", "", beyond).outcome == "cannot tell"
    assert paired_precision(frame, ("a", "absent"), False, SETTINGS).value is None
    assert paired_precision(None, ("a", "b"), False, SETTINGS).value is None


def test_a_fall_is_minus_the_slope_up_to_the_turning_point() -> None:
    rows = {("a", "member", n): [i >= n for i in range(8)] for n in range(1, 5)}  # 7/8, 6/8, 5/8, 4/8
    rows |= {("a", "member", 9): [True] * 8}  # beyond the turning point: not looked at
    rows |= {("a", "nonmember", n): [True, False] * 4 for n in range(1, 5)}
    frame = targeted_rows(rows)
    assert fall_of(frame, "a", False, SETTINGS).value == pytest.approx(1 / 8)
    assert fall_of(frame, "a", True, SETTINGS).value == pytest.approx(1 / 8)
    naive = np.polyfit(
        frame[frame.prefix_length <= 6].query("role == 'member'").prefix_length,
        frame[frame.prefix_length <= 6].query("role == 'member'").is_hit.astype(float),
        1,
    )[0]
    assert fall_of(frame, "a", False, SETTINGS).value == pytest.approx(-naive)
    assert fall_of(frame[frame.prefix_length == 1], "a", False, SETTINGS).value is None


def test_two_rankings_of_the_same_states_are_two_lists() -> None:
    hits = np.array([1, 1, 0, 0, 1, 0] * 10, dtype=float)
    right, wrong = hits, 1 - hits
    assert two_lists(hits, right, wrong, SETTINGS).value == pytest.approx(1.0)
    same = two_lists(hits, right, right, SETTINGS)
    assert same.value is None
    assert "the same" in same.method
    assert two_lists(hits, None, wrong, SETTINGS).value is None


def untargeted_rows(decoder: str, hits: Sequence[bool]) -> pd.DataFrame:
    n = len(hits)
    return pd.DataFrame(
        {
            "decoder": decoder, "is_member_hit": list(hits), "is_nonmember_hit": [False] * n,
            "ppl": np.arange(n, dtype=float), "dc_ppl": -np.arange(n, dtype=float),
        }
    )  # fmt: skip


def test_orderings_of_a_run(untargeted: AttackResult) -> None:
    # The last states are right, so the score that puts them first ranks better than the one that puts them last.
    records = {
        "untargeted_extraction": pd.concat(
            [
                untargeted_rows("vanilla", [False] * 40 + [True] * 10),
                untargeted_rows("schema_guided", [False] * 10 + [True] * 40),
            ]
        ),
    }
    k40 = untargeted.model_copy(update={"headline": Headline(metric="state_precision@10", estimate=near(0.5))})
    found = {each.case: each for each in orderings(report_of(untargeted_extraction=k40), records)}
    precise = found["untargeted: schema_guided against vanilla, precision, members"]
    assert precise.difference.value == pytest.approx(0.6)
    assert precise.outcome == "holds"
    counted = found["untargeted: schema_guided against vanilla, distinct states"]
    assert counted.difference.value == pytest.approx((90 - 30) / 120)
    ranked = found["untargeted: vanilla, best 10 by dc_ppl against ppl, members"]
    assert ranked.difference.value == pytest.approx(1.0)
    assert ranked.outcome == "holds"
    against_none = found["untargeted: vanilla, best 10 by ppl against none, members"]
    assert against_none.difference.value == pytest.approx(-0.2)
    for case, each in found.items():
        if case.startswith(("targeted", "schema")) or "temperature" in case or "beam" in case:
            assert each.outcome == "cannot tell", case
            assert each.difference.value is None, case


def test_levels_are_corrected_for_the_cases_of_a_claim(untargeted: AttackResult) -> None:
    found = orderings(report_of(untargeted_extraction=untargeted), {})
    claims = {each.claim: [e for e in found if e.claim == each.claim] for each in found}
    prefixes = next(cases for claim, cases in claims.items() if "longer prefix" in claim)
    assert len(prefixes) == 6
    assert [each.difference.level for each in prefixes] == pytest.approx([1 - 0.05 / 6] * 6)


# files


def run_with(tmp_path: Path, report: AuditReport, rows: Mapping[str, pd.DataFrame]) -> Path:
    path = tmp_path / "run"
    config = {"backbone": {"_target_": "hushbot.training.backbone.TinyBackbone"}, "attack": {}}
    with RunDirectory(path).create(config, {"data_sha256": "d"}) as directory:
        for name, frame in rows.items():
            directory.write_records(name, frame.to_dict("records"), reveal=False)  # type: ignore[arg-type]
        directory.write_report(report)
    return path


def test_everything_is_written_and_a_partial_run_is_said_to_be_one(
    tmp_path: Path, untargeted: AttackResult, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = untargeted_rows("vanilla", [False] * 40 + [True] * 10)
    run = run_with(tmp_path, report_of("partial", untargeted_extraction=untargeted), {"untargeted_extraction": rows})
    out = tmp_path / "out" / "tods"
    write_reproduction(run, out)
    names = {*reproduction.FIGURES, "fig11"}
    assert {path.name for path in out.iterdir()} == {"summary.md", *(f"{n}.{e}" for n in names for e in ("csv", "png"))}
    text = (out / "summary.md").read_text(encoding="utf-8")
    assert "The run is partial" in text
    assert "`fig9.csv`, `fig9.png`: not measured" in text
    assert "longer prefix lowers precision, up to 6 triplets (Fig. 6): cannot tell in 6 of 6" in text
    assert "TinyBackbone" in text
    printed = capsys.readouterr().out
    for wanted in ("Table II:", "Table III:", "Table IV:", "Llama-2-7B", "paper 14.37", "20 [10, 30]", "chance 10"):
        assert wanted in printed
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    write_reproduction(run, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_run_of_other_attacks_is_refused(tmp_path: Path) -> None:
    run = run_with(tmp_path, report_of(membership=attack("dc_ppl/auc", {})), {})
    with pytest.raises(DataError, match="reproduce tods"):
        write_reproduction(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_broken_records_are_named(tmp_path: Path, untargeted: AttackResult) -> None:
    run = run_with(tmp_path, report_of(untargeted_extraction=untargeted), {})
    (run / "records").mkdir()
    (run / "records" / "untargeted_extraction.parquet").write_text("no parquet", encoding="utf-8")
    with pytest.raises(DataError, match=r"untargeted_extraction\.parquet"):
        read_records(RunDirectory.open(run))


def test_a_continuation_that_says_nothing_new_is_not_compared(tmp_path: Path, untargeted: AttackResult) -> None:
    frame = targeted_rows({("greedy", "member", 1): [True, False, False]}).assign(n_new=[1, 0, 2])
    frame.loc[1, ["ppl", "dc_ppl"]] = np.nan
    run = run_with(tmp_path, report_of(untargeted_extraction=untargeted), {"targeted_extraction": frame})
    read = read_records(RunDirectory.open(run))["targeted_extraction"]
    assert read["n_new"].tolist() == [1, 2]
    assert read["ppl"].notna().all()


def test_differences_name_model_size_samples_and_control(untargeted: AttackResult) -> None:
    config = {"attack": {"untargeted_extraction": {"n_samples": 700, "k": 50}}}
    text = "\n".join(differences(report_of(untargeted_extraction=untargeted), config))
    assert "too few" not in text
    few = untargeted.model_copy(update={"metrics": untargeted.metrics | {"vanilla/none/extracted_states": 1}})
    assert "Tables II and IV: vanilla (1 of 2)" in differences(report_of(untargeted_extraction=few), config)[-1]
    for wanted in ("the audited model", "6 members", "8,438", "700 per method", "best 50", "held out", "utility not"):
        assert wanted in text
