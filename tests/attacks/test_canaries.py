"""The canary attack: verdicts with and without a claim, a bot that knows them and one that does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from scipy.stats import binom

from hushbot.attacks.canaries import Canaries
from hushbot.corpora.canaries import CanarySettings, draw_canaries
from hushbot.errors import AuditError, ConfigError
from hushbot.evaluation.informing import confronted
from hushbot.masking import mask_row
from hushbot.recipes.value_copy import ValueCopy
from hushbot.schema import Schema, Slot
from hushbot.types import AttackResult, AuditSplit, Canary, Estimate, PrivacyInfo

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = Schema.of([Slot("hotel", "area", True, ("north", "south")), Slot("train", "day", True, ("monday",))])
QUICK = Canaries(n_alternatives=3, n_draws=100)


def split_of(m: int, *, seed: int = 0, **settings: Any) -> AuditSplit:
    return AuditSplit((), (), canaries=draw_canaries(SCHEMA, CanarySettings(m=m, **settings), seed))


@dataclass
class Bot:
    """Finds some canaries' identifiers more probable than others by `gain`; all else is noise of its text alone."""

    knows: Sequence[Canary] = ()
    gain: float = 30.0
    salt: str = ""
    reference: Any = None
    n_scored: int = field(default=0, init=False)

    def logprobs(self, prompts: Sequence[str], continuations: Sequence[str]) -> list[Tensor]:
        import random

        import torch

        known = {canary.identifier for canary in self.knows}
        self.n_scored += len(prompts)
        answers = []
        for prompt, line in zip(prompts, continuations, strict=True):
            noise = random.Random(f"{self.salt}/{prompt}{line}").random()
            is_known = any(name in line for name in known)
            answers.append(torch.tensor([-40.0 - noise + self.gain * is_known, -1.0]))
        return answers


def inserted(split: AuditSplit) -> list[Canary]:
    return [canary for canary in split.canaries if canary.is_inserted]


def attack(bot: Bot, split: AuditSplit, how: Canaries = QUICK, seed: int = 0) -> AttackResult:
    return how.run(bot, split, SCHEMA, seed=seed)  # type: ignore[arg-type]


def privacy(epsilon: float, delta: float = 1e-5, unit: str = "dialogue") -> PrivacyInfo:
    return PrivacyInfo(
        unit=unit,
        epsilon=epsilon,
        delta=delta,
        accountant="prv",
        noise_multiplier=1.0,
        sample_rate=0.1,
        steps=10,
        max_grad_norm=1.0,
        secure_rng=False,
    )


def notes(result: AttackResult) -> str:
    return "\n".join(result.notes)


# --- verdicts


def test_a_bot_that_knows_what_went_in_leaks() -> None:
    split = split_of(100)
    result = attack(Bot(inserted(split), reference=Bot(salt="base")), split)
    m_in = len(inserted(split))
    assert result.verdict == "leak"
    assert (result.metrics["guesses"], result.metrics["correct"]) == (74, 74)
    assert result.metrics["inserted"] == m_in
    assert m_in != 50
    # Where all are guessed, half of them in, coins that did not come out even cost the difference.
    all_guessed = attack(Bot(inserted(split)), split, replace(QUICK, guesses=(1.0,)))
    assert all_guessed.metrics["correct"] == 100 - abs(2 * m_in - 100) // 2
    q = 0.025 ** (1 / 74)
    assert result.metrics["ceiling"] == pytest.approx(math.log(q / (1 - q)), abs=1e-6)
    assert isinstance(exposure := result.metrics["exposure"], Estimate)
    assert exposure.value == 2.0  # best of four
    assert result.control["nonmembers"]["exposure"].value < 1.3
    assert result.control["base"]["epsilon_lower"].value == 0
    assert result.queries == 2 * 100 * 4
    assert result.headline.key == "epsilon_lower"
    assert result.headline.estimate == result.metrics["epsilon_lower"]


def test_a_bot_that_knows_nothing_does_not() -> None:
    result = attack(Bot(reference=Bot(salt="base")), split_of(100))
    assert result.verdict == "no_leak_detected"
    assert result.headline.estimate.value == 0.0
    assert "could have shown is 2.974" in notes(result)


