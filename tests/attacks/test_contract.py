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

from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.protocols import Attack, Target
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, AuditSplit, Decoding, Estimate

if TYPE_CHECKING:
    from torch import Tensor

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "attack"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))
N_CONFIGS = 8
SMALL: dict[str, dict[str, Any]] = {
    "untargeted_extraction": {"n_samples": 200, "k": 50},
    "quiz": {"n_draws": 200, "max_records": 105},
    "membership": {"n_draws": 200, "n_permutations": 99},
    "blind": {"n_draws": 200, "n_permutations": 199},
    "targeted_extraction": {"decoders": ["greedy"], "lengths": [2, 3, 4], "max_prefixes": 120},
    "identifier_leak": {"n_samples": 8, "max_documents": 40, "sweep_documents": 4},
    "schema_probe": {"temperatures": [1.0], "n_questions": 60, "n_samples": 60, "n_runs": 2},
    "canaries": {"n_alternatives": 7, "n_draws": 200},
}
"""Settings that keep these tests fast."""
CHANCE: dict[str, Callable[[AttackResult], float | None]] = {
    "untargeted_extraction": lambda r: r.control["nonmembers"]["vanilla/dc_ppl/state_precision@50"].value,
    "membership": lambda _: 0.01,
    "blind": lambda _: 0.5,
    "quiz": lambda _: 0.5,
    "targeted_extraction": lambda r: r.control["nonmembers"]["greedy/none/state_precision"].value,
    "identifier_leak": lambda r: r.control["nonmembers"]["leak_rate"].value,
    "schema_probe": lambda _: 0.0,
    "canaries": lambda _: 0.0,
}
"""What the headline is where nothing leaks."""
OF_THE_SERVICE = frozenset({"schema_probe"})
"""Attacks on what a bot serves, not on persons: whoever knows the schema gives it away, members or not."""
OF_THE_SPLIT = frozenset({"blind"})
"""Attacks that ask the bot nothing, for they measure the split: no bot leaks to them, and none can fail them."""
OF_THE_CANARIES = frozenset({"canaries"})
"""Attacks on dialogues that were made up for them: only a bot that was trained on those leaks, whatever its members."""
ONE_SIDED = frozenset({"canaries"})
"""Attacks whose headline is a bound from below: it has no upper end."""
TEXT_ONLY = frozenset({"schema_probe", "identifier_leak"})
"""Attacks that ask for no score, or can do without."""


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
def synthetic_split(synthetic_split: AuditSplit, synthetic_schema: Schema) -> AuditSplit:
    """Return the split with canaries beside its sides, which only one attack looks at."""
    return replace(synthetic_split, canaries=draw_canaries(synthetic_schema, CanarySettings(m=40), 0))


@pytest.fixture
def leaky(named_attack: tuple[str, Attack], memoriser: Any, stranger: Any, synthetic_split: AuditSplit) -> Any:
    """Return a bot that has what the attack is after."""
    if named_attack[0] in OF_THE_SPLIT:
        pytest.skip("the attack asks the bot nothing, so no bot leaks to it")
    if named_attack[0] in OF_THE_CANARIES:
        return replace(memoriser, members=synthetic_split.trained)
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


def turned(split: AuditSplit) -> AuditSplit:
    """Return a split whose sides stand in the opposite order."""
    sides = {name: getattr(split, name)[::-1] for name in ("members", "nonmembers", "canaries")}
    return replace(split, **sides)


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
    assert None not in (estimate.low, chance)
    assert (estimate.high is None) == (name in ONE_SIDED)
    assert estimate.low <= chance  # type: ignore[operator]
    assert estimate.high is None or chance <= estimate.high  # type: ignore[operator]
    assert result.verdict == "no_leak_detected"


def test_the_same_seed_gives_the_same_result(
    attack: Attack, memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    first, second = (attack.run(memoriser, synthetic_split, synthetic_schema, seed=7) for _ in range(2))
    assert comparable(first) == comparable(second)


def test_neither_batches_nor_the_order_of_dialogues_matter(
    attack: Attack, stranger: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    backwards = turned(synthetic_split)
    plain = attack.run(stranger, synthetic_split, synthetic_schema, seed=1)
    shuffled = attack.run(Rebatched(stranger, 7), backwards, synthetic_schema, seed=1)
    assert comparable(plain) == comparable(shuffled)


def test_uneven_sides_change_no_promise(
    attack: Attack, leaky: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    uneven = replace(synthetic_split, nonmembers=synthetic_split.nonmembers[:110])
    backwards = turned(uneven)
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
    if named_attack[0] in OF_THE_SPLIT:
        pytest.skip("the attack asks the bot nothing, so no bot fails it")
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
    named_attack: tuple[str, Attack], memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    name, attack = named_attack
    result = attack.run(memoriser, synthetic_split, synthetic_schema, seed=0)
    asked = [memoriser, memoriser.reference]
    assert result.queries == sum(target.n_sampled + target.n_scored for target in asked)
    assert (result.queries == 0) is (name in OF_THE_SPLIT)


def test_a_target_without_a_reference_still_works(
    attack: Attack, leaky: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    result = attack.run(replace(leaky, reference=None), synthetic_split, synthetic_schema, seed=0)
    assert result.verdict == "leak"
    assert result.control["base"] is None
