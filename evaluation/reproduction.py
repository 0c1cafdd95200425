"""The tables and figures of the dialogue-state extraction paper, made from one run's report and records alone.

Guarantees: every number of ours keeps its interval and stands beside its chance line (the same against as many
non-members, or the bot before fine-tuning) and, where the paper prints one, beside the paper's; what a run did not
measure is empty in the files and reads "not measured", never zero. No model is loaded, and no text that a bot said is
read: of the records only scores, sizes and hits.

What voids it: the paper measured another model on more people and held nobody out (`differences` says so beside every
table), so that only orderings compare, not levels.

Source: Extracting Training Dialogue Data from Large Language Model based Task Bots, section V.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from hushbot.evaluation import paper_tods as paper
from hushbot.types import AttackResult, AuditReport, Estimate, Metric, as_estimate

UNTARGETED, TARGETED, PROBE = "untargeted_extraction", "targeted_extraction", "schema_probe"
GOLD, SWEEP = "targeted_gold", "targeted_sweep"
"""Two more passes of targeted extraction: guided by the true schema (Fig. 6), and over sampling settings (Fig. 7)."""
RANKINGS = ("none", "ppl", "ppl_zlib", "c_ppl", "dc_ppl")
GOLD_NAME = "schema_guided (true schema)"
N_BINS = 30


class Number(NamedTuple):
    """One number of one table or figure."""

    row: str
    """The method: a decoder, a probe."""
    column: str
    """Under which condition: a ranking, a prefix length, a temperature."""
    metric: str
    ours: Metric
    chance: Metric = None
    """The same where there can be no leak; None when not measured."""
    paper: float | None = None
    """In our units: rates are fractions."""


def metric_of(attack: AttackResult | None, key: str) -> Metric:
    """Return a measured number, None if the run does not have it."""
    return None if attack is None else attack.metrics.get(key)


def chance_of(attack: AttackResult | None, key: str, side: str = "nonmembers") -> Metric:
    """Return the same number where there can be no leak, None if the run does not have it."""
    return metric_in(None if attack is None else attack.control.get(side), key)


def metric_in(numbers: object, key: str) -> Metric:
    """Return a number of a control or a blind baseline, which a report on disk holds as plain mappings."""
    found = numbers.get(key) if isinstance(numbers, Mapping) else None
    return found if isinstance(found, int | float) else as_estimate(found)


def number(attack: AttackResult | None, key: str, names: tuple[str, str, str], side: str = "nonmembers") -> Number:
    """Return one number and its chance line by their key; `names` are row, column and metric."""
    return Number(*names, metric_of(attack, key), chance_of(attack, key, side))


def decoders_of(attack: AttackResult | None) -> list[str]:
    """Return the decoders of an extraction, in the order in which they were measured."""
    keys = [] if attack is None else attack.metrics
    return [key.split("/")[0] for key in keys if re.fullmatch(r"[^/]+/none/state_precision", key)]


def lengths_of(attack: AttackResult | None) -> list[int]:
    """Return the prefix lengths of a targeted extraction."""
    keys = [] if attack is None else attack.metrics
    found = {int(m[1]) for key in keys if (m := re.fullmatch(r"[^/]+/none/state_precision/l=(\d+)", key))}
    return sorted(found)


def best_k(attack: AttackResult | None) -> int | None:
    """Return how many of the best-ranked states the ranked numbers rest on: the headline's, or the only one."""
    if attack is None:
        return None
    if match := re.fullmatch(r"state_precision@(\d+)", attack.headline.metric):
        return int(match[1])
    found = {int(m[1]) for key in attack.metrics if (m := re.fullmatch(r".+/none/state_precision@(\d+)", key))}
    return max(found, default=None)


# tables


def table2(report: AuditReport) -> list[Number]:
    """Return Table II: what ranking by perplexity makes of each method's states."""
    return _ranked(report, RANKINGS[:3], ("state_precision", "triplets", "value_precision"))


def table4(report: AuditReport) -> list[Number]:
    """Return Table IV: all rankings."""
    return _ranked(report, RANKINGS, ("state_precision", "value_precision"))


def table3(report: AuditReport) -> list[Number]:
    """Return Table III: all distinct states of each method."""
    attack = report.attacks.get(UNTARGETED)
    return [
        number(attack, f"{decoder}/none/{name}", (decoder, "none", name))._replace(
            paper=_in_our_units(name, paper.UNRANKED.get((decoder, name)))
        )
        for decoder in decoders_of(attack)
        for name in ("states", "state_precision", "triplets", "values", "value_precision")
    ]


def _ranked(report: AuditReport, rankings: Sequence[str], names: Sequence[str]) -> list[Number]:
    attack = report.attacks.get(UNTARGETED)
    k = best_k(attack)
    return [
        number(
            attack,
            f"{decoder}/{ranking}/{name}" + ("" if ranking == "none" else f"@{k}"),
            (decoder, ranking, name),
        )._replace(paper=_in_our_units(name, paper.RANKED.get((decoder, ranking, name))))
        for decoder in decoders_of(attack)
        for ranking in rankings
        for name in names
    ]