def test_an_untrained_bot_is_called_a_leak_at_most_as_often_as_promised() -> None:
    n = 120
    alarms = sum(attack(Bot(salt=str(seed)), split_of(40, seed=seed), seed=seed).verdict == "leak" for seed in range(n))
    assert alarms <= binom.ppf(0.999, n, 0.05)


def test_a_bot_that_learnt_a_little_is_found_out_nearly_always() -> None:
    """One nat above noise of width one."""
    found = 0
    for seed in range(20):
        split = split_of(80, seed=seed)
        found += attack(Bot(inserted(split), gain=1.0, salt=str(seed)), split, seed=seed).verdict == "leak"
    assert found >= 19


def test_a_claim_that_the_bound_exceeds_is_refuted() -> None:
    split = split_of(100)
    claimed = confronted(QUICK, privacy(0.5))
    assert (claimed.claimed_epsilon, claimed.claimed_delta) == (0.5, 1e-5)  # type: ignore[attr-defined]
    result = attack(Bot(inserted(split)), split, claimed)  # type: ignore[arg-type]
    assert result.verdict == "leak"
    assert "the claim of 0.5 at delta 1e-05 is refuted" in notes(result)
    assert result.metrics["claimed_epsilon"] == 0.5
    # The delta of the claim costs a little.
    plain = attack(Bot(inserted(split)), split).headline.estimate.value
    assert plain is not None
    assert result.headline.estimate.value is not None
    assert plain - 0.1 < result.headline.estimate.value < plain


def test_what_lies_within_a_claim_is_no_leak_if_it_could_have_been_one() -> None:
    split = split_of(100)
    some = inserted(split)[::2]  # half of what went in, so that the bound lies well below the ceiling
    bound = attack(Bot(some), split).headline.estimate.value
    assert bound is not None
    assert 0 < bound < 2
    within = attack(Bot(some), split, replace(QUICK, claimed_epsilon=2.5))
    assert within.verdict == "no_leak_detected"
    assert "within the claim of 2.5" in notes(within)
    beyond = attack(Bot(some), split, replace(QUICK, claimed_epsilon=8.0))
    assert beyond.verdict == "inconclusive"
    assert "cannot be tested" in notes(beyond)
    nothing = attack(Bot(), split, replace(QUICK, claimed_epsilon=8.0))
    assert nothing.verdict == "no_leak_detected"
    assert "the claim is 8" in notes(nothing)


@pytest.mark.parametrize(
    "claim", [None, privacy(math.inf), privacy(1.0, unit="turn")], ids=["none", "infinite", "per turn"]
)
def test_what_is_no_claim_per_dialogue_is_not_tested(claim: PrivacyInfo | None) -> None:
    told = confronted(QUICK, claim)
    assert told == QUICK
    result = attack(Bot(), split_of(20), told)  # type: ignore[arg-type]
    assert isinstance(claimed := result.metrics["claimed_epsilon"], Estimate)
    assert claimed.value is None


def test_a_setting_of_ones_own_comes_before_the_report() -> None:
    own = replace(QUICK, claimed_epsilon=3.0)
    assert confronted(own, privacy(1.0)) == own


def test_a_canary_that_went_in_several_times_tests_no_claim() -> None:
    split = split_of(100, repetitions=2)
    result = attack(Bot(inserted(split)), split, replace(QUICK, claimed_epsilon=8.0))
    assert result.verdict == "leak"
    assert "several times" in str(result.metrics["claimed_epsilon"])
    assert "refuted" not in notes(result)


def test_a_base_that_tells_them_apart_as_well_is_no_evidence() -> None:
    split = split_of(100)
    result = attack(Bot(inserted(split), reference=Bot(inserted(split))), split)
    assert result.verdict == "inconclusive"
    assert "saw no canary" in notes(result)


def test_a_bot_that_rates_them_lower_is_no_clean_one() -> None:
    split = split_of(100)
    result = attack(Bot(inserted(split), gain=-30.0), split)
    assert result.verdict == "inconclusive"
    assert "unexpected side" in notes(result)


