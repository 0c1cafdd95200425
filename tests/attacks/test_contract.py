"""What every attack promises, held against every configuration in configs/attack.

A new attack is covered the moment its YAML exists: raise `N_CONFIGS`, and name its chance level in `CHANCE`
and a small size in `SMALL` where its defaults are slow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import pytest
from omegaconf import OmegaConf

from hushbot.protocols import Attack, Target
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, AuditSplit, Decoding, Estimate

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "attack"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))
N_CONFIGS = 4
SMALL: dict[str, dict[str, Any]] = {
    "untargeted_extraction": {"n_samples": 200, "k": 50},
    "membership": {"n_draws": 200},
    "targeted_extraction": {"decoders": ["greedy"], "lengths": [2, 3, 4], "max_prefixes": 120},
    "schema_probe": {"temperatures": [1.0], "n_questions": 60, "n_samples": 60, "n_runs": 2},
}
"""Settings that keep these tests fast."""
CHANCE: dict[str, Callable[[AttackResult], float | None]] = {
    "untargeted_extraction": lambda r: r.control["nonmembers"]["vanilla/dc_ppl/state_precision@50"].value,
    "membership": lambda _: 0.01,
    "targeted_extraction": lambda r: r.control["nonmembers"]["greedy/none/state_precision"].value,
    "schema_probe": lambda _: 0.0,
}
"""What the headline is where nothing leaks."""
OF_THE_SERVICE = frozenset({"schema_probe"})
"""Attacks on what a bot serves, not on persons: whoever knows the schema gives it away, members or not."""
TEXT_ONLY = frozenset({"schema_probe"})
"""Attacks that ask for no score."""


def load(path: Path) -> dict[str, Attack]:
    """Instantiate a configuration as the command line does."""
    config = OmegaConf.merge(OmegaConf.load(path), {path.stem: SMALL.get(path.stem, {})})
    attacks: dict[str, Attack] = hydra.utils.instantiate(config, _convert_="all")
    return attacks


@pytest.fixture(params=CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
def named_attack(request: pytest.FixtureRequest) -> tuple[str, Attack]:
    """Return each attack with its name, which is its file's."""
    ((name, attack),) = load(request.param).items()
    assert name == request.param.stem
    return name, attack


@pytest.fixture
def attack(named_attack: tuple[str, Attack]) -> Attack:
    return named_attack[1]


@pytest.fixture
def leaky(named_attack: tuple[str, Attack], memoriser: Any, stranger: Any) -> Any:
    """Return a bot that has what the attack is after."""
    return stranger if named_attack[0] in OF_THE_SERVICE else memoriser


@pytest.fixture
def ignorant(named_attack: tuple[str, Attack], stranger: Any) -> Any:
    """Return a bot that has not."""
    if named_attack[0] not in OF_THE_SERVICE:
        return stranger
    pools = {("bank", name): ["one", "two"] for name in ("account", "amount", "branch")}
    return replace(stranger, schema=Schema.of(Slot(domain, slot) for domain, slot in pools), pools=pools)


def comparable(result: AttackResult) -> dict[str, Any]:
    """Return everything about a result but how long it took."""
    return result.model_dump(exclude={"seconds"}) | {"rows": sorted(result.rows, key=str)}


@dataclass
class Rebatched:
    """Passes scoring queries on in small batches, last batch first."""

    inner: Any
    size: int

    @property
    def reference(self) -> Target | None:
        return None

    def sample(
        self, prompts: Sequence[str], *, n: int, max_new_tokens: int, decoding: Decoding, seed: int
    ) -> list[list[str]]:
        samples: list[list[str]] = self.inner.sample(
            prompts, n=n, max_new_tokens=max_new_tokens, decoding=decoding, seed=seed
        )
        return samples

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        scores: dict[int, Tensor] = {}
        for start in reversed(range(0, len(prompts), self.size)):
            stop = min(start + self.size, len(prompts))
            batch = self.inner.logprobs(prompts[start:stop], continuations[start:stop])
            scores |= dict(zip(range(start, stop), batch, strict=True))
        return [scores[i] for i in range(len(prompts))]


