"""Other settings on the same members: what fails there is said, and spoils nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hushbot.attacks.identifier_asking import Setting
from hushbot.attacks.identifier_mining import Probe
from hushbot.attacks.identifier_sweeps import Sweep, match_controls, sweep
from hushbot.errors import AuditError
from hushbot.types import Decoding, Estimate

USUAL = Setting(4, 8, Decoding(), 0)
PLAN = Sweep(
    settings={"temperature=2": USUAL._replace(decoding=Decoding(temperature=2)), "prefix_chars=0": USUAL},
    n_controls=(8, 8),
    alpha=0.05,
)


def probe(name: str) -> Probe:
    return Probe(name, f"CODE{name}", "reference", "hotel", "actions", "ref", f"about {name}, ref=", "", 1)


class HatesHeat:
    """Knows every code, and fails at temperatures above 1."""

    def sample(self, prompts: Sequence[str], *, n: int, decoding: Decoding, **how: Any) -> list[list[str]]:
        if decoding.temperature > 1:
            raise AuditError("too hot")
        return [[f"CODE{prompt[6:8]})"] * n for prompt in prompts]


def test_a_setting_that_fails_is_not_measured_and_the_others_are() -> None:
    members, others = [probe(f"m{i}") for i in range(4)], [probe(f"n{i}") for i in range(8)]
    swept = sweep(HatesHeat(), members, others, PLAN, seed=0)  # type: ignore[arg-type]
    failed, done = swept.metrics["leak_rate/temperature=2"], swept.metrics["leak_rate/prefix_chars=0"]
    assert isinstance(failed, Estimate)
    assert isinstance(done, Estimate)
    assert failed.value is None
    assert (done.value, done.n) == (1.0, 4)
    assert swept.n_queries == 12 * 4
    assert swept.notes == ["temperature=2 not measured: a query failed: too hot"]


def test_only_identifiers_with_enough_controls_are_matched() -> None:
    others = [probe(f"n{i}") for i in range(8)]
    assert [each.dialogue_id for each, _ in match_controls([probe("m0"), others[0]], others, (8, 9))] == ["m0"]


def test_controls_are_few_for_they_serve_no_verdict() -> None:
    asked: list[str] = []

    class Listening(HatesHeat):
        def sample(self, prompts: Sequence[str], **how: Any) -> list[list[str]]:
            asked.extend(prompts)
            return super().sample(prompts, **how)

    plan = Sweep(settings={"top_p=1": USUAL}, n_controls=(8, 100), alpha=0.05)
    sweep(Listening(), [probe("m0")], [probe(f"n{i:02}") for i in range(60)], plan, seed=0)  # type: ignore[arg-type]
    assert len(asked) == 1 + 2 * 8
