"""A report as the rows that every tracker gets: one row per number, with its interval and how it was made.

Guarantees: a number that was not measured is a row without a value, never zero, and no point of a curve; every row of
one attack stands at one step, the attack's place in the report, so a resumed run continues where it was; training has
an axis of its own, in epochs; what is shown of records is masked, also where the records on disk are in the clear
(`reveal=true`). What documents add to a metric (`units`) is in no row.

What voids them: nothing that a tracker is told makes masked text safe to publish; see `hushbot.masking`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from hushbot.composition import decisive
from hushbot.errors import DataError
from hushbot.masking import mask_row
from hushbot.types import AttackResult, AuditReport, Estimate, Headline, TrainingEpoch

UTILITY = "joint_goal_accuracy"
"""The metric that leakage is drawn against."""
STEP = "audit/step"
"""The axis of everything an audit finds: 0 is the bot, k the report's k-th attack."""
EPOCH = "train/epoch"
"""The axis of everything that was looked at during training."""
_PRIVATE_SETTINGS = frozenset({"url", "key_variable", "manifest", "start_text"})
"""Settings that say where a server or a file is, and nothing about what was measured."""
Curves: TypeAlias = Literal["main", "all"]
"""What dashboards draw: what a bot is judged by, or every number."""
_COST = "cost"
_ESTIMATE_KEYS = frozenset({"value", "low", "high"})


class Row(NamedTuple):
    """One number of a report."""

    axis: str
    """What its step counts: `audit/step`, or `train/epoch`."""
    step: int
    section: str
    """`epoch <k>`, `bot`, the attack's name, or `cost` for what the whole audit took."""
    key: str
    """The number's name on every dashboard: `utility/jga`, `audit/membership/auc`."""
    value: float | None
    low: float | None
    high: float | None
    level: float | None
    n: int | None
    method: str
    """How the interval was made, or why nothing was measured."""
    verdict: str
    """The attack's verdict; empty for the bot."""
    is_main: bool
    """Whether a dashboard shows it unless asked for all: an audit has hundreds of numbers."""


def rows_of(report: AuditReport) -> dict[str, list[Row]]:
    """Return the rows of a report by section, those that there is anything to say of.

    Training comes first, epoch by epoch, then the bot, then each attack, and last, once it is over, what it all took.
    """
    sections = {f"epoch {epoch.epoch}": list(_epoch_rows(epoch)) for epoch in report.training}
    sections["bot"] = list(_bot_rows(report))
    for step, (name, result) in enumerate(report.attacks.items(), start=1):
        sections[name] = list(_attack_rows(step, name, result))
    if report.status == "complete":
        sections[_COST] = list(_cost_rows(report))
    return {name: rows for name, rows in sections.items() if rows}


def points(rows: list[Row], curves: Curves = "main") -> dict[str, float]:
    """Return what is drawn: each measured number, its interval's ends as `<key>.low` and `<key>.high`."""
    found = {}
    for row in rows:
        if row.value is None or not (row.is_main or curves == "all"):
            continue
        ends = {row.key: row.value, f"{row.key}.low": row.low, f"{row.key}.high": row.high}
        found.update({key: end for key, end in ends.items() if end is not None})
    return found


def summary_of(report: AuditReport) -> dict[str, str | float]:
    """Return the state of a run in few words: status, and each attack's verdict and headline where measured."""
    found: dict[str, str | float] = {"status": report.status}
    for name, result in report.attacks.items():
        found[f"verdict/{name}"] = result.verdict
        if (value := _finite(result.headline.estimate.value)) is not None:
            found[f"headline/{name}"] = value
    return found


def shown_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide what a run measures, without where anything lies on this machine."""
    plain: dict[str, Any] = {key: node for key, node in decisive(config).items() if key not in _PRIVATE_SETTINGS}
    return {key: _without_folders(node) for key, node in plain.items()}


def shown_records(folder: Path, result: AttackResult, config: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return the first masked records of an attack, as cells of one type per column; none where it has none."""
    if result.records is None or limit < 1:
        return []
    import pyarrow.parquet as pq

    path = folder / result.records
    if not path.resolve().is_relative_to(folder.resolve()):  # a report may be anybody's
        raise DataError(f"{folder}: its report names records outside of it; restore the report or audit again")
    rows = pq.read_table(path).slice(0, limit).to_pylist()
    if config.get("reveal", True):  # in the clear on disk, or nobody says that they are masked
        rows = [mask_row(row) for row in rows]
    return [{name: _cell(cell) for name, cell in row.items()} for row in rows]


