"""The page's tables of numbers: every metric in one row with its controls and blind baseline.

Guarantees: a control stands in the row of the number that it controls; a number that was not measured says so and a
number that does not exist has an empty cell; what was left out for want of room is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hushbot.evaluation.wording import NOT_MEASURED, show
from hushbot.types import AttackResult, AuditReport, Estimate

MOST_NUMBERS = 40
"""Rows per attack on a page of several runs; the page in the run's own folder has all."""
BLIND = "blind"


class NumberTable(NamedTuple):
    """An attack's numbers, with a column per control."""

    columns: list[str]
    rows: list[tuple[str, list[str]]]
    n_left_out: int


def number_table(attack: AttackResult, *, is_whole: bool) -> NumberTable:
    """Return the attack's metrics beside the same metrics of its controls, then what only the controls have."""
    blocks: dict[str, Mapping[str, object]] = {"bot": attack.metrics}
    blocks |= {name: numbers for name, numbers in attack.control.items() if _is_beside(numbers, attack)}
    blocks |= {BLIND: attack.blind} if attack.blind else {}
    keys = list(dict.fromkeys(key for name, block in blocks.items() for key in block if name != BLIND))
    rows = [(key, [_cell(name, block, key) for name, block in blocks.items()]) for key in keys]
    shown_blind = {_blind_key(block, key) for block in [blocks.get(BLIND, {})] for key in keys}
    rows += [
        (f"{BLIND}: {key}", [""] * (len(blocks) - 1) + [text])
        for key, text in flat({k: v for k, v in (attack.blind or {}).items() if k not in shown_blind})
    ]
    rest = {name: numbers for name, numbers in attack.control.items() if name not in blocks}
    rows += [(f"control: {key}", [text] + [""] * (len(blocks) - 1)) for key, text in flat(rest)]
    kept = rows if is_whole or len(rows) <= MOST_NUMBERS else _first(attack, rows)
    return NumberTable(list(blocks), kept, len(rows) - len(kept))


def _is_beside(numbers: object, attack: AttackResult) -> bool:
    """Say whether a control holds numbers under the attack's own keys."""
    return isinstance(numbers, Mapping) and not _is_estimate(numbers) and bool(numbers.keys() & attack.metrics.keys())


def _is_estimate(number: object) -> bool:
    return isinstance(number, Estimate) or (isinstance(number, Mapping) and "value" in number and "method" in number)


def _cell(name: str, block: Mapping[str, object], key: str) -> str:
    found = _blind_key(block, key) if name == BLIND else key
    return text_of(block[found]) if found in block else ""


def _blind_key(block: Mapping[str, object], key: str) -> str:
    """Return the baseline's key for a metric: its own, or the bare metric, which every score is compared with."""
    return key if key in block else key.rpartition("/")[2]


def _first(attack: AttackResult, rows: Sequence[tuple[str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Keep what stands under the headline's decoder and score, and what stands under none."""
    stem = (attack.headline.key or "").rpartition("/")[0]
    near = [row for row in rows if row[0].rpartition("/")[0] in ("", stem)]
    return (near or list(rows))[:MOST_NUMBERS]


def text_of(number: object) -> str:
    """Write whatever a report holds under a key."""
    if _is_estimate(number):
        return show(Estimate.model_validate(number))
    if isinstance(number, Mapping):
        return "; ".join(f"{key} {text}" for key, text in flat(number))
    if isinstance(number, list | tuple):
        return ", ".join(text_of(item) for item in number) or "none"
    if number is None:
        return NOT_MEASURED
    return f"{number:.4g}" if isinstance(number, float) else str(number)


def flat(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) pairs of a nested block, keys joined."""
    for key, number in numbers.items():
        if isinstance(number, Mapping) and not _is_estimate(number):
            yield from ((f"{key}/{sub}", text) for sub, text in flat(number))
        else:
            yield str(key), text_of(number)


def blind_numbers(attack: AttackResult) -> list[tuple[str, str]]:
    """Return what stands beside a headline of the blind baseline: its own metric where it has it, else its AUC."""
    blind = attack.blind or {}
    own = [key for key in blind if key.rpartition("/")[2] == attack.headline.metric]
    keys = own or [key for key in blind if key == "auc"]
    return [(key.replace("_", " "), text_of(blind[key])) for key in keys if _is_estimate(blind[key])]


def domain_table(report: AuditReport) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the metrics and the rows of utility by domain."""
    metrics = list(dict.fromkeys(metric for numbers in report.utility_by_domain.values() for metric in numbers))
    rows = [
        (domain, [show(numbers[metric]) if metric in numbers else "" for metric in metrics])
        for domain, numbers in report.utility_by_domain.items()
    ]
    return metrics, rows


def example_columns(attack: AttackResult) -> list[str]:
    """Return the columns of an attack's examples, in the order of their first appearance."""
    return list(dict.fromkeys(key for row in attack.examples for key in row))
