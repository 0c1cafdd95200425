"""report.html: self-contained, hostile texts harmless, gaps named, every kind of result shown."""

from __future__ import annotations

import base64
import hashlib
import math
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hushbot.evaluation.page import render_page, write_page
from hushbot.evaluation.page_template import amount_text, code_text, kept_together
from hushbot.run import RunDirectory
from hushbot.types import (
    AttackResult,
    AuditReport,
    DataInfo,
    Estimate,
    Headline,
    PrivacyInfo,
    RecipeInfo,
    RunInfo,
    TrainingEpoch,
    Units,
)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
)
DOMAINS = ("hotel", "restaurant", "taxi", "train")


def near(value: float | None, width: float = 0.08, n: int = 100) -> Estimate:
    if value is None:
        return Estimate(value=None, method="not measured: no candidates")
    return Estimate(value=value, low=max(0.0, value - width), high=min(1.0, value + width), n=n, method="by hand")


def scores(leak: float, n: int, seed: int) -> Units:
    """Draw scores of n members, whose mean lies `leak` above that of n non-members, and a few for calibration."""
    rng = random.Random(f"{leak}/{seed}")
    values = [round(rng.gauss(leak, 1), 6) for _ in range(n)] + [round(rng.gauss(0, 1), 6) for _ in range(n + 9)]
    names = [f"{i:012x}" for i in range(len(values))]
    sides = ["member"] * n + ["nonmember"] * n + ["calibration"] * 9
    return Units.model_validate({"rule": "auc", "documents": names, "values": values, "sides": sides})


def extraction(leak: float) -> AttackResult:
    def numbers(rate: float) -> dict[str, Estimate]:
        found = {f"vanilla/dc_ppl/state_precision@{k}": near(rate * (1 - k / 700)) for k in (10, 20, 50, 100, 200)}
        found |= {f"vanilla/none/state_precision@{k}": near(rate / 2) for k in (10, 20, 50, 100, 200)}
        found |= {f"domain={d}/state_precision@100": near(rate * (i + 1) / 4, n=25) for i, d in enumerate(DOMAINS)}
        return found | {
            f"slot={d}-area/state_precision@100": near(rate * (i + 1) / 5, n=25) for i, d in enumerate(DOMAINS)
        }

    headline = numbers(leak)["vanilla/dc_ppl/state_precision@100"]
    return AttackResult(
        verdict="leak" if leak > 0.1 else "no_leak_detected",
        headline=Headline(metric="state_precision@100", estimate=headline, key="vanilla/dc_ppl/state_precision@100"),
        metrics=numbers(leak) | {"vanilla/samples": 1000, "vanilla/ppl/hit_auc": near(None)},
        control={
            "nonmembers": numbers(0.05),
            "base": numbers(0.04),
            "randomisation_p": 0.004,
            "judged": {"x": {"y": 1}},
        },
        notes=["vanilla: 863 distinct states in 1000 samples"],
        queries=3589,
        seconds=18.5,
        examples=[{"rank": i, "state": "Hotel(name=p***t(9), area=***(5))", "is_hit": i < 2} for i in range(3)],
    )


def targeted(leak: float) -> AttackResult:
    def numbers(rate: float) -> dict[str, Estimate]:
        rates = {f"greedy/none/state_precision/l={n}": near(rate * n / 6) for n in range(1, 7)}
        return {"greedy/none/state_precision": near(rate)} | rates

    key = "greedy/none/state_precision"
    return AttackResult(
        verdict="inconclusive",
        headline=Headline(metric="state_precision", estimate=near(leak), key=key),
        metrics=numbers(leak),
        control={"nonmembers": numbers(leak / 4), "base": None},
        notes=["fewer than 20 states came from the members' prefixes"],
    )


def membership(leak: float, seed: int, n: int = 150) -> AttackResult:
    headline = near(min(1.0, 0.01 + leak / 8), n=n)
    return AttackResult(
        verdict="leak" if leak > 0.5 else "no_leak_detected",
        headline=Headline(metric="tpr_at_1pct_fpr", estimate=headline, key="dc_ppl/tpr_at_1pct_fpr"),
        metrics={
            "dc_ppl/tpr_at_1pct_fpr": headline,
            "dc_ppl/auc": near(0.5 + leak / 6),
            "domain=hotel/auc": near(0.55),
            "domain=train/auc": near(0.52),
        },
        control={"base": {"dc_ppl/tpr_at_1pct_fpr": near(0.01), "dc_ppl/auc": near(0.5)}},
        blind={"auc": near(0.484), "length_auc": near(0.5), "permutation_p": 0.5},
        units=scores(leak, n, seed),
        examples=[
            {"document_id": "00ab12cd34ef", "side": "members", "state": "Train(day=***(6))", "dc_ppl": 0.1234567}
        ],
    )