def _in_our_units(name: str, printed: float | None) -> float | None:
    return printed / 100 if printed is not None and name.endswith("precision") else printed


# figures


def curve(report: AuditReport) -> list[Number]:
    """Return the precision of the best k under each ranking, for every k that was measured; untargeted."""
    attack = report.attacks.get(UNTARGETED)
    names = re.compile(r"([^/]+)/([^/]+)/state_precision@(\d+)")
    found = [(key, m) for key in (attack.metrics if attack else ()) if (m := names.fullmatch(key))]
    found.sort(key=lambda item: int(item[1][3]))
    return [number(attack, key, (f"{m[1]}/{m[2]}", m[3], "state_precision@k")) for key, m in found]


def fig4(report: AuditReport) -> list[Number]:
    """Return Fig. 4: how much of the schema each probe finds, and how much it makes up, by temperature."""
    return _probed(report, [f"{name}_{what}" for name in ("domain", "slot") for what in ("precision", "recall")])


def fig5(report: AuditReport) -> list[Number]:
    """Return Fig. 5: after how many questions a probe is at its best."""
    return _probed(report, ["questions"])


def _probed(report: AuditReport, names: Sequence[str]) -> list[Number]:
    attack = report.attacks.get(PROBE)
    pattern = re.compile(r"([^/]+)/t=([^/]+)/slot_f1")
    found = [m for key in (attack.metrics if attack else ()) if (m := pattern.fullmatch(key))]
    return [number(attack, f"{m[1]}/t={m[2]}/{name}", (m[1], m[2], name), "base") for m in found for name in names]


def fig6(report: AuditReport) -> list[Number]:
    """Return Fig. 6: targeted extraction by prefix length, the true schema as the upper bound."""
    numbers = []
    for name, rename in ((TARGETED, None), (GOLD, GOLD_NAME)):
        attack = report.attacks.get(name)
        numbers += [
            number(attack, f"{decoder}/none/{metric}/l={length}", (rename or decoder, str(length), metric))
            for decoder in decoders_of(attack)
            for length in lengths_of(attack)
            for metric in ("states", "state_precision", "values", "value_precision")
        ]
    attack = report.attacks.get(TARGETED)
    prefixes = [number(attack, f"prefixes/l={n}", ("all", str(n), "prefixes")) for n in lengths_of(attack)]
    return [*numbers, *prefixes]


def fig7(report: AuditReport) -> list[Number]:
    """Return Fig. 7: sampling settings; the row is the setting, the column its value."""
    attack = report.attacks.get(SWEEP)
    numbers = []
    for decoder in decoders_of(attack):
        name, _, setting = decoder.partition(":")
        option, _, value = setting.partition("=")
        # Plain sampling and greedy decoding are the ends of the temperature's axis.
        row, column = (option, value) if option else ("temperature", "0" if name == "greedy" else "1")
        for metric in ("states", "values", "state_precision", "value_precision"):
            numbers.append(number(attack, f"{decoder}/none/{metric}", (row, column, metric)))
    return sorted(numbers, key=lambda n: (n.row, float(n.column)))


def fig8(report: AuditReport) -> list[Number]:
    """Return Fig. 8: in how many training turns an extracted state stands, by prefix length."""
    attack = report.attacks.get(TARGETED)
    return [
        number(attack, f"{decoder}/causes/repetitions/l={n}", (decoder, str(n), "repetitions"))
        for decoder in decoders_of(attack)
        for n in lengths_of(attack)
    ]


def fig9(report: AuditReport) -> list[Number]:
    """Return Fig. 9: where the true next slot, value and pair rank."""
    attack = report.attacks.get(TARGETED)
    return [
        number(attack, f"causes/{what}/{name}/l={n}", (what, str(n), name))
        for name in ("mean_rank", "rank1", "beyond5")
        for what in ("slot", "value", "pair")
        for n in lengths_of(attack)
    ]


def fig10(report: AuditReport) -> list[Number]:
    """Return Fig. 10: the best-ranked completions of each decoder under each ranking."""
    attack = report.attacks.get(TARGETED)
    k = best_k(attack)
    return [
        number(attack, f"{decoder}/{ranking}/{name}@{k}", (decoder, ranking, name))
        for name in ("state_precision", "value_precision")
        for decoder in decoders_of(attack)
        for ranking in RANKINGS
    ]


