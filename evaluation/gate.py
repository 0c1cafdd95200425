"""Does a report stay within a leakage budget? What may pass is decided by what is shown, not by what is hoped.

Guarantees: a limit holds only where the number was measured and, unless the budget says `use: value`, where its
interval lies within the limit as well. A value past its limit breaks the budget. All else is undecided: a value within
whose interval reaches past the limit, a number without an interval, or with none at all (missing, null, NaN), an
attack that is missing, inconclusive or not measured, a report that is not complete, epsilon without a guarantee. Of a
budget every key is known, given once, and a number where it should be one; a budget that limits nothing is refused.

What voids it: what the budget does not name is not judged. A report that somebody edited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hushbot.errors import ConfigError, DataError
from hushbot.storage import read_yaml
from hushbot.types import AttackResult, AuditReport, Estimate, Metric

HEADLINE = "headline"
"""What a limit on an attack's headline is called; every other name is a key of its metrics."""
WITHIN, BROKEN, UNDECIDED = 0, 3, 4
"""Exit codes."""
Outcome = Literal["within", "broken", "undecided"]
_CODES: dict[Outcome, int] = {"within": WITHIN, "broken": BROKEN, "undecided": UNDECIDED}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Limit(_Strict):
    """How far a number may go."""

    max: float | None = None
    """The largest value."""
    min: float | None = None
    """The smallest value."""
    use: Literal["interval", "value"] = "interval"
    """`interval`: the end of the interval that is nearest to the limit, or past it, must be within as well."""

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"max": value} if is_number else value

    @model_validator(mode="after")
    def _check(self) -> Limit:
        if self.max is None and self.min is None:
            raise ValueError("give max, or min")
        if self.max is not None and self.min is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is above max={self.max}")
        return self

    def __str__(self) -> str:
        ends = [f"{name} {end:g}" for name, end in (("min", self.min), ("max", self.max)) if end is not None]
        return ", ".join(ends) + (" (value alone)" if self.use == "value" else "")


class PrivacyLimit(_Strict):
    """What the differential privacy guarantee must be."""

    max_epsilon: float = Field(ge=0)
    max_delta: float | None = Field(default=None, gt=0, lt=1)
    unit: str | None = None
    """What the guarantee must be about (`dialogue`)."""


class Budget(_Strict):
    """A leakage budget."""

    version: Literal[1] = 1
    required: list[str] = Field(default_factory=list)
    """Attacks that must have come to a verdict, whatever it is."""
    attacks: dict[str, dict[str, Limit]] = Field(default_factory=dict)
    """Attack -> `headline` or a key of its metrics -> limit; each attack here is required."""
    privacy: PrivacyLimit | None = None
    utility: dict[str, Limit] = Field(default_factory=dict)
    """Utility metric -> limit, with `min` for those of which more is better."""

    @model_validator(mode="after")
    def _check(self) -> Budget:
        if empty := [name for name, limits in self.attacks.items() if not limits]:
            raise ValueError(f"attacks.{empty[0]} limits nothing; name its headline, or put it under required")
        if not (self.required or self.attacks or self.privacy or self.utility):
            raise ValueError("the budget limits nothing; see docs/gate.md for one")
        return self


class Finding(NamedTuple):
    """One limit, and what the report says about it."""

    what: str
    limit: str
    found: str
    outcome: Outcome
    why: str = ""


def read_budget(path: Path) -> Budget:
    """Return the budget in a YAML file.

    Raises:
        ConfigError: There is no such file, or it holds something else; all problems at once.
    """
    try:
        content = read_yaml(path)
    except DataError as error:
        raise ConfigError(f"budget={error}; see docs/gate.md") from error
    try:
        return Budget.model_validate(content)
    except ValidationError as error:
        raise ConfigError(*(_problem(path, problem) for problem in error.errors())) from error