def test_every_configuration_is_found() -> None:
    assert len(CONFIGS) == N_CONFIGS
    assert {path.stem for path in CONFIGS} == CHANCE.keys()


def test_each_configuration_is_an_attack(attack: Attack) -> None:
    assert isinstance(attack, Attack)


def test_a_bot_that_knows_leaks(
    attack: Attack, leaky: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = attack.run(leaky, synthetic_split, synthetic_schema, seed=0)
    assert result.headline.estimate.value is not None
    assert result.headline.estimate.value > 0.95
    assert result.verdict == "leak"


def test_a_stranger_does_not(
    named_attack: tuple[str, Attack], ignorant: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    name, attack = named_attack
    result = attack.run(ignorant, synthetic_split, synthetic_schema, seed=0)
    estimate, chance = result.headline.estimate, CHANCE[name](result)
    assert None not in (estimate.low, estimate.high, chance)
    assert estimate.low <= chance <= estimate.high  # type: ignore[operator]
    assert result.verdict == "no_leak_detected"


def test_the_same_seed_gives_the_same_result(
    attack: Attack, memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    first, second = (attack.run(memoriser, synthetic_split, synthetic_schema, seed=7) for _ in range(2))
    assert comparable(first) == comparable(second)


def test_neither_batches_nor_the_order_of_dialogues_matter(
    attack: Attack, stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    backwards = AuditSplit(synthetic_split.members[::-1], synthetic_split.nonmembers[::-1])
    plain = attack.run(stranger, synthetic_split, synthetic_schema, seed=1)
    shuffled = attack.run(Rebatched(stranger, 7), backwards, synthetic_schema, seed=1)
    assert comparable(plain) == comparable(shuffled)


def test_uneven_sides_change_no_promise(
    attack: Attack, leaky: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    uneven = replace(synthetic_split, nonmembers=synthetic_split.nonmembers[:110])
    backwards = AuditSplit(uneven.members[::-1], uneven.nonmembers[::-1])
    result = attack.run(leaky, uneven, synthetic_schema, seed=2)
    assert result.verdict == "leak"
    assert comparable(result) == comparable(attack.run(leaky, backwards, synthetic_schema, seed=2))


def test_inputs_are_left_as_they_were(
    attack: Attack, memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    split, schema = copy.deepcopy((synthetic_split, synthetic_schema))
    attack.run(memoriser, split, schema, seed=0)
    assert (split, schema) == (synthetic_split, synthetic_schema)


@pytest.mark.parametrize("failing", ["failing_target", "mute_target"])
def test_a_failing_target_is_inconclusive_and_never_zero(
    attack: Attack,
    failing: str,
    named_attack: tuple[str, Attack],
    request: pytest.FixtureRequest,
    synthetic_split: AuditSplit,
    synthetic_schema: Schema,
) -> None:
    if failing == "mute_target" and named_attack[0] in TEXT_ONLY:
        pytest.skip("the attack asks for no score, so a bot without scores does not fail it")
    target = request.getfixturevalue(failing)
    result = attack.run(target, synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "inconclusive"
    estimate = result.headline.estimate
    assert (estimate.value, estimate.low, estimate.high) == (None, None, None)
    assert any("log-probabilities" in note or "503" in note for note in result.notes)


def test_a_result_survives_json(
    attack: Attack, memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    text = result.model_dump_json()
    again = AttackResult.model_validate_json(text)
    assert again.model_dump_json() == text
    assert again.headline == result.headline
    estimates = {name: value for name, value in result.metrics.items() if isinstance(value, Estimate)}
    assert estimates
    assert {name: again.metrics[name] for name in estimates} == estimates


def test_every_query_is_counted(
    attack: Attack, memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    asked = [memoriser, memoriser.reference]
    assert result.queries == sum(target.n_sampled + target.n_scored for target in asked)
    assert result.queries > 0


def test_a_target_without_a_reference_still_works(
    attack: Attack, leaky: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = attack.run(replace(leaky, reference=None), synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "leak"
    assert result.control["base"] is None
