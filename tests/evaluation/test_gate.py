"""A report against a budget: what is not shown to be within does not pass, and the worst finding decides."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hushbot.cli import main
from hushbot.composition import config_files
from hushbot.errors import ConfigError
from hushbot.evaluation.gate import Budget, exit_code, judge, read_budget
from hushbot.types import (
    AttackResult,
    AuditReport,
    DataInfo,
    Estimate,
    Headline,
    PrivacyInfo,
    RecipeInfo,
    RunInfo,
    Verdict,
)

ROOT = Path(__file__).resolve().parents[2]
PRIVACY = PrivacyInfo(
    unit="dialogue",
    epsilon=7.9,
    delta=1e-3,
    accountant="prv",
    noise_multiplier=1.0,
    sample_rate=0.1,
    steps=9,
    max_grad_norm=1.0,
    secure_rng=False,
)


def estimate(value: float | None = 0.1, low: float | None = 0.05, high: float | None = 0.2) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=100, method="clopper_pearson")


def attack(verdict: Verdict = "no_leak_detected", headline: Estimate | None = None, **metrics: Any) -> AttackResult:
    return AttackResult(
        verdict=verdict, headline=Headline(metric="tpr", estimate=headline or estimate()), metrics=metrics
    )


def report(attacks: dict[str, AttackResult] | None = None, **more: Any) -> AuditReport:
    made = AuditReport(
        status="complete",
        run=RunInfo(id="r", created="2026-01-01T00:00:00Z", seed=0, config_sha256="a", data_sha256="b"),
        recipe=RecipeInfo(stack=["turn_level"]),
        data=DataInfo(
            name="d",
            members=1,
            nonmembers=1,
            calibration=0,
            controls=0,
            domains=1,
            slots=1,
            turns=1,
            supervised_tokens=1,
        ),
        utility={"joint_goal_accuracy": estimate(0.4, 0.3, 0.5)},
        attacks={"membership": attack()} if attacks is None else attacks,
    )
    return made.model_copy(update=more)


def code(found: AuditReport, budget: dict[str, Any]) -> int:
    return exit_code(judge(found, Budget.model_validate(budget)))


def headline(limit: Any) -> dict[str, Any]:
    return {"attacks": {"membership": {"headline": limit}}}


# --- one number ---


@pytest.mark.parametrize(
    ("number", "limit", "expected"),
    [
        (estimate(0.1, 0.05, 0.2), {"max": 0.2}, 0),
        (estimate(0.1, 0.05, 0.2), {"max": 0.19}, 4),  # the interval reaches past it
        (estimate(0.1, 0.05, 0.2), {"max": 0.1}, 4),
        (estimate(0.1, 0.05, 0.2), {"max": 0.09}, 3),
        (estimate(0.1, 0.05, 0.2), {"max": 0.01}, 3),
        (estimate(0.1, 0.05, 0.2), 0.2, 0),
        (estimate(0.1, 0.05, 0.2), 0, 3),
        (estimate(0.0, 0.0, 0.02), 0, 4),
        (estimate(0.1, 0.05, 0.2), {"max": 0.1, "use": "value"}, 0),
        (estimate(0.1, 0.05, 0.2), {"max": 0.09, "use": "value"}, 3),
        (estimate(0.1, 0.05, 0.2), {"min": 0.05}, 0),
        (estimate(0.1, 0.05, 0.2), {"min": 0.06}, 4),
        (estimate(0.1, 0.05, 0.2), {"min": 0.11}, 3),
        (estimate(0.1, 0.05, 0.2), {"min": 0.1, "use": "value"}, 0),
        (estimate(0.1, 0.05, 0.2), {"min": 0.0, "max": 0.3}, 0),
        (estimate(0.1, 0.05, 0.2), {"min": 0.08, "max": 0.3}, 4),
        (estimate(None, None, None), 1.0, 4),
        (estimate(None, 0.0, 0.1), {"max": 1.0, "use": "value"}, 4),
        (estimate(0.1, None, None), 1.0, 4),
        (estimate(0.1, 0.05, None), 1.0, 4),
        (estimate(0.1, None, None), {"max": 1.0, "use": "value"}, 0),
        (estimate(float("nan"), 0.05, 0.2), 1.0, 4),
        (estimate(0.1, 0.05, float("inf")), 1.0, 4),
        (estimate(0.1, 0.05, float("nan")), 1.0, 4),
        (estimate(float("inf"), 0.05, 0.2), {"max": 1.0, "use": "value"}, 4),
    ],
)
def test_a_number_and_its_limit(number: Estimate, limit: Any, expected: int) -> None:
    assert code(report({"membership": attack(headline=number)}), headline(limit)) == expected


@given(ends=st.lists(st.floats(0, 1), min_size=3, max_size=3).map(sorted), most=st.floats(0, 1), is_alone=st.booleans())
def test_only_what_is_wholly_below_passes(ends: list[float], most: float, is_alone: bool) -> None:
    low, value, high = ends
    limit = {"max": most, "use": "value" if is_alone else "interval"}
    found = code(report({"membership": attack(headline=estimate(value, low, high))}), headline(limit))
    assert (found == 0) == (value <= most and (is_alone or high <= most))
    assert (found == 3) == (value > most)


@pytest.mark.parametrize(("number", "expected"), [(7, 0), (8.0, 0), (9, 3), (None, 4)])
def test_plain_numbers_have_no_interval(number: Any, expected: int) -> None:
    found = report({"membership": attack(guesses=number)})
    assert code(found, {"attacks": {"membership": {"guesses": {"max": 8, "use": "value"}}}}) == expected
    if number is not None and number <= 8:
        assert code(found, {"attacks": {"membership": {"guesses": 8}}}) == 4


# --- attacks ---


@pytest.mark.parametrize(
    ("verdict", "expected"), [("leak", 0), ("no_leak_detected", 0), ("inconclusive", 4), ("not_measured", 4)]
)
def test_an_attack_must_have_come_to_a_verdict(verdict: Verdict, expected: int) -> None:
    found = report({"membership": attack(verdict)})
    assert code(found, headline(1.0)) == expected
    assert code(found, {"required": ["membership"]}) == expected


def test_what_is_missing_is_undecided() -> None:
    assert code(report({}), headline(1.0)) == 4
    assert code(report(), {"required": ["canaries"]}) == 4
    assert code(report(), {"attacks": {"membership": {"dc_ppl/auc": 1.0}}}) == 4
    assert code(report(), {"utility": {"bleu": {"min": 0.0}}}) == 4


@pytest.mark.parametrize("status", ["partial", "failed"])
def test_a_report_that_is_not_complete_is_undecided(status: str) -> None:
    assert code(report(status=status), headline(1.0)) == 4
    assert code(report(status=status), headline(0.01)) == 3


def test_a_broken_limit_outweighs_undecided_ones_in_any_order() -> None:
    attacks = {"a": attack(headline=estimate(0.5, 0.4, 0.6)), "b": attack("inconclusive")}
    for names in (("a", "b"), ("b", "a"), ("a", "b", "missing"), ("missing", "b", "a")):
        limits = {name: {"headline": 0.3} for name in names}
        assert code(report(dict(reversed(attacks.items()))), {"attacks": limits}) == 3
    assert code(report(attacks), {"attacks": {"b": {"headline": 0.3}}}) == 4


def test_every_limit_has_its_finding() -> None:
    found = report({"membership": attack("leak", guesses=3)})
    budget = {
        "required": ["membership", "canaries"],
        "attacks": {"membership": {"headline": 0.05, "guesses": {"max": 9, "use": "value"}}},
        "privacy": {"max_epsilon": 8},
        "utility": {"joint_goal_accuracy": {"min": 0.35}},
    }
    findings = judge(found, Budget.model_validate(budget))
    assert [(finding.what, finding.outcome) for finding in findings] == [
        ("report", "within"),
        ("membership verdict", "within"),
        ("membership tpr", "broken"),
        ("membership guesses", "within"),
        ("canaries", "undecided"),
        ("epsilon", "undecided"),
        ("utility joint_goal_accuracy", "undecided"),
    ]
    assert findings[2].found == "0.1 [0.05, 0.2]"
    assert findings[2].limit == "max 0.05"


# --- guarantee and utility ---


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_epsilon": 7.9}, 0),
        ({"max_epsilon": 7.8}, 3),
        ({"max_epsilon": 8, "max_delta": 1e-3}, 0),
        ({"max_epsilon": 8, "max_delta": 1e-4}, 3),
        ({"max_epsilon": 8, "unit": "dialogue"}, 0),
        ({"max_epsilon": 8, "unit": "person"}, 3),
    ],
)
def test_a_guarantee(limits: dict[str, Any], expected: int) -> None:
    found = report(recipe=RecipeInfo(stack=["dp_sgd"], privacy=PRIVACY))
    assert code(found, {"privacy": limits}) == expected
    assert code(report(), {"privacy": limits}) == 4  # no guarantee is not an epsilon of 0


@pytest.mark.parametrize(("least", "expected"), [(0.3, 0), (0.35, 4), (0.4, 4), (0.41, 3)])
def test_a_minimal_utility(least: float, expected: int) -> None:
    assert code(report(), {"utility": {"joint_goal_accuracy": {"min": least}}}) == expected


# --- the budget file ---


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("attaks: {}", r"attaks=\{\}: Extra inputs are not permitted"),
        ("attacks: {membership: {headline: {maximum: 0.1}}}", r"attacks\.membership\.headline\.maximum=0\.1"),
        ("attacks: {membership: {headline: {}}}", "give max, or min"),
        ("attacks: {membership: {headline: {max: yes}}}", "max=True"),
        ("attacks: {membership: {headline: yes}}", r"headline=True"),
        ("attacks: {membership: {headline: 1e-2}}", r"headline='1e-2'"),
        ("attacks: {membership: {headline: {max: 1e-2}}}", r"max='1e-2'.*write 1\.0e-5"),
        ("attacks: {membership: {headline: .nan}}", "finite"),
        ("attacks: {membership: {headline: {max: .inf}}}", "finite"),
        ("attacks: {membership: {headline: {max: 0.1, use: high}}}", "'interval' or 'value'"),
        ("attacks: {membership: {headline: {max: 0.1, min: 0.2}}}", "above max"),
        ("attacks: {membership: {}}", "membership limits nothing"),
        ("attacks: {membership: }", r"attacks\.membership=None"),
        ("attacks: {membership: {headline: 0.1}}\nattacks: {}", "'attacks' stands twice in line 2"),
        ("attacks: {membership: {headline: {max: 0.1, max: 0.9}}}", "'max' stands twice"),
        ("privacy: {max_epsilon: -1}", "greater than or equal to 0"),
        ("privacy: {max_delta: 0.1}", r"privacy\.max_epsilon.*Field required"),
        ("required: membership", "required='membership'"),
        ("version: 2\nrequired: [a]", "version=2"),
        ("{}", "limits nothing"),
        ("", "valid dictionary|valid Budget"),
        ("- a", "valid dictionary|valid Budget"),
        ("a: [", "cannot be read"),
        ("required: [!!python/object/apply:os.system [ls]]", "cannot be read"),
    ],
)
def test_a_wrong_budget_says_where(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "budget.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"budget\.yaml[\s\S]*{said}|{said}"):
        read_budget(path)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "budget.yaml"
    path.write_text("attacks: {membership: {headline: {max: a}}}\nutility: {bleu: {least: 1}}\nmore: 1\n")
    with pytest.raises(ConfigError) as caught:
        read_budget(path)
    assert len(caught.value.problems) == 3


def test_budgets_of_the_guide_are_budgets_and_name_attacks_and_keys_that_exist(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", guide, flags=re.DOTALL)
    assert len(blocks) == 2
    known = {path.stem for path in config_files() if path.parent.name == "attack"}
    for block in blocks:
        path = tmp_path / "budget.yaml"
        path.write_text(block)
        budget = read_budget(path)
        assert set(budget.attacks) <= known
    demo = yaml.safe_load((ROOT / "configs" / "experiment" / "demo.yaml").read_text(encoding="utf-8"))
    names = next(item["override /attack"] for item in demo["defaults"] if "override /attack" in item)
    assert set(yaml.safe_load(blocks[0])["attacks"]) == set(names)


# --- the command ---


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Return a function that writes a report and a budget and returns the arguments of the command."""

    def both(found: AuditReport, budget: dict[str, Any]) -> list[str]:
        run = tmp_path / "run"
        run.mkdir(exist_ok=True)
        (run / "report.json").write_text(found.model_dump_json())
        (tmp_path / "budget.yaml").write_text(yaml.safe_dump(budget))
        return ["gate", str(run / "report.json"), f"budget={tmp_path / 'budget.yaml'}"]

    return both