def identifiers(leak: float) -> AttackResult:
    def numbers(rate: float) -> dict[str, Estimate]:
        found = {f"hit@{k}": near(1 - (1 - rate) ** k) for k in (1, 2, 4, 8, 16, 32)}
        found |= {f"leak_rate/domain={d}": near(rate * (i + 1) / 3, n=9) for i, d in enumerate(DOMAINS)}
        return found | {
            "leak_rate": near(rate),
            "leak_rate/kind=phone": near(rate),
            "leak_rate/kind=reference": near(rate),
        }

    return AttackResult(
        verdict="no_leak_detected",
        headline=Headline(metric="leak_rate", estimate=near(leak), key="leak_rate"),
        metrics={**numbers(leak), "documents": 17},
        control={"nonmembers": numbers(leak / 10), "base": numbers(leak / 20)},
        threat_model="text",
    )


def training(accuracy: float, leak: float, n: int = 6) -> list[TrainingEpoch]:
    epochs = []
    for epoch in range(1, n + 1):
        part = epoch / n
        measured = {
            "joint_goal_accuracy": near(accuracy * math.sqrt(part)),
            "membership/auc": near(0.5 + leak / 6 * part),
        }
        epochs.append(
            TrainingEpoch(
                epoch=epoch,
                training_loss=2.5 * 0.6**epoch,
                calibration_loss=None if epoch == 3 else 2.6 * 0.7**epoch + 0.1,
                measured=measured if epoch % 2 == 0 else {},
            )
        )
    return epochs


def full_report(arm: str, seed: int, accuracy: float, leak: float) -> AuditReport:
    """Return a report with every kind of result that the page knows."""
    privacy = PrivacyInfo(
        unit="dialogue", epsilon=8.0, delta=0.004, accountant="prv", noise_multiplier=0.7, sample_rate=0.05, steps=120,
        max_grad_norm=1.0, secure_rng=False, covers="the training", does_not_cover=["people with several dialogues"],
    )  # fmt: skip
    return AuditReport(
        status="complete",
        run=RunInfo(
            id=f"{arm}-s{seed}", created="2026-11-30T12:00:00+00:00", seed=seed, config_sha256="c" * 64,
            data_sha256="d" * 64, split_sha256="e" * 64, versions={"python": "3.11.7", "torch": "2.13.0"},
            seconds={"train": 271.0, "utility": 36.6, "audit": 60.2}, tokens_trained=995850, trained_on="cpu",
            peak_memory_mb={"train": 812.4, "audit": 640.0},
            seconds_per_turn=Estimate(value=0.21, low=0.2, high=0.23, n=40),
        ),
        recipe=RecipeInfo(stack=arm.split("+"), privacy=privacy if "dp_sgd" in arm else None),
        data=DataInfo(
            name="bookings (private)", members=150, nonmembers=150, calibration=30, controls=30, domains=4, slots=29,
            turns=1424, supervised_tokens=90000,
        ),
        utility={"joint_goal_accuracy": near(accuracy), "bleu": Estimate(value=13.2, low=9.6, high=17.6, n=320),
                 "perplexity": near(None)},
        utility_protocol={"dontcare": "strict", "guards": [], "turns_counted": 320},
        utility_by_domain={d: {"joint_goal_accuracy": near(accuracy), "inform": near(None)} for d in DOMAINS},
        training=training(accuracy, leak),
        attacks={
            "untargeted_extraction": extraction(leak / 6), "targeted_extraction": targeted(leak / 8),
            "membership": membership(leak, seed), "identifier_leak": identifiers(leak / 20),
        },
    )  # fmt: skip


def plain_report(arm: str = "turn_level") -> AuditReport:
    """Return a report as it was before there were units, examples and epochs."""
    report = full_report(arm, 0, 0.4, 1.2)
    attack = report.attacks["membership"].model_copy(update={"units": None, "examples": []})
    update = {"attacks": {"membership": attack}, "training": [], "utility_by_domain": {}}
    return report.model_copy(update=update)


ARMS = (("turn_level", 0.42, 1.6), ("dialogue_level", 0.4, 0.9), ("dp_sgd", 0.3, 0.1), ("base", 0.12, 0.0))