def fig11(records: pd.DataFrame | None) -> list[Number]:
    """Return Fig. 11: the scores of completions that are members' states, and of the others (as chance), in bins.

    The column is the bin's middle; perplexities are binned by their logarithm to base 10.
    """
    if records is None:
        return []
    mine = records[records["role"] == "member"]
    numbers = []
    for ranking in (name for name in RANKINGS if name in mine):
        is_log = ranking != "dc_ppl"
        raw = mine[ranking].to_numpy(dtype=float)
        ok = np.isfinite(raw) & ((raw > 0) | (not is_log))
        values, hits = (np.log10(raw[ok]) if is_log else raw[ok]), mine["is_hit"].to_numpy(dtype=bool)[ok]
        if not len(values):
            continue
        # The tails are gathered in the outer bins: a few huge perplexities would flatten all others.
        low, high = np.quantile(values, (0.01, 0.99))
        edges = np.linspace(float(low), float(high), N_BINS + 1)
        values = np.clip(values, edges[0], edges[-1])
        parts = [np.histogram(values[hits == side], bins=edges)[0] for side in (True, False)]
        name = f"log10 {ranking}" if is_log else ranking
        numbers += [
            Number(name, f"{(edges[i] + edges[i + 1]) / 2:.4f}", "completions", int(parts[0][i]), int(parts[1][i]))
            for i in range(N_BINS)
        ]
    return numbers


def fig12(report: AuditReport) -> list[Number]:
    """Return Fig. 12: how private what came out is, by decoder and ranking."""
    attack = report.attacks.get(TARGETED)
    pattern = re.compile(r"sensitivity/([^/]+)/([^/]+)/(pii_score|marginal_privacy_score)")
    found = [(key, m) for key in (attack.metrics if attack else ()) if (m := pattern.fullmatch(key))]
    return [number(attack, key, (m[1], m[2], m[3])) for key, m in found]


FIGURES = {
    "table2": table2, "table3": table3, "table4": table4, "curve": curve,
    "fig4": fig4, "fig5": fig5, "fig6": fig6, "fig7": fig7, "fig8": fig8, "fig9": fig9, "fig10": fig10, "fig12": fig12,
}  # fmt: skip
"""Everything that is made from the report; Fig. 11 needs the records."""


def csv_of(numbers: Iterable[Number]) -> str:
    """Return numbers as CSV; empty where not measured."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    ends = ("value", "low", "high", "level", "n")
    writer.writerow(["row", "column", "metric", *ends, *(f"chance_{end}" for end in ends), "paper", "why_not_measured"])
    for each in numbers:
        reason = each.ours.method if isinstance(each.ours, Estimate) and each.ours.value is None else ""
        cells = [*_cells(each.ours), *_cells(each.chance), "" if each.paper is None else f"{each.paper:.10g}"]
        writer.writerow([each.row, each.column, each.metric, *cells, reason])
    return sink.getvalue()


def _cells(metric: Metric) -> list[Any]:
    if isinstance(metric, Estimate) and metric.value is not None:
        ends = (metric.value, metric.low, metric.high, metric.level, metric.n)
        return ["" if end is None else end for end in ends]
    if isinstance(metric, Estimate) or metric is None:
        return [""] * 5
    return [metric, "", "", "", ""]


def differences(report: AuditReport, config: Mapping[str, Any]) -> list[str]:
    """Say what differs between the run and the paper's measurement."""
    data, attack = report.data, config.get("attack", {}).get(UNTARGETED, {})
    backbone = str(config.get("backbone", {}).get("_target_", "the audited model")).rpartition(".")[2]
    f1 = report.utility.get("state_f1")
    few = _few(report.attacks.get(UNTARGETED))
    quality = "utility not measured" if f1 is None or f1.value is None else f"state F1 {100 * f1.value:.2f}%"
    return [
        f"model: {'+'.join(report.recipe.stack)} on {backbone}, {quality}; the paper: {paper.SETTING['model']}",
        f"data: {data.name}, {data.members} members trained on, {data.nonmembers} non-members held out; "
        f"the paper: {paper.SETTING['data']}",
        f"samples: {attack.get('n_samples', 'an unknown number')} per method, the best {attack.get('k', '?')} after "
        f"ranking; the paper: {paper.SETTING['samples']}",
        f"counted: {paper.SETTING['counted']}; so here, in any turn of any of the members, and values without regard "
        "to their slot",
        f"control: the same states against as many non-members, beside ours; the paper: {paper.SETTING['control']}",
        "schema-guided sampling without a prefix, and the chance lines, are ours: the paper has no such rows",
        *([f"too few distinct states to rank, which the paper leaves out of Tables II and IV: {few}"] if few else []),
    ]


def _few(attack: AttackResult | None) -> str:
    """Name the decoders with fewer distinct states than the best k, of which all are then taken."""
    k, found = best_k(attack), []
    for decoder in decoders_of(attack):
        n = metric_of(attack, f"{decoder}/none/extracted_states")
        if k is not None and isinstance(n, int) and n < k:
            found.append(f"{decoder} ({n} of {k})")
    return ", ".join(found)