@pytest.mark.parametrize(
    ("found", "budget", "expected", "said"),
    [
        (report(), headline(0.2), 0, "within budget"),
        (report(), headline(0.05), 3, "budget broken"),
        (report(), headline(0.15), 4, "undecided"),
        (report({}), headline(0.15), 4, "undecided"),
        (report(status="partial"), headline(0.2), 4, "undecided"),
        (report(), {"attaks": {}}, 2, ""),
    ],
)
def test_exit_codes(
    write: Any,
    capsys: pytest.CaptureFixture[str],
    found: AuditReport,
    budget: dict[str, Any],
    expected: int,
    said: str,
) -> None:
    _, path, setting = write(found, budget)
    for arguments in ((path, setting), (setting, path), (str(Path(path).parent), setting)):
        assert main(["gate", *arguments]) == expected
        assert said in capsys.readouterr().out


def test_every_broken_limit_is_printed(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    attacks = {"one": attack(), "other": attack("leak"), "third": attack("inconclusive")}
    limits = {name: {"headline": 0.01} for name in attacks}
    assert main(write(report(attacks), {"attacks": limits})) == 3
    printed = capsys.readouterr().out
    assert printed.count("broken") == 3 + 1
    assert "[0.05, 0.2]" in "".join(printed.split("\n")) or "[0.05," in printed  # brackets are no markup
    assert all(name in printed for name in attacks)


def test_what_cannot_be_read_is_an_error(write: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, path, setting = write(report(), headline(0.2))
    assert main(["gate", str(tmp_path / "nothing.json"), setting]) == 1
    assert "nothing.json does not exist" in capsys.readouterr().err
    Path(path).write_text(json.dumps({"version": 1}))
    assert main(["gate", path, setting]) == 1
    assert main(["gate", path, f"budget={tmp_path / 'none.yaml'}"]) == 2
    for arguments in ([path], [setting], [path, path, setting], [path, setting, setting], [path, "budget="]):
        assert main(["gate", *arguments]) == 2
    assert main(["gate"]) == 2