@pytest.fixture(scope="module")
def page() -> str:
    return render_page([full_report(arm, 0, accuracy, leak) for arm, accuracy, leak in ARMS])


class Reader(HTMLParser):
    """Collects tags, attributes and whatever is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def test_the_page_asks_for_nothing_and_its_policy_names_its_own_script_and_style(page: str) -> None:
    reader = read(page)
    for _, attributes in reader.tags:
        for name in ("src", "href", "srcset", "action", "poster"):
            assert (attributes.get(name) or "#").startswith("#")
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for tag, a in reader.tags if tag == "meta" and "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        inner = page.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert page.count(f"<{tag}") == 1
    assert "@import" not in page
    assert "url(" not in page


def hostile_report(text: str) -> AuditReport:
    """Put a text wherever a report holds one that somebody else may have written."""
    report = full_report("turn_level", 0, 0.4, 1.6)
    attack = report.attacks["untargeted_extraction"]
    attack = attack.model_copy(
        update={
            "notes": [text],
            "metrics": {**attack.metrics, text: near(0.5), f"domain={text}/state_precision@100": near(0.5)},
            "control": {**attack.control, text: {text: text}},
            "blind": {text: near(0.5), "auc": {"value": 0.5, "method": text}},
            "examples": [{text: text, "state": text, "list": [text], "mapping": {text: text}}],
        }
    )
    epochs = [TrainingEpoch(epoch=i, measured={text: near(0.5)}) for i in (1, 2)]
    return report.model_copy(
        update={
            "error": text,
            "notes": [text, f"turn_level: {text}"],
            "run": report.run.model_copy(update={"id": text, "versions": {text: text}, "device": text}),
            "recipe": report.recipe.model_copy(update={"stack": ["turn_level", text]}),
            "data": report.data.model_copy(update={"name": text}),
            "utility": {**report.utility, text: near(0.4), "x": Estimate(value=None, method=text)},
            "utility_protocol": {text: text, "nested": {text: [text]}},
            "utility_by_domain": {text: {text: near(0.5)}},
            "training": epochs,
            "attacks": {"untargeted_extraction": attack, text: attack},
        }
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_add_no_tag_and_no_attribute(text: str) -> None:
    mild = re.sub(r"[<>\"'{}%]", "x", text)
    harmless, hostile = (read(render_page([hostile_report(t), plain_report()], damaged=[(t, t)])) for t in (mild, text))
    assert [(tag, sorted(attributes)) for tag, attributes in hostile.tags] == [
        (tag, sorted(attributes)) for tag, attributes in harmless.tags
    ]
    assert any(text in said for said in hostile.texts)


def test_every_kind_of_result_has_its_chart(page: str) -> None:
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    for wanted in (
        "ROC on logarithmic axes",
        "Precision among the best k candidates (vanilla/dc_ppl)",
        "Precision by prefix length (greedy/none)",
        "Identifiers found in at least one of k samples (hit@k)",
        "state precision@100 by domain",
        "state precision@100 by slot",
        "leak rate by domain",
        "leak rate by kind of identifier",
        "auc by domain",
        "Loss per supervised token",
        "Utility and leakage during training",
    ):
        assert sum(caption.startswith(wanted) for caption in captions) >= len(ARMS), wanted
    assert sum(c.startswith("joint goal accuracy against membership: tpr at 1pct fpr") for c in captions) == 1


def test_every_mark_of_the_tradeoff_says_what_it_shows_and_can_be_reached_by_keyboard(page: str) -> None:
    marks = [attributes for tag, attributes in read(page).tags if tag == "path" and "tabindex" in attributes]
    assert len(marks) == len(ARMS) * 4
    said = (marks[0]["data-tip"] or "").splitlines()
    assert said[:4] == [
        "turn_level, seed 0",
        "joint goal accuracy: 0.420 [0.340, 0.500] (n=100)",
        "untargeted extraction: state precision@100: 0.229 [0.149, 0.309] (n=100)",
        "control (nonmembers): 0.043 [0.000, 0.123] (n=100)",
    ]
    assert all(mark["aria-label"] == mark["data-tip"] for mark in marks)


def test_controls_and_blind_baselines_stand_beside_their_numbers(page: str) -> None:
    run = page.split('id="run-0"')[1].split('id="run-1"')[0]
    rows = re.findall(r"<tr><td>dc_ppl/auc(.*)", run)
    assert rows == ["<td>0.767 [0.687, 0.847] (n=100)<td>0.500 [0.420, 0.580] (n=100)<td>0.484 [0.404, 0.564] (n=100)"]
    assert "<tr><td>blind: permutation_p<td><td><td>0.5" in run
    assert "<tr><td>control: randomisation_p<td>0.004<td><td>" in run


def test_examples_domains_cost_protocol_and_provenance_are_shown(page: str) -> None:
    for wanted in (
        "Hotel(name=p***t(9), area=***(5))",
        "<td>hotel</td>",
        "0.210 <span>[0.200, 0.230]</span> <span>(n=40)</span> s",
        "<td>memory at most, train</td><td>812 MB</td>",
        "<td>dontcare</td><td>strict</td>",
        f"split <code>{'e' * 64}</code>",
        "torch 2.13.0",
        "hushbot train recipe=dp_sgd seed=0",
        "hushbot report DIR...",
        "epsilon 8 per dialogue, delta 0.004",
    ):
        assert wanted in page, wanted


def test_what_was_not_measured_is_one_list_with_reasons_and_runs() -> None:
    page = render_page([full_report("turn_level", 0, 0.4, 1.0), plain_report("base")])
    gaps = page.split('<section id="gaps">')[1].split("</section>")[0]
    assert gaps.count("<code>perplexity</code>") == 1
    assert 'no candidates <span class="small">(all runs)</span>' in gaps
    assert re.search(r"attacks that were not run: .*<code>identifier_leak</code>.*\(base, seed 0\)", gaps)
    assert page.count("not measured") > 5


def test_a_missing_number_is_no_point_and_is_named() -> None:
    report = full_report("turn_level", 0, 0.4, 1.0)
    blank = report.model_copy(update={"utility": {}, "recipe": RecipeInfo(stack=["base"])})
    page = render_page([report, blank])
    assert "Without a point: base, seed 0: joint goal accuracy not measured." in page
    assert len(re.findall(r'tabindex="0" role="img"', page)) == 4
    alone = render_page([blank])
    assert "untargeted extraction: state precision@100: no run has both numbers." in alone


def test_damaged_partial_and_failed_runs_are_shown_and_stop_nothing() -> None:
    partial = full_report("turn_level", 0, 0.4, 1.0).model_copy(update={"status": "partial"})
    failed = plain_report("base").model_copy(update={"status": "failed", "error": "secret-of-maria"})
    page = render_page([partial, failed], damaged=[("runs/torn", "report.json: no JSON")])
    block = page.split('<section class="trouble"')[1].split("</section>")[0]
    assert "<code>runs/torn</code> cannot be read" in block
    assert "report.json: no JSON" in block
    assert "<strong>partial</strong>" in block
    assert "<strong>failed</strong>" in block
    assert "secret-of-maria" not in page
    assert 'class="trouble"' not in render_page([plain_report()])


def test_nothing_but_damage_still_makes_a_page() -> None:
    page = render_page([], damaged=[("runs/torn", "no JSON")])
    assert "<code>runs/torn</code>" in page
    assert "There is no report to look into." in page


def test_old_reports_are_shown_without_what_they_lack() -> None:
    page = render_page([plain_report()])
    assert "<figcaption>ROC" not in page
    assert "During training" not in page
    assert "split <code>not in the report</code>" not in page
    assert "leak" in page


def test_the_file_is_written_whole_from_run_directories(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run").create({"arm": "x"}, {"members": []}) as directory:
        directory.write_report(full_report("turn_level", 0, 0.4, 1.0))
    write_page([tmp_path / "run"], tmp_path / "deep" / "page.html", damaged=[("a", "b")])
    text = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<code>a</code> cannot be read" in text


def test_twenty_runs_stay_below_two_megabytes() -> None:
    reports: Sequence[AuditReport] = [full_report("turn_level", seed, 0.4, 1.0) for seed in range(20)]
    assert len(render_page(reports).encode()) < 2_000_000


def test_words_of_numbers_and_code() -> None:
    assert amount_text(995850) == "995\u202f850"
    assert amount_text(0.21345) == "0.213"
    assert code_text("`a<b>`: not run, <i>") == "<code>a&lt;b&gt;</code>: not run, &lt;i&gt;"
    assert kept_together(Estimate(value=0.5, low=0.4, high=0.6, n=7)) == (
        "0.500 <span>[0.400, 0.600]</span> <span>(n=7)</span>"
    )
    assert kept_together(None) == "not measured"