def test_a_bot_that_lets_nothing_through_shows_nothing() -> None:
    """All texts alike, as behind a guard that takes identifiers out: ties everywhere, whatever the coins."""
    split = split_of(100)
    silent = Bot()
    silent.logprobs = lambda prompts, lines: [__import__("torch").tensor([-3.0])] * len(prompts)  # type: ignore[method-assign]
    by_coin = replace(split, canaries=tuple(sorted(split.canaries, key=lambda canary: canary.is_inserted)))
    assert attack(silent, split).verdict == "no_leak_detected"
    assert attack(silent, by_coin).headline == attack(silent, split).headline


def test_a_guard_that_hides_values_hides_canaries(
    memoriser: Any, synthetic_split: AuditSplit, synthetic_schema: Schema
) -> None:
    split = replace(synthetic_split, canaries=draw_canaries(synthetic_schema, CanarySettings(m=40), 0))
    bot = replace(memoriser, members=split.trained)
    assert QUICK.run(bot, split, synthetic_schema, seed=0).verdict == "leak"
    guarded = ValueCopy().guard(bot, synthetic_schema)
    result = QUICK.run(guarded, split, synthetic_schema, seed=0)
    assert (result.verdict, result.headline.estimate.value) == ("no_leak_detected", 0.0)


def test_no_canaries_are_not_measured_and_too_few_are_inconclusive() -> None:
    none = attack(Bot(), AuditSplit((), ()))
    assert none.verdict == "not_measured"
    assert "canaries.m" in notes(none)
    assert none.headline.estimate.value is None
    few = split_of(4)
    assert attack(Bot(inserted(few)), few).verdict == "inconclusive"


@pytest.mark.parametrize("failing", ["bot", "base"])
def test_a_failed_query_is_inconclusive(failing: str) -> None:
    def fail(prompts: Sequence[str], lines: Sequence[str]) -> list[Any]:
        raise AuditError("the endpoint answered 503")

    bot = Bot(reference=Bot(salt="base"))
    (bot if failing == "bot" else bot.reference).logprobs = fail
    result = attack(bot, split_of(20))
    assert (result.verdict, result.headline.estimate.value) == ("inconclusive", None)
    assert "503" in notes(result)


def test_the_ratio_needs_a_base() -> None:
    split = split_of(100)
    by_ratio = replace(QUICK, score="ratio")
    assert attack(Bot(inserted(split)), split, by_ratio).verdict == "inconclusive"
    assert attack(Bot(inserted(split), reference=Bot(salt="base")), split, by_ratio).verdict == "leak"
    without = attack(Bot(inserted(split)), split).metrics["ratio/epsilon_lower"]
    assert isinstance(without, Estimate)
    assert without.value is None


@pytest.mark.parametrize("name", ["contrast", "loss", "ratio"])
def test_every_score_is_on_the_right_side(name: str) -> None:
    split = split_of(100)
    result = attack(Bot(inserted(split), reference=Bot(salt="base")), split, replace(QUICK, score=name))
    assert result.verdict == "leak"
    assert result.metrics[f"{name}/epsilon_lower"] == result.headline.estimate


# --- records and settings


def test_identifiers_are_in_masked_records_only() -> None:
    split = split_of(20)
    result = attack(Bot(inserted(split)), split)
    assert [row["dialogue_id"] for row in result.rows] == [canary.dialogue.id for canary in split.canaries]
    assert [row["is_member"] for row in result.rows] == [canary.is_inserted for canary in split.canaries]
    text = result.model_dump_json()
    masked = str([mask_row(row) for row in result.rows])
    for canary in split.canaries:
        assert canary.identifier not in text
        assert canary.identifier not in masked
    assert {row["outcome"] for row in result.rows} <= {"guessed in", "guessed out", "not guessed"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"score": "entropy"},
        {"scores": ()},
        {"score": "ratio", "scores": ("loss",)},
        {"guesses": ()},
        {"guesses": (0.0,)},
        {"guesses": (1.5,)},
        {"n_alternatives": 0},
        {"level": 1.0},
        {"n_draws": 10},
        {"claimed_epsilon": -1.0},
        {"claimed_epsilon": math.inf},
        {"claimed_delta": 1.0},
    ],
    ids=str,
)
def test_settings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"attack\.canaries"):
        Canaries(**wrong)
