"""The privacy card: valid metadata, every number with its interval, every gap named, no value of anybody."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard, metadata_load

from hushbot.evaluation.card import ATTACKS, CARD_NAME, front_matter, privacy_card, write_card
from hushbot.types import AttackResult, AuditReport, EndpointInfo, Estimate, Headline, PrivacyInfo, Verdict


def neighbour(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_report = neighbour("test_tradeoff").make_report

PRIVACY = PrivacyInfo(
    unit="dialogue",
    epsilon=7.9512,
    delta=0.001,
    accountant="prv",
    noise_multiplier=0.8,
    sample_rate=0.05,
    steps=200,
    max_grad_norm=1.0,
    secure_rng=False,
    target_epsilon=8.0,
    epsilon_at_1e5=11.2034,
    n_units=400,
    engine="ghost",
    covers="the weights that were released",
    does_not_cover=["the choice of settings", "the sizes of the groups"],
)


def changed(report: AuditReport, **update: Any) -> AuditReport:
    return report.model_copy(update=update)


@pytest.fixture
def report() -> AuditReport:
    plain: AuditReport = make_report("turn_level+filter_guard", 3, 0.5, 0.6)
    return changed(plain, run=plain.run.model_copy(update={"tokens_trained": 900}))


def section(card: str, title: str) -> str:
    return card.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_the_front_matter_is_what_the_hub_reads(report: AuditReport, tmp_path: Path) -> None:
    path = write_card(report, tmp_path)
    assert path == tmp_path / CARD_NAME
    card = ModelCard.load(path)
    assert card.data.library_name == "transformers"
    assert card.data.datasets == ["toy"]
    assert {"hushbot", "turn_level", "filter_guard"} <= set(card.data.tags)
    assert "differential-privacy" not in card.data.tags
    assert card.data.model_name == "x"
    utility, leak = card.data.eval_results
    assert (utility.metric_type, utility.metric_value, utility.dataset_name) == ("joint_goal_accuracy", 0.5, "toy")
    assert (utility.task_name, utility.dataset_split) == ("task-oriented dialogue", "non-members")
    assert (leak.metric_type, leak.metric_value) == ("untargeted_extraction/state_precision@100", 0.6)
    assert leak.metric_name == "untargeted extraction/state precision@100"
    assert leak.task_name == "privacy audit (leakage: less is better)"
    assert card.data.metrics == ["joint_goal_accuracy", "untargeted_extraction/state_precision@100"]
    assert ModelCard(str(card)).data.to_dict() == card.data.to_dict(), "written again, it says the same"
    assert metadata_load(path)["pipeline_tag"] == "text-generation"
    assert card.text.lstrip().startswith("# Privacy card: turn_level+filter_guard, seed 3")


def test_a_metric_that_was_not_measured_has_no_metadata_and_no_zero() -> None:
    card = privacy_card(make_report("base", 0, None, None))
    front = yaml.safe_load(card.split("---\n")[1])
    assert "model-index" not in front
    assert rows(section(card, "Utility"))[2] == ["`joint_goal_accuracy`", "not measured", "-", "-"]
    assert "`utility`: `joint_goal_accuracy`: no candidates" in section(card, "What was not tested")
    assert "0.000" not in card


def test_what_it_cost_stands_with_what_was_not_measured(report: AuditReport) -> None:
    assert section(privacy_card(report), "What it cost").strip().splitlines()[1:] == [
        "- most memory held: not measured",
        "- answering one turn: not measured",
    ]
    turn = Estimate(value=0.25, low=0.2, high=0.5, n=40)
    spent = {"train": 61.4, "audit": 9.6}
    run = report.run.model_copy(
        update={"seconds": spent, "peak_memory_mb": {"train": 812.3}, "seconds_per_turn": turn, "device": "cpu"}
    )
    assert section(privacy_card(changed(report, run=run)), "What it cost").strip().splitlines() == [
        "- time: training 61 s, the audit 10 s",
        "- most memory held: training 812 MB",
        "- answering one turn: 0.250 s, 0.200 to 0.500 (95%), n = 40, on cpu",
    ]


def test_domains_stand_below_the_whole(report: AuditReport) -> None:
    assert "by domain" not in section(privacy_card(report), "Utility")
    half = Estimate(value=0.5, low=0.25, high=0.75, n=8)
    by_domain = {"taxi": {"joint_goal_accuracy": half}, "train": {"joint_goal_accuracy": Estimate(value=None)}}
    shown = section(privacy_card(changed(report, utility_by_domain=by_domain)), "Utility")
    assert rows(shown.split("by domain")[1])[2:] == [
        ["`taxi`", "0.500", "0.250 to 0.750 (95%)", "8"],
        ["`train`", "not measured", "-", "-"],
    ]


def test_a_privacy_arm_is_tagged_as_one(report: AuditReport) -> None:
    recipe = report.recipe.model_copy(update={"privacy": PRIVACY})
    assert "differential-privacy" in front_matter(changed(report, recipe=recipe))["tags"]


def test_numbers_stand_with_interval_n_control_and_verdict(report: AuditReport) -> None:
    card = privacy_card(report)
    assert rows(section(card, "Utility"))[2] == ["`joint_goal_accuracy`", "0.500", "0.400 to 0.600 (95%)", "50"]
    assert rows(section(card, "Attacks"))[2] == [
        "`untargeted_extraction`",
        "texts and probabilities",
        "**leak**",
        "`state_precision@100`",
        "0.600",
        "0.500 to 0.700 (95%)",
        "50",
        "nonmembers",
        "0.200; 0.100 to 0.300 (95%); n = 50",
    ]


def test_what_was_trained_and_by_what(report: AuditReport) -> None:
    notes = ["filter_guard: every text passes a filter", "loader: 3 dialogues repaired"]
    trained = section(privacy_card(changed(report, notes=notes)), "What was trained")
    assert "trained on 1 dialogues of toy (900 tokens read" in trained
    assert "- filter_guard: every text passes a filter" in trained
    assert "loader" not in trained
    untrained = section(privacy_card(make_report("base", 0, 0.5, 0.6)), "What was trained")
    assert "this run records no training" in untrained


def test_no_guarantee_is_said_and_is_no_epsilon_of_zero(report: AuditReport) -> None:
    said = section(privacy_card(report), "Formal guarantee")
    assert said.lstrip().startswith("**No formal guarantee.**")
    assert "epsilon =" not in said


OTHERS = [{"audited": {"target": "hf", "model": "a/b"}}, {"audited": {"target": "http", "model": "bot"}}]


@pytest.mark.parametrize("known", [*OTHERS, {"endpoint": EndpointInfo(model="bot", tier="text")}])
def test_how_others_trained_a_bot_is_unknown(report: AuditReport, known: dict[str, Any]) -> None:
    card = privacy_card(changed(report, **known))
    said = section(card, "Formal guarantee")
    assert said.lstrip().startswith("**Unknown.**")
    assert "No formal guarantee" not in card
    assert "was not differentially private" not in card
    assert "recipe stack" not in card
    assert "by which recipe is unknown" in section(card, "What was trained")
    assert "turn_level" not in front_matter(changed(report, **known))["tags"]


def test_a_runs_own_bot_is_not_unknown(report: AuditReport) -> None:
    card = privacy_card(changed(report, audited={"target": "run"}))
    assert "**No formal guarantee.**" in card
    assert "recipe stack: `turn_level+filter_guard`" in card


def attack(verdict: Verdict, blind: dict[str, Any] | None) -> AttackResult:
    half = Estimate(value=0.5, low=0.4, high=0.6, n=9)
    return AttackResult(verdict=verdict, headline=Headline(metric="auc", estimate=half), blind=blind)


def test_what_the_split_alone_tells_stands_beside_membership(report: AuditReport) -> None:
    told = Estimate(value=0.75, low=0.7, high=0.8, level=0.98, n=40)
    blind = {"auc": told, "length_auc": Estimate(value=None, method="too few"), "permutation_p": 0.01}
    measured = changed(report, attacks={"membership": attack("inconclusive", blind)})
    read_back = AuditReport.model_validate_json(measured.model_dump_json())  # where estimates are mappings
    for each in (measured, read_back):
        attacks = section(privacy_card(each), "Attacks")
        assert "What the split alone tells (`blind`)" in attacks
        assert attacks.endswith(
            "- beside `membership`: `auc` 0.750 (0.700 to 0.800 (98%), n = 40), `length_auc` not measured\n"
        )
        assert "was not measured beside it" not in privacy_card(each)


def test_membership_without_its_blind_baseline_says_so(report: AuditReport) -> None:
    card = privacy_card(changed(report, attacks={"membership": attack("leak", None), "quiz": attack("leak", None)}))
    assert "What the split alone tells" not in section(card, "Attacks")
    assert "- `membership`: what the split alone tells of who is a member (`blind`) was not measured" in card
    assert "- `quiz`: what the split alone" not in card


def test_blind_asks_no_bot_and_needs_no_control(report: AuditReport) -> None:
    card = privacy_card(changed(report, attacks={"blind": attack("no_leak_detected", None)}))
    assert rows(section(card, "Attacks"))[2][1] == "the split alone, no bot"
    assert "`blind` has no control" not in card


def test_a_guarantee_stands_with_unit_delta_accountant_and_limits(report: AuditReport) -> None:
    recipe = report.recipe.model_copy(update={"privacy": PRIVACY})
    said = section(privacy_card(changed(report, recipe=recipe)), "Formal guarantee")
    assert said.strip().splitlines() == [
        "- unit: one dialogue (add or remove one dialogue)",
        "- **epsilon = 7.951 at delta = 0.001** (epsilon = 11.2 at delta = 1e-05)",
        "- accountant: prv; noise multiplier 0.8, clipping norm 1, sampling rate 0.05, 200 steps",
        "- noise from a generator that is **not** cryptographically secure",
        "- units: 400, taken as public",
        "- calibrated for epsilon 8",
        "- gradients: ghost",
        "",
        "It covers: the weights that were released.",
        "",
        "It does **not** cover:",
        "",
        "- the choice of settings",
        "- the sizes of the groups",
    ]


def test_a_guarantee_without_a_finite_epsilon_is_none(report: AuditReport) -> None:
    endless = PRIVACY.model_copy(update={"epsilon": float("inf"), "covers": "", "does_not_cover": []})
    recipe = report.recipe.model_copy(update={"privacy": endless})
    said = section(privacy_card(changed(report, recipe=recipe)), "Formal guarantee")
    assert "**no finite epsilon** at delta 0.001" in said
    assert said.count("the report does not say") == 2


def test_every_attack_that_was_not_run_is_named(report: AuditReport) -> None:
    untested = section(privacy_card(report), "What was not tested")
    names = [f"`{name}`" for name in ATTACKS if name != "untargeted_extraction"]
    assert f"- attacks that were not run: {', '.join(names)}\n" in untested
    assert "no user-level guarantee" in untested
    assert "`utility`: `state_precision`, `state_recall`, `state_f1` and 2 more: no value in the report" in untested


def test_reasons_stand_once_with_the_numbers_they_cost() -> None:
    gone = Estimate(value=None, method="not measured: the endpoint returns\nno <b>scores</b>")
    attack = AttackResult(
        verdict="not_measured",
        headline=Headline(metric="auc", estimate=gone),
        metrics={"a/auc": gone, "b/auc": gone, "c/auc": gone, "questions": 4, "d/auc": None},
    )
    report = changed(make_report("base", 0, 0.5, 0.6), attacks={"quiz": attack})
    untested = section(privacy_card(report), "What was not tested")
    assert "- `quiz`: `auc`, `a/auc`, `b/auc` and 1 more: the endpoint returns no (b)scores(/b)\n" in untested
    assert "- `quiz`: `d/auc`: no value in the report\n" in untested
    assert "- `quiz`: not measured; its notes in report.json say why" in untested
    assert "- `quiz` has no control beside its headline" in untested
    assert rows(section(privacy_card(report), "Attacks"))[2][4:] == ["not measured", "-", "-", "none", "not measured"]


def test_nothing_that_a_bot_said_and_no_error_text_is_in_the_card(report: AuditReport) -> None:
    failed = changed(report, status="failed", error="no dialogue state in 'call 0113 496 0201'")
    card = privacy_card(failed)
    assert "<script>" not in card
    assert "alert" not in card
    assert "0113" not in card
    assert "> **This audit is failed**" in card
    assert "the error stands in report.json" in card
    assert "**This audit is" not in privacy_card(report)


def test_an_unfinished_or_empty_audit_says_so(report: AuditReport) -> None:
    card = privacy_card(changed(report, status="partial", utility={}, attacks={}))
    assert "> **This audit is partial**" in card
    assert section(card, "Utility").strip() == "Not measured."
    assert section(card, "Attacks").strip().startswith("No attack was run")
    assert f"attacks that were not run: {', '.join(f'`{name}`' for name in ATTACKS)}" in card


def test_how_to_run_it_again(report: AuditReport) -> None:
    again = section(privacy_card(report), "How to run it again")
    assert "hushbot train recipe=turn_level+filter_guard seed=3" in again
    assert "configuration hash `c`" in again
    audit = changed(report, notes=["utility was measured by run x"])
    assert "hushbot audit target=run run=RUN" in section(privacy_card(audit), "How to run it again")


@pytest.mark.parametrize(
    ("audited", "said"),
    [
        ({"target": "run"}, "hushbot audit target=run run=RUN"),
        ({"target": "hf", "model": "someone/a-bot.v2"}, "hushbot audit target=hf model=someone/a-bot.v2 seed=3"),
        ({"target": "hf", "model": None, "adapter": "a/b"}, "hushbot audit target=hf model=PATH adapter=a/b seed=3"),
        ({"target": "hf", "model": "/home/zora; rm"}, "hushbot audit target=hf model=PATH seed=3"),
        ({"target": "something else"}, "which target it attacked stands in config.yaml"),
    ],
)
def test_an_audit_is_run_again_on_what_it_was_of(report: AuditReport, audited: dict[str, Any], said: str) -> None:
    again = section(privacy_card(changed(report, audited=audited)), "How to run it again")
    assert said in again
    assert "zora" not in again
    assert ("```sh" in again) is said.startswith("hushbot")


def test_a_path_is_not_shown(report: AuditReport) -> None:
    data = report.data.model_copy(update={"name": "/home/zora/calls"})
    card = privacy_card(changed(report, data=data))
    assert "zora" not in card
    assert front_matter(changed(report, data=data))["datasets"] == ["calls"]


def test_a_name_that_is_no_slug_becomes_one(report: AuditReport) -> None:
    data = report.data.model_copy(update={"name": "bookings (private)"})
    front = front_matter(changed(report, data=data))
    assert front["datasets"] == ["bookings-private"]
    assert front["model-index"][0]["results"][0]["dataset"]["name"] == "bookings (private)"