def judge(report: AuditReport, budget: Budget) -> tuple[Finding, ...]:
    """Return one finding per limit, and one per attack that must have a verdict."""
    return (
        _status(report),
        *(
            finding
            for name in dict.fromkeys((*budget.required, *budget.attacks))
            for finding in _attack(name, report.attacks.get(name), budget.attacks.get(name, {}))
        ),
        *(_privacy(report, budget.privacy) if budget.privacy is not None else ()),
        *(_number(f"utility {key}", report.utility.get(key), limit) for key, limit in budget.utility.items()),
    )


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 3 where the budget is broken, else 4 where anything is undecided, else 0."""
    outcomes: set[Outcome] = {finding.outcome for finding in findings}
    worst: Outcome = "broken" if "broken" in outcomes else "undecided" if "undecided" in outcomes else "within"
    return _CODES[worst]


def _status(report: AuditReport) -> Finding:
    if report.status == "complete":
        return Finding("report", "complete", "complete", "within")
    why = "what is missing was not judged; finish the audit with the command that started it"
    return Finding("report", "complete", report.status, "undecided", why)


def _attack(name: str, attack: AttackResult | None, limits: Mapping[str, Limit]) -> Iterator[Finding]:
    if attack is None:
        yield Finding(name, "measured", "missing", "undecided", f"run the audit with attack={name}")
        return
    is_decided = attack.verdict in ("leak", "no_leak_detected")
    verdict: Outcome = "within" if is_decided else "undecided"
    why = "" if is_decided else "the report's notes say why"
    yield Finding(f"{name} verdict", "measured", attack.verdict.replace("_", " "), verdict, why)
    for key, limit in limits.items():
        if key == HEADLINE:
            yield _number(f"{name} {attack.headline.metric}", attack.headline.estimate, limit)
        else:
            yield _number(f"{name} {key}", attack.metrics.get(key), limit)


def _privacy(report: AuditReport, limit: PrivacyLimit) -> Iterator[Finding]:
    found = report.recipe.privacy
    if found is None:
        yield Finding("epsilon", f"max {limit.max_epsilon:g}", "no guarantee", "undecided", "nothing bounds it")
        return
    exact = {"epsilon": (found.epsilon, limit.max_epsilon), "delta": (found.delta, limit.max_delta)}
    for name, (value, most) in exact.items():
        if most is not None:
            yield _number(name, value, Limit(max=most, use="value"))
    if limit.unit is not None:
        is_same = found.unit == limit.unit
        yield Finding("privacy unit", limit.unit, found.unit, "within" if is_same else "broken")


def _number(what: str, number: Metric, limit: Limit) -> Finding:
    """Compare one number with its limit."""
    value, low, high = _ends(number)
    if value is None:
        why = number.method if isinstance(number, Estimate) else ""
        return Finding(what, str(limit), "not measured", "undecided", why)
    shown = f"{value:.4g}" if low is None or high is None else f"{value:.4g} [{low:.4g}, {high:.4g}]"
    if _is_past(limit, value, value):
        return Finding(what, str(limit), shown, "broken")
    if limit.use == "value":
        return Finding(what, str(limit), shown, "within")
    if low is None or high is None:
        return Finding(what, str(limit), shown, "undecided", "it has no interval; `use: value` judges the value alone")
    if _is_past(limit, low, high):
        return Finding(what, str(limit), shown, "undecided", "its interval reaches past the limit; measure more")
    return Finding(what, str(limit), shown, "within")


def _is_past(limit: Limit, low: float, high: float) -> bool:
    return (limit.max is not None and high > limit.max) or (limit.min is not None and low < limit.min)


def _ends(number: Metric) -> tuple[float | None, float | None, float | None]:
    """Return a number and the ends of its interval; None for what is not there or not finite."""
    found = (number.value, number.low, number.high) if isinstance(number, Estimate) else (number, None, None)
    value, low, high = (None if end is None or not math.isfinite(end) else float(end) for end in found)
    return value, low, high


def _problem(path: Path, problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    shown = f"{key}={problem['input']!r}: " if key else ""
    hint = "; YAML reads 1e-5 as a text, write 1.0e-5" if problem["type"] == "float_type" else ""
    return f"budget={path}: {shown}{problem['msg']}{hint}"