def _epoch_rows(epoch: TrainingEpoch) -> Iterator[Row]:
    place = (EPOCH, epoch.epoch, f"epoch {epoch.epoch}")
    losses = {"training_loss": epoch.training_loss, "calibration_loss": epoch.calibration_loss}
    yield from _rows(place, "train", {**losses, **epoch.measured})


def _bot_rows(report: AuditReport) -> Iterator[Row]:
    place, run, privacy = (STEP, 0, "bot"), report.run, report.recipe.privacy
    by_domain = {f"domain={domain}": numbers for domain, numbers in report.utility_by_domain.items()}
    yield from _rows(place, "utility", report.utility)
    for row in _rows(place, "utility", by_domain):
        yield row._replace(is_main=row.key.endswith(f"/{UTILITY}"))
    if privacy is not None:
        yield from _rows(place, "privacy", {"epsilon": privacy.epsilon, "delta": privacy.delta})
    if run.tokens_trained:
        yield from _rows(place, "cost/tokens_trained", run.tokens_trained)
    for part in ("train", "utility"):
        if part in run.seconds:
            yield from _rows(place, f"cost/{part}_seconds", run.seconds[part])
        if part in run.peak_memory_mb:
            yield from _rows(place, f"cost/{part}_peak_memory_mb", run.peak_memory_mb[part])
    if run.seconds_per_turn is not None:
        yield from _rows(place, "cost/seconds_per_turn", run.seconds_per_turn)


def _attack_rows(step: int, name: str, result: AttackResult) -> Iterator[Row]:
    parts: dict[str, Any] = {"headline": result.headline.estimate, **result.metrics}
    parts |= {"control": result.control, "blind": result.blind or {}, "queries": result.queries}
    if result.seconds:
        parts["seconds"] = result.seconds
    for row in _rows((STEP, step, name), f"audit/{name}", parts, result.verdict):
        yield row._replace(is_main=_is_main(row.key.removeprefix(f"audit/{name}/"), result.headline))


def _is_main(key: str, headline: Headline) -> bool:
    """Return whether a number says by itself what an attack found: no breakdown, no score that was not judged by."""
    wanted = headline.key or headline.metric
    score = wanted.rpartition("/")[0]
    is_beside = key.startswith("control/") and key.endswith(f"/{wanted}")
    return "/" not in key or is_beside or key in (f"blind/{headline.metric}", "blind/auc", f"{score}/auc")


def _cost_rows(report: AuditReport) -> Iterator[Row]:
    """Yield what grows with every attack; before the last one it would be a number of another thing."""
    place, run = (STEP, len(report.attacks), _COST), report.run
    if "audit" in run.seconds:
        yield from _rows(place, "cost/audit_seconds", run.seconds["audit"])
    if "audit" in run.peak_memory_mb:
        yield from _rows(place, "cost/audit_peak_memory_mb", run.peak_memory_mb["audit"])


def _rows(place: tuple[str, int, str], key: str, node: Any, verdict: str = "") -> Iterator[Row]:
    """Yield the numbers below a node; controls that were read from disk hold mappings instead of estimates."""
    if isinstance(node, Mapping) and node.keys() >= _ESTIMATE_KEYS:
        node = Estimate.model_validate(node)
    if isinstance(node, Estimate):
        ends = (_finite(node.value), _finite(node.low), _finite(node.high))
        yield Row(*place, key, *ends, node.level, node.n, node.method, verdict, True)
    elif isinstance(node, Mapping):
        for name, inner in node.items():
            yield from _rows(place, f"{key}/{name}", inner, verdict)
    elif node is None or (isinstance(node, (int, float)) and not isinstance(node, bool)):
        yield Row(*place, key, _finite(node), None, None, None, None, "", verdict, True)


def _finite(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


def _cell(cell: Any) -> Any:
    return json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, (dict, list)) else cell


def _without_folders(node: Any) -> Any:
    """Keep the last part of every absolute path: the folders above it name people and machines."""
    if isinstance(node, Mapping):
        return {str(key): _without_folders(inner) for key, inner in node.items()}
    if isinstance(node, (list, tuple)):
        return [_without_folders(inner) for inner in node]
    is_path = isinstance(node, str) and (node.startswith("~") or Path(node).is_absolute())
    return f".../{Path(node).name}" if is_path else node
