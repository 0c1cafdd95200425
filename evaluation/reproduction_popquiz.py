"""The tables of the Pop-Quiz paper, made from one run's report alone.

Guarantees: every AUC of ours keeps its interval and stands beside the base model's on the same questions, beside a
guesser's and, where the paper prints one, beside the paper's; what a run did not measure is empty in the files and
reads "not measured", never zero. Defences are arms: a single run has none of them to compare.

What voids it: the paper tuned models of billions of parameters on other data (`differences` says so), so that only
orderings compare, not levels.

Source: Pop Quiz Attack (arXiv 2605.06423), Tables 1 to 3, sections 4.3 to 4.6; `hushbot.evaluation.paper_popquiz`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hushbot.evaluation import paper_popquiz as paper
from hushbot.evaluation.reproduction import Number, chance_of, metric_in, metric_of
from hushbot.evaluation.reproduction_comparisons import difference_of
from hushbot.evaluation.reproduction_orderings import Ordering
from hushbot.evaluation.reproduction_tables import Reproduction
from hushbot.intervals import as_estimate
from hushbot.types import AttackResult, AuditReport, Estimate

MODEL = "llama2-7b"
"""The paper's model that its breakdowns are about."""
_MEDICAL = "medical records"
"""How the name of our corpus begins that is like one of the paper's."""


def reproduce(report: AuditReport, config: Mapping[str, Any]) -> Reproduction:
    """Return the paper's tables as far as a run has them."""
    quizzes = quizzes_of(report)
    return Reproduction(
        title="Pop Quiz",
        tables={
            "table1": ("Table 1: can members be told by their answers?", table1(report, quizzes)),
            "table2": ("Table 2: by type of the answer", _broken_down(quizzes, "type")),
            "digits": ("Section 4.3: by length of a number", _broken_down(quizzes, "digits")),
            "table3": ("Table 3: by complexity of the question", _broken_down(quizzes, "complexity")),
            "granularity": ("Section 4.6: structured records and prose", _broken_down(quizzes, "granularity")),
            "category": ("Section 4.3: by category", _broken_down(quizzes, "category")),
        },
        legend=f"ours with 95% intervals; chance: the bot before tuning on the same questions; paper: {MODEL}",
        differences=differences(report, config),
        orderings=orderings(quizzes),
        said={"digits": paper.SAID["digits"], "granularity": paper.SAID["granularity"]},
    )


def quizzes_of(report: AuditReport) -> dict[str, AttackResult]:
    """Return the quizzes of a run by name: several may differ in mode and wording."""
    return {name: attack for name, attack in report.attacks.items() if re.fullmatch(r"quiz(_\w+)?", name)}


def table1(report: AuditReport, quizzes: Mapping[str, AttackResult]) -> list[Number]:
    """Return Table 1: each quiz's AUC and operating point, and what a guesser without a model reaches."""
    stated = paper.AUC[MODEL, "medical"] if report.data.name.startswith(_MEDICAL) else None
    numbers = []
    for name, attack in quizzes.items():
        for metric in ("auc", "tpr_at_1pct_fpr", "accuracy_members", "accuracy_nonmembers"):
            numbers.append(
                Number(
                    name,
                    "bot",
                    metric,
                    metric_of(attack, metric),
                    chance_of(attack, metric, "base"),
                    stated if metric == "auc" else None,
                )
            )
            numbers.append(Number(name, "guesser", metric, metric_in(attack.blind, f"guess/{metric}")))
    return numbers


def _broken_down(quizzes: Mapping[str, AttackResult], what: str) -> list[Number]:
    pattern = re.compile(rf"{what}=(.+)/(auc|accuracy_members|accuracy_nonmembers)")
    return [
        Number(name, match[1], match[2], attack.metrics[key], None, _stated(what, match[1], match[2]))
        for name, attack in quizzes.items()
        for key in attack.metrics
        if (match := pattern.fullmatch(key))
    ]


def _stated(what: str, part: str, metric: str) -> float | None:
    return paper.BREAKDOWN.get(f"{what}={part}") if metric == "auc" else None


def orderings(quizzes: Mapping[str, AttackResult]) -> list[Ordering]:
    """Return every case of the paper's claims that a run can speak to; each number is of questions of its own."""
    claims = {
        "text gives members away more than numbers do (Table 2)": ("type=text", "type=number"),
        "simple questions work better than complex ones (Table 3)": ("complexity=simple", "complexity=complex"),
        "structured records give away more than prose (section 4.6)": ("granularity=structured", "granularity=prose"),
    }
    return [
        Ordering(claim, name, difference_of(*(_area(attack, key) for key in keys)))
        for claim, keys in claims.items()
        for name, attack in quizzes.items()
        if any(f"{key}/auc" in attack.metrics for key in keys)
    ]


def _area(attack: AttackResult, key: str) -> Estimate:
    found = attack.metrics.get(f"{key}/auc")
    return Estimate(value=None, method=f"{key} was not asked about") if found is None else as_estimate(found)


def differences(report: AuditReport, config: Mapping[str, Any]) -> Sequence[str]:
    """Say what differs between the run and the paper's measurement."""
    data = report.data
    backbone = str(config.get("backbone", {}).get("_target_", "the audited model")).rpartition(".")[2]
    epochs = config.get("trainer", {}).get("max_epochs", "an unknown number of")
    return [
        f"model: {'+'.join(report.recipe.stack)} on {backbone}, {epochs} epochs; the paper: {paper.SETTING['models']}",
        f"data: {data.name}, {data.members} members, {data.nonmembers} non-members; the paper: {paper.SETTING['data']}",
        f"questions: written by templates unless the configuration says otherwise; the paper: "
        f"{paper.SETTING['questions']}",
        f"control: the bot before tuning and a guesser answer the same questions; the paper: "
        f"{paper.SETTING['control']}",
        "defences are arms here: hushbot compare arms=[turn_level,turn_level+instruction_guard,dp_sgd]; the paper's "
        f"means are {', '.join(f'{name} {value:.3f}' for name, value in paper.DEFENCES.items())}",
    ]
