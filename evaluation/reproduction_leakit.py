"""The numbers of the per-document extraction abstract, made from one run's report alone.

Guarantees: every rate of ours keeps its interval and stands beside the same rule's on documents that the bot never saw
and, where the abstract prints one, beside its number; leakit's own rule on the same samples is a row of its own. What a
run did not measure is empty in the files and reads "not measured", never zero.

What voids it: the paper asks pretrained models about documents of the Pile (`differences` says so), so that only
orderings compare, not levels.

Source: the abstract that announces leakit; `hushbot.evaluation.paper_leakit`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hushbot.evaluation import paper_leakit as paper
from hushbot.evaluation.reproduction import Number, chance_of, metric_of
from hushbot.evaluation.reproduction_comparisons import difference_of
from hushbot.evaluation.reproduction_orderings import Ordering
from hushbot.evaluation.reproduction_tables import Reproduction
from hushbot.intervals import as_estimate
from hushbot.types import AttackResult, AuditReport, Estimate, Metric

ATTACK = "identifier_leak"
FUNCTIONALS = ("mean_overlap", "extreme_overlap", "self_concentration")
RULES = {"leak_rate": "exact tests and q-values", "leakit_rate": "leakit's rule, per identifier"}


def reproduce(report: AuditReport, config: Mapping[str, Any]) -> Reproduction:
    """Return the abstract's numbers as far as a run has them."""
    attack = report.attacks.get(ATTACK)
    return Reproduction(
        title="per-document extraction with a control",
        tables={
            "leak_rate": ("documents whose identifier is tied to them", leak_rates(attack)),
            "breakdown": ("by what the identifier is, and where it stands", breakdown(attack)),
            "settings": ("other prefixes and decodings, on the same documents", settings(attack)),
            "functionals": ("functionals of the samples: members, and documents never seen", functionals(attack)),
            "hit_at_k": ("how often one of k samples holds it", hits(attack)),
        },
        legend=f"ours with 95% intervals; chance: the same rule on documents never seen; paper: {paper.MODEL}",
        differences=differences(report, config),
        orderings=orderings(attack),
        said={
            "breakdown": paper.SAID["domains"],
            "settings": paper.SAID["settings"],
            "functionals": paper.SAID["blind"],
        },
    )


def leak_rates(attack: AttackResult | None) -> list[Number]:
    """Return the rate under our rule and under leakit's."""
    return [
        Number("all", rule, "rate", metric_of(attack, key), chance_of(attack, key), paper.LEAK_RATE)
        for key, rule in RULES.items()
    ]


def breakdown(attack: AttackResult | None) -> list[Number]:
    """Return the leak rate by kind, domain, line and repetitions."""
    pattern = re.compile(r"leak_rate/(kind|domain|line|repetitions)=(.+)")
    return [
        Number(match[1], match[2], "rate", metric_of(attack, key), chance_of(attack, key), _stated(match))
        for key in (attack.metrics if attack else ())
        if (match := pattern.fullmatch(key))
    ]


def _stated(match: re.Match[str]) -> float | None:
    return paper.BY_KIND.get(match[2]) if match[1] == "kind" else None


def settings(attack: AttackResult | None) -> list[Number]:
    """Return the rates under other prefix lengths, temperatures and nuclei; the registered setting first."""
    pattern = re.compile(r"(leak_rate|own_rate|control_rate)/(prefix_chars|temperature|top_p)=(.+)")
    metrics: Mapping[str, Metric] = attack.metrics if attack else {}
    first = [
        Number("registered", "", rate, metrics.get(rate))
        for rate in ("leak_rate", "own_rate", "control_rate")
        if attack
    ]
    return first + [
        Number(match[2], match[3], match[1], metrics[key]) for key in metrics if (match := pattern.fullmatch(key))
    ]


def functionals(attack: AttackResult | None) -> list[Number]:
    """Return what the abstract's functionals are on either side."""
    return [
        Number(name, "mean", "value", metric_of(attack, name), chance_of(attack, name))
        for name in FUNCTIONALS
        if attack is not None
    ]


def hits(attack: AttackResult | None) -> list[Number]:
    """Return the hit@k curve."""
    return [
        Number("own prefix", f"k={match[1]}", "hit_at_k", metric_of(attack, key), chance_of(attack, key))
        for key in (attack.metrics if attack else ())
        if (match := re.fullmatch(r"hit@(\d+)", key))
    ]


def orderings(attack: AttackResult | None) -> list[Ordering]:
    """Return the abstract's claims that a run can speak to, as differences in its direction."""
    if attack is None:
        return []
    return [
        Ordering(
            "members' identifiers are tied to their documents, others' are not",
            rule,
            difference_of(*_sides(attack, key)),
        )
        for key, rule in RULES.items()
    ]


def _sides(attack: AttackResult, key: str) -> tuple[Estimate, Estimate]:
    pair = (metric_of(attack, key), chance_of(attack, key))
    missing = Estimate(value=None, method=f"{key} was not measured")
    mine, others = (missing if each is None else as_estimate(each) for each in pair)
    return mine, others


def differences(report: AuditReport, config: Mapping[str, Any]) -> Sequence[str]:
    """Say what differs between the run and the paper's measurement."""
    attack = config.get("attack", {}).get(ATTACK, {})
    backbone = str(config.get("backbone", {}).get("_target_", "the audited model")).rpartition(".")[2]
    metrics = report.attacks[ATTACK].metrics if ATTACK in report.attacks else {}
    return [
        f"model: {'+'.join(report.recipe.stack)} on {backbone}; the paper: {paper.SETTING['model']}",
        f"data: {metrics.get('documents', '?')} dialogues of {report.data.name} with identifiers that nothing gives "
        f"away; the paper: {paper.SETTING['data']}",
        f"control: at least {attack.get('n_controls', 8)} mismatched prefixes per identifier, and documents never "
        f"seen; the paper: {paper.SETTING['control']}",
        f"rule: one-sided exact tests with a false discovery rate; the paper: {paper.SETTING['rule']}",
        f"not repeated here: {paper.SAID['capacity']}",
    ]
